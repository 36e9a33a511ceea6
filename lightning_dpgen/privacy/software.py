"""The software that a run is made with, whose versions a certificate names, and the place of this process in its run."""

from __future__ import annotations

import functools
import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from lightning_dpgen.privacy.errors import NotInstalled

_PACKAGES = ("lightning_dpgen", "torch", "opacus", "dp-accounting", "cryptography", "numpy")
# Those of which an installation has some: Lightning comes in two packages, and the engine needs no scikit-learn.
_OPTIONAL = ("pytorch-lightning", "lightning", "scikit-learn")
# The variables by which launchers say it, in the order in which Lightning asks.
_SAID_BY = ("RANK", "LOCAL_RANK", "SLURM_PROCID")


def versions() -> dict[str, str]:
    """Return the versions of the packages that a release depends on, and of Python.

    Raises:
        NotInstalled: for a package that is only on the path.
    """
    known = {name: installed_version(name) for name in _PACKAGES}
    for name in _OPTIONAL:
        with suppress(NotInstalled):
            known[name] = installed_version(name)
    return known | {"python": platform.python_version()}


# Each certificate and run asks for all of them.
@functools.cache
def installed_version(name: str = "lightning_dpgen") -> str:
    """Return the version of an installed package.

    Raises:
        NotInstalled: for a package that is only on the path, such as a checkout in PYTHONPATH.
    """
    try:
        return version(name)
    except PackageNotFoundError:
        raise NotInstalled(
            f"{name} is not installed, and certificates name its version: a folder on PYTHONPATH has no version; install "
            "it (python -m pip install -e . in a checkout)"
        ) from None


def launched_as() -> int:
    """Return the rank that a launcher gave to this process (torchrun, SLURM, Lightning's own); 0 where none has."""
    rank = next((os.environ[name] for name in _SAID_BY if os.environ.get(name)), "0")
    return int(rank) if rank.isdigit() else 0
