"""The parts of the program that import torch, which takes a while: after a mistake in a setting is told."""

from __future__ import annotations

import importlib
from types import ModuleType

from lightning_dpgen.runs.interrupts import leaving_at_once


def imported(name: str) -> ModuleType:
    """Return a module of the program."""
    with leaving_at_once():
        return importlib.import_module(f"lightning_dpgen.cli.{name}")
