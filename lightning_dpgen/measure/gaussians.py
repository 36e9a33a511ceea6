"""The recipe of Gaussians: means of each component, second moments about them, and both again in cells of a component."""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from lightning_dpgen.data.records import Records
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.measure.cells import Cells, InCells
from lightning_dpgen.measure.moments import factors_of, likely_counts, likely_differences, likely_means, through_clipping
from lightning_dpgen.measure.pictures import TRIAL, Posed, Upright, curve, pays_off, trial
from lightning_dpgen.measure.recipe import Recipe
from lightning_dpgen.measure.statistics import UNITS, Counts, Histogram, Means, Squares, Statistic, check_radius
from lightning_dpgen.measure.workload import State, Workload, check_share
from lightning_dpgen.models.bases import Basis, cosines
from lightning_dpgen.models.gaussians import StackedGaussians
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.networks import check_sizes
from lightning_dpgen.models.poses import Symmetries
from lightning_dpgen.privacy.plan import Plan

POSES, MEANS, SQUARES, CELL_MEANS, CELL_SQUARES = "poses", "means", "squares", "cell means", "cell squares"
# When pictures are described without their poses.
Poses = Literal["measured", "always", "never"]
# The share of the trial of poses.
_TRIAL = 0.03
# The parts of the first access's inverse squared noise for counts and for the histogram of values.
_COUNTS, _VALUES = 0.02, 0.05
# The part of the cells' budget for their counts and means, and of these for their counts.
_CELL_MEANS, _CELL_COUNTS = 0.4, 0.05
# Pieces of the curve of values, where values may lie between its ends.
_PIECES = 16


