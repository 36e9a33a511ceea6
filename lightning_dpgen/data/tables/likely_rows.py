"""Lines of a file of text that are probably rows, and the signs between their fields: for drafts of schemas."""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lightning_dpgen.data.files.delimited import default_separator
from lightning_dpgen.data.tables.likely_form import first_bytes, last_bytes
from lightning_dpgen.data.tables.likely_units import is_missing_word, is_total

_MARKS = ("#", "//", "%", "!")
_SEPARATORS = ";\t|"
_LINES = 200
# Lines above the header in which exports tell what a table is.
_MOST_ABOVE = 50
# The last lines, among which sums stand.
_LAST = 3


@dataclass(frozen=True)
class Rows:
    """The signs by which the rows of a file of text are told from other lines.

    Args:
        separator: between fields.
        skip_rows, comment: as a schema declares them.
    """

    separator: str
    skip_rows: int = 0
    comment: tuple[str, ...] = ()

    @property
    def fields(self) -> dict[str, int | str | list[str]]:
        """The keys of a schema, but for the separator."""
        marks = self.comment[0] if len(self.comment) == 1 else list(self.comment)
        return ({"skip_rows": self.skip_rows} if self.skip_rows else {}) | ({"comment": marks} if marks else {})


def likely_rows(path: Path, charset: str) -> Rows:
    """Return how the rows of a file of text are told from a title, comments and sums.

    Raises:
        BadRecords: if it cannot be unpacked.
    """
    lines = first_bytes(path).decode(charset, errors="ignore").removeprefix("\ufeff").splitlines()[:_LINES]
    last = last_bytes(path).decode(charset, errors="ignore").splitlines()[-_LAST:]
    return _rows_among(lines, last, default_separator(path))


def _rows_among(lines: list[str], last: list[str], separator: str) -> Rows:
    """Return the same of the first and the last lines of a file.

    Example:
        >>> _rows_among(["Visits 2023", "", "a;b;c", "1;2;3", "4;5;6"], ["4;5;6", "Total;7;9"], ",")
        Rows(separator=';', skip_rows=2, comment=('Total',))
        >>> _rows_among(["# by LIMS", "a,b", "1,2", "# note", "3,4"], ["3,4"], ",")
        Rows(separator=',', skip_rows=0, comment=('#',))
        >>> _rows_among(["##v1", "#id,b", "1,2", "3,4"], ["3,4"], ",")
        Rows(separator=',', skip_rows=1, comment=())
    """
    first = next((line for line in lines if line.strip()), "")
    mark = next((mark for mark in _MARKS if first.startswith(mark)), "")
    rows = [line for line in lines if line.strip() and not (mark and line.startswith(mark))]
    usual = {sign: _usual_count(rows, sign) for sign in dict.fromkeys((separator, *_SEPARATORS))}
    # A comma before decimals is in each record, and not in the names above them.
    places = {sign: _first_of(rows, sign, count) for sign, count in usual.items() if count > 1}
    separator = min(places, key=places.__getitem__, default=separator)
    count = usual[separator]
    sums = dict.fromkeys(_split(line, separator)[0].strip() for line in last if line.strip() and line[0] not in '" ')
    totals = tuple(text for text in sums if is_total(text))
    if mark:
        marked = [place for place, line in enumerate(lines) if line.startswith(mark)]
        # The names themselves begin so in files of genes and the like, in the last line before the records.
        last_above = next(place for place in marked if place + 1 not in marked)
        fields = list(map(partial(_split, separator=separator), [lines[last_above], *rows]))
        if len(fields[0]) != count or count == 1 or (len(fields) > 2 and _are_names(fields[1], fields[2:])):
            return Rows(separator, 0, (mark, *totals))
        return Rows(separator, last_above, totals)
    return Rows(separator, title_rows([_split(line, separator) for line in lines], count), totals)


def title_rows(rows: list[list[str]], count: int) -> int:
    """Return the number of rows above the one with the names of the columns; 0 where it is not plain that it has names.

    Args:
        rows: their fields.
        count: the fields of most of them.

    Example:
        >>> title_rows([["Visits 2023"], [""], ["day", "cost"], ["1", "5"], ["2", "7"]], 2)
        2
        >>> title_rows([["who"], ["Smith", "John"], ["Brown", "Ann"]], 2)
        0
    """
    for place, fields in enumerate(rows[:_MOST_ABOVE]):
        full = sum(bool(field.strip()) for field in fields)
        if len(fields) == count and 2 * full > count and (full > 1 or count == 1):
            above = [row for row in rows[:place] if any(field.strip() for field in row)]
            return place if above and _are_names(fields, rows[place + 1 :]) else 0
    return 0


def _are_names(fields: list[str], below: list[list[str]]) -> bool:
    """Tell whether fields are names and no record, whose values would stand in a draft: those below have digits there."""
    with_digits = [
        2 * sum(len(row) == len(fields) and bool(re.search(r"\d", row[place])) for row in below) > len(below)
        for place in range(len(fields))
    ]
    digits = [bool(re.search(r"\d", field)) or is_missing_word(field) for field in fields]
    pairs = [(one, other) for one, other, name in zip(digits, with_digits, fields, strict=True) if name.strip()]
    return (False, True) in pairs and (True, True) not in pairs


def _first_of(lines: list[str], separator: str, count: int) -> int:
    """Return the place of the first line with so many fields."""
    return next((place for place, line in enumerate(lines) if len(_split(line, separator)) == count), len(lines))


def _usual_count(lines: list[str], separator: str) -> int:
    """Return the number of fields of most lines; 1 where lines differ."""
    counts = Counter(len(_split(line, separator)) for line in lines)
    most, times = counts.most_common(1)[0] if counts else (1, 0)
    return most if 2 * times > len(lines) else 1


def _split(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=separator), [""]) or [""]
    except csv.Error:
        return [line]
