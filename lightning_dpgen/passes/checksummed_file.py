"""Files that end with a checksum of their name and of all before it.

A bit that was changed is noticed when they are read, and so is a file that was put in the place of another one.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from lightning_dpgen.privacy import durable

_DIGEST = 16
# A line break and the digits of the checksum.
LENGTH = 1 + 2 * _DIGEST
_AT_ONCE = 2**22
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")


def write(path: Path, parts: Iterable[bytes | memoryview], key: bytes = b"") -> str:
    """Write a file whole or not at all, its owner's alone, and return its checksum.

    Args:
        parts: the content, one after the other.
        key: at most 64 bytes; a file of another key counts as damaged.

    Raises:
        OSError: if it cannot be written; nothing is left in part.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "file"
        ...     written = write(path, [b"some", b" bytes"])
        ...     read(path), find(path) == written, find(path, key=b"other"), read(path.with_name("gone"))
        (b'some bytes', True, None, None)
    """
    content = b"".join(parts)
    digest = _begun(path, key)
    digest.update(content)
    seal = digest.hexdigest()
    try:
        durable.write(path, content + _ending(seal))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    return seal


def read(path: Path, key: bytes = b"") -> bytes | None:
    """Return the content of a file; None where it is missing, not what was written there, or of another key.

    Raises:
        OSError: from the disk.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    own, digest = content[:-LENGTH], _begun(path, key)
    digest.update(own)
    return own if content[len(own) :] == _ending(digest.hexdigest()) else None


def find(path: Path, key: bytes = b"") -> str | None:
    """Return the checksum of a file, with a piece of it in memory at a time; None where `read` returns None."""
    digest = _begun(path, key)
    try:
        with open(path, "rb") as file:
            rest = os.fstat(file.fileno()).st_size - LENGTH
            while rest > 0 and (piece := file.read(min(rest, _AT_ONCE))):
                digest.update(piece)
                rest -= len(piece)
            whole = rest == 0 and file.read() == _ending(digest.hexdigest())
    except FileNotFoundError:
        return None
    return digest.hexdigest() if whole else None


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table as a file of Arrow; see `write`."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_LZ4) as stream:
        stream.write_table(table)
    write(path, [memoryview(sink.getvalue())])


def read_table(path: Path) -> pa.Table | None:
    """Return the table in a file; None where `read` returns None."""
    content = read(path)
    return None if content is None else pa.ipc.open_stream(content).read_all()


@dataclass(frozen=True)
class BlockFiles:
    """One array for each block of records, in a file that its owner alone may read. Private.

    Args:
        folder: a private one that is there, which all processes see by the same path.
        name: of the arrays; files of other arrays in the folder have other names.
        about: at most 64 bytes that tell what the arrays follow from; a file about something else counts as missing.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = BlockFiles(Path(folder), "clusters", b"centres 1")
        ...     files.write(0, np.array([3, 1]))
        ...     files.read(0), files.read(2), BlockFiles(Path(folder), "clusters", b"centres 2").read(0)
        (array([3, 1]), None, None)
    """

    folder: Path
    name: str
    about: bytes

    def path(self, start: int) -> Path:
        """Return the file of the block that begins at a position."""
        return self.folder / f"{self.name}-{start}.npy"

    def write(self, start: int, array: np.ndarray) -> None:
        """Keep the array of a block.

        Raises:
            OSError: from the disk; nothing is left in part.
        """
        content = io.BytesIO()
        np.save(content, array)
        write(self.path(start), [content.getbuffer()], self.about)

    def read(self, start: int) -> np.ndarray | None:
        """Return the array of a block; None where it is missing or damaged.

        Raises:
            OSError: from the disk.
        """
        content = read(self.path(start), self.about)
        return None if content is None else np.load(io.BytesIO(content), allow_pickle=False)


def _begun(path: Path, key: bytes) -> hashlib.blake2b:
    # No name holds a byte of zero.
    return hashlib.blake2b(path.name.encode() + b"\0", digest_size=_DIGEST, key=key)


def _ending(seal: str) -> bytes:
    return f"\n{seal}".encode()
