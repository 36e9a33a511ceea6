"""The folder of a release, given that folder or the run that made it."""

from __future__ import annotations

from pathlib import Path

from lightning_dpgen.common.folders import place_of
from lightning_dpgen.release.files import CERTIFICATE, MODEL

RELEASE = "release"
# In the private folder of a run: what it has warned of because of its records.
WARNINGS = "warnings.json"


# Why a new file is refused where `lies_in_release`.
IN_RELEASE = "lies in a release, whose files its certificate lists; choose another folder"


def lies_in_release(place: Path) -> bool:
    """Tell whether a new file would lie in a release, whose certificate lists its files: `verify` refuses any other one."""
    folder = place.absolute().parent.resolve()
    return any((own / CERTIFICATE).is_file() for own in (folder, *folder.parents))


def release_folder(path: str | Path) -> Path:
    """Return the folder of a release, given it or the folder of the run that holds it.

    A folder that holds a certificate or a model is a release, whatever lies within: another release inside it is not
    checked in its place.

    Example:
        >>> release_folder("somewhere").name        # no run: the release itself, there or not
        'somewhere'
    """
    folder = place_of(path)
    is_run = (folder / RELEASE).is_dir() and not any((folder / name).exists() for name in (CERTIFICATE, MODEL))
    return folder / RELEASE if is_run else folder
