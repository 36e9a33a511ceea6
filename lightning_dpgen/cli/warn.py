"""Warnings for the person at the terminal."""

from __future__ import annotations

import sys


def warn(text: str | None) -> None:
    """One line on standard error, if there is something to say."""
    if text:
        print(f"dpgen: warning: {text}", file=sys.stderr)
