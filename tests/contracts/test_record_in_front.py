"""A record put in front leaves every other record's contribution as it was, its own randomness held fixed."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from contracts import changes
from contracts.door import Door
from contracts.laws.accounts import account_of
from contracts.laws.clipping import bound_of
from contracts.laws.gradients import a_record_in_front_changes_no_other, setting, with_front
from threadpoolctl import threadpool_limits

from lightning_dpgen.clustering.block_sums import clipped_sums, lloyd
from lightning_dpgen.clustering.features import Directions, FourierFeatures, IdentityFeatures, KeptFeatures
from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.discovery.bounds_and_keys import find_bounds
from lightning_dpgen.data.discovery.value_grid import ValueGrid, values_of
from lightning_dpgen.data.discovery.value_tree import find_values
from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_keys import column_of
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.gradients.clipping import DPNorm, Quantile
from lightning_dpgen.gradients.engines import ENGINES
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.measure.statistics import Histogram, Marginals
from lightning_dpgen.metrics import fidelity
from lightning_dpgen.metrics.classifiers import LinearClassifier
from lightning_dpgen.metrics.summaries import binned, quantile_bins
from lightning_dpgen.projection.neighbourhood import Neighbourhood
from lightning_dpgen.projection.project import Projection
from lightning_dpgen.sampling.as_store import store_of

EXTRA = {"ones": torch.ones(1), "zeros": torch.zeros(1), "huge": torch.tensor([1e8]), "nan": torch.tensor([torch.nan])}


@pytest.mark.parametrize("extra", EXTRA.values(), ids=EXTRA.keys())
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("engine", ENGINES)
def test_others_are_unchanged(engine, dtype, tolerance, extra):
    a_record_in_front_changes_no_other(engine, dtype, tolerance, extra)


def test_a_record_has_no_position_in_public_numbers():
    """A loss sees a lot of one record, so that each takes the first of them; positions would give every other record new
    ones."""
    network, lot, noise = setting()

    def by_position(lot, _):
        return network.negative_elbo(lot, shared[: len(lot)])

    shared = torch.randn(8, 2, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    results = []
    for own in ((lot, noise), with_front(lot, noise, torch.ones(1))):
        results.append(ENGINES["ghost"](network, PerRecord(by_position), *own).losses)
    torch.testing.assert_close(results[1][1:], results[0])


def _dense(records):
    return store_of(records)


def _sparse(records):
    return store_of(scipy.sparse.csr_array(records.numpy()))


def _ones(records):
    return store_of(records.gt(0.5).to(torch.uint8), scale=1)


def _greys(records):
    return store_of(records.mul(255).to(torch.uint8), scale=255)


MAPS = {
    "pairs": lambda m, generator: FourierFeatures(torch.ones(m), 400, 4.0 / m, generator),
    "single": lambda m, generator: FourierFeatures(torch.ones(m), 51, 4.0 / m, generator, paired=False),
    "laplacian": lambda m, generator: FourierFeatures(torch.ones(m), 40, 1.0 / m, generator, kernel="laplacian"),
    "identity": lambda m, generator: IdentityFeatures(torch.rand(m, generator=generator), 0.3 * m**0.5),
}


@pytest.fixture
def precision(request):
    """Set the precision of products in float32; on some processors "medium" means 8 bits."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield
    torch.set_float32_matmul_precision(before)


STORES = [_dense, _sparse, _ones, _greys]


