"""The parts of the program that take a while to import: after a mistake in settings or arguments is told."""

from __future__ import annotations

import importlib
from types import ModuleType

from lightning_dpgen.runs.interrupts import leaving_at_once


def imported(name: str) -> ModuleType:
    """Return a module of the program."""
    with leaving_at_once():
        return importlib.import_module(f"lightning_dpgen.cli.{name}")
