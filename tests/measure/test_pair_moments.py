"""Moments of contrasts: what one record moves, and correlations that tables of the same noise do not show."""

import numpy as np
import pytest
import torch

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.measure.pair_estimates import NoisyPair, estimate_pairs
from lightning_dpgen.measure.pair_moments import GroupContrasts, contrast_moments, noisy_moments
from lightning_dpgen.measure.pair_tables import NoisyTables
from lightning_dpgen.measure.workload import Measured

N, SIZES = 4000, (12, 12, 3, 9)
LAYOUT = Layout(0, groups=SIZES, ordered=(12, 12, 0, 0))


def _records(seed=0):
    """Make records of two columns whose ranks go together, one that follows from the first, and one of many choices."""
    random = np.random.default_rng(seed)
    a, b = random.multivariate_normal([0, 0], [[1, 0.4], [0.4, 1]], N).T
    c = np.where(random.random(N) < 0.3, (a > 0).astype(int), random.integers(0, 3, N))
    codes = [np.clip(12 * (own.argsort().argsort()) // N, 0, 11) for own in (a, b)]
    return Encoded(np.zeros((N, 0), np.float32), np.stack([*codes, c, random.integers(0, 9, N)], axis=1))


def _shares(records):
    return [np.bincount(column, minlength=size) / len(column) for column, size in zip(records.codes.T, SIZES, strict=True)]


def test_one_record_moves_moments_by_their_bound_at_most():
    """Also a record of rare choices, which the contrasts of other records do not make large."""
    records = _records()
    shares = _shares(records)
    shares[2] = np.array([0.6, 0.399, 0.001])
    moments = contrast_moments(LAYOUT, shares)
    every = np.stack(np.meshgrid(*map(range, SIZES), indexing="ij"), axis=-1).reshape(-1, len(SIZES))
    moved = [
        float((moments.sums(Encoded(np.zeros((1, 0)), row[None]), None).double() * moments.unit).norm())
        for row in every[::7]
    ]
    assert 0.9 * moments.bound < max(moved) <= moments.bound
    # The last group has many choices and no order; of the third one the rare choice counts for nothing by itself.
    basis = GroupContrasts(LAYOUT, shares)
    assert [table.shape[1] for table in basis.tables] == [2, 2, 2, 0] and basis.varying == 5


def _noisy(records, deviation, moments, seed=0):
    """Return tables of all pairs with noise, and the moments beside them."""
    random, tables = np.random.default_rng(seed), {}
    for a in range(len(SIZES)):
        for b in range(a + 1, len(SIZES)):
            counts = np.zeros((SIZES[a], SIZES[b]))
            np.add.at(counts, (records.codes[:, a], records.codes[:, b]), 1.0)
            tables[a, b] = counts[None] + deviation * random.standard_normal(counts.shape)
    singles = {g: share[None] * N for g, share in enumerate(_shares(records))}
    noisy = NoisyTables(singles, tables, 1.0, deviation, float(N), ordered=LAYOUT.ordered)
    if moments is None:
        return noisy
    statistic = contrast_moments(LAYOUT, _shares(records))
    sums = statistic.sums(records, None).double() * statistic.unit
    sums += moments * torch.from_numpy(random.standard_normal(sums.shape))
    measured = noisy_moments(LAYOUT, _shares(records), Measured(sums, moments), float(N))
    return NoisyTables(singles, tables, 1.0, deviation, float(N), ordered=LAYOUT.ordered, moments=measured)


def test_moments_are_those_of_records_that_were_not_shortened():
    records = _records()
    moments = _noisy(records, 0.0, 0.0).moments
    values = GroupContrasts(LAYOUT, _shares(records)).coordinates(records).numpy()
    expected = values.T @ values
    off = ~np.eye(len(expected), dtype=bool)
    assert np.abs(moments.sums - expected)[off].max() < 0.04 * N < 0.3 * N < expected[0, 2]
    assert moments.of(0, 1).shape == (2, 2) and moments.deviation >= 0.03 * N


@pytest.mark.parametrize("seed", range(3))
def test_moments_show_what_tables_hide(seed):
    """With noise of 100 in each cell tables tell nothing of ranks that correlate by .4; moments of noise 150 do."""
    records = _records(seed)
    shares = _shares(records)
    without, given = (_noisy(records, 100.0, own, seed) for own in (None, 150.0))
    assert (0, 1) not in estimate_pairs(without, shares, 0)
    found = estimate_pairs(given, shares, 0)
    assert (0, 1) in found and not set(found) & {(0, 3), (1, 3), (2, 3)}
    ranks = np.linspace(-1, 1, 12)
    table = found[0, 1].shares
    correlation = (ranks @ table @ ranks) / (ranks**2).mean()
    assert abs(correlation - 0.38) < 0.14


def test_coefficients_are_weighed_by_what_is_known():
    records = _records()
    given = _noisy(records, 100.0, 150.0)
    pair = NoisyPair.of(given, 0, 1, _shares(records))
    alone = NoisyPair.of(_noisy(records, 100.0, None), 0, 1, _shares(records))
    moved, variances = pair.coefficients
    assert (variances[:2, :2] < 0.1 * alone.coefficients[1][:2, :2]).all()
    np.testing.assert_allclose(moved[2:, 2:], alone.coefficients[0][2:, 2:])
    assert abs(moved[0, 0] / N - 0.38) < 0.12 and pair.trend < 1e-6 < alone.trend
