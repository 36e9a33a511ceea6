"""Text that people read: names and values on one line, so that none of it looks like a line of this software; tables."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

# Control characters, and separators of lines and paragraphs.
_REFUSED = ("Cc", "Zl", "Zp")
# The longest name, as a certificate shows it.
LONGEST_NAME = 200
# The letters of a value, and of all values that one list of a message shows.
_LETTERS, _ROOM = 40, 80


def is_plain(text: str) -> bool:
    r"""Return whether a text has no line break and no other control character.

    Example:
        >>> is_plain("one household"), is_plain("one\nverdict: good")
        (True, False)
    """
    return not any(unicodedata.category(character) in _REFUSED for character in text)


def check_plain(argument: str, text: str) -> None:
    """Refuse a text that `is_plain` does not accept.

    Raises:
        ValueError: naming the argument.
    """
    if not is_plain(text):
        raise ValueError(f"{argument}={text[:60]!r}: expected text on one line, without control characters")


def is_legible(text: Any) -> bool:
    r"""Return whether a value is a name that people can read: one line of 1 to 200 characters, each of which is seen.

    Example:
        >>> is_legible("census sample of 1990"), is_legible(" "), is_legible("census\u200b")
        (True, False, False)
    """
    return isinstance(text, str) and bool(text.strip()) and len(text) <= LONGEST_NAME and text.isprintable()


def check_legible(argument: str, text: Any) -> None:
    """Refuse what is no name by `is_legible`.

    Raises:
        ValueError: naming the argument.
    """
    if not is_legible(text):
        raise ValueError(
            f"{argument}={repr(text)[:60]}: expected a name, 1 to {LONGEST_NAME} characters on one line, all seen"
        )


def say_count(count: int, noun: str) -> str:
    """Return how many there are of something, in words.

    Example:
        >>> say_count(1, "record"), say_count(1200, "record")
        ('1 record', '1,200 records')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def say_epochs(steps: float, rate: float) -> str:
    """Return how many epochs so many steps are: a record is expected once in 1 / `rate` of them.

    Example:
        >>> say_epochs(2000, 0.00425), say_epochs(40, 0.025), say_epochs(500_000, 0.01)
        ('8.5 epochs', '1 epoch', '5,000 epochs')
    """
    number = steps * rate
    text = f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"
    return f"{text} epoch{'s' * (text != '1')}"


def say_steps(steps: int, rate: float) -> str:
    """Return how many steps there are, with their epochs where a step takes a part of the records.

    Args:
        rate: the probability with which a record takes part in a step.

    Example:
        >>> say_steps(2000, 0.00425), say_steps(1, 1.0)
        ('2,000 steps (8.5 epochs)', '1 step')
    """
    return say_count(steps, "step") + (f" ({say_epochs(steps, rate)})" if rate < 1.0 else "")


def listed(values: Iterable[Any], most: int = 10) -> str:
    """Return names or values as a message lists them: as many as one line has room for, and how many more there are.

    Args:
        values: at least one; text that is long, or cannot be printed, is cut and in quotes. Text with a comma is in quotes.
        most: how many are listed, at most.

    Example:
        >>> listed(["age", "sex"]), listed(range(2000), most=3)
        ('age, sex', '0, 1, 2 and 1,997 more')
        >>> listed(["name, first", "sex"])
        "'name, first', sex"
    """
    values = list(values)
    parts: list[str] = []
    for value in values[:most]:
        text = str(value)
        if not text.isprintable() or len(text) > _LETTERS:
            text = f"{repr(text)[: _LETTERS - 3]}..."
        elif "," in text and text[0] not in "'\"":
            text = repr(text)
        if parts and len(", ".join([*parts, text])) > _ROOM:
            break
        parts.append(text)
    rest = len(values) - len(parts)
    return ", ".join(parts) + (f" and {rest:,} more" if rest else "")


def align_columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as text, a line under the first.

    Example:
        >>> print(align_columns([("stage", "epsilon"), ("train", "0.9")]))
        stage  epsilon
        -----  -------
        train  0.9
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(lines)
