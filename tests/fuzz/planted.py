"""Targets with a planted fault, which show that the suite finds such faults."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from .targets import Target


def _crash(path: Path) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _hang(path: Path) -> None:
    while True:
        pass


def _hoard(path: Path) -> None:
    _ = bytearray(400 << 20)


def _fail(path: Path) -> None:
    raise KeyError("x")


def _refuse(path: Path) -> None:
    raise ValueError("")


_FAULTS = {
    "a crash": _crash,
    "a hang": _hang,
    "too much memory": _hoard,
    "a wrong error": _fail,
    "an error without words": _refuse,
}


def planted(title: str) -> Target:
    """Return a target that reads everything but one input."""

    def read(path: Path) -> None:
        if path.read_bytes() == b"bad":
            _FAULTS[title](path)

    return Target(read, (ValueError,), seconds=0.3, megabytes=100)


TITLES = tuple(_FAULTS)
