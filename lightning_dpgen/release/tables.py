"""Synthetic records as files: Parquet or CSV, written a chunk at a time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

FORMATS = (".parquet", ".csv")


def write_table(path: Path, chunks: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
    """Write records to a ``.parquet`` or ``.csv`` file, never holding more than a chunk.

    Raises:
        ValueError: for another ending.
    """
    if path.suffix == ".parquet":
        writer = pa.parquet.ParquetWriter(path, schema, compression="zstd")
    elif path.suffix == ".csv":
        writer = pa.csv.CSVWriter(path, schema)
    else:
        raise ValueError(f"{path}: expected a name that ends in {' or '.join(FORMATS)}")
    with writer:
        for chunk in chunks:
            writer.write(chunk)
