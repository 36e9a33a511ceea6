"""Columns: how ranges are cut, what is drawn from a bin, and declarations that make no sense."""

import datetime
from collections import Counter
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
import scipy.stats
from hypothesis import given, settings

from lightning_dpgen.data.tables.bins import TRANSFORMS, Bins, Density
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.schema_keys import column_of

SOME = settings(max_examples=100, deadline=None)
WHOLE = st.tuples(st.integers(-300, 300), st.integers(0, 400), st.integers(1, 40), st.sampled_from(TRANSFORMS),
                  st.lists(st.integers(-320, 720), max_size=6, unique=True))  # fmt: skip


@SOME
@given(WHOLE)
def test_whole_numbers_are_shared_out_among_bins(case):
    low, more, most, transform, special = case
    special, high = np.array(sorted(special), np.int64), low + more
    bins = Bins.cut(low, high, True, most, transform, 1, special)
    usual = [number for number in range(low, high + 1) if number not in special]
    members = {}
    for number in [*usual, *special.tolist()]:
        members.setdefault(int(bins.encode(np.array([number]))[0]), []).append(number)
    # Every choice has a number, in order, and a special value shares its own with no other.
    assert sorted(members) == list(range(bins.count)) and bins.count <= min(most, len(usual)) + len(special)
    assert [number for code in sorted(members) for number in members[code]] == [*usual, *special.tolist()]
    for code, numbers in members.items():
        assert bins.alone(code) == (len(numbers) == 1)
        drawn = bins.decode(np.full(20, code), np.random.default_rng(0))
        assert set(drawn.tolist()) <= set(numbers)
    if len(usual) <= most:
        assert all(map(bins.alone, range(bins.count)))
    elif transform == "linear" and not len(special):
        widths = [len(numbers) for numbers in members.values()]
        assert len(widths) == most and max(widths) - min(widths) <= 2


@SOME
@given(st.floats(-1e9, 1e9), st.floats(1e-3, 1e12), st.integers(1, 50), st.sampled_from(TRANSFORMS), st.integers(0, 2**32))
def test_real_numbers_stay_in_their_bins(low, width, most, transform, seed):
    random, high = np.random.default_rng(seed), low + width
    try:
        bins = Bins.cut(low, high, False, most, transform, 1, np.array([low, high]))
    except ValueError:
        return
    codes = random.integers(0, bins.count, 200)
    numbers = bins.decode(codes, random)
    assert ((numbers >= low) & (numbers <= high)).all() and np.array_equal(bins.encode(numbers), codes)
    # Independently of how points are made: equally far apart after the transformation.
    change = {"linear": lambda x: x, "log": np.log1p, "sqrt": np.sqrt}[transform]
    points = change(np.append(bins.starts, high) - low)
    assert len(bins.starts) == most
    assert np.allclose(np.diff(points), points[-1] / most, rtol=1e-3, atol=1e-9 + 1e-6 * abs(low))


def test_rounding_does_not_reach_the_next_bin():
    """In the narrowest bins that there may be, some of so many draws would otherwise be rounded up to the end."""
    end = 1.0 + 4096 * np.spacing(2.0)
    bins = Bins(1.0, 2.0, False, np.array([1.0, end]), np.array([]))
    assert (bins.decode(np.zeros(200_000, int), np.random.default_rng(0)) < end).all()


def test_numbers_of_a_bin_are_drawn_uniformly():
    """False alarm: 1e-6 over all, from one seed."""
    random = np.random.default_rng(7)
    whole = Bins.cut(0, 29, True, 3, "linear", 1, np.array([4, 5, 29]))
    drawn = whole.decode(np.zeros(20_000, int), random)
    usual = [number for number in range(29) if number not in (4, 5) and whole.encode(np.array([number]))[0] == 0]
    counts = [int((drawn == number).sum()) for number in usual]
    assert sum(counts) == 20_000 and scipy.stats.chisquare(counts).pvalue > 5e-7
    real = Bins.cut(0.0, 8.0, False, 3, "log", 1, np.array([0.0]))
    drawn = real.decode(np.ones(20_000, int), random)
    start, end = real.starts[1], real.starts[2]
    assert scipy.stats.kstest((drawn - start) / (end - start), "uniform").pvalue > 5e-7


