"""Pairs of choices of two learned columns that no row can have where all constraints hold: each of them is proved."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lightning_dpgen.data.tables.column import Modelled
from lightning_dpgen.data.tables.constraints import Comparison, Constraint, Distance
from lightning_dpgen.data.tables.grouped import Grouped
from lightning_dpgen.data.tables.narrowing import Impossible, Narrower, Values
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.relative import Relative
from lightning_dpgen.data.tables.value_set import ValueSet, all_values, joined

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
    pairs: dict[tuple[str, str], np.ndarray] = {}
    order, looked_at = {name: place for place, name in enumerate(learned)}, 0
    # Constraints of a column and the one that it is relative to hold of sums of the same number.
    relative_to = {name: column.relative_to for name, column in relatives.items()}
    for related in _related(constraints):
        known = [_Choices(columns[name], one, relatives.get(name)) for name, one in learned.items() if name in related]
        relevant = [constraint for constraint in constraints if related.issuperset(constraint.columns)]
        told_apart = {
            frozenset((name, relative_to.get(name, name))) for one in relevant if not isinstance(one, Distance)
            for name in one.columns if relative_to.get(name) in one.columns
        }  # fmt: skip
        rules = Narrower(relevant, columns)
        values, changed = {name: all_values(columns[name]) for name in related}, None
        # The values of every row are worked out once.
        with suppress(Impossible):
            values, changed = _narrowed(rules, values), ()
        for given in known:
            others = [other for other in known if other is not given]
            looked_at += given.count * len(others)
            if given.count > _MOST_CHOICES or looked_at > _MOST_LOOKED_AT:
                continue
            left_out = {other.column.name: np.zeros((given.count, other.count), bool) for other in others}
            for choice in range(given.count):
                try:
                    limits, stated = given.held(slice(choice, choice + 1), values, rules)
                    limits = _narrowed(stated, limits, None if changed is None else (given.column.name,))
                    for other in others:
                        singly = frozenset((given.column.name, other.column.name)) in told_apart
                        left_out[other.column.name][choice] = ~other.possible(limits, stated, singly)
                except Impossible:
                    for table in left_out.values():
                        table[choice] = True
            for name, table in left_out.items():
                turned = order[name] < order[given.column.name]
                pair = (name, given.column.name) if turned else (given.column.name, name)
                if table.any():
                    pairs[pair] = pairs.get(pair, False) | (table.T if turned else table)
        _close(pairs, {one.column.name: one.count for one in known})
    return pairs


def _narrowed(rules: Narrower, values: Values, changed: Collection[str] | None = None) -> Values:
    """Return the values that are left; a sum that is computed is missing only where one of its parts is.

    Args:
        changed: as `Narrower.narrowed` takes it.
    """
    sums = [one for one in rules.constraints if isinstance(one, Comparison) and one.derives is not None]
    while True:
        sure = [
            one.derives for one in sums
            if values[one.derives].missing and not any(values[name].missing for name in one.columns if name != one.derives)
        ]  # fmt: skip
        if not sure and changed is not None and not changed:
            return values
        values = values | {name: ValueSet(values[name].intervals) for name in sure}
        values = rules.narrowed(values, None if changed is None else {*changed, *sure})
        changed = ()


def _close(tables: dict[tuple[str, str], np.ndarray], counts: Mapping[str, int]) -> None:
    """Take a choice that goes with no choice of one other column for one that goes with none at all."""
    never = {name: np.zeros(count, bool) for name, count in counts.items()}
    for (first, second), table in tables.items():
        if first in counts:
            never[first] |= table.all(axis=1)
            never[second] |= table.all(axis=0)
    for first, second in itertools.combinations(counts, 2):
        if never[first].any() or never[second].any():
            table = tables.get((first, second), np.zeros((counts[first], counts[second]), bool))
            tables[first, second] = table | never[first][:, None] | never[second]


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

    def possible(self, values: Values, rules: Narrower, singly: bool) -> np.ndarray:
        """Return the choices (choices,), bool, for which nothing shows that no row with these values has them.

        Args:
            values: what the rules have left.
            singly: whether each is looked at by itself.
        """
        is_possible, name = np.zeros(self.count, bool), self.column.name
        if (values[name], singly) in self._settled:
            return self._settled[values[name], singly]
        settled = self.relative is None
        single = [slice(choice, choice + 1) for choice in range(self.count)]
        for kind in single if singly else [kind for kind in self._kinds if kind.start < kind.stop]:
            narrowed, stated = self.held(kind, values, rules)
            if not narrowed[name].intervals and not narrowed[name].missing:
                continue
            try:
                same = stated is rules and narrowed[name] == values[name]
                settled = settled and same
                is_possible[kind] = self._met(kind, narrowed if same else _narrowed(stated, narrowed, (name,)))
            except Impossible:
                continue
        if settled:
            self._settled[values[name], singly] = is_possible
        return is_possible

    @cached_property
    def _settled(self) -> dict[tuple[ValueSet, bool], np.ndarray]:
        """The choices that are possible, by the values of the column, where these alone say so."""
        return {}

    def held(self, kind: slice, values: Values, rules: Narrower) -> tuple[Values, Narrower]:
        """Return values and constraints of rows with some choices of one kind, next to each other."""
        name, bins = self.column.name, self._kinds[0]
        if self.relative is not None and kind.start < bins.stop:
            ends = self._ranges[kind]
            near = {"column": self._bare, "low": ends[0, 0].item(), "high": ends[-1, 1].item()}
            distances = [
                place for place in rules.places.get(name, ())
                if isinstance(one := rules.constraints[place], Distance) and one.column.name == name
            ]  # fmt: skip
            rules = rules.with_constraints({place: replace(rules.constraints[place], **near) for place in distances})
        ends = kind.start, kind.stop
        if ends not in self._sets:
            self._sets[ends] = self._values_with(kind)
        return {**values, name: self._sets[ends].common(values[name])}, rules

    @cached_property
    def _sets(self) -> dict[tuple[int, int], ValueSet]:
        """Values of choices, by the first of them and the one after the last."""
        return {}

    def _values_with(self, kind: slice) -> ValueSet:
        """Return the values of some choices of one kind; of distances all of the column."""
        _, special, _ = self._kinds
        if kind.start >= special.stop:
            return ValueSet((), missing=True)
        if isinstance(self.learned, Grouped):
            return self.learned.values_with(kind)
        if self.relative is None:
            # Bins that touch are one interval, as in what rules leave.
            whole = not isinstance(self.column, Numeric) or self.column.scale.whole
            return ValueSet(tuple(joined(list(map(tuple, self._ranges[kind].tolist())), whole)))
        if kind.start >= special.start:
            return ValueSet(tuple(sorted(map(tuple, self._special(kind).tolist()))))
        return ValueSet((self.column.limits,))

    @cached_property
    def _bare(self) -> Modelled:
        """The column without its special values, which lie at no distance."""
        return self.column.with_values(special=()) if self.column.special else self.column

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
