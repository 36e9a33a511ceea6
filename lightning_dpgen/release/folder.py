"""Where a release lies: given its own folder, or the run that made it."""

from __future__ import annotations

from pathlib import Path

RELEASE = "release"


def release_folder(path: str | Path) -> Path:
    """The folder of a release, given it or the folder of the run that holds it.

    Example:
        >>> release_folder("somewhere").as_posix()        # no run: the release itself, there or not
        'somewhere'
    """
    folder = Path(path)
    return folder / RELEASE if (folder / RELEASE).is_dir() else folder