@pytest.mark.usefixtures("precision")
@pytest.mark.parametrize(
    ("precision", "kept_as"),
    [
        *itertools.product(["highest"], STORES), ("medium", _dense),
        *(pytest.param("medium", kept_as, marks=pytest.mark.slow) for kept_as in STORES[1:]),
    ],
    indirect=["precision"],
)  # fmt: skip
@pytest.mark.parametrize("name", MAPS)
def test_what_the_split_computes_of_a_record_is_its_own(name, kept_as):
    """Bit for bit, for any number of records and any place among them: features, places in directions, clusters, sums.

    Records are copies, so that one more could change all; a product in float32 rounds rows of 191 and of 192 differently.
    """
    m, generator = 784, torch.Generator().manual_seed(0)
    features = MAPS[name](m, generator)
    different = torch.rand(3, m, generator=generator).round() * torch.rand(3, m, generator=generator)
    sizes = (1, 2, 3, 7, 64, 191, 192, 255, 257, 700)
    found = {}
    for n in sizes:
        store = kept_as(torch.cat([different[:1].expand(n, m), different]))
        kept = KeptFeatures(features, store, 2**30)
        directions = torch.randn(17, features.d, generator=torch.Generator().manual_seed(1))
        seen = KeptFeatures(Directions(kept, directions), store, 2**30)
        z, y = (torch.cat([block for _, block in each]) for each in (kept, seen))
        # Halfway between two centres, to the precision of float32.
        near = z[0] * kept.unit
        aside = torch.randn(features.d, generator=torch.Generator().manual_seed(2)) / features.d**0.5
        clusters = lloyd(kept, torch.stack([near + aside, near - aside]))[0]
        sums = clipped_sums(kept_as(different[:1].expand(n, m)), 5.0, torch.zeros(n, dtype=torch.int64), 1)[0]
        found[n] = (z, y, clusters, sums)
    for n in sizes:
        for part, first in zip(found[n][:3], found[1][:3], strict=True):
            assert (part[:n] == first[0]).all() and torch.equal(part[n:], first[1:])
        assert torch.equal(found[n][3], n * found[1][3])


# Decisions about where a record is counted. The first of five records is at a border; borders are public, so anyone may
# have put it there.


