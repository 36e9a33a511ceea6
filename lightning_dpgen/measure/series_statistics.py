"""Bounded statistics of series: histograms of coordinates, second moments, and characteristic functions."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.measure.statistics import SQUARE_LENGTH, Statistic, check_radius, outer_products
from lightning_dpgen.models.bases import Basis
from lightning_dpgen.models.networks import check_sizes
from lightning_dpgen.sampling.fixed_point import DOUBLE, Grid, product, rounded_rows

# Numbers of a part of the records that are written out at a time.
_AT_ONCE = 1 << 18
# Differences of coordinates, and the coordinates in directions of which cosines are taken.
_SEEN, _PLACES = Grid(2.0**-13, bits=23), Grid(2.0**-14, bits=20)
# Angles of a turn, the most turns that a coordinate of 1 may stand for, and the cosine of each angle as a whole number.
_TURN, _MOST_TURNS, _LONGEST = 2**16, 2.0**8, 2.0**20
_COSINES = (_LONGEST * torch.cos(torch.arange(_TURN, dtype=torch.float64) * (2.0 * math.pi / _TURN))).trunc_()


class CoordinateHistograms(Statistic):
    """A histogram of each coordinate of a record: it is in one bin of each, so the bound is the root of their number.

    A bin is decided by the coordinate as it is computed, so that has to follow from the record alone, bit for bit.

    Args:
        coordinates: coordinates (n, size) of records: numbers as they stand, or in whole numbers, such as `SeriesWaves`.
        size: the number of coordinates.
        edges: (bins - 1,) the upper end of each bin but the last, increasing; an end belongs to the bin below it.

    Example:
        >>> import numpy as np
        >>> of_units = lambda records: torch.from_numpy(records.units)
        >>> found = CoordinateHistograms(Layout(units=2), of_units, 2, torch.tensor([0.0, 0.5]).double())
        >>> found.sums(Encoded(np.array([[0.0, 0.6], [0.5, 0.7]]), np.zeros((2, 0), np.uint8)), None)
        tensor([[1, 1, 0],
                [0, 0, 2]])
    """

    def __init__(self, layout: Layout, coordinates: Callable[[Encoded], Tensor], size: int, edges: Tensor) -> None:
        check_sizes(size=size)
        self.layout, self._coordinates, self._edges = layout, coordinates, edges
        self.shape, self.bound = (size, len(edges) + 1), math.sqrt(size)

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        size, bins = self.shape
        places = torch.bucketize(self._coordinates(records), self._edges) + bins * torch.arange(size)
        return torch.bincount(places.flatten(), minlength=size * bins).view(size, bins)


class SecondMoments(Statistic):
    """Sums of r r^T over all components, where r is a record in a basis, shortened to a radius.

    The bound is the squared radius, the Frobenius norm of the longest outer product.
    """

    def __init__(self, basis: Basis, radius: float) -> None:
        check_radius(radius)
        self.basis, self.layout, self._radius = basis, basis.layout, radius
        self.bound, self.shape, self.unit = radius**2, (basis.size, basis.size), (radius / SQUARE_LENGTH) ** 2

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        return outer_products(rounded_rows(self.basis.coordinates(records), self._radius, self._radius / SQUARE_LENGTH))


class CharacteristicFunctions(Statistic):
    """Sums of ``[cos(W y), sin(W y)] / sqrt(m)`` by component, for m frequencies W and coordinates y of a record.

    Over counts they are the empirical characteristic function at these frequencies (the sketch of Keriven et al. 2018, from
    which a mixture of Gaussians is found). Each pair of cosine and sine has length 1, so a record's vector has length 1,
    which is the bound, whatever its coordinates are.

    Coordinates are seen as multiples of 2^-14 up to 64 in each direction, and a turn has 2^16 angles. The cosine of each
    is a whole number of 20 bits, cut towards 0, so no pair is longer than 1.

    Args:
        basis: the basis in which records are seen.
        centres: (k, basis.size) what is taken off these coordinates, for each component; public.
        directions: (d, basis.size) the directions whose coordinates y are; public.
        frequencies: (m, d), public.
    """

    bound = 1.0

    def __init__(self, basis: Basis, centres: Tensor, directions: Tensor, frequencies: Tensor) -> None:
        directions, turns = directions.double(), frequencies.double() / (2.0 * math.pi)
        fits = directions.shape[1:] == centres.shape[1:] == (basis.size,) and turns.shape[1:] == directions.shape[:1]
        if not fits or not all(part.isfinite().all() for part in (directions, turns, centres)):
            raise ValueError(f"directions {tuple(directions.shape)}: expected (d, {basis.size}) finite numbers")
        if turns.abs().sum(dim=1).max() > _MOST_TURNS:
            raise ValueError(f"frequencies: expected at most {_MOST_TURNS:.0f} turns for coordinates of 1")
        self.basis, self.layout, self._centres = basis, basis.layout, centres.double()
        self._directions, self._turns = _whole(directions, _SEEN), _whole(turns, _PLACES)
        self.k, self.shape = len(centres), (len(centres), 2, len(turns))
        self.unit = 1.0 / (_LONGEST * math.sqrt(len(turns)))

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        # So many whole numbers add up exactly in float64.
        sums = torch.zeros(self.shape, dtype=torch.float64)
        (directions, scale), (turns, turn) = self._directions, self._turns
        differences = self.basis.coordinates(records) - self._centres[component]
        places = _PLACES(product(_SEEN(differences), directions).mul_(scale))
        step = max(1, _AT_ONCE // self.shape[2])
        for part, own in zip(places.split(step), component.split(step), strict=True):
            angles = product(part, turns).mul_(turn * _TURN).round_().to(torch.int32)
            for i, angle in enumerate((angles, angles - _TURN // 4)):
                values = _COSINES.index_select(0, angle.bitwise_and_(_TURN - 1).view(-1)).view(angle.shape)
                sums[:, i].index_add_(0, own, values)
        return sums.to(torch.int64)


def _whole(matrix: Tensor, grid: Grid) -> tuple[Tensor, float]:
    """Return a matrix (d, m), transposed, in whole numbers, and what a product of 1 with a grid's multiples stands for.

    It is as fine as exact products allow.
    """
    longest = max(matrix.abs().sum(dim=1).tolist(), default=1.0)
    bits = math.floor(DOUBLE - 1 - grid.bits - math.log2(max(longest, 1e-100)))
    return (matrix.T * 2.0**bits).round_(), grid.unit * 2.0**-bits
