"""Cells are found in samples, place each record by itself, and tell shapes apart that one Gaussian does not."""

import math

import numpy as np
import pytest
import torch

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.measure import Counts, GaussianRecipe, Means, Squares
from lightning_dpgen.measure.cells import InCells, _split
from lightning_dpgen.measure.gaussians import label_components
from lightning_dpgen.measure.moments import likely_counts, likely_differences
from lightning_dpgen.models.poses import Symmetries
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.planning.calibration import make_plan

PICTURES = ImageSchema(6, 6, levels=255, classes=3)
SERIES = SeriesSchema(length=16, low=0.0, high=1.0)


def _recipe(schema, n, **changed):
    settings = {"size": 9, "radius": 3.0, "spread": 2.0, "cells": 4}
    return GaussianRecipe(schema, 3 if schema is PICTURES else 1, n, **(settings | changed))


def _pictures(n, seed=0):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, (n, 1))
    ink = np.clip(random.normal(size=(n, 36)) * 40 + 60 * labels, 0, 255)
    return Records(PICTURES, Encoded(ink.astype(np.uint8), labels.astype(np.uint8)))


def _series(n, seed=0):
    """Return series of two shapes, one rising and one falling, whose mean is flat."""
    random = np.random.default_rng(seed)
    slope = random.choice([-1.0, 1.0], (n, 1)) * np.linspace(-0.3, 0.3, 16)
    units = 0.5 + slope + random.normal(size=(n, 16)) * 0.03
    return Records(SERIES, Encoded(units.clip(0, 1).astype(np.float32), np.zeros((n, 0), np.uint8)))


def _measured(own, records, epsilon=50.0):
    states = []
    account = Account(make_plan(own.specs(1.0), epsilon=epsilon, delta=1e-5))
    return own.measure(records, label_components(records), account, save=states.append), states[-1]


@pytest.mark.parametrize(
    "schema, records, changed",
    [
        (PICTURES, _pictures(400), {}),
        (PICTURES, _pictures(400), {"symmetries": Symmetries(upright=True)}),
        (PICTURES, _pictures(400), {"poses": "always"}),
        (SERIES, _series(400), {}),
    ],
    ids=["pictures", "upright pictures", "pictures without poses", "series"],
)
def test_a_record_is_placed_by_itself_and_where_its_nearest_centre_is(schema, records, changed):
    own = _recipe(schema, 400, **changed)
    _, state = _measured(own, records)
    cells, component = own._cells(state), label_components(records)
    # Places that are kept are those of the same components.
    cells.places(records.encoded, component.flip(0))
    places = cells.places(records.encoded, component)
    alone = [cells.places(records.encoded[i : i + 1], component[i : i + 1]) for i in range(60)]
    assert torch.equal(places[:60], torch.cat(alone))
    values = cells.basis.values(records.encoded)
    assert torch.equal(values[:60], torch.cat([cells.basis.values(records.encoded[i : i + 1]) for i in range(60)]))
    rows = cells.basis.coordinates(records.encoded)
    far = torch.linalg.vector_norm(rows[:, None] - cells.centres, dim=2)
    far = far.where(cells.component == component[:, None], math.inf).sort(dim=1)
    nearest = far.indices[:, 0]
    # Values on a grid are off by half a step each.
    clear = far.values[:, 1] - far.values[:, 0] > 1e-2
    assert clear.float().mean() > 0.8 and torch.equal(places[clear], nearest[clear])


def test_statistics_in_cells_are_those_of_the_cells():
    records = _pictures(300)
    own = _recipe(PICTURES, 300)
    _, state = _measured(own, records)
    cells, component = own._cells(state), label_components(records)
    places, basis = cells.places(records.encoded, component), cells.basis
    k, centres = len(cells.centres), cells.centres
    each = Squares(basis, centres, cells.reach)
    together = Squares(basis, centres, cells.reach, cells.component)
    for plain in (Counts(k), Means(basis, k, cells.reach, centres), each, together):
        within = InCells(cells, plain)
        assert (within.bound, within.unit, within.shape, within.k) == (plain.bound, plain.unit, plain.shape, 3)
        assert torch.equal(within.sums(records.encoded, component), plain.sums(records.encoded, places))
    sums = torch.zeros(3, 9, 9, dtype=torch.int64).index_add_(0, cells.component, each.sums(records.encoded, places))
    assert torch.equal(sums, together.sums(records.encoded, places))


