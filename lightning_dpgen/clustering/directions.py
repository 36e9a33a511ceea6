"""The few directions in which features vary most, found from their noisy second moments."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from lightning_dpgen.clustering.features import COARSER, LARGEST, FeatureBlock, Features, KeptFeatures
from lightning_dpgen.sampling.fixed_point import DOUBLE, Rows, product
from lightning_dpgen.sampling.stores import Store

# Features are cut to 8 bits: a float32 sum of 2^8 products of two of them is exact.
_ROWS = 2**8


def feature_moments(kept: KeptFeatures | FeatureBlock) -> dict[str, Tensor]:
    """Sum z and z z^T over the features z of all records, as ``sum`` (d,) and ``moments`` (d, d), int64.

    They are multiples of ``kept.unit`` and of `KeptFeatures.unit_of_moments`. For the moments, features are first cut to
    8 bits, towards 0, so that a record's part does not grow by it.
    """
    total = torch.zeros(kept.d, dtype=torch.float64)
    moments = torch.zeros(kept.d, kept.d, dtype=torch.float64)
    for _, block in kept:
        total += block.sum(dim=0)
        for rows in (block / COARSER).trunc_().split(_ROWS):
            moments += rows.T @ rows
    return {"sum": total.to(torch.int64), "moments": moments.to(torch.int64)}


def leading(mean: Tensor, moments: Tensor, dimensions: int) -> Tensor:
    """Return the mean, and below it orthonormal directions of the largest variance, (1 + dimensions, d) in float32.

    This is post-processing of noisy numbers: the noise of the second moments need not be symmetric.
    """
    variance = 0.5 * (moments + moments.T) - torch.outer(mean, mean)
    directions = torch.linalg.eigh(variance).eigenvectors[:, -dimensions:]
    return torch.cat([mean[None], directions.T.flip(0)]).float()


class Directions(Features):
    """The direction of a record as seen from the mean: ``y / |y|`` with ``y = V (z - mean)``, of norm 1 again.

    The part that is common to all records is gone, and so is the scale that a small gamma leaves to the kernel.

    Args:
        source: the features z of the records that `multiples` is asked for.
        directions: (1 + r, d) the mean and V, as `leading` returns them. Public.
    """

    def __init__(self, source: KeptFeatures, directions: Tensor) -> None:
        self.d, self.unit = len(directions) - 1, 1.0 / LARGEST
        self._source = source
        mean, rows = directions[0].double() / source.unit, directions[1:].double()
        # The lengths of rows make no difference, so they become the largest whole numbers whose products are exact.
        bits = min(24, DOUBLE - 15 - math.ceil(math.log2(max(source.d, 2))))
        self._rows = (rows * (2.0**bits / rows.abs().max().clamp(min=1e-300))).round_()
        self._mean = (self._rows @ mean).round_()
        # Before squares are added up, numbers are cut to so few bits that the sum is exact.
        longest = float((self._rows.norm(dim=1) / source.unit + self._mean.abs()).max())
        self._cut = 2.0 ** ((DOUBLE - 2 - math.ceil(math.log2(max(self.d, 2)))) // 2) / max(longest, 1.0)

    def multiples(self, store: Store, within: slice | None = None) -> Iterator[tuple[slice, Tensor]]:
        for rows, block in self._source if within is None else self._source.within(within):
            yield rows, self._of(block)

    def _multiples(self, records: Rows, store: Store) -> Tensor:
        return self._of(self._source.features._multiples(records, store))

    def _of(self, block: Tensor) -> Tensor:
        seen = ((product(block.double(), self._rows.T) - self._mean) * self._cut).trunc_()
        norms = seen.square().sum(dim=1, keepdim=True).sqrt_().clamp_(min=1.0)
        return (seen * (LARGEST / norms)).trunc_().float()
