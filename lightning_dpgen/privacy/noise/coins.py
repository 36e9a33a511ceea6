"""Exact coins, and Poisson samples that are drawn by them, from uniform bytes.

A coin compares random bytes with the digits of its probability in base 256 until they differ: no rounding and no
modulo, so its bias is zero and not merely small.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

# Coins thrown at a time: few enough to stay in the processor's cache.
_AT_ONCE = 1 << 17

Octets = Callable[[int], np.ndarray]


def digits(probability: Fraction, places: int | None = None) -> tuple[int, ...]:
    """Return the digits of a probability in base 256 after the point, all or the first `places`; 1 is the digit 256.

    Example:
        >>> digits(Fraction(3, 512))
        (1, 128)
    """
    if not 0 <= probability <= 1:
        raise ValueError(f"probability={float(probability)}: expected a number from 0 to 1")
    in_base_256: list[int] = []
    while probability and len(in_base_256) != places:
        digit, probability = divmod(256 * probability, 1)
        in_base_256.append(digit)
    return tuple(in_base_256)


def heads(octets: Octets, count: int, probability: Sequence[int], place: int = 0) -> np.ndarray:
    """Return the sorted positions of heads among `count` independent coins, each with exactly that probability.

    Args:
        octets: a function that makes as many uniform bytes as it is asked for.
        count: the number of coins; each takes a byte, and one more each time that its byte is the probability's own digit.
        probability: the digits of the probability of heads: `digits`.
        place: the first of the digits that are compared.

    Example:
        >>> heads(lambda size: np.arange(size, dtype=np.uint8), 5, [3]).tolist()
        [0, 1, 2]
    """
    if not count or place >= len(probability):
        return np.empty(0, np.int64)
    drawn, digit = octets(count), probability[place]
    places = np.flatnonzero(drawn <= digit)
    ties = np.flatnonzero(drawn[places] == digit)
    is_head = np.ones(len(places), bool)
    is_head[ties] = False
    is_head[ties[heads(octets, len(ties), probability, place + 1)]] = True
    return places[is_head]


def poisson_sample(octets: Octets, population: int, rate: float) -> np.ndarray:
    """Return the sorted positions of a Poisson sample: one coin a record, of exactly the probability `rate`."""
    probability = _of_float(rate)
    starts = range(0, population, _AT_ONCE)
    samples = [start + heads(octets, min(_AT_ONCE, population - start), probability) for start in starts]
    return np.concatenate([np.empty(0, np.int64), *samples])


@functools.lru_cache(maxsize=64)
def _of_float(probability: float) -> tuple[int, ...]:
    return digits(Fraction(probability))
