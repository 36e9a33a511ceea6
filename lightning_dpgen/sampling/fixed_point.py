"""Records as whole numbers, whose products, lengths and decisions are exact: functions of one record and of no other.

A product of matrices in floating point rounds a row in ways that depend on the number of rows. One more record could then
move all others by a last bit, and so change the place of every record near the border of two clusters, or of two answers.
Whole numbers below 2^53 are added up exactly in float64, by any routine, in any order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from lightning_dpgen.common.precision import full_precision
from lightning_dpgen.sampling.csr import merge_entries
from lightning_dpgen.sampling.stores import Store

# Whole numbers that float64 (and float32) hold without a gap.
DOUBLE, SINGLE = 53, 24

Rows = Tensor | scipy.sparse.csr_array


@dataclass(frozen=True)
class Grid:
    """Multiples of a unit.

    Args:
        unit: a power of two, so that dividing by it loses nothing, where rows are not given as multiples.
        bits: the largest multiple is 2^bits, below 2^24: a larger number counts as that, and NaN counts as 0.
        given: whether rows are these multiples already.

    Example:
        >>> Grid(2.0**-3, bits=4)(torch.tensor([[0.5, -0.3, 7.0]]))
        tensor([[ 4., -2., 16.]], dtype=torch.float64)
    """

    unit: float
    bits: int
    given: bool = False

    @classmethod
    def of(cls, store: Store, otherwise: Grid) -> Grid:
        """Return the grid of the multiples that a store gives, or `otherwise` for a store that gives other numbers."""
        return otherwise if store.steps is None else cls(store.steps.unit, store.steps.bits, given=True)

    @classmethod
    def of_squares(cls, width: int, largest: float) -> Grid:
        """Return the finest grid whose sums of `width` squares are exact, with room for eight times the largest number."""
        bits = min(SINGLE - 1, (DOUBLE - 1 - math.ceil(math.log2(max(width, 2)))) // 2)
        return cls(2.0 ** (math.ceil(math.log2(largest)) + 3 - bits), bits)

    def __call__(self, rows: Rows, dtype: torch.dtype = torch.float64) -> Rows:
        """Return rows (B, m) as whole numbers, dense or sparse as before; entries of one place are added up first."""
        if self.given:
            # Bytes may be larger than their store has said.
            return rows.clamp(max=min(2**self.bits, 2**8 - 1)).to(dtype)
        if isinstance(rows, Tensor):
            return self._multiples(rows).to(dtype)
        rows = merge_entries(rows)
        data = self._multiples(torch.from_numpy(rows.data)).double().numpy()
        return scipy.sparse.csr_array((data, rows.indices, rows.indptr), shape=rows.shape)

    def _multiples(self, values: Tensor) -> Tensor:
        most = 2.0**self.bits
        return (values.to(torch.float32) * (1.0 / self.unit)).clamp_(-most, most).round_().nan_to_num_(nan=0.0)


@full_precision(torch.device("cpu"))
def product(whole: Rows, matrix: Tensor) -> Tensor:
    """Multiply whole rows by a whole matrix (m, d) of one type, to (B, d): exact below 2^53, or 2^24 in float32."""
    return whole @ matrix if isinstance(whole, Tensor) else torch.from_numpy(whole @ matrix.numpy())


def whole_product(short: Tensor, long: Tensor) -> Tensor:
    """Multiply whole matrices (m, d) and (d, L), int64, as int64 does, some twenty times as fast.

    The second is cut into digits, so that products of float64 are exact. Sums beyond 2^63 wrap around, as int64 does.

    Args:
        short: entries below 2^30.

    Example:
        >>> a, b = torch.tensor([[3, -(2**29)]]), torch.tensor([[2**61], [-1]])
        >>> bool(whole_product(a, b) == a @ b)
        True
    """
    longest = int(short.abs().max()).bit_length() if short.numel() else 0
    # Digits are from -half to half.
    bits = DOUBLE - longest - max(short.shape[1] - 1, 1).bit_length()
    half, total, shift = 1 << (bits - 1), torch.zeros(len(short), long.shape[1], dtype=torch.int64), 0
    floats = short.double()
    while long.any():
        digits = ((long + half) & (2 * half - 1)) - half
        total += product(floats, digits.double()).to(torch.int64) << shift
        long, shift = (long - digits) >> bits, shift + bits
    return total


def lengths(whole: Rows) -> Tensor:
    """Return L2 norms (B,), in float64, of whole rows whose sums of squares are exact, so that only roots are rounded."""
    if isinstance(whole, Tensor):
        return torch.linalg.vector_norm(whole, dim=1)
    return torch.from_numpy(np.sqrt(whole.power(2) @ np.ones(whole.shape[1])))


# Bits of the bound of rows that are rounded to a grid of their own.
ROW_BITS = 28
# A row that is so many times as long as its bound counts as one that is not finite.
_FARTHEST = 1e290


def unit_of(bound: float, bits: int = ROW_BITS) -> float:
    """Return the power of two of which a bound is at least ``2^bits`` and at most ``2^(bits + 1)`` multiples.

    Example:
        >>> unit_of(3.0, bits=4)
        0.125
    """
    return 2.0 ** (math.frexp(bound)[1] - 1 - bits)


def whole_rows(rows: Tensor, bound: float, unit: float) -> Tensor:
    """Round rows (B, d) to multiples of a unit, int64, of L2 norm ``bound / unit`` at most.

    A row is shortened to the bound, less what rounding may add, then rounded to nearest. At last its norm is computed in
    whole numbers, and a row that is too long nevertheless becomes 0, as does one that is not finite. So the bound is a
    statement about whole numbers, whatever was computed before. Each row is an exact function of what it was, since sums
    of floats, which may be rounded by how many rows there are, decide nothing.

    Args:
        rows: float64, each an exact function of its record alone.
        bound: at most 2^30 units, and at least as many as the root of d.
        unit: above 0.

    Example:
        >>> whole_rows(torch.tensor([[3.0, 4.0], [0.3, 0.0]], dtype=torch.float64), bound=2.5, unit=2.0**-3)
        tensor([[11, 15],
                [ 2,  0]])
    """
    return round_rows(rows, bound, unit).to(torch.int64)


def round_rows(rows: Tensor, bound: float, unit: float) -> Tensor:
    """Return the same whole numbers in float64, in which fewer than 2^53 add up exactly and products are fast."""
    largest, width = math.floor(bound / unit), max(rows.shape[1], 2)
    # Squares of so many bits add up exactly.
    bits = (DOUBLE - 1 - math.ceil(math.log2(width))) // 2
    # Lengths are computed of rows that were halved to no less than half of the bound, so their error counts twice.
    longest = 1.0 - 1.0 / largest - 0.51 * math.sqrt(width) * (1.0 / largest + 2.0 * 2.0**-bits)
    # Sums of floats only tell which rows are looked at again: either way leads to the same numbers.
    error = (width + 4) * 2.0**-52
    factors = rows.new_full((len(rows), 1), 1.0 / unit)
    long = ~(torch.linalg.vector_norm(rows, dim=1) <= bound * (longest - math.sqrt(width) * 2.0**-bits - error))
    if long.any():
        factors[long] = _shortening(rows[long], bound, unit, bits, longest)
    whole = (rows * factors).round_()
    norms = torch.linalg.vector_norm(whole, dim=1)
    doubtful = ~(norms <= largest * (1.0 - error))
    if doubtful.any():
        # Squares of a row twice too long could leave int64.
        near = whole[doubtful].where((norms[doubtful] <= 2.0 * largest)[:, None], 0.0).to(torch.int64)
        whole[doubtful] = near.where(near.square().sum(dim=1, keepdim=True) <= largest**2, 0).double()
    return whole


def _shortening(rows: Tensor, bound: float, unit: float, bits: int, longest: float) -> Tensor:
    """Return what each row (B, 1) is multiplied by, which brings it to a part `longest` of a bound, in units.

    Args:
        bits: lengths are computed in whole numbers of so many.
    """
    farthest = rows.abs().amax(dim=1, keepdim=True) * (1.0 / bound)
    # Rows beyond the bound in one number are divided by a power of two, which rounds nothing.
    halvings = torch.frexp(farthest)[1].clamp_(min=0)
    scale = torch.from_numpy(np.ldexp(1.0 / bound, -halvings.numpy()))
    norms = lengths((rows * (scale * 2.0**bits)).round_())[:, None] * 2.0**-bits
    factors = longest / norms.clamp(min=2.0**-bits)
    scales = torch.where((halvings > 0) | (factors < 1.0), factors * scale * (bound / unit), 1.0 / unit)
    return scales.where(farthest < _FARTHEST, 0.0)


class Highest:
    """The place of the largest of k public scores ``z.w + b`` of a record, the first of several: an exact function of it.

    Args:
        weights: (k, d) w, in units of the whole rows z, which have at most 13 bits. They are rounded to multiples of a
            unit, which is 2^-24 of the largest, or as fine as exact sums of d products allow.
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
        """Find the places (B,) of rows (B, d) in whole numbers."""
        rows = whole.double() if isinstance(whole, Tensor) else whole
        return (product(rows, self._exact.T) + self._offsets).T.max(dim=0).indices


