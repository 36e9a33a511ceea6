"""Ranges of bytes of a file of text, each of whole records, so that one is read without the others."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from lightning_dpgen.data.files.quotes import QuoteScan
from lightning_dpgen.data.files.text import MARK, PACKED, opened

# The least bytes of a range: as many records as are kept together, or more.
_BYTES_OF_RANGE = 1 << 26
_BYTES_AT_ONCE = 1 << 24
_FEED = ord("\n")


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
