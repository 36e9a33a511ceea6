"""Ordinary command lines: argparse whose complaints are one line like every other."""

from __future__ import annotations

import argparse

from lightning_dpgen.specs.usage_error import UsageError


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `UsageError` instead of exiting."""

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
