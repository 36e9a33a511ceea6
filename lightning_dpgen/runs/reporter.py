"""Reporters hear what a run has to say: the person at a terminal, or the program that called."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Protocol


def warn(text: str | None) -> None:
    """Print one line on standard error, if there is something to say."""
    if text:
        print(f"dpgen: warning: {text}", file=sys.stderr)


class Reporter(Protocol):
    """Hears what a run says.

    Attributes:
        bar: whether to show how far a training is, by `privacy.pace`.
    """

    bar: bool

    def say(self, text: str | None) -> None:
        """Say something worth knowing, such as the plan or what was read; nothing where it is None."""

    def warn(self, text: str | None) -> None:
        """Warn of something that may have to change; of nothing where it is None."""


class TerminalReporter:
    """Prints.

    Attributes:
        warned: all warnings.
    """

    bar = True

    def __init__(self) -> None:
        self.warned: list[str] = []

    def say(self, text: str | None) -> None:
        if text:
            print(text, flush=True)

    def warn(self, text: str | None) -> None:
        warn(text)
        self.warned += [text] if text else []


class SilentReporter:
    """The reporter of all ranks but the first: they would say the same."""

    bar = False

    def say(self, text: str | None) -> None:
        pass

    warn = say


class LogReporter:
    """Logs to ``lightning_dpgen``, and warns as Python does; prints nothing.

    Args:
        bar: whether to show how far a training is.
    """

    def __init__(self, bar: bool) -> None:
        self.bar = bar

    def say(self, text: str | None) -> None:
        if text:
            logging.getLogger("lightning_dpgen").info(text)

    def warn(self, text: str | None) -> None:
        if text:
            warnings.warn(text, stacklevel=2)
