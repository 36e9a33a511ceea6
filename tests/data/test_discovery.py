"""Bounds, categories and universes that are found privately: what is found, what is not, and what is refused."""

import itertools
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from contracts.laws import discovery as laws
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_dpgen.data.discovery.bounds_and_keys import (
    DISCOVERY,
    REAL,
    WHOLE,
    bounds_of,
    discovery_stage,
    find_bounds,
    find_keys,
    keys_of,
)
from lightning_dpgen.data.discovery.counts import KeyOwners, held_at_most, name_hashes, number_hashes
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.pld import REPLACE_ONE
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.mechanisms import gaussian
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.planning.calibration import make_first_plan, make_rest
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
from lightning_dpgen.privacy.sampling.samplers import Poisson
from lightning_dpgen.sampling.errors import BadRecords


def _first(spec, *, epsilon=2.0, delta=1e-5):
    """Return the plan of the discovery alone."""
    return Plan((Stage(spec.access(spec.noise or 0.0), 1, spec.share),), epsilon, delta)


def _look(find, multiplier=0.0, *, seed=0):
    """Call `find` on an access with the noises ``bounds of x`` and ``keys of x``, of which it uses one."""
    noises = {bounds_of("x"): multiplier, keys_of("x"): multiplier}
    stage = Stage(Access(DISCOVERY, noises, deltas={keys_of("x"): 1e-6}), 1, 1.0)
    with Account(Plan((stage,), 1.0, 1e-5), stream=PrivateStream(seed=seed)).open(DISCOVERY) as access:
        found = find(access)
        for name in list(access._undrawn):
            access.consume(name)
    return found


def _bounds(values, multiplier=0.0, **options):
    return _look(lambda access: find_bounds(access, bounds_of("x"), values, **options), multiplier)


def _keys(held, multiplier=0.0, **options):
    return _look(lambda access: find_keys(access, keys_of("x"), held, **options), multiplier)


def test_no_person_costs_more_than_is_paid():
    for most in (1, 2, 3):
        laws.no_person_costs_a_discovery_more_than_its_access(most)


def test_what_is_found_follows_from_the_answers_alone():
    laws.given_the_answers_a_discovery_is_the_same_for_any_records()


# Bounds


@given(st.lists(st.floats(allow_nan=False, width=64), min_size=1, max_size=30))
@settings(deadline=None, max_examples=100)
def test_bounds_without_noise_hold_all_values_within_a_factor_of_2(values):
    low, high = _bounds(np.array(values))
    least, largest = (min(max(end, -(2.0**64)), 2.0**64) for end in (min(values), max(values)))
    tiny = 2.0**-64
    assert low <= least + tiny and largest - tiny <= high
    if least > tiny:
        assert low > least / 2 or low == 2.0**63
    if largest > tiny:
        assert high <= 2 * largest


@given(st.lists(st.integers(-(2**53), 2**53), min_size=1, max_size=30))
@settings(deadline=None, max_examples=100)
def test_whole_numbers_have_whole_bounds(values):
    low, high = _bounds(np.array(values), whole=True)
    assert type(low) is type(high) is int
    assert low <= min(values) and max(values) <= high
    assert max(abs(low), abs(high)) <= 2 * max(map(abs, values))


def test_the_largest_whole_numbers_stay_in_64_bits():
    low, high = _bounds(np.array([-(2**63), 2**63 - 1]), whole=True)
    assert (low, high) == (-(2**63) + 1, 2**63 - 1)


@pytest.mark.parametrize("buckets", [REAL, WHOLE])
def test_buckets_lie_side_by_side(buckets):
    ends = [buckets.ends(place) for place in range(len(buckets))]
    step = 1 if buckets is WHOLE else 0
    for (_, high), (low, _) in itertools.pairwise(ends):
        assert low == high + step or (0 in (low, high) and abs(low - high) <= 2.0**-64)
    inner = [place for place in range(len(buckets)) if abs(ends[place][0]) < 2.0**52]
    middles = np.array([(ends[place][0] + ends[place][1]) / 2 for place in inner])
    assert buckets.places(np.where(middles % 1 != 0, np.floor(middles), middles) if step else middles).tolist() == inner


def test_days_have_bounds_as_whole_numbers():
    days = pd.date_range("2019-01-01", "2023-12-31").to_numpy().astype("datetime64[D]").astype(np.int64)
    assert _bounds(days, whole=True) == (2**14, 2**15 - 1)


