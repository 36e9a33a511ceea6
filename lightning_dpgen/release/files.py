"""A release on disk: its folder, its files by their names, and the certificate as it is read, unchecked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning_dpgen.common.folders import place_of
from lightning_dpgen.release.drawing.opened import read_json_file

CERTIFICATE, MODEL, WEIGHTS = "privacy.json", "model.json", "model.safetensors"
SYNTHETIC, SHEET, PROJECTED = "synthetic.parquet", "samples.png", "projected.parquet"
FIGURE, ANSWERS = "fidelity.json", "answers.csv"
# In the private folder beside a release.
EVALUATION = "evaluation.json"
# The signature of the certificate, which may be added to a release, and is therefore not among the files that it hashes.
SIGNATURE = f"{CERTIFICATE}.sig"
RELEASE = "release"
# In the private folder of a run: what it has warned of because of its records.
WARNINGS = "warnings.json"
# Why a new file is refused where `lies_in_release`.
IN_RELEASE = "lies in a release, whose files its certificate lists; choose another folder"
REPORT, CARD, CROISSANT = "report.html", "README.md", "croissant.json"


class NotARelease(ValueError):
    """The folder holds no certificate, or no model, that can be read."""


def read_certificate(folder: Path) -> dict[str, Any]:
    """Read the certificate of a release, unchecked.

    Raises:
        NotARelease: if it is missing or is not a JSON object.
    """
    path = folder / CERTIFICATE
    if not folder.is_dir():
        raise NotARelease(f"{folder} is not a folder: expected a release")
    if not path.is_file() or path.is_symlink():
        raise NotARelease(f"{folder} is not a release: it holds no {CERTIFICATE} that is an ordinary file")
    try:
        return read_json_file(path)
    except (ValueError, OSError) as error:
        raise NotARelease(f"{path} is not a certificate: {error}") from None


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
