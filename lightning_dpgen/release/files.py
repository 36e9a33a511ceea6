"""The files of a release by their names, and the certificate as it is read, unchecked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning_dpgen.release.drawing.opened import read_json_file

CERTIFICATE, MODEL, WEIGHTS = "privacy.json", "model.json", "model.safetensors"
SYNTHETIC, SHEET, PROJECTED = "synthetic.parquet", "samples.png", "projected.parquet"
FIGURE, ANSWERS = "fidelity.json", "answers.csv"
# The signature of the certificate, which may be added to a release, and is therefore not among the files that it hashes.
SIGNATURE = f"{CERTIFICATE}.sig"
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
