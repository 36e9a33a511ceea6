"""The distribution of a column, found by a noisy tree: what it costs, what it finds, and the bins and numbers by it."""

import functools
import itertools
import json
import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from contracts.door import given_the_answers
from contracts.laws.discovery import no_person_costs_a_distribution_more_than_its_access, values_account
from hypothesis import example, given, settings
from hypothesis import strategies as st
from marks import but

from lightning_dpgen.data.discovery import value_tree
from lightning_dpgen.data.discovery.bounds_and_keys import discovery_stage
from lightning_dpgen.data.discovery.value_grid import FOUND_LEVELS, ValueGrid, values_of
from lightning_dpgen.data.discovery.value_tree import MOST_PIECES, _likely, find_values
from lightning_dpgen.data.tables.bins import Bins, Density
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_keys import column_of

GRIDS = {
    "one value": ValueGrid(5, 5, True),
    "few": ValueGrid(0, 9, True),
    "two levels": ValueGrid(-20, 80, True),
    "three levels": ValueGrid(0, 5000, True),
    "seconds of a century": ValueGrid(-2_000_000_000, 1_200_000_000, True),
    "real": ValueGrid(-1.5, 2.5, False),
    "one real": ValueGrid(0.5, 0.5, False),
    "close reals": ValueGrid(1e15, 1e15 + 1.0, False),
    "as good as one real": ValueGrid(1e17, 1e17 + 16.0, False),
    "found": ValueGrid(0, 511, True, FOUND_LEVELS),
    "found, few": ValueGrid(0, 1, True, FOUND_LEVELS),
    "found, reals": ValueGrid(-(2.0**64), 2.0**64, False, FOUND_LEVELS),
    "found, the widest": ValueGrid(-(2**53), 2**53, True, FOUND_LEVELS),
}


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_leaves_are_in_the_order_of_numbers_and_tile_the_range(grid):
    assert grid.branching**grid.levels >= grid.span and (grid.span < 2 or (grid.branching - 1) ** grid.levels < grid.span)
    numbers = np.sort(np.random.default_rng(0).uniform(grid.low, grid.high, 1000))
    numbers = np.concatenate([[grid.low], np.rint(numbers) if grid.whole else numbers, [grid.high]])
    leaves = grid.leaves(numbers)
    assert leaves[0] == 0 and leaves[-1] == grid.span - 1 and (np.diff(leaves) >= 0).all()
    for number, leaf in zip(numbers[::50], leaves[::50], strict=True):
        assert grid.number(int(leaf)) <= number and (leaf == grid.span - 1 or number <= grid.number(int(leaf) + 1))


def _found(numbers, grid, multiplier=0.0, **options):
    with values_account(grid, multiplier).open("values") as access:
        return find_values(access, "x", np.asarray(numbers, float), grid, **options)


@pytest.mark.parametrize("grid", but(GRIDS, "found, the widest"))
def test_without_noise_pieces_hold_what_is_there(grid):
    random = np.random.default_rng(1)
    numbers = grid.low + (grid.high - grid.low) * random.beta(0.5, 4.0, 5000)
    numbers = np.rint(numbers) if grid.whole else numbers
    numbers[::10] = grid.high
    numbers[::7] = np.nan
    pieces = _found(numbers, grid)["pieces"]
    starts = np.array([start for start, _ in pieces])
    there = numbers[~np.isnan(numbers)]
    assert starts[0] == grid.low and (np.diff(starts) > 0).all()
    counts = np.bincount(np.searchsorted(starts, there, side="right") - 1, minlength=len(pieces))
    np.testing.assert_allclose([mass for _, mass in pieces], counts, atol=1e-3)
    assert json.loads(json.dumps(pieces)) == pieces


def test_many_of_one_value_among_many_values_are_found_through_noise():
    """Noise of 20 on 30,000: half of them are one value of 100,001, whose piece holds nothing else."""
    numbers = np.concatenate([np.full(15_000, 70_000), np.random.default_rng(0).integers(0, 100_001, 15_000)])
    found = _found(numbers, ValueGrid(0, 100_000, True), 20.0)
    assert found["noise"] == 20.0
    starts = [start for start, _ in found["pieces"]]
    place = starts.index(70_000)
    assert starts[place + 1] == 70_001 and abs(found["pieces"][place][1] - 15_000) < 200
    assert all(mass >= 0.0 for _, mass in found["pieces"]) and len(found["pieces"]) < 2000


