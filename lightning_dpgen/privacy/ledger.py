"""The ledger: an append-only file of every access, written before the noise of the access is drawn."""

from __future__ import annotations

import json
import os
import secrets
from datetime import UTC, datetime
from pathlib import Path

from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.errors import LedgerError

FORMAT_VERSION = 1


class Ledger:
    """What was drawn from the records, as JSON lines with random ids.

    Lines are written and fsynced in blocks ahead of the draws, so a crash over-counts and never under-counts. A clean
    `close` names the lines that were written ahead and never drawn.

    Args:
        path: a file that must not exist yet; None keeps the ledger in memory (tests, notebooks).

    Raises:
        FileExistsError: if there is a ledger already.

    Example:
        >>> ledger = Ledger()
        >>> ledger.write(Access("mean", {"sum": 2.0}))
        >>> ledger.accesses
        [(Access(stage='mean', multipliers=mappingproxy({'sum': 2.0}), rate=1.0, kinds=mappingproxy({})), 1)]
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._file = None if path is None else open(path, "x", encoding="utf-8")  # noqa: SIM115
        self._ahead: list[tuple[str, Access]] = []
        self._drawn: list[tuple[Access, int]] = []
        self._closed = False
        self._append([{"ledger": FORMAT_VERSION, "opened": datetime.now(UTC).isoformat(timespec="seconds")}])

    @property
    def accesses(self) -> list[tuple[Access, int]]:
        """What was drawn so far, run-length encoded, in order."""
        return list(self._drawn)

    def write(self, access: Access, ahead: int = 1) -> None:
        """Record one access; noise may be drawn once this returns.

        Args:
            access: what is about to be drawn.
            ahead: if no line is waiting, write this many equal ones at once (a block), for the accesses to come.

        Raises:
            LedgerError: if the ledger is closed: its last line says that nothing else was drawn.
        """
        if self._closed:
            raise LedgerError(f"stage {access.stage!r}: the ledger is closed, so nothing more may be drawn in this run")
        if not self._ahead:
            lines = [(secrets.token_hex(8), access) for _ in range(ahead)]
            self._append([{"id": identity, **line.as_json()} for identity, line in lines])
            self._ahead = lines[::-1]
        elif self._ahead[-1][1] != access:
            identity = secrets.token_hex(8)
            self._append([{"id": identity, **access.as_json()}])
            self._ahead.append((identity, access))
        self._ahead.pop()
        if self._drawn and self._drawn[-1][0] == access:
            self._drawn[-1] = (access, self._drawn[-1][1] + 1)
        else:
            self._drawn.append((access, 1))

    def count(self, stage: str) -> int:
        """How many accesses of a stage were drawn."""
        return sum(count for access, count in self._drawn if access.stage == stage)

    def close(self) -> None:
        """Write the last line, with the ids of entries that nothing was drawn on; nothing can be written after it."""
        if self._closed:
            return
        self._closed = True
        drawn = sum(count for _, count in self._drawn)
        self._append([{"closed": drawn, "never_drawn": [identity for identity, _ in self._ahead]}])
        if self._file is not None:
            self._file.close()

    def _append(self, lines: list[dict]) -> None:
        if self._file is None:
            return
        self._file.write("".join(json.dumps(line) + "\n" for line in lines))
        self._file.flush()
        os.fsync(self._file.fileno())
