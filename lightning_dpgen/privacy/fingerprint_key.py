"""The key of the fingerprints in all studies of a folder."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from lightning_dpgen.common.folders import read_plain
from lightning_dpgen.privacy import chain, durable
from lightning_dpgen.privacy.errors import LedgerError

KEY = "fingerprint.key"
_KEY_BYTES = 16
# For a file that is read only to see whether it is a key.
_LARGEST_FILE = 2**26
# Seconds that a run waits for another one to write the key.
_PATIENCE = 60.0


def fingerprint_key(folder: Path) -> str:
    """Return the key of the fingerprints in all studies of a folder, made if there is none; it stays on the machine.

    Raises:
        LedgerError: if it is damaged.
        OSError: if it is no plain file, or cannot be read.
    """
    path = folder / KEY
    with chain.hold(path, _PATIENCE):
        if not os.path.lexists(path):
            durable.write(path, secrets.token_hex(_KEY_BYTES).encode())
        key = _read_key(path)
    if key is None:
        raise LedgerError(f"{path}: is not a key of fingerprints, or only a part of one; delete it, and another is made")
    return key


def known_key(folder: Path) -> str | None:
    """Return the same key, where a study has made one; nothing in the folder is made, locked or changed."""
    try:
        return _read_key(folder / KEY)
    except OSError:
        return None


def _read_key(path: Path) -> str | None:
    key = read_plain(path, _LARGEST_FILE)
    return key.decode() if re.fullmatch(rb"[0-9a-f]{%d}" % (2 * _KEY_BYTES), key) else None
