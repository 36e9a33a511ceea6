"""Rounding of epsilons that are printed, so that a printed number is never too small."""

from __future__ import annotations

import math
from collections.abc import Callable


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
