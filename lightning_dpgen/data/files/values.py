"""Rows of values as other programs hand them out, each by its own type, and lines of JSON, whose keys are the columns."""

from __future__ import annotations

import copy
import datetime
import decimal
import itertools
import json
import math
import uuid
from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.files.blocks import RowSource
from lightning_dpgen.data.files.text import MARK, UNREADABLE, WHOLE, TextRange, damaged, decoded, find_ranges, open_range
from lightning_dpgen.data.names import quote
from lightning_dpgen.sampling.errors import BadRecords

ROWS_AT_ONCE = 1 << 13
# Beyond it, float64 does not tell all whole numbers apart: these are text.
_LARGEST_WHOLE = 2**53 - 1
# Digits of the longest number that Arrow holds.
_MOST_DIGITS = 76


class Nested(BadRecords):
    """A value that is an object or a list, or of a type that no column has.

    Args:
        where: the source.
        column: in which it stands.
        value: as it was read; private, and not told.
    """

    def __init__(self, where: str, column: str, value: Any) -> None:
        kinds: dict[type, str] = {dict: "an object", list: "a list", bytes: "bytes"}
        self.column, self.what = column, kinds.get(type(value), f"a {type(value).__name__}")
        self.advice = "unpack it into columns first"
        if isinstance(value, dict) and column.isidentifier():
            self.advice += f" (jq -c '.{column} + del(.{column})' puts its fields beside the others)"
        told = f"holds {self.what}: expected single values; {self.advice}, or declare type: drop"
        super().__init__(f"{where}: column {quote(column)} {told}")


class ValueRows(RowSource):
    """A source that hands out rows of Python's values.

    A value is read by its own type, and never by those of other records: rows whose values are of other types begin a
    batch of their own.
    """

    @abstractmethod
    def value_blocks(self, columns: list[str]) -> Generator[Sequence[Sequence[Any]]]:
        """Yield the rows in their order, some at a time, each with the values of these columns; errors as `batches`."""

    def batches(self, columns: list[str]) -> Generator[pa.RecordBatch]:
        with closing(self.value_blocks(columns)) as blocks:
            for rows in blocks:
                if rows:
                    yield from alike_batches(dict(zip(columns, zip(*rows, strict=True), strict=True)), self.where)


def alike_batches(columns: Mapping[str, pa.Array | Sequence[Any]], where: str) -> Generator[pa.RecordBatch]:
    """Yield rows in batches, in each of which a column has values of one kind; arrays are of one kind already.

    Args:
        columns: the values (n,) of each, at least one column.
        where: the source, for an error.

    Raises:
        BadRecords: for what no column holds.

    Example:
        >>> [batch["x"].to_pylist() for batch in alike_batches({"x": [1, 2.5, "a", None, True]}, "here")]
        [[1.0, 2.5], ['a', None], [True]]
    """
    count = len(next(iter(columns.values())))
    read = {name: _read(values, name, where) for name, values in columns.items() if not isinstance(values, pa.Array)}
    for start, stop in _alike([kinds for kinds, _ in read.values()], count):
        arrays = [
            _array(read[name][0][start:stop], read[name][1][start:stop], name, where)
            if name in read
            else values[start:stop]
            for name, values in columns.items()
        ]
        yield pa.record_batch(arrays, names=list(columns))


def _read(values: Sequence[Any], column: str, where: str) -> tuple[list[str], list[Any]]:
    """Return the kind of each value, none of a missing one, and the value as it is read; each by itself.

    Raises:
        BadRecords: for what no column holds.
    """
    kinds, read = [], []
    for value in values:
        kind = type(value).__name__
        if value is None:
            kind = ""
        elif isinstance(value, bool | str):
            pass
        elif isinstance(value, int | float | decimal.Decimal):
            kind, value = _number(value)
        elif isinstance(value, uuid.UUID):
            kind, value = "str", str(value)
        elif isinstance(value, datetime.datetime):
            kind = "datetime"
            if value.tzinfo is not None:
                try:
                    kind, value = "instant", value.astimezone(datetime.UTC)
                except OverflowError:
                    problem = "a moment before the year 1 or after 9999: correct it"
                    raise BadRecords(f"{where}: column {quote(column)} holds {problem}") from None
        elif not isinstance(value, datetime.date | datetime.time | datetime.timedelta):
            raise Nested(where, column, value)
        kinds.append(kind)
        read.append(value)
    return kinds, read


def _number(value: int | float | decimal.Decimal) -> tuple[str, str | int | float]:
    """Return the kind of a number, and the number as it is read: as text, where float64 does not hold it."""
    if isinstance(value, decimal.Decimal):
        if not value.is_finite():
            return "str", str(value)
        is_large = value.copy_abs() > _LARGEST_WHOLE and value.adjusted() < _MOST_DIGITS
        if not is_large or value != value.to_integral_value():
            return "number", float(value)
        value = int(value)
    if isinstance(value, int) and abs(value) > _LARGEST_WHOLE:
        # Python writes no number of thousands of digits as text.
        return ("str", str(value)) if abs(value) < 10**_MOST_DIGITS else ("number", math.inf if value > 0 else -math.inf)
    return "number", value


def _alike(columns: Sequence[Sequence[str]], count: int) -> Iterator[tuple[int, int]]:
    """Yield runs of rows, from one to before another, in which each column has values of one kind, and missing ones."""
    mixed = [kinds for kinds in columns if len(set(kinds) - {""}) > 1]
    start, seen = 0, [""] * len(mixed)
    for row in range(count if mixed else 0):
        now = [kinds[row] for kinds in mixed]
        if any(new and old and new != old for old, new in zip(seen, now, strict=True)):
            yield start, row
            start, seen = row, now
        else:
            seen = [new or old for old, new in zip(seen, now, strict=True)]
    yield start, count


