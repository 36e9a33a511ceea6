"""The recipe of a Gaussian for each component: means are measured first, then second moments about them."""

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
from lightning_dpgen.measure.clipped_gaussians import through_clipping
from lightning_dpgen.measure.recipe import Recipe
from lightning_dpgen.measure.shrinkage import factors_of, likely_counts, likely_means
from lightning_dpgen.measure.statistics import Counts, Histogram, Means, Squares, Statistic, check_radius
from lightning_dpgen.measure.value_curve import curve
from lightning_dpgen.measure.workload import State, Workload, check_share
from lightning_dpgen.models.bases import Basis, cosines, unit_values
from lightning_dpgen.models.gaussians import StackedGaussians
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.networks import check_sizes
from lightning_dpgen.models.symmetries import Symmetries, upright
from lightning_dpgen.privacy.plan import Plan

MEANS, SQUARES = "means", "squares"
# The parts of the first access's inverse squared noise for counts and for the histogram of values.
_COUNTS, _VALUES = 0.02, 0.05
# Pieces of the curve of values, where values may lie between its ends.
_PIECES = 16


class _Upright(Basis):
    """A basis of pictures without their slant, which is a function of each picture alone."""

    def __init__(self, layout: Layout, vectors: Tensor, axes: tuple[int, ...]) -> None:
        super().__init__(layout, vectors)
        self._axes = axes

    def coordinates(self, records: Encoded) -> Tensor:
        units = unit_values(records, self.layout)
        return upright(units.view(-1, *self._axes)).reshape(units.shape) @ self.vectors.T


@dataclass(frozen=True)
class GaussianRecipe(Recipe):
    """Two accesses, and a mixture of Gaussians that is fitted to them without another look at a record.

    The first measures counts and means of the components, and for pictures a histogram of values. Second moments about
    these means, public by then, are small, and so is the radius to which differences are shortened; their noise is in
    proportion to the squared radius.

    Args:
        schema: the schema of pictures or series; public.
        k: number of components.
        n: the declared number of records.
        size: number of slowest waves in which records are described.
        radius, spread: the lengths to which records and their differences from the mean are shortened.
        means_share: share of the mu^2 of both accesses; second moments get the rest.
        symmetries: symmetries of pictures; declared, so they are public.

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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("means_share", self.means_share)
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
    def workloads(self) -> tuple[Workload, Workload]:
        """Counts, values and means; second moments."""
        largest, share = self.n / self.k, self.means_share
        weights = {"counts": _COUNTS} | ({} if self._values is None else {"values": _VALUES})
        first = Workload(MEANS, weights | {"means": 1.0 - sum(weights.values())}, largest, share)
        return first, Workload(SQUARES, {"squares": 1.0}, largest, 1.0 - share)

    def statistics(self, stage: str, state: State) -> dict[str, Statistic]:
        """Return the statistics of a stage.

        One record changes one count by 1, shares of values by 1 a channel, one sum of records by a vector of the radius,
        one sum of outer products by a matrix of Frobenius norm spread^2.
        """
        if stage == MEANS:
            found = {"counts": Counts(self.k), "means": Means(self._basis, self.k, self.radius)}
            return found if self._values is None else found | {"values": self._values}
        return {"squares": Squares(self._basis, _counts_and_means(state)[1], self.spread)}

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
        counts, means, noise = _counts_and_means(state)
        squares = state[SQUARES][0]["squares"]
        noise = torch.stack([noise, squares.deviation / math.sqrt(2.0) / counts], dim=1)
        network = self._network(means, factors_of(squares.sums, counts, squares.deviation), noise)
        if self._values is not None:
            values = state[MEANS][0]["values"]
            network.knots.copy_(curve(self._values, values.sums, values.deviation, float(counts.sum()), network, counts))
        return Mixture(network, (counts / counts.sum()).float())

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

    def _network(self, means: Tensor, factors: Tensor, noise: Tensor) -> StackedGaussians:
        layout = self.schema.layout
        declared = None if self.symmetries is None else asdict(self.symmetries)
        pieces = 1 if self._values is None else self._values.shape[1] - 2
        sizes = {"size": self.size, "rank": factors.shape[1], "pieces": pieces}
        network = StackedGaussians(self.schema, self.k, **sizes, symmetries=declared)
        for c in range(self.k):
            centre, factor = through_clipping(means[c], factors[c], self._basis.vectors, *noise[c].tolist())
            network.centres[c], network.factors[c] = centre, factor
        if layout.label is not None:
            # The components of the first label come first, then those of the next.
            classes = layout.groups[layout.label]
            network.shares.copy_(torch.eye(classes).repeat_interleave(self.k // classes, dim=0))
        return network


def _counts_and_means(state: State) -> tuple[Tensor, Tensor, Tensor]:
    first = state[MEANS][0]
    counts = likely_counts(first["counts"].sums, first["counts"].deviation)
    means, noise = likely_means(first["means"].sums, counts, first["means"].deviation)
    return counts, means, noise


def label_components(records: Records, clusters: Tensor, k: int) -> Tensor:
    """Return the component (N,) of each record: one for each label and each of k clusters. Private.

    Args:
        records: private.
        clusters: (N,) whole numbers from 0 to k - 1; private.
    """
    label = records.schema.layout.label
    if label is None:
        return clusters
    return torch.from_numpy(records.encoded.codes[:, label].astype("int64")) * k + clusters
