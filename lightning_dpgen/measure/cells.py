"""Cells: a public partition of the records of each component, found among samples of a mixture that was paid for."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lightning_dpgen.clustering.fixed_point import Grid, Highest
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.measure.statistics import Statistic
from lightning_dpgen.models.bases import Basis
from lightning_dpgen.models.mixture import Mixture

# Samples in which cells are searched, the fewest of a cell, and the part of them that lies within reach of its centre.
_SAMPLES, _FEWEST, _WITHIN = 20_000, 10, 0.9
# Numbers of samples that are made at a time.
_AT_ONCE = 1 << 23
# Records are placed by their values, from 0 to 1, as multiples of this: in whole numbers, which are exact.
_GRID = Grid(2.0**-12, bits=12)
# The most noise of a cell's mean beside the distances of centres, and of its second moments beside the largest variance;
# and by how much fewer cells are tried where there is more.
_MOST_NOISE, _FEWER = 0.25, 0.7


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

        A component has as many cells as let the noise of a mean be small beside the distances of their centres, and cells
        have second moments of their own where noise is small beside the largest variance.

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
            own, place = _split(rows, most, math.sqrt(basis.size) * noise_of_means / count)
            differences = rows - own[place]
            largest = float(torch.linalg.eigvalsh(differences.T @ differences)[-1]) / len(rows)
            # The edge of Wigner's semicircle.
            edge = math.sqrt(2.0 * basis.size) * noise_of_squares * _reach(differences) ** 2 * len(own) / count
            first = shape[-1][-1] + 1 if shape else 0
            alone = edge <= _MOST_NOISE * largest
            shape.append(first + torch.arange(len(own)) * int(alone))
            centres.append(own)
            component.append(torch.full((len(own),), c))
            weights.append(count * torch.bincount(place, minlength=len(own)).double() / len(rows))
            rest.append(differences)
        differences = torch.cat(rest)
        directions = torch.linalg.eigh(differences.T @ differences)[1].T
        found = (torch.cat(part) for part in (centres, component, weights, shape))
        return cls(basis, *found, _reach(differences), directions)

    def places(self, records: Encoded, component: Tensor) -> Tensor:
        """Return the cell (B,) of each record: that of its component with the nearest centre, the first of several.

        It is an exact function of the record alone, since all of it is in whole numbers (`fixed_point.Highest`).

        Args:
            records: private.
            component: (B,) the component of each; private.
        """
        whole = _GRID(self.basis.values(records))
        found = torch.zeros(len(component), dtype=torch.int64)
        for c in component.unique().tolist():
            own = component == c
            first, search = self._searches[c]
            found[own] = first + search.exact(whole[own])
        return found

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
        self.k, self.shape, self.bound = int(cells.component[-1]) + 1, of_cells.shape, of_cells.bound

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        return self._of_cells.sums(records, self._cells.places(records, component))


def _split(rows: Tensor, most: int, noise: float) -> tuple[Tensor, Tensor]:
    """Return centres (cells, size), at most so many, and the place (n,) of each row among them.

    Args:
        noise: length of the noise of the mean of all rows, for a sum of vectors of length 1.
    """
    # It takes a second to import, which no other run waits for.
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    cells = most
    while True:
        # Threads would add up in an order of their own, and a run that goes on has to find the same cells.
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # of samples that are all alike
            found = KMeans(cells, n_init=1, random_state=0).fit(rows.numpy())
        centres, place = torch.from_numpy(found.cluster_centers_), torch.from_numpy(found.labels_).long()
        apart = float((centres[place] - rows.mean(dim=0)).square().sum(dim=1).mean().sqrt())
        if cells == 1 or noise * _reach(rows - centres[place]) * cells <= _MOST_NOISE * apart:
            return centres, place
        cells = max(int(_FEWER * cells), 1)


def _reach(differences: Tensor) -> float:
    # Samples that are all alike have none, and records have one.
    return max(float(torch.linalg.vector_norm(differences, dim=1).quantile(_WITHIN)), 1e-3)


def _samples(basis: Basis, mixture: Mixture, c: int, n: int, generator: torch.Generator) -> Tensor:
    """Return the coordinates (n, basis.size) of samples of a component."""
    step = max(1, _AT_ONCE // basis.layout.width)
    return torch.cat([
        basis.coordinates(mixture.sample_components(part, generator)) for part in torch.full((n,), c).split(step)
    ])  # fmt: skip
