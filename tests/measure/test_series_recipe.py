"""Series: what is found without noise, coordinates that follow from one record alone, and curves that lead back."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.measure import series
from lightning_dpgen.measure.gaussians import label_components
from lightning_dpgen.measure.recipe import MostlyNoise
from lightning_dpgen.measure.series import SeriesRecipe, draw_frequencies, fit_mixture
from lightning_dpgen.measure.series_waves import EDGES, ReadingScores, SeriesWaves, find_scales, find_scores, scale_edges
from lightning_dpgen.measure.statistics import CoordinateHistograms
from lightning_dpgen.models.bases import cosines, unit_values
from lightning_dpgen.models.gaussians import SeriesGaussians
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.epsilon_range import gaussian_mu
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.release.drawing.draws import block_streams
from lightning_dpgen.release.drawing.model_files import write_model
from lightning_dpgen.release.drawing.release import load_release

DAYS = SeriesSchema(12, low=0.0, high=1.0, classes=("week", "end"))


@pytest.fixture
def quick(monkeypatch):
    """Let a fit end after a few steps, where its result does not matter."""
    monkeypatch.setattr(series, "_STEPS", 3)


def smooth_days(n):
    """Draw days of two kinds, of which the first scatters about two levels; waves fall off by a factor of hundreds."""
    random = np.random.default_rng(0)
    labels = np.repeat([0, 1], [n - n // 3, n // 3])
    sizes = 0.1 / (1.0 + np.arange(12)) ** 2
    coordinates = sizes * random.normal(size=(n, 12))
    coordinates[:, 0] += np.where(labels == 1, 0.0, 0.25 * random.choice([-1, 1], n))
    coordinates[:, 1] += np.where(labels == 1, 0.3, -0.1)
    waves = cosines(DAYS.layout, DAYS.axes, 12).vectors.numpy()
    return Records(DAYS, Encoded((0.5 + coordinates @ waves).astype(np.float32), labels[:, None].astype(np.uint8)))


def bursts(n):
    """Draw days that are 0 most of the time, and where neighbours are used together."""
    schema = SeriesSchema(10, low=0.0, high=1.0)
    base = np.random.default_rng(0).normal(size=(n, 12)).cumsum(axis=1)
    uses = (base[:, 2:] - base[:, :-2]) / 2**0.5
    readings = np.clip(uses - np.linspace(0.2, 1.2, 10), 0.0, None) ** 2 / 20
    return Records(schema, Encoded(readings.clip(0.0, 1.0).astype(np.float32), np.zeros((n, 0), np.uint8)))


def fitted(records, epsilon, **numbers):
    size = records.schema.layout.units
    own = SeriesRecipe(records.schema, len(records), size, **({"components": 4, "frequencies": 200} | numbers))
    account = Account(make_plan(own.specs(1.0), epsilon=epsilon, delta=1e-5))
    component = label_components(records)
    return own.measure(records, component, account), account


def test_without_noise_days_of_each_kind_are_as_the_real_ones():
    """Also the two levels of one kind: a tenth of the days lies between them, and a quarter of those of one Gaussian."""
    records = smooth_days(3000)
    mixture, account = fitted(records, math.inf, components=10)
    drawn = mixture.sample(6000, torch.Generator().manual_seed(0))
    assert account.finished and mixture.network.kind == "series_mixture"
    assert drawn.codes.mean() == pytest.approx(1 / 3, abs=0.02)
    waves = cosines(DAYS.layout, DAYS.axes, 12)
    for label in (0, 1):
        real, made = (waves.coordinates(own[own.codes[:, 0] == label]).numpy() for own in (records.encoded, drawn))
        np.testing.assert_allclose(made.mean(axis=0), real.mean(axis=0), atol=0.02)
        np.testing.assert_allclose(made.std(axis=0) / real.std(axis=0), 1.0, atol=0.3)
    level = waves.coordinates(drawn[drawn.codes[:, 0] == 0])[:, 0] - 0.5 * 12**0.5
    assert float((level.abs() < 0.08).double().mean()) < 0.16


def test_readings_at_an_end_of_their_range_are_as_many_as_real_ones_and_vary_together():
    records = bursts(8000)
    mixture, _ = fitted(records, 20.0)
    real, made = records.encoded.units, mixture.sample(8000, torch.Generator().manual_seed(0)).units
    assert mixture.network.pieces > 1
    np.testing.assert_allclose((made == 0.0).mean(axis=0), (real == 0.0).mean(axis=0), atol=0.03)
    np.testing.assert_allclose(np.quantile(made, 0.95, axis=0), np.quantile(real, 0.95, axis=0), atol=0.015)
    both = [np.corrcoef(units.T > 0.0)[np.triu_indices(10, 1)] for units in (real, made)]
    np.testing.assert_allclose(both[1], both[0], atol=0.1)
    assert np.abs(both[0]).max() > 0.3


def test_the_noise_of_a_plan_costs_what_its_parts_cost_by_hand():
    own = SeriesRecipe(DAYS, 1000, 12)
    plan = make_plan(own.specs(1.0), epsilon=2.0, delta=1e-5)
    inverse = [multiplier**-2 for stage in plan.stages for multiplier in stage.access.multipliers.values()]
    assert math.sqrt(sum(inverse)) == pytest.approx(gaussian_mu(2.0, 1e-5), rel=1e-4)
    assert [stage.name for stage in plan.stages] == ["values", "scales", "moments", "shapes"]


@pytest.mark.parametrize("scored", [False, True])
def test_a_wave_and_its_bin_follow_from_one_record_bit_for_bit(scored):
    """In batches of any size and order, where a product of matrices rounds otherwise, each number is the same."""
    schema, random = SeriesSchema(53, low=0.0, high=1.0), np.random.default_rng(0)
    units = random.random((257, 53)).astype(np.float32)
    records = Encoded(units, np.zeros((257, 0), np.uint8))
    scores = ReadingScores(torch.linspace(0.1, 1.0, len(EDGES)).double().repeat(53, 1)) if scored else None
    waves = SeriesWaves(cosines(schema.layout, schema.axes, 37), scores)
    together = waves.coordinates(records)
    for chosen in (np.arange(1), np.arange(100, 103), np.arange(256, -1, -1)):
        assert torch.equal(waves.coordinates(records[chosen]), together[chosen])
    plain = cosines(schema.layout, schema.axes, 37).vectors.T
    values = unit_values(records, schema.layout) - 0.5 if scores is None else scores(unit_values(records, schema.layout))
    torch.testing.assert_close(together, values @ plain, rtol=0, atol=1e-7)


def test_rounding_of_plain_products_would_be_noticed():
    """The law above means something: a product of the same numbers, not whole, differs between batches."""
    values, vectors = torch.rand(257, 53, dtype=torch.float64), torch.rand(37, 53, dtype=torch.float64)
    alone = torch.cat([row[None] @ vectors.T for row in values])
    assert not torch.equal(alone, values @ vectors.T)


def test_curves_lead_back_from_scores_to_readings():
    below = torch.linspace(0.3, 0.97, len(EDGES)).double().repeat(4, 1)
    scores, schema = ReadingScores(below), SeriesSchema(4, low=0.0, high=1.0)
    network = SeriesGaussians(schema, 1, size=4, lead=1, pieces=len(EDGES) - 1)
    network.heights.copy_(EDGES)
    network.heights[-1] = 1.0
    network.knots.copy_(scores.knots)
    readings = torch.rand(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    readings[:5], readings[5:10] = 0.0, 1.0
    torch.testing.assert_close(network._through_curves(scores(readings).float()).double(), readings, rtol=0, atol=1e-4)


def test_noise_alone_is_no_reading_at_an_end():
    """One of 1,000 draws would be a false alarm; a share of 0.07 is seen, unless counts are noise for the most part."""
    noise = torch.randn(30, 48, len(EDGES) + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sums = torch.zeros(48, len(EDGES) + 1, dtype=torch.float64)
    sums[:, 20] = 5000.0
    assert all(find_scores(sums + 100.0 * draw, 100.0, 5000.0) is None for draw in noise)
    sums[:, 0] = 0.075 * 5000.0
    assert sum(find_scores(sums + 100.0 * draw, 100.0, 5000.0) is not None for draw in noise) == len(noise)
    assert find_scores(sums, 400.0, 5000.0) is None


def test_scales_of_waves_are_found_beneath_noise():
    """Within 30 % of the true ones, from 2,000 records whose counts have noise of 25 each; the centres by half of these."""
    random = np.random.default_rng(0)
    true = 0.5 / (1.0 + np.arange(16)) ** 1.5
    centre = true * random.normal(size=16)
    edges = scale_edges(4.0)
    drawn = torch.from_numpy(centre + true * random.normal(size=(2000, 16)))
    layout = SeriesSchema(16, 0.0, 1.0).layout
    statistic = CoordinateHistograms(layout, lambda records: drawn, 16, edges)
    sums = statistic.sums(None, None) + 25.0 * torch.from_numpy(random.normal(size=statistic.shape))
    centres, scales = find_scales(sums, 25.0, 2000.0, edges, torch.arange(16.0).double())
    np.testing.assert_allclose(scales.numpy() / true, 1.0, atol=0.3)
    np.testing.assert_allclose((centres.numpy() - centre) / true, 0.0, atol=0.5)


def test_one_of_two_heaps_is_not_the_scale_of_a_wave():
    """The whole has a deviation of 1, and its larger heap one of 0.1."""
    random, edges = np.random.default_rng(0), scale_edges(8.0)
    drawn = torch.from_numpy(np.where(random.random((3000, 1)) < 0.65, -0.7, 1.4) + 0.1 * random.normal(size=(3000, 4)))
    statistic = CoordinateHistograms(SeriesSchema(4, 0.0, 1.0).layout, lambda records: drawn, 4, edges)
    _, scales = find_scales(statistic.sums(None, None).double(), 1.0, 3000.0, edges, torch.zeros(4).double())
    assert (scales > 0.5).all() and (scales < 2.0).all()


def test_a_mixture_is_found_from_its_characteristic_function():
    public = torch.Generator().manual_seed(0)
    frequencies = draw_frequencies(300, 2, public)
    means, shares = torch.tensor([[-1.0, 0.5], [1.0, -0.5]]), torch.tensor([[0.3, 0.0], [0.0, 0.7]])
    angles, size = means @ frequencies.T, (-0.5 * 0.16 * frequencies.square().sum(dim=1)).exp()
    exact = torch.stack([shares.T @ (angles.cos() * size), shares.T @ (angles.sin() * size)], dim=1)
    found = fit_mixture(exact.double(), torch.tensor([0.3, 0.7]), frequencies, 2, public)
    assert float(found.weights.sum()) == pytest.approx(1.0)
    for start in range(0, len(found.means), 2):
        order = start + found.means[start : start + 2, 0].argsort()
        torch.testing.assert_close(found.means[order].float(), means, rtol=0, atol=0.02)
        torch.testing.assert_close(3.0 * found.weights[order].float(), shares, rtol=0, atol=0.02)
    covariances = found.factors.transpose(1, 2) @ found.factors
    torch.testing.assert_close(covariances, (0.16 * torch.eye(2).double()).expand(6, 2, 2), rtol=0, atol=0.02)


def test_a_release_is_read_back_as_it_was_written(tmp_path, quick):
    mixture, _ = fitted(smooth_days(300), 4.0, components=2, frequencies=50)
    write_model(tmp_path, mixture)
    mine = mixture.sample(50, block_streams(3, 0)[0])
    again = load_release(tmp_path).sample_encoded(50, 3)
    np.testing.assert_array_equal(again.units, mine.units)
    np.testing.assert_array_equal(again.codes, mine.codes)


def test_noise_that_hides_what_is_measured_is_said(quick):
    with pytest.warns(MostlyNoise, match="the mean of a wave is off by"):
        fitted(smooth_days(60), 0.8, components=1, frequencies=10)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"schema": ImageSchema(4, 4, levels=1)}, "schema of kind images: expected series"),
        ({"size": 13}, "size=13: expected a whole number from 1 to 12, the units"),
        ({"size": 0}, "size=0: expected a whole number"),
        ({"components": 0}, "components=0: expected a whole number, 1 or more"),
        ({"frequencies": 0.5}, r"frequencies=0\.5: expected a whole number"),
        ({"n": 0}, "n=0: expected a whole number, 1 or more"),
    ],
)
def test_numbers_that_make_no_recipe_are_refused(numbers, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SeriesRecipe(DAYS, 100, 12), **numbers)
    with pytest.raises(ValueError, match="expected series"):
        SeriesGaussians(ImageSchema(4, 4, levels=1), 1, size=4, lead=1)
    with pytest.raises(ValueError, match="lead=5, size=4: expected at most the size"):
        SeriesGaussians(DAYS, 1, size=4, lead=5)
