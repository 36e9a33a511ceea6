"""Units of sums in whole numbers, as text that stands for one number exactly: ``2^-28``, ``1/784``, ``655371*2^-90``."""

from __future__ import annotations

import math
import re
from fractions import Fraction

# A fraction whose odd part is below this is written as one; any other number of float64 is a whole number times 2^e.
_SMALL = 1 << 16
_SHORT = 10**15
_FORM = re.compile(
    r"(?P<top>[1-9]\d{0,15})(?:/(?P<bottom>[1-9]\d{0,15})|\*2\^(?P<times>-?[1-9]\d{0,3}))?|2\^(?P<power>-?[1-9]\d{0,3})"
)
_LARGEST_POWER = 1100


def write_unit(unit: float) -> str:
    """Write a unit as a power of two, as a fraction of small numbers, or as a whole number times a power of two.

    A fraction stands for the unit that was meant where float64 has no such number: the unit is the nearest one to it.

    Args:
        unit: positive and finite.

    Example:
        >>> [write_unit(unit) for unit in (1.0, 2.0**-28, 1 / 784, 3.0, 0.1 + 0.2)]
        ['1', '2^-28', '1/784', '3', '1351079888211149*2^-52']
    """
    part, power = math.frexp(unit)
    if part == 0.5:
        return "1" if power == 1 else f"2^{power - 1}"
    short = Fraction(part).limit_denominator(_SMALL)
    if float(short) == part:
        exact = short * Fraction(2) ** power
        if max(exact.numerator, exact.denominator) < _SHORT:
            return str(exact)
    top = int(math.ldexp(part, 53))
    zeros = (top & -top).bit_length() - 1
    times = power - 53 + zeros
    return f"{top >> zeros}*2^{times}" if times else str(top >> zeros)


def read_unit(text: str) -> Fraction:
    """Return the number that `write_unit` has written.

    Raises:
        ValueError: for any other text.

    Example:
        >>> read_unit("2^-3"), read_unit("1/784"), read_unit("5/16")
        (Fraction(1, 8), Fraction(1, 784), Fraction(5, 16))
    """
    found = _FORM.fullmatch(text) if len(text) <= 64 else None
    if found is not None:
        power = int(found["power"] or found["times"] or 0)
        if abs(power) <= _LARGEST_POWER:
            unit = Fraction(int(found["top"] or 1), int(found["bottom"] or 1)) * Fraction(2) ** power
            # There is one way to write each unit.
            if 2.0**-1000 < unit < 2.0**1000 and write_unit(float(unit)) == text:
                return unit
    raise ValueError(f"unit={text[:64]!r}: expected a power of two (2^-8), a fraction (1/784) or 655371*2^-90")
