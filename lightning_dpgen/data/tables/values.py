"""Records of a table by their values, before bins hide anything; values drawn again where they break a constraint."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.layout import Encoded, Layout, smallest_integer
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.constraints import Rows
from lightning_dpgen.data.tables.given import GivenRows
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.schema import TableSchema


@dataclass(frozen=True, eq=False, repr=False)
class TableValues:
    """Records of a table by their values. Private, where the records are.

    Args:
        schema: their description, each of its columns decided.
        numbers: (N, columns of numbers) float64, on the scale of the column (days of dates, the last decimal place of
            numbers that have so many); NaN where missing.
        codes: (N, columns of categories) int32, the place among the declared values; their number where missing.

    Example:
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> schema = parse_schema("columns: {age: {type: integer, low: 0, high: 99, bins: 2, missing: true}}")
        >>> values = TableValues.of(pa.record_batch({"age": ["7", "42", ""]}), schema)
        >>> values.column("age")
        array([ 7., 42., nan])
    """

    schema: TableSchema
    numbers: np.ndarray
    codes: np.ndarray

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: slice | np.ndarray) -> TableValues:
        return TableValues(self.schema, self.numbers[rows], self.codes[rows])

    @classmethod
    def of(cls, batch: pa.RecordBatch, schema: TableSchema) -> TableValues:
        """Return the values of records of a schema, those outside of what it allows moved into it.

        Raises:
            Misfit: for a value that cannot be read.
        """
        numbers, codes = [], []
        for column in schema.recorded:
            places, absent = column.numbers(batch.column(column.name), True, Counter())
            if isinstance(column, Numeric):
                numbers.append(np.where(absent, np.nan, places))
            else:
                codes.append(np.where(absent, column.present, places).astype(np.int32))
        n = batch.num_rows
        return cls(schema, _stacked(numbers, n, np.float64), _stacked(codes, n, np.int32))

    @classmethod
    def drawn(cls, schema: TableSchema, encoded: Encoded, seed: int = 0) -> TableValues:
        """Return values of records that are encoded already: those of a bin are drawn, as for a synthetic record."""
        return cls.of(schema.decode(encoded, np.random.default_rng(seed)), schema)

    @classmethod
    def joined(cls, parts: list[TableValues]) -> TableValues:
        """Join parts, at least one, in their order."""
        numbers, codes = (np.concatenate([getattr(part, name) for part in parts]) for name in ("numbers", "codes"))
        return cls(parts[0].schema, numbers, codes)

    def of_columns(self, schema: TableSchema) -> TableValues:
        """Return the same records with the columns of another schema, all of which they have."""
        columns = [(column, self.column(column.name)) for column in schema.recorded]
        numbers = [values for column, values in columns if isinstance(column, Numeric)]
        codes = [values for column, values in columns if not isinstance(column, Numeric)]
        return TableValues(schema, _stacked(numbers, len(self), np.float64), _stacked(codes, len(self), np.int32))

    @property
    def of_numbers(self) -> list[Numeric]:
        """The columns of `numbers`, in their order."""
        return [column for column in self.schema.recorded if isinstance(column, Numeric)]

    @property
    def of_codes(self) -> list[Category]:
        """The columns of `codes`, in their order."""
        return [column for column in self.schema.recorded if isinstance(column, Category)]

    @cached_property
    def _places(self) -> dict[str, tuple[str, int]]:
        """The array of each column, and its place there: a table has thousands."""
        both = (("numbers", self.of_numbers), ("codes", self.of_codes))
        return {column.name: (values, place) for values, columns in both for place, column in enumerate(columns)}

    def column(self, name: str) -> np.ndarray:
        """Return the numbers, or the codes, of one column (N,).

        Raises:
            ValueError: for a column that the schema does not model.
        """
        if name not in self._places:
            raise ValueError(f"column {name!r}: expected one of {listed(column.name for column in self.schema.recorded)}")
        values, place = self._places[name]
        return getattr(self, values)[:, place]

    def rows(self) -> Rows:
        """Return the values as constraints look at them."""
        rows: Rows = {}
        for column, numbers in zip(self.of_numbers, self.numbers.T, strict=True):
            absent = np.isnan(numbers)
            rows[column.name] = np.where(absent, 0.0, numbers), absent
        for column, codes in zip(self.of_codes, self.codes.T, strict=True):
            rows[column.name] = codes, codes >= column.present
        return rows

    def scaled(self) -> tuple[Encoded, Layout]:
        """Write the values as units and groups, exact but for float32, for metrics that take `Encoded` records.

        A number is a unit, its place between the declared bounds. A missing one is 0, a special one beyond the bounds the
        nearest of them, and a group says so. A category is a group, and so is a label of whole numbers.
        """
        units, groups, sizes, label = [], [], [], None
        for column in self.schema.recorded:
            values = self.column(column.name)
            if isinstance(column, Category):
                choices = values
                size = len(column.values) + column.missing
            else:
                low, high = column.grid.low, column.grid.high
                named = column.special_ticks
                if column.name == self.schema.label:
                    named = np.union1d(np.arange(low, high + 1), named)
                else:
                    named = named[(named < low) | (named > high)]
                    share = np.clip((values - low) / ((high - low) or 1), 0.0, 1.0)
                    units.append(np.nan_to_num(share, nan=0.0))
                choices, size = _choices(values, named, column.name == self.schema.label)
                size += column.missing
            if column.name == self.schema.label:
                label = len(groups)
            elif size < 2:
                continue
            groups.append(choices)
            sizes.append(size)
        n, kind = len(self), smallest_integer(max(sizes, default=1) - 1)
        encoded = Encoded(_stacked(units, n, np.float32), _stacked(groups, n, kind))
        return encoded, Layout(len(units), None, tuple(sizes), label)


def _choices(values: np.ndarray, named: np.ndarray, is_label: bool) -> tuple[np.ndarray, int]:
    """Return the choice (n,) of each value, and how many there are: other numbers, if any, the named ones, missing."""
    first = 0 if is_label else 1
    choices = np.zeros(len(values), np.int64)
    for place, tick in enumerate(named):
        choices[values == tick] = first + place
    choices[np.isnan(values)] = first + len(named)
    return choices, first + len(named)


def _stacked(columns: list[np.ndarray], n: int, kind: np.dtype) -> np.ndarray:
    return np.stack(columns, axis=1).astype(kind, copy=False) if columns else np.zeros((n, 0), kind)


# The values of records that break a constraint are drawn again at most so often, and only while that mends any of them,
# before the records are.
_VALUES = 10


def draw_kept_values(
    schema: TableSchema, encoded: Encoded, random: np.random.Generator, given: GivenRows | None = None
) -> tuple[pa.RecordBatch, np.ndarray]:
    """Draw the values of records, again where they break a constraint; return them, and which (n,) keep all.

    Choices are learned from records that keep the constraints, so they are more to be trusted than values within a bin.

    Args:
        given: rows whose given cells stand in the place of drawn ones.

    Example:
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> column = "{type: integer, low: 0, high: 19, bins: 2}"
        >>> schema = parse_schema(f"{{columns: {{a: {column}, b: {column}}}, constraints: [a <= b]}}")
        >>> encoded = Encoded(np.zeros((100, 0), np.float32), np.zeros((100, 2), np.uint8))
        >>> values, kept = draw_kept_values(schema, encoded, np.random.default_rng(0))
        >>> int(kept.sum()) > 95, int(schema.rules.kept(schema.values(encoded, np.random.default_rng(0))).sum()) < 70
        (True, True)
    """
    cells, known = ({}, None) if given is None else (given.cells, given.known)
    values = schema.values(encoded, random, cells)
    kept = schema.rules.kept(values, known)
    for _ in range(_VALUES if schema.rules.restrict else 0):
        again = np.flatnonzero(~kept)
        if not len(again):
            break
        some = None if given is None else given[again]
        drawn = schema.values(encoded[again], random, {} if some is None else some.cells)
        fine = schema.rules.kept(drawn, None if some is None else some.known)
        if not fine.any():
            break
        order = np.arange(len(kept))
        order[again[fine]] = len(kept) + np.flatnonzero(fine)
        values = pa.Table.from_batches([values, drawn]).take(pa.array(order)).combine_chunks().to_batches()[0]
        kept[again[fine]] = True
    return values, kept
