"""The kinds of constraints between columns of a table: which rows keep one, and how a row that does not is repaired."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lightning_dpgen.data.conditions import EQUAL
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import Modelled
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.value_set import ValueSet

# Real numbers that differ by less than this part of the larger one count as equal.
_CLOSE = 1e-9
# A column is learned beside the one from which it follows where that has so many times as many values.
_COARSE = 4

# The values of columns by their names: places (n,) on the column's scale, and where they are missing (n,).
Rows = dict[str, tuple[np.ndarray, np.ndarray]]


class Constraint(ABC):
    """A statement about several columns that holds of each row by itself.

    Attributes:
        text: the constraint in words.
        columns: the names of the columns that it is about.
        derives: the column that the others determine, which is computed and not learned; None if none is.
    """

    text: str
    columns: tuple[str, ...]
    derives: str | None = None

    @abstractmethod
    def holds(self, rows: Rows) -> np.ndarray:
        """Mark the rows (n,) that keep it."""

    @abstractmethod
    def repair(self, rows: Rows, broken: np.ndarray) -> None:
        """Change rows that are marked as broken (n,), each of them alone, so that they keep it where that is possible."""

    def repair_around(self, rows: Rows, known: Mapping[str, np.ndarray], broken: np.ndarray) -> None:
        """Change values that are not known, in marked rows (n,), so that they keep it, where `repair` changes known ones.

        Args:
            known: by column the rows (n,) whose value must stay.
        """
        return

    def kinds(self, rows: Rows) -> list[np.ndarray]:
        """Return whole numbers (n,), in which places of single columns differ that the constraint does not treat alike.

        Args:
            rows: some of its columns, perhaps others.
        """
        return []


@dataclass(frozen=True)
class Membership(Constraint):
    """One column has one of some values: a part of an implication."""

    text: str
    column: Modelled
    values: ValueSet

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column.name,)

    def holds(self, rows: Rows) -> np.ndarray:
        return self.values.holds(*rows[self.column.name])

    def repair(self, rows: Rows, broken: np.ndarray) -> None:
        numbers, absent = rows[self.column.name]
        numbers[broken], absent[broken] = self.values.nearest(numbers[broken], absent[broken])

    def kinds(self, rows: Rows) -> list[np.ndarray]:
        return [self.holds(rows)] if self.column.name in rows else []


@dataclass(frozen=True)
class Term:
    """A number times columns, and divided by others.

    Args:
        factor: the number.
        times, over: the columns.
    """

    factor: float
    times: tuple[Numeric, ...]
    over: tuple[Numeric, ...] = ()

    @property
    def columns(self) -> tuple[Numeric, ...]:
        return (*self.times, *self.over)

    @property
    def alone(self) -> bool:
        """True of a column that is added or taken away."""
        return len(self.times) == 1 and not self.over and abs(self.factor) == 1.0

    @property
    def whole(self) -> bool:
        """True of a whole number of times one column."""
        return len(self.columns) == len(self.times) == 1 and self.factor == round(self.factor)

    def led_by(self, name: str) -> Term:
        """Return the same with a column that it has before all others."""
        return replace(self, times=tuple(sorted(self.times, key=lambda column: column.name != name)))

    def value(self, rows: Rows, unit: int, leave_out: bool = False) -> np.ndarray:
        """Return the term (n,) in parts of which `unit` make 1; not a number where it divides by 0.

        Args:
            leave_out: whether the first column is left out.
        """
        value = np.full(len(next(iter(rows.values()))[0]), self.factor)
        for column in self.times[leave_out:]:
            # The unit is a multiple of that of the column, so that whole numbers stay whole.
            value, unit = value * (rows[column.name][0] * (unit / column.scale.unit)), 1
        value = value * unit
        for column in self.over:
            numbers = rows[column.name][0] / column.scale.unit
            value = value / np.where(numbers == 0, np.nan, numbers)
        return value


@dataclass(frozen=True)
class Sum:
    """A sum of terms and a number."""

    parts: tuple[Term, ...]
    constant: float

    @property
    def columns(self) -> tuple[Numeric, ...]:
        return tuple(column for part in self.parts for column in part.columns)

    def total(self, rows: Rows, unit: int) -> np.ndarray:
        """Return the sum (n,) in parts of which `unit` make 1; not a number where a term divides by 0."""
        total = np.full(len(next(iter(rows.values()))[0]), self.constant * unit)
        for part in self.parts:
            total = total + part.value(rows, unit)
        return total


@dataclass(frozen=True)
class Comparison(Constraint):
    """Two sums of columns, one of them smaller, or both equal; rows in which one of the columns is missing keep it.

    A column of fewer decimals than a sum equals it where that is rounded. A row in which a sum divides by 0 keeps it, too:
    a column that is computed is missing there.
    """

    text: str
    left: Sum
    operator: str
    right: Sum

    @property
    def numbers(self) -> tuple[Numeric, ...]:
        """The columns, each once."""
        return tuple({column.name: column for column in (*self.left.columns, *self.right.columns)}.values())

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.numbers)

    @property
    def derives(self) -> str | None:
        return self.columns[0] if self.operator == EQUAL else None

    @property
    def movable(self) -> list[Numeric]:
        """The columns that are in one term alone, and do not divide there."""
        terms = (*self.left.parts, *self.right.parts)
        often = Counter(column.name for term in terms for column in term.columns)
        return [column for term in terms for column in term.times if often[column.name] == 1]

    @property
    def solvable(self) -> list[Numeric]:
        """Those besides the first."""
        return [column for column in self.movable if column.name != self.columns[0]]

    @property
    def whole(self) -> bool:
        """True where both sums are whole multiples of the smallest unit."""
        whole = all(part.whole for part in (*self.left.parts, *self.right.parts))
        constant = (self.right.constant - self.left.constant) * self._unit
        return whole and all(column.scale.whole for column in self.numbers) and constant == round(constant)

    @property
    def _unit(self) -> int:
        return max(column.scale.unit for column in self.numbers)

    def holds(self, rows: Rows) -> np.ndarray:
        unit = self._unit
        left, right = self.left.total(rows, unit), self.right.total(rows, unit)
        first = self.numbers[0].scale
        rounded = first.whole and not (self.whole and unit <= first.unit)
        close: np.ndarray | float = 0.0
        if not self.whole:
            close = _CLOSE * np.maximum(np.maximum(np.abs(left), np.abs(right)), 1.0)
        room = np.maximum(unit / first.unit / 2 if rounded else 0.0, close)
        compare = {
            "=": np.abs(left - right) <= room,
            "<=": left <= right + close,
            ">=": left >= right - close,
            "<": left < right - close,
            ">": left > right + close,
        }
        return compare[self.operator] | self._absent(rows)

    def repair(self, rows: Rows, broken: np.ndarray) -> None:
        if self.operator == EQUAL:
            self._compute(rows, broken)
            return
        smaller, larger = (self.left, self.right) if self.operator in ("<", "<=") else (self.right, self.left)
        strict = self.operator in ("<", ">")
        # The larger side is raised, and what its bounds leave is taken off the smaller one.
        _move(rows, larger, smaller, 1, strict, self._unit, broken)
        _move(rows, smaller, larger, -1, strict, self._unit, broken & ~self.holds(rows))

    def solve(self, rows: Rows, name: str, where: np.ndarray) -> None:
        """Change a column within its bounds, in marked rows (n,) that have all columns, so that they keep it."""
        where = where & ~self._absent(rows)
        # The side that is to be the larger one.
        larger = {"<": 1, "<=": 1, ">": -1, ">=": -1}.get(self.operator, 0)
        for near, far, side in ((self.left, self.right, -larger), (self.right, self.left, larger)):
            for part in near.parts:
                if name in (column.name for column in part.times):
                    rest = (one for one in near.parts if one is not part)
                    what, strict = Sum((part.led_by(name), *rest), near.constant), self.operator in ("<", ">")
                    _move(rows, what, far, side, strict, self._unit, where)

    def repair_around(self, rows: Rows, known: Mapping[str, np.ndarray], broken: np.ndarray) -> None:
        broken = broken & ~self._absent(rows)
        if not broken.any():
            return
        open_rows = {column.name: broken & np.logical_not(known.get(column.name, False)) for column in self.movable}
        if self.operator == EQUAL:
            self._spread(rows, open_rows)
        # The finest column comes last, since it can take what rounding or a product has left.
        for column in sorted(self.movable, key=lambda one: one.scale.unit if one.scale.whole else np.inf):
            self.solve(rows, column.name, open_rows[column.name] & ~self.holds(rows))

    def _spread(self, rows: Rows, open_rows: Mapping[str, np.ndarray]) -> None:
        """Make both sides equal, by moving all columns in their rows (n,) by the same share of the way to their bounds."""
        lacking = self.right.total(rows, 1) - self.left.total(rows, 1)
        ways = dict[str, tuple[np.ndarray, np.ndarray]]()
        for side, own in ((1, self.left), (-1, self.right)):
            for part in own.parts:
                for column in part.times:
                    if column.name in open_rows:
                        slope = side * part.led_by(column.name).value(rows, 1, leave_out=True) / column.scale.unit
                        numbers, (low, high) = rows[column.name][0], column.limits
                        way = np.where(slope * lacking > 0, np.maximum(high - numbers, 0), np.minimum(low - numbers, 0))
                        ways[column.name] = np.where(open_rows[column.name] & np.isfinite(slope), way, 0), slope
        reach = np.sum([np.abs(np.where(way == 0, 0.0, way * slope)) for way, slope in ways.values()], axis=0)
        # A row in which a term divides by 0 lacks nothing.
        fine = np.isfinite(lacking) & (reach > 0)
        share = np.where(fine, np.minimum(np.abs(lacking) / np.where(fine, reach, 1.0), 1.0), 0.0)
        for name, (way, _) in ways.items():
            numbers = rows[name][0]
            numbers += np.rint(way * share).astype(numbers.dtype) if numbers.dtype.kind == "i" else way * share

    def _compute(self, rows: Rows, where: np.ndarray) -> None:
        """Set the first column to what the others say, in marked rows (n,): missing if one of them is."""
        column, *others = self.numbers
        known = {other.name: rows[other.name] for other in others}
        absent = np.any([absent for _, absent in known.values()], axis=0) if known else np.zeros(len(where), bool)
        absent |= self._divides_by_zero(rows)
        _move(rows, self.left, self.right, 0, False, self._unit, where)
        rows[column.name][1][where] = absent[where]
        rows[column.name][0][where & absent] = 0

    def _absent(self, rows: Rows) -> np.ndarray:
        return np.any([rows[name][1] for name in self.columns], axis=0) | self._divides_by_zero(rows)

    def _divides_by_zero(self, rows: Rows) -> np.ndarray:
        over = [column.name for part in (*self.left.parts, *self.right.parts) for column in part.over]
        return np.any([np.zeros(len(rows[self.columns[0]][0]), bool), *(rows[name][0] == 0 for name in over)], axis=0)


@dataclass(frozen=True)
class Distance(Constraint):
    """One column lies within some distance of another one, or has a special value; it is missing where the other one is.

    Args:
        low, high: the least and the largest distance, as ticks of both columns.
    """

    text: str
    column: Numeric
    of: Numeric
    low: int | float
    high: int | float

    @property
    def columns(self) -> tuple[str, ...]:
        return self.column.name, self.of.name

    def holds(self, rows: Rows) -> np.ndarray:
        (numbers, absent), (starts, unknown) = (rows[name] for name in self.columns)
        apart = self.apart(numbers, starts)
        near = (apart >= self.low) & (apart <= self.high)
        return absent | (~unknown & (near | np.isin(numbers, self.column.special_ticks)))

    def apart(self, numbers: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Return the distances (n,); one of real numbers that rounding has moved beyond an end is moved back to it."""
        apart = numbers - starts
        if self.column.scale.whole:
            return apart
        nearest = np.clip(apart, self.low, self.high)
        room = _CLOSE * np.maximum(np.maximum(np.abs(numbers), np.abs(starts)), 1.0)
        return np.where(np.abs(apart - nearest) <= room, nearest, apart)

    def repair(self, rows: Rows, broken: np.ndarray) -> None:
        (numbers, absent), (starts, unknown) = (rows[name] for name in self.columns)
        moved = np.clip(np.clip(numbers, starts + self.low, starts + self.high), *self.column.limits)
        numbers[broken], absent[broken] = np.where(unknown, 0, moved)[broken], (absent | unknown)[broken]
        # The other column follows where the bounds of this one leave no other way.
        far = broken & ~self.holds(rows)
        starts[far] = np.clip(np.clip(starts, numbers - self.high, numbers - self.low), *self.of.limits)[far]


