"""Conditions on one column of synthetic records: their text, and the choices of a record that fulfil them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.common.plain_text import listed

# Signs and words between a column and its values, the longer ones first where one begins another.
_SIGNS = {"<=": "<=", ">=": ">=", "!=": "!=", "==": "=", "=": "=", "<": "<", ">": ">"}
_MISSING = {"is missing": "=", "is not missing": "!="}
_LISTS = {"in": "=", "not in": "!="}
EQUAL, UNEQUAL = "=", "!="
# Conditions as they are handed over: one text, several, or columns and their values.
Where = str | Sequence[str] | Mapping[str, Any]
_AFTER = re.compile(
    r"\s*(?P<sign><=|>=|!=|==|=|<|>)\s*(?P<value>.*)"
    r"|\s+(?P<word>is\s+not\s+missing|is\s+missing)\s*"
    r"|\s+(?P<list>not\s+in|in)\s*\((?P<values>.*)\)\s*",
    re.DOTALL,
)
_QUOTED_NAME = re.compile(r"`((?:[^`]|``)+)`(?!`)")
_PLAIN = re.compile(r"[^\W\d][\w.-]*|[+-]?[\w.:-]+")


@dataclass(frozen=True)
class Clause:
    """A condition as it is stated: the column, ``=``, ``!=`` or an order, and the values, any of which will do.

    A value is text, or of the column's own type; None is a missing one, and so is the empty text where it is no value.
    """

    column: str
    operator: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Condition:
    """A condition on one column, as a release looks at it.

    Args:
        group: the group of the layout that tells of it; None for a column without one.
        may: the choices of that group with which a record may fulfil it.
        sure: those with which it does.
        test: the test of (n,) values of the column, as they are decoded: (n,) bool; None where choices decide.
        shares: the shares of the values of choices, as they are drawn, that fulfil it; 1 for a choice that is not there.
        fits: the test of n records, as they are encoded: (n,) bool; None where the group, or `test`, decides.
    """

    group: int | None
    may: frozenset[int]
    sure: frozenset[int]
    test: Callable[[pa.Array], np.ndarray] | None = None
    shares: Mapping[int, float] = field(default_factory=dict)
    fits: Callable[[Any], np.ndarray] | None = None


def parse_condition(text: str, names: Sequence[str]) -> Clause:
    """Parse a condition: ``age>=60``, ``age = 60..80``, ``job in (cook, vet)``, ``job != cook``, ``job is missing``.

    ``job=`` also stands for a missing value. A name that holds signs or words of conditions may be put in backquotes, and a
    value in double quotes.

    Args:
        names: of the columns there are. The longest with which the text goes on is taken.

    Raises:
        ValueError: for any other text, or a column that there is not.

    Example:
        >>> parse_condition("age>=60", ["age"])
        Clause(column='age', operator='>=', values=('60',))
        >>> parse_condition('job not in (cook, "a, b")', ["age", "job"])
        Clause(column='job', operator='!=', values=('cook', 'a, b'))
    """
    column, rest = _cut_column(text.strip(), names)
    match = _AFTER.fullmatch(rest)
    if match is None:
        raise ValueError(
            f"{text}: expected a column, a sign and a value, as in age>=60, age=60..80, job=cook, 'job in (cook, vet)' or "
            "'job is missing'"
        )
    if match["word"]:
        return Clause(column, _MISSING[" ".join(match["word"].split())], (None,))
    if match["list"]:
        if not match["values"].strip():
            raise ValueError(f"{text}: expected values between the brackets, as in (cook, vet)")
        values = (unquoted(value.strip()) for value in cut_outside(match["values"], ","))
        return Clause(column, _LISTS[" ".join(match["list"].split())], tuple(values))
    operator, value = _SIGNS[match["sign"]], match["value"].strip()
    if not value and operator not in (EQUAL, UNEQUAL):
        raise ValueError(f"{text}: expected a value after {operator}")
    return Clause(column, operator, (unquoted(value),))


def conditions_of(where: Where, names: Sequence[str]) -> list[Clause]:
    """Return conditions that were handed over as texts, or as columns and their values.

    Raises:
        ValueError: for anything else.

    Example:
        >>> conditions_of({"sex": "F", "job": ["cook", None]}, ["sex", "job"])
        [Clause(column='sex', operator='=', values=('F',)), Clause(column='job', operator='=', values=('cook', None))]
    """
    if isinstance(where, str):
        return [parse_condition(where, names)]
    if isinstance(where, Sequence) and all(isinstance(text, str) for text in where):
        return [parse_condition(text, names) for text in where]
    if isinstance(where, Mapping):
        several = (list, tuple, set, frozenset)
        return [
            Clause(str(column), EQUAL, tuple(value) if isinstance(value, several) and value else (value,))
            for column, value in where.items()
        ]
    raise ValueError(
        f"where={str(where)[:60]}: expected texts, as in ['age>=60'], or columns and values, as in {{'age': 60}}"
    )


def in_words(where: Where) -> str:
    """Return conditions as a message names them.

    Example:
        >>> in_words({"sex": "F", "job": None}), in_words(["age>=60", "sex=F"])
        ('where sex=F, job=', 'where age>=60, sex=F')
    """
    if isinstance(where, Mapping):
        return "where " + ", ".join(f"{column}={'' if value is None else value}" for column, value in where.items())
    return "where " + (where if isinstance(where, str) else ", ".join(where))


def cut_outside(text: str, word: str) -> list[str]:
    """Cut a text at a word, but not within quotes, backquotes and brackets.

    Example:
        >>> cut_outside('a, "b, c", (d, e)', ", ")
        ['a', '"b, c"', '(d, e)']
    """
    parts, start, place, depth, quote = [], 0, 0, 0, ""
    while place < len(text):
        letter = text[place]
        if quote:
            quote = "" if letter == quote else quote
        elif letter in '"`':
            quote = letter
        elif letter in "()":
            depth += 1 if letter == "(" else -1
        elif depth == 0 and text.startswith(word, place):
            parts.append(text[start:place])
            place = start = place + len(word)
            continue
        place += 1
    return [*parts, text[start:]]


def unquoted(text: str) -> str:
    """Return a text without the double quotes around it, of which two inside stand for one."""
    if len(text) > 1 and text[0] == text[-1] == '"':
        return text[1:-1].replace('""', '"')
    return text


def is_in_quotes(text: str) -> bool:
    """Tell whether a text stands in single or double quotes, which names of columns do not have.

    Example:
        >>> is_in_quotes("'Left?'"), is_in_quotes("Left?")
        (True, False)
    """
    return len(text) > 2 and text[0] == text[-1] and text[0] in "'\""


def quoted(text: str) -> str:
    """Return a value as a condition may hold it, in double quotes where it needs them."""
    return text if _PLAIN.fullmatch(text) else '"' + text.replace('"', '""') + '"'


def quoted_name(name: str) -> str:
    """Return the name of a column as a condition may hold it, in backquotes where it needs them, two inside for one."""
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def _cut_column(text: str, names: Sequence[str]) -> tuple[str, str]:
    """Return the column with which a text begins, and the rest."""
    if found := _QUOTED_NAME.match(text):
        column, rest = found[1].replace("``", "`"), text[found.end() :]
    else:
        for column in sorted(names, key=len, reverse=True):
            if text.startswith(column) and _AFTER.fullmatch(text[len(column) :]):
                return column, text[len(column) :]
        column = re.split(r"\s*(?:<=|>=|!=|=|<|>)|\s+(?:is|in|not)\s", text, maxsplit=1)[0].strip()
        rest = text[len(column) :]
    if column in names:
        return column, rest
    if is_in_quotes(column) and column[1:-1] in names:
        raise ValueError(f"{column}: expected the name of the column without quotes, or in backquotes: `{column[1:-1]}`")
    expected = f"expected one of {listed(names)}{suggest(column, names)}"
    raise ValueError(f"column {column[:60]!r}: there is no such column: {expected}")