def test_the_units_of_a_transformation_are_those_of_the_type():
    def starts(**fields):
        return column_of("a", {"bins": 4, "transform": "log", **fields})._bins.starts

    money = starts(type="number", low=0, high=100, decimals=2)
    assert money.tolist() == np.rint(100 * np.expm1(np.arange(4) / 4 * np.log1p(100.01))).astype(int).tolist()
    minutes = starts(type="datetime", low="1970-01-01", high="1970-01-31 23:59:59")
    assert minutes.tolist() == np.rint(86400 * np.expm1(np.arange(4) / 4 * np.log(32))).astype(int).tolist()


@SOME
@given(st.sampled_from(["integer", "decimals", "number"]), st.integers(0, 2**24 - 1), st.integers(-100, 100), st.data())
def test_a_scaled_column_is_exact_where_float32_can_be(kind, width, low, data):
    fields = {"type": "number" if kind != "integer" else kind, "encoding": "scaled"}
    if kind == "number":
        column = column_of("a", fields | {"low": low, "high": low + width + 1})
        values = data.draw(st.lists(st.floats(low, low + width + 1), min_size=1, max_size=5))
    else:
        unit = 1 if kind == "integer" else 100
        fields |= {"decimals": 2} if kind == "decimals" else {}
        column = column_of("a", fields | {"low": low / unit, "high": (low + width + 1) / unit})
        values = [tick / unit for tick in data.draw(st.lists(st.integers(low, low + width + 1), min_size=1, max_size=5))]
    _, units = column.encode(pa.array(values), False, Counter())
    again = column.decode(np.zeros(len(values), int), units, np.random.default_rng(0)).to_pylist()
    assert units.dtype == np.float32
    if kind == "number":
        assert np.allclose(again, values, rtol=0, atol=(width + 1) * 2**-24)
    else:
        assert again == values
    # Whatever a model makes of it is a value.
    wild = column.decode(np.zeros(3, int), np.array([-1.0, 0.3, 2.0], np.float32), np.random.default_rng(0)).to_pylist()
    assert wild[0] == column.low and wild[2] == column.high and column.encode(pa.array(wild), False, Counter())


def test_dates_of_python_declare_too():
    low, high = datetime.date(2020, 1, 1), datetime.date(2020, 2, 1)
    column = column_of("a", {"type": "date", "low": low, "high": high, "bins": 2})
    assert column.low == "2020-01-01" and column == column_of("a", column.declared.dump())
    assert column_of("a", {"type": "time", "resolution": "hour"}).high == "23:00:00"


