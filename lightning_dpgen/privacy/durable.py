"""Files that are there whole or not at all, after a crash of the program or of the machine."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import torch

from lightning_dpgen.privacy.errors import DamagedState
from lightning_dpgen.privacy.folders import owner_only, sync_folder


def save(path: Path, value: Any) -> None:
    """Write tensors and plain values to `path`, replacing what is there in one move; its owner alone may read it.

    Raises:
        OSError: if they cannot be written; what was there stays.
    """
    content = io.BytesIO()
    torch.save(value, content)
    write(path, content.getbuffer())


def write(path: Path, content: bytes | memoryview) -> None:
    """Write bytes as `save` writes values."""
    part = partial_path(path)
    with open(part, "wb", opener=owner_only) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    sync_folder(path.parent)


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
