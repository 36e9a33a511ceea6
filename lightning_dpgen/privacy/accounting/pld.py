"""Privacy loss distributions of the events that a run is made of, under either relation.

Composition, rounding and truncation are dp-accounting's, in the quicker form of `DenseLoss`. The privacy profile of the
Poisson-sampled Gaussian is computed here, in closed form for whole arrays (dp-accounting inverts the loss point by point in
Python, which takes most of the time of an account), and so is its bound under replace-one.

dp-accounting bounds the tails of a composition by forty passes of `scipy.special.logsumexp`, and makes a distribution by
way of a dict of all points: together two thirds of the time that a plan took. A quarter of the rest were sums over tails,
one number at a time, and laws of scipy that were made for one quantile.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import dp_accounting
import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_mechanism import (
    AdditiveNoisePrivacyLoss,
    AdjacencyType,
    ConnectDotsBounds,
    GaussianPrivacyLoss,
)
from scipy import fft
from scipy.special import log_ndtr, ndtr, ndtri

# A Chernoff bound is sound at any order; dp-accounting takes these, over the number of points, in both directions.
_ORDERS = 20


class DenseLoss(DensePLDPmf):
    """The losses between two neighbours, at multiples of an interval; pessimistic. Every number is dp-accounting's."""

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
        return DenseLoss(
            self._discretization, num_times * self._lower_loss + low, composed, infinite, self._pessimistic_estimate
        )

    def compose(self, other: DensePLDPmf, tail_mass_truncation: float = 0.0) -> DensePLDPmf:
        """Return the loss of this and then another, as dp-accounting gives it, but for its passes over tails in Python.

        Mass of at most half of `tail_mass_truncation`, on the left, is moved to the least loss that is left, and as much on
        the right to infinity.
        """
        whole = super().compose(other)
        if tail_mass_truncation <= 0.0:
            return whole
        probabilities, tail = whole._probs, tail_mass_truncation / 2
        first = _first_above(probabilities, tail)
        right = max(len(probabilities) - _first_above(probabilities[::-1], tail), first + 1)
        kept = probabilities[first:right]
        kept[0] += np.sum(probabilities[:first])
        infinite = whole._infinity_mass + np.sum(probabilities[right:])
        return DenseLoss(self._discretization, whole._lower_loss + first, kept, infinite, self._pessimistic_estimate)

    def get_delta_for_epsilon(self, epsilon: float | Sequence[float]) -> float | np.ndarray:
        """Return delta at one epsilon, as dp-accounting gives it, from the losses above it alone; or at several."""
        if not isinstance(epsilon, float):
            return super().get_delta_for_epsilon(epsilon)
        losses = self._losses
        first = int(np.searchsorted(losses, epsilon, side="right"))
        return self._infinity_mass + np.dot(-np.expm1(epsilon - losses[first:]), self._probs[first:])

    @functools.cached_property
    def _losses(self) -> np.ndarray:
        return (np.arange(self.size) + self._lower_loss) * self._discretization

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


def _first_above(probabilities: np.ndarray, mass: float) -> int:
    """Return the number of probabilities, from the first, whose sums are within some mass."""
    above = np.cumsum(probabilities) > mass
    return int(above.argmax()) if above.any() else len(above)


ADD_OR_REMOVE_ONE, REPLACE_ONE = "add_or_remove_one", "replace_one"
RELATIONS = (ADD_OR_REMOVE_ONE, REPLACE_ONE)


class Unaccountable(ValueError):
    """No sound account of this event is known under this relation."""


def loss_distribution(
    event: dp_accounting.DpEvent, interval: float, relation: str = ADD_OR_REMOVE_ONE
) -> pld.PrivacyLossDistribution:
    """Return the privacy loss distribution of one event, rounded up to multiples of `interval`.

    Multipliers are those of add-or-remove-one; under replace-one the shift of a Gaussian is doubled here.

    Args:
        event: Gaussian, sampled (Poisson) or not, or Laplace; no composition.
        relation: ``add_or_remove_one`` or ``replace_one``.

    Raises:
        Unaccountable: for another event, sampled Laplace noise, or Laplace noise under replace-one.
    """
    sampled = isinstance(event, dp_accounting.PoissonSampledDpEvent)
    rate = event.sampling_probability if sampled else 1.0
    noise = event.event if sampled else event
    if isinstance(noise, dp_accounting.GaussianDpEvent):
        if relation == REPLACE_ONE:
            profiles = {AdjacencyType.REPLACE: replacement_profile}
        else:
            # Unsampled, a record added is as one removed.
            profiles = {AdjacencyType.REMOVE: removal_profile}
            profiles |= {AdjacencyType.ADD: addition_profile} if rate < 1.0 else {}
        losses = (_connected(f, noise.noise_multiplier, rate, interval, adjacency) for adjacency, f in profiles.items())
        return pld.PrivacyLossDistribution(*losses)
    if isinstance(event, dp_accounting.LaplaceDpEvent) and relation == ADD_OR_REMOVE_ONE:
        return pld.from_laplace_mechanism(event.noise_multiplier, value_discretization_interval=interval)
    raise Unaccountable(f"{type(event).__name__} of {type(noise).__name__} under {relation}: no sound account is known")


