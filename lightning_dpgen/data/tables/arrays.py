"""Columns as they come from files and frames: what is read of them, and where the first value is that cannot be."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.data import names
from lightning_dpgen.data.files.blocks import first_misfit
from lightning_dpgen.sampling.errors import BadRecords


class Misfit(Exception):
    """A value in a row of an array, or (row None) the type of the array, that a column cannot hold, and what to do."""

    def __init__(self, row: int | None, problem: str, advice: str = "correct it") -> None:
        super().__init__(problem)
        self.row, self.problem, self.advice = row, problem, advice

    def moved(self, rows: np.ndarray) -> Misfit:
        """Return the same for the array of which only these rows were read."""
        return Misfit(None if self.row is None else int(rows[self.row]), self.problem, self.advice)


class BadValue(BadRecords):
    """A value in a row of what was read that the schema does not allow, or (row None) a column of another type."""

    def __init__(self, column: str, row: int | None, problem: str) -> None:
        self.column, self.row, self.problem = column, row, problem
        super().__init__(f"column {column!r}{'' if row is None else f', row {row}'}: {problem}")

    @classmethod
    def of(cls, column: str, misfit: Misfit) -> BadValue:
        return cls(column, misfit.row, f"{misfit.problem}; {misfit.advice}")


def plain(values: pa.Array) -> pa.Array:
    """Return the same values without a dictionary, text as `pa.string()`; an array of nulls alone is one of text.

    Raises:
        Misfit: for nested or binary values.

    Example:
        >>> plain(pa.array(["a", "b", "a"]).dictionary_encode()).type
        DataType(string)
    """
    values = names.plain(values)
    kind = values.type
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    if binary or isinstance(kind, pa.BaseExtensionType) or pa.types.is_nested(kind):
        raise Misfit(None, f"holds {kind}", "unpack it into columns of single values first, or declare type: drop")
    return values


def is_empty(values: pa.Array) -> np.ndarray:
    """Mark the cells (n,) that are null, NaN or the empty text."""
    empty = pc.is_null(values, nan_is_null=True)
    if pa.types.is_string(values.type):
        empty = pc.or_(empty, pc.equal(values.fill_null(""), ""))
    return empty.to_numpy(zero_copy_only=False)


def wrong_type(values: pa.Array, expected: str) -> Misfit:
    """Return the refusal of a type that cannot hold what is expected."""
    return Misfit(None, f"holds {values.type}: expected {expected}", "convert it, or change its type in the schema")


def parsed(values: pa.Array, kind: pa.DataType, expected: str) -> pa.Array:
    """Parse text as another type.

    Raises:
        Misfit: naming the first text that is none.

    Example:
        >>> parsed(pa.array(["1", "x", "3"]), pa.int64(), "a whole number")
        Traceback (most recent call last):
        lightning_dpgen.data.tables.arrays.Misfit: 'x': expected a whole number
    """
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        row = first_misfit(values, kind)
    raise Misfit(row, f"{quote_cell(values, row)}: expected {expected}", how_to_correct(values, row))


def how_to_correct(values: pa.Array, row: int, advice: str = "correct it") -> str:
    """Return the advice about a value; of a text with a line break it asks for the quote that may be open.

    Example:
        >>> how_to_correct(pa.array(["M\\n3,F"]), 0)
        'is a double quote before it left open? Else correct it'
    """
    several = pa.types.is_string(values.type) and any(sign in (values[row].as_py() or "") for sign in "\r\n")
    return f"is a double quote before it left open? Else {advice}" if several else advice


def quote_cell(values: pa.Array, row: int) -> str:
    """Return a value as a message quotes it: text in quotes, and cut short."""
    try:
        value = values[row].as_py()
    except UnicodeDecodeError:
        return "text that is not UTF-8"
    except (ValueError, OverflowError):
        return "a moment before the year 1 or after 9999"
    text = repr(value) if isinstance(value, str | int | float | bool) else str(value)
    return text if len(text) <= 40 else f"{text[:35]}..."
