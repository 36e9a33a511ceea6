"""Numbers of a budget: the range of epsilon, rounding to the safe side, and accountants by name."""

from __future__ import annotations

import math
from collections.abc import Callable

from lightning_dpgen.common.number_arguments import check_number

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
    if isinstance(name, str) and name in ACCOUNTANTS_BY_NAME:
        return
    why = _REFUSED.get(name) if isinstance(name, str) else None
    expected = f"expected {PLD!r} (privacy loss distributions, the tightest) or {RDP!r} (Renyi moments)"
    raise ValueError(f"accountant={str(name)[:60]!r}: {why or expected}")
