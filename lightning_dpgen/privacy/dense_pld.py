"""A discretised privacy loss of many points: made from a whole array, and composed with itself by one Fourier transform.

The class is dp-accounting's, and so is every number. dp-accounting bounds the tails of a composition by forty passes of
`scipy.special.logsumexp`, and makes a distribution by way of a dict of all points: together two thirds of the time that a
plan took.
"""

from __future__ import annotations

import math

import numpy as np
from dp_accounting.pld.pld_pmf import DensePLDPmf
from scipy import fft

# A Chernoff bound is sound at any order; dp-accounting takes these, over the number of points, in both directions.
_ORDERS = 20


class DenseLoss(DensePLDPmf):
    """The losses between two neighbours, at multiples of an interval; pessimistic."""

    @classmethod
    def connecting(cls, interval: float, lowest: int, deltas: np.ndarray) -> DenseLoss:
        """Connect the dots of a privacy profile (Doroshenko and others 2022, Algorithm 1).

        Args:
            interval: the distance between losses.
            lowest: the smallest loss, in intervals.
            deltas: (n,) one for each loss, in [0, 1], none larger than the one before; n is at least 2.
        """
        falls = -np.diff(deltas)
        probabilities = np.empty_like(deltas)
        probabilities[0] = 1.0 - deltas[0] - falls[0] / math.expm1(interval)
        probabilities[1:-1] = (falls[:-1] * math.exp(interval) - falls[1:]) / math.expm1(interval)
        probabilities[-1] = falls[-1] / -math.expm1(-interval)
        # Rounding must not make one negative.
        return cls(interval, lowest, np.maximum(probabilities, 0.0), deltas[-1], pessimistic_estimate=True)

    def self_compose(self, num_times: int, tail_mass_truncation: float = 1e-15) -> DensePLDPmf:
        """Return the loss of `num_times` runs, as dp-accounting gives it.

        Mass of at most `tail_mass_truncation`, in the tails, is moved to infinity.

        Raises:
            ValueError: for fewer runs than one, or no mass to move.
        """
        if num_times < 1 or tail_mass_truncation <= 0.0:
            raise ValueError(
                f"num_times={num_times}, tail_mass_truncation={tail_mass_truncation:g}: expected 1 or more, and a number "
                "above 0"
            )
        low, high = self._bounds(num_times, tail_mass_truncation)
        length = fft.next_fast_len(max(high - low + 1, self.size), real=True)
        composed = fft.irfft(fft.rfft(self._probs, length) ** num_times, length)
        # Mass beyond one end of the transform enters again at the other.
        composed = np.roll(composed, -low)[: high - low + 1]
        infinite = tail_mass_truncation - math.expm1(num_times * math.log1p(-self._infinity_mass))
        return DensePLDPmf(
            self._discretization, num_times * self._lower_loss + low, composed, infinite, self._pessimistic_estimate
        )

    def _bounds(self, times: int, tail: float) -> tuple[int, int]:
        """Return the first and last position, from `times` the first, outside of which lies at most `tail` of the whole."""
        low, high = 0, (self.size - 1) * times
        tilt = np.exp(np.arange(self.size) / self.size)
        up, down = self._probs.copy(), self._probs.copy()
        for k in range(1, _ORDERS + 1):
            order = k / self.size
            up *= tilt
            down /= tilt
            high = min(high, math.ceil((times * math.log(up.sum()) + math.log(2.0 / tail)) / order))
            low = max(low, math.floor((times * math.log(down.sum()) + math.log(2.0 / tail)) / -order))
        return low, high
