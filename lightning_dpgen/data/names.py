"""Public lists of names: the items of a universe, the classes of a label (also in conditions), the channels of a series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.common.plain_text import is_plain

Name = str | int
LABEL = "label"
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
        raise ValueError(f"{argument}={shown(names)}: expected a list of names")
    if not least <= len(names) <= most:
        raise ValueError(f"{argument}: expected {least:,} to {most:,} names, found {len(names):,}")
    kind = type(names[0]) if names else str
    seen: dict[Name, int] = {}
    for place, name in enumerate(names, 1):
        if type(name) not in (str, int) or type(name) is not kind:
            raise ValueError(f"{argument}: {shown(name)} (place {place}): expected all text, or all whole numbers")
        if kind is int and not -(2**63) <= name < 2**63:
            raise ValueError(f"{argument}: {shown(name)} (place {place}): expected whole numbers of 64 bits")
        if kind is str and not is_name(name):
            raise ValueError(
                f"{argument}: {shown(name)} (place {place}): expected text that is not empty, without blanks at its ends "
                "or line breaks"
            )
        if name in seen:
            places = f"places {seen[name]} and {place}"
            raise ValueError(f"{argument}: {shown(name)} appears twice ({places}): expected each name once")
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


def label_choices(classes: tuple[Name, ...]) -> dict[str, list[str]]:
    """Return the names of the choices of the label, if there is one; see `Schema.choices`.

    Example:
        >>> label_choices((1, 2)), label_choices(())
        ({'label': ['1', '2']}, {})
    """
    return {LABEL: list(map(str, classes))} if classes else {}


def names_type(names: tuple[Name, ...]) -> pa.DataType:
    """Return the type of a column that holds such names."""
    return pa.int64() if names and type(names[0]) is int else pa.string()


def one_of(names: Sequence[Name]) -> str:
    """Return what an error expects in place of a public name: the names, unless they are many.

    Example:
        >>> one_of(("day", "night")), one_of(range(21))
        ("one of 'day', 'night'", 'one of the 21 values listed')
    """
    told = ", ".join(map(shown, names[: _LISTED + 1]))
    return (
        f"one of {told}" if len(names) <= _LISTED and len(told) <= _LONGEST else f"one of the {len(names):,} values listed"
    )


def shown(value: object) -> str:
    """Return a value as an error of one line shows it.

    Example:
        >>> shown("a" * 50)
        "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa..."
    """
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def kept_fields(form: Any, known: Sequence[str]) -> dict[str, Any]:
    """Return what a release keeps of a form of files, by these names: all that differs from the usual one."""
    usual = type(form)()
    kept = {name: getattr(form, name) for name in known if getattr(form, name) != getattr(usual, name)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()}


def check_written(fields: object, known: Sequence[str]) -> None:
    """Raise ValueError unless these are values of a form of files, which a stranger's release may give by these names.

    Example:
        >>> check_written({"form": "long", "columns": ["a", "b"]}, ("form", "columns"))
    """
    if not isinstance(fields, Mapping) or not set(fields) <= set(known):
        raise ValueError(f"written={shown(fields)}: expected {', '.join(known)}")
    for name, value in fields.items():
        texts = value if isinstance(value, list) else [value]
        plain_ones = all(isinstance(text, bool) or (isinstance(text, str) and text and is_plain(text)) for text in texts)
        # A tab may part fields.
        if not plain_ones and (name, value) != ("separator", "\t"):
            raise ValueError(f"written: {name}={shown(value)}: expected text on one line, without control characters")


def is_name(name: str) -> bool:
    """Tell whether every file can hold a text: not empty, without blanks at its ends or line breaks."""
    return bool(name) and name == name.strip() and len(name.splitlines()) == 1 and name.isprintable()