def test_noise_far_from_all_records_is_no_record():
    """2,000 records in one of 32 nodes, noise of 20: 200 draws leave three phantoms in a thousand at most, on average.

    Each is a half beyond 3.5 deviations, one of five in a draw. Counts from 0 as they are leave many more.
    """
    random, sigma, alike = np.random.default_rng(0), 20.0, np.ones((200, 32))
    counts = np.zeros(32)
    counts[3] = 2_000
    drawn, unknown = counts + sigma * random.standard_normal((200, 32)), np.full(200, np.inf)

    def phantoms(found):
        assert (found >= 0.0).all()
        return np.mean(1.0 - found[:, 3] / found.sum(axis=1))

    assert phantoms(_likely(drawn, unknown, sigma, 0, alike)) < 0.003
    assert phantoms(np.maximum(drawn, 0.0)) > 0.02
    # Many nodes of few records are too many together for noise.
    spread = counts + np.where(counts > 0, 0, 60.0)
    kept = _likely(spread + sigma * random.standard_normal((200, 32)), unknown, sigma, 0, alike)
    assert phantoms(kept) == pytest.approx(31 * 60 / spread.sum(), abs=0.02)
    for rank, known in itertools.product(range(4), (-9.0, 0.0, 1e-300, 1.0, 1_000.0, 1e9)):
        for own in ([-9.0] * 4, [900.0, -9.0, 9.0, 9.0], [-5.0, 1e6, 3.0, 0.0], [3.0]):
            rooms = np.where(np.arange(len(own)) < 3, 5, 0)[None]
            found = _likely(np.array([own]), np.array([max(known, 0.0)]), sigma, rank, rooms)
            assert (found >= 0.0).all() and found.sum() == pytest.approx(max(known, 0.0)) and not found[:, 3:].any()
    assert not _likely(np.full((1, 4), -9.0), np.array([np.inf]), sigma, 0, alike[:1, :4]).any()


def _heavy_tailed(kind, random, n=10_000):
    own = np.exp(5.0 + 1.4 * random.standard_normal(n)), 100.0 * random.pareto(1.3, n)
    return np.floor(own["Pareto" in kind]) * (random.random(n) < (0.4 if "zeros" in kind else 1.0))


@pytest.mark.parametrize("noise", [10.0, 25.0])
@pytest.mark.parametrize("high", [pytest.param(20_000, marks=pytest.mark.slow), 10**6])
@pytest.mark.parametrize("kind", ["lognormal", "Pareto", "lognormal and zeros", "Pareto and zeros"])
def test_a_tail_whose_cells_noise_hides_keeps_its_mass(kind, high, noise):
    """The share beyond the real 80, 90, 95 and 99 %: within six deviations of a count's noise on average of eight seeds.

    Each draw is within 15. Where cells are judged one by one, a tail lost 8.5 deviations on average.
    """
    numbers = np.minimum(_heavy_tailed(kind, np.random.default_rng(0)), high)
    grid, places = ValueGrid(0, high, True), np.quantile(numbers, [0.8, 0.9, 0.95, 0.99]) + 1.0
    beyond = (numbers[:, None] >= places).sum(axis=0)
    errors = []
    for seed in range(8):
        with values_account(grid, noise, seed=seed).open("values") as access:
            pieces = find_values(access, "x", numbers, grid)["pieces"]
        starts, masses = (np.array(part) for part in zip(*pieces, strict=True))
        density = Density(starts, masses, high, True)
        errors.append(density.between(places, np.full(4, high + 1)) * len(numbers) / masses.sum() - beyond)
    assert np.abs(np.mean(errors, axis=0)).max() < 6.0 * noise and np.abs(errors).max() < 15.0 * noise