def test_an_empty_bucket_passes_with_its_chance():
    """800 looks at nothing, at a chance of 0.25 and noise for 3: within 5.5 standard deviations, a false alarm of 4e-8."""
    nothing, chance, looks, seen = np.empty(0), 0.25, 800, 0
    stage = Stage(Access(DISCOVERY, {"b": 2.0}), 1, 1.0)
    with Account(Plan((stage,), 1.0, 1e-5), stream=PrivateStream(seed=3)).open(DISCOVERY) as access:
        for _ in range(looks):
            access._undrawn["b"] = 2.0  # the law of one draw, many times over
            seen += find_bounds(access, "b", nothing, most=3, chance=chance) is not None
    assert abs(seen / looks - chance) < 5.5 * math.sqrt(chance * (1 - chance) / looks)


@pytest.mark.parametrize("seed", range(3))
def test_bounds_ignore_what_few_hold(seed):
    values = np.concatenate([np.random.default_rng(seed).uniform(18, 90, 5000), [-1e9, 1e12, np.inf, -np.inf, np.nan]])
    found = _look(lambda access: find_bounds(access, bounds_of("x"), values), 20.0, seed=seed)
    assert found == (16.0, 128.0)


def test_too_few_records_have_no_bounds():
    assert _bounds(np.array([3.0]), 20.0) is None and _bounds(np.empty(0)) is None
    assert _bounds(np.full(10, np.nan)) is None
    assert _bounds(np.zeros(5)) == (0.0, 0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"most": 0}, {"most": 1.0}, {"chance": 0.0}, {"chance": 1.0}, {"chance": math.nan}, {"owners": np.arange(2)},
        {"owners": np.array([1.0, np.nan, np.nan])},
        {"values": np.zeros((3, 1))},
    ],
)  # fmt: skip
def test_impossible_arguments_of_bounds(wrong):
    with pytest.raises(ValueError, match="expected"):
        _bounds(**({"values": np.arange(3.0)} | wrong))


def test_bounds_under_replace_one_are_refused():
    stage = Stage(Access("s", {"b": 2.0}), 1, 1.0)
    with Account(Plan((stage,), 1.0, 1e-5, REPLACE_ONE)).open("s") as access:
        with pytest.raises(LedgerError, match="added or removed"):
            find_bounds(access, "b", np.arange(3.0))
        access.consume("b")


# Keys

COLUMNS = {
    "a list": ["b", None, "a", "b"],
    "objects": np.array(["b", None, "a", "b"], dtype=object),
    "pandas": pd.Series(["b", None, "a", "b"]),
    "a categorical": pd.Series(["b", None, "a", "b"], dtype="category"),
    "arrow": pa.array(["b", None, "a", "b"]),
    "large arrow": pa.array(["b", None, "a", "b"], pa.large_string()),
    "chunks": pa.chunked_array([["b", None], ["a", "b"]]),
    "a dictionary": pa.chunked_array([["b", None], ["a", "b"]]).dictionary_encode(),
    "whole numbers": [2, None, 1, 2],
    "pandas whole numbers": pd.Series([2, None, 1, 2], dtype="Int64"),
    "bytes": pa.array([2, None, 1, 2], pa.uint8()),
}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS.keys())
def test_columns_of_any_make(column):
    held = KeyOwners.of_column(column)
    assert _keys(held) in (["a", "b"], [1, 2])
    assert held.owners.tolist() == [0, 2, 3]
    assert all(type(key) in (str, int) for key in _keys(held))
    by_person = KeyOwners.of_column(column, np.array([5, 5, 5, 9]))
    assert by_person.owners.tolist() == [5, 5, 9]


@pytest.mark.parametrize(
    "column",
    [
        ["a", 1],
        [1.5, 2.5],
        np.array([1.0, np.nan]),
        [True, False],
        [b"a"],
        [["a"]],
        [2**63],
        np.array([2**63], dtype=np.uint64),
        [object()],
        ["\ud800"],
        pd.Series(pd.to_datetime(["2020-01-01"])),
    ],
    ids=lambda column: type(column).__name__,
)
def test_what_is_no_category_is_refused_without_showing_it(column):
    with pytest.raises(BadRecords, match=r"expected text or whole numbers|neither all text") as error:
        KeyOwners.of_column(column)
    assert "2020" not in str(error.value) and len(str(error.value).splitlines()) == 1


