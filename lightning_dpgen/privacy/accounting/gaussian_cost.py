"""The cost of one Gaussian in closed form, and the range in which delta is accounted for."""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.special import log_ndtr

from lightning_dpgen.common.number_arguments import check_number


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the shift ``mu`` (1 over the multiplier) of the one Gaussian that is exactly (epsilon, delta)-private.

    Balle and Wang 2018, Theorem 8: ``delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)``.

    Example:
        >>> round(1 / gaussian_mu(1.0, 1e-5), 2)
        3.73
    """
    check_delta(delta)
    if math.isinf(epsilon):
        return math.inf
    # The shift is below eps for small eps and near sqrt(2 eps) above, but for a delta near 1.
    high = 10.0 + 2.0 * math.sqrt(2.0 * epsilon)
    while _log_delta(high, epsilon) < math.log(delta):
        high *= 2.0
    return _root(lambda mu: _log_delta(mu, epsilon) - math.log(delta), 1e-6 * epsilon, high)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon for which one Gaussian of shift ``mu`` is (epsilon, delta)-private; see `gaussian_mu`.

    Example:
        >>> round(gaussian_epsilon(1.0, 1e-5), 2)
        4.38
    """
    check_delta(delta)
    if _log_delta(mu, 0.0) <= math.log(delta):
        return 0.0
    # The loss is N(mu^2/2, mu^2), so its tail beyond this is below any delta that a float holds.
    high = mu * mu / 2 + 40.0 * mu
    return _root(lambda epsilon: _log_delta(mu, epsilon) - math.log(delta), 0.0, high, rtol=1e-12)


def _root(function: Callable[[float], float], low: float, high: float, **tolerance: float) -> float:
    # A check of the range of a delta does not wait for it.
    from scipy.optimize import brentq

    return brentq(function, low, high, xtol=1e-12, **tolerance)


def _log_delta(mu: float, epsilon: float) -> float:
    """Return log delta of a Gaussian shift; all in logarithms, so that e^eps does not overflow."""
    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return first + math.log(-math.expm1(min(second - first, -1e-300)))


def check_delta(delta: float) -> None:
    """Raise ValueError unless 0 < delta < 1."""
    check_number("delta", delta, lambda value: 0.0 < value < 1.0, "between 0 and 1")
