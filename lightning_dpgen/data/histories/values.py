"""Histories by their values, before bins hide anything: attributes of persons, times of rows and their columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.data.histories.row_table import RowCounts, RowTable
from lightning_dpgen.data.histories.schema import HistorySchema
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.tables.values import TableValues


@dataclass(frozen=True, eq=False)
class RowValues(RowCounts):
    """The rows of N persons in one table, R of them, as `PersonRows` has them. Private, where the persons are.

    Args:
        counts: (N,) numbers of rows.
        times: (R,) float64, on the scale of times (days of dates); None without an order.
        values: the R rows by their values.
    """

    times: np.ndarray | None
    values: TableValues

    @cached_property
    def gaps(self) -> np.ndarray:
        """The distance (R,) of each row from the one before; NaN of first rows, and of all without an order."""
        if self.times is None or not len(self.times):
            return np.full(len(self.person), np.nan)
        return np.where(self.place > 0, np.diff(self.times, prepend=np.nan), np.nan)

    def __getitem__(self, persons: np.ndarray) -> RowValues:
        """Return the rows of some persons, by their places, in this order."""
        counts = self.counts[persons]
        rows = np.repeat(self.begins[persons] - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        return RowValues(counts, None if self.times is None else self.times[rows], self.values[rows])

    @classmethod
    def joined(cls, parts: Sequence[RowValues]) -> RowValues:
        """Join parts, at least one, in their order."""
        times = None if parts[0].times is None else np.concatenate([part.times for part in parts])
        counts = np.concatenate([part.counts for part in parts])
        return cls(counts, times, TableValues.joined([part.values for part in parts]))


@dataclass(frozen=True, eq=False)
class HistoryValues:
    """Persons with their histories, by values. Private, where the persons are.

    Args:
        schema: their description.
        persons: the attributes of N persons; None where persons have none.
        tables: their rows in each table, at most `max_rows` of a person, in the order of time.

    Example:
        >>> from lightning_dpgen.data.histories.row_table import RowOrder
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> rows = parse_schema("columns: {cost: {type: integer, low: 0, high: 99, bins: 2}}")
        >>> order = RowOrder.of("day", {"type": "integer", "low": 0, "high": 9, "bins": 5}, {"high": 30, "bins": 3})
        >>> schema = HistorySchema(None, (RowTable("visits", rows, max_rows=2, order=order),))
        >>> two = [{"day": 3, "cost": 7}, {"day": 20, "cost": 42}]
        >>> values = HistoryValues.of(pa.record_batch({"visits": [two, []]}), schema)
        >>> len(values), values.tables[0].gaps.tolist(), values.tables[0].values.column("cost").tolist()
        (2, [nan, 17.0], [7.0, 42.0])
    """

    schema: HistorySchema
    persons: TableValues | None
    tables: tuple[RowValues, ...]

    def __len__(self) -> int:
        return len(self.tables[0].counts)

    def __getitem__(self, rows: slice | np.ndarray) -> HistoryValues:
        places = np.arange(len(self))[rows]
        persons = None if self.persons is None else self.persons[places]
        return HistoryValues(self.schema, persons, tuple(table[places] for table in self.tables))

    @classmethod
    def of(cls, batch: pa.RecordBatch, schema: HistorySchema) -> HistoryValues:
        """Return the values of persons with a list of rows for each table, as `HistorySchema.decode` writes them.

        Raises:
            Misfit: for a value that cannot be read.
        """
        persons = None if schema.persons is None else TableValues.of(batch, schema.persons)
        return cls(schema, persons, tuple(_rows_of(table, batch.column(table.name)) for table in schema.tables))

    @classmethod
    def drawn(cls, schema: HistorySchema, encoded: Encoded, seed: int = 0) -> HistoryValues:
        """Return values of histories that are encoded already: those of a bin are drawn, as for a synthetic person."""
        return cls.of(schema.decode(encoded, np.random.default_rng(seed)), schema)

    @classmethod
    def joined(cls, parts: Sequence[HistoryValues]) -> HistoryValues:
        """Join parts, at least one, in their order."""
        schema, tables = parts[0].schema, zip(*(part.tables for part in parts), strict=True)
        persons = None if schema.persons is None else TableValues.joined(list(_attributes(parts)))
        return cls(schema, persons, tuple(RowValues.joined(rows) for rows in tables))


def _attributes(parts: Sequence[HistoryValues]) -> Iterator[TableValues]:
    return (part.persons for part in parts if part.persons is not None)


def _rows_of(table: RowTable, lists: pa.ListArray) -> RowValues:
    counts = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    rows = pa.RecordBatch.from_struct_array(lists.flatten())
    times = None
    if table.order is not None:
        times = table.order.start.scale.ticks(rows.column(table.order.name)).astype(np.float64)
    return RowValues(counts, times, TableValues.of(rows, table.rows))