def test_however_wide_the_bounds_are_a_mean_is_that_of_the_records():
    """The noise is seeded. Counts from 0 as they are had a mean of ten draws within 10^6 that was 2.9 times too large."""
    numbers = np.exp(np.random.default_rng(0).normal(6.2, 1.2, 14_000)).round()
    for high in (10**5, 10**7, 10**9):
        pieces = _found(numbers, ValueGrid(0, high, True), 25.0)["pieces"]
        starts, masses = (np.array(part) for part in zip(*pieces, strict=True))
        middles = 0.5 * (starts + np.append(starts[1:], high + 1) - 1)
        assert masses @ middles / masses.sum() == pytest.approx(numbers.mean(), rel=0.35)


def test_a_peak_of_noise_gathers_no_records(monkeypatch):
    """5,000 costs, noise of 100, ten seeds: the largest excess of a narrow piece over its records.

    A node of little more than 4 deviations has one child in five draws beyond 2.5, which gathered all of them.
    """
    numbers = np.exp(np.random.default_rng(0).normal(6.2, 1.2, 5_000)).round()

    def excess(seed):
        with values_account(grid, 100.0, seed=seed).open("values") as access:
            pieces = find_values(access, "x", numbers, grid)["pieces"]
        starts, masses = (np.array(part) for part in zip(*pieces, strict=True))
        ends = np.append(starts[1:], grid.high + 1)
        there = np.diff(np.searchsorted(np.sort(numbers), np.append(starts, ends[-1])))
        return ((masses / masses.sum() - there / len(numbers)) * (ends - starts < 50)).max()

    grid = ValueGrid(0, 10**5, True)
    assert np.mean([excess(seed) for seed in range(10)]) < 0.015
    monkeypatch.setattr(value_tree, "_UNEVEN_SIGMAS", -math.inf)
    assert np.mean([excess(seed) for seed in range(10)]) > 0.025


def test_what_is_spread_evenly_has_one_density_up_to_the_upper_bound():
    """The last child of a node has fewer leaves: 5 of 9,989 here, where a third of a child's share would be a peak."""
    numbers = np.random.default_rng(0).integers(0, 9_989, 20_000).astype(float)
    grid, dense = ValueGrid(0, 9_988, True), []
    for seed in range(10):
        with values_account(grid, 100.0, seed=seed).open("values") as access:
            pieces = find_values(access, "x", numbers, grid)["pieces"]
        start, mass = pieces[-1]
        dense.append(mass / (9_989 - start) / (20_000 / 9_989))
    assert np.mean(dense) < 3.0


def test_a_value_of_many_records_is_found_where_others_are_few():
    """450 records at 0 of 450 within 0 to 31, noise of 80: a count of 5.6 deviations, which 26 of 30 draws find."""
    numbers = np.concatenate([np.zeros(450), np.random.default_rng(0).normal(5_000, 100, 4_000).round()])
    grid, found = ValueGrid(0, 32**3 - 1, True), 0
    for seed in range(30):
        with values_account(grid, 80.0, seed=seed).open("values") as access:
            pieces = find_values(access, "x", numbers, grid)["pieces"]
        found += pieces[1][0] == 1 and pieces[0][1] > 200
    assert found >= 24


@pytest.mark.parametrize("whole", [True, False])
def test_a_wide_bin_without_mass_is_no_bin(whole):
    """Noise of the tables would fill it; its records are told as those of the bin before, or of the first with mass."""
    starts = np.array([0, 10, 11, 40, 41], np.int64 if whole else np.float64)
    density = Density(starts, np.array([0.0, 60.0, 0.0, 40.0, 0.0]), 100, whole)
    cut = density.cut(4, 1.0)
    masses = density.between(cut, np.append(cut[1:], density.ends[-1]))
    assert (masses > 0).all() and masses.sum() == pytest.approx(100.0) and cut[0] == 0
    # Where all is in one place there are still two bins to tell apart.
    alone = Density(starts, np.array([0.0, 60.0, 0.0, 0.0, 0.0]), 100, whole)
    assert len(alone.cut(4, 1.0)) >= 2


