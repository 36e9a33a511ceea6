"""Pairs of choices of two learned columns that no row can have where all constraints hold: each of them is proved."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lightning_dpgen.data.tables.column import Modelled
from lightning_dpgen.data.tables.constraints import Comparison, Constraint, Distance
from lightning_dpgen.data.tables.grouped import Grouped
from lightning_dpgen.data.tables.narrowing import Impossible, Values, narrowed
from lightning_dpgen.data.tables.relative import Relative
from lightning_dpgen.data.tables.value_set import ValueSet, all_values

# A column of more choices is not gone through; columns of fewer choices tell of its choices.
_MOST_CHOICES = 500
# Choices times columns that are looked at.
_MOST_LOOKED_AT = 20_000
# The part of a real number by which a distance may be off.
_ROUNDING = 1e-6


def impossible_pairs(
    constraints: Sequence[Constraint],
    columns: Mapping[str, Modelled],
    relatives: Mapping[str, Relative],
    learned: Mapping[str, Modelled],
) -> dict[tuple[str, str], np.ndarray]:
    """Return by two columns the pairs (a, b) of their choices that no row can have, bool; only pairs that have some.

    A choice of one column takes values away from all others (`narrowed`), so constraints also tell together: that of a
    distance and the bounds of its column, or a chain of orders. A bin counts by the numbers in it, and a distance by all
    numbers that it leads to.

    Args:
        constraints: those that rows keep, with those of distances.
        columns: all that are read, by name.
        relatives: those that are learned by their distance.
        learned: the columns with choices that are learned, as they are learned, by name.

    Example:
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> columns = "a: {type: integer, low: 0, high: 2, bins: 3}, b: {type: integer, low: 0, high: 2, bins: 3}"
        >>> parse_schema(f"{{columns: {{{columns}}}, constraints: [a < b]}}").rules.impossible()["a", "b"].astype(int)
        array([[1, 0, 0],
               [1, 1, 0],
               [1, 1, 1]])
    """
    found: dict[tuple[str, str], np.ndarray] = {}
    names, looked_at = list(learned), 0
    for related in _related(constraints):
        known = [_Choices(columns[name], own, relatives.get(name)) for name, own in learned.items() if name in related]
        own = [constraint for constraint in constraints if related.issuperset(constraint.columns)]
        values = {name: all_values(columns[name]) for name in related}
        # Constraints of a column and the one that it is relative to hold of sums of the same number.
        pairs = [{name, column.relative_to} for name, column in relatives.items()]
        told_apart = [
            pair for pair in pairs if any(pair <= set(one.columns) and not isinstance(one, Distance) for one in own)
        ]
        for given in known:
            others = [other for other in known if other is not given]
            looked_at += given.count * len(others)
            if given.count > _MOST_CHOICES or looked_at > _MOST_LOOKED_AT:
                continue
            left_out = {other.column.name: np.zeros((given.count, other.count), bool) for other in others}
            for choice in range(given.count):
                try:
                    limits, stated = given.held(slice(choice, choice + 1), values, own)
                    limits = _narrowed(stated, columns, limits)
                    for other in others:
                        singly = any({given.column.name, other.column.name} <= both for both in told_apart)
                        left_out[other.column.name][choice] = ~other.possible(limits, stated, columns, singly)
                except Impossible:
                    for table in left_out.values():
                        table[choice] = True
            for name, table in left_out.items():
                turned = names.index(name) < names.index(given.column.name)
                pair = (name, given.column.name) if turned else (given.column.name, name)
                if table.any():
                    found[pair] = found.get(pair, False) | (table.T if turned else table)
        _close(found, {one.column.name: one.count for one in known})
    return found


def _narrowed(constraints: Sequence[Constraint], columns: Mapping[str, Modelled], values: Values) -> Values:
    """Return the values that are left; a sum that is computed is missing only where one of its parts is."""
    values = dict(values)
    for one in constraints:
        if isinstance(one, Comparison) and one.derives is not None:
            own, *parts = (values[name] for name in one.columns)
            if not any(part.missing for part in parts):
                values[one.derives] = ValueSet(own.intervals)
    return narrowed(constraints, columns, values)


def _close(found: dict[tuple[str, str], np.ndarray], counts: Mapping[str, int]) -> None:
    """Take a choice that goes with no choice of one other column for one that goes with none at all."""
    never = {name: np.zeros(count, bool) for name, count in counts.items()}
    for (first, second), table in found.items():
        if first in counts:
            never[first] |= table.all(axis=1)
            never[second] |= table.all(axis=0)
    for first, second in itertools.combinations(counts, 2):
        if never[first].any() or never[second].any():
            table = found.get((first, second), np.zeros((counts[first], counts[second]), bool))
            found[first, second] = table | never[first][:, None] | never[second]


def _related(constraints: Sequence[Constraint]) -> list[set[str]]:
    """Return sets of columns that constraints bring together, perhaps by way of others."""
    sets: list[set[str]] = []
    for constraint in constraints:
        joined = set(constraint.columns).union(*(one for one in sets if one & set(constraint.columns)))
        sets = [one for one in sets if not one & joined] + [joined]
    return sets


@dataclass(frozen=True)
class _Choices:
    """The choices of a column: bins or categories, then special values, and a missing one at last.

    Args:
        column: as it is read.
        learned: as it is learned.
        relative: the same, where it is learned by its distance.
    """

    column: Modelled
    learned: Modelled
    relative: Relative | None

    @property
    def count(self) -> int:
        return self.learned.choices

    @cached_property
    def _ranges(self) -> np.ndarray:
        return np.array(self.learned.ranges)

    @cached_property
    def _kinds(self) -> list[slice]:
        """Bins, special values and the missing one: one constraint may take away one kind and leave the others."""
        ends = [self.learned.present - len(getattr(self.learned, "special", ())), self.learned.present, self.count]
        return [slice(first, last) for first, last in itertools.pairwise([0, *ends])]

    def possible(
        self, values: Values, constraints: Sequence[Constraint], columns: Mapping[str, Modelled], singly: bool
    ) -> np.ndarray:
        """Return the choices (choices,), bool, for which nothing shows that no row with these values has them.

        Args:
            singly: whether each is looked at by itself.
        """
        found = np.zeros(self.count, bool)
        single = [slice(choice, choice + 1) for choice in range(self.count)]
        for kind in single if singly else [kind for kind in self._kinds if kind.start < kind.stop]:
            own, stated = self.held(kind, values, constraints)
            try:
                found[kind] = self._met(kind, _narrowed(stated, columns, own))
            except Impossible:
                continue
        return found

    def held(self, kind: slice, values: Values, constraints: Sequence[Constraint]) -> tuple[Values, list[Constraint]]:
        """Return values and constraints of rows with some choices of one kind, next to each other."""
        _, special, _ = self._kinds
        name, stated = self.column.name, list(constraints)
        if kind.start >= special.stop:
            own = ValueSet((), missing=True)
        elif isinstance(self.learned, Grouped):
            own = self.learned.values_with(kind)
        elif self.relative is None:
            own = ValueSet(tuple(map(tuple, self._ranges[kind].tolist())))
        elif kind.start >= special.start:
            own = ValueSet(tuple(sorted(map(tuple, self._special(kind).tolist()))))
        else:
            own, ends = ValueSet((self.column.limits,)), self._ranges[kind]
            for place, one in enumerate(stated):
                if isinstance(one, Distance) and one.column.name == name:
                    stated[place] = replace(one, column=self._bare, low=ends[0, 0].item(), high=ends[-1, 1].item())
        return {**values, name: own.common(values[name])}, stated

    @cached_property
    def _bare(self) -> Modelled:
        """The column without its special values, which lie at no distance."""
        return replace(self.column, special=()) if self.column.special else self.column

    def _special(self, kind: slice) -> np.ndarray:
        """Return the ends (n, 2) of special values of a column that is learned by its distance."""
        ticks, bins = self.column.special_ticks, self._kinds[0].stop
        return np.repeat(ticks[kind.start - bins : kind.stop - bins, None], 2, axis=1)

    def _met(self, kind: slice, values: Values) -> np.ndarray:
        """Return the choices of a kind that some of the values have, bool."""
        intervals, ranges = values[self.column.name].intervals, self._ranges[kind]
        if kind.start >= self.learned.present:
            return np.array([values[self.column.name].missing])
        if isinstance(self.learned, Grouped):
            may, _ = self.learned.choices_with(values[self.column.name])
            return np.array([choice in may for choice in range(*kind.indices(self.count))])
        if self.relative is not None and kind.start < self._kinds[0].stop:
            starts = values[self.relative.relative_to].intervals
            if not starts or not intervals:
                return np.zeros(len(ranges), bool)
            room = 0 if self.column.scale.whole else _ROUNDING * max(map(abs, (*intervals[0], *intervals[-1], 1.0)))
            intervals = ((intervals[0][0] - starts[-1][1] - room, intervals[-1][1] - starts[0][0] + room),)
        elif self.relative is not None:
            ranges = self._special(kind)
        if not intervals:
            return np.zeros(len(ranges), bool)
        firsts, lasts = (np.array(ends) for ends in zip(*intervals, strict=True))
        # The first interval that does not end before a range begins.
        at = np.searchsorted(lasts, ranges[:, 0])
        return (at < len(lasts)) & (firsts[np.minimum(at, len(firsts) - 1)] <= ranges[:, 1])
