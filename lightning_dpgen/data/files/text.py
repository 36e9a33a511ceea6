"""Files of text, plain or packed, in UTF-8 or the encoding that is declared: none is ever guessed."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from lightning_dpgen.common.nearest_word import suggest_file
from lightning_dpgen.data.errors import MissingData
from lightning_dpgen.data.files.signatures import LONGEST, other_than_text
from lightning_dpgen.sampling.errors import BadRecords

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
    if not packed and (told := other_than_text(path, first)):
        raise BadRecords(told)
    if not packed:
        return open(path, "rb")
    kinds: dict[str, Callable[[Path, str], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".zst": _open_zstd}
    file = io.BufferedReader(kinds[packed](path, "rb"))
    if told := other_than_text(path, file.peek(LONGEST)[:LONGEST], packed):
        file.close()
        raise BadRecords(told)
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
        found = codecs.lookup(name).name
    except (LookupError, ValueError):
        return None
    return found if found in CHARSETS else None


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
        lightning_dpgen.data.errors.MissingData: no file no_such.csv
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
    said = " ".join(str(error).replace(str(path.absolute()), path.name).split()).rstrip(".") or type(error).__name__
    # Arrow may quote a record at length.
    said = said if len(said) < 100 else f"{said[:95]}..."
    whole = "; is it whole, and what its name says? copy it again, or rename it" if kind or path.suffix in PACKED else ""
    return BadRecords(f"{path} cannot be read{kind}: {said}{whole}")
