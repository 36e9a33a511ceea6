"""The one way to rows: files of text and of other programs, tables of Arrow and DataFrames, a block at a time."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from lightning_dpgen.data.files.blocks import RowSource
from lightning_dpgen.data.files.database import DatabaseQuery, QueryRows
from lightning_dpgen.data.files.delimited import DelimitedText
from lightning_dpgen.data.files.duckdb_file import DuckdbRows
from lightning_dpgen.data.files.json_lines import JsonLines
from lightning_dpgen.data.files.kinds import JSON_LINES, PARQUET, WORKBOOK, is_database
from lightning_dpgen.data.files.parquet import ParquetFolder, ParquetRows
from lightning_dpgen.data.files.sqlite import MAGIC, SqliteRows
from lightning_dpgen.data.files.text import bare_name, check_there
from lightning_dpgen.data.files.workbook import WorkbookRows
from lightning_dpgen.data.names import shown
from lightning_dpgen.sampling.errors import BadRecords

_ROWS_AT_ONCE = 1 << 16
_IN_MEMORY = "the table"


class ArrowRows(RowSource):
    """A table of Arrow."""

    def __init__(self, table: pa.Table) -> None:
        super().__init__(_IN_MEMORY, table.column_names)
        self._table = table

    def batches(self, columns: list[str]) -> Generator[pa.RecordBatch]:
        yield from self._table.select(columns).to_batches(max_chunksize=_ROWS_AT_ONCE)


class FrameRows(RowSource):
    """A DataFrame; its index is no column, and names that are no text are what they look like."""

    def __init__(self, frame: pd.DataFrame) -> None:
        super().__init__(_IN_MEMORY, list(map(str, frame.columns)))
        self._frame = frame

    def batches(self, columns: list[str]) -> Generator[pa.RecordBatch]:
        places = {name: at for at, name in enumerate(self.columns)}
        places = {name: places[name] for name in columns}
        for name, at in places.items():
            _check_alike(self._frame.iloc[:, at], name)
        for start in range(0, len(self._frame), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            yield pa.record_batch([_array(self._frame.iloc[rows, at], name) for name, at in places.items()], names=columns)


def rows_of(
    source: Any,
    names: Sequence[str] | None = None,
    separator: str | None = None,
    *,
    table: str | None = None,
    keys: Sequence[str] = (),
    **options: Any,
) -> RowSource:
    """Return the rows of a source, of which only the names of columns are read (and of JSON lines the first thousand).

    Args:
        source: the path of a file, whose ending says its kind (`data.files.kinds`; any other is text); a folder of Parquet
            files; a query of a database; a DataFrame; a table or record batch of Arrow.
        names: of the columns, where a file of text or a workbook does not say them; else None.
        table: the sheet of a workbook, or the table of a database; None for the only one.
        keys: those that JSON lines may have, beside those of the first lines.
        separator, options: of a file of text, see `DelimitedText`.

    Raises:
        MissingData: if there is no such file.
        BadRecords: for anything else, a damaged file, one without a header, or a column name that stands twice.
        ValueError: for a separator that is not one character.
    """
    if isinstance(source, pd.DataFrame):
        return FrameRows(source)
    if isinstance(source, pa.RecordBatch):
        return ArrowRows(pa.Table.from_batches([source]))
    if isinstance(source, pa.Table):
        return ArrowRows(source)
    if isinstance(source, DatabaseQuery):
        return QueryRows(source)
    if not isinstance(source, str | Path):
        raise BadRecords(f"a {type(source).__name__}: expected the path of a file, a DataFrame, or a table of Arrow")
    path = Path(source)
    if path.is_dir():
        return ParquetFolder(path)
    check_there(path)
    kind = path.suffix.lower()
    if kind == PARQUET:
        return ParquetRows(path)
    if kind == WORKBOOK:
        return WorkbookRows(path, table, names)
    if is_database(path):
        return SqliteRows(path, table) if _begins_with(path, MAGIC) else DuckdbRows(path, table)
    if bare_name(path).endswith(JSON_LINES):
        return JsonLines(path, keys)
    return DelimitedText(path, names, separator, **options)


def _begins_with(path: Path, magic: bytes) -> bool:
    with open(path, "rb") as file:
        return file.read(len(magic)) == magic


def _check_alike(values: pd.Series, name: str) -> None:
    """Raise BadRecords for scalars of several types, on which Arrow may crash."""
    if values.dtype == object and pd.api.types.infer_dtype(values, skipna=True).startswith("mixed"):
        kinds = {type(value) for value in values if value is not None and value is not pd.NA and value == value}
        if len(kinds) > 1 and kinds != {int, float}:
            raise _mixed(values, name)


def _array(values: pd.Series, name: str) -> pa.Array:
    try:
        array = pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise _mixed(values, name) from None
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _mixed(values: pd.Series, name: str) -> BadRecords:
    kinds = ", ".join(sorted({type(value).__name__ for value in values})[:5])
    return BadRecords(
        f"column {shown(name)} of the frame holds {kinds}: expected values of one type, such as text or numbers; convert "
        "it, such as by .astype(str)"
    )
