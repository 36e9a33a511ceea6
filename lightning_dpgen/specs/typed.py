"""Numbers of a command line that know how they were typed: 2024_11 and 1e3 are numbers to Hydra, and may be names."""

from __future__ import annotations

from typing import Any


class _Whole(int):
    typed: str


class _Real(float):
    typed: str


def as_typed(value: Any, text: str) -> Any:
    """Return a number that knows its text; any other value as it is.

    Example:
        >>> typed(as_typed(1000.0, "1e3")), as_typed(1000.0, "1e3") == 1000, as_typed(None, "null")
        ('1e3', True, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    number = _Whole(value) if isinstance(value, int) else _Real(value)
    number.typed = text
    return number


def typed(value: Any) -> str:
    """Return the text of a number as it was typed, or as Python has it.

    Example:
        >>> typed(1000.0)
        '1000.0'
    """
    return getattr(value, "typed", str(value))
