"""Synthetic series as files have the real ones: one series a row, or one time a row, under the names of the columns."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.names import LABEL
from lightning_dpgen.data.series.form import WEEKDAYS, SeriesForm
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.series.times import DAY, clock_seconds, steps_array
from lightning_dpgen.release.rows.as_read import AsRead, WrittenRecords

# Columns of files that are long though the real ones were not.
NUMBER, TIME = "series", "time"
# Dates are made up, from this Monday on: those of the records are private.
_MONDAY = datetime.date(2000, 1, 3)
_EPOCH = datetime.date(1970, 1, 1)
_DAYS = (datetime.date.max - _MONDAY).days


def written_series(schema: SeriesSchema, written: SeriesForm, form: str | None = None) -> WrittenRecords:
    """Return the form in which synthetic series are written.

    Args:
        written: that of the real ones.
        form: ``wide`` or ``long`` in place of theirs; None for theirs.

    In long files a series has a made-up number in place of its id, and made-up days in place of its date: the first one is
    Monday, 3 January 2000. Times are the declared steps; times of day that are not declared are evenly spaced from
    midnight.

    Example:
        >>> schema = SeriesSchema(2, low=0.0, high=9.0, steps=("1980", "1981"))
        >>> as_panel = written_series(schema, SeriesForm("long", columns=("lwage",), by="nr", time="year"))
        >>> wide = pa.record_batch({"t_0": [1.0, 3.0], "t_1": [2.0, 4.0]})
        >>> next(as_panel.rows([wide], 0)).to_pydict()
        {'nr': [1, 1, 2, 2], 'year': [1980, 1981, 1980, 1981], 'lwage': [1.0, 2.0, 3.0, 4.0]}
    """
    schema = replace(schema, written=written)
    if (form or written.form) == "long":
        return _long(schema, written)
    columns = list(written.columns) if written.form == "wide" and written.columns else schema.columns
    if written.form == "long" and len(schema.channels) == 1:
        columns = list(schema.words[1]) or columns
    label = _label(schema, written, columns)
    # A file without names has the label first.
    is_bare = written.header is False
    names = [*columns, *label] if not is_bare else [*label, *columns]
    order = [*range(len(columns)), *[len(columns)] * bool(label)] if not is_bare else [-1] * bool(label)
    order += list(range(len(columns))) if is_bare else []
    fields = [schema.arrow.field(i).with_name(name) for i, name in zip(order, names, strict=True)]
    rows = partial(_wide_rows, order, pa.schema(fields))
    return WrittenRecords(pa.schema(fields), rows, AsRead(written.separator, header=not is_bare))


def _wide_rows(
    order: list[int], columns: pa.Schema, chunks: Iterable[pa.RecordBatch], before: int
) -> Iterator[pa.RecordBatch]:
    """Return series one a row, in an order of columns."""
    for chunk in chunks:
        yield pa.record_batch([chunk.column(i) for i in order], schema=columns)


def _label(schema: SeriesSchema, written: SeriesForm, columns: list[str]) -> list[str]:
    """Return the name of the column of labels, where there is one; days of the week are told by dates."""
    if not schema.classes:
        return []
    return [LABEL if written.label in columns else written.label]


def _long(schema: SeriesSchema, written: SeriesForm) -> WrittenRecords:
    names = list(schema.words[0])
    is_own = written.form == "long"
    keys = [name for name in (written.by, written.day, written.time) if name is not None] if is_own else [NUMBER, TIME]
    label = [] if is_own and written.weekdays else _label(schema, written, [*keys, *names])
    if len({*keys, *names, *label}) < len(keys) + len(names) + len(label):
        raise ValueError(f"columns {', '.join([*keys, *names, *label])}: two have one name: expected --form wide")
    times = steps_array(schema.words[1] or [str(t) for t in range(schema.length)])
    kinds = [pa.int64() if key in (written.by, NUMBER) else times.type for key in keys]
    if is_own and written.day is not None:
        kinds[keys.index(written.day)] = pa.timestamp("s")
    fields = [*zip(keys, kinds, strict=True), *((name, pa.float64()) for name in names)]
    fields += [(name, schema.arrow.field(LABEL).type) for name in label]
    columns = pa.schema(fields)
    return WrittenRecords(
        columns, partial(_long_rows, schema, written, columns, times), AsRead(written.separator), schema.length
    )


def _long_rows(
    schema: SeriesSchema, written: SeriesForm, columns: pa.Schema, times: pa.Array, chunks: Iterable, before: int
) -> Iterator[pa.RecordBatch]:
    """Return series one time a row: the number, the time, the reading of each channel, and the label."""
    length, channels = schema.length, len(schema.channels)
    is_own = written.form == "long"
    for chunk in chunks:
        rows = chunk.num_rows
        made: dict[str, pa.Array] = {}
        if not is_own or written.by is not None:
            numbers = np.arange(before + 1, before + rows + 1)
            made[NUMBER if not is_own else written.by] = pa.array(np.repeat(numbers, length))
        if not is_own or written.time is not None:
            made[TIME if not is_own else written.time] = times.take(pa.array(np.tile(np.arange(length), rows)))
        if is_own and written.day is not None:
            made[written.day] = _stamps(schema, written, chunk, before)
        readings = np.column_stack([column.to_numpy() for column in chunk.columns[: schema.layout.units]])
        readings = readings.reshape(rows * length, channels)
        made |= {name: pa.array(np.ascontiguousarray(readings[:, i])) for i, name in enumerate(schema.words[0])}
        if len(made) < len(columns):
            made[columns.names[-1]] = chunk.columns[-1].take(pa.array(np.repeat(np.arange(rows), length)))
        before += rows
        yield pa.record_batch([made[name] for name in columns.names], schema=columns)


def _stamps(schema: SeriesSchema, written: SeriesForm, chunk: pa.RecordBatch, before: int) -> pa.Array:
    """Return moments (rows * length,), on a day of its own for each series that no number tells apart."""
    numbers = np.arange(before, before + chunk.num_rows)
    days = np.zeros_like(numbers) if written.by is not None else numbers
    if written.weekdays is not None and schema.classes:
        _, class_of_day = WEEKDAYS[written.weekdays]
        labels = np.array([schema.classes.index(label) for label in chunk.columns[-1].to_pylist()], np.int64)
        days = 7 * days
        for own in range(len(schema.classes)):
            among = np.flatnonzero(np.array(class_of_day) == own)
            of = labels == own
            days[of] += among[numbers[of] % len(among)]
    if len(days) and days.max() > _DAYS:
        raise ValueError(
            f"{int(days.max()):,} days: each series is of a day of its own, before the year 10,000: expected fewer series, "
            "or --form wide"
        )
    seconds = clock_seconds(schema.steps)
    if seconds is None:
        seconds = np.arange(schema.length) * DAY // schema.length
    moments = ((_MONDAY - _EPOCH).days + days)[:, None] * DAY + seconds
    return pa.array(moments.ravel()).cast(pa.timestamp("s"))
