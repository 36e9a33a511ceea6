"""Files that are there whole or not at all, after a crash of the program or of the machine."""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lightning_dpgen.common.folders import owner_only, sync_folder
from lightning_dpgen.privacy.errors import DamagedState

if TYPE_CHECKING:
    from lightning_dpgen.privacy.account import Account

# Bytes beyond those of a state that is like the one to come: how long its names and numbers are in a file differs a little.
_SPARE = 4096
_AT_ONCE = 2**22


def save(path: Path, value: Any) -> None:
    """Write tensors and plain values to `path`, replacing what is there in one move; its owner alone may read it.

    Raises:
        OSError: if they cannot be written; what was there stays.
    """
    write(path, _packed(value))


def write(path: Path, content: bytes | memoryview) -> None:
    """Write bytes as `save` writes values."""
    part = partial_path(path)
    _overwrite(part, [content])
    with _removed_where_it_fails(part):
        os.replace(part, path)
    sync_folder(path.parent)


def reserve(path: Path, value: Any) -> None:
    """Take the room on the disk that `save` of such a value uses, so that a full disk is told before it matters.

    Args:
        value: tensors of the shapes and types that will be saved, whatever is in them.

    Raises:
        OSError: if there is not so much room; none is taken then.
    """
    size = room_for(value)
    # A file system that compresses gives random bytes the room that they say.
    _overwrite(partial_path(path), (secrets.token_bytes(min(_AT_ONCE, size - at)) for at in range(0, size, _AT_ONCE)))


def room_for(value: Any) -> int:
    """Return the bytes that `reserve` takes."""
    return len(_packed(value)) + _SPARE


def _packed(value: Any) -> memoryview:
    content = io.BytesIO()
    torch.save(value, content)
    return content.getbuffer()


def _overwrite(part: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write over what is there, whose room on the disk stays taken meanwhile."""
    with open(part, "r+b", opener=_own_or_new) as file, _removed_where_it_fails(part):
        file.writelines(pieces)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def _own_or_new(name: str, flags: int) -> int:
    return owner_only(name, flags | os.O_CREAT)


@contextmanager
def _removed_where_it_fails(part: Path) -> Iterator[None]:
    """Remove half a file, which takes room on a disk that may be full."""
    try:
        yield
    except OSError:
        with suppress(OSError):
            part.unlink()
        raise


def partial_path(path: Path) -> Path:
    """Return the place where a file is written before it has its name."""
    return path.with_name(f"{path.name}.part")


def load(path: Path, *expected: str) -> Any:
    """Return what `save` has written; nothing in it is run.

    Args:
        expected: names that it must hold.

    Raises:
        DamagedState: if it is something else, or a part of it.
        OSError: if it cannot be read.
    """
    content = path.read_bytes()
    try:
        value = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        for name in expected:
            value[name]
        return value
    except Exception as error:  # its kind depends on where the damage is
        raise DamagedState(
            f"{path}: is not what a run has saved, or only a part of it ({type(error).__name__}). Without it a run goes on "
            "from what was saved before; what was drawn since stays spent"
        ) from None


def make_room(path: Path, value: Any, account: Account, what: str, *, size: str = "") -> None:
    """Take the room that `save` of an answer of the next access uses.

    Args:
        path: the file of the answer.
        value: as large as the answer, or larger.
        account: the account that the access is of.
        what: the answer in words, as the subject of the message.
        size: the room in words, where the number of bytes is private; empty for that number.

    Raises:
        OSError: in one line, where there is not so much room; nothing has been spent on the access.
    """
    try:
        reserve(path, value)
    except OSError as error:
        spent = "nothing more was spent" if account.ledger.accesses else "nothing was spent"
        size = size or f"{room_for(value):,} bytes"
        raise OSError(
            error.errno,
            f"{error.strerror or error}, so {what} could not be kept: it takes {size}; {spent}, and the same command goes "
            "on once there is room",
            str(path.parent),
        ) from None
