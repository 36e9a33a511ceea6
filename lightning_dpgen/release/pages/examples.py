"""Parts of a card that follow from the kind of records: an example of a condition, and the headings of the Hub."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from lightning_dpgen.data.schema import Schema, kind_of

# The categories of the Hub for the size of a data set, of up to three digits, four and so on.
_SIZES = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B", "1B<n<10B")
_LETTERS = 60


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
    found = kind_of(schema).example_label(schema)
    if found is None or not all(str(part).isprintable() and 0 < len(str(part)) <= _LETTERS for part in found):
        return None
    name, value, said = found
    return Condition(shlex.quote(f"{name}={said}"), repr({name: value}))


def size_category(rows: int) -> str:
    """Return the Hub's category for so many records.

    Example:
        >>> size_category(1500)
        '1K<n<10K'
    """
    return _SIZES[min(max(len(str(rows)) - 3, 0), len(_SIZES) - 1)]
