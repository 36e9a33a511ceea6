"""Files of series as they are written: one series a row (wide), or one time a row (long)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.data.files.blocks import Block, RowSource, first_misfit
from lightning_dpgen.data.files.delimited import DelimitedText
from lightning_dpgen.data.names import plain, shown
from lightning_dpgen.data.numbers import floats_of
from lightning_dpgen.data.reading import Numbering, class_positions
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.privacy.plain_text import listed
from lightning_dpgen.sampling.errors import BadRecords

MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null")
_NUMERIC = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
_DAY = 86_400
# Ways to tell days of the week apart: the names of the classes, and the class of each day from Monday on.
WEEKDAYS = {
    "each": (("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"), (0, 1, 2, 3, 4, 5, 6)),
    "weekend": (("Monday to Friday", "weekend"), (0, 0, 0, 0, 0, 1, 1)),
}
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


@dataclass(frozen=True)
class SeriesForm:
    """The form in which series are written.

    Args:
        form: ``wide``, one series a row; or ``long``, one time a row.
        header: whether the first line of a text file names the columns; None: it does, and numbers are refused there, since
            a series would be lost if they were one. Without names a wide file has the label first, where the schema has
            classes, then the readings, and a long file cannot be read.
        separator: between fields; None for what goes with the ending.
        columns: of the readings: in a wide file one for each reading, by time and then channel; in a long one for each
            channel. None: the schema's own (``t_0``..., its steps, its channels) where they are there, or else all that
            are left.
        label, person: names of columns. A series of a long file is of one person: rows of two persons are never of one
            series, whatever else they have in common.
        by: long: the column whose values tell series apart.
        day: long: a column of time stamps (ISO, without a zone); the readings of one date make a series, ordered by time.
            Without `by`, `day` and `person` each `length` rows make a series, in the order of the file; a person goes
            with at least one of the other two.
        weekdays: long, with `day`: the label is the day of the week, ``each`` of them or ``weekend`` and all others
            (`WEEKDAYS` has the classes).
    """

    form: str = "wide"
    header: bool | None = None
    separator: str | None = None
    columns: Sequence[str] | None = None
    label: str = "label"
    person: str | None = None
    by: str | None = None
    day: str | None = None
    weekdays: str | None = None

    def __post_init__(self) -> None:
        if self.weekdays is not None and (self.weekdays not in WEEKDAYS or self.day is None):
            raise ValueError(
                f"weekdays={shown(self.weekdays)} day={shown(self.day)}: expected {' or '.join(WEEKDAYS)}, and the column "
                "of times, or neither"
            )
        if self.form not in ("wide", "long"):
            raise ValueError(f"form={shown(self.form)}: expected wide or long")
        columns = () if self.columns is None else self.columns
        if not isinstance(columns, list | tuple) or not all(isinstance(name, str) for name in columns):
            raise ValueError(f"columns={shown(self.columns)}: expected a list of names")
        if self.form == "wide" and (self.by is not None or self.day is not None):
            raise ValueError(
                f"by={shown(self.by)} day={shown(self.day)}: apply only to long files; expected form=long, or neither"
            )
        if self.form == "long" and self.person is not None and self.by is None and self.day is None:
            raise ValueError(
                f"person={shown(self.person)} with neither by nor day: series cut by the order of rows alone would shift "
                "with each row of another person; name the column that identifies the series (by), or the column of "
                "times (day)"
            )
        for name in ("label", "person", "by", "day", "separator"):
            if not isinstance(getattr(self, name), str | None):
                raise ValueError(f"{name}={shown(getattr(self, name))}: of a file or table, expected text, such as a name")
        if self.header is False and (self.form == "long" or self.columns is not None or self.person is not None):
            raise ValueError("header=False: expected a wide file, and no columns or person, which are found by their names")


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
            None if label is None else class_positions(schema.classes, plain(block.column(label)), block.place),
            None if form.person is None else persons.of(block.full_column(form.person)),
            block.place,
        )


def long_series(file: RowSource, schema: SeriesSchema, form: SeriesForm) -> tuple[SeriesBlock, int, str]:
    """Return the series of a file with one time in each row; the number of those of another length, and where the first is.

    Raises:
        BadRecords: for a column that is not there, a reading that is no number, a time stamp that is none, or a label
            that changes within a series.
    """
    label = form.label if schema.classes and form.weekdays is None else None
    if form.weekdays is not None and schema.classes not in ((), WEEKDAYS[form.weekdays][0]):
        raise ValueError(f"classes={shown(list(schema.classes))}: expected those of weekdays={form.weekdays}")
    keys = [name for name in (form.by, form.day) if name is not None]
    besides = _besides(file, label, form.person, *keys)
    columns = _columns(file, list(schema.channels), form.columns, besides, "channels")
    ids, persons = Numbering(), Numbering()
    parts: dict[str, list[np.ndarray]] = {name: [] for name in ("readings", "ids", "times", "label", "person")}
    for block in file.blocks([*dict.fromkeys([*columns, *besides])]):
        n = len(block.rows)
        parts["readings"].append(np.column_stack([readings_of(block, name) for name in columns]))
        parts["ids"].append(np.zeros(n, np.int64) if form.by is None else ids.of(block.full_column(form.by)))
        parts["times"].append(np.zeros(n, np.int64) if form.day is None else _seconds(block, form.day))
        if label is not None:
            parts["label"].append(class_positions(schema.classes, plain(block.column(label)), block.place))
        if form.person is not None:
            parts["person"].append(persons.of(block.full_column(form.person)))
    rows = {name: np.concatenate(arrays) if arrays else None for name, arrays in parts.items()}
    if schema.classes and form.weekdays is not None and rows["times"] is not None:
        rows["label"] = np.array(WEEKDAYS[form.weekdays][1])[(rows["times"] // _DAY + _FIRST) % 7]
    if rows["readings"] is None:
        return SeriesBlock(np.empty((0, schema.layout.units)), None, None, str), 0, ""
    return _cut(rows, schema, form, list(ids.known), file.where)


def _cut(rows: dict, schema: SeriesSchema, form: SeriesForm, ids: list, where: str) -> tuple[SeriesBlock, int, str]:
    n, length = len(rows["readings"]), schema.length
    days = rows["times"] // _DAY
    if form.by is None and form.day is None:
        keys = [np.arange(n) // length]
    else:
        # The person too: one person's rows must not change the series of another.
        keys = [days, *([] if rows["person"] is None else [rows["person"]]), rows["ids"]]
    order = np.lexsort((rows["times"], *keys))
    times, new = rows["times"][order], np.zeros(n, bool)
    for key in keys:
        new |= np.diff(key[order], prepend=key[order[0]] - 1) != 0
    starts = np.flatnonzero(new)
    whole = np.diff(starts, append=n) == length
    if form.day is not None:
        # A time that stands twice, as when clocks are set back, makes no series even if the number fits.
        twice = (np.diff(times, prepend=times[0] - 1) == 0) & ~new
        whole &= ~np.logical_or.reduceat(twice, starts)

    def place(start: int) -> str:
        first = order[start]
        named = [f"{form.by}={shown(ids[rows['ids'][first]])}"] if form.by is not None else []
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
    return block, len(others), place(others[0]) if len(others) else ""


def readings_of(block: Block, name: str) -> np.ndarray:
    """Return a column as float64 (n,), NaN where a reading is missing; raise BadRecords for what is no number."""
    values = plain(block.column(name))
    kind = values.type
    if pa.types.is_string(kind):
        values = pc.if_else(pc.is_in(values, value_set=pa.array(MISSING)), None, values)
    elif not any(test(kind) for test in _NUMERIC):
        raise BadRecords(f"{block.place(0)}: the column {shown(name)} is of {kind}: expected numbers")
    try:
        if pa.types.is_decimal(kind):
            return floats_of(values)
        return pc.fill_null(values.cast(pa.float64(), safe=False), np.nan).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        first = first_misfit(values, pa.float64())
        raise BadRecords(
            f"{block.place(first)}: the column {shown(name)} holds {shown(values[first].as_py())}: expected a number, "
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
    columns = _columns(file, schema.columns, form.columns, besides, "readings")
    said = form.header is not None or form.columns is not None
    if isinstance(file, DelimitedText) and not said and first_misfit(pa.array(columns), pa.float64()) is None:
        raise BadRecords(
            f"{file.where}, line 1: found numbers, expected names of columns: give header=False if they are a series, "
            "header=True if they are names"
        )
    return columns


def _columns(file: RowSource, own: list[str], given: Sequence[str] | None, besides: list[str], what: str) -> list[str]:
    """Return the columns of readings: as given, or the schema's own, or all that are left."""
    if given is not None:
        file.check_has(given)
        columns = list(given)
    elif set(own) <= set(file.columns):
        columns = own
    else:
        columns = file.others(besides)
    if len(columns) != len(own):
        raise BadRecords(
            f"{file.where}: found {len(columns)} columns of {what}, expected {len(own)}, as the schema declares: "
            f"{listed(columns)}; name the columns of readings, or correct the length"
        )
    return columns


def _seconds(block: Block, name: str) -> np.ndarray:
    """Return time stamps as seconds since 1970, (n,) int64."""
    values = plain(block.full_column(name))
    kind = values.type
    fits = pa.types.is_string(kind) or pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None)
    if not fits:
        raise BadRecords(f"{block.place(0)}: the column {shown(name)} is of {kind}: expected time stamps without a zone")
    try:
        return values.cast(pa.timestamp("s"), safe=pa.types.is_string(kind)).cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        first = first_misfit(values, pa.timestamp("s"))
        raise BadRecords(
            f"{block.place(first)}: the column {shown(name)} holds {shown(values[first].as_py())}: expected a time stamp "
            "such as 2024-03-31 00:30, without a zone"
        ) from None
