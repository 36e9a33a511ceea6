"""Synthetic records as files of a table: Parquet, text, JSON lines, a workbook or a database, written a chunk at a time."""

from __future__ import annotations

import datetime
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from lightning_dpgen.data.baskets.form import LINES
from lightning_dpgen.data.files.delimited import default_separator
from lightning_dpgen.data.files.formulas import escaped, escaped_name
from lightning_dpgen.data.files.kinds import DATABASES, WORKBOOK, needs
from lightning_dpgen.data.tables.moment_form import MomentForm
from lightning_dpgen.data.tables.written_form import NEEDED, OF_ALL, NumberForm, WrittenForm, parts_of_unit
from lightning_dpgen.release.rows.database_table import write_to_database, write_to_duckdb
from lightning_dpgen.release.rows.output_format import OutputFormat

MOST_ROWS_OF_A_SHEET = 2**20 - 1
SHEET = "synthetic"
_LONGEST_SHEET = 31
# Excel has no days before 1900, and a 29 February 1900 that was none.
_FIRST_DAY = datetime.date(1900, 3, 1)
_PARTS = {
    "Y": "yyyy", "y": "yy", "m": "mm", "-m": "m", "b": "mmm", "B": "mmmm", "d": "dd", "-d": "d", "a": "ddd", "A": "dddd",
    "H": "hh", "-H": "h", "I": "hh", "-I": "h", "M": "mm", "S": "ss", "p": "AM/PM",
}  # fmt: skip


def write_workbook(path: Path, chunks: Iterable[pa.RecordBatch], schema: pa.Schema, form: OutputFormat, sheet: str) -> None:
    """Write records to a workbook with one sheet, the names of the columns in its first row.

    Dates and times are cells that Excel shows in the declared form (ISO 8601 without one). Moments with a zone, and days
    before 1 March 1900, are text, since a workbook has neither. A row of missing values alone has a text in its first cell,
    the schema's for a missing value or an empty one.

    Args:
        path: of the file.
        chunks: the records, all texts of which are held in memory.
        schema: the columns.
        form: of a table as it was read.
        sheet: the name of the sheet.

    Raises:
        ValueError: for text that a workbook cannot hold.
        BadRecords: if the library for workbooks is missing.
    """
    needs("openpyxl", "excel", str(path))
    import openpyxl
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.cell.rich_text import CellRichText
    from openpyxl.utils.exceptions import IllegalCharacterError

    book = openpyxl.Workbook(write_only=True)
    page = book.create_sheet(sheet)

    def cell(value: Any, shown: str | None, written: WrittenForm | None) -> Any:
        day = value.date() if isinstance(value, datetime.datetime) else value
        if isinstance(value, list):
            value = json.dumps(value, ensure_ascii=False)
        elif isinstance(day, datetime.date) and day < _FIRST_DAY:
            kind = pa.date32() if value is day else pa.timestamp("s")
            value = str(value) if written is None else written.written(pa.array([value], kind))[0].as_py()
        if value is None or (shown is None and not isinstance(value, str)):
            return value
        # openpyxl writes an empty text as no value, unless it is one of parts.
        cell_of_page = WriteOnlyCell(page, value if value != "" else CellRichText([value]))
        if isinstance(value, str):
            # A text that begins with = is a text, and no formula.
            cell_of_page.data_type = "s"
        else:
            cell_of_page.number_format = shown
        return cell_of_page

    formats = [_number_format(form.forms.get(name), kind) for name, kind in zip(schema.names, schema.types, strict=True)]
    forms = [form.forms.get(name) for name in schema.names]
    try:
        for _ in range(form.skip_rows):
            page.append([])
        page.append([cell(name, None, None) for name in schema.names])
        for chunk in map(form.cells, chunks):
            for row in zip(*(column.to_pylist() for column in chunk.columns), strict=True):
                cells = list(map(cell, row, formats, forms))
                if all(value is None for value in row):
                    # An empty row is no record to most readers.
                    cells[0] = cell(form.missing.get(schema.names[0], ""), None, None)
                page.append(cells)
        book.save(path)
    except IllegalCharacterError:
        raise ValueError("a text has a control character, which no workbook holds; a .csv or .parquet file does") from None
    finally:
        if not page.closed:
            page.close()


def check_sheet(name: str) -> None:
    """Refuse a name that no sheet of a workbook may have.

    Raises:
        ValueError: saying what is expected.
    """
    if not 0 < len(name) <= _LONGEST_SHEET or re.search(r"[\[\]:*?/\\']", name):
        raise ValueError(f"{name[:60]!r}: expected a name of a sheet, of 1 to {_LONGEST_SHEET} letters without []:*?/\\'")


