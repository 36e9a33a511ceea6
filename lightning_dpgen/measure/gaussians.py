"""The recipe of Gaussians: means of each component, second moments about them, and both again in cells of a component."""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.measure.cells import Cells, InCells
from lightning_dpgen.measure.clipped_gaussians import through_clipping
from lightning_dpgen.measure.recipe import Recipe
from lightning_dpgen.measure.shrinkage import factors_of, likely_counts, likely_differences, likely_means
from lightning_dpgen.measure.statistics import Counts, Histogram, Means, Squares, Statistic, check_radius
from lightning_dpgen.measure.value_curve import curve
from lightning_dpgen.measure.workload import State, Workload, check_share
from lightning_dpgen.models.bases import Basis, cosines, unit_values
from lightning_dpgen.models.gaussians import StackedGaussians
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.networks import check_sizes
from lightning_dpgen.models.symmetries import Symmetries, upright
from lightning_dpgen.privacy.plan import Plan

MEANS, SQUARES, CELL_MEANS, CELL_SQUARES = "means", "squares", "cell means", "cell squares"
# The parts of the first access's inverse squared noise for counts and for the histogram of values.
_COUNTS, _VALUES = 0.02, 0.05
# The part of the cells' budget for their counts and means, and of these for their counts.
_CELL_MEANS, _CELL_COUNTS = 0.4, 0.05
# Steps between 0 and 1 of values whose slant is taken away.
_STEPS = 2.0**12
# Pieces of the curve of values, where values may lie between its ends.
_PIECES = 16


class _Upright(Basis):
    """A basis of pictures without their slant, which is a function of each picture alone."""

    def __init__(self, layout: Layout, vectors: Tensor, axes: tuple[int, ...]) -> None:
        super().__init__(layout, vectors)
        self._axes = axes

    def values(self, records: Encoded) -> Tensor:
        # Multiples of a power of two have exact sums, so that no rounding depends on other pictures.
        units = unit_values(records, self.layout).mul_(_STEPS).round_().div_(_STEPS)
        return upright(units.view(-1, *self._axes)).reshape(units.shape)


