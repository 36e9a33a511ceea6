"""Vectors of whole numbers with exactly the law of round(s Z), Z of density proportional to exp(-|z|), from uniform words.

With independent standard normal vectors G and H of k numbers, Z = (|G|^2 + |H|^2) / 2 times G / |G| has that density: the
direction of G is uniform and independent of its length, and half the sum of 2k squares has the gamma distribution of shape
k, which is the law of |Z|. For k = 1 it is Laplace noise. The normal numbers come from words as in `rounded_normal`. Sums,
products, quotients and roots of float64 nearly always tell how s Z is rounded, with a proved error; otherwise all of the
vector is bounded in whole numbers, from more and more digits.

docs/guarantees/noise.md, "Whole-number Laplace and spherical noise", has the proof.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from scipy import special

from lightning_dpgen.common.arguments import check_number, read_whole
from lightning_dpgen.privacy.noise.normal_quantiles import bound_tail, read_table
from lightning_dpgen.privacy.noise.rounded_normal import Words, evaluate_table

# The scales, in steps of the grid, for which numbers are drawn.
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-20, 2.0**45
# Largest error of a normal number: 9 2^-52 by the table, and less than this by its digits.
_ERROR = 2.0**-48
# Largest error of one operation of float64, over its result.
_ROUNDING = 2.0**-53
# Places after the binary point to which normal numbers beyond the table are bounded.
_PLACES = 52
# Normal numbers made at a time: few enough to stay in the processor's cache, many enough to hide the cost of a call.
_AT_ONCE = 1 << 15
# No number beyond this one leaves int64 when a sum below 2^62 is added.
_LARGEST = 2**62


def rounded_sphericals(words: Words, count: int, k: int, scale: float) -> np.ndarray:
    """Draw independent vectors of k whole numbers, each exactly with the law of round(scale Z), each number rounded.

    Z has a density proportional to exp(-|z|) in the Euclidean norm: it is a Laplace number for k = 1. For a vector x of
    whole numbers, x plus such a vector is round(x + scale Z): the K-norm mechanism of the Euclidean ball, and then a
    function of its result.

    Args:
        words: a function that makes as many independent, uniform uint64 as it is asked for, such as `PrivateStream.words`.
        count: the number of vectors. Each takes 2k words, and seldom more.
        k: the numbers of a vector.
        scale: from 2^-20 to 2^45.

    Returns:
        int64 of shape (count, k).

    Raises:
        ValueError: for another scale, a negative count, or a k below 1.
        OverflowError: for a number of 2^62 or more. Its probability is below exp(-2^14) for k up to 65,536.

    Example:
        >>> from lightning_dpgen.privacy.noise.stream import Keystream
        >>> rounded_sphericals(Keystream().random_raw, 3, 2, 1000.0).shape
        (3, 2)
        >>> rounded_sphericals(lambda size: np.full(size, 2**62, np.uint64), 1, 2, 1000.0).tolist()
        [[643, 643]]
    """
    check_number(
        "scale",
        scale,
        lambda value: SMALLEST_SCALE <= value <= LARGEST_SCALE,
        "from 2^-20 to 2^45 steps of the grid: choose another grid",
    )
    count, k, scale = read_whole("count", count, least=0), read_whole("k", k, least=1), float(scale)
    out = np.empty((count, k), np.int64)
    at_once = max(1, min(_AT_ONCE // (2 * k), count))
    table, room = read_table(), np.empty((3, 2 * k * at_once))
    column = np.empty(2 * k * at_once, np.int64)
    for start in range(0, count, at_once):
        part = out[start : start + at_once]
        size = 2 * k * len(part)
        drawn = words(size).view(np.int64)
        evaluate_table(drawn, room[0, :size], room[1:, :size], column[:size], table)
        # A column is a vector: the k numbers of G, then those of H.
        normals, first, second = room[:, :size].reshape(3, 2 * k, len(part))
        drawn = drawn.reshape(normals.shape)
        further = _complete(normals, drawn, words)
        for place in _round_by_floats(normals, scale, part, first, second):
            digits = {row: further[row, place] for row in range(2 * k) if (row, place) in further}
            part[place] = _round_by_digits([int(word) for word in drawn[:, place]], digits, scale, words)
    return out


def _complete(normals: np.ndarray, drawn: np.ndarray, words: Words) -> dict[tuple[int, int], tuple[int, int]]:
    """Write the normal numbers of words beyond the table, with an error of at most `_ERROR`, and return their digits.

    A number for which that error cannot be promised stays NaN.
    """
    further = {}
    for place in np.flatnonzero(np.isnan(normals)):
        at = divmod(int(place), normals.shape[1])
        first = int(drawn[at])
        digits, bits = first ^ (first >> 63), 64
        while True:
            low, high = _bound_quantile(digits, bits, _PLACES) if digits else (0, bits << _PLACES)
            if high - low <= 12:
                break
            digits, bits = _extend(digits, bits, first, words)
        further[at] = digits, bits
        size = (low + high) * 2.0 ** (-1 - _PLACES)
        # Beyond 32 rounding to float64 alone would be too large an error.
        normals[at] = math.copysign(size, first) if size < 32.0 else math.nan
    return further


def _round_by_floats(normals: np.ndarray, scale: float, out: np.ndarray, *room: np.ndarray) -> np.ndarray:
    """Round vectors into `out` where proved errors allow it, and return the places of the others.

    Each step is one operation of float64, with the same result on every machine: sums go by pairs, in a fixed order.

    Args:
        normals: (2k, n), overwritten, as are two more such arrays.
    """
    k, (first, second) = len(normals) // 2, room
    squares = np.square(normals, out=first)
    near, far = _sum_columns(squares[:k]), _sum_columns(squares[k:])
    length, factor = np.sqrt(near), near + far
    with np.errstate(divide="ignore", invalid="ignore"):
        factor /= length
        factor *= scale / 2.0
        # An error of all of G and H, over the length of G, moves the factor by twice as much of it.
        moved = math.sqrt(k) * _ERROR / length
        relative = 2.2 * moved + 1.1 * (1.5 * (math.ceil(math.log2(k)) + 1) + 5.0) * _ROUNDING
        # The last part is for the rounding of this limit itself.
        limit = 0.5 - (1.1 * _ERROR * factor + 2.0**-50)
        values = np.multiply(normals[:k], factor, out=normals[:k])
        nearest = np.rint(values, out=first[:k])
        apart = np.abs(np.subtract(values, nearest, out=second[:k]), out=second[:k])
        apart += np.multiply(np.abs(values, out=values), relative, out=values)
        decided = apart.max(axis=0) <= limit
    decided &= moved <= 2.0**-20
    nearest[:, ~decided] = 0.0
    np.copyto(out, nearest.T, casting="unsafe")
    return np.flatnonzero(~decided)


def _sum_columns(numbers: np.ndarray) -> np.ndarray:
    """Add up the rows (k, n) of nonnegative numbers by pairs, over and over, in place: each goes through log2 k sums."""
    while len(numbers) > 1:
        half = (len(numbers) + 1) // 2
        numbers[: len(numbers) - half] += numbers[half:]
        numbers = numbers[:half]
    return numbers[0]


def _round_by_digits(firsts: list[int], further: dict[int, tuple[int, int]], scale: float, words: Words) -> list[int]:
    """Round a vector by as many digits of its normal numbers as it takes, some of which are known.

    All is in whole numbers: sizes of normal numbers are multiples of 2^-places, their squares of 2^-2places.
    """
    k, half = len(firsts) // 2, Fraction(scale) / 2
    known = [further.get(row, (first ^ (first >> 63), 64)) for row, first in enumerate(firsts)]
    while True:
        known = [_extend(*pair, first, words) for pair, first in zip(known, firsts, strict=True)]
        if not all(digits for digits, _ in known):
            continue
        places = min(bits for _, bits in known)
        sizes = [_bound_quantile(digits, bits, places) for digits, bits in known]
        (near_low, near_high), (sum_low, sum_high) = (
            [sum(pair[end] ** 2 for pair in some) for end in (0, 1)] for some in (sizes[:k], sizes)
        )
        ends = math.isqrt(near_low), math.isqrt(near_high) + 1
        if not ends[0]:
            continue
        # A number is ``half * size * sum / length``, less or more where the length is more or less.
        whole = half.denominator << 2 * places
        low, high = (
            [(2 * half.numerator * pair[end] * total + whole * length) // (2 * whole * length) for pair in sizes[:k]]
            for end, total, length in ((0, sum_low, ends[1]), (1, sum_high, ends[0]))
        )
        if low != high:
            continue
        if max(low) >= _LARGEST:
            raise OverflowError("a draw is beyond int64: choose another grid")
        return [-size if first < 0 else size for size, first in zip(low, firsts, strict=False)]


def _extend(digits: int, bits: int, first: int, words: Words) -> tuple[int, int]:
    """Return 64 more digits than were known of the A of a word, those of a negative X being flipped."""
    return digits << 64 | int(words(1)[0]) ^ (first >> 63 & (1 << 64) - 1), bits + 64


def _bound_quantile(digits: int, bits: int, places: int) -> tuple[int, int]:
    """Bound all g >= 0 whose chance of |Z| > g, halved, is from `digits` to ``digits + 1``, times 2^-bits; digits > 0.

    The bounds are multiples of 2^-places, and few of these apart if the digits allow it. A number near to g is found by
    Newton's method in numbers whose error does not matter; only `bound_tail` vouches for the bounds, which are moved apart
    until it does.
    """
    logarithm = math.log(2 * digits + 1) - (bits + 1) * math.log(2)
    near = Fraction(max(0.0, -float(special.ndtri_exp(logarithm))))
    target, finer = Fraction(2 * digits + 1, 2 << bits), bits + 32
    steepness = Fraction(math.exp(float(near) ** 2 / 2.0) * math.sqrt(2.0 * math.pi))
    for _ in range(-(-places // 64)):
        near += (Fraction(sum(bound_tail(near, finer)), 2 << finer) - target) * steepness
        near = max(Fraction(0), Fraction(round(near * (1 << places + 8)), 1 << places + 8))
    apart = 1 + math.ceil(steepness / (1 << bits) * (1 << places))
    while True:
        low, high = math.floor(near * (1 << places)) - apart, math.ceil(near * (1 << places)) + apart
        below = low <= 0 or bound_tail(Fraction(low, 1 << places), finer)[0] >= digits + 1 << finer - bits
        if below and bound_tail(Fraction(high, 1 << places), finer)[1] <= digits << finer - bits:
            return max(low, 0), high
        apart *= 2
