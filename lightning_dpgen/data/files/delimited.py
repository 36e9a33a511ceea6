"""Files of delimited text, CSV or TSV, plain or packed: Arrow reads them, and a fault is found by reading once more."""

from __future__ import annotations

import copy
import csv
import io
import itertools
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from lightning_dpgen.common import pace
from lightning_dpgen.common.plain_text import say_count
from lightning_dpgen.data.files.blocks import RowSource
from lightning_dpgen.data.files.text import (
    PACKED,
    UNREADABLE,
    UTF8,
    WHOLE,
    ZERO_BYTE,
    QuoteScan,
    TextRange,
    bare_name,
    damaged,
    decoded,
    find_ranges,
    open_range,
)
from lightning_dpgen.data.names import quote
from lightning_dpgen.sampling.errors import BadRecords

# The bytes of a block; a row of twice as many is refused.
_BYTES_AT_ONCE = 1 << 24
# Encodings in which a byte of a letter may be like a separator or a quote.
_NOT_BY_BYTES = ("utf-16", "utf-16-le", "utf-16-be", "shift_jis", "big5", "gb18030")

# Records among which the names of the columns are searched where they were expected above.
_MOST_ABOVE = 100
_FURTHER_DOWN = "; if they stand further down, declare skip_rows in the schema"
# Signs by which lines begin that are no records, and hardly any record.
_MARKS = "#%!;"
# Behind a carriage return that ends a line by itself.
_RETURN = re.compile(rb"(?<=\r)(?!\n)")


class RaggedRow(BadRecords):
    """A row of text with another number of fields than the first one."""