@dataclass(frozen=True)
class GaussianRecipe(Recipe):
    """Two to five accesses, and a mixture of Gaussians that is fitted to them without another look at a record.

    The first of two measures counts and means of the components, and for pictures a histogram of values. Second moments
    about these means, public by then, are small, and so is the radius to which differences are shortened; their noise is
    in proportion to the squared radius.

    Where records of a component have several shapes, one Gaussian is wrong however little noise it has. Samples of these
    Gaussians then give cells (`Cells`), which are public, and counts, means and second moments of the records of each cell
    are measured about what the samples say of them.

    Where pictures of a label differ by slant and place, a Gaussian of their pixels is blurred. Described without their
    poses, and beside these, they have one that is sharp (`models/poses.py`); an access before all others tells whether.

    Args:
        schema: the schema of pictures or series; public.
        k: number of components that the records' `component` tells apart.
        n: the declared number of records.
        size: number of slowest waves in which records are described.
        radius, spread: the lengths to which records and their differences from the mean are shortened.
        means_share: share of the mu^2 of both accesses; second moments get the rest.
        symmetries: symmetries of pictures; declared, so they are public.
        cells: the most cells of a component, of which it has as many as stand out of the noise; 1 for none.
        cells_share: share of the mu^2 of all accesses for those of the cells, where there are several.
        poses: whether pictures are described without their poses: `measured` where that makes means sharper, which three
            hundredths of the budget tell.

    Raises:
        ValueError: for a share outside (0, 1), a radius out of range, or components that labels do not share evenly.
    """

    schema: Schema
    k: int
    n: int
    size: int
    radius: float
    spread: float
    means_share: float = 0.15
    symmetries: Symmetries | None = None
    cells: int = 1
    cells_share: float = 0.8
    poses: Poses = "never"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("means_share", self.means_share)
        check_share("cells_share", self.cells_share)
        check_sizes(cells=self.cells)
        check_radius(self.radius)
        check_radius(self.spread, "spread")
        check_sizes(size=self.size)
        if self.size > self.schema.layout.units:
            raise ValueError(f"size={self.size}: expected a whole number from 1 to {self.schema.layout.units}, the units")
        label = self.schema.layout.label
        classes = 1 if label is None else self.schema.layout.groups[label]
        if not isinstance(self.symmetries, Symmetries | None):
            raise ValueError(f"symmetries={self.symmetries!r}: expected Symmetries (as in models.poses.SETS) or None")
        if self.poses not in get_args(Poses):
            raise ValueError(f"poses={self.poses!r}: expected {', '.join(get_args(Poses))}")
        if self.poses != "never" and not (self.schema.dimensions == 2 and self.symmetries is None):
            raise ValueError(f"poses={self.poses!r}: expected never, unless for pictures without declared symmetries")
        if self.k % classes:
            raise ValueError(f"k={self.k}: expected as many components for each of the {classes} values of the label")

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """A trial of poses; counts, values and means; second moments; the same of cells, where there are several."""
        largest, share = self.n / self.k, self.means_share
        before = (Workload(POSES, TRIAL, largest, _TRIAL),) if self.poses == "measured" else ()
        remaining = 1.0 - _TRIAL if before else 1.0
        weights = {"counts": _COUNTS} | ({"values": _VALUES} if self.schema.dimensions == 2 else {})
        weights |= {"means": 1.0 - sum(weights.values())}
        first, of_cells = (
            (remaining, 0.0) if self.cells == 1 else (remaining * (1.0 - self.cells_share), remaining * self.cells_share)
        )
        first_accesses = (
            *before,
            Workload(MEANS, weights, largest, first * share, units=UNITS),
            Workload(SQUARES, {"squares": 1.0}, largest, first * (1.0 - share), units=UNITS),
        )
        if self.cells == 1:
            return first_accesses
        weights = {"counts": _CELL_COUNTS, "means": 1.0 - _CELL_COUNTS}
        return (
            *first_accesses,
            Workload(CELL_MEANS, weights, largest, of_cells * _CELL_MEANS, units=UNITS),
            Workload(CELL_SQUARES, {"squares": 1.0}, largest, of_cells * (1.0 - _CELL_MEANS), units=UNITS),
        )

    @property
    def from_fits(self) -> frozenset[str]:
        """Those of cells, which are found among samples."""
        return frozenset({CELL_MEANS, CELL_SQUARES})

    def statistics(self, stage: str, state: State) -> dict[str, Statistic]:
        """Return the statistics of a stage.

        One record changes one count by 1, shares of values by 1 a channel, one sum of records by a vector of the radius,
        one sum of outer products by a matrix of Frobenius norm spread^2; in cells both are as long as `Cells.reach` says.
        The trial of poses has the same means twice, and a sum of squared lengths.
        """
        if stage == POSES:
            return trial(self._waves, self._posed, self.k, self.radius)
        basis = self._basis(state)
        if stage == MEANS:
            statistics, values = {"counts": Counts(self.k), "means": Means(basis, self.k, self.radius)}, self._values(basis)
            return statistics if values is None else statistics | {"values": values}
        if stage == SQUARES:
            return {"squares": Squares(basis, self._moments(state)[1], self.spread)}
        cells = self._cells(state)
        if stage == CELL_MEANS:
            k = len(cells.centres)
            statistics = {"counts": Counts(k), "means": Means(basis, k, cells.reach, cells.centres)}
        else:
            statistics = {"squares": Squares(basis, self._cell_moments(state)[1], cells.reach, cells.shape)}
        return {name: InCells(cells, statistic) for name, statistic in statistics.items()}

    def warnings(self, plan: Plan) -> list[str]:
        """Return by how much noise moves the mean of a component where records differ by less."""
        deviation = plan.stage(MEANS).access.multipliers["means"] * self.radius * plan.max_rows
        off = deviation * math.sqrt(self.size) * self.k / self.n
        # Units are numbers from 0 to 1.
        longest = min(self.spread, math.sqrt(self.schema.layout.units))
        if off <= longest:
            return []
        return [
            f"the mean of a component is off by {off:,.2g} because of noise, and records differ by {longest:,.2g} at most: "
            "hardly anything is found; take fewer components, fewer waves, a smaller radius, or raise "
            "epsilon"
        ]

    def _mixture(self, state: State) -> Mixture:
        if self.cells == 1:
            return self._of_components(state)
        cells = self._cells(state)
        return self._fit(state, CELL_SQUARES, cells.shape, cells.component, *self._cell_moments(state))

    def _of_components(self, state: State) -> Mixture:
        """Fit one Gaussian to each component, by the first two accesses."""
        each = torch.arange(self.k)
        return self._fit(state, SQUARES, each, each, *self._moments(state))

    def _fit(
        self, state: State, stage: str, shape: Tensor, component: Tensor, counts: Tensor, means: Tensor, noise: Tensor
    ) -> Mixture:
        """Fit Gaussians of these counts, means and noise of means, as of `_moments`.

        Args:
            stage: that of the second moments.
            shape: which of them each Gaussian has.
            component: the component of each Gaussian.
        """
        squares = state[stage][0]["squares"]
        of_sums = torch.zeros(len(squares.sums), dtype=torch.float64).index_add_(0, shape, counts)
        factors = factors_of(squares.sums, of_sums, squares.deviation)[shape]
        noise = torch.stack([noise, squares.deviation / math.sqrt(2.0) / of_sums[shape]], dim=1)
        basis = self._basis(state)
        network, histogram = self._network(basis, means, factors, noise, component), self._values(basis)
        if histogram is not None:
            values = state[MEANS][0]["values"]
            network.knots.copy_(curve(histogram, values.sums, values.deviation, float(counts.sum()), network, counts))
        return Mixture(network, (counts / counts.sum()).float())

    def _moments(self, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Return counts (k,), means (k, size), and the noise of a coordinate of each mean (k,)."""
        first = state[MEANS][0]
        counts = likely_counts(first["counts"].sums, first["counts"].deviation)
        return counts, *likely_means(first["means"].sums, counts, first["means"].deviation)

    def _cell_moments(self, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Return the same of all cells."""
        cells, found = self._cells(state), state[CELL_MEANS][0]
        counts = likely_counts(found["counts"].sums, found["counts"].deviation, cells.weights)
        differences, noise = likely_differences(found["means"].sums, counts, found["means"].deviation, cells.directions)
        return counts, cells.centres + differences, noise

    def _cells(self, state: State) -> Cells:
        """Find the cells that follow from means and second moments; it takes seconds, so they are kept."""
        first = [state[stage][0] for stage in (MEANS, SQUARES)]
        if not self._found or not all(kept is own for kept, own in zip(self._found[0], first, strict=True)):
            mixture, counts = self._of_components(state), self._moments(state)[0]
            shares = {own.stage: own.share * own.noise_shares.get("means", 1.0) for own in self.workloads}
            # A plan gives all accesses noise by their shares.
            unit = first[0]["means"].deviation / self.radius * math.sqrt(shares[MEANS])
            noise = (unit / math.sqrt(shares[stage]) for stage in (CELL_MEANS, CELL_SQUARES))
            self._found[:] = first, Cells.of_samples(self._basis(state), mixture, counts, self.cells, *noise)
        return self._found[1]

    @functools.cached_property
    def _found(self) -> list:
        return []

    def _basis(self, state: State) -> Basis:
        """Return the basis in which records are described: a function of the record alone."""
        posed = self.poses == "always" or (self.poses == "measured" and pays_off(state[POSES][0]))
        return self._posed if posed else self._plain

    @functools.cached_property
    def _waves(self) -> Basis:
        return cosines(self.schema.layout, self.schema.axes, self.size)

    @functools.cached_property
    def _plain(self) -> Basis:
        declared = self.symmetries is not None and self.symmetries.upright
        return Upright(self._waves, self.schema.axes) if declared else self._waves

    @functools.cached_property
    def _posed(self) -> Posed:
        return Posed(self._waves, self.schema.axes, self.radius)

    def _values(self, basis: Basis) -> Histogram | None:
        """Return the histogram of pictures; None for series, where one curve for all readings would bend the moments."""
        if self.schema.dimensions != 2:
            return None
        levels, posed = self.schema.levels, isinstance(basis, Posed)
        # A few levels have no shape between them.
        pieces = _PIECES if levels >= 2 * _PIECES or posed else 1
        return Histogram(self.schema.layout, self.schema.channels, pieces, basis if posed else None)

    def _network(self, basis: Basis, means: Tensor, factors: Tensor, noise: Tensor, component: Tensor) -> StackedGaussians:
        layout, k = self.schema.layout, len(means)
        declared = None if self.symmetries is None else asdict(self.symmetries)
        values, posed = self._values(basis), isinstance(basis, Posed)
        sizes = {"size": self.size, "rank": factors.shape[1], "pieces": 1 if values is None else values.shape[1] - 2}
        network = StackedGaussians(self.schema, k, **sizes, symmetries=declared, poses=posed)
        for c in range(k):
            own = means[c], factors[c], basis.vectors, *noise[c].tolist()
            centre, factor = through_clipping(*own, several=k)
            if posed:
                # The network has slants and pixels.
                centre[self.size :] /= basis.weights
                factor[:, self.size :] /= basis.weights
            network.centres[c], network.factors[c] = centre, factor
        if layout.label is not None:
            # The components of the first label come first, then those of the next.
            classes = layout.groups[layout.label]
            network.shares.copy_(torch.eye(classes)[component // (self.k // classes)])
        return network


def label_components(records: Records) -> Tensor:
    """Return the component (N,) of each record: its label, or 0 where there is none. Private.

    Args:
        records: private.
    """
    label = records.schema.layout.label
    if label is None:
        return torch.zeros(len(records), dtype=torch.int64)
    return torch.from_numpy(records.encoded.codes[:, label].astype("int64"))
