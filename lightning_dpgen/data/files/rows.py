"""Files of rows (CSV, TSV, Parquet), a block at a time, as they are written: text stays text, less blanks around a field.

A file may be larger than memory; what a reader keeps of a block is its own affair.
"""

from __future__ import annotations

import csv
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from lightning_dpgen.data.files.text import Utf8Bytes, check_there, decoded, opened
from lightning_dpgen.data.names import shown
from lightning_dpgen.sampling.errors import BadRecords

UNREADABLE = (OSError, ValueError, TypeError, KeyError, EOFError, MemoryError, zlib.error, pa.ArrowException)
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
# What pyarrow says of a header with no rows below, with or without a line break.
_HEADER_ALONE = ("Empty CSV file", "Could not skip initial")
_BYTES_AT_ONCE = 1 << 24
_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, eq=False, repr=False)
class Block:
    """Some rows of a file.

    Args:
        rows: their columns.
        place: where the i-th of them stands, for an error: ``a.csv, line 7``.
    """

    rows: pa.RecordBatch
    place: Callable[[int], str]

    def column(self, name: str) -> pa.Array:
        return self.rows.column(self.rows.schema.get_field_index(name))


@dataclass(eq=False, repr=False)
class RowFile:
    """A file of rows, or a table in memory.

    Args:
        source: a path that ends in .csv, .tsv (both also .gz) or .parquet; a pandas DataFrame, a pyarrow Table.
        names: of the columns of a text file without a header; None for one whose first line is the header.
        separator: between the fields of a text file, one character; None for what goes with the ending.
        drop_ragged: whether lines with another number of fields are left out and counted, not refused.

    Attributes:
        columns: the names of its columns.
        ragged: how many lines have been left out so far.

    Raises:
        MissingData: if there is no such file.
        BadRecords: for another file, a damaged one, no line at all, a column name twice; and from `blocks`, for a line
            with another number of fields, or one that is not UTF-8.
    """

    source: Any
    names: Sequence[str] | None = None
    separator: str | None = None
    drop_ragged: bool = False
    columns: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self._skipped: list[int] = []
        self._found: tuple[int, int] | None = None
        self._path = Path(self.source) if isinstance(self.source, str | Path) else None
        if self._path is not None:
            check_there(self._path)
        if self._path is None:
            self._table = _table(self.source)
            self.columns = self._table.column_names
        elif self._path.suffix == ".parquet":
            names = _guarded(self._path, lambda: pa.parquet.read_schema(self._path).names)
            # Where pandas keeps the numbers of rows.
            self.columns = [name for name in names if not name.startswith("__index_level_")]
        else:
            self._separator = self.separator or _SEPARATORS.get(_ending(self._path), ",")
            if len(self._separator.encode()) != 1 or self._separator in '"\r\n':
                raise ValueError(f"separator={shown(self.separator)}: expected one character (data.separator)")
            header = self._first_line()
            self.columns = header if self.names is None else list(self.names)
        hint = "" if not self.has_lines else "; of a file whose first line is no header, give data.header=false"
        for name, times in Counter(self.columns).items():
            if times > 1:
                raise BadRecords(f"{self.where}: the column {shown(name)} stands twice: expected each name once{hint}")

    @property
    def has_lines(self) -> bool:
        """Whether it is a text file."""
        return self._path is not None and self._path.suffix != ".parquet"

    @property
    def ragged(self) -> int:
        return len(self._skipped)

    def blocks(self, columns: Sequence[str] | None = None) -> Iterator[Block]:
        """Rows in their order, with these columns, or all."""
        columns = self.columns if columns is None else list(columns)
        if not self.has_lines:
            done = 0
            for batch in self._typed(columns):
                start = done
                done += len(batch)
                yield Block(batch, lambda i, start=start: f"{self.where}, row {start + i + 1}")
            return
        yield from self._text(columns)

    @property
    def where(self) -> str:
        """What an error calls it."""
        return "the table" if self._path is None else str(self._path)

    def _typed(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        if self._path is None:
            yield from self._table.select(columns).to_batches(max_chunksize=_ROWS_AT_ONCE)
            return
        with _guarded(self._path, lambda: pa.parquet.ParquetFile(self._path)) as file:
            yield from _steps(self._path, file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=columns))

    def _first_line(self) -> list[str]:
        try:
            with opened(self._path) as file:
                line = file.readline(_BYTES_AT_ONCE)
        except UNREADABLE as error:
            raise damaged(self._path, error) from None
        if not line:
            raise BadRecords(f"{self._path} is empty: expected at least one line")
        text = decoded(line, f"{self._path}, line 1").removeprefix("\ufeff").rstrip("\r\n")
        try:
            return [name.strip() for name in next(csv.reader([text], delimiter=self._separator), [""])]
        except csv.Error as error:
            raise BadRecords(f"{self._path}, line 1 cannot be read as a row: {str(error)[:100]}") from None

    def _text(self, columns: list[str]) -> Iterator[Block]:
        header = int(self.names is None)
        options = {
            "read_options": pa.csv.ReadOptions(
                use_threads=False, block_size=_BYTES_AT_ONCE, column_names=self.columns, skip_rows=header
            ),
            # An empty line is a mistake or a record, and not to be passed over.
            "parse_options": pa.csv.ParseOptions(
                delimiter=self._separator, ignore_empty_lines=False, invalid_row_handler=self._ragged
            ),
            "convert_options": pa.csv.ConvertOptions(
                column_types=dict.fromkeys(self.columns, pa.string()),
                include_columns=columns,
                null_values=[""],
                strings_can_be_null=True,
            ),
        }
        self._skipped.clear()
        done = 0
        try:
            reader = pa.csv.open_csv(Utf8Bytes(self._path), **options)
        except BadRecords:
            raise
        except UNREADABLE as error:
            if any(words in str(error) for words in _HEADER_ALONE):
                return
            raise self._said(error) from None
        with reader:
            batches = iter(reader)
            while True:
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                except BadRecords:
                    raise
                except UNREADABLE as error:
                    raise self._said(error) from None
                start = done + header
                done += len(batch)
                yield Block(_trimmed(batch), lambda i, start=start: f"{self._path}, line {self._line(start + i)}")

    def _line(self, row: int) -> int:
        """The line, from 1, of a row that is the `row`-th of those that were kept, from 0."""
        for skipped in sorted(self._skipped):
            row += skipped <= row + 1
        return row + 1

    def _ragged(self, row: pa.csv.InvalidRow) -> str:
        if self.drop_ragged:
            self._skipped.append(row.number)
            return "skip"
        self._found = (row.number, row.actual_columns)
        return "error"

    def _said(self, error: Exception) -> BadRecords:
        if self._found is None:
            return damaged(self._path, error)
        line, fields = self._found
        return BadRecords(
            f"{self._path}, line {line}: found {fields} fields, expected {len(self.columns)}: correct the line, or the "
            "separator (data.separator)"
        )


def _trimmed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without blanks around fields; of one that is nothing else, nothing is left."""
    columns = [pc.utf8_trim_whitespace(column) for column in batch.columns]
    columns = [pc.if_else(pc.equal(column, ""), None, column) for column in columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def damaged(path: Path, error: Exception) -> BadRecords:
    """The error for a file that cannot be read."""
    return BadRecords(f"{path} cannot be read: {' '.join(str(error).split())[:200] or type(error).__name__}")


def _ending(path: Path) -> str:
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix


def _table(source: Any) -> pa.Table:
    if isinstance(source, pa.Table):
        return source
    if type(source).__module__.partition(".")[0] != "pandas" or not hasattr(source, "columns"):
        raise BadRecords(f"records are a {type(source).__name__}: expected a path, a pandas DataFrame or a pyarrow Table")
    try:
        return pa.Table.from_pandas(source, preserve_index=False)
    except UNREADABLE as error:
        raise BadRecords(f"the table cannot be read: {' '.join(str(error).split())[:200]}") from None


def _guarded(path: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except UNREADABLE as error:
        raise damaged(path, error) from None


def _steps(path: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except UNREADABLE as error:
            raise damaged(path, error) from None
        yield batch
