"""Ordinary command lines: argparse whose complaints are one line like every other."""

from __future__ import annotations

import argparse
from typing import NoReturn

from lightning_dpgen.specs.usage_error import UsageError


class HelpPrinted(Exception):
    """The program was asked for its help, and has nothing else to do."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `UsageError`, or `HelpPrinted`, instead of exiting."""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise HelpPrinted

    def error(self, message: str) -> None:
        raise UsageError(f"{message} ({self.format_usage().strip()})")


def whole_number(text: str) -> int:
    """Return a whole number, 0 or more."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, 0 or more")
    return value
