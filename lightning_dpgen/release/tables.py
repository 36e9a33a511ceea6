"""Synthetic records as files: Parquet or CSV, written a chunk at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from lightning_dpgen.data.files.formulas import escaped, escaped_name

FORMATS = (".parquet", ".csv")


def write_table(path: Path, chunks: Iterable[pa.RecordBatch], schema: pa.Schema, *, escape: bool = True) -> None:
    """Write records to a ``.parquet`` or ``.csv`` file, never holding more than a chunk; `escape` as for `csv_text`.

    Raises:
        ValueError: for another ending.
    """
    if path.suffix == ".parquet":
        # Arrow would read a path in its own way.
        with open(path, "wb") as file, pa.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            for chunk in chunks:
                writer.write(chunk)
    elif path.suffix == ".csv":
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.writelines(csv_text(chunks, escape=escape))
    else:
        raise ValueError(f"{path}: expected a name that ends in {' or '.join(FORMATS)}")


def csv_text(chunks: Iterable[pa.RecordBatch], *, escape: bool = True) -> Iterator[str]:
    """Write records as CSV, a chunk at a time, names of columns first; a list, as in a basket, becomes JSON.

    Args:
        escape: whether text, in cells and names, that a spreadsheet would run as a formula gets an apostrophe before it
            (`data.files.formulas`); numbers stay as they are. Tables that dpgen reads by a schema know it again.

    Example:
        >>> batch = pa.RecordBatch.from_pydict({"items": [["tea", "bread"], []], "label": ["day", "night"]})
        >>> print("".join(csv_text([batch])), end="")
        "items","label"
        "[""tea"", ""bread""]","day"
        "[]","night"
    """
    for i, chunk in enumerate(chunks):
        sink = pa.BufferOutputStream()
        cells = _without_lists(chunk)
        pa.csv.write_csv(_escaped(cells) if escape else cells, sink, pa.csv.WriteOptions(include_header=i == 0))
        yield sink.getvalue().to_pybytes().decode()


def _escaped(chunk: pa.RecordBatch) -> pa.RecordBatch:
    columns = [escaped(column) if pa.types.is_string(column.type) else column for column in chunk.columns]
    return pa.RecordBatch.from_arrays(columns, names=[escaped_name(name) for name in chunk.schema.names])


def _without_lists(chunk: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        pa.array([json.dumps(value, ensure_ascii=False) for value in column.to_pylist()], pa.string())
        if pa.types.is_list(column.type)
        else column
        for column in chunk.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=chunk.schema.names)