def _number_format(form: WrittenForm | None, kind: pa.DataType) -> str | None:
    """Return the format by which Excel shows values as a file of text would have them; None for its own.

    Signs before decimals and between thousands are those of the reader's country.

    Example:
        >>> _number_format(MomentForm("%d.%m.%Y", "date"), pa.date32()), _number_format(None, pa.date32())
        ('dd\\\\.mm\\\\.yyyy', 'yyyy-mm-dd')
        >>> _number_format(NumberForm(",", ".", 2), pa.float64())
        '#,##0.00'
        >>> _number_format(NumberForm(unit="$1", negative="($1)"), pa.int64())
        '"$"0;"($"0")"'
    """
    if isinstance(form, MomentForm):
        parts = form.parts
        # Excel has no format for days of a year, seconds since 1970, or capitals.
        if all(part in _PARTS for part in parts[1::2]):
            parts[1::2] = [_PARTS[part] for part in parts[1::2]]
            parts[::2] = ["".join(f"\\{sign}" for sign in between) for between in parts[::2]]
            return "".join(parts)
    if isinstance(form, NumberForm):
        digits = "#,##0" if form.thousands else "0"
        if form.decimals is not None or pa.types.is_integer(kind):
            digits += "." + "0" * form.decimals if form.decimals else ""
        elif form.thousands or form.of_unit:
            digits += ".###############"
        else:
            return None
        # Excel writes the minus of its own accord where there is one format.
        shown = [form.unit, form.negative] if "negative" in form.of_unit else [form.unit]
        return ";".join(
            "".join(f'"{text}"' if i != 1 else digits for i, text in enumerate(parts_of_unit(one)) if text) for one in shown
        )
    if pa.types.is_date(kind):
        return "yyyy-mm-dd"
    if pa.types.is_timestamp(kind):
        return "yyyy-mm-dd hh:mm:ss"
    return "hh:mm:ss" if pa.types.is_time(kind) else None


# Files of text that hold baskets, and no other records.
OF_BASKETS = LINES
FORMATS = (".parquet", ".csv", ".tsv", ".jsonl", WORKBOOK, *DATABASES)
# Those of files that are read together from a folder.
OF_FOLDERS = FORMATS[:4]
_USUAL = OutputFormat()
# Bytes of a row group of Parquet: small ones take longer to write and to read, and their file is larger.
_ROW_GROUP = 1 << 24


def write_table(
    path: Path,
    chunks: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    *,
    escape: bool = True,
    form: OutputFormat = _USUAL,
    sheet: str = SHEET,
) -> None:
    """Write records to a file of one of `FORMATS`, never holding more than a chunk (a row group of Parquet, the texts of a
    workbook).

    Args:
        path: of the file, whose ending says its format.
        schema: the columns.
        escape: as for `csv_text`.
        form: of a table as it was read; a Parquet file has its types alone.
        sheet: the name of the sheet of a workbook, or of the table of a database (DuckDB by its ending, else SQLite).

    Raises:
        ValueError: for another ending, or text that the encoding or a workbook cannot hold.
        BadRecords: if the library for workbooks or databases is missing.
    """
    if path.suffix == ".parquet":
        # Arrow would read a path in its own way.
        columns = form.typed_schema(schema)
        with open(path, "wb") as file, pa.parquet.ParquetWriter(file, columns, compression="zstd") as writer:
            for group in _row_groups(map(form.typed, chunks)):
                writer.write(group)
    elif path.suffix in (".csv", ".tsv", *OF_BASKETS):
        with open(path, "w", encoding=form.charset, newline="") as file:
            try:
                # No spreadsheet opens the others.
                escape &= path.suffix not in OF_BASKETS
                file.writelines(csv_text(chunks, escape=escape, form=form, separator=default_separator(path)))
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"the encoding of the schema, {form.charset}, has no sign for {error.object[error.start]!r}: expected "
                    "one that has all letters of its categories; a .parquet file holds them"
                ) from None
    elif path.suffix == ".jsonl":
        with open(path, "w", encoding="utf-8", newline="") as file:
            for chunk in chunks:
                lines = (json.dumps(row, ensure_ascii=False, default=str) for row in form.lines(chunk).to_pylist())
                file.writelines(f"{line}\n" for line in lines)
    elif path.suffix == WORKBOOK:
        write_workbook(path, chunks, schema, form, sheet)
    elif path.suffix == ".duckdb":
        write_to_duckdb(path, sheet, map(form.values, chunks), form.schema(schema))
    elif path.suffix in DATABASES:
        write_to_database(f"sqlite:///{path}", sheet, map(form.values, chunks), form.schema(schema))
    else:
        raise ValueError(f"{path}: expected a name that ends in {', '.join(FORMATS)}")


