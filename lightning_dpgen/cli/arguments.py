"""Ordinary command lines: argparse whose complaints are one line like every other."""

from __future__ import annotations

import argparse
import re
from typing import Any, NoReturn

from lightning_dpgen.cli import verbose
from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.specs.usage_error import UsageError


class HelpPrinted(Exception):
    """The program was asked for its help, and has nothing else to do."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `UsageError`, or `HelpPrinted`, instead of exiting."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # The program takes it from any command line; here it is told of.
        self.add_argument(*verbose.FLAGS, action="store_true", help=verbose.SHORT_HELP)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise HelpPrinted

    def error(self, message: str) -> None:
        raise UsageError(f"{message}{self._near(message)} ({self.format_usage().strip()})")

    def _near(self, message: str) -> str:
        """Return the nearest word that is known, after a message of argparse's about one that is not."""
        if found := re.search(r"unrecognized arguments: (-\S+)", message):
            known = [option[2:] for option in self._option_string_actions if option.startswith("--")]
            return suggest(found[1].partition("=")[0].lstrip("-"), known, "--{}", shortened=True)
        if found := re.search(r"argument (\S+): invalid choice: '(.*?)'", message):
            names = found[1].split("/")
            action = next(own for own in self._actions if own.dest == names[0] or names[0] in own.option_strings)
            return suggest(found[2], action.choices or (), shortened=True)
        return ""


def whole_number(text: str) -> int:
    """Return a whole number, 0 or more."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, 0 or more")
    return value