@dataclass(frozen=True)
class Implication(Constraint):
    """A conclusion that holds wherever all conditions do, and, if `both`, nowhere else."""

    text: str
    conclusion: Constraint
    conditions: tuple[Constraint, ...]
    both: bool

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for part in (self.conclusion, *self.conditions) for name in part.columns))

    def holds(self, rows: Rows) -> np.ndarray:
        given, found = self._given(rows), self.conclusion.holds(rows)
        return (found == given) if self.both else (found | ~given)

    def repair(self, rows: Rows, broken: np.ndarray) -> None:
        given = self._given(rows)
        self.conclusion.repair(rows, broken & given)
        for condition in self.conditions if self.both else ():
            condition.repair(rows, broken & ~given & ~condition.holds(rows))

    def repair_around(self, rows: Rows, known: Mapping[str, np.ndarray], broken: np.ndarray) -> None:
        given = self._given(rows)
        self.conclusion.repair_around(rows, known, broken & given)

    def kinds(self, rows: Rows) -> list[np.ndarray]:
        return [own for part in (self.conclusion, *self.conditions) for own in part.kinds(rows)]

    def _given(self, rows: Rows) -> np.ndarray:
        return np.all([condition.holds(rows) for condition in self.conditions], axis=0)


@dataclass(frozen=True)
class Function(Constraint):
    """One column follows from another by a mapping of single values."""

    text: str
    column: Modelled
    of: Modelled
    # Places of values of `of`, increasing, and what each becomes; None is missing.
    keys: tuple[int | float, ...]
    places: tuple[int | float | None, ...]
    missing: int | float | None

    @property
    def columns(self) -> tuple[str, ...]:
        return self.column.name, self.of.name

    @property
    def derives(self) -> str:
        return self.column.name

    @property
    def coarse(self) -> bool:
        """True where the column is learned as well: its values are few, and noise of many counts would hide them."""
        categories = isinstance(self.column, Category) and isinstance(self.of, Category)
        return categories and len(self.of.values) >= _COARSE * len({*self.places, self.missing})

    def holds(self, rows: Rows) -> np.ndarray:
        numbers, absent = rows[self.column.name]
        wanted, lacks, known = self._wanted(rows)
        return known & (absent == lacks) & (absent | (numbers == wanted))

    def repair(self, rows: Rows, broken: np.ndarray) -> None:
        wanted, lacks, known = self._wanted(rows)
        numbers, absent = rows[self.column.name]
        changed = broken & known
        numbers[changed], absent[changed] = wanted[changed], lacks[changed]

    def kinds(self, rows: Rows) -> list[np.ndarray]:
        if self.of.name not in rows:
            return []
        wanted, lacks, known = self._wanted(rows)
        return [np.unique(np.stack([wanted, lacks, known]), axis=1, return_inverse=True)[1].ravel()]

    @cached_property
    def key_array(self) -> np.ndarray:
        """The keys (n,)."""
        return np.array(self.keys)

    @cached_property
    def place_arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The places that keys become (n,), 0 for a missing one, and where it is missing (n,)."""
        absent = np.array([place is None for place in self.places])
        return np.array([0 if place is None else place for place in self.places]), absent

    def _wanted(self, rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return places (n,), where they are missing (n,), and where the mapping says anything (n,)."""
        numbers, absent = rows[self.of.name]
        keys, (values, lacks) = self.key_array, self.place_arrays
        at = np.clip(np.searchsorted(keys, numbers), 0, len(keys) - 1)
        known = absent | (keys[at] == numbers)
        wanted = np.where(absent, 0 if self.missing is None else self.missing, values[at])
        return wanted, np.where(absent, self.missing is None, lacks[at]), known


