"""Mean records of clusters: clipped sums, and the best estimates from noisy ones."""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from lightning_dpgen.sampling.fixed_point import Grid, lengths
from lightning_dpgen.sampling.stores import Store

# Numbers of records that are taken together.
_AT_ONCE = 1 << 18
# Bits of a number within the radius.
_BITS = 23
# Totals vary over clusters by about this share of themselves; a column varies by at most so many times its own spread.
_OF_TOTAL, _MOST_BETWEEN = 0.5, 1.0


def clipped_sums(store: Store, radius: float, clusters: Tensor, k: int) -> tuple[Tensor, float]:
    """Sum the records of each cluster, each shortened to the radius: (k, m) multiples of a unit, int64, and the unit.

    A record becomes a row of whole numbers first (those of its store, or of `Grid.of_squares`). Where it is shortened, its
    numbers are cut towards 0 to multiples of a finer unit: its summand is no longer than the radius, and depends on nothing
    but the record. The unit is public; it is 1/255 over a power of two for bytes.
    """
    width = store.stretch(slice(0, 0)).shape[1]
    sums = torch.zeros(k, width, dtype=torch.float64)
    grid = Grid.of(store, Grid.of_squares(width, max(radius, 1.0)))
    # It is a little below the radius: where the unit is no power of two, the quotient with it is rounded by a last bit, and
    # a record must still add no more than the radius.
    longest = radius * (1.0 - 2.0**-20) / grid.unit
    # With this power of two, sums of 2^29 numbers up to the radius are exact.
    finer = 2.0 ** (_BITS - math.ceil(math.log2(longest)))
    step = max(1, _AT_ONCE // width)
    for start in range(0, len(store), step):
        rows = slice(start, min(start + step, len(store)))
        whole, own = grid(store.stretch(rows)), clusters[rows]
        norms = lengths(whole)
        long = (norms > longest).nonzero()[:, 0]
        factors = longest / norms[long]
        if isinstance(whole, Tensor):
            whole[long] = (whole[long] * (finer * factors)[:, None]).trunc_() / finer
            sums.index_add_(0, own, whole)
        else:
            of_rows = np.ones(len(own))
            of_rows[long.numpy()] = factors.numpy()
            data = np.trunc(whole.data * (finer * np.repeat(of_rows, np.diff(whole.indptr)))) / finer
            short = scipy.sparse.csr_array((data, whole.indices, whole.indptr), shape=whole.shape)
            ones = np.ones(len(own))
            belongs = scipy.sparse.csr_array((ones, own.numpy(), np.arange(len(own) + 1)), shape=(len(own), k))
            sums += torch.from_numpy((belongs.T @ short).toarray())
    # Records that are short enough are multiples of the grid's own unit.
    parts = max(finer, 1.0)
    return (sums * parts).to(torch.int64), grid.unit / parts


def shrunk_means(sums: Tensor, counts: Tensor, deviation: float) -> Tensor:
    """Draw noisy means to the mean of all where the noise is large: post-processing of released numbers.

    A cluster is expected to have the mean p of all records, scaled to the total of its own records. Columns vary about that
    over clusters in proportion to ``sqrt(p (1 - p))``. The factor is found from the variance of the noisy means beyond that
    of their noise, whose standard deviation is ``deviation / count``. The weight of a cluster's own mean is the share of
    the first variance in both (the linear Bayes estimate).
    """
    own, noise = sums / counts[:, None], deviation / counts[:, None]
    overall = sums.sum(dim=0) / counts.sum()
    total = overall.sum().clamp(min=1e-6)
    overall = _non_negative(overall[None], total[None])[0].clamp(max=1.0)
    # A total has more noise than a column, by the root of the width, and varies by about a half.
    believed = 1.0 / (1.0 + (noise[:, 0] / (_OF_TOTAL * total)).square() * sums.shape[1])
    totals = (believed * own.sum(dim=1) + (1.0 - believed) * total).clamp(min=0.0)
    expected = overall * (totals / total)[:, None]
    spread = overall * (1.0 - overall)
    beyond = ((own - expected).square() - noise.square()) * believed[:, None]
    factor = beyond.sum() / (believed.sum() * spread.sum()).clamp(min=1e-9)
    between = factor.clamp(0.0, _MOST_BETWEEN**2) * spread
    weight = between / (between + noise.square()).clamp(min=1e-12)
    return _non_negative(weight * own + (1.0 - weight) * expected, totals).clamp(max=1.0)


def _non_negative(rows: Tensor, totals: Tensor) -> Tensor:
    """Return the nearest rows without negative numbers that add up to these totals: each number less the same, or 0."""
    descending = rows.sort(dim=1, descending=True).values
    excess = (descending.cumsum(dim=1) - totals[:, None]) / torch.arange(1, rows.shape[1] + 1, device=rows.device)
    kept = (descending > excess).sum(dim=1, keepdim=True).clamp(min=1)
    return (rows - excess.gather(1, kept - 1)).clamp(min=0.0)
