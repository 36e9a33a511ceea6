"""Synthetic records as a workbook of Excel: numbers, dates and true and false are cells of their kind."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from lightning_dpgen.data.files.extras import needs
from lightning_dpgen.data.tables.moment_form import MomentForm
from lightning_dpgen.data.tables.written_form import NumberForm, WrittenForm, parts_of_unit
from lightning_dpgen.release.rows.as_read import AsRead

MOST_ROWS_OF_A_SHEET = 2**20 - 1
SHEET = "synthetic"
_LONGEST_SHEET = 31
# Excel has no days before 1900, and a 29 February 1900 that was none.
_FIRST_DAY = datetime.date(1900, 3, 1)
_PARTS = {
    "Y": "yyyy", "y": "yy", "m": "mm", "-m": "m", "b": "mmm", "B": "mmmm", "d": "dd", "-d": "d", "a": "ddd", "A": "dddd",
    "H": "hh", "-H": "h", "I": "hh", "-I": "h", "M": "mm", "S": "ss", "p": "AM/PM",
}  # fmt: skip


def write_workbook(path: Path, chunks: Iterable[pa.RecordBatch], schema: pa.Schema, form: AsRead, sheet: str) -> None:
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
    made = book.create_sheet(sheet)

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
        held = WriteOnlyCell(made, value if value != "" else CellRichText([value]))
        if isinstance(value, str):
            # A text that begins with = is a text, and no formula.
            held.data_type = "s"
        else:
            held.number_format = shown
        return held

    formats = [_number_format(form.forms.get(name), kind) for name, kind in zip(schema.names, schema.types, strict=True)]
    forms = [form.forms.get(name) for name in schema.names]
    try:
        for _ in range(form.skip_rows):
            made.append([])
        made.append([cell(name, None, None) for name in schema.names])
        for chunk in map(form.cells, chunks):
            for row in zip(*(column.to_pylist() for column in chunk.columns), strict=True):
                cells = list(map(cell, row, formats, forms))
                if all(value is None for value in row):
                    # An empty row is no record to most readers.
                    cells[0] = cell(form.missing.get(schema.names[0], ""), None, None)
                made.append(cells)
        book.save(path)
    except IllegalCharacterError:
        raise ValueError("a text has a control character, which no workbook holds; a .csv or .parquet file does") from None
    finally:
        if not made.closed:
            made.close()


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
