"""Exact coins, and the laws of whole numbers that are built from them, from uniform bytes.

A coin compares random bytes with the digits of its probability in base 256 until they differ: no rounding and no
modulo, so its bias is zero and not merely small.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np

# Coins thrown at a time: few enough to stay in the processor's cache.
_AT_ONCE = 1 << 17
# Binary digits of a number end where the rest of it is 0 but with a probability below exp(-230).
_SELDOM = 230
# Decimal places to which a probability is computed at first, and those of them that roundings may make wrong.
_PRECISE, _WRONG = 100, 2
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


class EndlessDigits(Sequence[int]):
    """The digits in base 256 of an irrational probability, each found when it is first asked for.

    Args:
        approximate: a function that computes the probability in a context of decimal numbers, with an error below 10^2
            units of its last place, if the probability is 1.

    Example:
        >>> found = EndlessDigits(lambda context: context.exp(Decimal(-1)))
        >>> [found[place] for place in range(3)], found[200]
        ([94, 45, 88], 83)
    """

    def __init__(self, approximate: Callable[[Context], Decimal]) -> None:
        self._approximate, self._precision, self._known = approximate, _PRECISE // 2, ()

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, place):
        while place >= len(self._known):
            self._precision *= 2
            near = Fraction(self._approximate(Context(prec=self._precision)))
            error = Fraction(10**_WRONG, 10**self._precision)
            low, high = max(Fraction(0), near - error), min(Fraction(1), near + error)
            # Digits are known up to the first that differs between the two ends.
            places = int(self._precision / math.log10(256))
            while math.floor(low * 256**places) != math.floor(high * 256**places):
                places -= 1
            self._known = tuple(math.floor(low * 256**places).to_bytes(places, "big"))
        return self._known[place]


def heads(octets: Octets, count: int, probability: Sequence[int], place: int = 0) -> np.ndarray:
    """Return the sorted positions of heads among `count` independent coins, each with exactly that probability.

    Args:
        octets: a function that makes as many uniform bytes as it is asked for.
        count: the number of coins; each takes a byte, and one more each time that its byte is the probability's own digit.
        probability: the digits of the probability of heads: `digits`, or `EndlessDigits`.
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
    kept = np.ones(len(places), bool)
    kept[ties] = False
    kept[ties[heads(octets, len(ties), probability, place + 1)]] = True
    return places[kept]


def poisson_sample(octets: Octets, population: int, rate: float) -> np.ndarray:
    """Return the sorted positions of a Poisson sample: one coin a record, of exactly the probability `rate`."""
    probability = _of_float(rate)
    starts = range(0, population, _AT_ONCE)
    found = [start + heads(octets, min(_AT_ONCE, population - start), probability) for start in starts]
    return np.concatenate([np.empty(0, np.int64), *found])


def geometric(octets: Octets, count: int, scale: float) -> np.ndarray:
    """Draw `count` whole numbers from 0 on, of probability exactly proportional to ``exp(-x / scale)``.

    The binary digits of such a number are independent coins. The digits above the last of them are together a geometric
    number of their own, which is larger by one as often as a coin says so.

    Raises:
        ValueError: for a scale that is not positive, or above 2^52.
        OverflowError: for a number beyond int64, of probability below exp(-1600).
    """
    total = np.zeros(count, np.int64)
    *below, above = _of_geometric(scale)
    for place, probability in enumerate(below):
        total[heads(octets, count, probability)] += 1 << place
    further = heads(octets, count, above)
    while len(further):
        if total[further].max() >= 2**62 - (1 << len(below)):
            raise OverflowError("a draw is beyond int64")
        total[further] += 1 << len(below)
        further = further[heads(octets, len(further), above)]
    return total


@functools.lru_cache(maxsize=64)
def _of_float(probability: float) -> tuple[int, ...]:
    return digits(Fraction(probability))


@functools.lru_cache(maxsize=64)
def _of_geometric(scale: float) -> list[EndlessDigits]:
    """Return the probability that each binary digit is 1: digit b has odds ``exp(-2^b / scale)``.

    The last one is that of one more number above all these digits.
    """
    if not 0.0 < scale <= _LARGEST_SCALE:
        raise ValueError(f"scale={scale:g}: expected a positive number, at most {_LARGEST_SCALE:g}")

    def odds(context: Context, place: int) -> Decimal:
        return context.exp(context.divide(Decimal(-(2**place)), Decimal(scale)))

    def chance(context: Context, place: int) -> Decimal:
        return context.divide(odds(context, place), context.add(odds(context, place), Decimal(1)))

    places = max(0, math.ceil(math.log2(_SELDOM * scale)))
    found = [EndlessDigits(functools.partial(chance, place=place)) for place in range(places)]
    return [*found, EndlessDigits(functools.partial(odds, place=places))]
