"""Series: where they are read, what is measured of them, and how they are released, shown, written and compared."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.files.arrays import ENDINGS
from lightning_dpgen.data.files.text import MissingData
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.names import LABEL
from lightning_dpgen.data.reading import Reading
from lightning_dpgen.data.series.files import names_in
from lightning_dpgen.data.series.form import DAY, WEEKDAYS, SeriesForm, clock_seconds, read_steps, steps_array
from lightning_dpgen.data.series.reading import read_series
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.kinds.kind import Kind
from lightning_dpgen.release.rows.output_format import OutputFormat, WrittenRecords
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.data import PublicSeriesSpec, SeriesSpec
from lightning_dpgen.specs.source import PublicSource, Source
from lightning_dpgen.specs.usage_error import UsageError

# Settings of the form of files.
_FORM = ("form", "separator", "columns", "label", "header", "by", "day", "time", "weekdays")
# Components in the largest directions.
_COMPONENTS = 20


class SeriesFile(Source):
    """Series in a file."""

    word = "series"

    def declare(self, discovery: dict[str, Any] | None = None) -> SeriesSchema:
        spec = self.spec
        described = spec.given("length", "low", "high", "channels", "classes", "decimals")
        if spec.weekdays is not None:
            if spec.classes is not None or spec.label is not None:
                raise UsageError(f"data.weekdays={spec.weekdays}: is the label, so leave out data.label and data.classes")
            described["classes"] = WEEKDAYS[spec.weekdays][0]
        if spec.steps is not None and spec.length is not None:
            described["steps"] = read_steps(spec.steps, spec.length)
        form = dataclasses.replace(spec.written, person=None)
        # Columns that are asked for may be some of a wide file's.
        schema = SeriesSchema(**described, written=dataclasses.replace(form, columns=None))
        return dataclasses.replace(schema, written=dataclasses.replace(form, columns=self._names(schema) or form.columns))

    def _names(self, schema: SeriesSchema) -> tuple[str, ...] | None:
        """Return the names of the columns of readings, which the header says; None where no file with one is there."""
        # A fault of the file is told by `check_records`, and where it is read.
        with suppress(MissingData, BadRecords, OSError):
            return self._header(schema)
        return None

    def _header(self, schema: SeriesSchema) -> tuple[str, ...] | None:
        path = self.spec.path
        return None if path is None or Path(path).suffix in ENDINGS else names_in(path, schema, self.spec.written)

    def check_records(self) -> None:
        with self._settings_named():
            self._header(self.declare())

    @property
    def record(self) -> str:
        named = " and one ".join(name for name in (self.spec.by, self.spec.day and f"day of {self.spec.day}") if name)
        return f"series (all rows of one {named})" if named else self.word

    def _read(self, schema: SeriesSchema, held_out: bool) -> Reading:
        return read_series(self.spec.path, schema, **self.spec.given("outside", "person", *_FORM))


class Series(Kind):
    """Series of one length: readings of a few channels at each of as many times."""

    name, schema, word = "series", SeriesSchema, "series"
    parts = "its length, the bounds of its values, and its labels"
    measured_networks = ("series_mixture",)

    def source(self, spec: SeriesSpec | PublicSeriesSpec) -> Source:
        return SeriesFile(spec) if isinstance(spec, SeriesSpec) else PublicSource(spec)

    def complete_measured(self, spec: Any, schema: SeriesSchema, defaults: Any) -> dict[str, Any]:
        return {"waves": defaults.waves_of_series, "components": _COMPONENTS, "label_share": 0.0}

    def recipe(self, spec: Any, schema: SeriesSchema, *, n: int, seed: int, strength: float, sets: Any = ()) -> Any:
        from lightning_dpgen.measure.series import SeriesRecipe

        return SeriesRecipe(schema, n, spec.waves, spec.components, seed=seed)

    def describe(self, schema: SeriesSchema) -> tuple[str, list[Any]]:
        from lightning_dpgen.release.drawing.described import Described, describe_label
        from lightning_dpgen.release.pages.text import joined, printable

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
        return f"series of {schema.length:,} readings{several}", [*describe_label(schema), *channels]

    def picture(self) -> Any:
        # It takes more than half a second to import, which other records do not wait for.
        from lightning_dpgen.kinds.curves import write_curves

        return write_curves

    def forms(self, schema: SeriesSchema) -> tuple[str, ...]:
        return ("wide", "long")

    def output_format(self, schema: SeriesSchema, release: Any, ending: str, form: str | None, declared: Any) -> Any:
        return written_series(schema, _form_of(schema, declared), form)

    def sample(self, release: Any, *draw: Any) -> Any:
        """Draw series in the form and under the names of the file that they were learned from."""
        if release.schema.written == SeriesForm():
            return super().sample(release, *draw)
        import pyarrow as pa

        written = written_series(release.schema, release.schema.written)
        n, seed, where, balance = draw
        rows = written.rows(release.sample_blocks(n, seed, where, balance=balance), 0)
        return pa.Table.from_batches(rows, written.columns).to_pandas()

    def encode(self, records: Any, schema: SeriesSchema) -> Encoded:
        return read_series(records, schema).encoded

    def sides(self, schema: SeriesSchema) -> dict[str, Any]:
        return {"channels": len(schema.channels), "bounds": schema.bounds()}


def _form_of(schema: SeriesSchema, declared: Any) -> SeriesForm:
    """Return the form in which real series were read, which the certificate of an older release says."""
    if schema.written != SeriesForm():
        return schema.written
    said = declared()
    form = {name: value for name in ("form", "by", "day") if isinstance(value := said.get(name), str)}
    try:
        return SeriesForm(**form)
    except ValueError:
        return SeriesForm()


KIND = Series()


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
    return WrittenRecords(pa.schema(fields), rows, OutputFormat(written.separator, header=not is_bare))


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
        columns, partial(_long_rows, schema, written, columns, times), OutputFormat(written.separator), schema.length
    )


def _long_rows(
    schema: SeriesSchema, written: SeriesForm, columns: pa.Schema, times: pa.Array, chunks: Iterable, before: int
) -> Iterator[pa.RecordBatch]:
    """Return series one time a row: the number, the time, the reading of each channel, and the label."""
    length, channels = schema.length, len(schema.channels)
    is_own = written.form == "long"
    for chunk in chunks:
        rows = chunk.num_rows
        arrays: dict[str, pa.Array] = {}
        if not is_own or written.by is not None:
            numbers = np.arange(before + 1, before + rows + 1)
            arrays[NUMBER if not is_own else written.by] = pa.array(np.repeat(numbers, length))
        if not is_own or written.time is not None:
            arrays[TIME if not is_own else written.time] = times.take(pa.array(np.tile(np.arange(length), rows)))
        if is_own and written.day is not None:
            arrays[written.day] = _stamps(schema, written, chunk, before)
        readings = np.column_stack([column.to_numpy() for column in chunk.columns[: schema.layout.units]])
        readings = readings.reshape(rows * length, channels)
        arrays |= {name: pa.array(np.ascontiguousarray(readings[:, i])) for i, name in enumerate(schema.words[0])}
        if len(arrays) < len(columns):
            arrays[columns.names[-1]] = chunk.columns[-1].take(pa.array(np.repeat(np.arange(rows), length)))
        before += rows
        yield pa.record_batch([arrays[name] for name in columns.names], schema=columns)


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