class DelimitedText(RowSource):
    """A file of text with one row a line, unless a line break is in quotes. An empty field is null.

    Args:
        path: the file; ``.gz``, ``.bz2`` and ``.zst`` are unpacked.
        names: of the columns, where no header says them; else None.
        separator: between fields, one character; None for what goes with the ending.
        strip: whether blanks around fields are cut off.
        skip_empty: whether empty lines are no rows, where there are several columns.
        drop_ragged: whether rows with another number of fields are left out and counted, not refused.
        headless: the words by which a reader is told that there is no header, for advice; none where it cannot be.
        charset: the encoding of the text, one of `data.files.text.CHARSETS`.
        skip_rows: the number of lines above all others that are no rows, such as a title.
        comment: how lines begin that are no rows wherever they stand outside of quotes. A beginning that ends with a letter
            or a digit ends a word.

    Attributes:
        has_header: whether the file says the names of its columns.
        unnamed: stands for the columns without a name, which are none of `columns`: by each the place of one, from 1.

    Raises:
        BadRecords: if there is no header where there should be one, or it cannot be read.
        ValueError: for another separator.
    """

    def __init__(
        self,
        path: Path,
        names: Sequence[str] | None = None,
        separator: str | None = None,
        *,
        strip: bool = True,
        skip_empty: bool = False,
        drop_ragged: bool = False,
        headless: str = "",
        charset: str = UTF8,
        skip_rows: int = 0,
        comment: Sequence[str] = (),
    ) -> None:
        self._path, self._strip, self._drop_ragged, self._charset = path, strip, drop_ragged, charset
        self._skipped, self._commented = Skipped(skip_rows, tuple(comment)), 0
        self._separator = separator or default_separator(path)
        if len(self._separator.encode()) != 1 or self._separator in '"\r\n':
            raise ValueError(f"separator={quote(separator)}: expected one character")
        self.has_header, self._header_line, self._part = names is None, 0, WHOLE
        if names is None:
            self._header_line, names = header_of(path, self._separator, charset, self._skipped)
            names = [name.strip() for name in names] if strip else names
        # No name in a file has this sign.
        self.unnamed = {f"\0{place}": place for place, name in enumerate(names, 1) if not name.strip()}
        self._fields = [name if name.strip() else f"\0{place}" for place, name in enumerate(names, 1)]
        if len(self.unnamed) == len(names):
            raise BadRecords(
                f"{path}, line {self._header_line}: no column has a name: expected the names of the columns{_FURTHER_DOWN}"
            )
        hint = f", or say that the first line is no header ({headless})" if headless and self.has_header else ""
        hint += _FURTHER_DOWN if self.has_header else ""
        super().__init__(str(path), [name for name in self._fields if name not in self.unnamed], hint)
        self._skips_empty = skip_empty and len(self._fields) > 1

    def ranges(self, columns: Sequence[str]) -> list[TextRange]:
        if self._charset in _NOT_BY_BYTES or self._skipped:
            return [WHOLE]
        # The header is never by itself.
        first, *others = find_ranges(self._path, self._scan())
        others = [part for part in others if part.line > self._header_line]
        return [first._replace(stop=others[0].start if others else None), *others]

    def within(self, part: TextRange) -> DelimitedText:
        rows = copy.copy(self)
        rows._part = part
        return rows

    def batches(self, columns: list[str]) -> Generator[pa.RecordBatch]:
        self.ragged, scan, has_header = 0, self._scan(), self.has_header and self._part.start == 0
        read = pa.csv.ReadOptions(
            use_threads=False,
            block_size=_BYTES_AT_ONCE,
            column_names=self._fields,
            # Lines before the header are empty; the header may be of several lines.
            skip_rows=max(self._header_line - 1, 0) if has_header and not self._skipped else 0,
            skip_rows_after_names=int(has_header),
            # Arrow warns of rows that it cannot hand to `_left_out` as text, so all is decoded before.
            encoding=UTF8 if self._skipped else _with_mark(self._charset) if self._drop_ragged else self._charset,
        )
        parse = pa.csv.ParseOptions(
            delimiter=self._separator,
            newlines_in_values=True,
            ignore_empty_lines=self._skips_empty,
            invalid_row_handler=self._left_out if self._drop_ragged else None,
        )
        convert = pa.csv.ConvertOptions(
            include_columns=columns,
            column_types=dict.fromkeys(columns, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
        )
        try:
            with self._unread() as unread, pace.stage("reading the file", self._bytes()) as stage:
                has_zeros = self._charset.startswith("utf-16") and not self._skipped
                file = _Scanned(unread, scan, has_zeros, stage.advance)
                for batch in pa.csv.open_csv(file, read_options=read, parse_options=parse, convert_options=convert):
                    yield pa.record_batch(list(map(_stripped, batch.columns)), names=columns) if self._strip else batch
                # A quote that is left open takes all below it for one field, and Arrow is content.
                if scan.is_open or self._charset.startswith("utf-16"):
                    for _ in self._rows():
                        pass
        except BadRecords:
            raise
        except UNREADABLE as error:
            # Arrow refuses a file without rows, too.
            if next(self._rows(), None) is not None:
                raise self._fault(error) from None

    def place(self, row: int) -> str:
        """Return the line of a row, found by reading once more.

        Raises:
            BadRecords: if a fault of the file is found there.
        """
        kept = (line for line, fields in self._rows() if not (self._drop_ragged and self._is_ragged(fields)))
        line = next(itertools.islice(kept, row, None), None)
        return f"row {row} (from 0)" if line is None else f"line {line}"

    def _scan(self) -> QuoteScan:
        return QuoteScan(self._separator.encode())

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the rows below the header as fields, each with its line."""
        for line, fields in text_records(self._path, self._separator, self._charset, self._part, self._skipped):
            if line > self._header_line and (fields or not self._skips_empty):
                yield line, fields

    def _is_ragged(self, fields: list[str]) -> bool:
        # To Arrow an empty line is a row of nulls.
        return bool(fields) and len(fields) != len(self._fields)

    def _bytes(self) -> int | None:
        """Return the bytes that are read; None where they are packed."""
        if self._path.suffix in PACKED:
            return None
        return (self._path.stat().st_size if self._part.stop is None else self._part.stop) - self._part.start

    @contextmanager
    def _unread(self) -> Iterator[BinaryIO]:
        """Open the bytes that Arrow reads: where lines are skipped, the others in UTF-8."""
        with open_range(self._path, self._part) as raw:
            if not self._skipped:
                yield raw
                return
            self._commented = 0
            with io.TextIOWrapper(raw, _with_mark(self._charset), newline="") as text:
                lines = self._skipped.kept(_lines(text), self._separator, on_comment=self._count_comment)
                yield io.BufferedReader(_Lines(line.encode() for number, line in lines if number >= self._header_line))

    def advice_on(self, names: Collection[str]) -> str:
        above: list[str] = []
        for line, fields in itertools.islice(text_records(self._path, self._separator, self._charset), _MOST_ABOVE):
            there = {field.strip() for field in fields} if self._strip else set(fields)
            if line != self._header_line and set(names) <= there and self.has_header:
                marks = {text[:1] for text in above if text}
                mark = f'comment: "{min(marks)}" or ' if len(marks) == 1 and min(marks) in _MARKS else ""
                return f"; line {line} has these names: declare {mark}skip_rows: {line - 1}"
            above.append(fields[0] if fields else "")
        return ""

    def commented(self) -> int:
        return self._commented

    def _count_comment(self) -> None:
        self._commented += 1

    def _left_out(self, _: pa.csv.InvalidRow) -> str:
        self.ragged += 1
        return "skip"

    def _fault(self, error: Exception) -> BadRecords:
        """Return what is wrong with the first row that does not fit, or else what Arrow says."""
        try:
            for line, fields in self._rows():
                if self._is_ragged(fields) and not self._drop_ragged:
                    several = any("\n" in field for field in fields)
                    advice = "close the double quote that may be left open there, or correct" if several else "correct"
                    advice += " the line or the separator, or put fields that hold the separator in double quotes"
                    if len(fields) > len(self._fields) and not any(field.strip() for field in fields[len(self._fields) :]):
                        advice = "the line ends with a separator and nothing behind it: remove it there"
                    elif len(fields) < len(self._fields) and self.has_header:
                        advice += (
                            "; if it is no record, as a sum or a note, declare its beginning under comment in the schema"
                        )
                    return RaggedRow(
                        f"{self._path}, line {line}: found {say_count(len(fields), 'field')}, expected "
                        f"{len(self._fields)}, separated by {self._separator!r}: {advice}"
                    )
        except BadRecords as found:
            return found
        return damaged(self._path, error)


def default_separator(path: Path) -> str:
    """Return the separator that goes with the ending of a name: a tab for ``.tsv``, else a comma."""
    return "\t" if bare_name(path).endswith(".tsv") else ","


@dataclass(frozen=True)
class Skipped:
    """Lines of a file of text that are no rows; see `DelimitedText`."""

    rows: int = 0
    comment: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.rows > 0 or bool(self.comment)

    def kept(
        self, lines: Iterable[str], separator: str, first: int = 1, on_comment: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[int, str]]:
        """Yield the other lines, each with its number; the first one has this number."""
        scan, before = QuoteScan(separator.encode()), ""
        for number, line in enumerate(lines, first):
            if number <= self.rows:
                continue
            if not scan.is_open and self.is_comment(line):
                on_comment()
                continue
            # Lines without a quote change nothing but what stands before the next one.
            if self.comment and '"' in line:
                scan.feed((before[-1:] + line).encode())
            before = line
            yield number, line

    def is_comment(self, text: object) -> bool:
        """Tell whether a line, or the first cell of a row, begins as one that is no row.

        Example:
            >>> skipped = Skipped(comment=("#", "Total"))
            >>> [skipped.is_comment(text) for text in ("# a,b", "Total;5", "Totally;5", 5)]
            [True, True, False, False]
        """
        return isinstance(text, str) and any(
            text.startswith(mark) and not (mark[-1].isalnum() and text[len(mark) : len(mark) + 1].isalnum())
            for mark in self.comment
        )


_NOTHING = Skipped()


def header_of(path: Path, separator: str, charset: str = UTF8, skipped: Skipped = _NOTHING) -> tuple[int, list[str]]:
    """Return the number, from 1, and the fields of the first line that is not empty; raise BadRecords if there is none."""
    for line, fields in text_records(path, separator, charset, skipped=skipped):
        if fields:
            return line, fields
    if skipped and next(text_records(path, separator, charset), None) is not None:
        raise BadRecords(
            f"{path} has no line beside those that skip_rows={skipped.rows} and comment leave out: expected a header line "
            "with the names of the columns; correct them in the schema"
        )
    raise BadRecords(f"{path} is empty: expected a header line with the names of the columns")


def text_records(
    path: Path,
    separator: str,
    charset: str = UTF8,
    part: TextRange = WHOLE,
    skipped: Skipped = _NOTHING,
    *,
    skip_blanks: bool = False,
) -> Iterator[tuple[int, list[str]]]:
    """Yield lines as fields (none of an empty one), each with its number, from 1; raise BadRecords for a damaged file.

    With `skip_blanks` a quote may follow blanks, and still opens its field.
    """
    line, is_over, begins = part.line, False, True

    def read_on(text: TextIO) -> Iterator[str]:
        nonlocal line, is_over, begins
        for number, kept in skipped.kept(_lines(text), separator, part.line):
            line, begins = (number, False) if begins else (line, False)
            if "\0" in kept:
                raise BadRecords(f"{path}, line {number} {ZERO_BYTE}")
            yield kept
        is_over = True
        # An empty line more is a row of its own, unless it still belongs to a field.
        yield ""

    try:
        with open_range(path, part) as raw, io.TextIOWrapper(raw, _with_mark(charset), newline="") as text:
            reader = csv.reader(read_on(text), delimiter=separator, skipinitialspace=skip_blanks)
            for fields in reader:
                if is_over and fields:
                    raise BadRecords(
                        f"{path}, line {line}: a double quote is opened and never closed: close it, leave it out, or write "
                        "it twice within a field in quotes"
                    )
                if not is_over:
                    yield line, fields
                begins = True
    except UnicodeError as error:
        # A damaged archive may be found out by its checksum alone, behind what it holds.
        if charset == UTF8:
            _refuse_bytes(path, part)
            raise damaged(path, error) from None
        raise BadRecords(
            f"{path}, at line {line} or below it, is not {charset}: correct the charset that is declared"
        ) from None
    except BadRecords:
        raise
    except csv.Error as error:
        raise BadRecords(f"{path}, line {line} cannot be read: {error}; is a double quote left open there?") from None
    except UNREADABLE as error:
        raise damaged(path, error) from None


class _Lines(io.RawIOBase):
    """A file of bytes that yields lines (bytes) one after the other."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines, self._rest = lines, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._rest = self._rest or next(self._lines, b"")
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


class _Scanned(io.RawIOBase):
    """A file of bytes whose quotes are followed as it is read; a zero byte is refused, unless `has_zeros`.

    `count` is told how many bytes were read.
    """

    def __init__(self, file: BinaryIO, scan: QuoteScan, has_zeros: bool, count: Callable[[int], None]) -> None:
        self._file, self._scan, self._is_text, self._count = file, scan, not has_zeros, count

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(size)
        if self._is_text and b"\0" in piece:
            # The line is found by reading once more.
            raise ValueError("a zero byte (NUL)")
        self._scan.feed(piece)
        self._count(len(piece))
        return piece


def _with_mark(charset: str) -> str:
    """Return the encoding that also takes the mark away by which some programs begin a file of UTF-8."""
    return "utf-8-sig" if charset == UTF8 else charset


def _lines(text: TextIO) -> Iterator[str]:
    while line := text.readline(_BYTES_AT_ONCE):
        if len(line) == _BYTES_AT_ONCE and line[-1] not in "\r\n":
            raise csv.Error(f"expected lines of fewer than {_BYTES_AT_ONCE:,} characters")
        yield line


def _refuse_bytes(path: Path, part: TextRange) -> None:
    """Raise BadRecords for the first line that is not UTF-8."""
    number = part.line
    try:
        with open_range(path, part) as raw:
            for lines in iter(lambda: raw.readline(_BYTES_AT_ONCE), b""):
                for line in filter(None, _RETURN.split(lines)):
                    decoded(line, f"{path}, line {number}")
                    number += 1
    except BadRecords:
        raise
    except UNREADABLE as error:
        raise damaged(path, error) from None


def _stripped(column: pa.Array) -> pa.Array:
    column = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.equal(column, ""), None, column)
