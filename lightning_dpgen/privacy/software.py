"""The software that a run is made with: versions that a certificate names, the same in all processes of a run."""

from __future__ import annotations

import platform
from importlib.metadata import version

_PACKAGES = (
    "lightning_dpgen", "torch", "pytorch-lightning", "opacus", "dp-accounting", "cryptography", "numpy", "scikit-learn",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Return the versions of the packages that a release depends on, and of Python."""
    return {name: version(name) for name in _PACKAGES} | {"python": platform.python_version()}
