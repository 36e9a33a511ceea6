"""Laws of all statistics: no record is longer than the bound, some are as long, and what is released is a sum."""

import itertools
import math

import numpy as np
import pytest
import scipy.sparse
import torch

from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.measure.baskets import ItemsBySize, PairsBySize
from lightning_dpgen.measure.series_waves import EDGES, ReadingScores, SeriesWaves, scale_edges
from lightning_dpgen.measure.statistics import (
    CharacteristicFunctions,
    CoordinateHistograms,
    Counts,
    Histogram,
    Marginals,
    Means,
    SecondMoments,
    Squares,
    add_by_place,
)
from lightning_dpgen.models.bases import Basis, cosines, unit_values

TABLE = Layout(0, groups=(2, 3, 4), label=0)
PICTURE = ImageSchema(4, 6, levels=255, classes=3)
BASKETS = BasketSchema(range(7), max_items=6)
LABELLED = BasketSchema(range(7), max_items=6, classes=("a", "b"))
WRITTEN_OUT = Basis(TABLE, torch.eye(TABLE.width))
CENTRES = torch.randn(3, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
SLOW = cosines(PICTURE.layout, (4, 6, 1), 10)
SERIES = SeriesSchema(8, low=0.0, high=1.0, channels=("a", "b"), classes=("x", "y", "z"))
WAVES = SeriesWaves(cosines(SERIES.layout, SERIES.axes, 10), centre=CENTRES[0], scale=torch.arange(10, 0, -1) / 10)
SCORES = ReadingScores((torch.rand(16, len(EDGES), generator=torch.Generator().manual_seed(2)).cumsum(1) / 60).double())
OF_SCORES = SeriesWaves(WAVES, SCORES)
TURNED = torch.randn(3, 10, generator=torch.Generator().manual_seed(3))
FREQUENCIES = torch.randn(7, 3, generator=torch.Generator().manual_seed(4))


def a_row(random):
    return Encoded(np.zeros((1, 0)), np.array([[random.integers(choices) for choices in TABLE.groups]]))


def a_picture(random):
    # Pictures of any contrast, often with both extreme values, and sometimes with one.
    kind = random.random()
    pixels = random.choice([0, 255], 24) if kind < 0.7 else random.integers(0, 256, 24) if kind < 0.95 else np.zeros(24)
    return Encoded(pixels[None].astype(np.uint8), random.integers(0, 3, (1, 1)).astype(np.uint8))


def a_basket(random):
    held = np.zeros((1, 7), np.uint8)
    held[0, random.permutation(7)[: random.integers(0, 7)]] = 1
    return BASKETS.encode(scipy.sparse.csr_array(held))


def a_labelled_basket(random):
    return LABELLED.encode(a_basket(random).units, random.integers(0, 2, 1))


def a_series(random):
    # Readings at either end, at edges of bins, and between.
    units = random.choice([0.0, 1.0, 1 / 32, 2**-12, random.random()], (1, 16))
    return Encoded(units.astype(np.float32), random.integers(0, 3, (1, 1)).astype(np.uint8))


def a_reading(records):
    return unit_values(records, SERIES.layout)


STATISTICS = {
    "counts": (Counts(3), a_picture),
    "values": (Histogram(PICTURE.layout, 1, 5), a_picture),
    "values of three channels": (Histogram(PICTURE.layout, 3, 5), a_picture),
    "tables": (Marginals(TABLE, [(0, 1), (0, 2), (1, 2), (0, 1, 2)]), a_row),
    "means": (Means(SLOW, 3, 1.5), a_picture),
    "means of whole pictures": (Means(Basis(PICTURE.layout, torch.eye(24)), 3, 4.0), a_picture),
    "means of choices as one-hot": (Means(WRITTEN_OUT, 3, 3**0.5), a_row),
    "squares of choices as one-hot": (Squares(WRITTEN_OUT, torch.zeros(3, 9), 3**0.5), a_row),
    "means of labelled pictures": (Means(Basis(PICTURE.layout, torch.eye(27)), 3, 4.0), a_picture),
    "squares": (Squares(SLOW, CENTRES, 2.0), a_picture),
    "histograms of readings": (CoordinateHistograms(SERIES.layout, a_reading, 16, EDGES), a_series),
    "histograms of waves": (CoordinateHistograms(SERIES.layout, OF_SCORES.coordinates, 10, scale_edges(8.0)), a_series),
    "means of waves in their scales": (Means(WAVES, 3, 1.5), a_series),
    "moments of waves in their scales": (SecondMoments(WAVES, 2.0), a_series),
    "moments of scores": (SecondMoments(OF_SCORES, 2.0), a_series),
    "shapes": (CharacteristicFunctions(WAVES, CENTRES, TURNED, FREQUENCIES), a_series),
    "items": (ItemsBySize(BASKETS.layout, [0, 0, 1, 1, 2, 2, 2]), a_basket),
    "items by label": (ItemsBySize(LABELLED.layout, [0, 0, 1, 1, 2, 2, 2]), a_labelled_basket),
    "pairs": (PairsBySize(BASKETS.layout, [0, 0, 0, 0, 1, 1, 1]), a_basket),
    "pairs of some": (PairsBySize(BASKETS.layout, [0] * 7, [5, 0, 3]), a_basket),
}


def component_of(record):
    return torch.from_numpy(np.minimum(record.codes[:, 0], 2).astype(np.int64))


@pytest.mark.parametrize("name", STATISTICS)
def test_no_record_is_longer_than_the_bound_and_some_are_as_long(name):
    """Among many records of all kinds, at their ends and between, the longest is as long as the bound."""
    statistic, draw = STATISTICS[name]
    random, longest = np.random.default_rng(0), 0.0
    for _ in range(150):
        record = draw(random)
        sums = statistic.sums(record, component_of(record))
        assert sums.shape == statistic.shape and sums.dtype == torch.int64
        longest = max(longest, float(sums.double().norm()) * statistic.unit)
    assert 0.999 * statistic.bound <= longest <= statistic.bound * (1 + 1e-12)


@pytest.mark.parametrize("name", STATISTICS)
def test_what_is_released_is_the_sum_over_records(name):
    statistic, draw = STATISTICS[name]
    random = np.random.default_rng(1)
    records = [draw(random) for _ in range(50)]
    own = torch.cat([component_of(record) for record in records])
    together = statistic.sums(Encoded.joined(records), own)
    alone = sum(statistic.sums(record, component_of(record)) for record in records)
    assert torch.equal(together, alone)
    assert not statistic.sums(Encoded.joined(records)[:0], own[:0]).any()


def test_a_bound_that_forgets_a_table_would_be_noticed(monkeypatch):
    statistic, draw = STATISTICS["tables"]
    monkeypatch.setattr(statistic, "bound", 3**0.5)
    monkeypatch.setitem(STATISTICS, "tables", (statistic, draw))
    with pytest.raises(AssertionError):
        test_no_record_is_longer_than_the_bound_and_some_are_as_long("tables")


def test_tables_and_items_and_pairs_are_those_of_loops():
    random = np.random.default_rng(2)
    rows = Encoded.joined([a_row(random) for _ in range(60)])
    statistic = STATISTICS["tables"][0]
    for table, found in zip(statistic.tables, statistic.tables_of(statistic.sums(rows, None)), strict=True):
        expected = torch.zeros(found.shape, dtype=torch.float64)
        for code in rows.codes:
            expected[tuple(code[list(table)])] += 1
        assert torch.equal(found, expected)
    baskets = Encoded.joined([a_basket(random) for _ in range(60)])
    items, pairs = torch.zeros(3, 7, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.float64)
    some = [5, 0, 3]
    for row in baskets.units.toarray():
        held = np.flatnonzero(row)
        for item in held:
            items[[0, 0, 1, 1, 2, 2, 2][len(held)], item] += len(held) ** -0.5
        for place, (first, second) in enumerate(itertools.combinations(range(3), 2)):
            if row[some[first]] and row[some[second]]:
                pairs[0, place] += math.comb(len(held), 2) ** -0.5

    def in_units(statistic, own):
        return statistic.sums(own, None).double() * statistic.unit

    torch.testing.assert_close(in_units(STATISTICS["items"][0], baskets), items, rtol=0.0, atol=60 * 2.0**-30)
    of_labels = [LABELLED.encode(baskets.units, np.full(len(baskets), label)) for label in (0, 1)]
    apart = [in_units(STATISTICS["items by label"][0], own) for own in of_labels]
    for found, expected in zip(apart, ([items, torch.zeros_like(items)], [torch.zeros_like(items), items]), strict=True):
        torch.testing.assert_close(found, torch.cat(expected), rtol=0.0, atol=60 * 2.0**-30)
    found = in_units(STATISTICS["pairs of some"][0], baskets)
    torch.testing.assert_close(found, pairs, rtol=0.0, atol=60 * 2.0**-30)


def test_sums_of_many_long_rows_are_exact():
    """Python's whole numbers tell; float64 would lose the last digit of a sum of so many at once."""
    rows, longest = 2**23 + 1, 2**30 - 1
    # One row in memory, as often as it is asked for.
    row, place = torch.full((1, 1), longest, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    found = add_by_place(row.expand(rows, 1), place.expand(rows), 1)
    assert int(found) == rows * longest != int(float(rows * longest))


@pytest.mark.parametrize("form", [np.array, scipy.sparse.csr_array])
@pytest.mark.parametrize("levels", [1, 7, None])
def test_multiples_stay_within_those_whose_products_are_exact(form, levels):
    """Numbers may be written into records after they were checked, and entries of one place are added up first."""
    kind = np.float32 if levels is None else np.uint8
    units = form(np.array([[200, 3, 1, 0], [1, 0, 255, 9]], kind))
    if scipy.sparse.issparse(units):
        assert units.has_canonical_format
        units.indices[:3] = 1
    basis = Basis(Layout(units=4, levels=levels), torch.eye(4))
    found = basis.multiples(Encoded(units, np.zeros((2, 0), np.uint8)))
    found = found if isinstance(found, torch.Tensor) else torch.from_numpy(found.toarray())
    assert found.min() >= 0 and found.max() == basis.steps and torch.equal(found, found.round())


def test_all_records_are_gone_through_in_parts(monkeypatch):
    monkeypatch.setattr("lightning_dpgen.measure.statistics._AT_ONCE", 100)
    random = np.random.default_rng(3)
    encoded = Encoded.joined([a_picture(random) for _ in range(30)])
    own = torch.from_numpy(encoded.codes[:, 0].astype(np.int64))
    statistic = STATISTICS["squares"][0]
    whole = statistic.sums(encoded, own)
    torch.testing.assert_close(statistic.of_all(Records(PICTURE, encoded), own), whole, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("name", ["items", "pairs", "pairs of some"])
@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_baskets_are_taken_so_many_at_a_time_and_sums_are_the_same_bits(name, at_once, monkeypatch):
    statistic, draw = STATISTICS[name]
    monkeypatch.setattr(type(statistic), "at_once", at_once)
    random = np.random.default_rng(4)
    encoded = Encoded.joined([draw(random) for _ in range(40)])
    own, none = Records(BASKETS, encoded), torch.zeros(len(encoded), dtype=torch.int64)
    assert torch.equal(statistic.of_all(own, none), statistic.sums(encoded, none))


BASES = {
    "pictures": (cosines(Layout(784, levels=255), (28, 28, 1), 113), np.uint8, 256),
    "readings": (cosines(Layout(336), (336, 1), 100), np.float32, None),
    "waves": (
        SeriesWaves(cosines(Layout(336), (336, 1), 100), centre=torch.rand(100), scale=torch.rand(100)),
        np.float32,
        None,
    ),
    "choices": (Basis(Layout(3, levels=1, groups=(4,)), torch.eye(7)), np.uint8, 2),
    "one large wave": (Basis(Layout(5000), torch.full((1, 5000), 5000**-0.5)), np.float32, None),
}


@pytest.mark.parametrize("name", BASES)
def test_coordinates_are_those_of_each_record_alone_bit_for_bit(name):
    """Products of float matrices are not: routines for 191 and for 192 rows, or for one, add up in another order."""
    basis, kind, levels = BASES[name]
    random, units = np.random.default_rng(0), basis.layout.units
    drawn = random.random((192, units)) if levels is None else random.integers(0, levels, (192, units))
    records = Encoded(drawn.astype(kind), random.integers(0, 4, (192, len(basis.layout.groups))))
    found = basis.coordinates(records)
    for rows in (slice(0, 1), slice(0, 191), slice(5, 12), slice(191, 192)):
        assert torch.equal(basis.coordinates(records[rows]), found[rows])
    if name == "waves":
        moved = found * basis.scale + basis.centre
        expected = (unit_values(records, basis.layout) - 0.5) @ basis.vectors.T
    else:
        moved, expected = found, basis.values(records) @ basis.matrix.T
    torch.testing.assert_close(moved, expected, atol=1e-8 if name == "waves" else 1e-5, rtol=0.0)
    if levels is not None:
        assert torch.equal(basis.values(records)[:, :units], unit_values(records, basis.layout))
        sparse = Encoded(scipy.sparse.csr_array(records.units), records.codes)
        assert torch.equal(basis.coordinates(sparse), found)


@pytest.mark.parametrize("name", BASES)
def test_products_of_limbs_are_exact_and_their_sum_is_the_matrix_to_24_bits(name):
    basis = BASES[name][0]
    largest, limbs = basis.largest * basis.steps, basis._limbs
    for limb in limbs:
        assert torch.equal(limb.whole, limb.whole.round()) and limb.whole.abs().sum(dim=0).max() * largest <= 2.0**53
    off = sum(limb.whole * limb.unit for limb in limbs) - basis.matrix.T
    assert off.abs().max() <= 2.0**-25
    # One limb would not do for waves, whose values have 30 bits.
    assert (len(limbs) > 1) == (name in ("waves", "one large wave"))


def test_the_waves_of_the_longest_series_are_exact():
    units = 100_000
    waves = SeriesWaves(Basis(Layout(units), torch.full((1, units), units**-0.5, dtype=torch.float64)))
    ends = Encoded(np.stack([np.zeros(units, np.float32), np.ones(units, np.float32)]), np.zeros((2, 0), np.uint8))
    assert all(limb.whole.abs().sum() * 2.0**30 <= 2.0**53 for limb in waves._limbs)
    expected = torch.tensor([[-0.5], [0.5]], dtype=torch.float64) * units**0.5
    torch.testing.assert_close(waves.coordinates(ends), expected, atol=units * 2.0**-26, rtol=0.0)


def test_characteristic_functions_are_those_of_floating_point():
    """Angles are rounded to 2^-16 of a turn: an error of 3e-5 a record at most in a cosine, and of a third in all."""
    statistic, draw = STATISTICS["shapes"]
    random = np.random.default_rng(4)
    records = Encoded.joined([draw(random) for _ in range(100)])
    own = component_of(records)
    angles = (WAVES.coordinates(records) - CENTRES[own]) @ TURNED.double().T @ FREQUENCIES.double().T
    expected = torch.zeros(statistic.shape, dtype=torch.float64)
    expected.index_add_(0, own, torch.stack([angles.cos(), angles.sin()], dim=1) / 7**0.5)
    torch.testing.assert_close(
        statistic.sums(records, own) * statistic.unit, expected, atol=5e-3, rtol=0.0, check_dtype=False
    )


def test_the_slowest_waves_come_first_and_channels_stay_apart():
    colours = Layout(4 * 4 * 3, levels=255)
    basis = cosines(colours, (4, 4, 3), 9)
    waves = basis.vectors.view(9, 4, 4, 3)
    # Flat ones of each channel, then one half turn across, then one down.
    for i, wave in enumerate(waves):
        assert not np.delete(wave.numpy(), i % 3, axis=-1).any()
    torch.testing.assert_close(waves[:3].amax(dim=(1, 2, 3)), torch.full((3,), 0.25, dtype=torch.float64))
    torch.testing.assert_close(waves[3:6].std(dim=1).sum(), torch.tensor(0.0, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(waves[6:].std(dim=2).sum(), torch.tensor(0.0, dtype=torch.float64), atol=1e-12, rtol=0)
    assert cosines(Layout(6), (6, 1), 6).vectors.shape == (6, 6)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Basis(PICTURE.layout, torch.eye(5)), "expected \\(size, 24\\)"),
        (lambda: Basis(PICTURE.layout, torch.ones(2, 24)), "not orthonormal"),
        (lambda: Basis(PICTURE.layout, torch.full((2, 24), torch.nan)), "not orthonormal"),
        (lambda: cosines(PICTURE.layout, (4, 6, 1), 25), "size=25: expected a whole number from 1 to 24"),
        (lambda: Marginals(TABLE, []), "expected at least one"),
        (lambda: Marginals(TABLE, [(0, 3)]), "expected distinct groups from 0 to 2"),
        (lambda: Marginals(TABLE, [(1, 1)]), "expected distinct groups"),
        (lambda: Marginals(TABLE, [(0, 1), (1, 0)]), "none twice, even with its groups in another order"),
        (lambda: Means(SLOW, 3, float("inf")), r"radius=inf: expected a number from 1e-06 to 1e\+06"),
        (lambda: Means(SLOW, 3, 1e-162), r"radius=1e-162: expected a number from 1e-06 to 1e\+06"),
        (lambda: Means(SLOW, 2.5, 1.0), r"k=2\.5: expected a whole number"),
        (lambda: Counts("3"), "k='3': expected a whole number"),
        (lambda: Histogram(PICTURE.layout, 5, 4), "channels=5: expected a number that divides the 24 units"),
        (lambda: Histogram(PICTURE.layout, 1, 0), "bins=0: expected a whole number, 1 or more"),
        (lambda: Squares(SLOW, CENTRES[:, :9], 1.0), "expected \\(3, 10\\) finite numbers"),
        (lambda: Squares(SLOW, CENTRES * torch.nan, 1.0), "finite numbers"),
        (lambda: Means(SLOW, 2, 1.0, CENTRES), "expected \\(2, 10\\) finite numbers"),
        (lambda: Squares(SLOW, CENTRES, 1.0, torch.zeros(2).long()), "of=.*: expected a whole number from 0"),
        (lambda: ItemsBySize(TABLE, [0]), "records without sizes"),
        (lambda: ItemsBySize(BASKETS.layout, [0]), "of each of 7 bins"),
        (lambda: PairsBySize(BASKETS.layout, [0] * 7, [1, 1]), "2 or more different ones, from 0 to 6"),
    ],
)
def test_what_makes_no_sense_is_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()
