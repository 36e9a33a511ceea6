"""Quantiles of the standard normal distribution as a table of polynomials, and a proof of their error, piece by piece.

    python -m lightning_dpgen.privacy.noise.normal_quantiles      make the table anew, and prove its error

A number A from 0 to 2^63 stands for the normal number g(A) >= 0 for which |Z| > g(A) has probability A / 2^63. The upper 14
octaves of A (from 2^e to 2^(e + 1), e from 49 to 62) are divided into 256 pieces each, of equal width, and every piece has
a polynomial. The proof is by interval arithmetic (mpmath). It is about the coefficients as they are in the table, and sums
and products of float64 that are rounded to nearest; nothing rests on how the coefficients were found.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np

FILE = "normal_quantiles.npy"
# More pieces need fewer coefficients, and more octaves leave fewer numbers to `bound_tail`; all fit into 144 kB.
OCTAVES, BITS, DEGREE = 14, 8, 4
# Largest relative error of a sum or a product of float64.
_ROUNDING = Fraction(1, 2**53)
# Derivatives that the proof uses, and the binary places of its intervals.
_ORDER, _PLACES = 7, 140


@lru_cache(maxsize=1)
def read_table() -> np.ndarray:
    """Return the coefficients: float64 of shape (5, 3586), the constants first.

    A column is a piece, in ascending order of A. The first and the last column belong to no piece and hold no numbers. A
    polynomial takes the distance of A from the lower end of its piece.
    """
    with resources.files(__package__).joinpath(FILE).open("rb") as file:
        return np.load(file, allow_pickle=False)


def find_piece(column: int) -> tuple[int, int]:
    """Return the lower end of the piece in a column, and its width, a power of two.

    Example:
        >>> find_piece(1) == (2**49, 2**41), find_piece(3584) == (2**63 - 2**54, 2**54)
        (True, True)
    """
    octave, place = divmod(column - 1, 1 << BITS)
    lowest = 1 << 63 - OCTAVES + octave
    return lowest + place * (lowest >> BITS), lowest >> BITS


def make_table() -> np.ndarray:
    """Compute the coefficients: the first of the Chebyshev series of a Taylor polynomial at the middle of each piece."""
    import mpmath

    columns = OCTAVES << BITS
    table = np.full((DEGREE + 1, columns + 2), np.nan)
    with mpmath.workprec(_PLACES):
        for column in range(1, columns + 1):
            low, width = find_piece(column)
            series = _to_chebyshev(_expand(mpmath, _approximate(low + Fraction(width, 2)), width))
            from_low = _shift(_to_powers(series[: DEGREE + 1]), 2, -1)
            table[:, column] = [float(coefficient / mpmath.mpf(width) ** n) for n, coefficient in enumerate(from_low)]
    return table


def bound_error(table: np.ndarray, column: int) -> float:
    """Return a proved bound of |computed - sigma g(A)| / sigma for a piece, any sigma, and all A that are taken for its.

    A number f of float64 in the piece is taken for any A with |A - f| <= 1 + ulp(f) / 2: f is the whole part of A,
    rounded. The polynomial is computed by Horner's rule, and multiplied by sigma.

    Raises:
        ArithmeticError: where a quantile was not enclosed, so that there is no proof.
    """
    from mpmath.ctx_iv import MPIntervalContext

    context = MPIntervalContext()
    context.prec = _PLACES
    low, width = find_piece(column)
    largest = _enclose(low)[1]
    # The last coefficient of the Taylor polynomial is enclosed for all of the piece, and so is what the polynomial leaves.
    series = _expand(context, _span(context, *_enclose(low + Fraction(width, 2))), width)
    series[-1] = _expand(context, _span(context, _enclose(low + width)[0], largest), width)[-1]
    scaled = [Fraction(float(coefficient)) * width**n for n, coefficient in enumerate(table[:, column])]
    for n, coefficient in enumerate(_shift(scaled, Fraction(1, 2), Fraction(1, 2))):
        series[n] -= _span(context, coefficient)
    approximation = sum(abs(coefficient) for coefficient in _to_chebyshev(series))
    # No such A is below that of a slightly larger quantile, where g is steeper than anywhere above.
    apart, steepest = 1 + Fraction(max(1, low >> 52), 2), largest + Fraction(1, 2**30)
    if not bound_tail(steepest, _PLACES)[1] <= (low - apart) * 2 ** (_PLACES - 64):
        raise ArithmeticError(f"column={column}: numbers that are taken for those of the piece are too far from it")
    slope = context.sqrt(context.pi / 2) * context.exp(_span(context, steepest) ** 2 / 2) / 2**63
    total = approximation + slope * _span(context, apart) + _span(context, _bound_rounding(scaled))
    return float(np.nextafter(float(total.b), np.inf))


def _bound_rounding(coefficients: Sequence[Fraction]) -> Fraction:
    """Bound the rounding of Horner's rule at numbers from 0 to 1, and of the product with sigma, over sigma."""
    size, error = abs(coefficients[-1]), Fraction(0)
    for coefficient in coefficients[-2::-1]:
        product = size * (1 + _ROUNDING)
        size = (product + abs(coefficient)) * (1 + _ROUNDING)
        error += _ROUNDING * (product + size)
    return error + _ROUNDING * size


