"""Workbooks of Excel (.xlsx): a sheet with the names of the columns in its first row, read by openpyxl in blocks."""

from __future__ import annotations

import itertools
import re
import warnings
import zipfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from lightning_dpgen.data.files.extras import needs
from lightning_dpgen.data.files.table_choice import name_one
from lightning_dpgen.data.files.text import UNREADABLE, damaged
from lightning_dpgen.data.files.values import ValueRows, pieces
from lightning_dpgen.data.names import shown
from lightning_dpgen.privacy.plain_text import listed
from lightning_dpgen.sampling.errors import BadRecords

# An archive of a few kilobytes may unpack to more than any disk holds; texts of a workbook are held in memory.
_MOST_BYTES, _MOST_TEXT_BYTES = 1 << 32, 1 << 30
_TEXTS = "xl/sharedStrings.xml"
_FORMULA, _MERGED = re.compile(rb"<(?:\w+:)?f[\s/>]"), re.compile(rb"<(?:\w+:)?mergeCell\s")
_LONGEST_TAG = 64
_AT_ONCE = 1 << 20


class WorkbookRows(ValueRows):
    """A sheet of a workbook. A formula has the value that it had when the workbook was saved.

    Args:
        path: the file.
        sheet: its name; None for the only one.
        names: of the columns, where the first row does not say them; else None.

    Raises:
        BadRecords: if there is no such sheet, it holds merged cells, or it cannot be read.
    """

    def __init__(self, path: Path, sheet: str | None = None, names: Sequence[str] | None = None) -> None:
        self._path, self._above = path, int(names is None)
        _refuse_bomb(path)
        with self._opened() as book:
            sheets = [one.title for one in book.worksheets]
            if sheet is None and len(sheets) != 1:
                raise BadRecords(f"{path} has {len(sheets)} sheets{name_one(sheets)}")
            self._sheet = sheets[0] if sheet is None else sheet
            if self._sheet not in sheets:
                raise BadRecords(f"{path} has no sheet {shown(self._sheet)}: it has {listed(sheets)}")
            place = book[self._sheet]._worksheet_path
            names = _header(book[self._sheet], f"{path}, sheet {shown(self._sheet)}") if names is None else list(names)
        self._formulas, merged = _holds(path, place)
        super().__init__(f"{path}, sheet {shown(self._sheet)}", names)
        if merged:
            raise BadRecords(
                f"{self.where}: has merged cells, only one of which holds the value: unmerge them (in Excel: Merge and "
                "Centre), and fill each cell"
            )

    def value_blocks(self, columns: list[str]) -> Generator[list[list[Any]]]:
        from openpyxl.cell.cell import ERROR_CODES

        places = [self.columns.index(name) for name in columns]
        for piece in pieces(self._rows()):
            block = []
            for number, row in piece:
                cells = [row[place] if place < len(row) else None for place in places]
                for cell, place in zip(cells, places, strict=True):
                    if isinstance(cell, str) and cell in ERROR_CODES:
                        raise BadRecords(
                            f"{self._cell(place, number)} holds the error {cell}: correct it, or empty the cell"
                        )
                block.append(cells)
            yield block

    def place(self, row: int) -> str:
        """Return the row of the sheet, found by reading once more."""
        return f"row {next(itertools.islice(self._rows(), row, None))[0]}"

    def _rows(self) -> Iterator[tuple[int, Sequence[Any]]]:
        """Yield the rows below the header that are not empty, each with its number in the sheet."""
        with self._opened() as book, _rows_of(book[self._sheet]) as rows:
            if not self._formulas:
                yield from self._full(rows)
                return
            # A formula that was never computed has no value, and reads as an empty cell.
            with self._opened(values=False) as formulas, _rows_of(formulas[self._sheet]) as written:
                for number, (row, cells) in enumerate(itertools.zip_longest(rows, written, fillvalue=()), 1):
                    for place, (value, formula) in enumerate(zip(row, cells, strict=False)):
                        if value is None and formula is not None:
                            raise BadRecords(
                                f"{self._cell(place, number)} holds a formula without its value: open the workbook in "
                                "Excel or LibreOffice and save it, or replace formulas by their values"
                            )
                    yield from self._full([row], number)

    def _full(self, rows: Any, first: int = 1) -> Iterator[tuple[int, Sequence[Any]]]:
        for number, row in enumerate(rows, first):
            if number > self._above and any(value is not None for value in row):
                if any(value is not None for value in row[len(self.columns) :]):
                    raise BadRecords(
                        f"{self.where}, row {number}: holds a value to the right of the last of {len(self.columns)} "
                        "columns: give the column a name in the first row, or empty the cell"
                    )
                yield number, row

    def _cell(self, place: int, row: int) -> str:
        from openpyxl.utils import get_column_letter

        return f"{self.where}, cell {get_column_letter(place + 1)}{row}"

    @contextmanager
    def _opened(self, values: bool = True) -> Iterator[Any]:
        needs("openpyxl", "excel", str(self._path))
        import openpyxl

        book = None
        try:
            with warnings.catch_warnings():
                # openpyxl warns of parts of a workbook that are no cells, such as charts.
                warnings.simplefilter("ignore")
                book = openpyxl.load_workbook(self._path, read_only=True, data_only=values)
                yield book
        except BadRecords:
            raise
        # A damaged workbook raises any error of zipfile, of the parser of XML, or of openpyxl.
        except (*UNREADABLE, AttributeError, IndexError, SyntaxError, zipfile.BadZipFile) as error:
            raise damaged(self._path, error, " as a workbook") from None
        finally:
            if book is not None:
                book.close()