def test_cells_tell_shapes_apart_that_one_gaussian_mixes():
    records = _series(3000)
    slopes = {}
    for cells in (1, 2):
        mixture, _ = _measured(_recipe(SERIES, 3000, cells=cells), records)
        made = mixture.sample(2000, torch.Generator().manual_seed(0)).units
        slopes[cells] = np.abs(made[:, -4:].mean(axis=1) - made[:, :4].mean(axis=1))
    # Real ones rise or fall by .48; of one Gaussian a half do so by less than .3, and in two cells hardly any.
    assert (slopes[1] < 0.3).mean() > 0.3 and (slopes[2] < 0.3).mean() < 0.05


def test_cells_are_as_many_as_stand_out_of_the_noise_and_have_shapes_of_their_own_where_these_do():
    rows = torch.randn(1000, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = {noise: _split(rows, 8, *noise) for noise in ((0, 0), (0, 1e9), (0, 0.002), (0.007, 1e9), (1e9, 1e9), (1e9, 0))}
    cells = {noise: (len(split.centres), split.own_shapes) for noise, split in found.items()}
    assert cells.pop((0, 0.002))[1] and cells.pop((0.007, 1e9))[0] in range(2, 8)
    assert cells == {(0, 0): (8, True), (0, 1e9): (8, False), (1e9, 1e9): (1, False), (1e9, 0): (1, True)}
    # A few cells may be given up for shapes of their own.
    assert 8 / 3 <= len(found[0, 0.002].centres) < 8


def test_cells_of_a_component_are_side_by_side():
    own = _recipe(PICTURES, 400, cells=8)
    for epsilon in (1.0, 1000.0):
        cells = own._cells(_measured(own, _pictures(400), epsilon)[1])
        assert cells.component.tolist() == sorted(cells.component.tolist()) and set(cells.component.tolist()) == {0, 1, 2}
        assert cells.shape.unique().tolist() == list(range(int(cells.shape[-1]) + 1))


def test_shares_of_all_accesses_add_up_to_one():
    for own in (
        _recipe(PICTURES, 500),
        _recipe(SERIES, 500, cells_share=0.3, means_share=0.2),
        _recipe(SERIES, 50, cells=1),
    ):
        assert math.isclose(sum(workload.share for workload in own.workloads), 1.0)


def test_alike_records_have_cells():
    alike = Records(SERIES, Encoded(np.full((500, 16), 0.5, np.float32), np.zeros((500, 0), np.uint8)))
    mixture, _ = _measured(_recipe(SERIES, 500), alike)
    assert abs(mixture.sample(100, torch.Generator().manual_seed(0)).units.mean() - 0.5) < 0.02


def test_differences_are_kept_where_they_are_more_than_noise():
    """Differences of variance 1 with noise of variance .25 are found with an error of .25 / 1.25, the least there is."""
    random = torch.Generator().manual_seed(1)
    turned = torch.linalg.qr(torch.randn(6, 6, generator=random, dtype=torch.float64))[0]
    true = torch.zeros(2000, 6, dtype=torch.float64)
    true[:, 0] = torch.randn(2000, generator=random, dtype=torch.float64)
    counts = torch.full((2000,), 100.0, dtype=torch.float64)
    noise = torch.randn(2000, 6, generator=random, dtype=torch.float64)
    found, left = likely_differences(100.0 * (true @ turned) + 50.0 * noise, counts, 50.0, turned)
    own = found @ turned.T
    # An error of .2 has a deviation of .006.
    assert (own[:, 0] - true[:, 0]).square().mean() == pytest.approx(0.2, abs=0.02)
    assert own[:, 1:].square().mean() < 0.005 and left.square().mean() == pytest.approx(0.2 / 6, abs=0.01)
    exact, left = likely_differences(100.0 * true, counts, 0.0, turned)
    assert torch.allclose(exact, true) and not left.any()


def test_counts_are_shrunk_to_those_that_are_expected():
    sums, expected = torch.tensor([12.0, 28.0, 60.0]), torch.tensor([10.0, 30.0, 60.0])
    assert torch.equal(likely_counts(sums, 50.0, expected), expected)
    assert torch.allclose(likely_counts(sums, 0.0, expected), sums)
