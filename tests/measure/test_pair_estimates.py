"""Pairs of columns that noise hides: what is said beforehand is what noisy tables show."""

from dataclasses import replace

import numpy as np
import pytest

from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_keys import column_of
from lightning_dpgen.measure.pair_estimates import (
    _CERTAIN,
    _LARGEST_P,
    NoisyPair,
    _by_contrasts,
    _by_contrasts_and_directions,
    _of_few_directions,
    contrasts,
    estimate_pairs,
    records_to_show,
)
from lightning_dpgen.measure.pair_tables import NoisyTables


@pytest.mark.parametrize("choices", [(2, 2), (5, 5), (2, 40), (40, 7)], ids=str)
@pytest.mark.parametrize("deviation", [5.0, 60.0])
def test_a_column_that_follows_from_another_is_shown_by_so_many_records(choices, deviation):
    """40 draws: of half of the records fewer than a quarter show it, and of twice as many nearly all."""
    random, groups = np.random.default_rng(0), choices if choices[0] <= choices[1] else choices[::-1]
    needed = 1000.0
    for _ in range(20):
        needed = records_to_show(choices, deviation, needed)

    def shown(total):
        low, high = groups
        exact = np.zeros(groups)
        exact[np.arange(high) % low, np.arange(high)] = total / high
        rows, columns = exact.sum(axis=1) / total, exact.sum(axis=0) / total
        drawn = (exact + deviation * random.standard_normal(groups) for _ in range(40))
        return np.mean([NoisyPair(noisy, deviation, rows, columns, total).evidence > _CERTAIN for noisy in drawn])

    assert shown(needed / 2) < 0.25 and shown(2 * needed) > 0.9


def _cut(ranks, bins):
    return np.minimum((ranks * bins).astype(int), bins - 1)


def _smooth_pair(random, shape, n=20_000):
    """Return the counts of two numbers of rank correlation .57, in bins of like mass."""
    first = random.standard_normal(n)
    second = 0.585 * first + np.sqrt(1.0 - 0.585**2) * random.standard_normal(n)
    ranks = [own.argsort().argsort() / n for own in (first, second)]
    counts = np.zeros(shape)
    np.add.at(counts, tuple(_cut(own, bins) for own, bins in zip(ranks, shape, strict=True)), 1.0)
    return counts


@pytest.mark.parametrize(
    ("ordered", "others", "tested", "functions"),
    [(3, 0, 2, 2), (7, 0, 2, 6), (20, 3, 5, 11), (20, 6, 2, 8), (0, 2, 1, 1), (0, 5, 4, 4), (2, 3, 4, 4)],
)
def test_contrasts_are_orthonormal_by_the_shares(ordered, others, tested, functions):
    """Polynomials of ranks, and each of few other choices; those of many others are told apart by nothing."""
    shares = np.random.default_rng(ordered).dirichlet(np.ones(ordered + others))
    found = contrasts(shares, ordered)
    values = found.values
    np.testing.assert_allclose((values * shares[:, None]).T @ values, np.eye(functions), atol=1e-6)
    np.testing.assert_allclose(shares @ values, 0.0, atol=1e-6)
    assert found.tested == tested
    if ordered > 2:
        assert (np.diff(values[:ordered, 0]) > 0.0).all() and not values[ordered:, :2].any()
        assert not values[ordered:, tested:].any()


def test_many_choices_without_an_order_have_no_contrasts():
    assert contrasts(np.full(6, 1 / 6), 0) is None and contrasts(np.ones(1), 0) is None
    assert contrasts(np.full(6, 1 / 6), 2) is None and contrasts(np.full(5, 1 / 5), 2) is not None


@pytest.mark.parametrize("shape", [(4, 5), (12, 30)], ids=str)
@pytest.mark.parametrize("deviation", [0.0, 40.0])
@pytest.mark.parametrize("others", [0, 2])
def test_trends_of_independent_groups_are_as_rare_as_chance(shape, deviation, others):
    """2,500 draws of noise and chance: a chance below 10^-4 is one in 10,000 at most, so two have a chance of 3 %."""
    random = np.random.default_rng(1)
    rows, columns = (random.dirichlet(np.full(bins, 3.0)) for bins in shape)
    by = (contrasts(rows, len(rows) - others), contrasts(columns, len(columns)))
    expected = 5_000 * np.outer(rows, columns)
    found = []
    for _ in range(2_500):
        counts = random.poisson(expected) + deviation * random.standard_normal(shape)
        found.append(NoisyPair(counts, deviation, rows, columns, 5_000.0, by).trend)
    # A bound by Bonferroni is near the truth where trends are independent and chances are small.
    assert np.count_nonzero(np.array(found) < _LARGEST_P) <= 1 and np.mean(np.array(found) < 0.1) == pytest.approx(
        0.1, abs=0.03
    )


