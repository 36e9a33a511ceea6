"""Parquet: a file of rows, of which its groups can be read each by itself."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from lightning_dpgen.data.files.blocks import RowSource
from lightning_dpgen.data.files.text import UNREADABLE, damaged

_ROWS_AT_ONCE = 1 << 16


class ParquetRows(RowSource):
    """A Parquet file, or one of its row groups.

    Args:
        path: the file.
        group: the number of the row group that is read, from 0; None for all of them.

    Attributes:
        types: those of its columns, which the file declares.
    """

    def __init__(self, path: Path, group: int | None = None) -> None:
        self._path, self._group = path, group
        try:
            # Arrow would read a path in its own way.
            with open(path, "rb") as file:
                schema = pa.parquet.read_schema(file)
            names = schema.names
        # Names may not be UTF-8, too.
        except UNREADABLE as error:
            raise damaged(path, error, " as Parquet") from None
        super().__init__(str(path) if group is None else f"{path}, row group {group}", names)
        self.types = schema.types

    @property
    def groups(self) -> int:
        """The number of row groups of the file."""
        try:
            with open(self._path, "rb") as opened, pa.parquet.ParquetFile(opened) as file:
                return file.num_row_groups
        except UNREADABLE as error:
            raise damaged(self._path, error, " as Parquet") from None

    def batches(self, columns: list[str]) -> Generator[pa.RecordBatch]:
        groups = None if self._group is None else [self._group]
        try:
            with open(self._path, "rb") as opened, pa.parquet.ParquetFile(opened) as file:
                for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=groups, columns=columns, use_threads=False):
                    yield batch.select(columns)
        except UNREADABLE as error:
            which = "" if self._group is None else f" in row group {self._group}"
            raise damaged(self._path, error, f"{which} as Parquet") from None
