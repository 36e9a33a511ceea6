"""The public declaration of a record, as a table for people: short, however much was declared."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_dpgen.common.plain_text import say_count
from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.conditions import quoted_name
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import Column, Modelled
from lightning_dpgen.data.tables.grouped import Grouped
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.relative import Relative
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.unmodelled import Dropped, Fake
from lightning_dpgen.measure.first_draw import FirstDraw
from lightning_dpgen.release.pages.text import joined, listed, printable, value_text

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
        >>> described(BasketSchema(("bread", "milk", "tea"), max_items=2))[0]
        'sets of at most 2 of 3 items'
    """
    what, parts = _KINDS[type(schema)](schema)
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
    if not isinstance(schema, TableSchema) or not any(schema.rules.texts):
        return None
    declared, found = ([printable(text, 200) for text in texts] for texts in schema.rules.texts)
    more = max(0, len(declared) - MOST) + max(0, len(found) - MOST)
    return Kept(declared[:MOST], found[:MOST], more, "" if first is None else first.in_words)


def _images(schema: ImageSchema) -> tuple[str, list[Described]]:
    size = f"{schema.height} by {schema.width}"
    colour = "black-and-white" if schema.layout.levels == 1 else "grey" if schema.channels == 1 else "colour"
    threshold = "" if schema.threshold is None else f"1 where the pixel was above {schema.threshold}"
    channels = f"{schema.channels} channels" if schema.channels > 1 else ""
    values = f"whole numbers 0 to {schema.layout.levels}"
    pixels = Described("pixels", f"{size}, {colour}", values, joined([channels, threshold]))
    return f"{colour} pictures of {size} pixels", [pixels, *_label(schema.class_names)]


def _baskets(schema: BasketSchema) -> tuple[str, list[Described]]:
    items = Described("items", "set", listed(schema.items), f"at most {schema.max_items:,} of {len(schema.items):,}")
    what = f"sets of at most {schema.max_items:,} of {len(schema.items):,} items"
    return what, [items, *_label(schema.classes)]


def _series(schema: SeriesSchema) -> tuple[str, list[Described]]:
    names, times = schema.words
    steps = f"{times[0]} to {times[-1]}" if times else ""
    bounds = zip(names, schema.low, schema.high, schema.decimals, strict=True)
    channels = [
        Described(
            printable(channel, 60),
            f"{schema.length:,} readings",
            f"{low:g} to {high:g}",
            joined([printable(steps, 80), "" if places is None else f"{places} decimals"]),
        )
        for channel, low, high, places in bounds
    ]
    # The label first, since there may be very many channels.
    several = f" of {len(channels)} channels" if len(channels) > 1 else ""
    return f"series of {schema.length:,} readings{several}", [*_label(schema.classes), *channels]


def _label(classes: tuple) -> list[Described]:
    return [Described("label", "category", listed(classes), f"{len(classes):,} choices")] if classes else []


def _table(schema: TableSchema) -> tuple[str, list[Described]]:
    count = sum(column.arrow is not None for column in schema.columns)
    what = f"rows of {say_count(count, 'column')}"
    learned = schema.rules.learned
    return what, [_column(column, learned.get(column.name), schema.label == column.name) for column in schema.columns]


def _column(column: Column, learned: Modelled | None, label: bool) -> Described:
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
        values = joined([listed(column.present_names), missing])
        choices = f"{column.choices:,} choices" if column.choices else "one value only"
        choices = learned.in_words if isinstance(learned, Grouped) else choices
        return Described(name, kind, values, joined([choices, is_label]), note)
    if not isinstance(about, Numeric):
        return Described(name, type(column).__name__.lower(), missing, is_label, note)
    special = f"on their own: {listed(about.special)}" if about.special else ""
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


_KINDS = {ImageSchema: _images, BasketSchema: _baskets, SeriesSchema: _series, TableSchema: _table}
