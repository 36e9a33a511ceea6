"""Series: where they are read, what is measured of them, and how they are released, shown and compared."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning_dpgen.data.errors import MissingData
from lightning_dpgen.data.files.arrays import ENDINGS
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.reading import Reading
from lightning_dpgen.data.series.files import names_in
from lightning_dpgen.data.series.form import WEEKDAYS, SeriesForm
from lightning_dpgen.data.series.reading import read_series
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.series.times import read_steps
from lightning_dpgen.kinds.kind import Kind
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

    def declare(self, found: dict[str, Any] | None = None) -> SeriesSchema:
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
    measured = ("series_mixture",)
    forms = ("wide", "long")

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

    def written(self, schema: SeriesSchema, release: Any, ending: str, form: str | None, declared: Any) -> Any:
        from lightning_dpgen.kinds.written_series import written_series

        return written_series(schema, _form_of(schema, declared), form)

    def sample(self, release: Any, *draw: Any) -> Any:
        """Draw series in the form and under the names of the file that they were learned from."""
        if release.schema.written == SeriesForm():
            return super().sample(release, *draw)
        import pyarrow as pa

        from lightning_dpgen.kinds.written_series import written_series

        written = written_series(release.schema, release.schema.written)
        n, seed, where, balance = draw
        rows = written.rows(release.chunks(n, seed, where, balance=balance), 0)
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
