"""Files of series as they are written: one series a row (wide), or one time a row (long)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.files.blocks import Block, RowSource, first_misfit
from lightning_dpgen.data.files.delimited import DelimitedText
from lightning_dpgen.data.files.formulas import known_again
from lightning_dpgen.data.files.rows import is_text, rows_of
from lightning_dpgen.data.names import Name, floats_of, is_name, plain, quote
from lightning_dpgen.data.reading import Numbering, class_positions
from lightning_dpgen.data.series.form import DAY, WEEKDAYS, SeriesForm, clock_seconds, places_of_times
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.sampling.errors import BadRecords

MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null")
_NUMERIC = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
# The day of the week, from Monday on, of the first of January 1970.
_FIRST = 3


@dataclass(frozen=True, eq=False, repr=False)
class SeriesBlock:
    """Some series.

    Args:
        readings: (n, units) float64, NaN where one is missing.
        labels: (n,) int64, their places among the classes; None without a label.
        persons: (n,) int64; None without persons.
        place: where the i-th series stands, for an error.
    """

    readings: np.ndarray
    labels: np.ndarray | None
    persons: np.ndarray | None
    place: Callable[[int], str]


def series_rows(source: Any, schema: SeriesSchema, form: SeriesForm, *, drop_ragged: bool = False) -> RowSource:
    """Return the rows of a file of series, or of a table in memory; errors as `rows_of`."""
    is_bare = form.header is False and is_text(source)
    names = ["label"] * bool(schema.classes) + schema.columns if is_bare else None
    return rows_of(source, names, form.separator, drop_ragged=drop_ragged, headless="header=False")


def names_in(source: Any, schema: SeriesSchema, form: SeriesForm) -> tuple[str, ...] | None:
    """Return the columns of readings by the header of a file; None where it has none, or no more than the usual names.

    No record is read: names of columns are as public as the format of the file.

    Raises:
        MissingData: if there is no such file.
        BadRecords: for a column that is not there, another number of them, or numbers in the place of names.
    """
    if form.header is False:
        return None
    file = series_rows(source, schema, form)
    label = form.label if schema.classes and form.weekdays is None else None
    besides = _besides(file, label, form.person, form.by, form.day, form.time)
    if form.form == "wide":
        columns, usual = _wide_columns(file, schema, form, besides), schema.columns
    else:
        usual = list(schema.channels)
        columns = _columns(file, usual, form.columns, besides, "channels")
    return None if columns == usual or not all(map(is_name, columns)) else tuple(columns)


def wide_series(file: RowSource, schema: SeriesSchema, form: SeriesForm) -> Iterator[SeriesBlock]:
    """Yield the series of a file with one in each row.

    Raises:
        BadRecords: for a column that is not there, another number of them, or a reading that is no number.
    """
    label = ("label" if form.header is False else form.label) if schema.classes else None
    besides = _besides(file, label, form.person)
    columns = _wide_columns(file, schema, form, besides)
    persons = Numbering()
    for block in file.blocks([*dict.fromkeys([*columns, *besides])]):
        readings = np.column_stack([readings_of(block, name) for name in columns])
        yield SeriesBlock(
            readings,
            None if label is None else _labels(file, block, label, schema.classes),
            None if form.person is None else persons.of(block.full_column(form.person)),
            block.place,
        )


def long_series(file: RowSource, schema: SeriesSchema, form: SeriesForm) -> tuple[SeriesBlock, Counter[int], str]:
    """Return the series of a file with one time in each row; how many others have which length, and where the first is.

    Of the others is one of another length, with a time twice, or with one that is not among the declared steps.

    Raises:
        BadRecords: for a column that is not there, a reading that is no number, a time stamp that is none, or a label
            that changes within a series.
    """
    label = form.label if schema.classes and form.weekdays is None else None
    if form.weekdays is not None and schema.classes not in ((), WEEKDAYS[form.weekdays][0]):
        raise ValueError(f"classes={quote(list(schema.classes))}: expected those of weekdays={form.weekdays}")
    keys = [name for name in (form.by, form.day) if name is not None]
    besides = _besides(file, label, form.person, *keys, form.time)
    columns = _columns(file, list(schema.channels), form.columns, besides, "channels", _known_columns(schema, "long"))
    ids, persons = Numbering(), Numbering()
    parts: dict[str, list[np.ndarray]] = {name: [] for name in ("readings", "ids", "times", "label", "person")}
    for block in file.blocks([*dict.fromkeys([*columns, *besides])]):
        n = len(block.rows)
        parts["readings"].append(np.column_stack([readings_of(block, name) for name in columns]))
        parts["ids"].append(np.zeros(n, np.int64) if form.by is None else ids.of(block.full_column(form.by)))
        if form.time is not None:
            parts["times"].append(places_of_times(schema.steps, block.full_column(form.time)))
        else:
            parts["times"].append(np.zeros(n, np.int64) if form.day is None else _seconds(block, form.day))
        if label is not None:
            parts["label"].append(_labels(file, block, label, schema.classes))
        if form.person is not None:
            parts["person"].append(persons.of(block.full_column(form.person)))
    rows = {name: np.concatenate(arrays) if arrays else None for name, arrays in parts.items()}
    if schema.classes and form.weekdays is not None and rows["times"] is not None:
        rows["label"] = np.array(WEEKDAYS[form.weekdays][1])[(rows["times"] // DAY + _FIRST) % 7]
    if rows["readings"] is None:
        return SeriesBlock(np.empty((0, schema.layout.units)), None, None, str), Counter(), ""
    return _cut(rows, schema, form, list(ids.known), file.where)


def _cut(
    rows: dict, schema: SeriesSchema, form: SeriesForm, ids: list, where: str
) -> tuple[SeriesBlock, Counter[int], str]:
    n, length = len(rows["readings"]), schema.length
    days = rows["times"] // DAY
    if form.by is None and form.day is None:
        keys = [np.arange(n) // length]
    else:
        # The person too: one person's rows must not change the series of another.
        keys = [*([] if form.day is None else [days]), *([] if rows["person"] is None else [rows["person"]]), rows["ids"]]
    order = np.lexsort((rows["times"], *keys))
    times, new = rows["times"][order], np.zeros(n, bool)
    for key in keys:
        new |= np.diff(key[order], prepend=key[order[0]] - 1) != 0
    starts = np.flatnonzero(new)
    lengths = np.diff(starts, append=n)
    whole = lengths == length
    if form.day is not None or form.time is not None:
        # A time that stands twice, as when clocks are set back, makes no series even if the number fits.
        twice = (np.diff(times, prepend=times[0] - 1) == 0) & ~new
        whole &= ~np.logical_or.reduceat(twice | ~_declared(times, schema, form), starts)

    def place(start: int) -> str:
        first = order[start]
        named = [f"{form.by}={quote(ids[rows['ids'][first]])}"] if form.by is not None else []
        named += [f"{form.day} on {np.datetime64(int(days[first]), 'D')}"] if form.day is not None else []
        return f"{where}, the series of {', '.join(named)}" if named else f"{where}, the series from row {first + 1} on"

    kept = starts[whole]
    cells = order[kept[:, None] + np.arange(length)]
    labels, persons = (None if rows[name] is None else rows[name][cells] for name in ("label", "person"))
    other = [] if labels is None else np.flatnonzero((labels != labels[:, :1]).any(axis=1))
    if len(other):
        raise BadRecords(f"{place(kept[other[0]])}: the label changes within it: expected one for all its rows")
    readings = rows["readings"][cells].reshape(len(kept), schema.layout.units)
    own = (None if values is None else values[:, 0] for values in (labels, persons))
    block = SeriesBlock(readings, *own, lambda i: place(kept[i]))
    others = starts[~whole]
    counted = Counter(dict(zip(*map(np.ndarray.tolist, np.unique(lengths[~whole], return_counts=True)), strict=True)))
    return block, counted, place(others[0]) if len(others) else ""


def _declared(times: np.ndarray, schema: SeriesSchema, form: SeriesForm) -> np.ndarray:
    """Mark the times (n,) that are among the schema's steps; where these are no times of a day, all of them."""
    if form.time is not None:
        return times >= 0
    seconds = clock_seconds(schema.steps)
    return np.ones(len(times), bool) if seconds is None else np.isin(times % DAY, seconds)


