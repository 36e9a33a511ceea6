"""Waves of series in whole numbers, of readings or of their normal scores; centres and scales from noisy histograms."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.models.bases import Basis, unit_values

# Edges of bins: 0, which has a bin of its own, some by factors of a root of 2, equal steps, and all below 1 itself.
_FINE, _STEPS = 14, 32
EDGES = torch.cat(
    [
        torch.zeros(1, dtype=torch.float64),
        2.0 ** (torch.arange(_FINE, dtype=torch.float64) / 2.0 - 12.0),
        torch.arange(1, _STEPS, dtype=torch.float64) / _STEPS,
        torch.tensor([1.0 - 2.0**-25], dtype=torch.float64),
    ]
)
# Scores end here, and those of values where nothing was seen go on in steps of 1 to the last.
_END, _LAST = 3.5, 4.0
# The share of readings at the ends of their range from which on a series is described by scores, deviations of doubt, and
# the most noise of a count, in all records, with which histograms show scores.
_MANY, _CERTAIN, _NOISIEST = 0.05, 3.0, 0.06


class ReadingScores:
    """Normal scores of the readings of a series: monotone, of straight pieces between edges, for each place of its own.

    A reading at the lower end of its range gets the mean of the scores that are below all others, one at the upper end
    that of those above. Each score is computed by itself, by single operations, so it follows from its reading bit for bit.

    Args:
        below: (units, edges) shares of readings up to each edge, increasing.

    Example:
        >>> below = torch.cat([torch.full((1, 20), 0.5), torch.ones(1, 27)], dim=1).double()
        >>> ReadingScores(below)(torch.tensor([[0.0], [0.01]], dtype=torch.float64)).round(decimals=2)
        tensor([[-0.8000],
                [ 0.0000]], dtype=torch.float64)
    """

    def __init__(self, below: Tensor) -> None:
        self.below = below
        self.knots = positions(below, torch.special.ndtri)
        self._steps = self.knots.diff(dim=1) / EDGES.diff()
        self._low = self.clamped_mean(self.knots[:, 0])
        self._high = -self.clamped_mean(-self.knots[:, -1])

    def __call__(self, units: Tensor) -> Tensor:
        """Return the scores of units (n, units), float64."""
        place = torch.bucketize(units, EDGES).T
        inner = (place - 1).clamp(0, len(EDGES) - 2)
        scores = (units.T - EDGES[inner]) * self._steps.gather(1, inner)
        scores = (self.knots.gather(1, inner) + scores).clamp_(-_LAST, _LAST)
        scores = torch.where(place == 0, self._low[:, None], scores)
        return torch.where(place == len(EDGES), self._high[:, None], scores).T

    def censored(self, values: Tensor) -> Tensor:
        """Return the scores (n, units) of readings that values of a standard normal stand for."""
        found = torch.where(values < self.knots[:, 0], self._low, values.clamp(-_LAST, _LAST))
        return torch.where(values > self.knots[:, -1], self._high, found)

    @staticmethod
    def clamped_mean(ends: Tensor) -> Tensor:
        """Return the mean of a standard normal below each end."""
        density = (-0.5 * ends.square()).exp() / math.sqrt(2.0 * math.pi)
        return (-density / torch.special.ndtr(ends).clamp(min=1e-12)).clamp(-_LAST, _LAST)


def find_scores(sums: Tensor, deviation: float, n: float) -> ReadingScores | None:
    """Return the scores that noisy histograms show; None where few readings lie at the ends of their range.

    Post-processing. Where many do, as those of a household at 0, a Gaussian is far from the readings; elsewhere scores
    would only bend smooth series, by the noise of each histogram. So do histograms that are noise for the most part.

    Args:
        sums: (units, bins) noisy counts: of 0, between `EDGES`, and of 1.
        deviation: standard deviation of the noise of each.
        n: number of records.
    """
    at_ends = float(sums[:, 0].sum() + sums[:, -1].sum()) / (n * len(sums))
    if deviation > _NOISIEST * n or at_ends <= _MANY + _CERTAIN * deviation * math.sqrt(2.0 / len(sums)) / n:
        return None
    return ReadingScores(_without_noise(sums, deviation, n).cumsum(dim=1)[:, :-1].clamp(0.0, 1.0))


def positions(below: Tensor, quantile) -> Tensor:
    """Return knots (units, edges) of curves: the quantiles at these shares, and steps of 1 where nothing was seen."""
    least = float(torch.special.ndtr(torch.tensor(-_END, dtype=torch.float64)))
    knots = quantile(below.clamp(least, 1.0 - least))
    above, under = (below >= 1.0 - least).double(), (below <= least).double()
    knots = knots + (above.cumsum(dim=1) - 1.0).clamp(min=0.0)
    return knots - (under.flip(1).cumsum(dim=1).flip(1) - 1.0).clamp(min=0.0)


def _without_noise(sums: Tensor, deviation: float, n: float) -> Tensor:
    """Return shares (units, bins): what the histograms have in common beyond the noise, and at least 0, with a sum of 1.

    Histograms of neighbouring readings are alike, so few singular values of their matrix are beyond the largest that noise
    makes, ``s (sqrt(units) + sqrt(bins))``. What noise adds to these is taken off (Gavish and Donoho 2017).
    """
    rotations, lengths, right = torch.linalg.svd(sums, full_matrices=False)
    rows, bins = sums.shape
    kept = lengths > 1.02 * deviation * (math.sqrt(rows) + math.sqrt(bins))
    kept[0] = True
    beyond = (lengths.square() - deviation**2 * (rows + bins)).square() - 4.0 * rows * bins * deviation**4
    cleaned = torch.where(kept, beyond.clamp(min=0.0).sqrt() / lengths.clamp(min=1e-12), 0.0)
    shares = (rotations * cleaned) @ right / n
    falling = shares.sort(dim=1, descending=True).values
    over = (falling.cumsum(dim=1) - 1.0) / torch.arange(1, bins + 1)
    last = (falling > over).double().mul(torch.arange(1, bins + 1)).argmax(dim=1)
    return (shares - over.gather(1, last[:, None])).clamp(min=0.0)


# Readings are within a half of the middle of their range, and scores are no larger than 4. As multiples both have 30 bits.
_HALF, _LARGEST_SCORE, _LARGEST_MULTIPLE = 0.5, 4.0, 2.0**30


class SeriesWaves(Basis):
    """Waves of series, each less a centre and over a scale, which are public.

    A wave, and the bin that it falls into, follows from its own record alone, bit for bit. Waves of readings are about the
    middle of their bounds.

    Args:
        basis: the slowest waves, as `cosines` gives them.
        scores: what takes the place of readings; None for these themselves.
        centre, scale: (size,) of each wave; None for 0 and 1.

    Example:
        >>> from lightning_dpgen.data.layout import Layout
        >>> from lightning_dpgen.models.bases import cosines
        >>> layout = Layout(units=3)
        >>> waves = SeriesWaves(cosines(layout, (3, 1), 3), scale=torch.tensor([1.0, 0.5, 0.1]))
        >>> waves.coordinates(Encoded(np.full((1, 3), 0.5), np.zeros((1, 0), np.uint8))).abs().sum() < 1e-12
        tensor(True)
    """

    def __init__(
        self, basis: Basis, scores: ReadingScores | None = None, centre: Tensor | None = None, scale: Tensor | None = None
    ) -> None:
        super().__init__(basis.layout, basis.vectors)
        self.scores, self.largest = scores, _HALF if scores is None else _LARGEST_SCORE
        self.steps = _LARGEST_MULTIPLE / self.largest
        self.centre = torch.zeros(self.size, dtype=torch.float64) if centre is None else centre.double()
        self.scale = torch.ones(self.size, dtype=torch.float64) if scale is None else scale.double()

    def coordinates(self, records: Encoded) -> Tensor:
        return super().coordinates(records).sub_(self.centre).div_(self.scale)

    def multiples(self, records: Encoded) -> Tensor:
        units = unit_values(records, self.layout)
        values = units - 0.5 if self.scores is None else self.scores(units)
        return values.clamp(-self.largest, self.largest).mul_(self.steps).round_()

    def scaled(self, centre: Tensor, scale: Tensor) -> SeriesWaves:
        """Return these waves, about another centre and over another scale."""
        return SeriesWaves(self, self.scores, centre, scale)


# Bins are a quarter of an octave wide, over so many octaves below the largest wave.
_OCTAVES, _PARTS = 13, 4
# A scale is near that of waves alike, within a factor of e^0.5.
_APART, _TURNS = 0.5, 3
# The share of records which one heap has to hold, deviations of doubt, and the shares that are beyond its ends.
_HELD, _SURE_SIGMAS, _BEYOND = 0.85, 3.0, 1e-3


def scale_edges(largest: float) -> Tensor:
    """Return the edges of bins of both signs that grow by factors, up to a largest wave; the last bins have no end."""
    steps = torch.arange(1, _OCTAVES * _PARTS, dtype=torch.float64)
    edges = largest * 2.0 ** (-steps / _PARTS)
    return torch.cat([-edges, edges.flip(0)])


def find_scales(sums: Tensor, deviation: float, n: float, edges: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
    """Return centre and scale (size,) of each wave: those of the normal distribution whose counts are nearest.

    Post-processing. Where a wave has several heaps, and the nearest distribution holds but one of them, the nearest by
    cumulative counts is taken, which has more noise. Among scales that noise does not tell apart, those are taken which
    fall like a power of the number of turns, which is fitted to all waves.

    Args:
        sums: (size, bins) noisy counts between the edges.
        deviation: standard deviation of the noise of each.
        n: number of records.
        edges: as of `scale_edges`.
        turns: (size,) half turns of each wave.
    """
    largest = float(edges.max()) * 2.0 ** (1.0 / _PARTS)
    centres = torch.cat([edges, torch.zeros(1, dtype=torch.float64)])
    scales = largest * 2.0 ** (-torch.arange(2.0, 2.0 * _OCTAVES, dtype=torch.float64) / 2.0)
    below = torch.special.ndtr((edges - centres[:, None, None]) / scales[:, None]).flatten(0, 1)
    shares = torch.cat([below, torch.ones(len(below), 1, dtype=torch.float64)], dim=1).diff(
        dim=1, prepend=below[:, :1] * 0.0
    )
    doubt = max(deviation, 1.0) ** 2
    misfit = (n * n * shares.square().sum(dim=1) - 2.0 * n * sums @ shares.T) / (2.0 * doubt)
    best = misfit.argmin(dim=1)
    # Noise of sums from below and of those from above is least in the mean of both.
    found = 0.5 * (sums.cumsum(dim=1)[:, :-1] + n - sums.flip(1).cumsum(dim=1).flip(1)[:, 1:])
    cumulative = (n * n * below.square().sum(dim=1) - 2.0 * n * found @ below.T) / (0.5 * doubt * len(edges))
    inside = ((below > _BEYOND)[best] & (below < 1.0 - _BEYOND)[best]).double()
    inside = torch.cat([inside, inside[:, -1:]], dim=1)
    heaps = (inside * sums).sum(dim=1) + _SURE_SIGMAS * deviation * inside.sum(dim=1).sqrt() < _HELD * n
    misfit = torch.where(heaps[:, None], cumulative, misfit)
    of_scale = scales.log().repeat(len(centres))
    best = misfit.argmin(dim=1)
    powers = torch.stack([torch.ones_like(turns), (1.0 + turns).log()], dim=1)
    for _ in range(_TURNS):
        likely = powers @ torch.linalg.lstsq(powers, of_scale[best][:, None]).solution
        best = (misfit + 0.5 * ((of_scale - likely) / _APART).square()).argmin(dim=1)
    return centres[best // len(scales)], scales[best % len(scales)]


def largest_wave(units: int, reach: float) -> float:
    """Return the length of the longest record whose values are within the reach, a bound of each wave."""
    return reach * math.sqrt(units)


# Draws and turns of the fit, and the part of what is missing that each turn makes up for.
_DRAWS, _ROUNDS, _PART = 4000, 15, 0.7
_LEAST = 1e-4


def through_scores(means: Tensor, covariance: Tensor, vectors: Tensor, scores: ReadingScores) -> tuple[Tensor, Tensor]:
    """Return means (k, d), and a root (d, d) of one covariance, whose values have these moments once they are scores.

    Post-processing. Readings at an end of their range all have one score, so moments of scores are smaller than those of
    the values behind them. By turns values are drawn, become scores, and most of what is missing is added, as long as
    that brings the second moments nearer.

    Args:
        means: (k, d) of the waves of scores, of each label.
        covariance: (d, d) within all labels.
        vectors: (d, units), orthonormal rows.
        scores: the scores.
    """
    d = len(covariance)
    z = torch.randn(max(_DRAWS, 20 * d), d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = torch.linalg.qr(z - z.mean(dim=0))[0] * len(z) ** 0.5
    common = means.mean(dim=0)
    centre, moments, best = common.clone(), covariance.clone(), (math.inf, common, covariance)
    for _ in range(_ROUNDS):
        values, directions = torch.linalg.eigh(moments)
        root = values.clamp(min=_LEAST).sqrt()[:, None] * directions.T
        scored = scores.censored((centre + z @ root) @ vectors) @ vectors.T
        mean = scored.mean(dim=0)
        missing = covariance - (scored - mean).T @ (scored - mean) / len(z)
        far = float(missing.square().sum())
        if far < best[0]:
            best = (far, centre.clone(), root)
        centre, moments = centre + _PART * (common - mean), root.T @ root + _PART * missing
    _, centre, root = best
    centres = centre + means - common
    for _ in range(_ROUNDS if len(means) > 1 else 0):
        scored = torch.stack([scores.censored((own + z @ root) @ vectors).mean(dim=0) for own in centres]) @ vectors.T
        centres = centres + _PART * (means - scored)
    return centres, root
