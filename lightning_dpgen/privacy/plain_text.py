"""Text that is published: on one line, so that none of it looks like a line of the software's own."""

from __future__ import annotations

import unicodedata

# Control characters, and separators of lines and paragraphs.
_REFUSED = ("Cc", "Zl", "Zp")


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