def _expand(context: Any, quantile: Any, width: int) -> list[Any]:
    """Return Taylor coefficients of g where it has this value, in units of half a width.

    They follow from g' = -sqrt(pi / 2) exp(g^2 / 2) / 2^63.
    """
    slope = -context.sqrt(context.pi / 2) * width / 2**64
    values, half_squares, powers = [quantile], [quantile * quantile / 2], [context.exp(quantile * quantile / 2)]
    for n in range(1, _ORDER + 1):
        values.append(slope * powers[n - 1] / n)
        half_squares.append(sum(values[i] * values[n - i] for i in range(n + 1)) / 2)
        powers.append(sum(i * half_squares[i] * powers[n - i] for i in range(1, n + 1)) / n)
    return values


def _shift(polynomial: Sequence[Any], factor: Any, constant: Any) -> list[Any]:
    """Return the coefficients of a polynomial of ``factor t + constant`` as one of t."""
    shifted = [0 * polynomial[0]] * len(polynomial)
    for coefficient in reversed(polynomial):
        shifted = [constant * term + factor * before for term, before in zip(shifted, [0, *shifted[:-1]], strict=True)]
        shifted[0] += coefficient
    return shifted


def _to_chebyshev(polynomial: Sequence[Any]) -> list[Any]:
    """Return the Chebyshev series of a polynomial on [-1, 1], the sum of whose sizes bounds it there."""
    series = [0 * polynomial[0]] * (len(polynomial) + 1)
    for coefficient in reversed(polynomial):
        # Times t: T_0 becomes T_1, and T_n the mean of T_(n-1) and T_(n+1).
        before, after = [0, 2 * series[0], *series[1:-1]], [*series[1:], 0]
        series = [(one + other) / 2 for one, other in zip(before, after, strict=True)]
        series[0] += coefficient
    return series


def _to_powers(series: Sequence[Any]) -> list[Any]:
    """Return the coefficients of the polynomial of a Chebyshev series, by Clenshaw's rule."""
    ahead = further = [0 * series[0]] * len(series)
    for coefficient in reversed(series):
        ahead, further = [2 * a - b for a, b in zip([0, *ahead[:-1]], further, strict=True)], ahead
        ahead[0] += coefficient
    # These are the sums over U_n and U_(n-1), and T_n is U_n less t U_(n-1).
    return [a - b for a, b in zip(ahead, [0, *further[:-1]], strict=True)]


def _approximate(amount: Fraction) -> Any:
    """Return g(A) in mpmath's current precision, unproved."""
    import mpmath

    return mpmath.sqrt(2) * mpmath.erfinv(1 - mpmath.mpf(amount.numerator) / amount.denominator / mpmath.mpf(2) ** 63)


@lru_cache(maxsize=4096)
def _enclose(amount: Fraction) -> tuple[Fraction, Fraction]:
    """Return proved bounds of g(A), 2^-101 apart: A / 2^64 is between the tails beyond them."""
    import mpmath

    if amount == 2**63:
        return Fraction(0), Fraction(0)
    with mpmath.workprec(_PLACES):
        near = Fraction(int(_approximate(amount) * 2**110), 2**110)
    low, high = near - Fraction(1, 2**102), near + Fraction(1, 2**102)
    if not bound_tail(high, _PLACES)[1] <= amount * 2 ** (_PLACES - 64) <= bound_tail(low, _PLACES)[0]:
        raise ArithmeticError(f"amount={amount}: its quantile was not found to 100 bits")
    return low, high


def _span(context: Any, *numbers: Fraction) -> Any:
    """Return an interval that holds all these numbers."""
    ends = [context.mpf(number.numerator) / number.denominator for number in (min(numbers), max(numbers))]
    return context.mpf([ends[0].a, ends[1].b])


def main() -> None:
    """Write the table beside this file, and print the largest error that is proved for any piece."""
    table = make_table()
    with open(str(resources.files(__package__).joinpath(FILE)), "wb") as file:
        np.save(file, table)
    largest = max(bound_error(table, column) for column in range(1, table.shape[1] - 1))
    print(f"{table.shape[1] - 2} pieces, {table.nbytes:,} bytes: no error above {largest * 2**52:.4f} 2^-52")


if __name__ == "__main__":
    main()


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
