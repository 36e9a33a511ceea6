"""Public lists of names, such as items, classes and channels; arrays of values as text and as numbers."""

from __future__ import annotations

import decimal
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.common.plain_text import is_plain

Name = str | int
LABEL = "label"
MOST_CLASSES = 10_000
# Letters of a value, values of a list in a message, and letters of such a list.
_SHOWN, _LISTED, _LONGEST = 40, 20, 200


def public_names(argument: str, names: Sequence[Name], least: int, most: int) -> tuple[Name, ...]:
    """Check names and return them as a tuple: all text or all whole numbers, none twice.

    Args:
        argument: their name in an error.
        least, most: the bounds of their number.

    Raises:
        ValueError: for another number of them, a name twice, an empty one, one of another type, or text with blanks at
            its ends or a line break in it, which no file could hold.

    Example:
        >>> public_names("classes", ["day", "night"], 2, 10)
        ('day', 'night')
        >>> public_names("classes", ["day", "day"], 2, 10)
        Traceback (most recent call last):
        ValueError: classes: 'day' appears twice (places 1 and 2): expected each name once
    """
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ValueError(f"{argument}={quote(names)}: expected a list of names")
    if not least <= len(names) <= most:
        raise ValueError(f"{argument}: expected {least:,} to {most:,} names, found {len(names):,}")
    kind = type(names[0]) if names else str
    seen: dict[Name, int] = {}
    for place, name in enumerate(names, 1):
        if type(name) not in (str, int) or type(name) is not kind:
            raise ValueError(f"{argument}: {quote(name)} (place {place}): expected all text, or all whole numbers")
        if kind is int and not -(2**63) <= name < 2**63:
            raise ValueError(f"{argument}: {quote(name)} (place {place}): expected whole numbers of 64 bits")
        if kind is str and not is_name(name):
            raise ValueError(
                f"{argument}: {quote(name)} (place {place}): expected text that is not empty, without blanks at its ends "
                "or line breaks"
            )
        if name in seen:
            places = f"places {seen[name]} and {place}"
            raise ValueError(f"{argument}: {quote(name)} appears twice ({places}): expected each name once")
        seen[name] = place
    return tuple(names)


def positions(names: tuple[Name, ...], values: pa.Array) -> np.ndarray:
    """Return the place of each of (n,) values among names: (n,) int64, -1 for others and for missing ones.

    Whole numbers are also found where a file holds them as text (``12``), or as floats (12.0, as pandas makes them).

    Example:
        >>> positions((5, 7), pa.array(["7", "5", "07", None]))
        array([ 1,  0, -1, -1])
    """
    values = plain(values)
    if not pa.types.is_string(values.type):
        try:
            values = whole_numbers(values)
        except pa.ArrowException:
            # Values are lists or the like.
            return np.full(len(values), -1)
    if not (names_type(names) == values.type == pa.int64()):
        values, names = values.cast(pa.string()), tuple(map(str, names))
    among = pc.index_in(values, value_set=pa.array(names, values.type), skip_nulls=True)
    return pc.fill_null(among, -1).to_numpy(zero_copy_only=False).astype(np.int64)


def plain(values: pa.Array) -> pa.Array:
    """Return values as text, or as the numbers that they are, in none of the other forms of Arrow for these."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    # A column that holds nothing has no type.
    if any(test(values.type) for test in (pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)):
        values = values.cast(pa.string())
    return values


def whole_numbers(values: pa.Array) -> pa.Array:
    """Return values as int64, null where they are no whole numbers; text must be written in the shortest way.

    Example:
        >>> whole_numbers(pa.array(["12", "1e3", "007"])).to_pylist()
        [12, None, None]
    """
    kind = values.type
    if pa.types.is_string(kind):
        # Numbers of 18 digits fit 64 bits.
        values = pc.if_else(pc.match_substring_regex(values, r"^(0|-?[1-9][0-9]{0,17})$"), values, None)
    elif pa.types.is_floating(kind):
        values = pc.if_else(pc.equal(pc.floor(values), values), values, None)
        values = pc.if_else(pc.less(pc.abs(values), 2.0**53), values, None)
    elif kind == pa.uint64():
        values = pc.if_else(pc.less(values, pa.scalar(2**63, kind)), values, None)
    return values.cast(pa.int64())


def label_classes(classes: Sequence[Name]) -> tuple[Name, ...]:
    """Check the values of a label, of which there are none or two and more; errors as those of `public_names`."""
    classes = public_names("classes", classes, 0, MOST_CLASSES)
    if len(classes) == 1:
        raise ValueError(f"classes={quote(list(classes))}: expected none (no label), or two and more")
    return classes


def names_type(names: tuple[Name, ...]) -> pa.DataType:
    """Return the type of a column that holds such names."""
    return pa.int64() if names and type(names[0]) is int else pa.string()


def one_of(names: Sequence[Name]) -> str:
    """Return what an error expects in place of a public name: the names, unless they are many.

    Example:
        >>> one_of(("day", "night")), one_of(range(21))
        ("one of 'day', 'night'", 'one of the 21 values listed')
    """
    told = ", ".join(map(quote, names[: _LISTED + 1]))
    return (
        f"one of {told}" if len(names) <= _LISTED and len(told) <= _LONGEST else f"one of the {len(names):,} values listed"
    )


def quote(value: object) -> str:
    """Return a value as an error of one line shows it.

    Example:
        >>> quote("a" * 50)
        "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa..."
    """
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


class FileForm:
    """A form of files, of which a release keeps the fields `kept` where they differ from the usual ones."""

    kept: ClassVar[tuple[str, ...]]

    def as_json(self) -> dict[str, Any]:
        """Return what a release keeps of it."""
        usual = type(self)()
        fields = {name: getattr(self, name) for name in self.kept if getattr(self, name) != getattr(usual, name)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}

    @classmethod
    def from_json(cls, fields: Any) -> Self:
        """Return the form that `as_json` described. Safe to call on what strangers have written.

        Raises:
            ValueError: for foreign fields, or what no form may hold.
        """
        if not isinstance(fields, Mapping) or not set(fields) <= set(cls.kept):
            raise ValueError(f"written={quote(fields)}: expected {', '.join(cls.kept)}")
        for name, value in fields.items():
            texts = value if isinstance(value, list) else [value]
            fine = all(isinstance(text, bool) or (isinstance(text, str) and text and is_plain(text)) for text in texts)
            # A tab may part fields.
            if not fine and (name, value) != ("separator", "\t"):
                raise ValueError(f"written: {name}={quote(value)}: expected text on one line, without control characters")
        return cls(**fields)


def is_name(name: str) -> bool:
    """Tell whether every file can hold a text: not empty, without blanks at its ends or line breaks."""
    return bool(name) and name == name.strip() and len(name.splitlines()) == 1 and name.isprintable()


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
