"""Whole numbers with exactly the law of round(sigma Z), Z standard normal, from uniform words of 64 bits.

A number X of infinitely many binary digits, uniform from -2^63 to 2^63, stands for the standard normal number Z of its
sign for which |X| / 2^63 is the probability beyond |Z| on both sides. The first word has the digits of X before the binary
point. They nearly always decide how sigma Z is rounded: a table gives Z with a proved error (`normal_quantiles`), and no
border, a whole number and a half, is as near. Otherwise borders are compared with X in whole numbers (`bound_tail`), and
another word of digits is taken as long as those so far do not decide.

docs/guarantees/noise.md, "Whole-number Gaussian noise", has the proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from scipy import special

from lightning_dpgen.common.arguments import check_number, read_whole
from lightning_dpgen.privacy.noise import normal_quantiles as quantiles
from lightning_dpgen.privacy.noise.normal_quantiles import bound_tail

Words = Callable[[int], np.ndarray]

# Largest error of sigma Z from the table, over sigma, with the rounding of that product; for all pieces at once.
ERROR = 9 * 2.0**-52
# The standard deviations, in steps of the grid, for which numbers are drawn.
SMALLEST_SIGMA, LARGEST_SIGMA = 2.0**-20, 2.0**45
# Numbers made at a time: few enough to stay in the processor's cache, many enough to hide the cost of a call.
_AT_ONCE = 1 << 14
# Bits of a float64 that tell the place within its piece; the others, less a constant, are the column of the piece.
_WITHIN = 52 - quantiles.BITS
_FIRST = ((1023 + 63 - quantiles.OCTAVES) << quantiles.BITS) - 1


def rounded_normals(words: Words, count: int, sigma: float) -> np.ndarray:
    """Draw independent whole numbers that have exactly the law of round(sigma Z), Z standard normal.

    For a whole number x, x plus such a number is round(x + sigma Z): the Gaussian mechanism, and then a function of its
    result. It has the same guarantee, and no digits below the point that could tell more.

    Args:
        words: a function that makes as many independent, uniform uint64 as it is asked for, such as `PrivateStream.words`.
        count: the number of draws. Each takes a word, and another with a probability below (sigma + 1) / 2^58.
        sigma: the standard deviation before rounding, from 2^-20 to 2^45.

    Returns:
        int64 of shape (count,).

    Raises:
        ValueError: for another sigma. From a sigma below 2^-20 a draw would be anything but 0 with a probability below
            exp(-2^37); with one above 2^45 sums of records and noise would come near to the end of int64.
        OverflowError: for a draw beyond int64. Its probability is below exp(-2^35).

    Example:
        >>> from lightning_dpgen.privacy.noise.stream import Keystream
        >>> rounded_normals(Keystream().random_raw, 3, 1000.0).dtype
        dtype('int64')
        >>> rounded_normals(lambda size: np.full(size, 2**62, np.uint64), 2, 1000.0).tolist()
        [674, 674]
    """
    check_number(
        "sigma",
        sigma,
        lambda value: SMALLEST_SIGMA <= value <= LARGEST_SIGMA,
        "from 2^-20 to 2^45 steps of the grid: choose another grid",
    )
    count, sigma = read_whole("count", count, least=0), float(sigma)
    out = np.empty(count, np.int64)
    table = quantiles.read_table()
    scratch = np.empty((3, min(count, _AT_ONCE)))
    for start in range(0, count, _AT_ONCE):
        part = out[start : start + _AT_ONCE]
        drawn = words(len(part)).view(np.int64)
        for place in _round_by_table(drawn, sigma, part, table, scratch[:, : len(part)]):
            part[place] = _round_by_digits(int(drawn[place]), sigma, words)
    return out


def evaluate_table(drawn: np.ndarray, out: np.ndarray, scratch: np.ndarray, column: np.ndarray, table: np.ndarray) -> None:
    """Write the normal numbers of words (n,), int64, into `out`; NaN for a word outside all pieces of the table.

    Each step is one conversion, sum or product of float64 a number, with the same result on every machine, or is exact.
    No number is wrong by more than `ERROR`, whatever digits follow its word.

    Args:
        scratch: (2, n) float64.
        column: (n,) int64; both are overwritten.
    """
    size, within = scratch
    bits = within.view(np.int64)
    np.copyto(size, drawn)
    np.abs(size, out=size)
    np.right_shift(size.view(np.int64), _WITHIN, out=column)
    np.left_shift(column, _WITHIN, out=bits)
    np.subtract(size, within, out=within)
    column -= _FIRST
    # Words outside all pieces are clipped to the first column or the last, which hold no numbers and so decide nothing.
    coefficient = size
    np.take(table[-1], column, out=out, mode="clip")
    for row in table[-2::-1]:
        out *= within
        np.take(row, column, out=coefficient, mode="clip")
        out += coefficient
    np.copysign(out, drawn, out=out)


def _round_by_table(drawn: np.ndarray, sigma: float, out: np.ndarray, table: np.ndarray, scratch: np.ndarray) -> np.ndarray:
    """Round into `out` where the error of the table allows it, and return the other places."""
    value, within, _ = scratch
    evaluate_table(drawn, value, scratch[1:], out, table)
    value *= sigma
    nearest = np.rint(value, out=within)
    value -= nearest
    np.abs(value, out=value)
    # The smaller part of the margin is for the rounding of this limit itself.
    undecided = np.flatnonzero(~(value <= 0.5 - (ERROR * sigma + 2.0**-52)))
    nearest[undecided] = 0.0
    np.copyto(out, nearest, casting="unsafe")
    return undecided


def _round_by_digits(first: int, sigma: float, words: Words) -> int:
    """Round sigma Z by as many digits of X as it takes, the first 64 of which are given.

    A draw is k >= 0 in size where |X| / 2^64 is between Q((k + 1/2) / sigma) and Q((k - 1/2) / sigma).
    """
    flipped = first >> 63
    digits, bits = first ^ flipped, 64  # |X| / 2^64 is from `digits` to `digits + 1`, times 2^-bits
    half = Fraction(1, 2) / Fraction(sigma)
    k = _guess(digits, bits, sigma)
    while True:
        far_low, far_high = bound_tail((2 * k + 1) * half, bits)
        near_low, near_high = bound_tail((2 * k - 1) * half, bits) if k else (1 << bits, 1 << bits)
        if digits + 1 <= far_low:
            k += 1
        elif digits >= near_high:
            k -= 1
        elif far_high <= digits and digits + 1 <= near_low:
            return -k if flipped else k
        else:
            digits = digits << 64 | int(words(1)[0]) ^ (flipped & (1 << 64) - 1)
            bits += 64
            k = _guess(digits, bits, sigma)


def _guess(digits: int, bits: int, sigma: float) -> int:
    """Return a whole number near to the draw, by functions whose error does not matter."""
    logarithm = math.log(2 * digits + 1) - (bits + 1) * math.log(2)
    return max(0, round(-sigma * float(special.ndtri_exp(logarithm))))
