"""Parts of a card that follow from the kind of records: an example of a condition, and the headings of the Hub."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.schema import TableSchema

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
        >>> example_condition(ImageSchema(8, 8, levels=1, classes=10))
        Condition(argument='label=9', python="{'label': 9}")
    """
    found = _label(schema)
    if found is None or not all(str(part).isprintable() and 0 < len(str(part)) <= _LETTERS for part in found):
        return None
    name, value, said = found
    return Condition(shlex.quote(f"{name}={said}"), repr({name: value}))


def _label(schema: Schema) -> tuple[str, Any, str] | None:
    """Return the name of the label, its last value, and that value as a condition says it."""
    if not isinstance(schema, TableSchema):
        classes = schema.class_names if isinstance(schema, ImageSchema) else schema.classes
        return ("label", classes[-1], str(classes[-1])) if classes else None
    column = next((column for column in schema.columns if column.name == schema.label), None)
    if isinstance(column, Category):
        return column.name, column.values[-1], column.present_names[-1]
    return (column.name, column.high, str(column.high)) if isinstance(column, Numeric) and not column.special else None


def size_category(rows: int) -> str:
    """Return the Hub's category for so many records.

    Example:
        >>> size_category(1500)
        '1K<n<10K'
    """
    return _SIZES[min(max(len(str(rows)) - 3, 0), len(_SIZES) - 1)]


def tasks(schema: Schema) -> list[str]:
    """Return the Hub's categories of tasks that these records serve; none if the Hub has no name for them."""
    labelled = schema.layout.label is not None
    if isinstance(schema, ImageSchema):
        return ["unconditional-image-generation"] + ["image-classification"] * labelled
    return ["tabular-classification"] if labelled and isinstance(schema, TableSchema) else []
