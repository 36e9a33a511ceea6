"""A folder of blocks that one process at a time uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import filelock

from lightning_dpgen.privacy.chain import hold


class HeldFolder:
    """The base of what keeps files of blocks in a folder. The lock lies beside the folder, so that it outlasts it.

    Args:
        folder: the place of the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: filelock.FileLock | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process reads for the one that holds the folder.
        return self.__dict__ | {"_lock": None}

    def hold(self) -> None:
        """Keep other processes from the folder until `close`, or until this process ends.

        Raises:
            filelock.Timeout: if another one uses it.
        """
        if self._lock is None:
            lock = hold(self._folder)
            lock.acquire()
            self._lock = lock

    def close(self) -> None:
        """Leave the folder to others."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