def _labels(file: RowSource, block: Block, name: str, classes: tuple[Name, ...]) -> np.ndarray:
    """Return the places (n,) of labels among the classes; a file of text may have an escaped one in its place."""
    labels = plain(block.column(name))
    if isinstance(file, DelimitedText) and type(classes[0]) is str:
        labels = known_again(labels, pa.array(classes))
    return class_positions(classes, labels, block.place)


def readings_of(block: Block, name: str) -> np.ndarray:
    """Return a column as float64 (n,), NaN where a reading is missing; raise BadRecords for what is no number."""
    values = plain(block.column(name))
    kind = values.type
    if pa.types.is_string(kind):
        values = pc.if_else(pc.is_in(values, value_set=pa.array(MISSING)), None, values)
    elif not any(test(kind) for test in _NUMERIC):
        raise BadRecords(f"{block.place(0)}: the column {quote(name)} is of {kind}: expected numbers")
    try:
        if pa.types.is_decimal(kind):
            return floats_of(values)
        return pc.fill_null(values.cast(pa.float64(), safe=False), np.nan).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        first = first_misfit(values, pa.float64())
        raise BadRecords(
            f"{block.place(first)}: the column {quote(name)} holds {quote(values[first].as_py())}: expected a number, "
            "with a point and without thousands separators"
        ) from None


