"""Synthetic baskets as files have the real ones: one basket a line, one item a row, or lists where files have types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.data.baskets.form import BASKET, ITEM, BasketForm
from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.files.kinds import JSON_LINES, PARQUET
from lightning_dpgen.data.names import names_type
from lightning_dpgen.release.rows.as_read import AsRead, WrittenRecords, as_they_are

_WITH_LISTS = (PARQUET, *JSON_LINES)


def written_baskets(schema: BasketSchema, ending: str) -> WrittenRecords:
    """Return the form in which synthetic baskets are written to files of an ending, by which the same settings read them.

    Example:
        >>> schema = BasketSchema(("tea", "milk"), 2, written=BasketForm(columns=("bill", "article")))
        >>> baskets = pa.record_batch({"items": [["tea", "milk"], []]})
        >>> next(written_baskets(schema, ".csv").rows([baskets], 0)).to_pydict()
        {'bill': [1, 1, 2], 'article': ['tea', 'milk', None]}
    """
    written, file = schema.written, Path(f"x{ending}")
    # No matrix is written: the form of a file is then that of its ending.
    by = BasketForm() if written.form == "matrix" else written
    if by.by_name(file) == "lines":
        separator = written.separator_of(file, schema.items) or " "
        if len(separator.encode()) != 1 and any(separator in str(name) for name in (*schema.items, *schema.classes)):
            raise ValueError(f"the separator {separator!r} stands in names of items: expected one of one character")
        return as_they_are(schema.arrow, AsRead(separator, header=bool(written.header), as_lines=True))
    if ending in _WITH_LISTS and written.form != "rows" and written.columns is None:
        return as_they_are(schema.arrow)
    columns = [*zip(written.columns or (BASKET, ITEM), (pa.int64(), names_type(schema.items)), strict=True)]
    if schema.classes:
        columns.append((written.label_name, names_type(schema.classes)))
    form = AsRead(written.separator, header=written.header is not False)
    return WrittenRecords(pa.schema(columns), partial(_rows, pa.schema(columns)), form, None)


def _rows(columns: pa.Schema, chunks: Iterable[pa.RecordBatch], before: int) -> Iterator[pa.RecordBatch]:
    """Return baskets one item a row, each under its number from 1; an empty one is a row without an item."""
    for chunk in chunks:
        lists = chunk.column(0)
        sizes = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
        baskets = np.repeat(np.arange(chunk.num_rows), np.maximum(sizes, 1))
        # The place of each row's item among all; none for an empty basket.
        places = pa.array(np.maximum(np.cumsum(sizes[baskets] > 0) - 1, 0), mask=sizes[baskets] == 0)
        items = lists.flatten().take(places) if sizes.any() else pa.nulls(len(baskets), columns.types[1])
        more = [column.take(pa.array(baskets)) for column in chunk.columns[1:]]
        yield pa.record_batch([pa.array(baskets + before + 1), items, *more], schema=columns)
        before += chunk.num_rows