_TYPES = {
    "bool": pa.bool_(),
    "str": pa.string(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us"),
    "instant": pa.timestamp("us", "UTC"),
}


def _array(kinds: Sequence[str], values: Sequence[Any], column: str, where: str) -> pa.Array:
    """Return values of one kind as an array."""
    kind = next(filter(None, kinds), "")
    as_type = _TYPES.get(kind)
    if kind == "number":
        # All of them are held exactly by both types, and read alike.
        as_type = pa.float64() if any(type(value) is float for value in values) else pa.int64()
    try:
        array = pa.array(values, as_type, from_pandas=False)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if kind == "str":
            raise BadRecords(f"{where}: column {quote(column)} holds text that is not Unicode: correct it") from None
        raise BadRecords(f"{where}: column {quote(column)}: cannot be read: {' '.join(str(error).split())[:95]}") from None
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def pieces(rows: Iterable[Any], size: int = ROWS_AT_ONCE) -> Iterator[list[Any]]:
    """Yield rows in lists of this size, the last one shorter.

    Example:
        >>> list(pieces("abcde", 2))
        [['a', 'b'], ['c', 'd'], ['e']]
    """
    piece: list[Any] = []
    for row in rows:
        piece.append(row)
        if len(piece) == size:
            yield piece
            piece = []
    if piece:
        yield piece


_LONGEST = 1 << 24
# Lines that are looked at for their keys.
_LOOKED_AT = 1000
_MOST_KEYS = 20_000


class JsonLines(ValueRows):
    """A file of JSON lines, in UTF-8. A key that a line does not have is null there.

    Args:
        path: the file; ``.gz``, ``.bz2`` and ``.zst`` are unpacked.
        names: keys that lines may have, beside those of the first thousand lines.

    Raises:
        BadRecords: if a line is no object, has a key twice, or one that no line before had and that is not among `names`.
    """

    def __init__(self, path: Path, names: Sequence[str] = ()) -> None:
        self._path, self._part = path, WHOLE
        keys: dict[str, None] = {}
        with_rows = False
        for _, row in itertools.islice(self._rows(), _LOOKED_AT):
            with_rows = True
            keys |= dict.fromkeys(row)
            if len(keys) > _MOST_KEYS:
                raise BadRecords(f"{path}: more than {_MOST_KEYS:,} different keys: expected the columns of a table")
        if not with_rows:
            raise BadRecords(f'{path} is empty: expected an object such as {{"age": 42}} on each line')
        self._first = list(keys)
        super().__init__(str(path), [*keys, *(name for name in names if name not in keys)])

    def ranges(self, columns: Sequence[str]) -> list[TextRange]:
        # A key that the first lines lack must be in some line below.
        return [WHOLE] if {*columns} - {*self._first} else find_ranges(self._path, None)

    def within(self, part: TextRange) -> JsonLines:
        rows = copy.copy(self)
        rows._part = part
        return rows

    def value_blocks(self, columns: list[str]) -> Generator[list[list[Any]]]:
        known, seen = set(self.columns), set(self._first)
        for piece in pieces(self._rows()):
            for line, row in piece:
                if not row.keys() <= known:
                    foreign = next(key for key in row if key not in known)
                    raise BadRecords(
                        f"{self._path}, line {line}: has the key {quote(foreign)}, which no line before has and the schema "
                        "does not: declare it there, with type: drop to leave it out"
                    )
                seen |= row.keys()
            yield [[row.get(name) for name in columns] for _, row in piece]
        for name in columns:
            if name not in seen:
                raise BadRecords(f"{self._path}: no line has the key {quote(name)}: it has {listed(self._first)}")

    def place(self, row: int) -> str:
        """Return the line of a row, found by reading once more."""
        return f"line {next(itertools.islice(self._rows(), row, None))[0]}"

    def _rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the objects, each with its line, from 1; empty lines are none."""
        try:
            with open_range(self._path, self._part) as raw:
                for number, line in enumerate(iter(lambda: raw.readline(_LONGEST), b""), self._part.line):
                    text = decoded(line.removeprefix(MARK) if number == 1 else line, f"{self._path}, line {number}")
                    if text.strip():
                        yield number, self._object(text, number)
        except BadRecords:
            raise
        except UNREADABLE as error:
            raise damaged(self._path, error) from None

    def _object(self, text: str, line: int) -> dict[str, Any]:
        place = f"{self._path}, line {line}"
        if len(text) >= _LONGEST:
            raise BadRecords(f"{place}: expected lines of fewer than {_LONGEST:,} characters, with one object in each")
        try:
            value = json.loads(text, object_pairs_hook=_pairs)
        except _Twice as twice:
            raise BadRecords(f"{place}: the key {quote(str(twice))} appears twice: expected it once") from None
        except RecursionError:
            raise BadRecords(f"{place}: is nested too deeply: expected an object of single values") from None
        except ValueError as error:
            advice = "; write one object a line (jq -c '.[]')" if text.lstrip().startswith("[") else ""
            fault = f"{error.msg}, at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else str(error)
            raise BadRecords(f"{place}: is not JSON ({fault[:80]}): expected one object in each line{advice}") from None
        if not isinstance(value, dict):
            advice = " (jq -c '.[]' writes the objects of a list so)" if isinstance(value, list) else ""
            raise BadRecords(f'{place}: expected an object such as {{"age": 42}}, one in each line{advice}')
        return value


class _Twice(Exception):
    """A key that stands twice."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [key for key, _ in pairs]
        raise _Twice(next(key for key in names if names.count(key) > 1))
    return mapping
