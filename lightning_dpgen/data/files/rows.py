"""The one way to rows: files of text and of other programs, tables of Arrow and DataFrames, a block at a time."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from lightning_dpgen.data.files.blocks import RowSource
from lightning_dpgen.data.files.database import DatabaseQuery, QueryRows
from lightning_dpgen.data.files.database_files import MAGIC, DuckdbRows, SqliteRows
from lightning_dpgen.data.files.delimited import DelimitedText, Skipped
from lightning_dpgen.data.files.kinds import DATABASES, JSON_LINES, PARQUET, WORKBOOK, is_database
from lightning_dpgen.data.files.parquet import FolderRows, ParquetRows
from lightning_dpgen.data.files.text import bare_name, check_there
from lightning_dpgen.data.files.values import JsonLines, alike_batches
from lightning_dpgen.data.files.workbook import WorkbookRows
from lightning_dpgen.data.names import quote
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
    """A DataFrame; its index is no column, and names that are no text are what they look like.

    A value of an object column is read by its own type, as one of `ValueRows` is.
    """

    def __init__(self, frame: pd.DataFrame) -> None:
        super().__init__(_IN_MEMORY, list(map(str, frame.columns)))
        self._frame = frame

    def batches(self, columns: list[str]) -> Generator[pa.RecordBatch]:
        places = {name: at for at, name in enumerate(self.columns)}
        for start in range(0, len(self._frame), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            if not columns:
                # Only a struct without fields has a number of rows then.
                nothing = pa.array([{}] * len(self._frame.iloc[rows]), pa.struct([]))
                yield pa.RecordBatch.from_struct_array(nothing)
                continue
            read = {name: _values(self._frame.iloc[rows, places[name]], name) for name in columns}
            yield from alike_batches(read, self.where)


def rows_of(
    source: Any,
    names: Sequence[str] | None = None,
    separator: str | None = None,
    *,
    table: str | None = None,
    keys: Sequence[str] = (),
    skip_rows: int = 0,
    comment: Sequence[str] = (),
    **options: Any,
) -> RowSource:
    """Return the rows of a source, of which only the names of columns are read (and of JSON lines the first thousand).

    Args:
        source: the path of a file, whose ending says its kind (`data.files.kinds`; any other is text); a folder of Parquet
            files; a query of a database; a DataFrame; a table or record batch of Arrow.
        names: of the columns, where a file of text or a workbook does not say them; else None.
        table: the sheet of a workbook, or the table of a database; None for the only one.
        keys: those that JSON lines may have, beside those of the first lines.
        skip_rows, comment: the rows of a file of text or a workbook that are none of the table, see `DelimitedText`.
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
        raise BadRecords(f"a {type(source).__name__}: expected the path of a file, a DataFrame, or an Arrow table")
    path = Path(source)
    if path.is_dir():
        return FolderRows(path)
    check_there(path)
    kind = path.suffix.lower()
    if kind == PARQUET:
        return ParquetRows(path)
    if kind == WORKBOOK:
        return WorkbookRows(path, table, names, Skipped(skip_rows, tuple(comment)))
    if is_database(path):
        return SqliteRows(path, table) if _begins_with(path, MAGIC) else DuckdbRows(path, table)
    if bare_name(path).endswith(JSON_LINES):
        return JsonLines(path, keys)
    return DelimitedText(path, names, separator, skip_rows=skip_rows, comment=comment, **options)


def is_text(source: Any) -> bool:
    """Tell whether a source is a file of delimited text: others say the names of their columns in their own way."""
    if not isinstance(source, str | Path):
        return False
    path = Path(source)
    others = (PARQUET, WORKBOOK, *DATABASES)
    return not path.is_dir() and path.suffix.lower() not in others and not bare_name(path).endswith(JSON_LINES)


def _begins_with(path: Path, magic: bytes) -> bool:
    with open(path, "rb") as file:
        return file.read(len(magic)) == magic


def _values(values: pd.Series, name: str) -> pa.Array | list[Any]:
    """Return values of one type as an array, and any others as those of Python."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        if values.cat.categories.dtype != object:
            return _array(values, name)
        values = values.astype(object)
    if values.dtype != object:
        return _array(values, name)
    if pd.api.types.infer_dtype(values, skipna=True) == "string":
        return _array(values, name, pa.string())
    try:
        absent = values.isna()
        return [None if missing else _scalar(value) for value, missing in zip(values, absent, strict=True)]
    except (ArithmeticError, ValueError):
        # A signalling NaN cannot be compared, and Python has no moments after the year 9999.
        problem = "holds a number or a moment that Python cannot read: correct it"
        raise BadRecords(f"{_IN_MEMORY}: column {quote(name)} {problem}") from None


def _scalar(value: Any) -> Any:
    """Return a scalar of numpy or pandas as one of Python."""
    if isinstance(value, np.datetime64):
        value = pd.Timestamp(value)
    elif isinstance(value, np.timedelta64):
        value = pd.Timedelta(value)
    elif isinstance(value, np.generic):
        return value.item()
    return value.to_pydatetime(warn=False) if isinstance(value, pd.Timestamp) else value


def _array(values: pd.Series, name: str, kind: pa.DataType | None = None) -> pa.Array:
    try:
        array = pa.array(values, kind, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise BadRecords(
            f"{_IN_MEMORY}: column {quote(name)}: {values.dtype} cannot be read; convert it, such as by .astype(str)"
        ) from None
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
