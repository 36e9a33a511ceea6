"""Projected rows as whole numbers of steps of a public grid, each an exact function of its own row, and their sensitivity.

Rows and matrix are multiples of powers of two, so float64 adds their products up without rounding, in any order. Products
of floats round a row by how many others there are, and their last bits are no part of any proof.

docs/guarantees/projections.md, "Projections", has the proof of the sensitivity.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse

from lightning_dpgen.projection.neighbourhood import Neighbourhood
from lightning_dpgen.projection.sensitivity import NOISES
from lightning_dpgen.sampling.errors import BadRecords

Rows = np.ndarray | scipy.sparse.csr_array

# Bits of the largest number of a matrix. With this many a row within a radius needs one product; see `_row_bits`.
_MATRIX_BITS = 26
# Float64 holds sums of products below 2^52, and half of a step beside them, without rounding.
_EXACT = 52
# Bits of the largest element within a radius: as many as one exact product allows, between these.
_FEWEST, _MOST = 16, 22
# Bits of the sensitivity, of whose steps the rounding of one number is a part: below 2^-13 of it in all.
_FINE = 13
# The size that the largest number of a matrix may have at most, and the inverse of what it may have at least.
_LARGEST = 1e100
# Farther than so many declared distances from the centre, a row is taken for a mistake.
_FAR = 1e6


def round_matrix(matrix: np.ndarray) -> np.ndarray:
    """Round a matrix to multiples of 2^-26 of the power of two at its largest number or above; twice is as once.

    Example:
        >>> float(round_matrix(np.array([[1.0, 1.0 / 3.0]]))[0, 1]) * 2**26
        22369621.0
    """
    unit = matrix_unit(matrix)
    return np.rint(matrix / unit) * unit


def matrix_unit(matrix: np.ndarray) -> float:
    """Return the unit of `round_matrix`."""
    return 2.0 ** (_log2_above(float(np.abs(matrix).max())) - _MATRIX_BITS)


class Steps:
    """The map from rows (n, d) to whole numbers of steps (n, k).

    Args:
        matrix: (d, k), on the grid of `round_matrix`.
        noise: ``laplace``, ``spherical`` or ``gaussian``, whose norm the sensitivity is in.
        centre: (d,), subtracted from each row, or None.

    Attributes:
        grid: a step, a power of two.
        sensitivity: the largest change of a row between neighbours, in steps, a whole number.

    Raises:
        ValueError: for a matrix so far from 1 that a unit would be no normal number of float64.

    Example:
        >>> steps = Steps(np.eye(2), Neighbourhood("row", radius=1.0), "gaussian")
        >>> steps.grid * 2**13, steps.sensitivity
        (1.0, 16386)
        >>> (steps(np.array([[0.5, 0.0], [0.0, 2.0]]))[0] * steps.grid).round(3).tolist()
        [[0.5, 0.0], [0.0, 1.0]]
    """

    def __init__(
        self, matrix: np.ndarray, neighbourhood: Neighbourhood, noise: str, centre: np.ndarray | None = None
    ) -> None:
        d, k = matrix.shape
        self._neighbourhood, self._centre = neighbourhood, centre
        farthest = float(np.abs(matrix).max())
        if not _LARGEST**-1 <= farthest <= _LARGEST:
            raise ValueError(
                f"a matrix whose largest number is {farthest:g}: expected {1.0 / _LARGEST:g} to {_LARGEST:g}, so that "
                "squares keep all their digits"
            )
        of_matrix = matrix_unit(matrix)
        self._whole = matrix / of_matrix
        # No sum of products with numbers up to 1, in any order, is larger than this.
        self._largest_sum = float(np.abs(self._whole).sum(axis=0).max())
        change, rooted = neighbourhood.change, math.sqrt(d) if neighbourhood.unit == "row" else 1.0
        if neighbourhood.enforced:
            self._unit = 2.0 ** (_log2_above(neighbourhood.radius) - self._row_bits(d))
            self._bound = math.floor(neighbourhood.radius / self._unit)
            moved = 2.0 * self._bound
        else:
            self._unit = 2.0 ** (_log2_above(change / rooted) - 1 - _FINE)
            moved = change / self._unit + rooted
        own = NOISES[noise]
        rounded = float(k) if own.norm == 1 else math.sqrt(k)
        largest = moved * self._unit * own.sensitivity(matrix, neighbourhood.unit)
        if not 2.0**-850 < largest < 2.0**850:
            raise ValueError(f"matrix and neighbourhood move rows by {largest:g}: expected numbers nearer to 1")
        self.grid = 2.0 ** (_log2_above(largest / rounded) - 1 - _FINE)
        if not 2.0**-900 < min(self.grid, self._unit * of_matrix) <= max(self.grid, self._unit) < 2.0**900:
            raise ValueError(f"matrix and neighbourhood move rows by {largest:g}: expected numbers nearer to 1")
        self.sensitivity = math.ceil(largest / self.grid * (1.0 + 1e-12) + rounded)
        self._shift = round(math.log2(self.grid / (self._unit * of_matrix)))
        if not neighbourhood.enforced:
            self._bound = min(_FAR * change / self._unit, math.ldexp(1.0, _EXACT + self._shift) / self._largest_sum)

    def __call__(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Return the steps (n, k), int64, of rows (n, d), and whether each row (n,) was pulled back; both are private.

        Raises:
            BadRecords: for a row so far from the centre that its declared neighbours are no neighbourhood of it.
        """
        if not scipy.sparse.issparse(rows) or self._centre is not None:
            rows = np.asarray(rows.toarray() if scipy.sparse.issparse(rows) else rows, dtype=np.float64)
        if not self._neighbourhood.enforced:
            return self._multiply(self._round_near(rows)), np.zeros(rows.shape[0], bool)
        if self._centre is not None:
            # It is subtracted first, since a later difference of two large numbers would be mostly rounding.
            rows = rows - self._centre
        whole, far = self._pull_back(rows) if self._neighbourhood.unit == "row" else self._cut(rows)
        return self._multiply(whole), far

    def _row_bits(self, d: int) -> int:
        """Return the bits of a radius: few enough for exact sums of squares, or of products of all elements."""
        if self._neighbourhood.unit == "row":
            # By Cauchy and Schwarz, products with a column of d numbers of 26 bits then stay below 2^52.
            return (_EXACT - math.ceil(math.log2(max(d, 2)))) // 2
        return min(max(_EXACT - math.ceil(math.log2(self._largest_sum)), _FEWEST), _MOST)

    def _pull_back(self, rows: Rows) -> tuple[Rows, np.ndarray]:
        """Return rows in whole units whose sums of squares are at most the square of the bound, and which were beyond."""
        radius = self._neighbourhood.radius
        largest = abs(rows).max(axis=1)
        largest = largest.toarray().ravel() if scipy.sparse.issparse(largest) else largest
        # First every element is brought within the radius, where squares are exact.
        inside = np.where(largest > radius, radius / np.maximum(largest, radius), 1.0)
        whole = _scale(rows, inside / self._unit, np.rint)
        squares = _sum_squares(whole)
        far = squares > self._bound**2
        if far.any():
            # A root and two products are wrong by less than 2^-50, and what is cut off makes no row longer.
            shortened = _scale(whole[far], self._bound * (1.0 - 2.0**-40) / np.sqrt(squares[far]), np.trunc)
            kept = _scale(shortened, (_sum_squares(shortened) <= self._bound**2).astype(np.float64), np.trunc)
            whole = _replace(whole, far, kept)
        # A row on the border may be longer by its rounding alone.
        return whole, (largest > radius) | (squares > (self._bound + math.sqrt(rows.shape[1])) ** 2)

    def _cut(self, rows: Rows) -> tuple[Rows, np.ndarray]:
        """Return rows in whole units of at most the bound each, and which had an element beyond."""
        whole = _scale(rows, np.full(rows.shape[0], 1.0 / self._unit), np.rint)
        values = whole.data if scipy.sparse.issparse(whole) else whole
        np.clip(values, -self._bound, self._bound, out=values)
        far = abs(rows).max(axis=1)
        far = far.toarray().ravel() if scipy.sparse.issparse(far) else far
        return whole, far > self._neighbourhood.radius

    def _round_near(self, rows: Rows) -> Rows:
        """Return rows, less the centre, in whole units: two are at most one unit an element farther apart than before."""
        whole = _scale(rows, np.full(rows.shape[0], 1.0 / self._unit), np.rint)
        if self._centre is not None:
            # Where both are beyond 2^53 units, their difference is exact if it is small enough to be accepted.
            whole -= np.rint(self._centre / self._unit)
        if abs(whole).max() > self._bound:
            change = self._neighbourhood.change
            times = self._bound * self._unit / change
            raise BadRecords(
                f"rows hold values more than {times:.3g} times the declared distance {change:g} away from "
                "the centre: give a centre (public) near the rows"
            )
        return whole

    def _multiply(self, whole: Rows, add: np.ndarray | int | None = None, shift: int | None = None) -> np.ndarray:
        """Return products with the matrix in steps, rounded to nearest: ``floor((product + add) / 2^shift)``."""
        shift = self._shift if shift is None else shift
        add = 1 << shift - 1 if add is None else add
        values = whole.data if scipy.sparse.issparse(whole) else whole
        within = self._neighbourhood.enforced and self._neighbourhood.unit == "row"
        if within or not values.size or np.abs(values).max() * self._largest_sum <= 2.0**_EXACT:
            product = (whole @ self._whole).astype(np.int64)
            product += add
            product >>= shift
            return product
        # Large numbers are multiplied in parts, the lower bits first; what is carried over is rounded down.
        bits = min(shift, _EXACT - math.ceil(math.log2(self._largest_sum)))
        high = _scale(whole, np.full(whole.shape[0], 2.0**-bits), np.floor)
        carried = (((whole - high * 2.0**bits) @ self._whole).astype(np.int64) + add) >> bits
        return self._multiply(high, carried, shift - bits)


