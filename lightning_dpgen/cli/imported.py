"""The parts of the program that take a while to import: a command, and the rest of it once its arguments are checked."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from lightning_dpgen.common import pace
from lightning_dpgen.runs.interrupts import leaving_at_once


def imported(name: str) -> ModuleType:
    """Return a module of the program."""
    with loading():
        return importlib.import_module(f"lightning_dpgen.cli.{name}")


@contextmanager
def loading() -> Iterator[None]:
    """Show that the program is loading, end at once where it is interrupted, and look for no garbage meanwhile."""
    with pace.stage("loading the program"), leaving_at_once(), _not_collecting():
        yield


@contextmanager
def _not_collecting() -> Iterator[None]:
    """Look for no garbage: what is imported stays, and going through it again and again is an eighth of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
