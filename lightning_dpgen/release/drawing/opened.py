"""Files of a release, which may come from anybody: only an ordinary one is opened, no larger than ours are."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from lightning_dpgen.common.strict_json import MOST_BYTES, read_object

# Bytes of all files of a release together, of which a hash takes ten seconds on a slow machine; `check_written` refuses
# more.
MOST_BYTES_IN_ALL = 5 << 29
# Opening does not wait, and the file is not inherited, on systems that know these flags.
_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))


def open_ordinary(path: Path, most_bytes: int = MOST_BYTES_IN_ALL, *, links: bool = False) -> BinaryIO:
    """Open an ordinary file of no more than so many bytes; a pipe or a device may never end, and is not opened at all.

    Args:
        links: whether a link to such a file is followed. A cache of downloads is made of links; in a release that is
            checked they may lead out of it.

    Raises:
        ValueError: for anything else at that path, naming it.
    """
    try:
        _check(path, os.stat(path) if links else os.lstat(path), most_bytes)
        file = os.fdopen(os.open(path, _FLAGS | (0 if links else getattr(os, "O_NOFOLLOW", 0))), "rb")
    except OSError as error:
        raise ValueError(f"{path.name} cannot be opened: {error.strerror}") from None
    try:
        # The file may have been replaced meanwhile.
        _check(path, os.fstat(file.fileno()), most_bytes)
    except ValueError:
        file.close()
        raise
    return file


def check_ordinary(path: Path) -> None:
    """Raise ValueError for any file or link that `open_ordinary` refuses, before a library opens it by its name."""
    open_ordinary(path, links=True).close()


def read_json_file(path: Path, *, links: bool = False) -> dict[str, Any]:
    """Read the JSON object in a file of a release; a ValueError names the file and what is wrong."""
    with open_ordinary(path, MOST_BYTES, links=links) as file:
        return read_object(file, path.name)


def file_hash(path: Path) -> str:
    """Compute the sha256 of a file that `open_ordinary` opens, in hexadecimal."""
    with open_ordinary(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(path: Path, about: os.stat_result, most_bytes: int) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise ValueError(f"{path.name} is not an ordinary file")
    if about.st_size > most_bytes:
        raise ValueError(f"{path.name} has {about.st_size:,} bytes: expected at most {most_bytes:,}")
