"""Values that columns may still have where constraints hold: a proof that no row keeps them all, or none.

Each constraint takes values away that no row can have with it, until nothing changes. A set of values that is left empty
is a proof; sets that are left prove nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from lightning_dpgen.data.conditions import EQUAL
from lightning_dpgen.data.tables.column import Modelled
from lightning_dpgen.data.tables.constraints import (
    Allowed,
    Comparison,
    Constraint,
    Distance,
    Function,
    Implication,
    Membership,
    Term,
)
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.value_set import ValueSet, without

# Rounds over all constraints: two strict orders in a circle take one value away in each.
_ROUNDS = 50
# Sums of floats that differ by less than this part of the larger one may be equal.
_CLOSE = 1e-9
# The part of a real number by which a distance may be off.
_ROUNDING = 1e-6
_OPPOSITE = {"<=": ">", "<": ">=", ">=": "<", ">": "<="}

Values = dict[str, ValueSet]


class Impossible(ValueError):
    """No row keeps a constraint with the values that are left of its columns.

    Attributes:
        constraint: that one.
    """

    def __init__(self, constraint: Constraint) -> None:
        super().__init__(constraint.text)
        self.constraint = constraint


def narrowed(constraints: Sequence[Constraint], columns: Mapping[str, Modelled], values: Mapping[str, ValueSet]) -> Values:
    """Return the values that columns may have in a row that keeps all constraints: a superset of them.

    Args:
        columns: by name.
        values: those that each column may have, as its bounds or conditions say.

    Raises:
        Impossible: if no row keeps them all.

    Example:
        >>> from lightning_dpgen.data.tables.constraint_texts import parse_constraints
        >>> from lightning_dpgen.data.tables.schema_keys import column_of
        >>> from lightning_dpgen.data.tables.value_set import all_values
        >>> columns = {name: column_of(name, {"type": "integer", "low": 0, "high": 9}) for name in ("a", "b", "c")}
        >>> constraints = parse_constraints(["a < b", "b < c"], columns, "constraints")
        >>> left = narrowed(constraints, columns, {name: all_values(column) for name, column in columns.items()})
        >>> [left[name].intervals for name in "abc"]
        [((0, 7),), ((1, 8),), ((2, 9),)]
    """
    return Narrower(constraints, columns).narrowed(values)


class Narrower:
    """Constraints by which values of columns are narrowed several times.

    Args:
        constraints: any of them.
        columns: those that they are about, by name.
        places: of the constraints on each column, where they are known already.
    """

    def __init__(
        self,
        constraints: Sequence[Constraint],
        columns: Mapping[str, Modelled],
        places: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.constraints, self.columns = constraints, columns
        if places is None:
            places = {name: [] for constraint in constraints for name in constraint.columns}
            for place, constraint in enumerate(constraints):
                for name in constraint.columns:
                    places[name].append(place)
        self.places = places

    def with_constraints(self, changed: Mapping[int, Constraint]) -> Narrower:
        """Return the same with other constraints on the same columns at some places."""
        constraints = [changed.get(place, constraint) for place, constraint in enumerate(self.constraints)]
        return Narrower(constraints, self.columns, self.places)

    def narrowed(self, values: Mapping[str, ValueSet], changed: Collection[str] | None = None) -> Values:
        """Return what `narrowed` does.

        Args:
            changed: the columns of which something was taken away, or constraints are other ones, since these values were
                the outcome: only what has to do with them is looked at. None for all.

        Raises:
            Impossible: if no row keeps them all.
        """
        state, every = _Narrowing(self.columns, dict(values)), range(len(self.constraints))
        waiting = set(every if changed is None else (place for name in changed for place in self.places.get(name, ())))
        for _ in range(_ROUNDS):
            if not waiting:
                break
            for place in every:
                if place not in waiting:
                    continue
                waiting.remove(place)
                constraint = self.constraints[place]
                before = [(name, state.values[name]) for name in constraint.columns]
                state.apply(constraint)
                for name, earlier in before:
                    if state.is_empty(name):
                        raise Impossible(constraint)
                    if state.values[name] != earlier:
                        # Those that come before are looked at in the next round, as is this one.
                        waiting.update(self.places[name])
        return state.values


class _Narrowing:
    def __init__(self, columns: Mapping[str, Modelled], values: Values) -> None:
        self._columns, self.values = columns, values

    def is_empty(self, name: str) -> bool:
        return not self.values[name].intervals and not self.values[name].missing

    def apply(self, constraint: Constraint) -> None:
        """Take values away that no row has that keeps the constraint."""
        if isinstance(constraint, Membership):
            self._keep(constraint.column.name, constraint.values)
        elif isinstance(constraint, Comparison):
            self._compare(constraint, constraint.operator)
        elif isinstance(constraint, Implication):
            self._imply(constraint)
        elif isinstance(constraint, Function):
            self._map(constraint)
        elif isinstance(constraint, Allowed):
            self._combine(constraint)
        elif isinstance(constraint, Distance):
            self._follow(constraint)

    def _keep(self, name: str, allowed: ValueSet) -> None:
        self.values[name] = self.values[name].common(allowed)

    def _follow(self, constraint: Distance) -> None:
        """Take away what is too far from all values of the other column, but for special values."""
        column, other = constraint.column, constraint.of
        ends = self.values[other.name].intervals
        if not ends:
            self._keep(column.name, ValueSet((), missing=True))
        elif not column.special:
            self._keep(column.name, _near(column, ends, constraint.low, constraint.high))
            own = self.values[column.name]
            if own.intervals and not own.missing:
                self._keep(other.name, _near(other, own.intervals, -constraint.high, -constraint.low))

    def _deny(self, constraint: Constraint) -> None:
        """Take away what keeps the constraint."""
        if isinstance(constraint, Membership):
            self.values[constraint.column.name] = without(
                constraint.column, self.values[constraint.column.name], constraint.values
            )
        elif isinstance(constraint, Comparison):
            # A row in which a value is missing keeps it.
            for name in constraint.columns:
                self._keep(name, ValueSet(self.values[name].intervals))
            if constraint.operator in _OPPOSITE:
                self._compare(constraint, _OPPOSITE[constraint.operator])

    def _imply(self, constraint: Implication) -> None:
        if all(map(self._is_kept, constraint.conditions)):
            self.apply(constraint.conclusion)
        open_ones = [condition for condition in constraint.conditions if not self._is_kept(condition)]
        if self._is_broken(constraint.conclusion):
            if not open_ones:
                self._keep(constraint.columns[0], ValueSet(()))
            elif len(open_ones) == 1:
                self._deny(open_ones[0])
        if constraint.both:
            if self._is_kept(constraint.conclusion):
                for condition in constraint.conditions:
                    self.apply(condition)
            if any(map(self._is_broken, constraint.conditions)):
                self._deny(constraint.conclusion)

    def _is_kept(self, constraint: Constraint) -> bool:
        """Tell whether every row with these values keeps it."""
        if isinstance(constraint, Membership):
            mine = self.values[constraint.column.name]
            inside = all(constraint.values.covers(*interval) for interval in mine.intervals)
            return inside and (constraint.values.missing or not mine.missing)
        if isinstance(constraint, Comparison) and constraint.operator in _OPPOSITE:
            return self._is_beyond(constraint, _OPPOSITE[constraint.operator])
        return False

    def _is_broken(self, constraint: Constraint) -> bool:
        """Tell whether no row with these values keeps it."""
        if isinstance(constraint, Membership):
            left = self.values[constraint.column.name].common(constraint.values)
            return not left.intervals and not left.missing
        if isinstance(constraint, Comparison):
            kept = any(self.values[name].missing for name in constraint.columns) or self._may_divide_by_zero(constraint)
            return not kept and self._is_beyond(constraint, constraint.operator)
        return False

    def _is_beyond(self, comparison: Comparison, operator: str) -> bool:
        """Tell whether no values that are there compare so."""
        return any(least + room > 0 for least, room in (self._least(*side) for side in self._sides(comparison, operator)))

    def _compare(self, comparison: Comparison, operator: str) -> None:
        if any(self.values[name].missing for name in comparison.columns) or self._may_divide_by_zero(comparison):
            return
        for terms, constant in self._sides(comparison, operator):
            least, room = self._least(terms, constant)
            if any(not self.values[column.name].intervals for term in terms for column in term.columns):
                return
            lows = [self._ends(term)[0] for term in terms]
            for term, lowest in zip(terms, lows, strict=True) if math.isfinite(least) else ():
                # The term is at most this, where all others are as small as they can be.
                most = lowest - least - room
                for place, column in enumerate(term.times):
                    if any(not self.values[other.name].intervals for other in term.columns):
                        return
                    others = replace(term, times=term.times[:place] + term.times[place + 1 :])
                    low, high = self._ends(others)
                    if low > 0 and math.isfinite(high):
                        self._keep(column.name, ValueSet((_below(column, max(most / low, most / high)),)))
                    elif high < 0 and math.isfinite(low):
                        self._keep(column.name, ValueSet((_above(column, min(most / low, most / high)),)))

    def _may_divide_by_zero(self, comparison: Comparison) -> bool:
        """Tell whether rows may keep a comparison since it divides by 0."""
        over = [column.name for part in (*comparison.left.parts, *comparison.right.parts) for column in part.over]
        return any(self.values[name].meets(0, 0) for name in over)

    def _sides(self, comparison: Comparison, operator: str) -> list[tuple[list[Term], float]]:
        """Return sums of terms and numbers that are at most 0 where it is kept."""
        terms = [*comparison.left.parts, *map(_negative, comparison.right.parts)]
        constant = comparison.left.constant - comparison.right.constant
        columns = comparison.numbers
        strict = 0.0
        if operator in ("<", ">") and comparison.whole:
            strict = 1.0 / max(column.scale.unit for column in columns)
        if operator == EQUAL and columns[0].scale.whole:
            # The first may be the sum of the others, rounded.
            strict = -0.5 / columns[0].scale.unit
        below, above = (terms, constant + strict), (list(map(_negative, terms)), strict - constant)
        return [below] if operator in ("<", "<=") else [above] if operator in (">", ">=") else [below, above]

    def _least(self, terms: Sequence[Term], constant: float) -> tuple[float, float]:
        """Return the least value of a sum, and what rounding may be added to it, which is below 0."""
        if any(not self.values[column.name].intervals for term in terms for column in term.columns):
            return 0.0, 0.0
        ends = [self._ends(term) for term in terms]
        size = max(abs(constant), 1.0, *(abs(end) for pair in ends for end in pair if math.isfinite(end)))
        return constant + sum(low for low, _ in ends), -len(ends) * _CLOSE * size

    def _ends(self, term: Term) -> tuple[float, float]:
        """Return the least and the largest value of a term; without end where it may divide by 0."""
        low = high = term.factor
        for column in term.columns:
            intervals, unit = self.values[column.name].intervals, column.scale.unit
            first, last = intervals[0][0] / unit, intervals[-1][1] / unit
            if column in term.over:
                if first <= 0 <= last:
                    return -math.inf, math.inf
                first, last = 1.0 / last, 1.0 / first
            products = [one * other for one in (low, high) for other in (first, last)]
            low, high = min(products), max(products)
        return low, high

    def _map(self, constraint: Function) -> None:
        of, to = self.values[constraint.of.name], self.values[constraint.column.name]
        keys, (places, absent) = constraint.key_array, constraint.place_arrays
        kept = of.holds(keys, np.zeros(len(keys), bool)) & to.holds(places, absent)
        lacks = of.missing and (to.missing if constraint.missing is None else to.covers(*[constraint.missing] * 2))
        ends = [*places[kept & ~absent].tolist(), *[None] * int((kept & absent).any()), *[constraint.missing] * lacks]
        self.values[constraint.of.name] = _points(keys[kept].tolist(), lacks)
        self.values[constraint.column.name] = _points([place for place in ends if place is not None], None in ends)

    def _combine(self, constraint: Allowed) -> None:
        names = constraint.columns
        possible = [
            combination for combination in constraint.combinations
            if all(
                self.values[name].missing if place is None else self.values[name].covers(place, place)
                for name, place in zip(names, combination, strict=True)
            )
        ]  # fmt: skip
        for position, name in enumerate(names):
            places = [combination[position] for combination in possible]
            self.values[name] = _points([place for place in places if place is not None], None in places)


def _negative(term: Term) -> Term:
    return replace(term, factor=-term.factor)


def _near(column: Numeric, ends: Sequence[tuple], low: float, high: float) -> ValueSet:
    """Return what lies between these distances of some value, or is missing; real numbers may differ by rounding."""
    room = 0 if column.scale.whole else _ROUNDING * max(1.0, abs(ends[0][0]), abs(ends[-1][1]))
    return ValueSet(((ends[0][0] + low - room, ends[-1][1] + high + room),), missing=True)


def _points(places: Sequence[int | float], missing: bool) -> ValueSet:
    return ValueSet(tuple((place, place) for place in sorted(set(places))), missing)


def _below(column: Numeric, most: float) -> tuple[float, float]:
    """Return the places of a column up to a value."""
    tick = most * column.scale.unit
    return -math.inf, math.floor(tick) if column.scale.whole else tick


def _above(column: Numeric, least: float) -> tuple[float, float]:
    tick = least * column.scale.unit
    return math.ceil(tick) if column.scale.whole else tick, math.inf
