"""The first bytes of files that are no text, by which one with the name of a file of text is told."""

from __future__ import annotations

import re
from pathlib import Path

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
    found = next((kind for begins, kind in _BEGINNINGS.items() if re.match(begins, first, re.DOTALL)), None)
    if found is None:
        return None
    what, ending = found
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