def _log2_above(number: float) -> int:
    """Return the least e for which a positive number is at most 2^e."""
    mantissa, exponent = math.frexp(number)
    return exponent - (mantissa == 0.5)


def _scale(rows: Rows, factors: np.ndarray, rounded: np.ufunc) -> Rows:
    """Multiply each row (n, d) by its own factor (n,), and round every number."""
    if not scipy.sparse.issparse(rows):
        product = rows * factors[:, None]
        return rounded(product, out=product)
    data = rows.data * np.repeat(factors, np.diff(rows.indptr))
    return scipy.sparse.csr_array((rounded(data, out=data), rows.indices, rows.indptr), shape=rows.shape)


def _sum_squares(whole: Rows) -> np.ndarray:
    """Return the sum of squares of each row of whole numbers, exact below 2^53."""
    if scipy.sparse.issparse(whole):
        return whole.power(2) @ np.ones(whole.shape[1])
    return np.einsum("ij,ij->i", whole, whole)


def _replace(whole: Rows, places: np.ndarray, rows: Rows) -> Rows:
    """Put rows in the marked places; sparse ones have the same entries as before."""
    if scipy.sparse.issparse(whole):
        whole.data[np.repeat(places, np.diff(whole.indptr))] = rows.data
    else:
        whole[places] = rows
    return whole
