"""Sets of values of one column: those that a condition asks for."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.conditions import EQUAL, UNEQUAL, Clause, quoted_name
from lightning_dpgen.data.tables.arrays import Misfit
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import Modelled, shortened
from lightning_dpgen.data.tables.numeric import Numeric

# The word for a missing value in rows that are handed over, and in conditions behind `is`.
MISSING = "missing"

Interval = tuple[int | float, int | float]


@dataclass(frozen=True)
class ValueSet:
    """Places of a column's scale (`Modelled.numbers`) in closed intervals, increasing and apart, and missing values or not.

    Example:
        >>> ages = ValueSet(((18, 30), (65, 99)), missing=True)
        >>> ages.holds(np.array([17, 18, 64, 0]), np.array([False, False, False, True])).tolist()
        [False, True, False, True]
    """

    intervals: tuple[Interval, ...]
    missing: bool = False

    def holds(self, numbers: np.ndarray, absent: np.ndarray) -> np.ndarray:
        """Mark the values (n,) that belong to it."""
        if not self.intervals:
            return absent & self.missing
        firsts, lasts = (np.array(ends, numbers.dtype) for ends in zip(*self.intervals, strict=True))
        at = np.searchsorted(firsts, numbers, side="right") - 1
        return np.where(absent, self.missing, (at >= 0) & (numbers <= lasts[np.maximum(at, 0)]))

    def covers(self, first: int | float, last: int | float) -> bool:
        """Tell whether all places from one to another belong to it."""
        at = self._begun_by(first)
        return at >= 0 and last <= self.intervals[at][1]

    def meets(self, first: int | float, last: int | float) -> bool:
        """Tell whether any place from one to another belongs to it."""
        at = self._begun_by(last)
        return at >= 0 and first <= self.intervals[at][1]

    def _begun_by(self, place: int | float) -> int:
        """Return the last interval that begins at a place or before it; -1 where none does."""
        return bisect.bisect_right(self.intervals, (place, math.inf)) - 1

    def common(self, other: ValueSet) -> ValueSet:
        """Return the values that belong to both.

        Example:
            >>> ValueSet(((0, 9),), missing=True).common(ValueSet(((-5, 2), (7, 20))))
            ValueSet(intervals=((0, 2), (7, 9)), missing=False)
        """
        both = tuple(pair for pair in _within(self.intervals, other.intervals) if pair[0] <= pair[1])
        return ValueSet(both, self.missing and other.missing)

    def nearest(self, numbers: np.ndarray, absent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Move values (n,) that do not belong to it to the nearest places that do: as `Modelled.numbers` returns them.

        A missing value becomes the first of its places; where there are none, a value becomes missing.
        """
        if not self.intervals:
            return np.zeros_like(numbers), np.ones(len(numbers), bool)
        firsts, lasts = (np.array(ends, numbers.dtype) for ends in zip(*self.intervals, strict=True))
        at = np.clip(np.searchsorted(firsts, numbers, side="right") - 1, 0, len(firsts) - 1)
        after = np.minimum(at + 1, len(firsts) - 1)
        below, above = np.clip(numbers, firsts[at], lasts[at]), np.clip(numbers, firsts[after], lasts[after])
        moved = np.where(np.abs(above - numbers) < np.abs(below - numbers), above, below)
        return np.where(absent, firsts[0], moved).astype(numbers.dtype), np.zeros(len(numbers), bool)


def value_set(column: Modelled, clause: Clause) -> ValueSet:
    """Return the values of a column that a condition asks for.

    A missing value belongs to ``is missing`` alone, as in SQL. A range such as ``30..39`` holds both its ends.

    Raises:
        ValueError: for values that the column cannot have, an order of values without one, or a set that holds nothing.

    Example:
        >>> from lightning_dpgen.data.tables.schema_keys import column_of
        >>> age = column_of("age", {"type": "integer", "low": 17, "high": 90})
        >>> value_set(age, Clause("age", "!=", ("40",)))
        ValueSet(intervals=((17, 39), (41, 90)), missing=False)
    """
    try:
        places = _places(column, clause)
    except ValueError as error:
        words = [value for value in clause.values if isinstance(value, str) and value.lower() == MISSING]
        if not (words and column.missing):
            raise
        unlike = "not " * (clause.operator == UNEQUAL)
        raise ValueError(f"{error}; ask for missing values by '{quoted_name(column.name)} is {unlike}missing'") from None
    missing = any(place is None for place in places)
    if missing and not column.missing:
        raise ValueError(f"column {column.name!r}: its schema lets no value be missing: expected a value")
    whole, ordered = not isinstance(column, Numeric) or column.scale.whole, all_values(column).intervals
    intervals = [place for place in places if place is not None]
    if clause.operator == UNEQUAL:
        taken, missing = intervals, False
        intervals = _others(taken, ordered, whole)
    elif clause.operator != EQUAL:
        intervals = _ordered(column, clause.operator, intervals[0][0], ordered, whole)
    kept = joined(_within(joined(intervals, whole), ordered), whole)
    if not kept and not missing:
        raise ValueError(f"column {column.name!r}: no value of its schema is {clause.operator} {listed(clause.values)}")
    return ValueSet(tuple(kept), missing)


