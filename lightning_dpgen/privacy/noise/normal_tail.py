"""Bounds of the upper tail Q of the standard normal distribution, to any number of bits, in whole numbers alone.

Nothing here is rounded but by division of whole numbers, whose error is known; docs/guarantees/noise.md, "Whole-number
Gaussian noise", has the proof.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction

# Bits beyond those of an answer, so that the sum of all errors is a small part of its last bit.
_GUARD = 24


def bound_tail(x: Fraction, bits: int) -> tuple[int, int]:
    """Return whole numbers with ``low <= 2^bits Q(x) <= high``, at most 2 apart, where Q(x) is the chance of Z > x >= 0.

    With y = x^2 / 2, Q is 1/2 less sqrt(y / pi) times the alternating sum of y^n / (n! (2n + 1)).

    Example:
        >>> bound_tail(Fraction(0), 8)
        (127, 128)
        >>> bound_tail(Fraction(196, 100), 20)
        (26212, 26213)
    """
    half_square = x * x / 2
    if 10 * half_square >= 7 * bits:
        return 0, 1  # Q(x) < exp(-y) / 2, and exp(0.7) > 2
    growth = int(13 * half_square / 9) + 1  # exp(y) <= 2^growth, as log2(e) < 13 / 9
    # Few different numbers of places, so that few values of pi are needed.
    places = -(-(bits + growth + bits.bit_length() + _GUARD) // 64) * 64
    factor = (half_square.numerator << places) // half_square.denominator
    term = total = 1 << places
    n = 0
    while term:
        n += 1
        term = (term * factor >> places) // n
        total += (-term if n % 2 else term) // (2 * n + 1)
    error = 3 * (n + 2) << growth
    pi = _compute_pi(places)
    square = half_square.numerator << 3 * places
    root_low = math.isqrt(square // (half_square.denominator * (pi + 2)))
    root_high = math.isqrt(square // (half_square.denominator * pi)) + 1
    half, spare = 1 << 2 * places - 1, 2 * places - bits
    low = half - (total + error) * root_high >> spare
    high = -(-(half - max(0, total - error) * root_low) >> spare)
    return max(0, low), min(high, 1 << bits - 1)


@functools.lru_cache(maxsize=64)
def _compute_pi(places: int) -> int:
    """Return a whole number at most 2 below ``2^places pi``, by Machin's formula."""
    unit = 1 << places + 32
    # Each arctangent is wrong by less than two units a term, 20 times that in all: less than 2^31 units.
    near = 16 * _sum_arctangent(5, unit) - 4 * _sum_arctangent(239, unit)
    return near - (1 << 31) >> 32


def _sum_arctangent(inverse: int, unit: int) -> int:
    """Return about ``unit arctan(1 / inverse)``, by its alternating series."""
    power = unit // inverse
    total, n = power, 1
    while power:
        power //= inverse * inverse
        n += 2
        total += (-power if n % 4 == 3 else power) // n
    return total