def _row_groups(chunks: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield chunks together, in tables of `_ROW_GROUP` bytes or a little more, and the rest."""
    waiting: list[pa.RecordBatch] = []
    for chunk in chunks:
        waiting.append(chunk)
        if sum(own.nbytes for own in waiting) >= _ROW_GROUP:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


def csv_text(
    chunks: Iterable[pa.RecordBatch], *, escape: bool = True, form: OutputFormat = _USUAL, separator: str = ","
) -> Iterator[str]:
    """Write records as CSV, a chunk at a time, names of columns first; a list becomes JSON, or its values are the line.

    Args:
        escape: whether text, in cells and names, that a spreadsheet would run as a formula gets an apostrophe before it
            (`data.files.formulas`); numbers stay as they are. Tables that dpgen reads by a schema know it again.
        form: of a table as it was read.
        separator: where the form has none.

    Example:
        >>> batch = pa.RecordBatch.from_pydict({"items": [["tea", "bread"], []], "label": ["day", "night"]})
        >>> print("".join(csv_text([batch])), end="")
        items,label
        "[""tea"", ""bread""]",day
        [],night
    """
    separator = form.separator or separator
    if form.as_lines:
        yield from _basket_lines(chunks, separator, escape=escape, header=form.header)
        return
    for i, chunk in enumerate(chunks):
        plain = _without_lists(chunk)
        names = pa.array(plain.schema.names, pa.string())
        if escape:
            columns = [escaped(column) if pa.types.is_string(column.type) else column for column in plain.columns]
            plain = pa.RecordBatch.from_arrays(columns, names=plain.schema.names)
            names = pa.array(map(escaped_name, plain.schema.names), pa.string())
        if i == 0 and form.skip_rows:
            yield "\n" * form.skip_rows
        if i == 0 and form.header:
            first = _quoted(names, separator, every=form.quotes != NEEDED, marks=form.comment)
            yield separator.join(first.to_pylist()) + "\n"
        fields = []
        for name, kind, texts in zip(plain.schema.names, plain.schema.types, form.texts(plain).columns, strict=True):
            is_text = pa.types.is_string(kind) or name in form.words
            every = form.quotes == OF_ALL or (form.quotes != NEEDED and is_text)
            quoted = _quoted(texts, separator, every=every, marks=() if fields else form.comment)
            # A line of nothing is no row to most readers.
            fields.append(pc.coalesce(quoted, '""' if form.quotes == OF_ALL or plain.num_columns == 1 else ""))
        lines = pc.binary_join_element_wise(*fields, separator).to_pylist()
        yield "".join(f"{line}\n" for line in lines)


def _basket_lines(chunks: Iterable[pa.RecordBatch], separator: str, *, escape: bool, header: bool) -> Iterator[str]:
    """Write baskets, one a line: the label, where there is one, and the items.

    Example:
        >>> batch = pa.RecordBatch.from_pydict({"items": [["tea", "bread, rye"], []]})
        >>> print("".join(_basket_lines([batch], ",", escape=True, header=False)), end="")
        tea,"bread, rye"
        <BLANKLINE>
    """
    for i, chunk in enumerate(chunks):
        if i == 0 and header:
            yield separator.join(reversed(chunk.schema.names)) + "\n"
        lists = chunk.column(0)
        items = _field_texts(lists.flatten(), separator, escape=escape)
        lines = [items[start:stop] for start, stop in itertools.pairwise(lists.offsets.to_pylist())]
        for labels in chunk.columns[1:]:
            texts = _field_texts(labels, separator, escape=escape)
            lines = [[text, *line] for text, line in zip(texts, lines, strict=True)]
        yield "".join(f"{separator.join(line)}\n" for line in lines)


def _field_texts(values: pa.Array, separator: str, *, escape: bool) -> list[str]:
    texts = values.cast(pa.string())
    texts = escaped(texts) if escape and pa.types.is_string(values.type) else texts
    return _quoted(texts, separator, every=False).to_pylist()


def _quoted(texts: pa.Array, separator: str, *, every: bool, marks: Sequence[str] = ()) -> pa.Array:
    """Return texts as fields of RFC 4180: in double quotes where they need them, or every one; null stays null.

    A text that begins with one of the marks would be a comment without quotes, and an empty one a missing value.

    Example:
        >>> print(*_quoted(pa.array(["tea", 'the "best"', "a,b", ""]), ",", every=False))
        tea "the ""best\"\"\" "a,b" ""
    """
    inside = pc.binary_join_element_wise('"', pc.replace_substring(texts, '"', '""'), '"', "")
    if every:
        return inside
    comment = "".join(f"|^{re.escape(mark)}" for mark in marks)
    return pc.if_else(pc.match_substring_regex(texts, f'[{re.escape(separator)}"\\r\\n]|^${comment}'), inside, texts)


def _without_lists(chunk: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        pa.array([json.dumps(value, ensure_ascii=False) for value in column.to_pylist()], pa.string())
        if pa.types.is_list(column.type)
        else column
        for column in chunk.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=chunk.schema.names)
