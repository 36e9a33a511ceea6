"""Bounded statistics of series: histograms of coordinates, second moments, and characteristic functions."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.measure.statistics import Statistic, check_radius, shortened
from lightning_dpgen.models.bases import Basis
from lightning_dpgen.models.networks import check_sizes

# Numbers of a part of the records that are written out at a time.
_AT_ONCE = 1 << 22


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
        tensor([[1., 1., 0.],
                [0., 0., 2.]], dtype=torch.float64)
    """

    def __init__(self, layout: Layout, coordinates: Callable[[Encoded], Tensor], size: int, edges: Tensor) -> None:
        check_sizes(size=size)
        self.layout, self._coordinates, self._edges = layout, coordinates, edges
        self.shape, self.bound = (size, len(edges) + 1), math.sqrt(size)

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        size, bins = self.shape
        places = torch.bucketize(self._coordinates(records), self._edges) + bins * torch.arange(size)
        return torch.bincount(places.flatten(), minlength=size * bins).double().view(size, bins)


class SecondMoments(Statistic):
    """Sums of r r^T over all components, where r is a record in a basis, shortened to a radius.

    The bound is the squared radius, the Frobenius norm of the longest outer product.
    """

    def __init__(self, basis: Basis, radius: float) -> None:
        check_radius(radius)
        self.basis, self.layout, self._radius = basis, basis.layout, radius
        self.bound, self.shape = radius**2, (basis.size, basis.size)

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        within = shortened(self.basis.coordinates(records), self._radius)
        return within.T @ within


class CharacteristicFunctions(Statistic):
    """Sums of ``[cos(W y), sin(W y)] / sqrt(m)`` by component, for m frequencies W and coordinates y of a record.

    Over counts they are the empirical characteristic function at these frequencies (the sketch of Keriven et al. 2018, from
    which a mixture of Gaussians is found). Each pair of cosine and sine has length 1, so a record's vector has length 1,
    which is the bound, whatever its coordinates are.

    Args:
        basis: the basis in which records are seen.
        centres: (k, basis.size) what is taken off these coordinates, for each component; public.
        directions: (d, basis.size) the directions whose coordinates y are; public.
        frequencies: (m, d), public.
    """

    bound = 1.0 + 1e-9

    def __init__(self, basis: Basis, centres: Tensor, directions: Tensor, frequencies: Tensor) -> None:
        turned = frequencies.double() @ directions.double()
        if turned.shape[1:] != centres.shape[1:] or not turned.isfinite().all() or not centres.isfinite().all():
            raise ValueError(f"directions {tuple(directions.shape)}: expected (d, {basis.size}) finite numbers")
        self.basis, self.layout, self._centres, self._turned = basis, basis.layout, centres.double(), turned
        self.k, self.shape = len(centres), (len(centres), 2, len(frequencies))

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        sums = torch.zeros(self.shape, dtype=torch.float64)
        coordinates = (self.basis.coordinates(records) - self._centres[component]).nan_to_num_(0.0, 0.0, 0.0)
        step = max(1, _AT_ONCE // self.shape[2])
        for start in range(0, len(coordinates), step):
            angles = coordinates[start : start + step] @ self._turned.T
            own = component[start : start + step]
            for part, values in enumerate((angles.cos(), angles.sin())):
                sums[:, part].index_add_(0, own, values)
        return sums / math.sqrt(self.shape[2])
