"""Columns that are learned by their distance from another column, as the day of discharge from that of admission."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import numpy as np
import pyarrow as pa

from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.data.conditions import quoted_name
from lightning_dpgen.data.tables.column import BadSchema, Column, Key, Modelled, shortened
from lightning_dpgen.data.tables.constraints import Distance
from lightning_dpgen.data.tables.numeric import OF_DISTANCE, Numeric

# The key that names the other column.
RELATIVE_TO = "relative_to"
_NUMBERS = ("integer", "number")


@dataclass(frozen=True)
class Relative(Column):
    """Numbers, dates or times that are learned by their distance from another column of the same type.

    A record without a value of the other column has none of this one. A special value stays as it is.

    Args:
        value: the column as it is read and written.
        apart: the distances, in whole days of dates, in units of the resolution of times, or as the numbers are.

    Example:
        >>> from lightning_dpgen.data.tables.schema_keys import column_of
        >>> stay = column_of("discharged", {
        ...     "type": "date", "low": "2023-01-01", "high": "2025-12-31", "relative_to": "admitted", "distance": [0, 180],
        ... })
        >>> stay.apart.low, stay.apart.high, stay.text
        (0, 180, 'discharged lies 0 to 180 days after admitted')
    """

    value: Numeric
    apart: Numeric

    relative_to = Key()

    def with_apart(self, apart: Numeric) -> Column:
        """Return the column with distances that are cut, or distributed, otherwise."""
        return self.with_values(**{key: getattr(apart, key) for key in OF_DISTANCE})

    def with_bins(self, bins: int) -> Column:
        return self.with_apart(self.apart.with_bins(bins))

    @property
    def arrow(self) -> pa.DataType:
        return self.value.arrow

    @property
    def text(self) -> str:
        """The range of distances in words."""
        return f"{quoted_name(self.name)} lies {self.apart.low} to {self.apart.high} {self.measure}"

    @property
    def measure(self) -> str:
        """The unit of distances, and from where they are measured, in words."""
        after = "above" if self.value.type in _NUMBERS else f"{self.value.resolution or 'day'}s after"
        return f"{after} {quoted_name(self.relative_to)}"

    @property
    def choice_names(self) -> list[str]:
        """The names of the choices of `apart`, with special values as they are written."""
        names, first = self.apart.choice_names, self.apart.present - len(self.value.special)
        texts = [str(self.value.scale.declared(tick)) for tick in self.value.special_ticks.tolist()]
        return [*names[:first], *texts, *names[self.apart.present :]]

    def constraint(self, of: Numeric) -> Distance:
        """Return the constraint that distances from the other column keep."""
        return Distance(self.text, self.value, of, *self.apart.limits)

    def distances(
        self, batch: pa.RecordBatch | Mapping[str, pa.Array], of: Numeric, clamp: bool, counted: Counter[str]
    ) -> pa.Array:
        """Return the distances (n,) of records from the other column, as `apart` reads them; errors are those of `encode`.

        Args:
            of: the other column as it is read.
        """
        numbers, absent = self.value.numbers(batch[self.name], clamp, counted)
        starts, unknown = of.numbers(batch[self.relative_to], clamp, Counter())
        special = self.value.special_ticks
        named = np.isin(numbers, special)
        beyond = self.apart.limits[1] + 1 + np.searchsorted(special, numbers)
        apart = self.constraint(of).apart(numbers, starts)
        return self.apart.restored(np.where(named, beyond, apart), absent | unknown)

    def restored(self, apart: pa.Array, starts: pa.Array, of: Numeric) -> pa.Array:
        """Invert `distances`: values (n,), which may lie beyond their bounds."""
        distances, absent = self.apart.numbers(apart, True, Counter())
        begin, unknown = ticks_of(of, starts)
        numbers = begin + distances
        if len(special := self.value.special_ticks):
            place = distances - self.apart.limits[1] - 1
            chosen = special[np.clip(place, 0, len(special) - 1).astype(np.int64)]
            numbers = np.where(place >= 0, chosen, numbers)
        return self.value.restored(np.where(absent | unknown, 0, numbers), absent | unknown)


def ticks_of(column: Numeric, values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the places (n,) of values of a column's type, which may lie beyond its bounds, and where none is (n,)."""
    absent = values.is_null().to_numpy(zero_copy_only=False)
    present = column.scale.ticks(values.drop_null())
    ticks = np.zeros(len(values), np.int64 if column.scale.whole else np.float64)
    ticks[~absent] = present
    return ticks, absent


def ordered(relatives: Sequence[Relative], columns: Mapping[str, Modelled], derived: frozenset[str]) -> list[Relative]:
    """Return relative columns in an order in which each follows the one that it is relative to.

    Args:
        columns: all that are read, by name.
        derived: the names of those that others determine.

    Raises:
        BadSchema: for one that is relative to what is no fitting column, or to itself, in a circle.
    """
    by_name = {column.name: column for column in relatives}
    for column in relatives:
        _check(column, columns, derived)
    try:
        order = list(TopologicalSorter({name: {column.relative_to} for name, column in by_name.items()}).static_order())
    except CycleError as error:
        raise BadSchema("is relative to itself, in a circle", error.args[1][0], RELATIVE_TO) from None
    return [by_name[name] for name in order if name in by_name]


def _check(column: Relative, columns: Mapping[str, Modelled], derived: frozenset[str]) -> None:
    """Refuse a column that is relative to one that does not fit."""
    name, other = column.name, column.relative_to
    if name in derived:
        raise BadSchema("is determined by a constraint, too: leave one of them out", name, RELATIVE_TO)
    if other not in columns:
        near = suggest(other, [one for one in columns if one != name])
        raise BadSchema(f"{shortened(other)}: expected a column that is read{near}", name, RELATIVE_TO)
    of = columns[other]
    if not isinstance(of, Numeric) or of.scale != column.value.scale:
        expected = "a column of the same type, decimals, resolution and zone, with declared bounds"
        raise BadSchema(f"{shortened(other)}: expected {expected}", name, RELATIVE_TO)
    if of.special or other in derived:
        why = "has special values" if of.special else "is determined by other columns"
        raise BadSchema(f"{shortened(other)} {why}: expected a column from which the distance is known", name, RELATIVE_TO)
    if of.missing and not column.value.missing:
        raise BadSchema(f"{shortened(other)} may be missing: declare missing: true here, too", name, RELATIVE_TO)