@dataclass(frozen=True)
class GaussianRecipe(Recipe):
    """Two accesses, or four, and a mixture of Gaussians that is fitted to them without another look at a record.

    The first measures counts and means of the components, and for pictures a histogram of values. Second moments about
    these means, public by then, are small, and so is the radius to which differences are shortened; their noise is in
    proportion to the squared radius.

    Where records of a component have several shapes, one Gaussian is wrong however little noise it has. Samples of these
    Gaussians then give cells (`Cells`), which are public, and counts, means and second moments of the records of each cell
    are measured about what the samples say of them.

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
            raise ValueError(f"symmetries={self.symmetries!r}: expected Symmetries (as in models.symmetries.SETS) or None")
        if self.k % classes:
            raise ValueError(f"k={self.k}: expected as many components for each of the {classes} values of the label")

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """Counts, values and means; second moments; the same of cells, where there are several."""
        largest, share = self.n / self.k, self.means_share
        weights = {"counts": _COUNTS} | ({} if self._values is None else {"values": _VALUES})
        weights |= {"means": 1.0 - sum(weights.values())}
        first = 1.0 if self.cells == 1 else 1.0 - self.cells_share
        found = (
            Workload(MEANS, weights, largest, first * share),
            Workload(SQUARES, {"squares": 1.0}, largest, first * (1.0 - share)),
        )
        if self.cells == 1:
            return found
        weights = {"counts": _CELL_COUNTS, "means": 1.0 - _CELL_COUNTS}
        return (
            *found,
            Workload(CELL_MEANS, weights, largest, self.cells_share * _CELL_MEANS),
            Workload(CELL_SQUARES, {"squares": 1.0}, largest, self.cells_share * (1.0 - _CELL_MEANS)),
        )

    def statistics(self, stage: str, state: State) -> dict[str, Statistic]:
        """Return the statistics of a stage.

        One record changes one count by 1, shares of values by 1 a channel, one sum of records by a vector of the radius,
        one sum of outer products by a matrix of Frobenius norm spread^2; in cells both are as long as `Cells.reach` says.
        """
        if stage == MEANS:
            found = {"counts": Counts(self.k), "means": Means(self._basis, self.k, self.radius)}
            return found if self._values is None else found | {"values": self._values}
        if stage == SQUARES:
            return {"squares": Squares(self._basis, self._moments(state)[1], self.spread)}
        cells = self._cells(state)
        if stage == CELL_MEANS:
            k = len(cells.centres)
            found = {"counts": Counts(k), "means": Means(self._basis, k, cells.reach, cells.centres)}
        else:
            found = {"squares": Squares(self._basis, self._cell_moments(state)[1], cells.reach, cells.shape)}
        return {name: InCells(cells, statistic) for name, statistic in found.items()}

    def warning(self, plan: Plan) -> str | None:
        """Return by how much noise moves the mean of a component where records differ by less, else None."""
        deviation = plan.stage(MEANS).access.multipliers["means"] * self.radius * plan.max_rows
        off = deviation * math.sqrt(self.size) * self.k / self.n
        # Units are numbers from 0 to 1.
        longest = min(self.spread, math.sqrt(self.schema.layout.units))
        if off <= longest:
            return None
        return (
            f"the mean of a component is off by {off:,.2g} because of noise, and records differ by {longest:,.2g} at most: "
            "hardly anything is found; take fewer components, fewer waves, a smaller radius, or raise "
            "epsilon"
        )

    def _mixture(self, state: State) -> Mixture:
        """Fit the Gaussians to these moments."""
        if self.cells == 1:
            return self._of_components(state)
        cells = self._cells(state)
        return self._fit(state, CELL_SQUARES, cells.shape, cells.component, *self._cell_moments(state))

    def _of_components(self, state: State) -> Mixture:
        """Fit one Gaussian to each component, by the first two accesses."""
        each = torch.arange(self.k)
        return self._fit(state, SQUARES, each, each, *self._moments(state))

    def _fit(
        self,
        state: State,
        stage: str,
        shape: Tensor,
        component: Tensor,
        counts: Tensor,
        means: Tensor,
        noise: Tensor,
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
        network = self._network(means, factors, noise, component)
        if self._values is not None:
            values = state[MEANS][0]["values"]
            network.knots.copy_(curve(self._values, values.sums, values.deviation, float(counts.sum()), network, counts))
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
        """Find the cells that follow from the first two accesses; it takes seconds, so they are kept for the next call."""
        first = [state[stage][0] for stage in (MEANS, SQUARES)]
        if not self._found or not all(kept is own for kept, own in zip(self._found[0], first, strict=True)):
            mixture, counts = self._of_components(state), self._moments(state)[0]
            of_means, *_, of_cells, of_squares = (own.share * own.noise_shares.get("means", 1.0) for own in self.workloads)
            # A plan gives all accesses noise by their shares.
            unit = first[0]["means"].deviation / self.radius * math.sqrt(of_means)
            noise = unit / math.sqrt(of_cells), unit / math.sqrt(of_squares)
            self._found[:] = first, Cells.of_samples(self._basis, mixture, counts, self.cells, *noise)
        return self._found[1]

    @functools.cached_property
    def _found(self) -> list:
        return []

    @functools.cached_property
    def _basis(self) -> Basis:
        """The slow waves of a record, or of it without its slant: a function of the record alone."""
        layout, axes = self.schema.layout, self.schema.axes
        waves = cosines(layout, axes, self.size)
        if self.symmetries is None or not self.symmetries.upright:
            return waves
        return _Upright(layout, waves.vectors, axes)

    @property
    def _values(self) -> Histogram | None:
        """The histogram of pictures; None for series, where one curve for all readings would bend the moments."""
        if not isinstance(self.schema, ImageSchema):
            return None
        levels = self.schema.levels
        # A few levels have no shape between them.
        return Histogram(self.schema.layout, self.schema.channels, _PIECES if levels >= 2 * _PIECES else 1)

    def _network(self, means: Tensor, factors: Tensor, noise: Tensor, component: Tensor) -> StackedGaussians:
        layout, k = self.schema.layout, len(means)
        declared = None if self.symmetries is None else asdict(self.symmetries)
        pieces = 1 if self._values is None else self._values.shape[1] - 2
        sizes = {"size": self.size, "rank": factors.shape[1], "pieces": pieces}
        network = StackedGaussians(self.schema, k, **sizes, symmetries=declared)
        for c in range(k):
            centre, factor = through_clipping(means[c], factors[c], self._basis.vectors, *noise[c].tolist(), several=k)
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
