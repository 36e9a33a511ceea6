"""Records as whole numbers, of which products, lengths and decisions are exact: functions of one record and of no other.

A product of matrices in floating point rounds a row in ways that depend on how many rows there are. One more record could
then move all others by a last bit, and with it every record that lies near the border of two clusters, or of two answers.
Whole numbers below 2^53 are added up exactly in float64, by whatever routine, in whatever order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from lightning_dpgen.privacy.precision import full_precision
from lightning_dpgen.sampling.stores import Store

# Whole numbers that float64 (and float32) hold without a gap.
DOUBLE, SINGLE = 53, 24

Rows = Tensor | scipy.sparse.csr_array


@dataclass(frozen=True)
class Grid:
    """Multiples of a unit.

    Args:
        unit: a power of two, so that dividing by it loses nothing, where rows are not given as multiples.
        bits: the largest multiple is 2^bits, below 2^24: what is larger counts as that, and what is no number as 0.
        given: rows are these multiples already.

    Example:
        >>> Grid(2.0**-3, bits=4)(torch.tensor([[0.5, -0.3, 7.0]]))
        tensor([[ 4., -2., 16.]], dtype=torch.float64)
    """

    unit: float
    bits: int
    given: bool = False

    @classmethod
    def of(cls, store: Store, otherwise: Grid) -> Grid:
        """That of the multiples that a store gives; of one that gives other numbers, this one."""
        return otherwise if store.steps is None else cls(store.steps.unit, store.steps.bits, given=True)

    @classmethod
    def of_squares(cls, width: int, largest: float) -> Grid:
        """So fine that sums of `width` squares are exact, and that eight times a number of this size has its place."""
        bits = min(SINGLE - 1, (DOUBLE - 1 - math.ceil(math.log2(max(width, 2)))) // 2)
        return cls(2.0 ** (math.ceil(math.log2(largest)) + 3 - bits), bits)

    def __call__(self, rows: Rows, dtype: torch.dtype = torch.float64) -> Rows:
        """(B, m) whole numbers, of the same kind as the rows; entries of one place are added up first."""
        if self.given:
            return rows.to(dtype)
        if isinstance(rows, Tensor):
            return self._multiples(rows).to(dtype)
        if not rows.has_canonical_format:
            rows = rows.copy()
            rows.sum_duplicates()
        data = self._multiples(torch.from_numpy(rows.data)).double().numpy()
        return scipy.sparse.csr_array((data, rows.indices, rows.indptr), shape=rows.shape)

    def _multiples(self, values: Tensor) -> Tensor:
        most = 2.0**self.bits
        return (values.to(torch.float32) * (1.0 / self.unit)).clamp_(-most, most).round_().nan_to_num_(nan=0.0)


@full_precision(torch.device("cpu"))
def product(whole: Rows, matrix: Tensor) -> Tensor:
    """(B, d) of whole rows and a (m, d) whole matrix of one type, exact where no sum reaches the 2^53 or 2^24 of it."""
    return whole @ matrix if isinstance(whole, Tensor) else torch.from_numpy(whole @ matrix.numpy())


def lengths(whole: Rows) -> Tensor:
    """(B,) L2 norms, in float64, of whole rows whose sums of squares are exact; so all that is rounded is a root."""
    if isinstance(whole, Tensor):
        return torch.linalg.vector_norm(whole, dim=1)
    return torch.from_numpy(np.sqrt(whole.power(2) @ np.ones(whole.shape[1])))


class Highest:
    """The place of the largest of k public scores ``z.w + b`` of a record, the first of several: an exact function of it.

    Args:
        weights: (k, d) w, in units of the whole rows z, which have at most 13 bits. They are rounded to multiples of a
            unit, 2^-24 of the largest, or what exact sums of d products allow.
        offsets: (k,) b, in the same units.

    Example:
        >>> search = Highest(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0.0, 2.0]))
        >>> search.exact(torch.tensor([[3.0, 0.0], [2.0, 1.0], [2.0, 0.0]]))
        tensor([0, 1, 0])
    """

    def __init__(self, weights: Tensor, offsets: Tensor) -> None:
        weights = weights.double()
        bits = min(SINGLE, DOUBLE - 15 - math.ceil(math.log2(max(weights.shape[1], 2))))
        self._unit = float(weights.abs().max().clamp(min=1e-300)) / 2.0**bits
        self._exact = (weights / self._unit).round_()
        self._offsets = offsets.double() / self._unit

    def exact(self, whole: Rows) -> Tensor:
        """(B,) places of (B, d) rows, found in whole numbers."""
        rows = whole.double() if isinstance(whole, Tensor) else whole
        return (product(rows, self._exact.T) + self._offsets).T.max(dim=0).indices


class Nearest(Highest):
    """The place of the centre c with the largest ``z.c - |c|^2 / 2``, the first of several.

    It is looked for in float32, where no rounding could hide another one, and again in whole numbers where it could.

    Args:
        centres: (k, d) in units of the whole rows z, which have at most 13 bits; k is 2 or more.
        longest: what no norm of a row is above.

    Example:
        >>> search = Nearest(torch.tensor([[4.0, 0.0], [0.0, 4.0]]), longest=5.0)
        >>> search(torch.tensor([[3.0, 1.0], [1.0, 3.0], [2.0, 2.0]]))
        tensor([0, 1, 0])
    """

    def __init__(self, centres: Tensor, longest: float) -> None:
        super().__init__(centres, torch.zeros(len(centres)))
        unit, lengths = self._unit, self._exact.norm(dim=1)
        half = (0.5 * unit) * lengths.square()
        self._offsets = -half
        self._rough, self._rough_half = (self._exact * unit).float(), (-unit * half).float()[:, None]
        # Twice what d roundings in a sum of products of these sizes amount to, and those of what it starts from.
        self._error = 2.0 * (centres.shape[1] + 4) * 2.0**-SINGLE * unit * float(longest * lengths.max() + half.max())

    def __call__(self, whole: Tensor) -> Tensor:
        """(B,) places, for (B, d) float32 rows."""
        found, doubtful = self.likely(whole)
        found[doubtful] = self.exact(whole[doubtful])
        return found

    @full_precision(torch.device("cpu"))
    def likely(self, whole: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) places in float32, and those of the B rows whose place has to be found in whole numbers."""
        scores = torch.addmm(self._rough_half, self._rough, whole.T)
        # The largest and its place together are found ten times as fast as the place alone.
        best, found = scores.max(dim=0)
        second = scores.scatter_(0, found[None], -torch.inf).amax(dim=0)
        return found, (best - second <= self._error).nonzero()[:, 0]
