"""Adding one record moves every noiseless value by at most the sensitivity that is declared beside its noise."""

import copy
import functools
import itertools
import math

import numpy as np
import pytest
import scipy.sparse
import torch
from contracts.laws.lots import Owned

from lightning_dpgen.clustering import kmeans
from lightning_dpgen.clustering.block_sums import clipped_sums, feature_sums
from lightning_dpgen.clustering.features import FEATURE_NORM, FourierFeatures, IdentityFeatures, KeptFeatures
from lightning_dpgen.clustering.kmeans import private_split
from lightning_dpgen.clustering.settings import SplitSettings
from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.gradients import privatize
from lightning_dpgen.gradients.clipping import DPNorm, Fixed
from lightning_dpgen.gradients.engines import ghost_gradients
from lightning_dpgen.gradients.per_sample_gradients import materialised
from lightning_dpgen.measure.baskets import ItemsBySize, PairsBySize
from lightning_dpgen.measure.crossings import CrossingCounts
from lightning_dpgen.measure.label_gradients import GRADIENT_UNITS, Agreement, Gradient
from lightning_dpgen.measure.pictures import Lengths
from lightning_dpgen.measure.statistics import (
    UNITS,
    CharacteristicFunctions,
    CoordinateHistograms,
    Counts,
    Histogram,
    Marginals,
    Means,
    SecondMoments,
    Squares,
)
from lightning_dpgen.models.bases import Basis
from lightning_dpgen.models.labelled import Crossed, Crossing, feature_count
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.passes.store_slices import StoreSlice
from lightning_dpgen.privacy import mechanisms
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.sampling.as_store import store_of
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.sampling.lots import Lot, PoissonLots


