"""The recipe of series: coordinates in which all of a series is of one size, and a mixture in the largest of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.measure.censored_gaussians import through_scores
from lightning_dpgen.measure.reading_scores import EDGES, ReadingScores, find_scores, positions
from lightning_dpgen.measure.recipe import Recipe
from lightning_dpgen.measure.series_statistics import CharacteristicFunctions, CoordinateHistograms, SecondMoments
from lightning_dpgen.measure.series_waves import SeriesWaves
from lightning_dpgen.measure.shrinkage import likely_counts, likely_means
from lightning_dpgen.measure.sketched_mixture import draw_frequencies, fit_mixture
from lightning_dpgen.measure.statistics import UNITS, Counts, Means, Statistic
from lightning_dpgen.measure.wave_scales import find_scales, largest_wave, scale_edges
from lightning_dpgen.measure.workload import State, Workload
from lightning_dpgen.models.bases import cosines, unit_values
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.networks import check_sizes
from lightning_dpgen.models.series_gaussians import SeriesGaussians
from lightning_dpgen.privacy.plan import Plan

VALUES, SCALES, MOMENTS, SHAPES = "values", "scales", "moments", "shapes"
# The parts of mu^2 of the accesses, and of the third one's inverse squared noise.
_SHARES = {VALUES: 0.08, SCALES: 0.03, MOMENTS: 0.17, SHAPES: 0.72}
_PARTS = {"counts": 0.02, "means": 0.15, "squares": 0.83}
# The length to which a series is shortened, beyond that of one whose waves are all as large as their scales.
_BEYOND = 1.5
# Directions with components of their own; the most components of all labels together.
_LEADING, _MOST = 12, 200
# The least variance of a direction, in that of its waves, and of a wave, in its scale.
_LEAST, _LEAST_WAVE = 0.02, 0.05


@dataclass(frozen=True)
class SeriesRecipe(Recipe):
    """Four accesses, and a mixture of Gaussians that is fitted to them without another look at a record.

    The first two find coordinates: histograms of each reading say if many lie at the ends of their range, in which case
    their normal scores take the place of readings; histograms of each wave say how large it is. The third measures means
    and second moments of waves in units of their sizes. The fourth measures the characteristic function of the largest
    directions, to which a mixture is fitted; of scores it measures second moments again, since a Gaussian behind a curve
    for each reading is what describes them.

    Args:
        schema: the schema of series; public.
        n: the declared number of records.
        size: number of slowest waves in which records are described.
        components: components of the mixture, in each of three fits from other beginnings.
        frequencies: number of frequencies of the characteristic functions.
        seed: seed of frequencies, and of where the fit begins; public.

    Raises:
        ValueError: for a number out of range.
    """

    schema: Schema
    n: int
    size: int
    components: int = 20
    frequencies: int = 8000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.schema.dimensions != 1:
            raise ValueError(f"schema of kind {self.schema.kind}: expected series")
        super().__post_init__()
        check_sizes(size=self.size, components=self.components, frequencies=self.frequencies)
        if self.size > self.schema.layout.units:
            raise ValueError(f"size={self.size}: expected a whole number from 1 to {self.schema.layout.units}, the units")

    @property
    def k(self) -> int:
        """The number of labels, 1 without a label: the components that records are of."""
        label = self.schema.layout.label
        return 1 if label is None else self.schema.layout.groups[label]

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """Histograms of readings and of waves; counts, means and second moments; shapes."""
        parts = ({"values": 1.0}, {"scales": 1.0}, _PARTS, {"shapes": 1.0})
        parted = zip(parts, _SHARES.items(), strict=True)
        return tuple(Workload(stage, part, self.n / self.k, share, units=UNITS) for part, (stage, share) in parted)

    @property
    def from_fits(self) -> frozenset[str]:
        """Shapes in the leading directions of noisy moments."""
        return frozenset({SHAPES})

    def statistics(self, stage: str, state: State) -> dict[str, Statistic]:
        """Return the statistics of a stage.

        One record changes one count of each reading by 1, and one of each wave, one count of labels by 1, one sum of waves
        by a vector of the radius, sums of outer products by a matrix of Frobenius norm radius^2, and characteristic
        functions by a vector of length 1.
        """
        layout = self.schema.layout
        if stage == VALUES:

            def readings(records) -> Tensor:
                return unit_values(records, layout)

            return {"values": CoordinateHistograms(layout, readings, layout.units, EDGES)}
        waves = self._waves(state)
        if stage == SCALES:
            return {"scales": CoordinateHistograms(layout, waves.coordinates, self.size, self._edges(waves))}
        waves = self._scaled(state)
        if stage == MOMENTS:
            means, squares = Means(waves, self.k, self._radius), SecondMoments(waves, self._radius)
            return {"counts": Counts(self.k), "means": means, "squares": squares}
        if waves.scores is not None:
            return {"shapes": SecondMoments(waves, self._radius)}
        means, inward, _ = self._leading(state)
        return {"shapes": CharacteristicFunctions(waves, means, inward, self._frequencies(len(inward)))}

    def warnings(self, plan: Plan) -> list[str]:
        """Return by how much noise moves the mean of a wave where that is more than series differ by."""
        deviation = plan.stage(MOMENTS).access.multipliers["means"] * self._radius * plan.max_rows
        off = deviation * self.k / self.n
        if off <= 1.0:
            return []
        return [
            f"the mean of a wave is off by {off:,.2g} times what series differ by because of noise: hardly anything is "
            "found; take fewer waves, or raise epsilon"
        ]

    def _mixture(self, state: State) -> Mixture:
        """Fit the mixture to these measurements."""
        return self._of_readings(state) if self._waves(state).scores is None else self._of_scores(state)

    @property
    def _radius(self) -> float:
        return math.sqrt(self.size) + _BEYOND

    def _waves(self, state: State) -> SeriesWaves:
        values = state[VALUES][0]["values"]
        scores = find_scores(values.sums, values.deviation, float(self.n))
        return SeriesWaves(cosines(self.schema.layout, self.schema.axes, self.size), scores)

    def _edges(self, waves: SeriesWaves) -> Tensor:
        # Readings are within a half of the middle of their range, and scores within a few deviations of 0.
        return scale_edges(largest_wave(self.schema.length, 0.5 if waves.scores is None else 4.0))

    def _scaled(self, state: State) -> SeriesWaves:
        waves, found = self._waves(state), state[SCALES][0]["scales"]
        turns = torch.arange(self.size, dtype=torch.float64).div(self.schema.axes[-1], rounding_mode="floor")
        return waves.scaled(*find_scales(found.sums, found.deviation, float(self.n), self._edges(waves), turns))

    def _moments(self, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Return counts and means (k, size) of labels, and the covariance about these, in scaled waves."""
        found = state[MOMENTS][0]
        counts = likely_counts(found["counts"].sums, found["counts"].deviation)
        means, _ = likely_means(found["means"].sums, counts, found["means"].deviation)
        measured = [found["squares"]]
        if self._waves(state).scores is not None and SHAPES in state:
            measured.append(state[SHAPES][0]["shapes"])
        # Two measurements of one sum count by their inverse squared noise.
        parts = [1.0 / max(own.deviation, 1e-9) ** 2 for own in measured]
        squares = sum(part * own.sums for part, own in zip(parts, measured, strict=True)) / sum(parts)
        covariance = 0.5 * (squares + squares.T) / counts.sum() - (means.T * counts) @ means / counts.sum()
        scale = covariance.diagonal().clamp(min=_LEAST_WAVE).sqrt()
        values, directions = torch.linalg.eigh(covariance / torch.outer(scale, scale))
        root = values.clamp(min=_LEAST).sqrt()[:, None] * directions.T * scale
        return counts, means, root.T @ root

    def _leading(self, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Return the means of labels in scaled waves, the leading directions inward, and all directions outward.

        In these directions records have variance 1 about the mean of their label; the largest come first. The first matrix
        (leading, size) takes scaled waves there, the second (size, size) leads back.
        """
        _, means, within = self._moments(state)
        scale = self._scaled(state).scale
        values, vectors = torch.linalg.eigh(within * torch.outer(scale, scale))
        values, vectors = values.flip(0).clamp(min=1e-18), vectors.flip(1)
        inward, outward = (vectors / values.sqrt()).T * scale, (vectors * values.sqrt()).T / scale
        return means, inward[: min(_LEADING, self.size)], outward

    def _frequencies(self, leading: int) -> Tensor:
        return draw_frequencies(self.frequencies, leading, torch.Generator().manual_seed(self.seed))

    def _of_readings(self, state: State) -> Mixture:
        waves, counts = self._scaled(state), self._moments(state)[0]
        means, inward, outward = self._leading(state)
        leading, shapes = len(inward), state[SHAPES][0]["shapes"]
        shares = counts / counts.sum()
        asked = min(self.components, max(1, _MOST // self.k))
        found = shapes.sums * math.sqrt(self.frequencies) / counts.sum()
        public = torch.Generator().manual_seed(self.seed)
        fitted = fit_mixture(found, shares, self._frequencies(leading), asked, public)
        centres = means[None] + (fitted.means @ outward[:leading])[:, None]
        components = len(fitted.means)
        network = SeriesGaussians(self.schema, components * self.k, size=self.size, lead=leading)
        to_units = waves.scale
        network.centres.copy_(centres.flatten(0, 1) * to_units + waves.centre + 0.5 * waves.vectors.sum(dim=1))
        network.factors.copy_(fitted.factors.repeat_interleave(self.k, dim=0))
        network.directions.copy_(outward[:leading] * to_units)
        network.common[leading:].copy_(outward[leading:] * to_units)
        self._share(network, components)
        return Mixture(network, fitted.weights.flatten().float())

    def _of_scores(self, state: State) -> Mixture:
        waves, (counts, means, covariance) = self._scaled(state), self._moments(state)
        scores: ReadingScores = waves.scores
        within = covariance * torch.outer(waves.scale, waves.scale)
        centres, root = through_scores(means * waves.scale + waves.centre, within, waves.vectors, scores)
        network = SeriesGaussians(self.schema, self.k, size=self.size, lead=1, pieces=len(EDGES) - 1)
        network.centres.copy_(centres)
        network.common.copy_(root)
        network.heights.copy_(EDGES)
        network.heights[-1] = 1.0
        weights = counts / counts.sum()
        deviations = (root @ waves.vectors).square().sum(dim=0).sqrt().clamp(min=1e-6)
        values = centres @ waves.vectors
        network.knots.copy_(positions(scores.below, lambda below: _quantiles(below, weights, values, deviations)))
        self._share(network, 1)
        return Mixture(network, weights.float())

    def _share(self, network: SeriesGaussians, components: int) -> None:
        """Let each component draw one label: labels follow each other for each of so many components."""
        if self.schema.layout.label is not None:
            network.shares.copy_(torch.eye(self.k).repeat(components, 1))


def _quantiles(below: Tensor, weights: Tensor, means: Tensor, deviations: Tensor) -> Tensor:
    """Return where so many lie below (units, edges), by mixtures of normals of means (k, units), by halving intervals."""
    low = (means - 6.0 * deviations).min(dim=0).values[:, None].expand_as(below)
    high = (means + 6.0 * deviations).max(dim=0).values[:, None].expand_as(below)
    for _ in range(60):
        middle = 0.5 * (low + high)
        found = torch.special.ndtr((middle - means[:, :, None]) / deviations[:, None])
        under = torch.einsum("k,kue->ue", weights, found) < below
        low, high = torch.where(under, middle, low), torch.where(under, high, middle)
    return 0.5 * (low + high)
