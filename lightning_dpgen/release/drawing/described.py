"""The public declaration of a record, as a table for people: short, however much was declared."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_dpgen.common.plain_text import say_count
from lightning_dpgen.data.conditions import quoted_name
from lightning_dpgen.data.schema import Schema, kind_of
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import Column, Modelled
from lightning_dpgen.data.tables.grouped import Grouped
from lightning_dpgen.data.tables.made_up import Dropped, Fake
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.relative import Relative
from lightning_dpgen.measure.first_draw import FirstDraw
from lightning_dpgen.release.pages.text import join_values, joined, printable, value_text

# Columns and channels that a page lists; the certificate has them all.
MOST = 60


@dataclass(frozen=True)
class Described:
    """One column, or another part of a record, with the form in which the model sees it, and the curator's note."""

    name: str
    type: str
    values: str
    written: str = ""
    note: str = ""


def described(schema: Schema) -> tuple[str, list[Described], int]:
    """Describe a record in one phrase and by its parts, `MOST` at most; return also how many parts were left out.

    Example:
        >>> from lightning_dpgen.data.baskets.schema import BasketSchema
        >>> described(BasketSchema(("bread", "milk", "tea"), max_items=2))[0]
        'sets of at most 2 of 3 items'
    """
    what, parts = kind_of(schema).describe(schema)
    return what, parts[:MOST], max(0, len(parts) - MOST)


@dataclass(frozen=True)
class Kept:
    """The constraints that all synthetic rows keep, in words: declared ones, and those that noisy tables show.

    Args:
        more: the number of those that are not listed.
        first: how many rows keep all as the model first draws them, in words.
    """

    declared: list[str]
    found: list[str]
    more: int
    first: str


def kept_constraints(schema: Schema, first: FirstDraw | None) -> Kept | None:
    """Return the constraints of a table's rows, `MOST` at most of each; None where there are none."""
    if not any(schema.constraint_texts):
        return None
    declared, found = ([printable(text, 200) for text in texts] for texts in schema.constraint_texts)
    more = max(0, len(declared) - MOST) + max(0, len(found) - MOST)
    return Kept(declared[:MOST], found[:MOST], more, "" if first is None else first.in_words)


def describe_label(schema: Schema) -> list[Described]:
    """Describe the label of records that is no column of a table; return nothing where there is none."""
    name, values = schema.label_values
    return [Described(name, "category", join_values(values), f"{len(values):,} choices")] if values else []


def describe_column(column: Column, learned: Modelled | None, label: bool) -> Described:
    """Describe a column of a table.

    Args:
        learned: the column as it is learned; None where it is not.
        label: whether it is the label.
    """
    name, note = printable(column.name, 60), printable(column.description, 200)
    if isinstance(column, Dropped):
        return Described(name, "left out", "not in the synthetic records", "", note)
    if isinstance(column, Fake):
        made = f"always {value_text(column.constant)}" if column.fake is None else column.fake.replace("_", " ")
        return Described(name, "made up", made, "owes nothing to the records", note)
    about = column.value if isinstance(column, Relative) else column
    missing = "may be missing" if about.missing else ""
    is_label = "the label" if label else ""
    if isinstance(column, Category):
        kind = "true or false" if column.kind is bool else "category"
        values = joined([join_values(column.present_names), missing])
        choices = f"{column.choices:,} choices" if column.choices else "one value only"
        choices = learned.in_words if isinstance(learned, Grouped) else choices
        return Described(name, kind, values, joined([choices, is_label]), note)
    if not isinstance(about, Numeric):
        return Described(name, type(column).__name__.lower(), missing, is_label, note)
    special = f"on their own: {join_values(about.special)}" if about.special else ""
    values = joined([f"{value_text(about.low)} to {value_text(about.high)}", special, missing])
    if isinstance(column, Relative):
        written = f"{_cut(column.apart)} of {column.apart.low} to {column.apart.high} {measured_from(column)}"
    else:
        written = joined([_cut(column), is_label])
    return Described(name, _numeric_type(about), values, written, note)


def measured_from(column: Relative) -> str:
    """Return the unit of distances and the other column in words: in a text, which no program reads, without quotes."""
    other = column.relative_to
    return column.measure.removesuffix(quoted_name(other)) + printable(other, 40)


def _numeric_type(column: Numeric) -> str:
    if column.type == "integer":
        return "whole number"
    if column.type == "number":
        return "number" if column.decimals is None else f"number, {column.decimals} decimals"
    words = {"date": "date", "datetime": "date and time", "time": "time of day"}[column.type]
    return words if column.resolution in (None, "day") else f"{words}, to the {column.resolution}"


def _cut(column: Numeric) -> str:
    if column.scaled:
        return "one number"
    finer = "" if column.transform == "linear" else f", finer near {value_text(column.low)} ({column.transform})"
    return f"{say_count(column.present, 'choice')}{finer}"
