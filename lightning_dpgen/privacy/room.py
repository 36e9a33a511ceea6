"""Room on the disk for a noisy answer, made before its access is opened: one that cannot be kept is paid for and lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.account import Account


def make_room(path: Path, value: Any, account: Account, what: str, *, size: str = "") -> None:
    """Take the room that `durable.save` of an answer of the next access uses.

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
        durable.reserve(path, value)
    except OSError as error:
        spent = "nothing more was spent" if account.ledger.accesses else "nothing was spent"
        size = size or f"{durable.room_for(value):,} bytes"
        raise OSError(
            error.errno,
            f"{error.strerror or error}, so {what} could not be kept: it takes {size}; {spent}, and the same command goes "
            "on once there is room",
            str(path.parent),
        ) from None
