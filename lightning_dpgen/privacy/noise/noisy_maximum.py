"""The place of the largest of whole scores over a scale plus Gumbel numbers, exactly that of real numbers.

A Gumbel number is -ln(-ln U) for a uniform U of infinitely many binary digits. The first word has 64 of them, which nearly
always tell who wins: float64 with proved errors leaves one candidate. Otherwise those that are left are bounded in whole
numbers (`bound_log`), and another word of digits is taken for each as long as two of their intervals overlap.

Logarithms take ln x = e ln 2 + 2 artanh(t) with x = 2^e m, t = (m - 1) / (m + 1) and m near to 1: nothing but sums,
products and quotients, so no error of a library's logarithm has to be trusted.

docs/guarantees/noise.md, "Noisy maximum", has the proof.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy as np

from lightning_dpgen.common.arguments import check_number
from lightning_dpgen.privacy.noise.rounded_normal import Words
from lightning_dpgen.privacy.noise.rounded_vectors import LARGEST_SCALE, SMALLEST_SCALE

# First words below this, and U so near to 1 that few digits of -ln U are known, are left to more digits.
_FEW, _UNKNOWN = 2.0**20, 0.25
# Largest error of `estimate_logs`, over the size of its result.
ERROR = 2.0**-48
# Bits beyond those of an answer, so that the sum of all errors is a small part of its last bit.
_GUARD = 16
# Terms of the series in float64 beyond the first: what they leave out is below 2^-55 of the sum.
_TERMS = 9


def find_noisy_maximum(words: Words, scores: np.ndarray, scale: float) -> int:
    """Draw the place of the largest ``scores / scale + G``, where the G are independent standard Gumbel numbers.

    The law is exactly that of the exponential mechanism: place i has a probability proportional to exp(scores[i] / scale).

    Args:
        words: a function that makes as many independent, uniform uint64 as it is asked for, such as `PrivateStream.words`.
        scores: (n,) int64, at least one, each below 2^62 in size.
        scale: from 2^-20 to 2^45.

    Raises:
        ValueError: for another scale.

    Example:
        >>> find_noisy_maximum(lambda size: np.full(size, 2**62, np.uint64), np.array([3, 5, 4]), 2.0)
        1
    """
    check_number(
        "scale",
        scale,
        lambda value: SMALLEST_SCALE <= value <= LARGEST_SCALE,
        "from 2^-20 to 2^45 units of the scores: choose another unit",
    )
    first = words(len(scores))
    # The largest score / scale - ln(-ln U) is the smallest behind / scale + ln(-ln U).
    behind = scores.max() - scores
    likely = _find_likely(first, behind, float(scale))
    return int(likely[0]) if len(likely) == 1 else _find_by_digits(first, behind, likely.tolist(), Fraction(scale), words)


def _find_likely(first: np.ndarray, behind: np.ndarray, scale: float) -> np.ndarray:
    """Return the places that proved errors of float64 leave, whatever digits follow the first words."""
    known = first.astype(np.float64)
    few = known < _FEW
    known[few] = _FEW
    exponential = np.abs(estimate_logs(known * 2.0**-64))
    with np.errstate(divide="ignore"):
        # The error of -ln U, over its size: digits that were not seen, conversion, and logarithm.
        error = ERROR + (2.0 / known + 2.0**-52) / exponential
    unknown = few | ~(error <= _UNKNOWN)
    exponential[unknown], error[unknown] = 1.0, 0.0
    away, logarithm = behind / scale, estimate_logs(exponential)
    error = 2.0 * error + 2.0 * ERROR * (np.abs(logarithm) + away)
    low, high = away + logarithm - error, away + logarithm + error
    low[unknown], high[unknown] = -np.inf, np.inf
    return np.flatnonzero(low <= high.min())


def _find_by_digits(first: np.ndarray, behind: np.ndarray, candidates: list[int], scale: Fraction, words: Words) -> int:
    """Find the place among those that are left, by as many digits of each U as it takes."""
    digits, bits = {place: int(first[place]) for place in candidates}, 64
    while True:
        bounds = {place: _bound_loss(digits[place], bits, int(behind[place]), scale) for place in candidates}
        least = min((high for _, high in bounds.values() if high is not None), default=None)
        if least is not None:
            candidates = [place for place, (low, _) in bounds.items() if low is None or low <= least]
        if len(candidates) == 1:
            return candidates[0]
        digits = {
            place: digits[place] << 64 | int(word) for place, word in zip(candidates, words(len(candidates)), strict=True)
        }
        bits += 64


def _bound_loss(digits: int, bits: int, behind: int, scale: Fraction) -> tuple[int | None, int | None]:
    """Bound ``2^bits (behind / scale + ln(-ln U))`` for all U from `digits` to ``digits + 1``, times 2^-bits.

    An end that no number bounds is None.
    """
    places, whole = 2 * bits, 1 << bits
    # -ln U is above 2^-bits where U is below 1 by so much, so that it has `bits` digits at least.
    smallest = -bound_log(Fraction(digits + 1, whole), places)[1] if digits + 1 < whole else 0
    largest = -bound_log(Fraction(digits, whole), places)[0] if digits else 0
    away = behind * whole * scale.denominator
    low = away // scale.numerator + bound_log(Fraction(smallest, 1 << places), bits)[0] if smallest > 0 else None
    high = -(-away // scale.numerator) + bound_log(Fraction(largest, 1 << places), bits)[1] if largest else None
    return low, high


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
