"""Series from files or memory, as their schema writes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.files.arrays import ENDINGS, load_arrays
from lightning_dpgen.data.files.text import UNREADABLE, check_there
from lightning_dpgen.data.layout import Encoded, smallest_integer
from lightning_dpgen.data.names import quote
from lightning_dpgen.data.reading import Numbering, Reading, check_outside, class_positions, one_each
from lightning_dpgen.data.series.files import SeriesBlock, long_series, series_rows, wide_series
from lightning_dpgen.data.series.form import SeriesForm
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.sampling.errors import BadRecords

CLAMPED = "readings: outside the bounds, moved to them"
INCOMPLETE = "series: with a missing reading, left out"
OTHER_LENGTH = "series: of another length, left out"
# The share of the series that may be left out: of more than that, a model would be one of the others alone.
MOST_LEFT_OUT = 0.5
_NUMBERS_AT_ONCE = 1 << 20
# Lengths that a message lists.
_LENGTHS = 4


def read_series(
    source: Any,
    schema: SeriesSchema,
    *,
    outside: str = "refuse",
    person: str | Sequence | None = None,
    label: str | Sequence | None = None,
    form: str | None = None,
    header: bool | None = None,
    separator: str | None = None,
    columns: Sequence[str] | None = None,
    by: str | None = None,
    day: str | None = None,
    time: str | None = None,
    weekdays: str | None = None,
) -> Reading:
    """Read and encode series by the declared bounds, a block at a time.

    A long file that is cut by the order of its rows alone (neither `by` nor `day`) has windows as records: one reading more
    would shift all that follow. With `by` or `day` one series more or less changes no other, and with a person besides, no
    rows of any other do.

    Args:
        source: a path that ends in .csv, .tsv (both also .gz) or .parquet, see `SeriesForm`; .npy, which is
            mapped, or .npz with ``series`` and ``labels``; a DataFrame or pyarrow Table; an array (N, length) or
            (N, length, channels), NaN where a reading is missing.
        schema: what is publicly known.
        outside: ``refuse``: a reading beyond its bounds, a missing one (also ``NA``, ``nan``, ``?``) and a series of
            another length or with other times are errors; ``clamp``: the first is moved to the bound, the series of the
            others are left out, and all are counted. No value is ever made up. More than half of the series are never
            left out.
        person: the column of persons; rows of two are of two series. For arrays one value for each series.
        label: the column of labels, read where the schema has classes; for arrays one value for each series.
        form, header, separator, columns, by, day, time, weekdays: see `SeriesForm`. Where none of these and no label is
            given, the form is the schema's own, in which the records of a release were read.

    Returns:
        Reading: units (N, length * channels) float32 in [0, 1]; codes (N, 0), or (N, 1) with a label.

    Raises:
        MissingData: if there is no such file.
        BadRecords: for what cannot be read, no series at all, or what the schema does not allow, with line and value; and
            where more than `MOST_LEFT_OUT` of the series would be left out.
        ValueError: for a wrong argument.

    Example:
        >>> schema = SeriesSchema(2, low=0.0, high=4.0)
        >>> reading = read_series(np.array([[1.0, 4.0], [np.nan, 0.0], [2.0, 8.0]]), schema, outside="clamp")
        >>> reading.encoded.units.tolist()
        [[0.25, 1.0], [0.5, 1.0]]
        >>> reading.counted
        {'series: with a missing reading, left out': 1, 'readings: outside the bounds, moved to them': 1}
    """
    check_outside(outside)
    kept = _Kept(schema, outside)
    path = Path(source) if isinstance(source, str | Path) else None
    in_columns = {"columns": columns, "by": by, "day": day, "time": time, "weekdays": weekdays, "separator": separator}
    if isinstance(source, np.ndarray) or (path is not None and path.suffix in ENDINGS):
        given = [name for name, value in in_columns.items() if value is not None]
        if given or form == "long":
            raise ValueError(f"{given[0] if given else 'form'}: an array has no columns: leave it out")
        array, labels = _array(source, path, label)
        for block in _array_blocks(array, labels if schema.classes else None, person, schema):
            kept.put(block)
        return kept.reading()
    in_columns |= {"form": form, "header": header, "label": label}
    said = {name: value for name, value in in_columns.items() if value is not None}
    # The names of another file's columns are looked for, and not asked for.
    shape = SeriesForm(**said, person=person) if said else replace(schema.written, columns=None, person=person)
    if shape.time is not None and not schema.steps:
        raise ValueError(f"time={quote(shape.time)}: expected a schema with steps, the public times of a series")
    file = series_rows(source, schema, shape, drop_ragged=shape.form == "wide" and outside == "clamp")
    if shape.form == "wide":
        for block in wide_series(file, schema, shape):
            kept.put(block)
        kept.counted[OTHER_LENGTH] += file.ragged
        return kept.reading()
    block, others, first = long_series(file, schema, shape)
    if others and outside == "refuse":
        left_out = others.total()
        raise BadRecords(
            f"{first} has another length, a time twice, or one that is not declared: expected {schema.length} readings in "
            f"each channel; so have {left_out:,} of {left_out + len(block.readings):,} series ({_lengths(others)}): "
            "complete them, or leave such series out by outside=clamp"
        )
    kept.counted[OTHER_LENGTH] += others.total()
    kept.put(block)
    return kept.reading(others)


def _lengths(others: Mapping[int, int]) -> str:
    """Say which lengths are most frequent."""
    listed = [f"{count:,} of length {length:,}" for length, count in Counter(others).most_common(_LENGTHS)]
    return ", ".join(listed) + (", ..." if len(others) > _LENGTHS else "")


class _Kept:
    """The series that have been read so far, encoded."""

    def __init__(self, schema: SeriesSchema, outside: str) -> None:
        self.schema, self.outside = schema, outside
        self.units: list[np.ndarray] = []
        self.labels: list[np.ndarray] = []
        self.persons: list[np.ndarray] = []
        self.counted: Counter[str] = Counter()

    def put(self, block: SeriesBlock) -> None:
        readings, low_high = block.readings, self.schema.bounds()
        missing = np.isnan(readings)
        if self.outside == "refuse" and missing.any():
            series, unit = np.argwhere(missing)[0]
            raise BadRecords(
                f"{block.place(series)}: the reading {self.schema.columns[unit]} is missing: fill it in, or leave such "
                "series out by outside=clamp"
            )
        whole = ~missing.any(axis=1)
        self.counted[INCOMPLETE] += int((~whole).sum())
        if not whole.all():
            readings = readings[whole]
        beyond = (readings < low_high[0]) | (readings > low_high[1])
        if self.outside == "refuse" and beyond.any():
            series, unit = np.argwhere(beyond)[0]
            low, high = low_high[0][unit], low_high[1][unit]
            raise BadRecords(
                f"{block.place(series)}: the reading {self.schema.columns[unit]} is {readings[series, unit]:g}: expected "
                f"{low:g} to {high:g}; widen the bounds if others are publicly known, or use "
                "outside=clamp"
            )
        self.counted[CLAMPED] += int(beyond.sum())
        self.units.append(self.schema.scaled(readings))
        self.labels.append(np.zeros(len(readings), np.int64) if block.labels is None else block.labels[whole])
        if block.persons is not None:
            self.persons.append(block.persons[whole])

    def reading(self, lengths: Mapping[int, int] | None = None) -> Reading:
        """Return all of them; `lengths` are those of series that were left out, and how many have which."""
        kept, left_out = sum(map(len, self.units)), self.counted[OTHER_LENGTH] + self.counted[INCOMPLETE]
        reasons = ", ".join(f"{what}: {times:,}" for what, times in (+self.counted).items())
        reasons += f": {_lengths(lengths)}" if lengths else ""
        if not kept:
            raise BadRecords(f"there are no series: expected at least one ({reasons or 'nothing was left out'})")
        if left_out > MOST_LEFT_OUT * (kept + left_out):
            raise BadRecords(
                f"{left_out:,} of {kept + left_out:,} series would be left out ({reasons}), and the model would be of the "
                "others alone: declare the length that most of them have (length=...), make each as long by a rule "
                "that looks at it alone, or model their rows as a table"
            )
        labels, classes = np.concatenate(self.labels), len(self.schema.classes)
        codes = labels[:, None] if classes else np.zeros((len(labels), 0))
        codes = codes.astype(smallest_integer(max(0, classes - 1)))
        persons = np.concatenate(self.persons) if self.persons else None
        return Reading(Encoded(np.concatenate(self.units), codes), persons, dict(+self.counted))


def _array(source: Any, path: Path | None, label: Any) -> tuple[np.ndarray, Any]:
    """Return an array and its labels, if any."""
    labels = None if isinstance(label, str) else label
    if path is None:
        return source, labels
    check_there(path)
    arrays = load_arrays(path, ("series", "labels"))
    return arrays["series"], arrays.get("labels") if labels is None else labels


def _array_blocks(array: np.ndarray, labels: Any, person: Any, schema: SeriesSchema) -> Iterator[SeriesBlock]:
    length, channels = schema.length, len(schema.channels)
    shapes = [(length, channels)] + [(length,)] * (channels == 1)
    if array.shape[1:] not in shapes or array.ndim < 2:
        wanted = " or ".join(f"(N, {', '.join(map(str, shape))})" for shape in reversed(shapes))
        raise BadRecords(f"series have shape {array.shape}: expected {wanted}, channels last")
    if array.dtype.kind not in "fiub":
        raise BadRecords(f"series have dtype {array.dtype}: expected numbers")
    place = lambda i: f"series {i + 1}"  # noqa: E731
    at = class_positions(schema.classes, _one_each(labels, array, "label"), place) if schema.classes else None
    persons = None if person is None else Numbering().of(_one_each(person, array, "person"))
    rows = max(1, _NUMBERS_AT_ONCE // schema.layout.units)
    for start in range(0, len(array), rows):
        part = slice(start, start + rows)
        # A NaN that signals is a missing reading like any other.
        with np.errstate(invalid="ignore"):
            readings = np.asarray(array[part], np.float64).reshape(-1, schema.layout.units)
        yield SeriesBlock(
            readings,
            None if at is None else at[part],
            None if persons is None else persons[part],
            lambda i, start=start: place(start + i),
        )


def _one_each(values: Any, array: np.ndarray, what: str) -> pa.Array | None:
    """Return one value for each series, as it is."""
    if values is None:
        return None
    if not one_each(values, len(array)):
        raise BadRecords(f"{what}={quote(values)}: expected one value for each of the series")
    try:
        column = pa.array(values)
    except UNREADABLE as error:
        raise BadRecords(f"{what}: {' '.join(str(error).split())[:200]}") from None
    if column.null_count:
        raise BadRecords(f"{what}: a value is missing: expected one for each of the series")
    return column
