"""Files of text, plain or packed, in UTF-8 or the encoding that is declared, read whole or in ranges of bytes.

No encoding is guessed. A range holds whole records, so that one is read without the others; double quotes say where a
record ends.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

from lightning_dpgen.common.nearest_word import suggest_file
from lightning_dpgen.sampling.errors import BadRecords

# Kinds of files by how they begin, with the ending of their names. No text begins so, in any encoding that is read.
_BEGINNINGS = {
    rb"\x1f\x8b": ("gzip", ".gz"),
    rb"BZh[1-9]1AY&SY": ("bzip2", ".bz2"),
    rb"\x28\xb5\x2f\xfd": ("zstd", ".zst"),
    rb"\xfd7zXZ\0": ("xz", ".xz"),
    rb"7z\xbc\xaf\x27\x1c": ("7-Zip", ".7z"),
    rb"PK\x03\x04.{26}(\[Content_Types\]|_rels/|xl/|docProps/)": ("an Excel workbook", ".xlsx"),
    rb"PK[\x03\x05][\x04\x06]": ("zip", ".zip"),
    rb"PAR1[^\t\n\r -~]": ("Parquet", ".parquet"),
    rb"ARROW1\0\0": ("Feather (Arrow)", ".feather"),
    rb"SQLite format 3\0": ("SQLite", ".sqlite"),
    rb".{8}DUCK[^\t\n\r -~]": ("DuckDB", ".duckdb"),
    rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": ("an old workbook", ".xls"),
    rb"\x89HDF\r\n\x1a\n": ("HDF5", ".h5"),
    rb"%PDF-\d": ("PDF", ".pdf"),
}
_PACKED, _READ = (".gz", ".bz2", ".zst"), (".xlsx", ".parquet", ".sqlite", ".duckdb")
LONGEST = 64


def other_than_text(path: Path, first: bytes, packed: str = "") -> str | None:
    """Return what is to be said of a file with the name of a text that is none; None where nothing tells.

    Args:
        path: its name.
        first: its first `LONGEST` bytes.
        packed: the ending by which it was unpacked before.

    Example:
        >>> other_than_text(Path("a.csv"), b"\\x1f\\x8b\\x08")
        'a.csv is gzip, not text: rename it to a.csv.gz'
        >>> other_than_text(Path("a.csv"), b"age,sex") is None
        True
    """
    kind = next((kind for begins, kind in _BEGINNINGS.items() if re.match(begins, first, re.DOTALL)), None)
    if kind is None:
        return None
    what, ending = kind
    bare = path.with_suffix("") if packed else path
    if ending in _PACKED:
        advice = "unpack it once" if packed else f"rename it to {path.name}{ending}"
    elif ending in _READ:
        advice = f"{'unpack it, and ' * bool(packed)}rename it to {bare.stem}{ending}"
    elif ending in (".xz", ".zip", ".7z"):
        advice = "unpack it, or pack the single file by gzip, bzip2 or zstd"
    else:
        advice = "save the table as text by the program that wrote it, or as Parquet"
    return f"{path} is {what}, not text: {advice}"


class MissingData(FileNotFoundError):
    """A data file is not where it is looked for."""


# The errors by which Python and Arrow refuse a damaged file.
UNREADABLE = (OSError, ValueError, TypeError, KeyError, EOFError, MemoryError, zlib.error, pa.ArrowException)
# Endings of packed files of text.
PACKED = (".gz", ".bz2", ".zst")
UTF8 = "utf-8"
# The problem of a line that holds one.
ZERO_BYTE = "holds a zero byte (NUL), and text has none: copy the file again, or take the byte out (tr -d '\\000')"
# The mark by which some programs begin a file of UTF-8.
MARK = b"\xef\xbb\xbf"
# The encodings that may be declared, by the names that Python has for them: those of one or two bytes a letter in which
# programs have written tables. A schema may be anyone's, and other codecs unpack or run what they are given.
CHARSETS = (
    UTF8, "utf-16", "utf-16-le", "utf-16-be", "iso8859-1", "iso8859-2", "iso8859-9", "iso8859-15", "cp1250", "cp1251",
    "cp1252", "cp1253", "cp1254", "cp437", "cp850", "cp852", "mac-roman", "koi8-r", "shift_jis", "euc_jp", "euc_kr", "big5",
    "gb18030",
)  # fmt: skip


def opened(path: Path) -> BinaryIO:
    """Open a file of text for its bytes, unpacked where its name ends in .gz, .bz2 or .zst.

    Raises:
        BadRecords: naming the kind of a file that is no text.
    """
    with open(path, "rb") as raw:
        first = raw.read(LONGEST)
    packed = path.suffix if path.suffix in PACKED else ""
    if not packed and (problem := other_than_text(path, first)):
        raise BadRecords(problem)
    if not packed:
        return open(path, "rb")
    kinds: dict[str, Callable[[Path, str], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".zst": _open_zstd}
    file = io.BufferedReader(kinds[packed](path, "rb"))
    if problem := other_than_text(path, file.peek(LONGEST)[:LONGEST], packed):
        file.close()
        raise BadRecords(problem)
    return file


def _open_zstd(path: Path, _: str) -> Any:
    return pa.CompressedInputStream(open(path, "rb"), "zstd")


def bare_name(path: Path) -> str:
    """Return the name of a file in small letters, without the ending that says how it is packed.

    Example:
        >>> bare_name(Path("Visits.CSV.gz"))
        'visits.csv'
    """
    return path.name.removesuffix(path.suffix).lower() if path.suffix in PACKED else path.name.lower()


def charset_of(name: str) -> str | None:
    """Return the name that Python has for an encoding; None for one that is not among `CHARSETS`.

    Example:
        >>> charset_of("latin-1"), charset_of("UTF8"), charset_of("zip")
        ('iso8859-1', 'utf-8', None)
    """
    try:
        charset = codecs.lookup(name).name
    except (LookupError, ValueError):
        return None
    return charset if charset in CHARSETS else None


def decoded(line: bytes, place: str) -> str:
    """Return the bytes of a line as text; raise BadRecords, naming its `place`, if they are not UTF-8.

    Example:
        >>> decoded(b"caf\\xe9", "a.txt")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        lightning_dpgen.sampling.errors.BadRecords: a.txt: byte 4 (0xe9) is not UTF-8: save the file as UTF-8 (iconv -f ...
    """
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        utf16 = line[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        kind, name = ("; it looks like UTF-16", "utf-16") if utf16 else ("", "latin-1")
        raise BadRecords(
            f"{place}: byte {error.start + 1} (0x{line[error.start]:02x}) is not UTF-8{kind}: save the file as UTF-8 "
            f"(iconv -f {name} -t utf-8), or declare its encoding where it has a schema, as in charset: {name}"
        ) from None


def check_there(path: Path, argument: str | None = None) -> None:
    """Check that there is such a file.

    Args:
        path: of the file.
        argument: the one that has named it, for the message.

    Raises:
        MissingData: if there is none, or it is a folder.

    Example:
        >>> check_there(Path("no_such.csv"))
        Traceback (most recent call last):
        lightning_dpgen.data.files.text.MissingData: no file no_such.csv
    """
    if path.is_file():
        return
    if argument is not None:
        told = "is a folder: expected a file" if path.is_dir() else f"no such file{suggest_file(path)}"
        raise MissingData(f"{argument}={path}: {told}")
    raise MissingData(f"{path} is a folder: expected a file" if path.is_dir() else f"no file {path}{suggest_file(path)}")


def damaged(path: Path, error: Exception, kind: str = "") -> BadRecords:
    """Return the error for a file that cannot be read, or not as a file of this kind; one that says what it is stays."""
    if isinstance(error, BadRecords):
        return error
    fault = " ".join(str(error).replace(str(path.absolute()), path.name).split()).rstrip(".") or type(error).__name__
    # Arrow may quote a record at length.
    fault = fault if len(fault) < 100 else f"{fault[:95]}..."
    whole = "; is it whole, and what its name says? copy it again, or rename it" if kind or path.suffix in PACKED else ""
    return BadRecords(f"{path} cannot be read{kind}: {fault}{whole}")


_QUOTE, _FEED, _RETURN = b'"\n\r'


class QuoteScan:
    """Follows the quotes of a file, piece after piece, by the rule of Python's reader and of Arrow's.

    A quote opens a field where the field begins, and closes it where it stands in it. One that follows a closing quote at
    once opens the field again, so that two stand for one in the text. Any other quote is text.

    Args:
        separator: between fields, one byte. No byte of a longer letter is like it.

    Attributes:
        is_open: whether the last piece ended within quotes.

    Example:
        >>> scan = QuoteScan(b",")
        >>> scan.feed(b'5",x,"a""b').tolist(), scan.is_open, scan.feed(b'",').tolist(), scan.is_open
        ([5, 7, 8], True, [0], False)
    """

    def __init__(self, separator: bytes) -> None:
        # A file begins as a line does.
        self.is_open, self._before = False, b"\n"
        self._begins = np.zeros(256, bool)
        self._begins[[separator[0], _FEED, _RETURN]] = True
        # Behind a quote that closed a field, too.
        self._opens = self._begins.copy()
        self._opens[_QUOTE] = True
        self._is_first = True

    def feed(self, piece: bytes) -> np.ndarray:
        """Return the positions of the quotes in a piece that open or close a field, in their order."""
        if not piece:
            return np.empty(0, np.int64)
        # The mark at the beginning of a file is no text.
        skipped = len(MARK) if self._is_first and piece.startswith(MARK) else 0
        content = np.frombuffer(self._before + piece[skipped:], np.uint8)
        quotes = np.flatnonzero(content[1:] == _QUOTE) if b'"' in piece else np.empty(0, np.int64)
        # In most files all quotes open or close a field, and then every other one is where it can open one.
        if not self._opens[content[quotes[int(self.is_open) :: 2]]].all():
            quotes = self._by_one(quotes, content)
        self.is_open = (len(quotes) + self.is_open) % 2 == 1
        # A quote that is text, or has opened a field, is not followed by one that opens it again.
        has_closed = not self.is_open and len(quotes) > 0 and quotes[-1] == len(content) - 2
        self._before = content[-1:].tobytes() if has_closed or content[-1] != _QUOTE else b"x"
        self._is_first = False
        return quotes + skipped

    def _by_one(self, quotes: np.ndarray, content: np.ndarray) -> np.ndarray:
        """Return the quotes that open or close a field, where some do neither."""
        is_open, closed, bounds = self.is_open, -1 if content[0] == _QUOTE else -2, []
        for at, begins in zip(quotes.tolist(), self._begins[content[quotes]].tolist(), strict=True):
            if is_open or begins or closed == at - 1:
                bounds.append(at)
                closed, is_open = (at, False) if is_open else (closed, True)
        return np.array(bounds, np.int64)


# The least bytes of a range: as many records as are kept together, or more.
_BYTES_OF_RANGE = 1 << 26
_BYTES_AT_ONCE = 1 << 24


class TextRange(NamedTuple):
    """Bytes from the beginning of a record to before that of another.

    Args:
        start: the first byte.
        stop: the byte behind the last one; None for the end of the file.
        line: the number of the first line in the file, from 1.
    """

    start: int = 0
    stop: int | None = None
    line: int = 1


WHOLE = TextRange()


def open_range(path: Path, part: TextRange = WHOLE) -> BinaryIO:
    """Open a file as `opened` does, for the bytes of a range alone."""
    return opened(path) if part == WHOLE else io.BufferedReader(_RangeReader(path, part))


def find_ranges(path: Path, quotes: QuoteScan | None) -> list[TextRange]:
    """Return ranges that follow each other and make up the file, which is read once; the whole where it is packed or small.

    Args:
        quotes: of delimited text, whose records end with a line feed that is not in quotes. None where each line feed ends
            a record, and no carriage return a line.

    Raises:
        OSError: from the disk.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile(suffix=".csv") as file:
        ...     find_ranges(Path(file.name), QuoteScan(b","))
        [TextRange(start=0, stop=None, line=1)]
    """
    if path.suffix in PACKED or path.stat().st_size < 2 * _BYTES_OF_RANGE:
        return [WHOLE]
    starts, done, line, last = [WHOLE], 0, 1, b""
    with open(path, "rb") as file:
        while piece := file.read(_BYTES_AT_ONCE):
            was_open = quotes is not None and quotes.is_open
            turns = np.empty(0, np.int64) if quotes is None else quotes.feed(piece)
            # The line feed of a line that ended with the piece before.
            line -= quotes is not None and last == b"\r" and piece.startswith(b"\n")
            while (least := starts[-1].start + _BYTES_OF_RANGE - done) < len(piece):
                cut = _end_behind(piece, max(least, 0), turns, was_open)
                if cut is None:
                    break
                starts.append(TextRange(done + cut, None, line + _count_lines(piece[:cut], quotes is not None)))
            line, done, last = line + _count_lines(piece, quotes is not None), done + len(piece), piece[-1:]
        # A mark is taken away where reading begins, and belongs to the text elsewhere.
        starts = [WHOLE, *(part for part in starts[1:] if part.start < done and not _is_marked(file, part.start))]
    stops = [*(part.start for part in starts[1:]), None]
    return [part._replace(stop=stop) for part, stop in zip(starts, stops, strict=True)]


def _end_behind(piece: bytes, least: int, turns: np.ndarray, was_open: bool) -> int | None:
    """Return the place behind the first record that ends at `least` or behind it; None where none does."""
    ends = np.flatnonzero(np.frombuffer(piece, np.uint8)[least:] == _FEED) + least
    ends = ends[(np.searchsorted(turns, ends) + was_open) % 2 == 0]
    return int(ends[0]) + 1 if len(ends) else None


def _count_lines(piece: bytes, by_returns: bool) -> int:
    # It is quicker than `bytes.count` where lines are short.
    feeds = int(np.count_nonzero(np.frombuffer(piece, np.uint8) == _FEED))
    return feeds + piece.count(b"\r") - piece.count(b"\r\n") if by_returns and b"\r" in piece else feeds


def _is_marked(file: BinaryIO, start: int) -> bool:
    file.seek(start)
    return file.read(len(MARK)) == MARK


class _RangeReader(io.RawIOBase):
    """The bytes of a range of a file."""

    def __init__(self, path: Path, part: TextRange) -> None:
        self._file = opened(path)
        self._file.seek(part.start)
        self._left = os.fstat(self._file.fileno()).st_size if part.stop is None else part.stop - part.start

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(memoryview(buffer)[: self._left])
        self._left -= count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()