def test_a_column_of_missing_values_holds_nothing():
    for column in ([], [None, None], pd.Series([np.nan, np.nan]), pa.nulls(3)):
        assert _keys(KeyOwners.of_column(column)) == [] and _keys(KeyOwners.of_column(column), 3.0) == []


def test_strings_that_nearly_agree_stay_apart():
    names = ["a", "a\0", "A", " a", "á", "a\u0301", ""]
    assert _keys(KeyOwners.of_column(names)) == sorted(names)


SETS = (np.array([0, 2, 2, 5, 6]), np.array([0, 1, 1, 1, 2, 0]))


def test_sets():
    held = KeyOwners.of_sets(*SETS, ["tea", "milk", "jam"])
    assert held.owners.tolist() == [0, 0, 2, 2, 2, 3] and _keys(held) == ["jam", "milk", "tea"]
    assert _keys(KeyOwners.of_sets(*SETS, [16, 3, 9])) == [3, 9, 16]
    together = KeyOwners.of_sets(*SETS, ["tea", "milk", "jam"], owners=np.array([7, 7, 7, 1]))
    assert together.owners.tolist() == [7, 7, 7, 7, 7, 1]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"indptr": np.array([0, 2, 1, 6])}, "indptr"),
        ({"indptr": np.array([1, 6])}, "indptr"),
        ({"indptr": np.array([0, 5])}, "indptr"),
        ({"indptr": np.array([])}, "indptr"),
        ({"indptr": np.array([0.0, 6.0])}, "indptr"),
        ({"codes": np.array([0, 1, 1, 1, 3, 0])}, "codes"),
        ({"codes": np.array([0, 1, 1, 1, -1, 0])}, "codes"),
        ({"codes": np.array([0.0, 1, 1, 1, 2, 0])}, "codes"),
        ({"names": ["tea", "tea", "jam"]}, "twice"),
        ({"names": ["tea", 3, "jam"]}, "neither"),
        ({"names": ["tea", None, "jam"]}, "no name"),
        ({"owners": np.array([1, 2])}, "owner"),
        ({"owners": np.array([0.5, 1, 2, 3])}, "owners"),
        ({"names": [1.5, 2.5, 3.5]}, "text or whole numbers"),
    ],
)
def test_sets_that_do_not_fit_together_are_refused(wrong, words):
    arguments = {"indptr": SETS[0], "codes": SETS[1], "names": ["tea", "milk", "jam"], "owners": None} | wrong
    with pytest.raises(BadRecords, match=words) as error:
        KeyOwners.of_sets(**arguments)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("names", [np.array([1.5]), np.array(["a", 1], dtype=object), np.zeros((1, 1), int)])
def test_names_of_another_kind_are_refused(names):
    with pytest.raises(BadRecords, match="all alike"):
        KeyOwners(np.array([0]), np.array([0]), names)


def _at_most(owners, codes, most, seed=0, **salts):
    """Return the codes that count, by salts from a stream or by those that are given."""
    hashes = name_hashes(np.arange(int(codes.max(initial=0)) + 1))
    return held_at_most(owners, codes, most, hashes, **salts or {"stream": PrivateStream(seed=seed)})


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.uint64])
def test_codes_and_owners_of_any_whole_kind(kind):
    codes, owners = np.array([0, 1, 1, 2], dtype=kind), np.array([3, 3, 3, 250], dtype=kind)
    assert sorted(_at_most(owners, codes, 2).tolist()) == [0, 1, 2]
    assert _keys(KeyOwners(codes, owners, np.array([5, 6, 7]))) == [5, 6, 7]


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 4)), max_size=40),
    st.integers(1, 4),
    st.integers(0, 10),
)
@settings(deadline=None, max_examples=100)
def test_each_owner_counts_for_so_many_of_its_own_keys(entries, most, seed):
    pairs = np.array(entries, dtype=np.int64).reshape(-1, 2)
    for owner in np.unique(pairs[:, 0]):
        own = pairs[pairs[:, 0] == owner]
        kept = _at_most(own[:, 0], own[:, 1], most, seed)
        assert len(kept) == len(set(kept.tolist())) == min(most, len(set(own[:, 1].tolist())))
        assert set(kept.tolist()) <= set(own[:, 1].tolist())
    alone = sum(min(most, len(set(pairs[pairs[:, 0] == owner, 1].tolist()))) for owner in np.unique(pairs[:, 0]))
    assert len(_at_most(pairs[:, 0], pairs[:, 1], most, seed)) == alone
    assert len(_at_most(pairs[:, 0], pairs[:, 1], None, seed)) == len(set(entries))