A = {"low": 0, "high": 10, "bins": 5}
BAD = {
    "no type": ({}, "type"),
    "a near type": ({"type": "int"}, "did you mean 'integer'"),
    "not a mapping": ("integer", "expected keys and values"),
    "no bounds": ({"type": "integer"}, "low: is missing: expected a bound"),
    "bounds turned round": ({"type": "integer", "low": 3, "high": 2}, "high: 2: expected low=3 or more"),
    "text": ({"type": "integer", **A, "low": "x"}, "low: 'x': expected a whole number"),
    "truth": ({"type": "integer", **A, "low": True}, "low: True"),
    "half": ({"type": "integer", **A, "low": 0.5}, "low: 0.5"),
    "infinite": ({"type": "number", **A, "high": float("inf")}, "high: inf"),
    "huge": ({"type": "integer", **A, "high": 2**53 + 1}, "high: 9007199254740993"),
    "very huge": ({"type": "number", **A, "high": 10**5000}, "high"),
    "off the grid": ({"type": "number", **A, "low": 0.125, "decimals": 2}, "low: 0.125: expected a number of 2 decimals"),
    "digits": ({"type": "number", **A, "high": 1e9, "decimals": 15}, "15 digits"),
    "decimals": ({"type": "number", **A, "decimals": -1}, "decimals: -1"),
    "decimals of times": ({"type": "time", "decimals": 1}, "decimals: expected only"),
    "resolution": ({"type": "time", "resolution": "day"}, "resolution: 'day': expected one of second, minute, hour"),
    "coarse": ({"type": "datetime", "low": "2020-01-01 10:30", "high": "2020-01-02", "resolution": "hour"}, "a whole hour"),
    "no resolution": ({"type": "integer", **A, "resolution": "hour"}, "resolution: expected only"),
    "zone": ({"type": "datetime", "low": "2020-01-01T00:00Z", "high": "2020-01-02"}, "without a time zone"),
    "date": ({"type": "date", "low": "01.02.2020", "high": "2020-01-02"}, "a date as YYYY-MM-DD"),
    "date as number": ({"type": "date", "low": 20200101, "high": "2020-01-02"}, "a date as YYYY-MM-DD"),
    "no bins": ({"type": "integer", **A, "bins": 0}, "bins: 0"),
    "many bins": ({"type": "integer", **A, "bins": 10**9}, "bins: 1000000000"),
    "bins in words": ({"type": "integer", **A, "bins": "20"}, "bins: '20'"),
    "narrow bins": ({"type": "number", "low": 1e15, "high": 1e15 + 1, "bins": 20}, "too narrow"),
    "transform": ({"type": "integer", **A, "transform": "exp"}, "transform: 'exp'"),
    "edges and bins": ({"type": "integer", **A, "edges": [5]}, "expected either edges, or bins"),
    "edges in disorder": ({"type": "integer", "low": 0, "high": 10, "edges": [5, 3]}, "increasing values"),
    "edge at low": ({"type": "integer", "low": 0, "high": 10, "edges": [0, 3]}, "increasing values"),
    "edge above": ({"type": "number", "low": 0, "high": 10, "edges": [10]}, "increasing values"),
    "no list": ({"type": "integer", **A, "special": 3}, "special: 3: expected a list"),
    "special twice": ({"type": "integer", **A, "special": [-1, 3, -1]}, "special: -1.*: .* it is there twice"),
    "special text": ({"type": "integer", **A, "special": ["x"]}, "special: 'x'"),
    "scaled and bins": ({"type": "number", **A, "encoding": "scaled"}, "bins: has no meaning with encoding: scaled"),
    "scaled constant": ({"type": "number", "low": 1, "high": 1, "encoding": "scaled"}, "too close together"),
    "scaled too close": ({"type": "number", "low": 1e15, "high": 1e15 + 1, "encoding": "scaled"}, "too close together"),
    "encoding": ({"type": "number", **A, "encoding": "one-hot"}, "encoding: 'one-hot'"),
    "missing": ({"type": "boolean", "missing": "yes"}, "missing: 'yes'"),
    "meaning of missing": ({"type": "boolean", "missing_values": ["?"]}, "only with missing: true"),
    "missing is a value": ({"type": "integer", **A, "missing": True, "missing_values": ["7"]}, "missing_values: '7'"),
    "missing is special": ({"type": "integer", **A, "special": [99], "missing": True, "missing_values": [99]}, "'99'"),
    "missing is a category": ({"type": "category", "values": ["a", ""], "missing": True}, "missing_values: ''"),
    "missing is a truth": ({"type": "boolean", "missing": True, "missing_values": ["no"]}, "missing_values: 'no'"),
    "missing texts": ({"type": "boolean", "missing": True, "missing_values": "?"}, "a list of different texts"),
    "no values": ({"type": "category"}, r"values: \(\): expected a list"),
    "empty values": ({"type": "category", "values": []}, r"values: \[\]"),
    "values in words": ({"type": "category", "values": "a, b"}, "values: 'a, b'"),
    "mixed": ({"type": "category", "values": ["a", 1]}, "values: 1: expected only texts"),
    "truth and number": ({"type": "category", "values": [1, True]}, "values: True"),
    "reals": ({"type": "category", "values": [1.5]}, "expected a list of texts"),
    "special thrice": ({"type": "number", **A, "special": [3, 3.0, 3]}, "special: 3.*: .* it is there 3 times"),
    "missing texts twice": (
        {"type": "boolean", "missing": True, "missing_values": ["?", "", "?"]},
        "missing_values: '.': expected each value once, and it is there twice",
    ),
    "value twice": ({"type": "category", "values": ["a", "b", "a"]}, "values: 'a': expected each value once"),
    "no text": ({"type": "category", "values": ["a", "\ud800"]}, "values: "),
    "other": ({"type": "category", "values": ["a"], "other": "b"}, "other: 'b': expected one of the values"),
    "other of another type": ({"type": "category", "values": [1, 0], "other": True}, "other: True"),
    "values of truth": ({"type": "boolean", "values": [True]}, "values: expected only with type: category"),
    "unknown": ({"type": "integer", **A, "hihg": 3}, "hihg: unknown here: did you mean 'high'"),
    "code": ({"type": "boolean", "__class__": 3}, "unknown here"),
    "fake": ({"type": "fake", "fake": "address"}, "fake: 'address'"),
    "no fake": ({"type": "fake"}, "expected one of fake"),
    "two fakes": ({"type": "fake", "fake": "name", "constant": 3}, "expected one of fake"),
    "constant": ({"type": "fake", "constant": [1]}, "constant: "),
    "constant nan": ({"type": "fake", "constant": float("nan")}, "constant: nan"),
    "dropped bins": ({"type": "drop", "bins": 3}, "bins: expected only with type: integer, number, date, datetime or time"),
    "description": ({"type": "drop", "description": 3}, "description: 3"),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "words"), BAD.values(), ids=BAD.keys())
