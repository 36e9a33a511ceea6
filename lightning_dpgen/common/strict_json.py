"""JSON from outside: every reader gets the same value from it, and it is measured before anything is built from it."""

from __future__ import annotations

import json
import math
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

if TYPE_CHECKING:
    import jsonschema

MOST_BYTES, MOST_VALUES, MOST_DEPTH = 16 * 2**20, 1_000_000, 64
# Every double has a decimal form that is exact and shorter.
_LONGEST_NUMBER = 1100
# Possessive, so that a quote which is never closed is passed over once and no state is kept for each character.
_TEXTS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_STEPS = np.zeros(256, np.int8)
_STEPS[[ord("["), ord("{")]], _STEPS[[ord("]"), ord("}")]] = 1, -1


def parse_json(
    content: bytes, *, most_values: int = MOST_VALUES, most_depth: int = MOST_DEPTH, lone_surrogates: bool = False
) -> Any:
    """Return the value that a JSON text stands for, if every reader of JSON gets the same value from it.

    It has no key twice, no NaN or infinity, and no number that a double cannot hold. The count of values and the depth are
    bounded before a value is built, so the cost is linear in the length of the text.

    Args:
        content: the text, in UTF-8, of a length that the caller has bounded.
        most_values, most_depth: the most values that it may hold at all levels, and the most levels.
        lone_surrogates: whether text may hold halves of surrogate pairs, as names of files do that are not UTF-8.

    Raises:
        ValueError: saying in one line what is wrong with the text.

    Example:
        >>> parse_json(b'{"a": [1, 2.5]}')
        {'a': [1, 2.5]}
        >>> parse_json(b"[" * 100_000)
        Traceback (most recent call last):
        ValueError: is nested deeper than 64 levels
    """
    _check_size(content, most_values, most_depth)
    try:
        value = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_no_duplicates,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_whole,
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from None
    if b"\\u" in content and not lone_surrogates:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("holds half of a surrogate pair, which is not text") from None
    return value


def read_json(path: Path, *, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """Return the object in a file.

    Raises:
        ValueError: naming the file and what is wrong, if it is too large, is no JSON object, or says two things.
        OSError: if it cannot be read.
    """
    with open(path, "rb") as file:
        return read_object(file, path.name, most_bytes=most_bytes)


def read_object(file: BinaryIO, name: str, *, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """Return the object in an open file.

    Raises:
        ValueError: as `read_json`.
        OSError: if it cannot be read.
    """
    content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"{name} is larger than {most_bytes} bytes")
    try:
        value = parse_json(content)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{name}: expected a JSON object")
    return value


class Shape:
    """A JSON schema, and its validator, to which 1.0 is no integer, since code that counts or cuts with it takes none.

    Args:
        schema: the schema.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema

    @cached_property
    def validator(self) -> jsonschema.Validator:
        """The validator; it is made when something is first read, since a training that reads nothing needs none."""
        import jsonschema

        checker = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, x: type(x) is int)
        return jsonschema.validators.extend(jsonschema.Draft202012Validator, type_checker=checker)(self.schema)


def shape(**properties: Any) -> Shape:
    """Make the shape of an object with these keys, each with its JSON schema, and any others besides.

    Keys that end in ``_`` may be left out (the ``_`` is not part of the key).
    """
    required = [name for name in properties if not name.endswith("_")]
    described = {name.removesuffix("_"): schema for name, schema in properties.items()}
    return Shape({"type": "object", "required": required, "properties": described})


def check_shape(value: Any, expected: Shape) -> None:
    """Refuse a JSON value that has not the shape that its reader relies on.

    Raises:
        ValueError: naming the place and what was expected there, in one line.

    Example:
        >>> check_shape({"n": "5"}, shape(n={"type": "integer"}))
        Traceback (most recent call last):
        ValueError: n: '5' is not of type 'integer'
    """
    from jsonschema.exceptions import best_match

    error = best_match(expected.validator.iter_errors(value))
    if error is not None:
        place = ".".join(str(part)[:40] for part in error.absolute_path)
        raise ValueError(f"{place}: {error.message[:160]}" if place else error.message[:160])


def _check_size(content: bytes, most_values: int, most_depth: int) -> None:
    opened = content.count(b"[") + content.count(b"{")
    # Brackets and commas within text count here, too; a look without text is only worth it where there are many.
    if opened <= most_depth and opened + content.count(b",") < most_values:
        return
    bare = _TEXTS.sub(b"", content)
    if bare.count(b"[") + bare.count(b"{") + bare.count(b",") >= most_values:
        raise ValueError(f"holds more than {most_values} values")
    steps = _STEPS[np.frombuffer(bare, np.uint8)]
    if np.cumsum(steps[steps != 0], dtype=np.int32).max(initial=0) > most_depth:
        raise ValueError(f"is nested deeper than {most_depth} levels")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict, and refuse a key that stands twice: readers differ in which of the two they take."""
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise ValueError(f"the key {key[:60]!r} appears twice")
        fields[key] = value
    return fields


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(text: str) -> float:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError(f"holds a number longer than {_LONGEST_NUMBER} characters")
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:60]} is more than a double can hold")
    return number


def _whole(text: str) -> int:
    _finite(text)
    return int(text)