def all_values(column: Modelled) -> ValueSet:
    """Return all values that a column may have."""
    if not isinstance(column, Numeric):
        return ValueSet(((0, column.present - 1),), column.missing)
    low, high = column.limits
    special = [(tick, tick) for tick in column.special_ticks.tolist() if not low <= tick <= high]
    return ValueSet(tuple(sorted([(low, high), *special])), column.missing)


def choices_with(column: Modelled, values: ValueSet) -> set[int]:
    """Return the choices of a column, missing among them, some value of which belongs to a set."""
    # No special value belongs to a bin.
    bare = without_special(column, values)
    may = {code for code, (low, high) in enumerate(column.ranges) if (bare if low < high else values).meets(low, high)}
    return may | ({column.present} if values.missing else set())


def without_special(column: Modelled, values: ValueSet) -> ValueSet:
    """Return values of a column without its special ones."""
    if not isinstance(column, Numeric) or not column.special or not values.intervals:
        return values
    whole, special = column.scale.whole, [(tick, tick) for tick in column.special_ticks.tolist()]
    ends = values.intervals[0][0], values.intervals[-1][1]
    rest = _others(special, [ends], whole)
    return ValueSet(
        tuple(joined([_common(one, other) for one in values.intervals for other in rest], whole)), values.missing
    )


def without(column: Modelled, values: ValueSet, taken: ValueSet) -> ValueSet:
    """Return values of a column that do not belong to others."""
    if not values.intervals or not taken.intervals:
        return ValueSet(values.intervals, values.missing and not taken.missing)
    whole = not isinstance(column, Numeric) or column.scale.whole
    rest = _others(list(taken.intervals), [(values.intervals[0][0], values.intervals[-1][1])], whole)
    kept = joined(_within(joined(rest, whole), values.intervals), whole)
    return ValueSet(tuple(kept), values.missing and not taken.missing)


def value_of(column: Modelled, value: Any) -> int | float | None:
    """Return the place of one value, given as text or of the column's own type; None of a missing one.

    The empty text is missing unless it is a category.

    Raises:
        ValueError: for one that the column cannot have.
    """
    if _is_missing(column, value):
        return None
    if (tick := _declared(column, value)) is not None and all_values(column).covers(tick, tick):
        return tick
    try:
        numbers, absent = column.numbers(pa.array([column.asked(value)]), False, Counter())
    except Misfit as misfit:
        near = suggest(value, column.present_names) if isinstance(column, Category) else ""
        raise ValueError(f"column {column.name!r}: {misfit.problem}{near}") from None
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        raise ValueError(f"column {column.name!r}: {shortened(value)}: expected a single value") from None
    return None if absent[0] else numbers[0].item()


def values_of(column: Modelled, values: Sequence[Any]) -> list[int | float | None]:
    """Return the places of values as `value_of` does: those of categories at once, since each look-up reads all of them.

    Raises:
        ValueError: for the first that the column cannot have.

    Example:
        >>> from lightning_dpgen.data.tables.schema_keys import column_of
        >>> city = column_of("city", {"type": "category", "values": ["Oslo", "Rome"], "missing": True})
        >>> values_of(city, ["Rome", "", "Oslo"])
        [1, None, 0]
    """
    missing = [_is_missing(column, value) for value in values]
    if not isinstance(column, Numeric) and not all(missing):
        asked = [column.asked(value) for value, lacks in zip(values, missing, strict=True) if not lacks]
        # One by one it is told which of them the column cannot have.
        with suppress(Misfit, pa.ArrowException, OverflowError, TypeError, ValueError):
            numbers, absent = column.numbers(pa.array(asked), False, Counter())
            found = iter(None if lacks else code for code, lacks in zip(numbers.tolist(), absent.tolist(), strict=True))
            return [None if lacks else next(found) for lacks in missing]
    return [value_of(column, value) for value in values]