def test_very_many_records_have_no_more_pieces_than_a_schema_holds():
    """Single values stay apart where neighbours that hardly differ are merged; 200 are four chance errors of a piece."""
    random = np.random.default_rng(0)
    numbers = np.concatenate([random.integers(0, 10**6, 200_000), np.full(5_000, 123_456)])
    pieces = _found(numbers, ValueGrid(0, 10**6, True), 0.2)["pieces"]
    starts = [start for start, _ in pieces]
    assert 100 < len(pieces) <= MOST_PIECES and abs(pieces[starts.index(123_456)][1] - 5_000) < 200
    assert abs(sum(mass for start, mass in pieces if start < 500_000) - 105_000) < 1_000
    column = column_of("x", {"type": "integer", "low": 0, "high": 10**6}).with_density(pieces, 0.2).with_bins(50)
    assert 123_456 in column.edges and 123_457 in column.edges


@pytest.mark.parametrize("most", [1, 3])
def test_no_person_costs_a_distribution_more_than_its_access(most):
    no_person_costs_a_distribution_more_than_its_access(most)


def test_what_is_found_follows_from_the_answers_alone():
    grid = GRIDS["three levels"]
    run = functools.partial(_found, grid=grid, multiplier=3.0)
    first, second = given_the_answers(run, np.arange(500.0), np.full(700, 4000.0))
    assert first == second


def test_rows_of_a_person_beyond_the_declared_number_do_not_count():
    numbers, owners = np.repeat([3.0, 7.0], [1000, 10]), np.repeat([1, 2], [1000, 10])
    grid = GRIDS["few"]
    with values_account(grid, 1e-6, max_rows=4).open("values") as access:
        pieces = find_values(access, "x", numbers, grid, owners=owners, most=4)["pieces"]
    found = dict(map(tuple, pieces))
    assert round(found[3]) == round(found[7]) == 4


def test_a_tree_of_a_column_is_paid_level_by_level():
    spec = discovery_stage(epsilon=2.0, delta=1e-5, values={"age": 2, "pay": 3}, values_share=0.05)
    assert list(spec.noise_shares) == [values_of("age", 1), values_of("age", 2), *(values_of("pay", i) for i in (1, 2, 3))]
    assert set(spec.noise_shares.values()) == {0.01} and spec.share == pytest.approx(0.05)
    for wrong in ({"values": {"age": 2}}, {"values_share": 0.05}, {"values": {"age": 0}, "values_share": 0.1}):
        with pytest.raises(ValueError, match=r"values_share=|values of age"):
            discovery_stage(epsilon=2.0, delta=1e-5, **wrong)


def _density(random, whole, low, high, pieces):
    starts = np.unique(np.append(low, random.integers(low, high + whole, pieces)))
    masses = np.where(random.random(len(starts)) < 0.3, 0.0, random.gamma(0.3, 100.0, len(starts)))
    return Density(starts if whole else starts.astype(float), masses, high if whole else float(high), whole)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 10**6), st.booleans(), st.integers(1, 40), st.integers(0, 4), st.integers(1, 12))
@example(64427, True, 2, 4, 1)
def test_numbers_that_are_drawn_are_of_their_bin_and_never_special(seed, whole, pieces, specials, bins):
    random = np.random.default_rng(seed)
    low, high = -20, int(random.integers(-18, 90))
    density = _density(random, whole, low, high, pieces)
    special = np.unique(random.integers(low, high + 1, specials)).astype(np.int64 if whole else np.float64)
    starts = density.cut(bins, float(random.random() * 50))
    cut = Bins(density.starts[0], density.high, whole, starts, special, density)
    codes = np.repeat(np.arange(cut.count), 20)
    drawn = cut.decode(codes, random)
    assert ((drawn >= low) & (drawn <= high)).all() and np.array_equal(cut.encode(drawn), codes)