class Watch:
    """A stand-in for the Gaussian mechanism: it keeps each exact value, and answers alike for both neighbours.

    The first neighbour's answers (its exact values plus fixed noise) are replayed to the second. So both walk the same
    public path, on which adaptive composition conditions.
    """

    def __init__(self):
        self.answers, self.values, self.calls = None, [], []

    def __call__(self, access, name, values, *, sensitivity, unit=1.0, per_person=False, of_shard=False, largest=0.0):
        access.consume(name)
        values = values if values.is_floating_point() else values.double() * unit
        i = len(self.values)
        self.values.append(values.clone().double())
        self.calls.append((name, sensitivity))
        if self.answers is None:
            noise = torch.randn(values.shape, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
            return values.add_((0.3 * sensitivity * noise if math.isfinite(sensitivity) else noise).to(values.dtype))
        return values.copy_(self.answers[i])


def shifts(monkeypatch, module_names, run, first, second):
    """Return (name, joint L2 shift, declared sensitivity) of every value that the run would noise."""
    watch, answers = Watch(), []

    def noised(*a, **k):
        answer = watch(*a, **k)
        answers.append(answer.clone())
        return answer

    for module in module_names:
        for name in ("gaussian", "rounded_gaussian"):
            monkeypatch.setattr(module, name, noised, raising=False)
    run(first)
    values, watch.values, watch.calls = watch.values, [], []
    watch.answers = list(answers)
    run(second)
    return [
        (name, float((a - b).norm()), sensitivity)
        for (name, sensitivity), a, b in zip(watch.calls, values, watch.values, strict=True)
    ]


RECORDS = torch.rand(40, 12, generator=torch.Generator().manual_seed(0))
NEIGHBOURS = {
    "copy of a record": RECORDS[:1],
    "ones": torch.ones(1, 12),
    "zeros": torch.zeros(1, 12),
    "one column": torch.eye(12)[:1],
    "random": torch.rand(1, 12, generator=torch.Generator().manual_seed(9)),
    "far outside": torch.full((1, 12), 1e4),
}


@pytest.mark.parametrize("radius", [0.7, 3.0])
@pytest.mark.parametrize("k", [1, 3, 30])
@pytest.mark.parametrize("extra", NEIGHBOURS.values(), ids=NEIGHBOURS.keys())
@pytest.mark.parametrize("dimensions", [None, 3])
def test_split(monkeypatch, extra, k, radius, dimensions):
    settings = SplitSettings(k=k, iterations=3, features=8, dimensions=dimensions, radius=radius)

    def run(records):
        last = settings.specs(40)
        plan = make_plan([*last[:-1], _rest(last[-1])], epsilon=float("inf"), delta=1e-5)
        private_split(records, torch.ones(12), settings, 40, Account(plan), torch.Generator().manual_seed(1))

    moved = shifts(monkeypatch, [kmeans, mechanisms], run, RECORDS, torch.cat([extra, RECORDS]))
    first = ["sum", "moments"] if dimensions else ["sum"]
    assert [name for name, _, _ in moved] == [*([*first, *["counts", "sums"] * 3] if k > 1 else []), "counts", "means"]
    for name, shift, sensitivity in moved:
        assert shift <= sensitivity * (1 + 1e-9), f"{name} moved by {shift}, declared {sensitivity}"
    # The declared numbers are met and not merely safe: a check against half of them would fail.
    assert max(shift / sensitivity for _, shift, sensitivity in moved) > 0.99


def _rest(spec):
    return type(spec)(spec.stage, spec.noise_shares, spec.count, spec.max_noise, spec.sampler)


@pytest.mark.parametrize("rule", [Fixed(0.5), DPNorm(c_max=2.0, bins=10)], ids=["fixed", "dpnorm"])
@pytest.mark.parametrize("kind", ["antipodal", "huge", "tiny", "nan", "lonely"])
def test_clipped_sum_and_histogram(monkeypatch, account_of, rule, kind):
    """Gradients of two components are materialised, so that the neighbour may be anything at all."""
    weight = torch.nn.Parameter(torch.zeros(2, 6))
    rows = torch.randn(10, 2, 6, generator=torch.Generator().manual_seed(0))
    rows[:, 1] = 0.0  # every record belongs to the first component
    extra = {
        "antipodal": -rows[:1],
        "huge": rows[:1] * 1e20,
        "tiny": rows[:1] * 1e-30,
        "nan": rows[:1] * float("nan"),
        "lonely": rows[:1].flip(1),
    }[kind]
    multipliers = dict.fromkeys([*rule.noise_shares, "gradient"], 1.0)

    def run(gradients):
        with account_of(multipliers).open("training") as access:
            out = privatize.GradientBuffer([weight])
            privatize.privatize([(materialised({weight: gradients}), rule)], access, 4.0, out)

    moved = shifts(monkeypatch, [mechanisms, privatize], run, rows, torch.cat([extra, rows]))
    assert [name for name, _, _ in moved] == list(multipliers)
    for name, shift, sensitivity in moved:
        assert shift <= sensitivity, f"{name} moved by {shift}, declared {sensitivity}"


def test_a_lot_through_the_real_engine(monkeypatch, account_of):
    network = StackedVAE(ImageSchema(3, 3, levels=1), 3, hidden=4, latent=2, generator=torch.Generator().manual_seed(0))
    rule = DPNorm(c_max=3.0)
    records = torch.rand(8, 9, generator=torch.Generator().manual_seed(1))
    noise = torch.randn(9, 2, generator=torch.Generator().manual_seed(2))

    def run(lot):
        gradients = ghost_gradients(network, network.term, lot, noise[9 - len(lot) :])
        with account_of({"norms": 1.0, "gradient": 1.0}).open("training") as access:
            privatize.privatize([(gradients, rule)], access, 3.0, privatize.GradientBuffer(network.parameters()))

    front = Lot(torch.cat([torch.ones(1, 9), records]), (0, 4, 4, 9))
    moved = shifts(monkeypatch, [mechanisms, privatize], run, Lot(records, (0, 3, 3, 8)), front)
    for name, shift, sensitivity in moved:
        assert shift <= sensitivity * (1 + 1e-5), f"{name} moved by {shift}, declared {sensitivity}"


BASKETS = BasketSchema(tuple(range(30)), max_items=16)
PICTURES, SERIES = ImageSchema(4, 4, levels=1, classes=2), SeriesSchema(16, 0.0, 1.0)


def _baskets(rows):
    units = scipy.sparse.csr_array(np.stack([np.isin(np.arange(30), row) for row in rows]).astype(np.uint8))
    assert units.has_canonical_format  # scipy remembers it from here on
    return units


# Each writes into the units of records; the first of them, which is the neighbours' difference, is changed in any case.
CHANGES = {
    "baskets: one item 16 times": lambda units: units.indices.__setitem__(slice(16), 0),
    "baskets: an item that counts 200 times": lambda units: units.data.__setitem__(slice(9), 200),
    "baskets: entries of 0": lambda units: units.data.__setitem__(slice(0, 16, 2), 0),
    "baskets: columns out of order": lambda units: units.indices.__setitem__(slice(16), units.indices[15::-1].copy()),
    "baskets: a column beyond the last": lambda units: units.indices.__setitem__(3, 30),
    "baskets: a column far beyond": lambda units: units.indices.__setitem__(3, 2**31 - 1),
    "baskets: a row that ends before it begins": lambda units: units.indptr.__setitem__(1, 40),
    "baskets: a row of many more": lambda units: units.indptr.__setitem__(slice(1, 4), 31),
    "pictures: bytes above their levels": lambda units: units.__setitem__(slice(0, 20, 3), 255),
    "series: NaN": lambda units: units.__setitem__((0, slice(8)), np.nan),
    "series: infinite": lambda units: units.__setitem__((slice(0, 20, 3), slice(5)), -np.inf),
    "series: huge": lambda units: units.__setitem__(0, np.float32(3e38)),
}  # fmt: skip


def _statistics(schema, k=2):
    """Return statistics of records of a schema, by name."""
    layout, generator = schema.layout, torch.Generator().manual_seed(0)
    waves = Basis(layout, torch.linalg.qr(torch.randn(layout.units, 5, generator=generator).double())[0].T)
    found = {
        "counts": Counts(k),
        "means": Means(waves, k, 0.7),
        "squares": Squares(waves, torch.rand(k, 5, generator=generator), 0.7),
        "second moments": SecondMoments(waves, 0.7),
        "lengths": Lengths(waves, 0.7),
        "characteristic functions": CharacteristicFunctions(
            waves, torch.zeros(k, 5), torch.eye(5), torch.randn(6, 5, generator=generator)
        ),
        "values": Histogram(layout, 1, 4),
        "coordinates": CoordinateHistograms(layout, waves.coordinates, 5, torch.linspace(0, 1, 4).double()),
    }
    if layout.groups:
        found["tables"] = Marginals(layout, [tuple(range(len(layout.groups)))])
    if layout.label is not None:
        rows = torch.randn(feature_count(layout), 3, generator=generator).double()
        weights = torch.randn(3, layout.groups[layout.label], generator=generator).double()
        found["gradient"] = Gradient(Crossed(layout), rows, weights, 0.7, 1.0)
        found["agreement"] = Agreement(found["gradient"])
    if layout.sizes:
        bins = len(layout.sizes)
        found["items"] = ItemsBySize(layout, [0] * bins)
        found["pairs"] = PairsBySize(layout, [i * 2 // bins for i in range(bins)])
    return found


@pytest.mark.parametrize("seed", range(12))
def test_a_record_more_moves_each_score_of_crossings_by_two_at_most(seed):
    """Tables are empty, of one kind or drawn; each possible record joins them; models say anything of the label.

    Scores are whole multiples of their unit, so the bound holds to the last digit. It is met: 1.9 would be too little.
    """
    random = np.random.default_rng(seed)
    groups = tuple(random.integers(1, 2 + 5 * seed, size=random.integers(3, 6)).tolist())
    layout = Layout(0, groups=groups, label=int(random.integers(len(groups))))
    labels, others = groups[layout.label], [group for group in range(len(groups)) if group != layout.label]

    def crossing(own):
        parts = (np.unique(random.integers(0, 1 + seed % 5, groups[group]), return_inverse=True)[1] for group in own)
        return Crossing(tuple(own), tuple(tuple(part.tolist()) for part in parts))

    crossings = [crossing(own) for size in (2, 3) for own in itertools.combinations(others, size)]
    of_one = torch.eye(labels, dtype=torch.float64)
    shares = [
        of_one[random.integers(0, labels, own.cells)]
        if seed % 3
        else torch.from_numpy(random.dirichlet([0.3] * labels, own.cells))
        for own in crossings
    ]
    choice, evidence = (CrossingCounts(layout, crossings, shares, choice=each) for each in (True, False))
    worst = 0
    for count in (0, 0, 1, 2, 5, 50):
        codes = np.column_stack([random.integers(0, size, count + 1) for size in groups])
        # Ties: many of one kind, of which the one that joins is, too, or not.
        codes[1 : 1 + count * (seed % 2)] = codes[-1]
        more = Encoded(np.zeros((count + 1, 0), np.float32), codes)
        with_it, without = (
            choice.scores(choice.sums(own, torch.zeros(len(own), dtype=torch.int64)))
            for own in (more, more[np.arange(1, count + 1)])
        )
        assert with_it.dtype == torch.int64 and (count or not without.any())
        moved = (with_it - without).abs()
        worst = max(worst, int(moved.max()))
        assert moved.max() * choice.unit <= choice.bound == 2.0
        assert moved.double().norm() * evidence.unit <= evidence.bound * (1 + 1e-12)
    assert seed % 3 == 0 or labels == 1 or worst * choice.unit > 1.9
    for wrong in (float("nan"), -0.1, 1.1, float("inf")):
        with pytest.raises(ValueError, match="that add up to 1"):
            CrossingCounts(layout, crossings[:1], [torch.full_like(shares[0], wrong)])


@pytest.mark.parametrize("schema", [PICTURES, SERIES], ids=["pictures", "series"])
def test_plans_allow_for_all_units_of_a_bound(schema):
    """Noise of too many units is refused with the plan; where that knew of fewer, it would be when much has been spent."""
    found, known = _statistics(schema), UNITS | GRADIENT_UNITS
    named = {"second moments": "moments"}
    due = {name: known[named.get(name, name)] for name in found if named.get(name, name) in known}
    assert {"means", "squares", "second moments"} <= due.keys()
    assert all(found[name].bound / found[name].unit <= units for name, units in due.items())


def _sums_of_stores(width):
    """Return functions of a store that sum its records, each with its unit and the most by which a record moves it."""
    generator = torch.Generator().manual_seed(0)
    fourier = FourierFeatures(torch.ones(width), 8, 0.5, generator)
    identity = IdentityFeatures(torch.ones(width), 0.7)
    found = {
        name: lambda store, features=features: (
            feature_sums(KeptFeatures(features, store, 0.0)),
            features.unit,
            FEATURE_NORM,
        )
        for name, features in (("fourier", fourier), ("identity", identity))
    }

    def clipped(store):
        sums, unit = clipped_sums(store, 0.7, torch.zeros(len(store), dtype=torch.long), 1)
        return sums, unit, 0.7

    return found | {"clipped": clipped}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_written_into_records_that_were_checked_moves_no_sum_beyond_its_bound(change):
    """One record more moves each sum by its bound at most, whatever its numbers are by then, or the records are refused."""
    random, kind = np.random.default_rng(0), change.partition(":")[0]
    if kind == "baskets":
        rows = [[*range(0, 30, 2), 1], *(random.permutation(30)[:5] for _ in range(19))]
        schema, encoded = BASKETS, BASKETS.encode(_baskets(rows))
    elif kind == "pictures":
        schema, encoded = (
            PICTURES,
            Encoded(random.integers(0, 2, (20, 16), np.uint8), random.integers(0, 2, (20, 1), np.uint8)),
        )
    else:
        schema, encoded = SERIES, Encoded(random.random((20, 16)).astype(np.float32), np.zeros((20, 0), np.uint8))
    records, component = Records(schema, encoded), torch.from_numpy(random.integers(0, 2, 20))
    records.take(np.arange(2))  # a store of the units is made here
    CHANGES[change](encoded.units)

    def of_statistic(statistic, rows):
        # As it is by now, and not looked at as a whole once more.
        some = copy.copy(records)
        object.__setattr__(some, "encoded", encoded[rows] if rows != slice(0, 20) else encoded)
        return statistic.of_all(some, component[rows]), statistic.unit, statistic.bound

    sums = {name: functools.partial(of_statistic, statistic) for name, statistic in _statistics(schema).items()}
    for name, summed in _sums_of_stores(schema.layout.width).items():
        sums[name] = lambda rows, summed=summed: summed(StoreSlice(records, rows))
    for name, summed in sums.items():
        # A matrix that is none any more is refused by all; one that holds other numbers by what looks at all of them again.
        if any(word in change for word in ("beyond", "before")):
            with pytest.raises(BadRecords, match="changed after they had been checked"):
                summed(slice(0, 20))
            continue
        try:
            (more, unit, bound), (fewer, *_), (own, *_) = (summed(slice(*rows)) for rows in ((0, 20), (1, 20), (0, 1)))
        except BadRecords:
            assert name == "embeddings"
            continue
        assert own.double().norm() * unit <= bound * (1 + 1e-12), name
        # The others add the same whatever stands before them, bit for bit.
        assert torch.equal(more, fewer + own), name


def _lots_of_baskets():
    """Return stores of 20 baskets out of 2,000 items, and the matrix that they share."""
    schema, random = BasketSchema(tuple(range(2000)), max_items=5), np.random.default_rng(1)
    ends, items = np.arange(0, 101, 5), np.concatenate([np.sort(random.permutation(2000)[:5]) for _ in range(20)])
    units = scipy.sparse.csr_array((np.ones(100, np.uint8), items.astype(np.int32), ends), shape=(20, 2000))
    assert units.has_canonical_format
    records = Records(schema, schema.encode(units))
    stores = {"sparse": store_of(units), "records": records, "places": records.multi_hot()}
    for store in stores.values():
        store.take(np.arange(2))
    return stores, units, records.encoded.codes


@pytest.mark.parametrize("kept", ["sparse", "records", "places"])
def test_what_is_written_into_a_store_reaches_its_own_record_alone(kept):
    stores, units, _ = _lots_of_baskets()
    store = stores[kept]
    before = store.take(np.arange(20))
    units.indices[:5], units.data[:5] = 7, 200
    after = store.take(np.arange(20))
    assert torch.equal(after[1:], before[1:])
    if kept == "places":
        # A gradient is as long as the root of so many different places.
        assert all(
            len(set(row)) == len(row) for row in ([place for place in row if place < 2006] for row in after.tolist())
        )


@pytest.mark.parametrize("change", ["columns", "rows", "choices"])
@pytest.mark.parametrize("kept", ["sparse", "records", "places"])
def test_a_store_that_holds_no_records_any_more_is_refused_before_they_reach_others(kept, change):
    """A column beyond the last would be one of the next record, and a row that goes back would be that of another."""
    stores, units, codes = _lots_of_baskets()
    if change == "choices":
        codes[0] = 200
        if kept == "sparse":
            return
    elif change == "columns":
        units.indices[4] = 2003
    else:
        units.indptr[1] = -3
    with pytest.raises(BadRecords, match="changed after they had been checked"):
        stores[kept].take(np.arange(20))


@pytest.mark.parametrize("store", [False, True])
def test_persons_of_lots_are_those_that_were_checked(account_of, store):
    """All records of one person in a lot would move a sum as far as their number, and noise is for two."""
    persons, records = np.repeat(np.arange(10), 2), store_of(np.random.default_rng(0).random((20, 3)))
    account = account_of({"gradient": 1.0}, count=2, rate=0.5, max_rows=2)
    source = {"records": Owned(records, persons)} if store else {"records": records, "persons": persons}
    lots = PoissonLots(**source, account=account)
    persons[:] = 0
    for _ in range(20):
        lot = lots.draw()
        assert len(lot) <= 2 * lot.draw.units and np.bincount(lot.draw.persons).max(initial=0) <= 2


def test_classes_of_tensors_and_masks_are_left_behind():
    """A tensor of another class may give other numbers each time, and a mask hides some from every check."""

    class Own(torch.Tensor):
        pass

    assert type(store_of(torch.rand(3, 2).as_subclass(Own)).take(np.arange(2))) is torch.Tensor
    hidden = np.ma.masked_invalid(np.array([[0.5] * 16, [np.nan] * 16], np.float32))
    codes = np.zeros((2, 0), np.uint8)
    for encoded in (Encoded(hidden, codes), Encoded(np.zeros((2, 16), np.float32), np.ma.masked_array(codes))):
        with pytest.raises(BadRecords, match="masked array"):
            Records(SERIES, encoded)
    matrix = scipy.sparse.csr_array(np.eye(3))
    matrix.data = np.ma.masked_array(matrix.data, mask=[True, False, False])
    with pytest.raises(BadRecords, match="without a mask"):
        store_of(matrix)
