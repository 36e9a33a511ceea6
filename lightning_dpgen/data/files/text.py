"""Files of text, plain or gzipped, which must be there and be UTF-8: the one encoding that is never guessed."""

from __future__ import annotations

import codecs
import gzip
import io
from pathlib import Path
from typing import BinaryIO

from lightning_dpgen.data.errors import MissingData
from lightning_dpgen.sampling.errors import BadRecords


def opened(path: Path) -> BinaryIO:
    """The bytes of a file, unpacked where its name ends in .gz."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")


def decoded(line: bytes, place: str) -> str:
    """Bytes of a line as text.

    Args:
        place: where it stands, for an error.

    Raises:
        BadRecords: if they are not UTF-8.

    Example:
        >>> decoded(b"caf\\xe9", "a.txt")
        Traceback (most recent call last):
        lightning_dpgen.sampling.errors.BadRecords: a.txt: byte 4 (0xe9) is not UTF-8: convert the file to UTF-8 first
    """
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise BadRecords(
            f"{place}: byte {error.start + 1} (0x{line[error.start]:02x}) is not UTF-8: convert the file to UTF-8 first"
        ) from None


def check_there(path: Path, setting: str = "data.path") -> None:
    """That there is such a file.

    Args:
        path: of the file.
        setting: that has named it.

    Raises:
        MissingData: if there is none, or it is a folder.

    Example:
        >>> check_there(Path("no_such.csv"))
        Traceback (most recent call last):
        lightning_dpgen.data.errors.MissingData: no file no_such.csv (data.path)
    """
    if path.is_dir():
        raise MissingData(f"{path} is a folder: expected a file ({setting})")
    if not path.is_file():
        raise MissingData(f"no file {path} ({setting})")


class Utf8Bytes(io.RawIOBase):
    """The bytes of a file, each looked at as it is read: `read` raises BadRecords at the first that is not UTF-8."""

    def __init__(self, path: Path) -> None:
        self._file, self._path = opened(path), path
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._line, self._begun = 1, b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        try:
            self._decoder.decode(block, final=not block)
        except UnicodeDecodeError:
            for i, line in enumerate((self._begun + block).split(b"\n")):
                decoded(line, f"{self._path}, line {self._line + i}")
            raise
        self._line += block.count(b"\n")
        _, newline, last = block.rpartition(b"\n")
        self._begun = last if newline else self._begun + last
        return block

    def close(self) -> None:
        self._file.close()
        super().close()