def _rows_of(sheet: Any) -> Any:
    return closing(sheet.iter_rows(values_only=True))


def _header(sheet: Any, where: str) -> list[str]:
    """Return the names in the first row, without the empty cells at its end."""
    with _rows_of(sheet) as rows:
        first = list(next(rows, ()))
    while first and first[-1] is None:
        first.pop()
    if not first:
        raise BadRecords(f"{where}: the first row is empty: expected the names of the columns")
    for place, name in enumerate(first, 1):
        if name is None or not str(name).strip():
            raise BadRecords(
                f"{where}: the first row has no name in column {place}: expected the names of all columns there, with no "
                "title above them"
            )
    return [str(name).strip() for name in first]


def _refuse_bomb(path: Path) -> None:
    """Raise BadRecords for a file that is no archive, or one that unpacks to more than is read."""
    with open(path, "rb") as file:
        begin = file.read(8)
    if begin == b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1":
        raise BadRecords(
            f"{path} has a password, or is an old workbook (.xls): save it as .xlsx without a password, or export the "
            "sheet as .csv"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {one.filename: one.file_size for one in archive.infolist()}
    except (zipfile.BadZipFile, *UNREADABLE) as error:
        raise damaged(path, error, " as a workbook") from None
    if sum(sizes.values()) > _MOST_BYTES or sizes.get(_TEXTS, 0) > _MOST_TEXT_BYTES:
        raise BadRecords(
            f"{path} unpacks to {sum(sizes.values()):,} bytes, {sizes.get(_TEXTS, 0):,} of them texts: expected at most "
            f"{_MOST_BYTES:,}, and {_MOST_TEXT_BYTES:,} of texts; export the sheet as .csv"
        )


def _holds(path: Path, place: str) -> tuple[bool, bool]:
    """Tell whether the file of a sheet within the archive holds formulas, and merged cells."""
    formulas = merged = False
    with zipfile.ZipFile(path) as archive, archive.open(place.removeprefix("/")) as sheet:
        end = b""
        try:
            while part := sheet.read(_AT_ONCE):
                formulas, merged = formulas or bool(_FORMULA.search(end + part)), merged or bool(_MERGED.search(end + part))
                end = part[-_LONGEST_TAG:]
        except (zipfile.BadZipFile, *UNREADABLE) as error:
            raise damaged(path, error, " as a workbook") from None
    return formulas, merged
