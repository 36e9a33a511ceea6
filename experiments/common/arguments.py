"""Numbers in the commands of experiments, which are checked before anything is read or computed."""

from __future__ import annotations

import argparse
import math


def read_count(text: str) -> int:
    """Read a whole number of 1 or more, as the type of an argument.

    Raises:
        argparse.ArgumentTypeError: for other text.

    Example:
        >>> read_count("3")
        3
        >>> read_count("0")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: '0': expected a whole number of 1 or more
    """
    try:
        found = int(text)
    except ValueError:
        found = 0
    if found < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of 1 or more")
    return found


def read_positive(text: str) -> float:
    """Read a number above 0, such as an epsilon, as the type of an argument.

    Raises:
        argparse.ArgumentTypeError: for other text.

    Example:
        >>> read_positive("0.3")
        0.3
    """
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not found > 0.0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return found
