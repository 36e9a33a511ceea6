"""Synthetic records as files have the real ones: their rows and columns, and the form of the text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from lightning_dpgen.release.rows.as_read import AsRead

_USUAL = AsRead()


@dataclass(frozen=True)
class WrittenRecords:
    """The form of a file of synthetic records. It goes to the processes that write files.

    Args:
        columns: of its rows.
        rows: makes its rows from those of one record each, after so many records.
        form: of a file of text.
        rows_a_record: how many rows a record has; None where that differs from record to record.
    """

    columns: pa.Schema
    rows: Callable[[Iterable[pa.RecordBatch], int], Iterator[pa.RecordBatch]]
    form: AsRead = _USUAL
    rows_a_record: int | None = 1


def as_they_are(columns: pa.Schema, form: AsRead = _USUAL) -> WrittenRecords:
    """Return the form of one record a row, in the columns in which it is drawn.

    Example:
        >>> written = as_they_are(pa.schema([("x", pa.int64())]))
        >>> [chunk.to_pydict() for chunk in written.rows([pa.record_batch({"x": [1]})], 0)]
        [{'x': [1]}]
    """
    return WrittenRecords(columns, _unchanged, form)


def _unchanged(chunks: Iterable[pa.RecordBatch], before: int) -> Iterator[pa.RecordBatch]:
    return iter(chunks)
