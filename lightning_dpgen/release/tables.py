"""Synthetic records as files: Parquet or CSV, written a chunk at a time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from lightning_dpgen.data.image_schema import ImageSchema

FORMATS = (".parquet", ".csv")


def write_table(path: Path, chunks: Iterable[np.ndarray], schema: ImageSchema) -> None:
    """Write rows of ``schema.columns`` to a ``.parquet`` or ``.csv`` file, never holding more than a chunk.

    Raises:
        ValueError: for another ending.
    """
    kind = pa.uint8() if max(schema.out_levels, schema.classes) < 256 else pa.int32()
    table = pa.schema([(name, kind) for name in schema.columns])
    if path.suffix == ".parquet":
        writer = pa.parquet.ParquetWriter(path, table, compression="zstd")
    elif path.suffix == ".csv":
        writer = pa.csv.CSVWriter(path, table)
    else:
        raise ValueError(f"{path}: expected a name that ends in {' or '.join(FORMATS)}")
    with writer:
        for rows in chunks:
            # Column by column contiguous, so that Arrow takes each column as it is.
            columns = np.asfortranarray(rows.astype(kind.to_pandas_dtype()))
            arrays = [pa.array(columns[:, i]) for i in range(columns.shape[1])]
            writer.write(pa.record_batch(arrays, schema=table))