def test_the_choice_is_uniform_and_each_owners_own():
    """Two of five keys, 4,000 owners: each key 0.4 of the time, within 5.5 standard deviations (5 tests: 2e-7)."""
    owners, codes = np.repeat(np.arange(4000), 5), np.tile(np.arange(5), 4000)
    counts = np.bincount(_at_most(owners, codes, 2, 1))
    assert counts.sum() == 8000
    assert (np.abs(counts / 4000 - 0.4) < 5.5 * math.sqrt(0.24 / 4000)).all()


def test_the_choice_by_names_is_uniform_too():
    """As above, for names of owners that are alike but for a number."""
    names = np.array([b"person %d" % i for i in range(4000)], dtype=object)
    owners, codes = np.repeat(np.arange(4000), 5), np.tile(np.arange(5), 4000)
    counts = np.bincount(_at_most(owners, codes, 2, salts=name_hashes(names)[owners]))
    assert counts.sum() == 8000
    assert (np.abs(counts / 4000 - 0.4) < 5.5 * math.sqrt(0.24 / 4000)).all()


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=40), st.integers(1, 3), st.randoms())
@settings(deadline=None, max_examples=100)
def test_the_choice_by_names_follows_from_an_owners_own_entries(entries, most, shuffled):
    """Neither the order of the entries, nor the numbers of owners and keys, nor other owners decide it."""

    def kept(entries, renumber):
        keys = list(dict.fromkeys(key for _, key in entries))
        shuffled.shuffle(keys)
        owners = np.array([renumber(owner) for owner, _ in entries], np.int64)
        salts = name_hashes(np.array([owner for owner, _ in entries], np.int64))
        codes = np.array([keys.index(key) for _, key in entries], np.int64)
        found = held_at_most(owners, codes, most, name_hashes(np.array(keys, np.int64)), salts)
        return sorted(keys[code] for code in found)

    once = kept(entries, lambda owner: owner)
    others = list(entries)
    shuffled.shuffle(others)
    assert kept(others, lambda owner: 99 - 7 * owner) == once
    alone = [kept([entry for entry in entries if entry[0] == owner], lambda owner: owner) for owner in range(5)]
    assert sorted(itertools.chain(*alone)) == once


def test_equal_numbers_of_an_owner_have_hashes_of_their_own():
    numbers, owners = np.array([2.0, 2.0, -0.0, 2.0, 0.0]), np.array([1, 1, 2, 5, 3])
    found = number_hashes(numbers, owners)
    assert found[0] != found[1] and found[3] in (found[0], found[1]) and found[2] == found[4]


def test_entries_that_have_no_salts_need_a_stream():
    with pytest.raises(ValueError, match="expected one of them"):
        held_at_most(np.zeros(2, int), np.arange(2), 1, np.arange(2, dtype=np.uint64))
    with pytest.raises(BadRecords, match="salts"):
        KeyOwners.of_column(["a", "b"], salts=np.zeros(2))


def test_a_new_key_of_one_record_changes_nothing_that_is_seen():
    """In 300 looks of its own noise, at a delta of 1e-6: a false alarm of 3e-4 in all."""
    common = KeyOwners.of_column(["x"] * 400 + ["y"] * 300)
    more = KeyOwners.of_column(["x"] * 400 + ["y"] * 300 + ["only here"])
    for seed in range(150):
        for held in (common, more):
            assert _look(lambda access, held=held: find_keys(access, keys_of("x"), held), 5.0, seed=seed) == ["x", "y"]


# The spec


