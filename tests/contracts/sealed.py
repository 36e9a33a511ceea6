"""Certificates that were changed, and sealed again by the one who changed them."""

import json
from collections.abc import Callable
from pathlib import Path

from lightning_dpgen.release.certificate import digest, statement


def rewrite(release: Path, change: Callable[[dict], object], *, seal: bool = True) -> None:
    """Change the certificate of a release; with `seal`, its statement and digest too."""
    path = release / "privacy.json"
    certificate = json.loads(path.read_text())
    change(certificate)
    if seal:
        certificate["statement"] = statement(certificate)
        certificate["digest"] = digest(certificate)
    path.write_text(json.dumps(certificate))