class Nearest(Highest):
    """The place of the centre c with the largest ``z.c - |c|^2 / 2``, the first of several.

    It is searched in float32, and again in whole numbers where rounding could hide another centre.

    Args:
        centres: (k, d) in units of the whole rows z, which have at most 13 bits; k is 2 or more.
        longest: an upper bound of the norms of rows.

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
        # Twice the error of d roundings in a sum of products of these sizes, and of the number that the sum starts from.
        self._error = 2.0 * (centres.shape[1] + 4) * 2.0**-SINGLE * unit * float(longest * lengths.max() + half.max())

    def __call__(self, whole: Tensor) -> Tensor:
        """Find the places (B,) of float32 rows (B, d)."""
        places, doubtful = self.likely(whole)
        places[doubtful] = self.exact(whole[doubtful])
        return places

    @full_precision(torch.device("cpu"))
    def likely(self, whole: Tensor) -> tuple[Tensor, Tensor]:
        """Find places (B,) in float32, and the rows whose place has to be found in whole numbers."""
        scores = torch.addmm(self._rough_half, self._rough, whole.T)
        # Finding the largest and its place together is ten times as fast as finding the place alone.
        best, places = scores.max(dim=0)
        second = scores.scatter_(0, places[None], -torch.inf).amax(dim=0)
        return places, (best - second <= self._error).nonzero()[:, 0]