def test_the_spec_is_the_first_stage_of_the_whole_plan():
    """As the noisy count is today: the discovery is planned alone, made, and the whole plan begins with it."""
    spec = discovery_stage(
        epsilon=2.0, delta=1e-5, share=0.05, count_share=0.01, bounds={"age": 1}, keys={"city": 1, "items": 5}
    )
    assert set(spec.noise_shares) == {"n", bounds_of("age"), keys_of("city"), keys_of("items")}
    assert spec.deltas == pytest.approx({keys_of("city"): 5e-7, keys_of("items"): 5e-7})
    assert spec.noise_shares["n"] == 0.01 and spec.share == pytest.approx(0.06)
    ratio = spec.noise_shares[keys_of("items")] / spec.noise_shares[keys_of("city")]
    assert ratio == pytest.approx(math.sqrt(5))
    first = make_first_plan(spec, epsilon=2.0, delta=1e-5)
    account = Account(first)
    random = np.random.default_rng(0)
    with account.open(DISCOVERY) as access:
        n = gaussian(access, "n", torch.tensor([5000.0], dtype=torch.float64), sensitivity=1.0)
        bounds = find_bounds(access, bounds_of("age"), random.integers(18, 90, 5000), whole=True)
        cities = find_keys(access, keys_of("city"), KeyOwners.of_column(random.choice(["a", "b"], 5000)))
        items = KeyOwners.of_sets(np.arange(0, 25_001, 5), random.integers(0, 9, 25_000), list(range(9)))
        assert find_keys(access, keys_of("items"), items, most=5) == list(range(9))
    assert abs(float(n) - 5000) < 200 and bounds == (16, 127) and cities == ["a", "b"]
    whole = make_rest(first, [spec, StageSpec("training", {"gradient": 1.0}, 20, max_noise=1e3, sampler=Poisson(0.1))])
    account.extend(whole)
    assert whole.stages[0] == first.stages[0] and 1.99 < whole.epsilon <= 2.0 and whole.event == first.event
    for _ in range(20):
        with account.open("training", draw=account.sample("training", 9)[1]) as access:
            gaussian(access, "gradient", torch.zeros(1), sensitivity=1.0)
    account.verify_complete()


def test_without_keys_no_delta_is_spent():
    spec = discovery_stage(epsilon=2.0, delta=1e-5, share=0.05, bounds={"age": 1})
    assert spec.deltas == {} and _first(spec).epsilon < 0.5
    count = discovery_stage(epsilon=2.0, delta=1e-5, count_share=0.01)
    assert dict(count.noise_shares) == {"n": 0.01}


def test_the_spec_of_a_twin_has_no_noise():
    spec = discovery_stage(epsilon=math.inf, delta=1e-5, share=0.05, keys={"city": 1})
    assert spec.noise is None and not _first(spec, epsilon=math.inf).private


@pytest.mark.parametrize(
    "wrong",
    [
        {"share": 0.0},
        {"share": -0.1},
        {"share": 1.0},
        {"share": math.nan},
        {"count_share": -0.01},
        {"count_share": 0.97},
        {"count_share": math.nan},
        {"keys": {}},
        {"keys": {"city": 0}},
        {"keys": {"city": 1.5}},
        {"keys": {}, "bounds": {"age": True}},
        {"delta_keys": 0.0},
        {"delta_keys": 1e-5},
        {"delta_keys": math.nan},
        {"delta": 0.0},
        {"delta": 1.0},
        {"epsilon": 0.0},
        {"epsilon": -1.0},
        {"epsilon": math.nan},
        {"keys": {}, "share": 0.0},
    ],
    ids=str,
)
def test_impossible_specs_are_refused(wrong):
    with pytest.raises(ValueError, match="expected"):
        discovery_stage(**({"epsilon": 2.0, "delta": 1e-5, "share": 0.05, "keys": {"city": 1}} | wrong))


def test_utility_of_fifty_categories():
    """5,000 records, shares as 1/rank, 5 % of the budget at epsilon 2: about half of the categories, 85 % of records."""
    random = np.random.default_rng(1)
    shares = 1.0 / np.arange(1, 51)
    column = np.array([f"c{rank:02}" for rank in random.choice(50, 5000, p=shares / shares.sum())])
    plan = _first(discovery_stage(epsilon=2.0, delta=1e-5, share=0.05, keys={"city": 1}))
    with Account(plan, stream=PrivateStream(seed=1)).open(DISCOVERY) as access:
        found = find_keys(access, keys_of("city"), KeyOwners.of_column(column))
    covered = np.isin(column, found).mean()
    print(f"{len(found)} of 50 categories found, which hold {covered:.0%} of the records")
    assert len(found) >= 20 and covered > 0.8
