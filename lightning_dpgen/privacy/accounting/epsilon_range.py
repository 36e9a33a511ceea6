"""Numbers of a budget: their ranges, rounding to the safe side, the cost of one Gaussian, and accountants by name."""

from __future__ import annotations

import math
from collections.abc import Callable

from lightning_dpgen.common.arguments import check_name, check_number

# Beyond this nothing is protected, and a loss distribution would need gigabytes: reported as infinite.
LARGEST_EPSILON = 1000.0
# Below it nothing can be computed soundly.
SMALLEST_EPSILON = 1e-6
# Above it the worst case that a guarantee allows is nearly certain.
CAUTIOUS_EPSILON = 20.0


def check_epsilon(epsilon: float, name: str = "epsilon") -> None:
    """Raise ValueError unless a budget of this epsilon can be planned for."""
    expected = f"from {SMALLEST_EPSILON:g} to {LARGEST_EPSILON:g}"
    check_number(name, epsilon, lambda value: SMALLEST_EPSILON <= value <= LARGEST_EPSILON, expected)


def caution(epsilon: float | None) -> str | None:
    """Return a warning of what an epsilon means that is above `CAUTIOUS_EPSILON`; None for one that is not.

    Example:
        >>> caution(4.0) is None, caution(25.0)[:66]
        (True, 'epsilon 25 is above 20, where the guarantee says next to nothing: ')
    """
    if epsilon is None or not CAUTIOUS_EPSILON < epsilon <= LARGEST_EPSILON:
        return None
    return (
        f"epsilon {epsilon:g} is above {CAUTIOUS_EPSILON:g}, where the guarantee says next to nothing: one person's "
        f"presence may change the odds of an outcome by e^{epsilon:g}, about 10^{int(epsilon / math.log(10.0))}, so by "
        "this bound an attacker may be nearly certain who is in the data; 10 or less is the custom"
    )


def round_up(epsilon: float, digits: int = 6) -> float:
    """Round epsilon up to `digits` significant digits, so that a printed number is never too small."""
    return _round(epsilon, digits, math.ceil)


def round_down(epsilon: float, digits: int = 6) -> float:
    """Round epsilon down to `digits` significant digits: the target that a rounded-up answer must meet."""
    return _round(epsilon, digits, math.floor)


def _round(value: float, digits: int, direction: Callable[[float], float]) -> float:
    if not math.isfinite(value) or value <= 0.0:
        return value
    places = digits - 1 - math.floor(math.log10(value))
    # A value that already has so few digits must stay: 1.74 * 1e5 is 174000.00000000003 in floating point.
    nearest = round(value, places)
    if math.isclose(value, nearest, rel_tol=1e-14):
        return nearest
    return round(direction(value * 10.0**places) / 10.0**places, places)


PLD, RDP = "pld", "rdp"
ACCOUNTANTS_BY_NAME = (PLD, RDP)
# Names that users of Opacus and dp-accounting know, each with the reason for which it answers for no certificate.
_REFUSED = {
    "prv": (
        "Opacus' accountant bounds the loss of a record removed and not of one added, and no bound covers the rounding of "
        f"its sums: take {PLD!r}, which is as tight"
    ),
    "gdp": (
        "a central limit theorem gives an approximation and no upper bound, below the true epsilon for some runs: take "
        f"{PLD!r}, which is as tight and holds"
    ),
    "zcdp": f"one number says less than the Renyi moments of all orders: take {RDP!r}, or {PLD!r}, which is tighter",
    "moments": f"moments of the loss and Renyi moments are the same account, whose name here is {RDP!r}",
}
_REFUSED |= {"clt": _REFUSED["gdp"], "ma": _REFUSED["moments"]}


def check_accountant(name: object) -> None:
    """Refuse a name that is of no accountant whose answer is an upper bound.

    Raises:
        ValueError: saying why, and which to take.

    Example:
        >>> check_accountant("pld")
        >>> check_accountant("gdp")
        Traceback (most recent call last):
        ValueError: accountant='gdp': a central limit theorem gives an approximation and no upper bound, ...
    """
    expected = f"{PLD!r} (privacy loss distributions, the tightest) or {RDP!r} (Renyi moments)"
    check_name("accountant", name, ACCOUNTANTS_BY_NAME, _REFUSED, expected)


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
    # A check of the range of epsilon or delta does not wait for it.
    from scipy.optimize import brentq

    return brentq(function, low, high, xtol=1e-12, **tolerance)


def _log_delta(mu: float, epsilon: float) -> float:
    """Return log delta of a Gaussian shift; all in logarithms, so that e^eps does not overflow."""
    from scipy.special import log_ndtr

    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return first + math.log(-math.expm1(min(second - first, -1e-300)))


def check_delta(delta: float) -> None:
    """Raise ValueError unless 0 < delta < 1."""
    check_number("delta", delta, lambda value: 0.0 < value < 1.0, "between 0 and 1")