@dataclass(frozen=True)
class Allowed(Constraint):
    """Columns have one of some combinations of values; None is a missing one."""

    text: str
    of: tuple[Modelled, ...]
    combinations: tuple[tuple[int | float | None, ...], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.of)

    def holds(self, rows: Rows) -> np.ndarray:
        return self._alike(rows).max(axis=0) == len(self.of)

    def repair(self, rows: Rows, broken: np.ndarray) -> None:
        # The first of the combinations with which a row has most in common.
        chosen = self._alike(rows).argmax(axis=0)
        for place, name in enumerate(self.columns):
            numbers, absent = rows[name]
            values = np.array([combination[place] or 0 for combination in self.combinations])
            lacks = np.array([combination[place] is None for combination in self.combinations])
            numbers[broken], absent[broken] = values[chosen[broken]], lacks[chosen[broken]]

    def kinds(self, rows: Rows) -> list[np.ndarray]:
        kinds = []
        for place, name in enumerate(self.columns):
            if name not in rows:
                continue
            others: dict[int | float | None, set[tuple]] = defaultdict(set)
            for combination in self.combinations:
                others[combination[place]].add(combination[:place] + combination[place + 1 :])
            same: dict[frozenset, int] = {}
            of = {value: same.setdefault(frozenset(own), len(same)) for value, own in others.items()}
            values = zip(*(part.tolist() for part in rows[name]), strict=True)
            kinds.append(np.array([of.get(None if absent else value, -1) for value, absent in values]))
        return kinds

    def _alike(self, rows: Rows) -> np.ndarray:
        """Count the columns of each row that have a combination's value: (combinations, n)."""
        count = len(next(iter(rows.values()))[0])
        alike = np.zeros((len(self.combinations), count), np.int16)
        for place, name in enumerate(self.columns):
            numbers, absent = rows[name]
            for row, combination in zip(alike, self.combinations, strict=True):
                value = combination[place]
                row += absent if value is None else (~absent & (numbers == value))
        return alike


