"""Columns of values as other programs hand them out: numbers, text, dates and times of Python, in any mixture."""

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
_NUMBERS = {int, float}


class ValueRows(RowSource):
    """A source that hands out rows of Python's values."""

    @abstractmethod
    def value_blocks(self, columns: list[str]) -> Generator[Sequence[Sequence[Any]]]:
        """Yield the rows in their order, some at a time, each with the values of these columns; errors as `batches`."""

    def batches(self, columns: list[str]) -> Generator[pa.RecordBatch]:
        with closing(self.value_blocks(columns)) as blocks:
            for rows in blocks:
                if rows:
                    named = zip(columns, zip(*rows, strict=True), strict=True)
                    yield pa.record_batch([array_of(values, name, self.where) for name, values in named], names=columns)


def array_of(values: Sequence[Any], column: str = "", where: str = "") -> pa.Array:
    """Return the values of a column as an array: of their type, or as text where there are several, as a CSV file has them.

    Args:
        values: None for a missing one.
        column, where: their names, for an error.

    Raises:
        BadRecords: for what no array holds.

    Example:
        >>> array_of([1, 2.5, None]).to_pylist(), array_of([1, "n/a", datetime.date(2024, 1, 31)]).to_pylist()
        ([1.0, 2.5, None], ['1', 'n/a', '2024-01-31'])
    """
    kinds = set(map(type, values)) - {type(None)}
    if uuid.UUID in kinds or (len(kinds) > 1 and kinds != _NUMBERS):
        return _as_text(values, column, where)
    try:
        array = pa.array(values, from_pandas=False)
    except OverflowError:
        return _as_text(values, column, where)
    except (pa.ArrowException, TypeError, ValueError) as error:
        # Decimals that are not finite.
        if kinds == {decimal.Decimal}:
            return _as_text(values, column, where)
        raise BadRecords(f"{where}: column {shown(column)}: cannot be read: {' '.join(str(error).split())[:95]}") from None
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _as_text(values: Iterable[Any], column: str, where: str) -> pa.Array:
    texts = []
    for value in values:
        if isinstance(value, datetime.datetime | datetime.date | datetime.time):
            value = value.isoformat()
        elif isinstance(value, list | dict | tuple | bytes | memoryview):
            raise BadRecords(
                f"{where}: column {shown(column)} holds a {type(value).__name__} beside other values: expected single "
                "values; unpack it into columns first, or declare type: drop"
            )
        texts.append(value if value is None or isinstance(value, str) else str(value))
    try:
        return pa.array(texts, pa.string())
    except (pa.ArrowException, ValueError):
        raise BadRecords(f"{where}: column {shown(column)} holds text that is not Unicode: correct it") from None


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
