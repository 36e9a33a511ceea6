"""Parts of all commands: argparse whose complaints are one line like every other, `-v`, and imports that take a while."""

from __future__ import annotations

import argparse
import gc
import logging
import re
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from lightning_dpgen.common import pace
from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.runs.interrupts import leaving_at_once
from lightning_dpgen.specs.usage_error import UsageError

VERBOSE = ("-v", "--verbose")
VERBOSE_HELP = """\
  -v, --verbose   print each step with the seconds since the start, notes of the libraries, and for a mistake the
                  traceback; to standard error, for the curator alone: how long a step takes may tell of records"""
_SHORT_HELP = "print each step with its time, notes of the libraries, and the traceback of a mistake, to standard error"


class HelpPrinted(Exception):
    """The program was asked for its help, and has nothing else to do."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `UsageError`, or `HelpPrinted`, instead of exiting."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # `without_verbose` takes it from any command line; here it is named in the help.
        self.add_argument(*VERBOSE, action="store_true", help=_SHORT_HELP)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise HelpPrinted

    def error(self, message: str) -> None:
        raise UsageError(f"{message}{self._near(message)} ({self.format_usage().strip()})")

    def _near(self, message: str) -> str:
        """Return the nearest word that is known, after a message of argparse's about one that is not."""
        if match := re.search(r"unrecognized arguments: (-\S+)", message):
            known = [option[2:] for option in self._option_string_actions if option.startswith("--")]
            return suggest(match[1].partition("=")[0].lstrip("-"), known, "--{}", shortened=True)
        if match := re.search(r"argument (\S+): invalid choice: '(.*?)'", message):
            names = match[1].split("/")
            action = next(action for action in self._actions if names[0] in (action.dest, *action.option_strings))
            return suggest(match[2], action.choices or (), shortened=True)
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


class _LineFormatter(logging.Formatter):
    """Formats a record as one line: seconds since the start, and who says it."""

    def __init__(self, begin: float) -> None:
        super().__init__()
        self._begin = begin

    def format(self, record: logging.LogRecord) -> str:
        text = " ".join(record.getMessage().split())
        whose = "" if record.name.startswith("lightning_dpgen") else f"{record.name}: "
        return f"[{record.created - self._begin:7.2f} s] {whose}{text}"


def without_verbose(argv: Sequence[str]) -> tuple[list[str], bool]:
    """Return the words of a command line but `-v`, and whether it was among them.

    Example:
        >>> without_verbose(["train", "-v", "seed=1"])
        (['train', 'seed=1'], True)
    """
    words = [word for word in argv if word not in VERBOSE]
    return words, len(words) < len(argv)


@contextmanager
def verbose_logging(asked: bool) -> Iterator[None]:
    """Print what `-v` prints while the command runs, where it was asked for."""
    if not asked:
        yield
        return
    root, ours = logging.getLogger(), logging.getLogger("lightning_dpgen")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LineFormatter(time.time()))
    levels = root.level, ours.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    ours.setLevel(logging.DEBUG)
    try:
        yield
    except Exception:
        traceback.print_exc()
        raise
    finally:
        root.removeHandler(handler)
        root.setLevel(levels[0])
        ours.setLevel(levels[1])


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
