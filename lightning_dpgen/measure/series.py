"""The recipe of series: coordinates in which all of a series is of one size, and a mixture in the largest of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.measure.moments import likely_counts, likely_means
from lightning_dpgen.measure.recipe import Recipe
from lightning_dpgen.measure.series_waves import (
    EDGES,
    ReadingScores,
    SeriesWaves,
    find_scales,
    find_scores,
    largest_wave,
    positions,
    scale_edges,
    through_scores,
)
from lightning_dpgen.measure.statistics import (
    UNITS,
    CharacteristicFunctions,
    CoordinateHistograms,
    Counts,
    Means,
    SecondMoments,
    Statistic,
)
from lightning_dpgen.measure.workload import State, Workload
from lightning_dpgen.models.bases import cosines, unit_values
from lightning_dpgen.models.gaussians import SeriesGaussians
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.networks import check_sizes
from lightning_dpgen.privacy.plan import Plan

# Lengths of frequencies, in units of the inverse deviation of a direction; and the shares of directions that one sees.
_SHORTEST, _LONGEST, _SEEN = 0.3, 4.0, (1.0, 0.5, 0.25)
# Steps of a fit, its first step size, how far components begin apart, and how wide; and the number of beginnings.
_STEPS, _RATE, _BEGIN, _BEGINNINGS = 400, 0.06, 0.7, 3


@dataclass(frozen=True)
class Fitted:
    """A mixture whose components each have a share of each label.

    Args:
        weights: (components, labels) probabilities, which add up to 1.
        means: (components, d).
        factors: (components, d, d) F of each covariance ``F^T F``.
    """

    weights: Tensor
    means: Tensor
    factors: Tensor


def draw_frequencies(m: int, d: int, generator: torch.Generator) -> Tensor:
    """Draw frequencies (m, d): many of few directions each, of uniform length."""
    drawn = torch.randn(m, d, generator=generator)
    seen = torch.tensor(_SEEN)[torch.randint(len(_SEEN), (m, 1), generator=generator)]
    kept = torch.rand(m, d, generator=generator) < seen
    kept[:, 0] |= ~kept.any(dim=1)
    drawn = torch.nn.functional.normalize(drawn * kept, dim=1)
    return drawn * (_SHORTEST + (_LONGEST - _SHORTEST) * torch.rand(m, 1, generator=generator))


def fit_mixture(
    functions: Tensor, shares: Tensor, frequencies: Tensor, components: int, generator: torch.Generator
) -> Fitted:
    """Fit a mixture, by least squares, to characteristic functions of each label.

    Post-processing. The function of a Gaussian is known in closed form, and the noise of each number is the same. A fit
    ends in one of many places near each other, so it begins in a few, and the mixture holds the components of all.

    Args:
        functions: (labels, 2, m) noisy real and imaginary parts, which are at most the share of the label.
        shares: (labels,) shares of the labels, where the fit begins.
        frequencies: (m, d).
        components: number of components of one fit.
        generator: public generator of the beginnings.
    """
    fits = [_fit(functions, shares, frequencies, components, generator) for _ in range(_BEGINNINGS)]
    weights = torch.cat([fit.weights for fit in fits]) / len(fits)
    return Fitted(weights, torch.cat([fit.means for fit in fits]), torch.cat([fit.factors for fit in fits]))


def _fit(found: Tensor, shares: Tensor, frequencies: Tensor, components: int, generator: torch.Generator) -> Fitted:
    """Fit once, from components that are drawn."""
    d, real, imaginary = frequencies.shape[1], *found.float().unbind(dim=1)
    means = torch.randn(components, d, generator=generator).mul_(_BEGIN).requires_grad_()
    factors = torch.eye(d).mul(_BEGIN).repeat(components, 1, 1).requires_grad_()
    logits = shares.float().clamp(min=1e-6).log().repeat(components, 1).requires_grad_()
    optimizer = torch.optim.Adam([means, factors, logits], lr=_RATE)
    slower = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _STEPS)
    with torch.enable_grad():
        for _ in range(_STEPS):
            weights = logits.flatten().softmax(dim=0).view(components, -1)
            angles = means @ frequencies.T
            size = (factors @ frequencies.T).square().sum(dim=1).mul(-0.5).exp()
            misfit = weights.T @ (size * angles.cos()) - real, weights.T @ (size * angles.sin()) - imaginary
            loss = sum(part.square().sum() for part in misfit)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            slower.step()
    return Fitted(weights.detach().double(), means.detach().double(), factors.detach().double())


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
        measured_moments = state[MOMENTS][0]
        counts = likely_counts(measured_moments["counts"].sums, measured_moments["counts"].deviation)
        means, _ = likely_means(measured_moments["means"].sums, counts, measured_moments["means"].deviation)
        measured = [measured_moments["squares"]]
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
