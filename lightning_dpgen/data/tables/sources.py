"""Where the records of a table come from: a file of text, a Parquet file, or a frame in memory; a block at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from lightning_dpgen.data.files.text import check_there
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import Column, shortened
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.text import SUFFIXES, TextTable
from lightning_dpgen.sampling.errors import BadRecords

_ROWS = 1 << 16


class TableSource(Protocol):
    """Records in blocks."""

    def columns(self) -> list[str]:
        """The names of the columns, in which some may stand twice."""

    def batches(self, wanted: list[str]) -> Iterator[pa.RecordBatch]:
        """These columns, at least one, so many records at a time."""

    def place(self, row: int) -> str:
        """Where the record of a position is, for a message."""


@dataclass(frozen=True)
class ParquetTable:
    """A Parquet file."""

    path: Path

    def columns(self) -> list[str]:
        return self._file().schema_arrow.names

    def types(self) -> list[pa.DataType]:
        """The types of the columns, which the file declares."""
        return self._file().schema_arrow.types

    def batches(self, wanted: list[str]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._file().iter_batches(_ROWS, columns=wanted, use_threads=False):
                yield batch.select(wanted)
        except (pa.ArrowException, OSError) as error:
            raise BadRecords(f"{self.path} cannot be read as Parquet: {' '.join(str(error).split())[:100]}") from None

    def place(self, row: int) -> str:
        return f"record {row + 1}"

    def _file(self) -> pa.parquet.ParquetFile:
        try:
            return pa.parquet.ParquetFile(self.path)
        # Names that are not UTF-8, too.
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise BadRecords(f"{self.path} cannot be read as Parquet: {' '.join(str(error).split())[:100]}") from None


@dataclass(frozen=True, eq=False, repr=False)
class ArrowTable:
    """A table of Arrow."""

    table: pa.Table

    def columns(self) -> list[str]:
        return self.table.column_names

    def batches(self, wanted: list[str]) -> Iterator[pa.RecordBatch]:
        yield from self.table.select(wanted).to_batches(max_chunksize=_ROWS)

    def place(self, row: int) -> str:
        return f"row {row} (from 0)"


@dataclass(frozen=True, eq=False, repr=False)
class Frame:
    """A DataFrame; its index is no column."""

    frame: pd.DataFrame

    def columns(self) -> list[str]:
        odd = [name for name in self.frame.columns if not isinstance(name, str)]
        if odd:
            raise BadRecords(f"the frame has a column named {odd[0]!r}: expected text; rename it by .rename(columns=str)")
        return list(self.frame.columns)

    def batches(self, wanted: list[str]) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(self.frame), _ROWS):
            block = self.frame.iloc[start : start + _ROWS]
            yield pa.record_batch([self._array(block[name]) for name in wanted], names=wanted)

    def place(self, row: int) -> str:
        return f"row {row} (from 0)"

    def _array(self, values: pd.Series) -> pa.Array:
        # Arrow may crash on scalars of several types, so they are looked at first.
        if values.dtype == object and pd.api.types.infer_dtype(values, skipna=True).startswith("mixed"):
            kinds = {type(value) for value in values if value is not None and value is not pd.NA and value == value}
            if len(kinds) > 1 and kinds != {int, float}:
                raise self._mixed(values)
        try:
            array = pa.array(values, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise self._mixed(values) from None
        return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array

    def _mixed(self, values: pd.Series) -> BadRecords:
        kinds = ", ".join(sorted({type(value).__name__ for value in values})[:5])
        return BadRecords(
            f"column {shortened(values.name)} of the frame holds {kinds}: expected values of one type, such as text or "
            "numbers; convert it, such as by .astype(str)"
        )


def table_source(source: Any, schema: TableSchema) -> TableSource:
    """What reads a source; no record is read yet.

    Args:
        source: the path of a ``.csv``, ``.tsv`` or ``.data`` file, each also with ``.gz``, or of a ``.parquet`` file; a
            DataFrame; a table or record batch of Arrow.
        schema: which says how a file of text is written.

    Raises:
        MissingData: if there is no such file.
        BadRecords: for anything else.
    """
    if isinstance(source, pd.DataFrame):
        return Frame(source)
    if isinstance(source, pa.RecordBatch):
        return ArrowTable(pa.Table.from_batches([source]))
    if isinstance(source, pa.Table):
        return ArrowTable(source)
    if not isinstance(source, str | Path):
        raise BadRecords(f"a {type(source).__name__}: expected the path of a file, a DataFrame, or a table of Arrow")
    path = Path(source)
    check_there(path)
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if path.suffix == ".parquet":
        return ParquetTable(path)
    if suffix not in SUFFIXES:
        raise BadRecords(f"{path}: expected a name that ends in {', '.join(SUFFIXES)} (or these with .gz) or .parquet")
    names = None if schema.header else tuple(column.name for column in schema.columns)
    separator = schema.separator or ("\t" if suffix == ".tsv" else ",")
    return TextTable(path, separator, names, schema.strip, {column.name: _listed(column) for column in schema.columns})


def _listed(column: Column) -> pa.Array | None:
    """All texts that there may be in a column, where they are declared."""
    texts = isinstance(column, Category) and column.kind is str
    return pa.array([*column.values, *column.missing_values], pa.string()) if texts else None
