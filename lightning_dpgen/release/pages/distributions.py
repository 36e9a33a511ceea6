"""The synthetic records of a release at a glance: charts of their columns, and a few records. No real one is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from markupsafe import Markup

from lightning_dpgen.data.histories.row_table import RowTable
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import Modelled
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.release.drawing.described import measured_from
from lightning_dpgen.release.pages.charts import histogram, percent, ranked, timelines, transitions
from lightning_dpgen.release.pages.text import printable, value_text
from lightning_dpgen.release.rows.output_format import OutputFormat

# The most records for charts, charts, items, example records and their columns; then the most bars and named values.
ROWS, CHARTS, ITEMS, EXAMPLES, ACROSS = 50_000, 24, 30, 6, 16
_BARS, _NAMES = 48, 10
# Rows of a person that an example shows, and columns of a table whose steps are shown.
_FIRST_ROWS, STEPS = 4, 2
# Bars of equal width; the parts of the values that they may leave out at either end, the first that will do; the share of
# these values in one bar that will not do; the share of a value told in words, and such values that are.
_EVEN_BARS, _OFTEN, _TOLD = 30, 0.1, 4
_TAILS = ((0.005, 0.005), (0.005, 0.02), (0.02, 0.005), (0.02, 0.02), (0.005, 0.05), (0.05, 0.005), (0.05, 0.05))
_TALL = 0.4


@dataclass(frozen=True)
class Figure:
    """A chart with its caption."""

    name: str
    note: str
    chart: Markup


@dataclass(frozen=True)
class Shown:
    """The part of a page that shows synthetic records.

    Args:
        looked_at: number of records behind the charts.
        figures: the charts.
        columns, rows: names of columns, and example records with a text for each of these.
        unbroken: for each of these columns, whether its texts are short and stand in one line, as dates do.
        more: number of columns without a chart.
    """

    looked_at: int
    figures: list[Figure]
    columns: list[str]
    rows: list[list[str]]
    unbroken: list[bool]
    more: int = 0


def show_label(path: Path, schema: Schema) -> Shown:
    """Show the shares of the label of records that are shown by a picture, or not at all."""
    name, values = schema.label_values
    table = _read(path, [name] * bool(values), schema.arrow)
    return Shown(table.num_rows, [_labels(table, values)] if values and table.num_rows else [], [], [], [])


def _read(path: Path, columns: Sequence[str], schema: pa.Schema) -> pa.Table:
    """Read the first `ROWS` records."""
    kept = pa.schema([schema.field(name) for name in columns])
    if not columns:
        return kept.empty_table()
    with open(path, "rb") as opened, pq.ParquetFile(opened) as file:
        batch = next(file.iter_batches(ROWS, columns=list(columns)), None)
    return kept.empty_table() if batch is None else pa.Table.from_batches([batch]).select(list(columns)).cast(kept)


def show_table(path: Path, schema: Schema) -> Shown:
    """Show charts of the columns of a table, the label first, and some rows."""
    relatives = schema.rules.relatives
    # A column that is learned by distances is shown by them.
    shown = [relatives[column.name].apart if column.name in relatives else column for column in schema.recorded]
    modelled = [column for column in shown if column.choices or column.scaled]
    # The label first: it is what most people look for.
    modelled.sort(key=lambda column: column.name != schema.label)
    across = schema.arrow.names[:ACROSS]
    drawn = modelled[:CHARTS]
    needed = [column.name for column in drawn]
    needed += [relatives[name].relative_to for name in needed if name in relatives]
    read = table = _read(path, list(dict.fromkeys([*across, *needed])), schema.arrow)
    if table.num_rows:
        # Pages have the words of the schema for true and false.
        table = pa.Table.from_batches(map(OutputFormat.of(schema).cells, table.to_batches()))
    first = table.select(across).slice(0, EXAMPLES).to_pylist()
    rows = [[value_text(value, 24) for value in row.values()] for row in first]
    figures = [_figure(schema, column, table, read) for column in drawn] if table.num_rows else []
    unbroken = [pa.types.is_temporal(schema.arrow.field(name).type) for name in across]
    names = [printable(name, 30) for name in across]
    return Shown(table.num_rows, figures, names, rows, unbroken, len(modelled) - len(drawn))


def _figure(schema: Schema, column: Modelled, table: pa.Table, read: pa.Table) -> Figure:
    """Draw a column as pages have it, or its distances from another one, by the values that were read."""
    relative = schema.rules.relatives.get(column.name)
    if relative is None:
        return _column(column, table[column.name])
    arrays = {name: read[name].combine_chunks() for name in (column.name, relative.relative_to)}
    apart = relative.distances(arrays, schema.rules.columns[relative.relative_to], True, Counter())
    figure = _column(column, pa.chunked_array([apart]), relative.value.special)
    return replace(figure, name=f"{figure.name}, {measured_from(relative)}")


def _column(column: Modelled, values: pa.ChunkedArray, special: Sequence[Any] | None = None) -> Figure:
    """Draw a column; its special values in the order of their choices may have other names."""
    name = printable(column.name, 40)
    if isinstance(column, Category):
        return Figure(name, "", _most_frequent(dict(zip(*_counted(values), strict=True)), name, len(values)))
    if special is None:
        special = sorted(set(column.special)) if isinstance(column, Numeric) else []
    if isinstance(column, Numeric) and column.density:
        return _by_value(column, name, values.combine_chunks(), special)
    codes, units = column.encode(values.combine_chunks(), True, Counter())
    absent = codes == column.present if column.missing else np.zeros(len(codes), bool)
    apart = []
    if column.scaled:
        counts = np.histogram(units[~absent], bins=30, range=(0.0, 1.0))[0]
    else:
        counts = np.bincount(codes[~absent], minlength=column.present)
        # Special values have the last choices.
        counts, alone = _merged(counts[: len(counts) - len(special)]), counts[len(counts) - len(special) :]
        apart = [(value_text(value), count / len(codes)) for value, count in zip(special, alone.tolist(), strict=True)]
    if isinstance(column, Numeric) and not column.scaled and counts.max(initial=0) > _TALL * counts.sum():
        return _by_value(column, name, values.combine_chunks(), special)
    # Special and missing values would dwarf all others, so they are told in words.
    note = ", ".join(_told(apart) + [f"missing {percent(float(absent.mean()))}"] * column.missing)
    low, high = value_text(getattr(column, "low", "")), value_text(getattr(column, "high", ""))
    most = int(counts.argmax()) + 1 if len(counts) else 0
    said = f"shares of synthetic values from {low} to {high} in {len(counts)} bins; the highest is bin {most}"
    return Figure(name, note, histogram(counts / len(codes), low, high, f"{name}: {said}"))


def _by_value(column: Numeric, name: str, values: pa.Array, special: Sequence[Any]) -> Figure:
    """Draw a bar for each of few values, else bars of equal width where nearly all values are.

    Bins of a column may hold equally many records, or nearly all of them one.
    """
    ticks = column.ticks(values)
    there = ticks[~np.isnan(ticks)]
    numbers, counts = np.unique(there, return_counts=True)
    codes = column.encode(values, True, Counter())[0]
    alone = np.bincount(codes, minlength=column.choices)[column.present - len(special) : column.present] / len(ticks)
    apart = [(value_text(value), share) for value, share in zip(special, alone.tolist(), strict=True)]
    missing = [("missing", float(pc.sum(pc.is_null(values)).as_py() or 0) / len(ticks))] * column.missing
    if len(numbers) + len(apart) <= _NAMES + 1:
        return _each(name, [*zip(_texts(column, numbers), (counts / len(ticks)).tolist(), strict=True), *apart, *missing])
    # Values that many records have would dwarf all others, so they are told in words, as special and missing ones are.
    often = counts > _OFTEN * len(ticks)
    apart = [*zip(_texts(column, numbers[often]), (counts[often] / len(ticks)).tolist(), strict=True), *apart]
    notes = _told(apart) + [f"{value} {percent(share)}" for value, share in missing]
    rest = there[~np.isin(there, numbers[often])]
    if len(rest):
        drawn = [_even_bars(rest, np.quantile(rest, [tail[0], 1.0 - tail[1]]), column.scale.whole) for tail in _TAILS]
        bars, low, high = min(drawn, key=lambda bars: max(float(bars[0].max()), _TALL * len(rest)))
        if bars is not drawn[0][0]:
            notes += _beyond(column, rest, low, high, len(ticks))
    else:
        bars, low, high = np.zeros(1), column.grid.low, column.grid.high
    first, last = _texts(column, np.array([low, high]))
    most = int(bars.argmax()) + 1
    words = (
        f"shares of synthetic values from {first} to {last} in {len(bars)} bars of equal width; the highest is bar {most}"
    )
    return Figure(name, ", ".join(notes), histogram(bars / len(ticks), first, last, f"{name}: {words}"))


def _even_bars(values: np.ndarray, ends: np.ndarray, whole: bool) -> tuple[np.ndarray, float, float]:
    """Count values in bars of equal width between two ends; gives also the first and the last value that is drawn."""
    if not whole:
        return np.histogram(values, bins=_EVEN_BARS, range=tuple(ends))[0], float(ends[0]), float(ends[1])
    low, high = np.floor(ends[0]), np.ceil(ends[1])
    # Every bar is of equally many whole numbers: else those of one more would stand out.
    width = -(-int(high - low + 1) // _EVEN_BARS)
    bars = -(-int(high - low + 1) // width)
    end = low + bars * width
    return np.histogram(values[values < end], bins=bars, range=(low, end))[0], float(low), float(min(end - 1, values.max()))


def _beyond(column: Numeric, rest: np.ndarray, low: float, high: float, total: int) -> list[str]:
    """Tell how many values lie beyond the bars, and how far, where that is more than the first of `_TAILS`."""
    notes = []
    for beyond, word, end in ((rest < low, "below, down", rest.min()), (rest > high, "above, up", rest.max())):
        if beyond.mean() > _TAILS[0][0]:
            notes.append(f"{percent(beyond.sum() / total)} {word} to {_texts(column, np.array([end]))[0]}")
    return notes


def _each(name: str, shares: list[tuple[str, float]]) -> Figure:
    """Draw a bar for each value, in their order."""
    said = ", ".join(f"{value} {percent(share)}" for value, share in shares)
    names, drawn = zip(*shares, strict=True)
    return Figure(name, "", ranked(names, np.array(drawn), f"{name}: shares of synthetic values: {said}"))


def _told(apart: list[tuple[str, float]]) -> list[str]:
    """Tell the shares of values in words, the most frequent first, and of many the rest together."""
    ordered = sorted(apart, key=lambda pair: -pair[1])
    shown = ordered if len(ordered) <= _TOLD + 1 else ordered[:_TOLD]
    notes = [f"{value} {percent(share)}" for value, share in shown]
    if rest := ordered[len(shown) :]:
        notes.append(f"{len(rest)} other values {percent(sum(share for _, share in rest))}")
    return notes


def _texts(column: Numeric, ticks: np.ndarray) -> list[str]:
    """Write values as a schema does."""
    kind = int if column.scale.whole else float
    return [value_text(column.scale.declared(kind(number))) for number in ticks.tolist()]


def _merged(counts: np.ndarray) -> np.ndarray:
    """Merge neighbours, so that there are not too many bars."""
    several = -(-len(counts) // _BARS)
    if several <= 1:
        return counts
    return np.add.reduceat(counts, np.arange(0, len(counts), several))


def _counted(values: pa.ChunkedArray) -> tuple[list[Any], list[int]]:
    found = pc.value_counts(values.combine_chunks())
    return found.field("values").to_pylist(), found.field("counts").to_pylist()


def _most_frequent(counts: dict[Any, int], name: str, total: int) -> Markup:
    """Draw the most frequent values in that order, the rest together."""
    # Equal counts by name, so that the same records make the same page.
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], str(pair[0])))
    first = ordered if len(ordered) <= _NAMES + 1 else ordered[:_NAMES]
    names, shares = [value_text(value) for value, _ in first], [count / total for _, count in first]
    if rest := len(ordered) - len(first):
        names.append(f"{rest:,} others")
        shares.append(1.0 - sum(shares))
    said = ", ".join(f"{value} {percent(share)}" for value, share in zip(names, shares, strict=True))
    return ranked(names, np.array(shares), f"{printable(name, 40)}: shares of synthetic values: {said}")


def _labels(table: pa.Table, names: list[Any]) -> Figure:
    counts = dict.fromkeys(names, 0) | dict(zip(*_counted(table["label"]), strict=True))
    return Figure("label", "", _most_frequent(counts, "label", table.num_rows))


def show_baskets(path: Path, schema: Schema) -> Shown:
    """Show the most frequent items, how large baskets are, and some of them."""
    table = _read(path, schema.arrow.names, schema.arrow)
    n = table.num_rows
    columns = ["items", *schema.arrow.names[1:]]
    rows = [[value_text(value) for value in row.values()] for row in table.slice(0, EXAMPLES).to_pylist()]
    if not n:
        return Shown(0, [], columns, rows, [False] * len(columns))
    items = table["items"].combine_chunks()
    counts = dict(zip(*_counted(pa.chunked_array([items.flatten()])), strict=True))
    top = sorted(counts.items(), key=lambda pair: (-pair[1], str(pair[0])))[:ITEMS]
    names, shares = [value_text(item) for item, _ in top], np.array([count / n for _, count in top])
    half = -(-len(names) // 2)
    figures = [
        Figure(title, note, ranked(names[part], shares[part], f"{title}: shares of synthetic baskets", shares[0]))
        for title, note, part in (("Items", "of all baskets", slice(0, half)), ("and the next", "", slice(half, None)))
        if names[part]
    ]
    sizes = np.bincount(pc.list_value_length(items).to_numpy(zero_copy_only=False).astype(np.int64))
    # Very large baskets are few, and are told in words.
    longest = max(1, min(len(sizes) - 1, int(np.searchsorted(np.cumsum(sizes), 0.99 * n)), _BARS - 1))
    beyond = float(sizes[longest + 1 :].sum() / n)
    larger = f", {percent(beyond)} larger" if beyond else ""
    mean = float(sizes @ np.arange(len(sizes)) / n)
    said = f"sizes of synthetic baskets from 0 to {longest} items, {mean:.1f} on average"
    drawn = histogram(sizes[: longest + 1] / n, "0 items", f"{longest} items", said)
    figures.append(Figure("Basket sizes", f"{mean:.1f} items on average{larger}", drawn))
    figures += [_labels(table, schema.label_values[1])] if schema.label_values[1] else []
    return Shown(n, figures, columns, rows, [False] * len(columns))


def show_histories(path: Path, schema: Schema) -> Shown:
    """Show the numbers of rows of synthetic persons, some persons in time, what follows what, and some first rows."""
    table, names = _read(path, schema.arrow.names, schema.arrow), [own.name for own in schema.tables]
    columns, n = schema.arrow.names, table.num_rows
    if not n:
        return Shown(0, [], columns, [], [False] * len(columns))
    figures = [
        figure
        for rows in schema.tables
        for figure in _histories(rows, schema.prefix(rows), table.column(rows.name).combine_chunks())
    ]
    rows = [
        [_first_rows(value) if name in names else value_text(value) for name, value in record.items()]
        for record in table.slice(0, EXAMPLES).to_pylist()
    ]
    return Shown(n, figures, columns, rows, [False] * len(columns))


def _histories(table: RowTable, prefix: str, lists: pa.ListArray) -> list[Figure]:
    """Draw the rows of persons in a table: their number, some persons in time, and steps of a few columns."""
    # Slow to import, and pages of other kinds need none of it.
    from lightning_dpgen.metrics.history_pictures import persons_of, steps_of

    counts = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    sizes, mean, word = np.bincount(counts, minlength=2), float(counts.mean()), printable(table.name, 40)
    most = len(sizes) - 1
    said = f"numbers of {word} of synthetic persons from 0 to {most}, {mean:.1f} on average"
    bars = histogram(sizes / len(counts), "0 rows", f"{most} rows", said)
    figures = [Figure(f"{word} of a person", f"{mean:.1f} on average", bars)]
    rows = pa.RecordBatch.from_struct_array(lists.flatten())
    if not rows.num_rows:
        return figures
    codes = table.rows.encode(rows, outside="clamp").codes.astype(np.int64)
    place = np.arange(len(codes)) - np.repeat(np.cumsum(counts) - counts, counts)
    times = place if table.order is None else table.order.start.scale.ticks(rows.column(table.order.name))
    choices, ordered = list(table.rows.choices.items()), table.ordered_columns
    place_of = next((column for column, in_order in enumerate(ordered) if not in_order), 0)
    name = choices[place_of][0]
    (drawn,) = persons_of(table, (*choices[place_of], ordered[place_of]), [(counts, times, codes[:, place_of])], seed=0)
    figures.append(Figure(f"{word} of some persons", f"by {printable(name, 40)}", timelines(**drawn)))
    after = np.flatnonzero(place > 0)
    if table.order is None or not len(after):
        return figures
    # Columns of categories first, since their choices need no bins.
    for column, (name, names) in sorted(enumerate(choices), key=lambda column: ordered[column[0]] > 0)[:STEPS]:
        (steps,) = steps_of(names, ordered[column], [(codes[after - 1, column], codes[after, column])])
        title = printable(f"{prefix}{name}", 40) + ", from a row to the next"
        figures.append(Figure(title, "", transitions(**steps, alt=title)))
    return figures


def _first_rows(rows: list[dict[str, Any]]) -> str:
    first = "; ".join(", ".join(value_text(value) for value in row.values()) for row in rows[:_FIRST_ROWS])
    return first + (f"; and {len(rows) - _FIRST_ROWS} more" if len(rows) > _FIRST_ROWS else "")
