"""The rank that a launcher has given to this process; nothing heavy is imported to ask for it."""

from __future__ import annotations

import os

# The variables by which launchers say it, in the order in which Lightning asks.
_SAID_BY = ("RANK", "LOCAL_RANK", "SLURM_PROCID")


def launched_as() -> int:
    """Return the rank that a launcher gave to this process (torchrun, SLURM, Lightning's own); 0 where none has."""
    said = next((os.environ[name] for name in _SAID_BY if os.environ.get(name)), "0")
    return int(said) if said.isdigit() else 0
