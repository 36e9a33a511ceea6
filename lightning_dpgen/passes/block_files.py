"""Arrays of blocks in sealed files, which all processes of a pass write and read in the place of memory."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lightning_dpgen.passes import sealed


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
        sealed.write(self.path(start), [content.getbuffer()], self.about)

    def read(self, start: int) -> np.ndarray | None:
        """Return the array of a block; None where it is missing or damaged.

        Raises:
            OSError: from the disk.
        """
        content = sealed.read(self.path(start), self.about)
        return None if content is None else np.load(io.BytesIO(content), allow_pickle=False)
