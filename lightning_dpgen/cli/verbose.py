"""`-v`: each step of a command with the time since its start, notes of the libraries, and where a mistake was found."""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

FLAGS = ("-v", "--verbose")
HELP = """  -v, --verbose   print each step with the seconds since the start, notes of the libraries, and for a mistake the
                  traceback; to standard error, for the curator alone: how long a step takes may tell of records"""
SHORT_HELP = "print each step with its time, notes of the libraries, and the traceback of a mistake, to standard error"


class _Lines(logging.Formatter):
    """Formats a record as one line: seconds since the start, and who says it."""

    def __init__(self, begin: float) -> None:
        super().__init__()
        self._begin = begin

    def format(self, record: logging.LogRecord) -> str:
        text = " ".join(record.getMessage().split())
        whose = "" if record.name.startswith("lightning_dpgen") else f"{record.name}: "
        return f"[{record.created - self._begin:7.2f} s] {whose}{text}"


def without_flags(argv: Sequence[str]) -> tuple[list[str], bool]:
    """Return the words of a command line but `-v`, and whether it was among them.

    Example:
        >>> without_flags(["train", "-v", "seed=1"])
        (['train', 'seed=1'], True)
    """
    words = [word for word in argv if word not in FLAGS]
    return words, len(words) < len(argv)


@contextmanager
def told(asked: bool) -> Iterator[None]:
    """Print what `-v` prints while the command runs, where it was asked for."""
    if not asked:
        yield
        return
    root, own = logging.getLogger(), logging.getLogger("lightning_dpgen")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(time.time()))
    levels = root.level, own.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    own.setLevel(logging.DEBUG)
    try:
        yield
    except Exception:
        traceback.print_exc()
        raise
    finally:
        root.removeHandler(handler)
        root.setLevel(levels[0])
        own.setLevel(levels[1])
