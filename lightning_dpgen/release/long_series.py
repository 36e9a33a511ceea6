"""Synthetic series with one time a row, as long files have them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.series.schema import SeriesSchema

NUMBER, TIME = "series", "time"


def long_schema(schema: SeriesSchema, number: str = NUMBER, time: str = TIME) -> pa.Schema:
    """Return the columns of `long_chunks`."""
    readings = [(name, schema.arrow.types[0]) for name in schema.channels]
    label = [("label", schema.arrow.field("label").type)] if schema.classes else []
    return pa.schema([(number, pa.int64()), (time, _times(schema).type), *readings, *label])


def long_chunks(
    chunks: Iterable[pa.RecordBatch], schema: SeriesSchema, number: str = NUMBER, time: str = TIME, before: int = 0
) -> Iterator[pa.RecordBatch]:
    """Return series one time a row: their number from 1, the time, the reading of each channel, and the label.

    Args:
        chunks: one series a row.
        number, time: the names of these columns.
        before: the number of series before the first.

    Example:
        >>> schema = SeriesSchema(2, low=0.0, high=9.0, steps=("00:00", "12:00"))
        >>> wide = pa.record_batch({"t_0": [1.0, 3.0], "t_1": [2.0, 4.0]})
        >>> next(long_chunks([wide], schema)).to_pydict()
        {'series': [1, 1, 2, 2], 'time': ['00:00', '12:00', '00:00', '12:00'], 'value': [1.0, 2.0, 3.0, 4.0]}
    """
    several, times = len(schema.channels), _times(schema)
    for chunk in chunks:
        rows = chunk.num_rows
        numbers = np.column_stack([column.to_numpy() for column in chunk.columns[: schema.layout.units]])
        readings = numbers.reshape(rows * schema.length, several)
        columns = {
            number: pa.array(np.repeat(np.arange(before + 1, before + rows + 1), schema.length)),
            time: times.take(pa.array(np.tile(np.arange(schema.length), rows))),
        }
        columns |= {channel: pa.array(np.ascontiguousarray(readings[:, i])) for i, channel in enumerate(schema.channels)}
        if schema.classes:
            columns["label"] = chunk.columns[-1].take(pa.array(np.repeat(np.arange(rows), schema.length)))
        before += rows
        yield pa.record_batch(columns)


def _times(schema: SeriesSchema) -> pa.Array:
    return pa.array(schema.steps or range(schema.length))
