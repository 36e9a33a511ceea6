"""Files of text, plain or gzipped, which must be there and be UTF-8: the one encoding that is never guessed."""

from __future__ import annotations

import codecs
import gzip
import zlib
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from lightning_dpgen.data.errors import MissingData
from lightning_dpgen.privacy.nearest_word import suggest_file
from lightning_dpgen.sampling.errors import BadRecords

# The errors by which Python and Arrow refuse a damaged file.
UNREADABLE = (OSError, ValueError, TypeError, KeyError, EOFError, MemoryError, zlib.error, pa.ArrowException)


def opened(path: Path) -> BinaryIO:
    """Open a file for its bytes, unpacked where its name ends in .gz."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")


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
        kind, name = ("; it looks like UTF-16", "utf-16") if utf16 else ("", "latin1")
        raise BadRecords(
            f"{place}: byte {error.start + 1} (0x{line[error.start]:02x}) is not UTF-8{kind}: save the file as UTF-8 "
            f"(iconv -f {name} -t utf-8)"
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
        lightning_dpgen.data.errors.MissingData: no file no_such.csv
    """
    if path.is_file():
        return
    if argument is not None:
        told = "is a folder: expected a file" if path.is_dir() else f"no such file{suggest_file(path)}"
        raise MissingData(f"{argument}={path}: {told}")
    raise MissingData(f"{path} is a folder: expected a file" if path.is_dir() else f"no file {path}{suggest_file(path)}")


def damaged(path: Path, error: Exception, kind: str = "") -> BadRecords:
    """Return the error for a file that cannot be read, or not as a file of this kind."""
    said = " ".join(str(error).split()) or type(error).__name__
    # Arrow may quote a record at length.
    return BadRecords(f"{path} cannot be read{kind}: {said if len(said) < 100 else said[:95] + '...'}")
