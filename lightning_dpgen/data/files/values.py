"""Columns of values as other programs hand them out: numbers, text, dates and times of Python, each by its own type."""

from __future__ import annotations

import datetime
import decimal
import uuid
from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa

from lightning_dpgen.data.files.blocks import RowSource
from lightning_dpgen.data.names import shown
from lightning_dpgen.sampling.errors import BadRecords

ROWS_AT_ONCE = 1 << 13
# Beyond it, float64 does not hold all whole numbers: these are text.
_LARGEST_WHOLE = 2**53


class Nested(BadRecords):
    """A value that is an object or a list, or of a type that no column has.

    Args:
        where: the source.
        column: in which it stands.
        value: as it was read; private, and not told.
    """

    def __init__(self, where: str, column: str, value: Any) -> None:
        kinds = {dict: "an object", list: "a list"}
        self.column, self.what = column, kinds.get(type(value), f"a {type(value).__name__}")
        self.advice = "unpack it into columns first"
        if isinstance(value, dict) and column.isidentifier():
            self.advice += f" (jq -c '.{column} + del(.{column})' puts its fields beside the others)"
        told = f"holds {self.what}: expected single values; {self.advice}, or declare type: drop"
        super().__init__(f"{where}: column {shown(column)} {told}")


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
                    named = zip(columns, zip(*rows, strict=True), strict=True)
                    read = [_read(values, name, self.where) for name, values in named]
                    for start, stop in _alike([kinds for kinds, _ in read], len(rows)):
                        parts = [(kinds[start:stop], values[start:stop]) for kinds, values in read]
                        arrays = [
                            _array(kinds, values, name, self.where)
                            for name, (kinds, values) in zip(columns, parts, strict=True)
                        ]
                        yield pa.record_batch(arrays, names=columns)


def _read(values: Sequence[Any], column: str, where: str) -> tuple[list[str], list[Any]]:
    """Return the kind of each value, none of a missing one, and the value as it is read; each by itself.

    Raises:
        BadRecords: for what no column holds.
    """
    kinds, found = [], []
    for value in values:
        kind = type(value).__name__
        if value is None:
            kind = ""
        elif isinstance(value, bool | str):
            pass
        elif isinstance(value, int | float | decimal.Decimal):
            of_text = (isinstance(value, int) and abs(value) > _LARGEST_WHOLE) or (
                isinstance(value, decimal.Decimal) and not value.is_finite()
            )
            number = value if isinstance(value, int) else float(value)
            kind, value = ("str", str(value)) if of_text else ("number", number)
        elif isinstance(value, uuid.UUID):
            kind, value = "str", str(value)
        elif isinstance(value, datetime.datetime) and value.tzinfo is not None:
            kind, value = "instant", value.astimezone(datetime.UTC)
        elif not isinstance(value, datetime.date | datetime.time | datetime.timedelta):
            raise Nested(where, column, value)
        kinds.append(kind)
        found.append(value)
    return kinds, found


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


_TYPES = {"bool": pa.bool_(), "str": pa.string(), "instant": pa.timestamp("us", "UTC")}


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
            raise BadRecords(f"{where}: column {shown(column)} holds text that is not Unicode: correct it") from None
        raise BadRecords(f"{where}: column {shown(column)}: cannot be read: {' '.join(str(error).split())[:95]}") from None
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