def _besides(file: RowSource, *names: str | None) -> list[str]:
    """Return the columns that are no readings, each once; those of them that were asked for must be there."""
    asked = list(dict.fromkeys(name for name in names if name is not None))
    file.check_has(asked)
    return asked


def _wide_columns(file: RowSource, schema: SeriesSchema, form: SeriesForm, besides: list[str]) -> list[str]:
    if form.columns is None and len(schema.channels) == 1 and schema.steps and set(schema.steps) <= set(file.columns):
        return list(schema.steps)
    columns = _columns(file, schema.columns, form.columns, besides, "readings", _known_columns(schema, "wide"))
    said = form.header is not None or form.columns is not None
    if isinstance(file, DelimitedText) and not said and first_misfit(pa.array(columns), pa.float64()) is None:
        raise BadRecords(
            f"{file.where}, line 1: found numbers, expected names of columns: give header=False if they are a series, "
            "header=True if they are names"
        )
    return columns


def _known_columns(schema: SeriesSchema, form: str) -> list[str] | None:
    """Return the columns that the files of a release's records had."""
    columns = schema.written.columns
    return list(columns) if columns is not None and schema.written.form == form else None


def _columns(
    file: RowSource,
    declared: list[str],
    given: Sequence[str] | None,
    besides: list[str],
    what: str,
    known: list[str] | None = None,
) -> list[str]:
    """Return the columns of readings: as given, or `known` ones, or the schema's own, or all that are left."""
    if given is not None:
        file.check_has(given)
        columns = list(given)
    elif known is not None and set(known) <= set(file.columns):
        columns = known
    elif set(declared) <= set(file.columns):
        columns = declared
    else:
        columns = file.others(besides)
    if len(columns) != len(declared):
        raise BadRecords(
            f"{file.where}: found {len(columns)} columns of {what}, expected {len(declared)}, as the schema declares: "
            f"{listed(columns)}; name the columns of readings, or correct the length"
        )
    return columns


def _seconds(block: Block, name: str) -> np.ndarray:
    """Return time stamps as seconds since 1970, (n,) int64."""
    values = plain(block.full_column(name))
    kind = values.type
    fits = pa.types.is_string(kind) or pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None)
    if not fits:
        raise BadRecords(f"{block.place(0)}: the column {quote(name)} is of {kind}: expected time stamps without a zone")
    try:
        # A database may write fractions of seconds.
        return values.cast(pa.timestamp("us")).cast(pa.timestamp("s"), safe=False).cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        first = first_misfit(values, pa.timestamp("us"))
        raise BadRecords(
            f"{block.place(first)}: the column {quote(name)} holds {quote(values[first].as_py())}: expected a time stamp "
            "such as 2024-03-31 00:30, without a zone"
        ) from None