def test_bins_have_equal_mass_but_for_single_numbers_and_are_drawn_by_the_density():
    masses = np.concatenate([[700.0], np.linspace(300.0, 0.0, 99) / 148.5])
    density = Density(np.arange(100), masses, 99, True)
    starts = density.cut(10)
    assert starts[:2].tolist() == [0, 1] and 7 <= len(starts) - 1 <= 10
    each = density.between(starts[1:], np.append(starts[2:], 100))
    assert each.max() < 1.35 * each.min()
    cut = Bins(0, 99, True, starts, np.zeros(0, np.int64), density)
    codes = np.searchsorted(starts, np.random.default_rng(0).choice(100, 200_000, p=masses / masses.sum()), "right") - 1
    drawn = np.bincount(cut.decode(codes, np.random.default_rng(1)), minlength=100) / 200_000
    # Six standard deviations: a false alarm of 2e-7 for all numbers together.
    share = masses / masses.sum()
    assert (np.abs(drawn - share) <= 6 * np.sqrt(share / 200_000) + 1e-9).all()
    evenly = Bins(0, 99, True, starts, np.zeros(0, np.int64)).decode(codes, np.random.default_rng(1))
    evenly = np.bincount(evenly, minlength=100) / 200_000
    assert (np.abs(evenly - share) > 6 * np.sqrt(share / 200_000)).any()


COLUMNS = {
    "whole": {"type": "integer", "low": 0, "high": 300},
    "decimals": {"type": "number", "low": 0, "high": 300, "decimals": 2},
    "real": {"type": "number", "low": 0, "high": 300},
    "days": {"type": "date", "low": "2001-01-01", "high": "2024-12-31"},
    "seconds": {"type": "datetime", "low": "2001-01-01T00:00:00", "high": "2024-12-31T23:59:59"},
    "hours": {"type": "time", "resolution": "minute"},
    "specials": {"type": "integer", "low": 0, "high": 300, "special": [0, 999], "missing": True},
}


@pytest.mark.parametrize("fields", COLUMNS.values(), ids=COLUMNS)
def test_a_column_with_its_density_is_written_and_read(fields):
    column = column_of("x", fields)
    grid, random = column.grid, np.random.default_rng(0)
    ticks = grid.low + (grid.high - grid.low) * random.beta(0.4, 3.0, 4000)
    found = _found(np.rint(ticks) if grid.whole else ticks, grid, 3.0)
    decided = column.with_density(**found).with_bins(20)
    assert not decided.undecided and 10 <= len(decided.edges) <= 30
    table = TableSchema((decided,))
    assert TableSchema.from_json(json.loads(json.dumps(table.as_json()))) == table
    values = decided.decode(np.arange(decided.present), None, random)
    codes, _ = decided.encode(values, False, Counter())
    assert codes.tolist() == list(range(decided.present))


def test_ticks_leave_out_missing_and_special_values_and_move_others_to_the_bounds():
    column = column_of("x", COLUMNS["specials"])
    assert column.ticks(pa.array(["5", "", "999", "400", "0", "-3"])).tolist() == pytest.approx(
        [5.0, np.nan, np.nan, 300.0, np.nan, np.nan], nan_ok=True
    )


BAD = {
    "no pairs": ([3], "pairs of a value and a count"),
    "three": ([[0, 1, 2]], "pairs of a value and a count"),
    "a negative count": ([[0, -1.0]], "pairs of a value and a count"),
    "an infinite count": ([[0, float("inf")]], "pairs of a value and a count"),
    "a late start": ([[1, 1.0]], "increasing values from low"),
    "beyond the bounds": ([[0, 1.0], [400, 1.0]], "increasing values from low"),
    "falling": ([[0, 1.0], [9, 1.0], [5, 1.0]], "increasing values from low"),
    "a text": ("even", "pairs of a value and a count"),
    "another type": ([["a", 1.0]], "whole number"),
}


@pytest.mark.parametrize(("density", "words"), BAD.values(), ids=BAD)
def test_a_density_that_is_none_is_refused(density, words):
    with pytest.raises(BadSchema, match=words):
        column_of("x", COLUMNS["whole"] | {"density": density})


def test_a_density_has_no_meaning_for_a_scaled_column_and_noise_none_without_it():
    with pytest.raises(BadSchema, match="encoding: scaled"):
        column_of("x", COLUMNS["whole"] | {"density": [[0, 1.0]], "encoding": "scaled"})
    with pytest.raises(BadSchema, match="density_noise"):
        column_of("x", COLUMNS["whole"] | {"density_noise": 2.0})