@pytest.mark.parametrize(("shape", "strength"), [((24, 2), 0.7), ((19, 4), 1.4)], ids=["two", "four"])
def test_a_number_and_few_choices_that_go_together_are_found_and_estimated_where_each_cell_is_noise(shape, strength):
    """A correlation of .4 or so: independent groups are off by twice as much as the estimate, or more."""
    random, n, deviation = np.random.default_rng(0), 7_500, 60.0
    wide = np.linspace(-1.0, 1.0, shape[0])[:, None] * np.linspace(-1.0, 1.0, shape[1])
    truth = np.exp(strength * wide) / np.exp(strength * wide).sum()
    rows, columns = truth.sum(axis=1), truth.sum(axis=0)
    counts = random.multinomial(n, truth.ravel()).reshape(shape) + deviation * random.standard_normal(shape)
    tables = NoisyTables(
        {0: n * rows[None], 1: n * columns[None]}, {(0, 1): counts[None]}, deviation, deviation, float(n),
        ordered=(shape[0], 0),
    )  # fmt: skip
    pair = NoisyPair.of(tables, 0, 1, [rows, columns])
    assert pair.trend < 1e-6
    alone, plain = (replace(pair, by=by).estimate(np.random.default_rng(0)).shares for by in (None, pair.by))

    def off(shares):
        return np.abs(shares - truth).sum() / 2

    assert off(plain) < 0.5 * off(np.outer(rows, columns)) and off(plain) < off(alone)
    assert (0, 1) in estimate_pairs(tables, [rows, columns], 0)


@pytest.mark.parametrize("shape", [pytest.param((60, 41), marks=pytest.mark.slow), (23, 17)], ids=str)
def test_a_correlation_of_numbers_is_found_and_estimated_where_each_cell_is_noise(shape):
    """Rank correlation .57 of 20,000 records: independent groups are off by twice as much as the estimate, or more."""
    random, deviation = np.random.default_rng(2), 25.0
    exact = _smooth_pair(random, shape)
    truth = exact / exact.sum()
    rows, columns = truth.sum(axis=1), truth.sum(axis=0)
    noisy = exact + deviation * random.standard_normal(shape)
    by = (contrasts(rows, shape[0]), contrasts(columns, shape[1]))
    pair = NoisyPair(noisy, deviation, rows, columns, 20_000.0, by)
    assert pair.trend < 1e-15 and (pair.evidence < _CERTAIN) == (shape == (60, 41))

    smooth = _smooth_pair(np.random.default_rng(3), shape, 2_000_000) / 2e6

    def off(shares):
        return np.abs(shares - smooth).sum() / 2

    alone, plain = (replace(pair, by=own).estimate(np.random.default_rng(0)).shares for own in (None, by))
    assert off(plain) < 0.5 * off(alone) and off(plain) < 0.5 * off(np.outer(rows, columns))
    singles = {0: 20_000 * rows[None], 1: 20_000 * columns[None]}
    tables = NoisyTables(singles, {(0, 1): noisy[None]}, 5.0, deviation, 20_000.0, ordered=shape)
    assert (0, 1) in estimate_pairs(tables, [rows, columns], 0)


def test_bins_of_numbers_are_in_an_order_and_no_other_choices_are():
    number = {"type": "integer", "low": 0, "high": 99, "bins": 8, "special": [-1, 999], "missing": True}
    columns = (column_of("n", number), column_of("c", {"type": "category", "values": ["a", "b"]}))
    assert TableSchema(columns).layout.ordered == (8, 0) and TableSchema(columns).layout.groups == (11, 2)
    assert TableSchema(columns[1:]).layout.ordered == ()


def test_a_narrow_band_is_estimated_by_contrasts_and_directions():
    """Two numbers that are nearly the same, as delays of a flight: polynomials alone are too smooth for it."""
    shape, n, deviation = (40, 50), 200_000, 60.0
    ranks = [(np.arange(bins) + 0.5) / bins for bins in shape]
    truth = np.exp(-200.0 * np.square(ranks[0][:, None] - ranks[1])) + 0.05
    truth /= truth.sum()
    rows, columns = truth.sum(axis=1), truth.sum(axis=0)
    counts = n * truth + deviation * np.random.default_rng(0).standard_normal(shape)
    by = (contrasts(rows, shape[0]), contrasts(columns, shape[1]))
    pair = NoisyPair(counts, deviation, rows, columns, float(n), by)

    def off(shares):
        return np.abs(shares - truth).sum() / 2

    both = off(pair.estimate(np.random.default_rng(0)).shares)
    assert both == pytest.approx(off(_by_contrasts_and_directions(pair)), rel=1e-6)
    assert both < 0.9 * min(off(_by_contrasts(pair)), off(_of_few_directions(pair)))


@pytest.mark.parametrize(("rough", "expected"), [(0.0, 3.0), (1.0, 1.0)])
def test_an_estimate_of_contrasts_weighs_more_only_where_it_is_near(rough, expected):
    """At most three times as much as counts, and as much as they where contrasts cannot say what the table is."""
    shape, n, deviation = (40, 40), 200_000, 20.0
    ranks = (np.arange(40) + 0.5) / 20.0 - 1.0
    truth = 1.0 + 0.5 * np.outer(ranks, ranks) + 0.4 * rough * np.random.default_rng(1).choice([-1.0, 1.0], shape)
    truth /= truth.sum()
    rows, columns = truth.sum(axis=1), truth.sum(axis=0)
    counts = n * truth + deviation * np.random.default_rng(0).standard_normal(shape)
    pair = NoisyPair(counts, deviation, rows, columns, float(n), (contrasts(rows, 40), contrasts(columns, 40)))
    assert pair.estimate(np.random.default_rng(0)).precision == expected
