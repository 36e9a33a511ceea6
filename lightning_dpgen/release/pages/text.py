"""Names, values and conditions, made fit for a page, a picture or a card, whatever they hold."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_dpgen.data.schema import Schema

# Characters with a meaning in the middle of a line of Markdown.
_MARKS = re.compile(r"([\\`*_\[\]|~#$])")
# The categories of the Hub for the size of a data set, of up to three digits, four and so on.
_SIZES = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B", "1B<n<10B")
_LETTERS = 60


def printable(text: Any, most: int = 24) -> str:
    """Shorten a text, and drop the characters that cannot be printed.

    Example:
        >>> printable("marital-status" * 3, most=10), printable("a\\tb")
        ('marital-s…', 'ab')
    """
    text = "".join(letter for letter in str(text) if letter.isprintable()).strip()
    return text if len(text) <= most else f"{text[: most - 1]}…"


def join_values(values: Sequence[Any], most: int = 12, letters: int = 40) -> str:
    """Write the first few values in one line, and how many more there are.

    Example:
        >>> join_values(["a", "b", "c"], most=2)
        'a, b and 1 more'
    """
    named = ", ".join(value_text(value, letters) for value in values[:most])
    return f"{named} and {len(values) - most:,} more" if len(values) > most else named


def value_text(value: Any, letters: int = 40) -> str:
    """Write one value of a record.

    Example:
        >>> value_text(None), value_text(True), value_text(0.1 + 0.2), value_text("")
        ('missing', 'true', '0.3', '(empty)')
    """
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return join_values(value, letters=letters) or "(empty)"
    return printable(value, letters) or "(empty)"


def markdown(text: Any) -> str:
    """Escape any text as one line of a Markdown page.

    Example:
        >>> markdown("a|b <script>")
        'a\\\\|b &lt;script&gt;'
    """
    line = " ".join(str(text).split())
    return _MARKS.sub(r"\\\1", html.escape(line, quote=False))


def quoted(text: Any) -> str:
    """Write any text, shortened, as one quoted value of YAML, whose double quotes are those of JSON.

    Example:
        >>> quoted('records of "Ann": 3')
        '"records of \\\\"Ann\\\\": 3"'
    """
    return json.dumps(printable(text, 100), ensure_ascii=False)


def joined(parts: Iterable[str]) -> str:
    """Join the parts that are not empty into one phrase."""
    return "; ".join(part for part in parts if part)


def sentence(text: str) -> str:
    """Return a warning as a sentence of a report, without its advice to the curator, which stands behind a semicolon.

    Example:
        >>> sentence("a cell holds 3 records and noise of 9: little is found; raise epsilon")
        'A cell holds 3 records and noise of 9: little is found.'
    """
    told = text.partition("; ")[0]
    return f"{told[:1].upper()}{told[1:]}."


@dataclass(frozen=True)
class Condition:
    """An example of a condition on the label: an argument for a shell, quoted if needed, and the same as a dictionary."""

    argument: str
    python: str


def example_condition(schema: Schema) -> Condition | None:
    """Return the condition for records with the last of the labels; None if there is no label that can be shown.

    Example:
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> example_condition(ImageSchema(8, 8, levels=1, classes=10))
        Condition(argument='label=9', python="{'label': 9}")
    """
    from lightning_dpgen.data.schema import kind_of

    label = kind_of(schema).example_label(schema)
    if label is None or not all(str(part).isprintable() and 0 < len(str(part)) <= _LETTERS for part in label):
        return None
    name, value, said = label
    return Condition(shlex.quote(f"{name}={said}"), repr({name: value}))


def size_category(rows: int) -> str:
    """Return the Hub's category for so many records.

    Example:
        >>> size_category(1500)
        '1K<n<10K'
    """
    return _SIZES[min(max(len(str(rows)) - 3, 0), len(_SIZES) - 1)]