def _move(rows: Rows, what: Sum, other: Sum, side: int, strict: bool, unit: int, where: np.ndarray) -> None:
    """Change the first column of a sum within its bounds, in marked rows (n,), so that it becomes as the other sum.

    Args:
        side: 1 for a sum that is the larger one then, -1 for the smaller one, 0 for an equal one.
        strict: whether it must not be equal.
    """
    if not what.parts or not what.parts[0].times:
        return
    first, *rest = what.parts
    column = first.times[0]
    wanted = other.total(rows, unit) - Sum(tuple(rest), what.constant).total(rows, unit)
    # No value of the column helps where it is multiplied by nothing.
    by = first.value(rows, 1, leave_out=True)
    fine = where & np.isfinite(wanted) & np.isfinite(by) & (by != 0)
    ticks, up = np.where(fine, wanted / np.where(fine, by, 1.0), 0.0) * (column.scale.unit / unit), np.sign(by) * side
    if column.scale.whole:
        # A product that is whole but for rounding is no reason to go on to the next number.
        near = np.where(np.abs(ticks - np.rint(ticks)) <= _CLOSE * np.maximum(np.abs(ticks), 1.0), np.rint(ticks), ticks)
        ticks = np.where(up == 0, np.rint(ticks), np.where(up > 0, np.ceil(near), np.floor(near))) + up * strict
    elif strict:
        ticks = np.nextafter(ticks, np.inf * up)
    numbers, (low, high) = rows[column.name][0], column.limits
    numbers[fine] = np.clip(ticks, low, high)[fine].astype(numbers.dtype)
