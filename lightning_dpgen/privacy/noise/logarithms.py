"""Natural logarithms with proved errors: bounds in whole numbers to any number of bits, and float64 for whole arrays.

Both take ln x = e ln 2 + 2 artanh(t) with x = 2^e m, t = (m - 1) / (m + 1) and m near to 1. They use nothing but sums,
products and quotients, so no error of a library's logarithm has to be trusted; docs/guarantees/noise.md, "Noisy maximum",
has the proof.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy as np

# Largest error of `estimate_logs`, over the size of its result.
ERROR = 2.0**-48
# Bits beyond those of an answer, so that the sum of all errors is a small part of its last bit.
_GUARD = 16
# Terms of the series in float64 beyond the first: what they leave out is below 2^-55 of the sum.
_TERMS = 9


def bound_log(x: Fraction, bits: int) -> tuple[int, int]:
    """Return whole numbers with ``low <= 2^bits ln x <= high``, at most 2 apart.

    Args:
        x: above 0.

    Example:
        >>> bound_log(Fraction(10), 20), bound_log(Fraction(1), 20)
        ((2414435, 2414436), (0, 0))
    """
    p, q = x.numerator, x.denominator
    # Then 2/3 <= p / q <= 4/3.
    power = p.bit_length() - q.bit_length()
    p, q = p << max(0, -power), q << max(0, power)
    if 3 * p > 4 * q:
        power, q = power + 1, 2 * q
    elif 3 * p < 2 * q:
        power, p = power - 1, 2 * p
    # Few different numbers of places, so that few values of ln 2 are needed.
    places = -(-(bits + abs(power).bit_length() + bits.bit_length() + _GUARD) // 64) * 64
    low, high = _bound_artanh(abs(p - q), p + q, places)
    low, high = (2 * low, 2 * high) if p >= q else (-2 * high, -2 * low)
    of_two = [2 * end * power for end in _bound_artanh_of_third(places)]
    spare = places - bits
    return low + min(of_two) >> spare, -(-(high + max(of_two)) >> spare)


def _bound_artanh(p: int, q: int, places: int) -> tuple[int, int]:
    """Bound ``2^places artanh(p / q)`` for 0 <= p / q <= 1/3, by its series, all of whose quotients are rounded down."""
    power, square = (p << places) // q, (p * p << places) // (q * q)
    total = n = 0
    while power:
        total += power // (2 * n + 1)
        power = power * square >> places
        n += 1
    return total, total + 3 * n + 3 if p else 0


@functools.lru_cache(maxsize=64)
def _bound_artanh_of_third(places: int) -> tuple[int, int]:
    """Bound ``2^places artanh(1/3)``, half of ln 2."""
    return _bound_artanh(1, 3, places)


def estimate_logs(x: np.ndarray) -> np.ndarray:
    """Return float64 near to ln x, each with an error of at most `ERROR` of its size, the same on every machine.

    Args:
        x: float64, finite and at least 2^-1022.

    Example:
        >>> estimate_logs(np.array([1.0, 2.0, 10.0])).round(9).tolist()
        [0.0, 0.693147181, 2.302585093]
    """
    m, power = np.frexp(x)
    small = m < math.sqrt(0.5)
    m, power = np.where(small, 2.0 * m, m), power - small
    t = (m - 1.0) / (m + 1.0)
    square = t * t
    series = np.full_like(t, 1.0 / (2 * _TERMS + 1))
    for n in range(_TERMS - 1, -1, -1):
        series = series * square + 1.0 / (2 * n + 1)
    return power * math.log(2.0) + 2.0 * t * series
