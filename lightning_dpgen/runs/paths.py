"""The place that is asked for as a run's folder: refused, where it is none, before anything heavy is imported."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lightning_dpgen.release.files import CERTIFICATE, IN_RELEASE, RELEASE, lies_in_release
from lightning_dpgen.specs.usage_error import UsageError

PRIVATE = "private"
# In the private folder: encoded records and exact sums of a table that is read in blocks.
BLOCKS = "blocks"
# In the private folder of a sweep.
JOBS = "jobs.json"


def check_run_dir(root: Path) -> None:
    """Refuse a place that holds a finished release, or cannot be a run's folder; nothing is created.

    Encoded records of a run that was killed once its release was there are removed.

    Raises:
        UsageError: naming the place.
    """
    release = root / RELEASE
    if (release / CERTIFICATE).is_file():
        remove_blocks(root)
        raise UsageError(f"run_dir={root}: holds a finished release already; choose another run_dir")
    if lies_in_release(release):
        raise UsageError(f"run_dir={root}: {IN_RELEASE}")
    if os.path.lexists(release):
        raise UsageError(
            f"run_dir={root}: {RELEASE} is {kind_of_place(release)} and no finished release, where one is put when it is "
            "complete: remove it, or choose another run_dir"
        )
    there = next((path for path in (root, *root.parents) if os.path.lexists(path)), None)
    if there is not None and not os.path.isdir(there):
        which = "" if there == root else f"{there} "
        raise UsageError(f"run_dir={root}: {which}is {kind_of_place(there)}; expected a folder to be created")


def remove_blocks(root: Path) -> None:
    """Remove the encoded records in a run's folder, which no pass reads any more."""
    # Links are not the run's, and are not followed.
    if not (root / PRIVATE).is_symlink():
        shutil.rmtree(root / PRIVATE / BLOCKS, ignore_errors=True)


def check_no_sweep(root: Path) -> None:
    """Refuse the folder of a sweep, where one run is asked for.

    Raises:
        UsageError: naming the place.
    """
    if (root / PRIVATE / JOBS).exists():
        raise UsageError(f"run_dir={root}: holds a sweep, which dpgen train -m goes on with; choose another run_dir")


def kind_of_place(path: Path) -> str:
    """Return what stands at a path, in words."""
    if path.is_symlink():
        return "a symbolic link"
    return "a folder" if path.is_dir() else "a file" if path.is_file() else "neither a file nor a folder"