def _places(column: Modelled, clause: Clause) -> list[Interval | None]:
    """Return the interval of each value that was said."""
    if not isinstance(column, Numeric):
        return [None if place is None else (place, place) for place in values_of(column, clause.values)]
    return [_place(column, text, clause.operator) for text in clause.values]


def _place(column: Numeric, value: Any, operator: str) -> Interval | None:
    """Return the interval of one number, or of a range of them; None where it is missing."""
    if _is_missing(column, value):
        if operator not in (EQUAL, UNEQUAL):
            raise ValueError(f"column {column.name!r}: expected a value after {operator}")
        return None
    if operator in (EQUAL, UNEQUAL):
        ends = value.split("..") if isinstance(value, str) else []
        if len(ends) != 2:
            place = value_of(column, value)
            return None if place is None else (place, place)
        first, last = (_number(column, end) for end in ends)
        if first > last:
            raise ValueError(f"column {column.name!r}: {value}: expected the smaller end of the range first")
        return first, last
    number = _number(column, value)
    return number, number


def _declared(column: Modelled, value: Any) -> int | float | None:
    """Return the place of a date or time as a schema writes it, without an offset; None for any other value."""
    if not isinstance(column, Numeric) or column.type not in ("date", "datetime", "time") or not isinstance(value, str):
        return None
    try:
        return column.scale.tick(value)
    except ValueError:
        return None


def _is_missing(column: Modelled, value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value and not column.takes_empty())


def _number(column: Numeric, value: Any) -> int | float:
    """Return a number on a column's scale, also one beyond its bounds."""
    if (tick := _declared(column, value)) is not None:
        return tick
    try:
        tick = column.scale.ticks(pa.array([value]))[0].item()
        return int(tick) if column.scale.whole else tick
    except Misfit as misfit:
        raise ValueError(f"column {column.name!r}: {misfit.problem}") from None
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        raise ValueError(f"column {column.name!r}: {shortened(value)}: expected a single value") from None


def _ordered(
    column: Modelled, operator: str, number: int | float, known: Sequence[Interval], whole: bool
) -> list[Interval]:
    if isinstance(column, Category):
        if column.kind is not int:
            raise ValueError(f"column {column.name!r}: its values have no order: expected =, != or in (...)")
        compare = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}[operator]
        value = column.values[int(number)]
        codes = np.flatnonzero(compare(np.array(column.values, object), value)).tolist()
        return joined([(code, code) for code in codes], True)
    step = _next(number, whole, operator in (">", ">="))
    bound = step if operator in ("<", ">") else number
    return [(known[0][0], bound)] if operator in ("<", "<=") else [(bound, known[-1][1])]


def _others(taken: list[Interval], known: Sequence[Interval], whole: bool) -> list[Interval]:
    """Return what is left between the first and the last known place without the intervals that are taken."""
    rest, first = [], known[0][0]
    for low, high in sorted(taken):
        rest.append((first, _next(low, whole, False)))
        first = max(first, _next(high, whole, True))
    return [*rest, (first, known[-1][1])]


def _next(number: int | float, whole: bool, up: bool) -> int | float:
    """Return the next place above or below."""
    if whole:
        return number + (1 if up else -1)
    return float(np.nextafter(number, np.inf if up else -np.inf))


def _common(one: Interval, other: Interval) -> Interval:
    return max(one[0], other[0]), min(one[1], other[1])


def _within(intervals: Sequence[Interval], known: Sequence[Interval]) -> list[Interval]:
    """Return what increasing intervals have in common with others, which are increasing and apart."""
    starts, common = [low for low, _ in known], []
    for low, high in intervals:
        first = max(bisect.bisect_right(starts, low) - 1, 0)
        last = bisect.bisect_right(starts, high)
        common += [_common((low, high), other) for other in known[first:last]]
    return common


def joined(intervals: list[Interval], whole: bool) -> list[Interval]:
    """Return intervals in their order, those that touch as one, without empty ones."""
    result: list[Interval] = []
    for low, high in sorted(interval for interval in intervals if interval[0] <= interval[1]):
        if result and low <= _next(result[-1][1], whole, True):
            result[-1] = result[-1][0], max(result[-1][1], high)
        else:
            result.append((low, high))
    return result
