"""The known word that is nearest to one that is not known, for messages about it: the one place that compares them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

# Ratio of difflib from which two words may be the same one, misspelled; `eps` and `epsilon` have it.
_CUTOFF = 0.6
# Words, and characters of one, that are compared: each takes a while.
_MOST_WORDS, _LONGEST = 5000, 200


def nearest(word: object, known: Iterable[object]) -> str | None:
    """Return the known word that is most like another one, upper and lower case aside; None if none is.

    Example:
        >>> nearest("eplison", ["epsilon", "delta"]), nearest("MNIST", ["mnist"]), nearest("x", ["epsilon"])
        ('epsilon', 'mnist', None)
    """
    asked = str(word)[:_LONGEST].casefold()
    words: dict[str, str] = {}
    for own, _ in zip(known, range(_MOST_WORDS), strict=False):
        words.setdefault(str(own)[:_LONGEST].casefold(), str(own))
    found = difflib.get_close_matches(asked, words, 1, cutoff=_CUTOFF)
    return words[found[0]] if found else None


def suggest(word: object, known: Iterable[object], form: str = "{}") -> str:
    """Return the end of a message about an unknown word: the nearest known one as a question, or nothing.

    Args:
        form: the known word as a person writes it, ``{}`` for itself.

    Example:
        >>> suggest("mnst", ["digits", "mnist"], "data={}"), suggest("zzz", ["digits"])
        ('; did you mean data=mnist?', '')
    """
    found = nearest(word, known)
    # A name of another's file must not look like a line of its own.
    return "" if found is None or not found.isprintable() else f"; did you mean {form.format(found)}?"


def suggest_file(path: Path) -> str:
    """Return the same for a path at which there is nothing: what lies beside it under the nearest name."""
    try:
        names = [own.name for own, _ in zip(path.parent.iterdir(), range(_MOST_WORDS), strict=False)]
    except OSError:
        return ""
    found = nearest(path.name, names)
    return "" if found is None or not found.isprintable() else f"; did you mean {path.with_name(found)}?"
