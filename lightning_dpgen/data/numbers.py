"""Arrays of numbers as text and as float64: each number by itself, whatever others an array holds."""

from __future__ import annotations

import decimal

import numpy as np
import pyarrow as pa


def texts_of(values: pa.Array) -> pa.Array:
    """Return numbers as text: whole ones without decimals, each by itself, whatever other values the column has.

    Example:
        >>> texts_of(pa.array([12.0, 2.5, None, float("nan")])).to_pylist(), texts_of(pa.array([12])).to_pylist()
        (['12', '2.5', None, None], ['12'])
        >>> texts_of(pa.array([decimal.Decimal("1"), decimal.Decimal("0.5")])).to_pylist()
        ['1', '0.5']
    """
    kind = values.type
    if not (pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        return values.cast(pa.string())
    # NaN is the one value that differs from itself.
    numbers = [None if value is None or value != value else value for value in values.to_pylist()]
    return pa.array([None if number is None else _text(number) for number in numbers], pa.string())


def _text(number: float | decimal.Decimal) -> str:
    """Return a number as text, a decimal one as float64 of the same value is written, where there is one."""
    if isinstance(number, float):
        return str(int(number)) if number.is_integer() else repr(number)
    # The scale of an Arrow array, which other values may have widened, is no part of the number.
    if number == number.to_integral_value():
        return str(int(number))
    return repr(float(number)) if decimal.Decimal(repr(float(number))) == number else f"{number:f}".rstrip("0")


def floats_of(values: pa.Array) -> np.ndarray:
    """Return numbers as float64, each the nearest to its own digits; NaN where one is missing.

    Example:
        >>> floats_of(pa.array([decimal.Decimal("0.3"), None]))
        array([0.3, nan])
    """
    if pa.types.is_decimal(values.type):
        # Arrow rounds by the scale of the whole column, which other records may have widened; digits are read alike.
        values = values.cast(pa.string())
    return values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def are_numbers(kind: pa.DataType) -> bool:
    """Tell whether a type is one of numbers."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
