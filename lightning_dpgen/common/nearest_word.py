"""The known word that is nearest to one that is not known, for messages about it: the one place that compares them."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable
from pathlib import Path

# Ratio of difflib from which two words may be the same one, misspelled or shortened; `eps` and `epsilon` have it.
_CUTOFF = 0.6
# Words, and characters of one, that are compared: each takes a while.
_MOST_WORDS, _LONGEST = 5000, 200
# Words that are looked at more closely, and the lengths from which on one more slip is allowed.
_CLOSE, _SLIPS = 5, (3, 6, 10)
# The endings of a file, such as .csv.gz: numbers are none.
_ENDINGS = re.compile(r"(?:\.[^\W\d]\w{0,9}){1,2}\Z")
_SEPARATORS = re.compile(r"[\s_.-]+")


def nearest(word: object, known: Iterable[object], *, shortened: bool = False) -> str | None:
    """Return the known word of which another one is a misspelling; None if there is none. Capitals do not matter.

    A slip is a letter too many, too few or wrong, or two of them exchanged: one in a word of 3 letters, 2 in one of 6, 3 in
    one of 10 and more.

    Args:
        shortened: whether the word may be a shortened one, too, as people write the few words that a program has.

    Example:
        >>> nearest("epslion", ["epsilon", "delta"]), nearest("MNIST", ["mnist"]), nearest("x", ["epsilon"])
        ('epsilon', 'mnist', None)
        >>> nearest("eps", ["epsilon"]), nearest("eps", ["epsilon"], shortened=True)
        (None, 'epsilon')
    """
    asked = str(word)[:_LONGEST].casefold()
    words: dict[str, str] = {}
    for own, _ in zip(known, range(_MOST_WORDS), strict=False):
        words.setdefault(str(own)[:_LONGEST].casefold(), str(own))
    found = difflib.get_close_matches(asked, words, 1 if shortened else _CLOSE, cutoff=_CUTOFF)
    return next((words[near] for near in found if shortened or _is_misspelled(asked, near)), None)


def suggest(word: object, known: Iterable[object], form: str = "{}", *, shortened: bool = False) -> str:
    """Return the end of a message about an unknown word: the nearest known one as a question, or nothing.

    Args:
        form: the known word as a person writes it, ``{}`` for itself.
        shortened: as for `nearest`.

    Example:
        >>> suggest("mnst", ["digits", "mnist"], "data={}"), suggest("zzz", ["digits"])
        ('; did you mean data=mnist?', '')
    """
    found = nearest(word, known, shortened=shortened)
    # A name of another's file must not look like a line of its own.
    return "" if found is None or not found.isprintable() else f"; did you mean {form.format(found)}?"


def suggest_file(path: Path) -> str:
    """Return the same for a path at which there is nothing: what lies beside it under the nearest name.

    The ending of a name tells nothing of what is meant: names are compared without it, and a file of another ending is
    suggested where the rest is the same.
    """
    try:
        # A link that leads nowhere lies beside itself.
        beside = (own.name for own in path.parent.iterdir() if own.name != path.name)
        names = list(itertools.islice(beside, _MOST_WORDS))
    except OSError:
        return ""
    asked, ending = _cut(path.name)
    # One name may have several endings: the last one that was asked for goes before a short one.
    names.sort(key=lambda name: (name.casefold().endswith(path.suffix.casefold()), -len(name), name))
    stems = {stem: name for name in names if (stem := _cut(name)[0])}
    alike = {stem: name for stem, name in ((_cut(name)[0], name) for name in names) if _cut(name)[1] == ending}
    found = alike.get(nearest(asked, alike) or "", stems.get(asked))
    return "" if found is None or not found.isprintable() else f"; did you mean {path.with_name(found)}?"


def _cut(name: str) -> tuple[str, str]:
    """Return the name of a file in small letters, without its endings, and these."""
    endings = _ENDINGS.search(name.casefold())
    place = endings.start() if endings else len(name.casefold())
    return name.casefold()[:place], name.casefold()[place:]


def _is_misspelled(word: str, known: str) -> bool:
    """Tell whether few slips lead from one word to another; see `nearest`."""
    word, known = (_SEPARATORS.sub("_", own) for own in (word, known))
    most = sum(max(len(word), len(known)) >= length for length in _SLIPS)
    return abs(len(word) - len(known)) <= most and _slips(word, known) <= most


def _slips(word: str, known: str) -> int:
    """Count the letters to insert, to leave out and to replace, and the pairs to exchange, that lead to another word."""
    before: list[int] = []
    last = list(range(len(known) + 1))
    for row, letter in enumerate(word, 1):
        line = [row]
        for column, other in enumerate(known, 1):
            least = min(last[column] + 1, line[-1] + 1, last[column - 1] + (letter != other))
            if row > 1 < column and letter == known[column - 2] and word[row - 2] == other:
                least = min(least, before[column - 2] + 1)
            line.append(least)
        before, last = last, line
    return last[-1]
