"""Checks of arguments: whole and real numbers, and names from a list."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

# Characters of a value in a message.
_LONGEST = 80


def read_whole(name: str, value: Any, *, least: int = 1, of: str = "") -> int:
    """Return a whole number of any type (numpy's, torch's) as an int.

    Args:
        name: the argument, as the message names it.
        least: the smallest number that is allowed.
        of: what is counted, such as ``" of records"``.

    Raises:
        ValueError: for anything else, a bool among it.

    Example:
        >>> import numpy as np
        >>> read_whole("n", np.int64(300))
        300
    """
    try:
        number = None if _is_bool(value) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise ValueError(f"{name}={show(value)}: expected a whole number{of}, {least} or more")
    return number


def check_number(name: str, value: Any, fits: Callable[[Any], bool], expected: str) -> None:
    """Refuse what is no real number, or one that does not fit.

    Args:
        name: the argument, as the message names it.
        fits: whether a number is allowed; it is asked for numbers alone, nan among them.
        expected: what is allowed, behind the words ``expected a number``.

    Raises:
        ValueError: naming argument and value.

    Example:
        >>> check_number("share", "a", lambda share: 0 < share < 1, "between 0 and 1")
        Traceback (most recent call last):
            ...
        ValueError: share='a': expected a number between 0 and 1
    """
    if _is_bool(value) or not isinstance(value, numbers.Real) or not fits(value):
        raise ValueError(f"{name}={show(value)}: expected a number {expected}")


def check_name(name: str, value: Any, known: Collection[str], refused: Mapping[str, str], expected: str) -> None:
    """Refuse what is none of the names that are known.

    Args:
        name: the argument, as the message names it.
        refused: names that users of other libraries know, each with the reason for which it is refused.
        expected: the names that are known, in words.

    Raises:
        ValueError: naming argument and value.
    """
    if not isinstance(value, str) or value not in known:
        why = refused.get(value) if isinstance(value, str) else None
        raise ValueError(f"{name}={str(value)[:60]!r}: {why or f'expected {expected}'}")


def show(value: Any) -> str:
    """Return a value for a message, on one line: numbers as they are written, anything else as Python writes it."""
    if isinstance(value, numbers.Real):
        return str(value)
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")