def test_declarations_that_make_no_sense(fields, words):
    with pytest.raises(BadSchema, match=words) as caught:
        column_of("col", fields)
    assert str(caught.value).startswith("column 'col': ") and "\n" not in str(caught.value) and len(str(caught.value)) < 250


def test_the_share_of_a_choice_within_intervals_is_that_of_what_is_drawn():
    """False alarm once in 10^6: 600 shares of 5,000 numbers each, six deviations."""
    random = np.random.default_rng(0)
    for case in range(60):
        whole, high = bool(case % 2), int(random.integers(6, 60))
        kind = np.int64 if whole else np.float64
        special = np.unique(random.integers(0, high + 3, case % 4)).astype(kind)
        bins = Bins.cut(0, high, whole, int(random.integers(1, 7)), "linear", 1, special)
        if case % 3:
            starts = np.unique([0, *random.integers(1, high, 4)]).astype(kind)
            bins = replace(bins, density=Density(starts, random.choice([0.0, 1.0, 5.0], len(starts)), high, whole))
        ends = np.sort(random.choice(np.arange(-1, high + 3), 4, replace=False)).astype(kind)
        intervals = [(ends[0], ends[1]), (ends[2], ends[3])]
        for code, share in enumerate(bins.shares(intervals)):
            drawn = bins.decode(np.full(5_000, code), random)
            seen = np.mean(np.any([(first <= drawn) & (drawn <= last) for first, last in intervals], axis=0))
            assert abs(seen - share) <= 6.0 * np.sqrt(share * (1.0 - share) / 5_000) + 1e-9, (case, code)
        everything = bins.shares([(min(0, *special, high), max(0, *special, high))])
        assert np.allclose(everything, 1.0)
