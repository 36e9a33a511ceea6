"""Parquet: a file, or a folder of files of one table."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from lightning_dpgen.data.errors import MissingData
from lightning_dpgen.data.files.blocks import Block, RowSource
from lightning_dpgen.data.files.text import UNREADABLE, damaged
from lightning_dpgen.data.names import shown
from lightning_dpgen.sampling.errors import BadRecords

_ROWS_AT_ONCE = 1 << 16


class ParquetRows(RowSource):
    """A Parquet file.

    Attributes:
        types: those of its columns, which the file declares.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            # Arrow would read a path in its own way.
            with open(path, "rb") as file:
                schema = pa.parquet.read_schema(file)
            names = schema.names
        # Names may not be UTF-8, too.
        except UNREADABLE as error:
            raise damaged(path, error, " as Parquet") from None
        super().__init__(str(path), names)
        self.types = schema.types

    def batches(self, columns: list[str]) -> Generator[pa.RecordBatch]:
        try:
            with open(self._path, "rb") as opened, pa.parquet.ParquetFile(opened) as file:
                for batch in file.iter_batches(_ROWS_AT_ONCE, columns=columns, use_threads=False):
                    yield batch.select(columns)
        except UNREADABLE as error:
            raise damaged(self._path, error, " as Parquet") from None


class ParquetFolder(RowSource):
    """The Parquet files in a folder, in the order of their names, all with the same columns.

    Files whose names begin with a dot or an underscore are none of them: programs note there what they did.

    Attributes:
        types: those of its columns, which the files declare.

    Raises:
        MissingData: if there is none.
        BadRecords: if one has other columns than the first, or a folder below has values of a column in its name.
    """

    def __init__(self, folder: Path) -> None:
        if cut := sorted(place.name for place in folder.glob("*=*") if place.is_dir()):
            raise BadRecords(
                f"{folder}: the folder {shown(cut[0])} holds values of a column in its name, which are not read: write the "
                "column into the files"
            )
        paths = sorted(path for path in folder.glob("*.parquet") if path.is_file() and path.name[0] not in "._")
        if not paths:
            raise MissingData(f"{folder} is a folder without .parquet files: expected a file, or a folder of such files")
        others = sorted(path.name for path in folder.iterdir() if path.name[0] not in "._" and path not in paths)
        if others:
            raise BadRecords(
                f"{folder}: {shown(others[0])} lies beside the .parquet files and would not be read: expected these alone; "
                "name one file, or move the others away"
            )
        self._files = [ParquetRows(path) for path in paths]
        first = self._files[0]
        for file in self._files[1:]:
            if (file.columns, file.types) != (first.columns, first.types):
                raise BadRecords(f"{file.where} has other columns than {first.where}{_difference(first, file)}")
        super().__init__(str(folder), first.columns)
        self.types = first.types

    def batches(self, columns: list[str]) -> Generator[pa.RecordBatch]:
        for file in self._files:
            yield from file.batches(columns)

    def blocks(self, columns: Sequence[str] | None = None) -> Generator[Block]:
        for file in self._files:
            yield from file.blocks(columns)


def _difference(first: ParquetRows, other: ParquetRows) -> str:
    for (name, kind), (own, own_kind) in zip(
        zip(first.columns, first.types, strict=True), zip(other.columns, other.types, strict=True), strict=False
    ):
        if name != own:
            return f": {shown(own)} in place of {shown(name)}; write all files with the same columns in one order"
        if kind != own_kind:
            return f": {shown(name)} is {own_kind} and not {kind}; write all files with the same types"
    return f": {len(other.columns)} and not {len(first.columns)}; write all files with the same columns"