def in_arrays(distribution: pld.PrivacyLossDistribution) -> pld.PrivacyLossDistribution:
    """Return the same distribution as a `DenseLoss` in each direction: dp-accounting composes losses of one class alone."""
    directions = [distribution._pmf_remove] + ([] if distribution._symmetric else [distribution._pmf_add])
    distributions = []
    for losses in (direction.to_dense_pmf() for direction in directions):
        distributions.append(
            DenseLoss(
                losses._discretization,
                losses._lower_loss,
                losses._probs,
                losses._infinity_mass,
                losses._pessimistic_estimate,
            )
        )
    return pld.PrivacyLossDistribution(*distributions)


def epsilon_at(distribution: pld.PrivacyLossDistribution, delta: float) -> float:
    """Return the smallest epsilon at which both directions are within delta, as dp-accounting's search point by point."""
    epsilons = [_epsilon_of(distribution._pmf_remove.to_dense_pmf(), delta)]
    if not distribution._symmetric:
        epsilons.append(_epsilon_of(distribution._pmf_add.to_dense_pmf(), delta))
    return max(epsilons)


def _epsilon_of(losses: DensePLDPmf, delta: float) -> float:
    """Return epsilon of one direction: ``log((U - delta) / L)`` of the sums U of p and L of p e^-loss above it."""
    if losses._infinity_mass > delta:
        return math.inf
    # Losses up to 0 are above no epsilon.
    first = min(max(1 - losses._lower_loss, 0), losses.size)
    values = losses._discretization * np.arange(losses.size - 1 + losses._lower_loss, first - 1 + losses._lower_loss, -1)
    masses = losses._probs[first:][::-1]
    # Sums before each loss, and after the last one.
    upper = np.cumsum(np.concatenate([[losses._infinity_mass], masses]))
    lower = np.cumsum(np.concatenate([[0.0], masses * np.exp(-values)]))
    # Here e^-loss of the losses is less than the smallest number.
    vanished = (upper[1:] >= delta) & (lower[1:] == 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        reached = (upper[:-1] > delta) & (lower[:-1] > 0.0) & (np.log((upper[:-1] - delta) / lower[:-1]) >= values)
    stops = np.flatnonzero(reached | vanished)
    at = int(stops[0]) if len(stops) else len(values)
    if at < len(values) and not reached[at]:
        return float(values[at])
    if upper[at] <= lower[at] + delta:
        return 0.0
    return math.log((upper[at] - delta) / lower[at])


def gaussian_profile(loss: np.ndarray, multiplier: float) -> np.ndarray:
    """Return delta(loss) of the Gaussian mechanism (Balle and Wang 2018, Theorem 8)."""
    upper = 0.5 / multiplier - loss * multiplier
    ratio = loss + log_ndtr(upper - 1.0 / multiplier) - log_ndtr(upper)
    return ndtr(upper) * -np.expm1(np.minimum(ratio, 0.0))


def removal_profile(epsilon: np.ndarray, multiplier: float, rate: float) -> np.ndarray:
    """Return delta(epsilon) of ``(1-q) N(0) + q N(1)`` against ``N(0)``.

    It is ``q delta_Gauss(l)`` with ``e^l = 1 + (e^eps - 1) / q`` (Balle, Barthe and Gaboardi 2018, Theorem 2, with
    equality). Below log(1-q) the first density is everywhere the larger.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = epsilon - math.log(rate) + np.log1p(-(1.0 - rate) * np.exp(-epsilon))
        above = epsilon > math.log1p(-rate) if rate < 1.0 else np.ones_like(epsilon, dtype=bool)
        return np.where(above, rate * gaussian_profile(loss, multiplier), -np.expm1(epsilon))


def addition_profile(epsilon: np.ndarray, multiplier: float, rate: float) -> np.ndarray:
    """Return delta(epsilon) of the two swapped: ``q e^(eps - l) delta_Gauss(l)``, ``e^-l = 1 + (e^-eps - 1) / q``."""
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = epsilon + math.log(rate) - np.log1p(-(1.0 - rate) * np.exp(epsilon))
        below = epsilon < -math.log1p(-rate) if rate < 1.0 else np.ones_like(epsilon, dtype=bool)
        return np.where(below, rate * np.exp(epsilon - loss) * gaussian_profile(loss, multiplier), 0.0)


def replacement_profile(epsilon: np.ndarray, multiplier: float, rate: float) -> np.ndarray:
    """Return delta(epsilon) of ``(1-q) N(0) + q N(1)`` against ``(1-q) N(0) + q N(-1)``: the worst replaced record.

    A proof that this antipodal pair dominates every other is in docs/guarantees/accounting.md ("Replace-one under
    sampling"). The loss falls in x, and reaches epsilon at ``x = m^2 (asinh(-A sinh(eps/2)) - eps/2)`` with ``A = e^(1 /
    2m^2) (1-q)/q``. Below 0, by symmetry, ``delta(eps) = 1 - e^eps + e^eps delta(-eps)``.
    """
    size = np.abs(epsilon)
    with np.errstate(divide="ignore"):
        # log sinh and asinh of an exponential, neither of which may overflow.
        exponent = 0.5 / multiplier**2 + np.log((1.0 - rate) / rate) + size / 2 + np.log(-np.expm1(-size) / 2)
    turned = np.where(exponent > 20.0, exponent + math.log(2.0), np.arcsinh(np.exp(np.minimum(exponent, 20.0))))
    x = multiplier * (-turned - size / 2)
    with_x = log_ndtr(x + 1.0 / multiplier)
    neither = (1.0 - rate) * np.expm1(size) * np.exp(log_ndtr(x) - with_x)
    with_y = rate * np.exp(size + log_ndtr(x - 1.0 / multiplier) - with_x)
    positive = np.exp(with_x) * np.maximum(rate - neither - with_y, 0.0)
    return np.where(epsilon >= 0.0, positive, -np.expm1(epsilon) + np.exp(np.minimum(epsilon, 0.0)) * positive)


# The logarithm of the mass, on both sides of a Gaussian together, beyond which dp-accounting looks at no loss.
_LOG_OF_NO_MASS = -50.0


class GaussianLosses(GaussianPrivacyLoss):
    """The losses of a Gaussian, sampled or not: dp-accounting's, without the law as an object, which is slow to make."""

    def __init__(self, multiplier: float, rate: float, adjacency: AdjacencyType) -> None:
        if not multiplier > 0.0:
            raise ValueError(f"multiplier={multiplier}: expected a number above 0")
        AdditiveNoisePrivacyLoss.__init__(self, 1.0, False, rate, adjacency)
        self._standard_deviation = multiplier

    def connect_dots_bounds(self) -> ConnectDotsBounds:
        """Return the largest and the least loss, as dp-accounting gives them."""
        low = float(ndtri(0.5 * math.exp(_LOG_OF_NO_MASS)) * self._standard_deviation)
        added = self.adjacency_type == AdjacencyType.ADD
        low, high = (low, 1.0 - low) if added else (low - 1.0, -low)
        return ConnectDotsBounds(epsilon_upper=self.privacy_loss(low), epsilon_lower=self.privacy_loss(high))


def _connected(
    profile: Callable[[np.ndarray, float, float], np.ndarray],
    multiplier: float,
    rate: float,
    interval: float,
    adjacency: AdjacencyType,
) -> pld_pmf.PLDPmf:
    """Connect the dots (Doroshenko and others 2022) on the grid that dp-accounting takes for this mechanism."""
    bounds = GaussianLosses(multiplier, rate, adjacency).connect_dots_bounds()
    low, high = math.floor(bounds.epsilon_lower / interval), math.ceil(bounds.epsilon_upper / interval)
    deltas = np.clip(profile(interval * np.arange(low, high + 1), multiplier, rate), 0.0, 1.0)
    # Rounding in the last place must not make a profile rise.
    deltas = np.minimum.accumulate(deltas)
    if low == high:
        return pld_pmf.create_pmf({low: 1.0 - deltas[0]}, interval, deltas[0], pessimistic_estimate=True)
    return DenseLoss.connecting(interval, low, deltas)