PICTURES = ImageSchema(28, 28, levels=255, classes=3)
BASKETS = BasketSchema(range(50), max_items=40, classes=("a", "b", "c"))
PIXELS = np.random.default_rng(3).integers(0, 256, (5, 784)).astype(np.uint8)
POOL = Records(PICTURES, Encoded(PIXELS, np.arange(5, dtype=np.uint8)[:, None] % 3))
WEIGHTS = torch.randn(3, PICTURES.layout.width, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def _at(records, places):
    return Records(records.schema, records.encoded[np.asarray(places)])


def _scored_alike(records):
    """Return a classifier that gives the first record's first two labels equal scores, and its third a far lower one."""
    row = _at(records, [0]).take(np.array([0]))[0].double()
    weights = WEIGHTS[:, : len(row)].clone()
    weights[:, records.schema.layout.labels] = 0.0
    offsets = -weights @ row
    offsets[2] -= 50.0
    return LinearClassifier(torch.arange(3), weights, offsets)


def _answers(records):
    def decide(places):
        return fidelity._right_answers(_at(records, places), _scored_alike(records), records.schema.layout)

    return decide


def _sets():
    held = (torch.rand(5, 50, generator=torch.Generator().manual_seed(5)) < 0.3).numpy()
    return Records(BASKETS, BASKETS.encode(scipy.sparse.csr_array(held.astype(np.uint8)), np.arange(5) % 3))


def _written_out(records):
    """Return the same numbers as records without levels, in float32."""
    schema = SimpleNamespace(layout=dataclasses.replace(records.schema.layout, levels=None))
    units = (records.encoded.units / 255).astype(np.float32)
    return Records(schema, Encoded(units, records.encoded.codes))


def _clusters(places):
    features = FourierFeatures(torch.ones(PICTURES.layout.width), 40, 0.01, torch.Generator().manual_seed(0))
    seen = KeptFeatures(features, POOL, 0.0)
    z = next(iter(seen))[1][0] * seen.unit
    aside = torch.randn(40, generator=torch.Generator().manual_seed(2)) / 40**0.5
    clusters = lloyd(KeptFeatures(features, _at(POOL, places), 0.0), torch.stack([z + aside, z - aside]), sums=False)[0]
    return torch.bincount(clusters, minlength=2).double()


def _shortened(places):
    """Return sums clipped to a radius that is the length of the record at the border."""
    records = _written_out(POOL)
    radius = float(records.take(np.array([0])).double().norm())
    return clipped_sums(_at(records, places), radius, torch.zeros(len(places), dtype=torch.int64), 1)[0]


def _released(multipliers, ask):
    """Return a function that gives the exact numbers that a mechanism is asked for."""

    def decide(places):
        with Door() as door, account_of(multipliers).open("training") as access:
            ask(access, places)
            for name in set(access._undrawn):
                access.consume(name)
        return door.walk[0].exact

    return decide


def _norms(rule, norms):
    multipliers = dict.fromkeys([*rule.noise_shares, "gradient"], 1.0)
    column = torch.tensor(norms)
    return _released(multipliers, lambda access, places: bound_of(rule, access, column[places]))


# The number 0.3 is at the border of two nodes, but for rounding.
GRID = ValueGrid(0.0, 3.2, False)
NUMBERS = np.array([2.0**-7, -(2.0**0.5), 0.0, np.inf, 3.0])
PRICES = TableSchema((
    column_of("price", {"type": "number", "low": 0, "high": 100, "edges": [0.1, 0.3]}),
    column_of("weight", {"type": "number", "low": 0, "high": 1, "transform": "log", "encoding": "bins", "bins": 7}),
))  # fmt: skip


def _cells(places):
    """Return cells of a table of numbers, some of them at the beginnings of bins."""
    frame = pd.DataFrame({"price": np.array([0.1 + 0.2, 0.3, 0.1, 0.0, 100.0])[places],
                          "weight": np.expm1(np.arange(5) / 7 * np.log(2.0))[places]})  # fmt: skip
    records = read_table(frame, PRICES).encoded
    return Marginals(PRICES.layout, [(0,), (1,), (0, 1)]).sums(records, torch.zeros(len(places), dtype=torch.int64))


def _quantile_cells(places):
    """Return cells of a table of numbers in bins of public records, two of which begin at a number of the table."""
    public = TableValues(PRICES, np.array([[0.1 + 0.2, 0.5]] * 3 + [[0.3, 1.0], [50.0, 0.25]]), np.zeros((5, 0), np.int32))
    values = TableValues(PRICES, np.array([[0.3, 1.0], [0.1 + 0.2, 0.5], [0.0, 0.25], [100.0, 0.0], [0.2, 0.6]])[places],
                         np.zeros((len(places), 0), np.int32))  # fmt: skip
    records, layout = binned(values, quantile_bins(public))
    return Marginals(layout, [(0,), (1,), (0, 1)]).sums(records, torch.zeros(len(places), dtype=torch.int64))


def _bins(places):
    """Return bins of the values of pictures, one of which is at the border of two bins."""
    values = torch.tensor([3 / 7, 0.0, 1.0, 2 / 7, 1 / 3], dtype=torch.float64)[places, None].expand(-1, 4)
    return Histogram(Layout(units=4), channels=1, bins=7).of_values(values)


def _strata(places):
    return Marginals(BASKETS.layout, [(0, 1)]).sums(_sets().encoded[places], torch.zeros(len(places), dtype=torch.int64))


DECISIONS = {
    "labels told of pictures": _answers(POOL),
    "labels told of numbers": _answers(_written_out(POOL)),
    "labels told of baskets": _answers(_sets()),
    "clusters": _clusters,
    "shortened records": _shortened,
    "bins of norms": _norms(DPNorm(c_max=0.7, bins=7), [0.1, 0.3, 0.05, 0.7, 9.0]),
    "norms below a bound": _norms(Quantile(0.3), [0.3, 0.1, torch.inf, 0.31, 0.2]),
    "buckets of numbers": _released({"bounds": 1.0}, lambda access, places: find_bounds(access, "bounds", NUMBERS[places])),
    "leaves of a tree": _released(
        {values_of("x", level): 1.0 for level in range(1, GRID.levels + 1)},
        lambda access, places: find_values(access, "x", np.array([0.3, 0.1, 0.6, 0.7, 0.0])[places], GRID),
    ),
    "bins of values": _bins,
    "cells of tables": _cells,
    "cells of the public figure": _quantile_cells,
    "sizes of baskets": _strata,
}


def _counted_alone(decide) -> None:
    """Check that copies of the record at the border and some others count as exactly the sum of each of them alone.

    It holds for any number of copies, in any order, with one thread and with several.
    """
    tie, others = decide([0]), decide([1, 2, 3, 4])
    threads = torch.get_num_threads()
    try:
        for several in (1, 3):
            torch.set_num_threads(several)
            with threadpool_limits(several):
                for n in (1, 2, 7, 63, 64, 127, 128, 191, 192, 300):
                    places = np.array([0] * n + [1, 2, 3, 4])
                    for order in (places, places[::-1].copy(), np.random.default_rng(n).permutation(places)):
                        assert torch.equal(decide(order), n * tie + others)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", DECISIONS)
def test_a_decision_is_an_exact_function_of_its_record(name):
    _counted_alone(DECISIONS[name])


def test_a_row_replaced_changes_no_other_row_of_a_projection():
    """Under replace-one the number of rows is the same; one of those that stay is as long as the radius."""
    generator = np.random.default_rng(0)
    rows, matrix = generator.normal(size=(200, 50)), generator.normal(size=(50, 8))
    radius = float(np.sqrt(np.einsum("ij,ij->i", rows, rows))[7])
    for kept_as in (np.ascontiguousarray, np.asfortranarray, scipy.sparse.csr_array):
        projection = Projection(matrix, Neighbourhood("row", radius=radius), "laplace")
        before, pulled = projection._exact(kept_as(rows))
        for changed in (0, 100, 199):
            other = rows.copy()
            other[changed] *= 1e6
            after, more = projection._exact(kept_as(other))
            stay = np.arange(200) != changed
            assert (after[stay] == before[stay]).all() and 0 <= more - pulled <= 1


def test_labels_told_in_single_precision_would_be_noticed(monkeypatch):
    """Scores would be a product in float32, and a public offset lies between the numbers to which it rounds a row."""
    records = _written_out(POOL)
    row, weights = records.take(np.array([0])), WEIGHTS.float()
    weights[:, PICTURES.layout.labels] = 0.0
    gaps = [float(scores[0, 0] - scores[0, 1]) for n in range(1, 300) if len(scores := row.repeat(n, 1) @ weights.T)]
    if len(set(gaps)) == 1:
        pytest.skip("here products round a row alike, however many there are")
    offsets = torch.tensor([0.0, (min(gaps) + max(gaps)) / 2, -1e9])
    classifier = LinearClassifier(torch.arange(3), weights, offsets)
    changes.change(monkeypatch, fidelity._right_answers, {
        "highest.exact(grid(real.stretch(rows)))":
        "(real.stretch(rows) @ classifier.weights.T + classifier.offsets).argmax(dim=1)"
    })  # fmt: skip

    def decide(places):
        return fidelity._right_answers(_at(records, places), classifier, records.schema.layout)

    with pytest.raises(AssertionError):
        _counted_alone(decide)


def test_a_product_in_single_precision_would_be_noticed():
    """Products in float32 differ between blocks of 191 and of 192 records, where the library of this machine is such."""
    generator = torch.Generator().manual_seed(0)
    frequencies, row = torch.randn(784, 200, generator=generator), torch.rand(1, 784, generator=generator)
    products = [(row.expand(n, 784).contiguous() @ frequencies)[0] for n in range(1, 300)]
    if all(torch.equal(product, products[0]) for product in products):
        pytest.skip("here products round a row alike, however many there are")
