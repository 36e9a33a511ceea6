"""Cells: a public partition of the records of each component, found among samples of a mixture that was paid for."""

from __future__ import annotations

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

# Samples in which cells are searched, and the part of them that lies within reach of its centre.
_SAMPLES, _WITHIN = 20_000, 0.9
# Numbers of samples that are made at a time.
_AT_ONCE = 1 << 23
# Records are placed by their values, from 0 to 1, as multiples of this: in whole numbers, which are exact.
_GRID = Grid(2.0**-12, bits=12)


@dataclass(frozen=True)
class Cells:
    """A partition of the records of each of k components into cells, all of it public.

    Args:
        basis: the basis in whose coordinates cells have centres.
        centres: (k, cells, basis.size) the centres of the cells of each component.
        weights: (k, cells) how many records of a component are expected in each of its cells, in any unit.
        reach: the length of a difference from a centre that few records exceed.
        directions: (basis.size, basis.size) orthonormal rows, in whose directions these differences are uncorrelated.
    """

    basis: Basis
    centres: Tensor
    weights: Tensor
    reach: float
    directions: Tensor

    @classmethod
    def of_samples(cls, basis: Basis, mixture: Mixture, k: int, cells: int) -> Cells:
        """Find cells by k-means among samples of a mixture of k components. Post-processing.

        Args:
            k: number of components; each gets as many samples as any other.
            cells: number of cells of each.
        """
        # It takes a second to import, which no other run waits for.
        from sklearn.cluster import KMeans
        from sklearn.exceptions import ConvergenceWarning
        from threadpoolctl import threadpool_limits

        centres = torch.empty(k, cells, basis.size, dtype=torch.float64)
        weights, rest = torch.empty(k, cells, dtype=torch.float64), []
        generator = torch.Generator().manual_seed(0)
        for c in range(k):
            rows = _samples(basis, mixture, c, max(_SAMPLES // k, 10 * cells), generator)
            # Threads would add up in an order of their own, and a run that goes on has to find the same cells.
            with threadpool_limits(1), warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # of samples that are all alike
                found = KMeans(cells, n_init=1, random_state=0).fit(rows.numpy())
            centres[c], place = torch.from_numpy(found.cluster_centers_), torch.from_numpy(found.labels_).long()
            weights[c] = torch.bincount(place, minlength=cells)
            rest.append(rows - centres[c][place])
        differences = torch.cat(rest)
        reach = float(torch.linalg.vector_norm(differences, dim=1).quantile(_WITHIN))
        # Alike samples leave no difference, and records have one.
        return cls(basis, centres, weights, max(reach, 1e-3), torch.linalg.eigh(differences.T @ differences)[1].T)

    @cached_property
    def flat(self) -> Tensor:
        """The centres (k cells, basis.size), those of a component side by side."""
        return self.centres.flatten(0, 1)

    def places(self, records: Encoded, component: Tensor) -> Tensor:
        """Return the cell (B,), from 0 to k cells - 1, of each record: that of its component with the nearest centre.

        It is an exact function of the record alone, since all of it is in whole numbers (`fixed_point.Highest`).

        Args:
            records: private.
            component: (B,) the component of each; private.
        """
        whole, cells = _GRID(self.basis.values(records)), self.centres.shape[1]
        found = torch.zeros(len(component), dtype=torch.int64)
        for c in component.unique().tolist():
            own = component == c
            found[own] = c * cells + self._searches[c].exact(whole[own])
        return found

    @cached_property
    def _searches(self) -> list[Highest]:
        """Return the search of each component: t.c - |c|^2 / 2 is largest for the nearest centre c of coordinates t."""
        offsets = (self.centres @ self.basis.offset - 0.5 * self.centres.square().sum(dim=2)) / _GRID.unit
        return [Highest(own @ self.basis.matrix, offset) for own, offset in zip(self.centres, offsets, strict=True)]


class InCells(Statistic):
    """A statistic that tells cells apart, of records that are told apart by their components.

    Args:
        cells: the cells, public.
        of_cells: the statistic, whose components are all cells of all components.
    """

    def __init__(self, cells: Cells, of_cells: Statistic) -> None:
        self._cells, self._of_cells, self.layout = cells, of_cells, cells.basis.layout
        self.k, self.shape, self.bound = len(cells.centres), of_cells.shape, of_cells.bound

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        return self._of_cells.sums(records, self._cells.places(records, component))


def _samples(basis: Basis, mixture: Mixture, c: int, n: int, generator: torch.Generator) -> Tensor:
    """Return the coordinates (n, basis.size) of samples of a component."""
    step = max(1, _AT_ONCE // basis.layout.width)
    return torch.cat([
        basis.coordinates(mixture.sample_components(part, generator)) for part in torch.full((n,), c).split(step)
    ])  # fmt: skip
