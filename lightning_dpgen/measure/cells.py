"""Cells: a public partition of the records of each component, found among samples of a mixture that was paid for."""

from __future__ import annotations

import math
import warnings
import weakref
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.measure.statistics import Statistic
from lightning_dpgen.models.bases import Basis
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.sampling.fixed_point import Grid, Highest

# Samples in which cells are searched, the fewest of a cell, and the part of them that lies within reach of its centre.
_SAMPLES, _FEWEST, _WITHIN = 20_000, 10, 0.9
# Numbers of samples that are made at a time.
_AT_ONCE = 1 << 23
# Records are placed by their values, from 0 to 1, as multiples of this: in whole numbers, which are exact.
_GRID = Grid(2.0**-12, bits=12)
# The most noise of a cell's mean beside the distances of centres, and of its second moments beside the largest variance;
# by how much fewer cells are tried where there is more; and the part of the cells that may be given up for shapes.
_OF_MEANS, _OF_SHAPES, _FEWER, _LEFT = 0.25, 0.5, 0.7, 1 / 3


@dataclass(frozen=True)
class Cells:
    """A partition of the records of each of k components into cells, all of it public.

    Args:
        basis: the basis in whose coordinates cells have centres.
        centres: (cells, basis.size) the centres, those of a component side by side.
        component: (cells,) the component of each cell, from 0 to k - 1.
        weights: (cells,) how many records are expected in each.
        shape: (cells,) the second moments, counted from 0, that each cell has: its own, or those of its component.
        reach: the length of a difference from a centre that few records exceed.
        directions: (basis.size, basis.size) orthonormal rows, in whose directions these differences are uncorrelated.
    """

    basis: Basis
    centres: Tensor
    component: Tensor
    weights: Tensor
    shape: Tensor
    reach: float
    directions: Tensor

    @classmethod
    def of_samples(
        cls, basis: Basis, mixture: Mixture, counts: Tensor, most: int, noise_of_means: float, noise_of_squares: float
    ) -> Cells:
        """Find cells by k-means among samples of a mixture. Post-processing.

        A component has as many cells as let the noise of a mean be small beside the distances of their centres. It has as
        few, at least a third of them, as let the noise of second moments of each be small beside the largest variance, if
        that is possible; else all of its cells have the same second moments.

        Args:
            counts: (k,) expected numbers of records of its components; each gets as many samples as any other.
            most: the most cells of a component.
            noise_of_means, noise_of_squares: standard deviation of the noise of a sum of vectors, or of outer products, of
                length 1.
        """
        centres, component, weights, shape, rest = [], [], [], [], []
        generator = torch.Generator().manual_seed(0)
        for c, count in enumerate(counts.tolist()):
            rows = _samples(basis, mixture, c, max(_SAMPLES // len(counts), _FEWEST * most), generator)
            split = _split(rows, most, noise_of_means / count, noise_of_squares / count)
            cells = len(split.centres)
            shape.append((shape[-1][-1] + 1 if shape else 0) + torch.arange(cells) * int(split.own_shapes))
            centres.append(split.centres)
            component.append(torch.full((cells,), c))
            weights.append(count * torch.bincount(split.place, minlength=cells).double() / len(rows))
            rest.append(split.differences)
        differences = torch.cat(rest)
        directions = torch.linalg.eigh(differences.T @ differences)[1].T
        found = (torch.cat(part) for part in (centres, component, weights, shape))
        return cls(basis, *found, _reach(differences), directions)

    def places(self, records: Encoded, component: Tensor) -> Tensor:
        """Return the cell (B,) of each record: that of its component with the nearest centre, the first of several.

        It is an exact function of the record alone, since all of it is in whole numbers (`fixed_point.Highest`). Those of
        records that are asked for again are kept.

        Args:
            records: private.
            component: (B,) the component of each; private.
        """
        kept = self._kept.get(records)
        if kept is not None and kept[0].equal(component):
            return kept[1]
        whole = _GRID(self.basis.values(records))
        cells = torch.zeros(len(component), dtype=torch.int64)
        for c in component.unique().tolist():
            own = component == c
            first, search = self._searches[c]
            cells[own] = first + search.exact(whole[own])
        self._kept[records] = component, cells
        return cells

    @cached_property
    def _kept(self) -> weakref.WeakKeyDictionary[Encoded, tuple[Tensor, Tensor]]:
        """Private: components and cells of the parts of records, which go with them."""
        return weakref.WeakKeyDictionary()

    @cached_property
    def _searches(self) -> list[tuple[int, Highest]]:
        """Return the first cell of each component, and the search among its cells.

        t.c - |c|^2 / 2 is largest for the centre c that is nearest to coordinates t.
        """
        offsets = (self.centres @ self.basis.offset - 0.5 * self.centres.square().sum(dim=1)) / _GRID.unit
        searches, first = [], 0
        for size in torch.bincount(self.component).tolist():
            own = slice(first, first + size)
            searches.append((first, Highest(self.centres[own] @ self.basis.matrix, offsets[own])))
            first += size
        return searches


class InCells(Statistic):
    """A statistic that tells cells apart, of records that are told apart by their components.

    Args:
        cells: the cells, public.
        of_cells: the statistic, whose components are all cells.
    """

    def __init__(self, cells: Cells, of_cells: Statistic) -> None:
        self._cells, self._of_cells, self.layout = cells, of_cells, cells.basis.layout
        self.k, self.shape = int(cells.component[-1]) + 1, of_cells.shape
        self.bound, self.unit = of_cells.bound, of_cells.unit

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        return self._of_cells.sums(records, self._cells.places(records, component))


@dataclass(frozen=True)
class _Split:
    """The cells of one component: centres, the place (n,) of each of its samples among them, and differences from these."""

    centres: Tensor
    place: Tensor
    differences: Tensor
    own_shapes: bool = False

    @classmethod
    def of(cls, rows: Tensor, cells: int) -> _Split:
        # It takes a second to import, which no other run waits for.
        from sklearn.cluster import KMeans
        from sklearn.exceptions import ConvergenceWarning
        from threadpoolctl import threadpool_limits

        # Threads would add up in an order of their own, and a run that goes on has to find the same cells.
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # samples may all be alike
            found = KMeans(cells, n_init=1, random_state=0).fit(rows.numpy())
        centres, place = torch.from_numpy(found.cluster_centers_), torch.from_numpy(found.labels_).long()
        return cls(centres, place, rows - centres[place])

    def has_means(self, noise: float) -> bool:
        """Return whether the mean of a cell has little noise beside the distances of centres."""
        own = self.centres[self.place]
        apart = float((own - own.mean(dim=0)).square().sum(dim=1).mean().sqrt())
        length = math.sqrt(self.centres.shape[1]) * noise * _reach(self.differences) * len(self.centres)
        return length <= _OF_MEANS * apart

    def has_shapes(self, noise: float) -> bool:
        """Return whether second moments of a cell have little noise beside the largest variance."""
        largest = float(torch.linalg.eigvalsh(self.differences.T @ self.differences)[-1]) / len(self.place)
        # The edge of Wigner's semicircle.
        edge = math.sqrt(2.0 * self.centres.shape[1]) * noise * _reach(self.differences) ** 2 * len(self.centres)
        return edge <= _OF_SHAPES * largest


def _split(rows: Tensor, most: int, noise_of_means: float, noise_of_squares: float) -> _Split:
    """Split samples of a component into as many cells as the noise allows.

    Args:
        noise_of_means, noise_of_squares: noise of the mean of all of the component's records, for vectors, or outer
            products, of length 1.
    """
    coarse = _Split.of(rows, most)
    while len(coarse.centres) > 1 and not coarse.has_means(noise_of_means):
        coarse = _Split.of(rows, _fewer(coarse))
    shaped = coarse
    while not shaped.has_shapes(noise_of_squares):
        if _fewer(shaped) < max(_LEFT * len(coarse.centres), 1):
            return coarse
        shaped = _Split.of(rows, _fewer(shaped))
    return replace(shaped, own_shapes=True)


def _fewer(split: _Split) -> int:
    return int(_FEWER * len(split.centres))


def _reach(differences: Tensor) -> float:
    # Samples that are all alike have none, and records have one.
    # torch's quantile refuses as many samples as a thousand labels with many cells have.
    return max(float(np.quantile(torch.linalg.vector_norm(differences, dim=1).numpy(), _WITHIN)), 1e-3)


def _samples(basis: Basis, mixture: Mixture, c: int, n: int, generator: torch.Generator) -> Tensor:
    """Return the coordinates (n, basis.size) of samples of a component."""
    step = max(1, _AT_ONCE // basis.layout.width)
    return torch.cat([
        basis.coordinates(mixture.sample_components(part, generator)) for part in torch.full((n,), c).split(step)
    ])  # fmt: skip
