"""Exact coins, and the laws of whole numbers that are built from them, from uniform bytes.

A coin compares random bytes with the digits of its probability in base 256 until they differ: no rounding and no
modulo, so its bias is zero and not merely small.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np

# Coins thrown at a time: few enough to stay in the processor's cache.
_AT_ONCE = 1 << 17
# Numbers less likely than 1e-100, about exp(-230), are left out.
_NEVER = 230
_PRECISE = Context(prec=140)
_PLACES = 50
_LARGEST_SCALE = 2.0**52

Octets = Callable[[int], np.ndarray]


def digits(probability: Fraction, places: int | None = None) -> tuple[int, ...]:
    """Return the digits of a probability in base 256 after the point, all or the first `places`; 1 is the digit 256.

    Example:
        >>> digits(Fraction(3, 512))
        (1, 128)
    """
    if not 0 <= probability <= 1:
        raise ValueError(f"probability={float(probability)}: expected a number from 0 to 1")
    found: list[int] = []
    while probability and len(found) != places:
        digit, probability = divmod(256 * probability, 1)
        found.append(digit)
    return tuple(found)


def heads(octets: Octets, count: int, probability: Sequence[int]) -> np.ndarray:
    """Return the sorted positions of heads among `count` independent coins, each with exactly that probability.

    Args:
        octets: a function that makes as many uniform bytes as it is asked for.
        count: the number of coins; each takes a byte, and one more each time that its byte is the probability's own digit.
        probability: the `digits` of the probability of heads.

    Example:
        >>> heads(lambda size: np.arange(size, dtype=np.uint8), 5, [3]).tolist()
        [0, 1, 2]
    """
    if not count or not len(probability):
        return np.empty(0, np.int64)
    drawn = octets(count)
    places = np.flatnonzero(drawn <= probability[0])
    ties = np.flatnonzero(drawn[places] == probability[0])
    kept = np.ones(len(places), bool)
    kept[ties] = False
    kept[ties[heads(octets, len(ties), probability[1:])]] = True
    return places[kept]


def poisson_sample(octets: Octets, population: int, rate: float) -> np.ndarray:
    """Return the sorted positions of a Poisson sample: one coin a record, of exactly the probability `rate`."""
    probability = _of_float(rate)
    starts = range(0, population, _AT_ONCE)
    found = [start + heads(octets, min(_AT_ONCE, population - start), probability) for start in starts]
    return np.concatenate([np.empty(0, np.int64), *found])


def geometric(octets: Octets, count: int, scale: float) -> np.ndarray:
    """Draw `count` whole numbers from 0 on, of probability proportional to ``exp(-x / scale)``, exact but for 1e-100.

    The binary digits of such a number are independent coins.
    """
    total = np.zeros(count, np.int64)
    for place, probability in enumerate(_of_geometric(scale)):
        total[heads(octets, count, probability)] += 1 << place
    return total


def rounded_laplace(octets: Octets, count: int, scale: float) -> np.ndarray:
    """Draw `count` whole numbers with the law of round(scale L), L standard Laplace, exact but for 1e-100.

    |scale L| is exponential, so it is beyond 1/2 with probability exp(-1 / (2 scale)), and beyond each further whole number
    and a half with exp(-1 / scale) of the probability before: the size is 0, or 1 and a geometric number.

    Example:
        >>> rounded_laplace(lambda size: np.zeros(size, np.uint8), 2, 0.5).tolist()
        [-128, -128]
    """
    sizes = 1 + geometric(octets, count, scale)
    sizes[heads(octets, count, digits(Fraction(1, 2)))] *= -1
    chance = _PRECISE.exp(_PRECISE.divide(Decimal("-0.5"), Decimal(scale)))
    beyond = heads(octets, count, digits(Fraction(chance), _PLACES))
    drawn = np.zeros(count, np.int64)
    drawn[beyond] = sizes[beyond]
    return drawn


@functools.lru_cache(maxsize=64)
def _of_float(probability: float) -> tuple[int, ...]:
    return digits(Fraction(probability))


@functools.lru_cache(maxsize=64)
def _of_geometric(scale: float) -> list[tuple[int, ...]]:
    """Return the probability that each binary digit is 1: digit b has odds ``exp(-2^b / scale)``."""
    if not 0.0 < scale <= _LARGEST_SCALE:
        raise ValueError(f"scale={scale:g}: expected a positive number, at most {_LARGEST_SCALE:g}")
    found = []
    for place in range(max(0, math.ceil(math.log2(_NEVER * scale)))):
        against = _PRECISE.exp(_PRECISE.divide(Decimal(2**place), Decimal(scale)))
        found.append(digits(Fraction(_PRECISE.divide(Decimal(1), _PRECISE.add(against, Decimal(1)))), _PLACES))
    return found
