"""Synthetic records as files of a table: Parquet, CSV, JSON lines or a workbook, written a chunk at a time."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from lightning_dpgen.data.files.delimited import default_separator
from lightning_dpgen.data.files.extras import needs
from lightning_dpgen.data.files.formulas import escaped, escaped_name
from lightning_dpgen.release.as_read import AsRead

FORMATS = (".parquet", ".csv", ".tsv", ".jsonl", ".xlsx")
MOST_ROWS_OF_A_SHEET = 2**20 - 1
SHEET = "synthetic"
_LONGEST_SHEET = 31
_USUAL = AsRead()


def write_table(
    path: Path,
    chunks: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    *,
    escape: bool = True,
    form: AsRead = _USUAL,
    sheet: str = SHEET,
) -> None:
    """Write records to a file of one of `FORMATS`, never holding more than a chunk (and the texts of a workbook).

    Args:
        path: of the file, whose ending says its format.
        schema: the columns.
        escape: as for `csv_text`.
        form: of a table as it was read; a Parquet file has types of its own, and none.
        sheet: the name of the sheet of a workbook.

    Raises:
        ValueError: for another ending, or text that the encoding or a workbook cannot hold.
        BadRecords: if the library for workbooks is missing.
    """
    if path.suffix == ".parquet":
        # Arrow would read a path in its own way.
        with open(path, "wb") as file, pa.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            for chunk in chunks:
                writer.write(chunk)
    elif path.suffix in (".csv", ".tsv"):
        with open(path, "w", encoding=form.charset, newline="") as file:
            try:
                file.writelines(csv_text(chunks, escape=escape, form=form, separator=default_separator(path)))
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"the encoding of the schema, {form.charset}, has no sign for {error.object[error.start]!r}: expected "
                    "one that has all letters of its categories; a .parquet file holds them"
                ) from None
    elif path.suffix == ".jsonl":
        with open(path, "w", encoding="utf-8", newline="") as file:
            for chunk in chunks:
                lines = (json.dumps(row, ensure_ascii=False, default=str) for row in form.values(chunk).to_pylist())
                file.writelines(f"{line}\n" for line in lines)
    elif path.suffix == ".xlsx":
        _write_workbook(path, map(form.values, chunks), form.schema(schema).names, sheet)
    else:
        raise ValueError(f"{path}: expected a name that ends in {', '.join(FORMATS)}")


def csv_text(
    chunks: Iterable[pa.RecordBatch], *, escape: bool = True, form: AsRead = _USUAL, separator: str = ","
) -> Iterator[str]:
    """Write records as CSV, a chunk at a time, names of columns first; a list, as in a basket, becomes JSON.

    Args:
        escape: whether text, in cells and names, that a spreadsheet would run as a formula gets an apostrophe before it
            (`data.files.formulas`); numbers stay as they are. Tables that dpgen reads by a schema know it again.
        form: of a table as it was read.
        separator: where the form has none.

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
        cells = form.texts(_escaped(cells) if escape else cells)
        if escape:
            cells = cells.rename_columns([escaped_name(name) for name in cells.schema.names])
        options = pa.csv.WriteOptions(include_header=i == 0 and form.header, delimiter=form.separator or separator)
        pa.csv.write_csv(cells, sink, options)
        yield sink.getvalue().to_pybytes().decode()


def check_sheet(name: str) -> None:
    """Refuse a name that no sheet of a workbook may have.

    Raises:
        ValueError: saying what is expected.
    """
    if not 0 < len(name) <= _LONGEST_SHEET or re.search(r"[\[\]:*?/\\']", name):
        raise ValueError(f"{name[:60]!r}: expected a name of a sheet, of 1 to {_LONGEST_SHEET} letters without []:*?/\\'")


def _escaped(chunk: pa.RecordBatch) -> pa.RecordBatch:
    columns = [escaped(column) if pa.types.is_string(column.type) else column for column in chunk.columns]
    return pa.RecordBatch.from_arrays(columns, names=chunk.schema.names)


def _without_lists(chunk: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        pa.array([json.dumps(value, ensure_ascii=False) for value in column.to_pylist()], pa.string())
        if pa.types.is_list(column.type)
        else column
        for column in chunk.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=chunk.schema.names)


def _write_workbook(path: Path, chunks: Iterable[pa.RecordBatch], names: list[str], sheet: str) -> None:
    needs("openpyxl", "excel", str(path))
    import openpyxl
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.utils.exceptions import IllegalCharacterError

    book = openpyxl.Workbook(write_only=True)
    made = book.create_sheet(sheet)

    def cell(value: Any) -> Any:
        if not isinstance(value, str):
            # A workbook knows no zones, and no lists.
            plain = not isinstance(value, list) and getattr(value, "tzinfo", None) is None
            return value if plain else cell(str(value) if not isinstance(value, list) else json.dumps(value))
        held = WriteOnlyCell(made, value)
        # A text that begins with = is a text, and no formula.
        held.data_type = "s"
        return held

    try:
        parts = (zip(*(column.to_pylist() for column in _without_lists(part).columns), strict=True) for part in chunks)
        for row in itertools.chain([names], itertools.chain.from_iterable(parts)):
            made.append([cell(value) for value in row])
        book.save(path)
    except IllegalCharacterError:
        raise ValueError("a text has a control character, which no workbook holds; a .csv or .parquet file does") from None
    finally:
        if not made.closed:
            made.close()
