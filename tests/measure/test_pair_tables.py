"""Pairs of columns that noise hides: what is said beforehand is what noisy tables show."""

import numpy as np
import pytest

from lightning_dpgen.data.tables.columns import column_of
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.measure.pair_tables import (
    _CERTAIN,
    _PLAIN,
    NoisyTables,
    estimate_pair,
    estimate_pairs,
    evidence,
    polynomials,
    records_to_show,
    trend,
)


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
        return np.mean([evidence(noisy, deviation, rows, columns, total) > _CERTAIN for noisy in drawn])

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


@pytest.mark.parametrize(("ordered", "others"), [(3, 0), (7, 0), (20, 3)])
def test_polynomials_of_ranks_are_orthonormal_by_the_shares_and_none_of_other_choices(ordered, others):
    shares = np.random.default_rng(ordered).dirichlet(np.ones(ordered + others))
    found = polynomials(shares, ordered)
    np.testing.assert_allclose((found * shares[:, None]).T @ found, np.eye(found.shape[1]), atol=1e-6)
    np.testing.assert_allclose(shares @ found, 0.0, atol=1e-6)
    assert found.shape == (ordered + others, min(5, ordered - 1)) and not found[ordered:].any()
    assert (np.diff(found[:ordered, 0]) > 0.0).all()


@pytest.mark.parametrize("shape", [(4, 5), (12, 30)], ids=str)
@pytest.mark.parametrize("deviation", [0.0, 40.0])
def test_trends_of_independent_numbers_are_as_rare_as_chance(shape, deviation):
    """2,500 draws of noise and chance: a trend beyond 4.2 deviations is one in 9,400, so two have a chance of 3 %."""
    random = np.random.default_rng(1)
    rows, columns = (random.dirichlet(np.full(bins, 3.0)) for bins in shape)
    ranked = tuple(polynomials(own, len(own)) for own in (rows, columns))
    expected = 5_000 * np.outer(rows, columns)
    found = []
    for _ in range(2_500):
        counts = random.poisson(expected) + deviation * random.standard_normal(shape)
        found.append(trend(counts, deviation, rows, columns, 5_000.0, ranked))
    assert np.count_nonzero(np.array(found) > _PLAIN) <= 1 and np.mean(found) == pytest.approx(1.54, abs=0.1)


@pytest.mark.parametrize("shape", [(60, 41), (23, 17)], ids=str)
def test_a_correlation_of_numbers_is_found_and_estimated_where_each_cell_is_noise(shape):
    """Rank correlation .57 of 20,000 records: independent groups are off by twice as much as the estimate, or more."""
    random, deviation = np.random.default_rng(2), 25.0
    exact = _smooth_pair(random, shape)
    truth = exact / exact.sum()
    rows, columns = truth.sum(axis=1), truth.sum(axis=0)
    noisy = exact + deviation * random.standard_normal(shape)
    about, ranked = (
        (noisy, deviation, rows, columns, 20_000.0),
        (polynomials(rows, shape[0]), polynomials(columns, shape[1])),
    )
    assert trend(*about, ranked) > 2 * _PLAIN and (evidence(*about) < _CERTAIN) == (shape == (60, 41))

    def off(shares):
        return np.abs(shares - _smooth_pair(np.random.default_rng(3), shape, 2_000_000) / 2e6).sum() / 2

    alone, plain = (estimate_pair(*about, np.random.default_rng(0), own).shares for own in (None, ranked))
    assert off(plain) < 0.5 * off(alone) and off(plain) < 0.5 * off(np.outer(rows, columns))
    singles = {0: 20_000 * rows[None], 1: 20_000 * columns[None]}
    tables = NoisyTables(singles, {(0, 1): noisy[None]}, 5.0, deviation, 20_000.0, ordered=shape)
    assert (0, 1) in estimate_pairs(tables, [rows, columns], 0)


def test_bins_of_numbers_are_in_an_order_and_no_other_choices_are():
    number = {"type": "integer", "low": 0, "high": 99, "bins": 8, "special": [-1, 999], "missing": True}
    columns = (column_of("n", number), column_of("c", {"type": "category", "values": ["a", "b"]}))
    assert TableSchema(columns).layout.ordered == (8, 0) and TableSchema(columns).layout.groups == (11, 2)
    assert TableSchema(columns[1:]).layout.ordered == ()
