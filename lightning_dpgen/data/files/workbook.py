"""Workbooks of Excel (.xlsx): a sheet with the names of the columns in its first row, read by openpyxl in blocks."""

from __future__ import annotations

import itertools
import re
import warnings
import zipfile
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.files.delimited import Skipped
from lightning_dpgen.data.files.kinds import name_one, needs
from lightning_dpgen.data.files.text import UNREADABLE, damaged
from lightning_dpgen.data.files.values import ValueRows, pieces
from lightning_dpgen.data.names import quote
from lightning_dpgen.sampling.errors import BadRecords

# An archive of a few kilobytes may unpack to more than any disk holds; texts of a workbook are held in memory.
_MOST_BYTES, _MOST_TEXT_BYTES = 1 << 32, 1 << 30
_TEXTS = "xl/sharedStrings.xml"
# The last row of merged cells stands behind the colon.
_FORMULA = re.compile(rb"<(?:\w+:)?f[\s/>]")
_MERGED = re.compile(rb"<(?:\w+:)?mergeCell\s[^>]*ref=\"[A-Z]+\d+:[A-Z]+(\d+)\"")
_LONGEST_TAG, _LAST_ROW = 64, 2**20
# Rows among which the names of the columns are searched where they were expected above.
_MOST_ABOVE = 100
_NOTHING_SKIPPED = Skipped()
_AT_ONCE = 1 << 20


class WorkbookRows(ValueRows):
    """A sheet of a workbook. A formula has the value that it had when the workbook was saved.

    Args:
        path: the file.
        sheet: its name; None for the only one.
        names: of the columns, where the first row does not say them; else None.
        skipped: rows that are none of the table: those above all others, and those whose first cell begins so.

    Raises:
        BadRecords: if there is no such sheet, it holds merged cells, or it cannot be read.
    """

    def __init__(
        self, path: Path, sheet: str | None = None, names: Sequence[str] | None = None, skipped: Skipped = _NOTHING_SKIPPED
    ) -> None:
        self._path, self._above, self._skipped = path, skipped.rows, skipped
        _refuse_bomb(path)
        with self._opened() as book:
            sheets = [one.title for one in book.worksheets]
            if sheet is None and len(sheets) != 1:
                raise BadRecords(f"{path} has {len(sheets)} sheets{name_one(sheets)}")
            self._sheet = sheets[0] if sheet is None else sheet
            if self._sheet not in sheets:
                raise BadRecords(f"{path} has no sheet {quote(self._sheet)}: it has {listed(sheets)}")
            place = book[self._sheet]._worksheet_path
            self._has_header, self._fields = names is None, list(names or ())
            if names is None:
                self._above, self._fields = _header(book[self._sheet], f"{path}, sheet {quote(self._sheet)}", skipped)
        self._formulas, merged = _holds(path, place)
        self._commented = 0
        self.unnamed = {f"\0{place}": place for place, name in enumerate(self._fields, 1) if not name}
        self._fields = [name or f"\0{place}" for place, name in enumerate(self._fields, 1)]
        super().__init__(f"{path}, sheet {quote(self._sheet)}", [name for name in self._fields if name not in self.unnamed])
        if merged > skipped.rows:
            raise BadRecords(
                f"{self.where}: has merged cells, only one of which holds the value: unmerge them (in Excel: Merge and "
                "Centre), and fill each cell"
            )

    def value_blocks(self, columns: list[str]) -> Generator[list[list[Any]]]:
        from openpyxl.cell.cell import ERROR_CODES

        places = [self._fields.index(name) for name in columns]
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

    def commented(self) -> int:
        return self._commented

    def place(self, row: int) -> str:
        """Return the row of the sheet, found by reading once more."""
        return f"row {next(itertools.islice(self._rows(), row, None))[0]}"

    def _rows(self) -> Iterator[tuple[int, Sequence[Any]]]:
        """Yield the rows below the header that are not empty, each with its number in the sheet."""
        self._commented = 0
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
            is_row = any(value is not None for value in row)
            if number > self._above and is_row and self._skipped.is_comment(row[0]):
                self._commented += 1
            elif number > self._above and is_row:
                if any(value is not None for value in row[len(self._fields) :]):
                    elsewhere = "; if the names stand further down, declare skip_rows in the schema"
                    raise BadRecords(
                        f"{self.where}, row {number}: holds a value to the right of the last of {len(self._fields)} "
                        "columns: give the column a name in the first row, or empty the cell"
                        + (elsewhere if self._has_header else "")
                    )
                yield number, row

    @classmethod
    def first_rows(cls, path: Path, sheet: str | None = None, most: int = 200) -> list[list[str]]:
        """Return the cells of the first rows of a sheet as text, "" for an empty one; errors as those of the class."""
        everything = cls(path, sheet, ["?"], Skipped(_LAST_ROW))
        with everything._opened() as book, _rows_of(book[everything._sheet]) as rows:
            return [["" if cell is None else str(cell) for cell in row] for row in itertools.islice(rows, most)]

    def advice_on(self, names: Collection[str]) -> str:
        with self._opened() as book, _rows_of(book[self._sheet]) as rows:
            for number, row in enumerate(itertools.islice(rows, _MOST_ABOVE), 1):
                if number != self._above and self._has_header and set(names) <= {str(value).strip() for value in row}:
                    return f"; row {number} has these names: declare skip_rows: {number - 1}"
        return ""

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


def _header(sheet: Any, where: str, skipped: Skipped) -> tuple[int, list[str]]:
    """Return the number and the names of the first row that is not empty, "" for none, without the cells at its end."""
    with _rows_of(sheet) as rows:
        for number, row in enumerate(rows, 1):
            names = ["" if name is None else str(name).strip() for name in row]
            while names and not names[-1]:
                names.pop()
            if names and number > skipped.rows and not skipped.is_comment(row[0]):
                return number, names
    raise BadRecords(f"{where}: no row holds a value: expected the names of the columns in the first one")


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


def _holds(path: Path, place: str) -> tuple[bool, int]:
    """Tell whether the file of a sheet within the archive holds formulas, and the last row with merged cells, or 0."""
    formulas, merged = False, 0
    with zipfile.ZipFile(path) as archive, archive.open(place.removeprefix("/")) as sheet:
        end = b""
        try:
            while part := sheet.read(_AT_ONCE):
                formulas = formulas or bool(_FORMULA.search(end + part))
                merged = max([merged, *map(int, _MERGED.findall(end + part))])
                end = part[-_LONGEST_TAG:]
        except (zipfile.BadZipFile, *UNREADABLE) as error:
            raise damaged(path, error, " as a workbook") from None
    return formulas, merged
