"""Normal scores of readings, which follow from noisy histograms of each, and the curves that lead back."""

from __future__ import annotations

import math

import torch
from torch import Tensor

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
    left, found, right = torch.linalg.svd(sums, full_matrices=False)
    rows, bins = sums.shape
    kept = found > 1.02 * deviation * (math.sqrt(rows) + math.sqrt(bins))
    kept[0] = True
    beyond = (found.square() - deviation**2 * (rows + bins)).square() - 4.0 * rows * bins * deviation**4
    own = torch.where(kept, beyond.clamp(min=0.0).sqrt() / found.clamp(min=1e-12), 0.0)
    shares = (left * own) @ right / n
    falling = shares.sort(dim=1, descending=True).values
    over = (falling.cumsum(dim=1) - 1.0) / torch.arange(1, bins + 1)
    last = (falling > over).double().mul(torch.arange(1, bins + 1)).argmax(dim=1)
    return (shares - over.gather(1, last[:, None])).clamp(min=0.0)
