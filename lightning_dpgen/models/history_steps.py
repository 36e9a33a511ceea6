"""The steps of histories: from a row to the next one of a table, and what a column of the next row may follow from."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lightning_dpgen.data.histories.row_table import PersonRows, running
from lightning_dpgen.data.layout import Encoded

# Bins of the time at which a row begins, between the first and the last that are possible.
_TIMES = 12
# Where a row has more columns than this, attributes reach all but the first of them through the rows before alone.
_FEW = 2
# Up to so many rows each number is told apart; of more, a bin is as long as this part of the number at which it begins.
_APART, _BIN = 16, 4
# A column of more choices in no order is wide: a table of it by another column would be noise.
_WIDE = 64
# The fewest choices whose order contrasts tell, and the most choices in none that they tell apart.
SHORTEST, FEW = 3, 12
# Parts into which shares of one of two choices are cut.
_SHARES = 4


@dataclass(frozen=True)
class Feature:
    """A number that a row follows from, as one of so many choices.

    Args:
        name: of the feature.
        size: the number of its choices.
        ordered: how many of its first choices are in an order.
        by_contrasts: whether rows follow from it by a few contrasts alone, and not by each choice; it stays for a person.
    """

    name: str
    size: int
    ordered: int
    by_contrasts: bool = False

    @property
    def of_memory(self) -> bool:
        """True if it is the share of the choice itself among the rows so far, from which each choice follows."""
        return self.name.startswith("memory: ")


class Steps:
    """The steps of histories in one table: from a row, and all before it, to the next one.

    Targets are the distance, where rows have an order, and the columns of a row, in the order in which they are drawn. A
    wide column has two: if it stays the same, which follows from what others do, and its new choice, which follows from
    nothing but the old one.

    Args:
        schema: of the histories; public.
        number: of the table of rows.

    Attributes:
        targets: the number of choices of each target, and how many of the first are in an order.
        features: for each target its features.
        numbers: of each column how many of its first choices are numbers, which have a mean: 0 for none.
        wide: the columns with very many choices, by the names of their targets.
        remembered: the columns of some choices in no order, of which a person's earlier rows are remembered: each choice
            follows from its share among them.
    """

    def __init__(self, schema: Any, number: int) -> None:
        self.schema, self.number, self.table = schema, number, schema.tables[number]
        table, rows, order = self.table, self.table.rows.layout, self.table.order
        of_rows = table.ordered_columns
        self.targets = [("gap", order.gap.choices, order.gap.ordered)] if order is not None else []
        self.wide = [f"column {i}" for i, size in enumerate(rows.groups) if size > _WIDE and not of_rows[i]]
        self.remembered = [i for i, size in enumerate(rows.groups) if 2 < size <= _WIDE and not of_rows[i]]
        self.targets += [(f"same: {name}", 3, 0) for name in self.wide]
        columns = [(f"column {i}", size, of_rows[i]) for i, size in enumerate(rows.groups)]
        self.targets += sorted(columns, key=lambda own: own[0] in self.wide)
        attributes, of_attributes = schema.layout.groups[: schema.attributes], schema.layout.ordered
        self._edges = count_edges(table.max_rows)
        # The share of the second of two choices so far tells persons apart as a mean does.
        self.numbers = [2 if size == 2 else ordered for size, ordered in zip(rows.groups, of_rows, strict=True)]
        # Where rows have times, these say what the place would say, with less noise.
        places = len(self._edges)
        common = [
            Feature("rows", len(self._edges), len(self._edges)),
            Feature("place", places, places) if order is None else Feature("time", _TIMES, _TIMES),
            Feature("last", 2, 0),
        ]
        self._others = {
            f"rows of {other.name}": (i, count_edges(other.max_rows, coarse=True))
            for i, other in enumerate(schema.tables) if i != number
        }  # fmt: skip
        # Where nothing has contrasts, there is nothing that they would tell.
        told = any(has_contrasts(size, ordered) for name, size, ordered in self.targets if name not in self.wide)
        fixed = [(name, len(edges), len(edges)) for name, (_, edges) in self._others.items()]
        fixed += [(f"attribute {i}", size, of_attributes[i]) for i, size in enumerate(attributes)
                  if size <= _WIDE or of_attributes[i]]  # fmt: skip
        common += [Feature(*own, told and has_contrasts(*own[1:])) for own in fixed]
        contrasted, common = ([own for own in common if own.by_contrasts == by] for by in (True, False))
        self.features: dict[str, list[Feature]] = {}
        few = len(rows.groups) <= _FEW
        for j, (name, size, ordered) in enumerate(self.targets):
            if name in self.wide:
                self.features[name] = [Feature(f"new: {name}", 1, 0)]
                self.features[name] += [
                    Feature(f"now: {other}", *rest) for other, *rest in columns if other not in self.wide
                ]
                continue
            column = None if name == "gap" else column_of(name)
            if column is None:
                # The distance before the second row is none.
                own = [Feature("before: gap", size + 1, ordered)]
                own += [] if "column 0" in self.wide else [Feature("before: column 0", rows.groups[0], of_rows[0])]
            elif f"column {column}" in self.wide:
                own = []
            else:
                own = [Feature(f"before: {name}", size * (2 if self._tells_same(name) else 1), ordered)]
                own += [Feature(f"mean: {name}", *self._size_of_mean(column))] if self.numbers[column] else []
                own += [Feature(f"memory: {name}", 1, 0)] if column in self.remembered else []
            now = [Feature(f"now: {other}", *rest) for other, *rest in self.targets[:j] if other not in self.wide]
            first = common if few or column in (None, 0) else [own for own in common if own.name == "time"]
            self.features[name] = [*contrasted, *first, *own, *now]

    def _tells_same(self, name: str) -> bool:
        """Return whether the row before counts anew for a column where a wide column has changed."""
        return bool(self.wide) and name.startswith("column ") and not self.table.ordered_columns[column_of(name)]

    def before(self, name: str, codes: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the codes of a column in the row before; a column without an order has others where a wide one changed."""
        own = codes[f"before: {name}"]
        if not self._tells_same(name):
            return own
        changed = np.any([codes[f"now: same: {wide}"] != 1 for wide in self.wide], axis=0)
        return own + changed * self.table.rows.layout.groups[column_of(name)]

    def _size_of_mean(self, column: int) -> tuple[int, int]:
        size = self.table.rows.layout.groups[column]
        return (_SHARES + 2, _SHARES + 1) if size == 2 else (size + 1, self.numbers[column])

    @property
    def tables(self) -> list[tuple[str, Feature, int]]:
        """All pairs of a target and a feature, with the number of the target's choices; none without a second row."""
        if self.table.max_rows == 1:
            return []
        return [(name, feature, self.shape_of(feature, size)[1]) for name, size, _ in self.targets
                for feature in self.features[name] if not feature.by_contrasts]  # fmt: skip

    @property
    def by_contrasts(self) -> list[Feature]:
        """The features from which all targets but wide ones follow by contrasts."""
        targets = [name for name, _, _ in self.targets if name not in self.wide]
        if self.table.max_rows == 1 or not targets:
            return []
        return [feature for feature in self.features[targets[0]] if feature.by_contrasts]

    def fitted(self, target: str) -> list[Feature]:
        """Return the features of a target whose tables are fitted cell by cell; to a wide one, none of the row itself."""
        features = self.features[target]
        return features[:1] if target in self.wide else [own for own in features if not own.by_contrasts]

    @property
    def name_of_moments(self) -> str:
        """The name of the moments of steps in plan and ledger."""
        return f"{self.schema.prefix(self.table)}moments of steps"

    @staticmethod
    def shape_of(feature: Feature, size: int) -> tuple[int, int]:
        """Return the shape of the table of a feature and a target with so many choices."""
        return feature.size, (_SHARES + 1 if feature.of_memory else size)

    def cells_of(self, codes: Mapping[str, np.ndarray], target: str, feature: Feature) -> tuple[np.ndarray, np.ndarray]:
        """Return the row and the column of each step in a table, both (S,); -1 where a step does not count."""
        now = codes[f"now: {target}"]
        if feature.of_memory:
            return np.zeros_like(codes[feature.name]), codes[feature.name]
        if feature.name == f"before: {target}":
            # A record of the layout may say of a row that it is none, and counts for nothing there.
            there = codes[feature.name] < self._choices_of(target)
            return np.where(there, self.before(target, codes), -1), now
        return codes[feature.name], now

    def _choices_of(self, target: str) -> int:
        return self.table.order.gap.choices + 1 if target == "gap" else self.table.rows.layout.groups[column_of(target)]

    def names_of(self, target: str, feature: Feature) -> set[str]:
        """Return the names of all codes that a table is made of."""
        names = {feature.name, f"now: {target}"}
        return names | ({f"now: same: {wide}" for wide in self.wide} if feature.name == f"before: {target}" else set())

    def name_of(self, target: str, feature: Feature) -> str:
        """Return the name of a table in plan and ledger."""
        return f"{self.schema.prefix(self.table)}{target} by {feature.name}"

    def times(self, ticks: np.ndarray) -> np.ndarray:
        """Return the bins of times (n,), as ticks."""
        order = self.table.order
        assert order is not None
        low, high = int(order.start.limits[0]), order.last
        return np.clip((ticks - low) * _TIMES // max(high - low + 1, 1), 0, _TIMES - 1)

    def counts_bin(self, counts: np.ndarray) -> np.ndarray:
        """Return the bins of numbers of rows, or places, of this table."""
        return np.searchsorted(self._edges, counts, side="right") - 1

    def of_persons(self, attributes: np.ndarray, numbers: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return the codes of the features that stay the same for a person, each (N,).

        Args:
            attributes: (N, attributes) choices.
            numbers: the number of rows (N,) in each table.
        """
        codes = {"rows": self.counts_bin(numbers[self.number])}
        codes |= {name: np.searchsorted(edges, numbers[i], side="right") - 1 for name, (i, edges) in self._others.items()}
        return codes | {f"attribute {i}": attributes[:, i].copy() for i in range(attributes.shape[1])}

    def of_histories(
        self, encoded: Encoded, names: Container[str] | None = None
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return all steps of histories: the person (S,), and codes by name.

        The time of a row is that of the middle of its bins: a function of the person's own choices. Codes of a feature are
        -1 where a step does not count for it.

        Args:
            names: those whose codes are asked for; None for all.
        """
        parts, order = self.schema.parts, self.table.order
        persons = self.table.parted(encoded.codes[:, parts[self.number]])
        step = np.flatnonzero(persons.place > 0)
        who, place, codes = persons.person[step], persons.place[step], dict[str, np.ndarray]()

        def asked(name: str) -> bool:
            return names is None or name in names

        counts = [encoded.codes[:, part.start].astype(np.int64) for part in parts]
        fixed = self.of_persons(encoded.codes[:, : self.schema.attributes].astype(np.int64), counts)
        codes |= {name: own[who] for name, own in fixed.items() if asked(name)}
        codes["last"] = (place == persons.counts[who] - 1).astype(np.int64)
        if order is None:
            codes["place"] = self.counts_bin(place)
        else:
            codes["now: gap"] = persons.gaps[step]
            codes["before: gap"] = np.where(place > 1, persons.gaps[step - 1], order.gap.choices)
        if order is not None and asked("time"):
            assert persons.starts is not None
            first, distance = self.middles
            # A record of the layout may say of a row that it is none, and counts for nothing there.
            ticks, there = distance[np.minimum(persons.gaps, len(distance) - 1)], persons.counts > 0
            ticks[persons.begins[there]] = first[np.minimum(persons.starts[there], len(first) - 1)]
            codes["time"] = self.times(running(ticks, persons))[step - 1]
        for i, (size, most) in enumerate(zip(self.table.rows.layout.groups, self.numbers, strict=True)):
            column = persons.rows[:, i]
            codes |= {f"{when}: column {i}": column[at] for when, at in (("now", step), ("before", step - 1))
                      if asked(f"{when}: column {i}")}  # fmt: skip
            if most and asked(f"mean: column {i}"):
                there = column < most
                values = np.where(there, column, 0), there.astype(np.int64)
                total, number = ((running(own, persons) - own)[step - 1] for own in values)
                codes[f"mean: column {i}"] = mean_codes(total, number, size)
            wide = f"column {i}" in self.wide and any(
                asked(name) for name in (f"now: same: column {i}", f"new: column {i}", f"now: column {i}")
            )
            if wide or (i in self.remembered and asked(f"memory: column {i}")):
                earlier = _earlier(persons, column)[step]
            if i in self.remembered and asked(f"memory: column {i}"):
                codes[f"memory: column {i}"] = share_codes(earlier, place)
            if wide:
                same = column[step] == column[step - 1]
                codes[f"now: same: column {i}"] = np.where(same, 1, np.where(earlier > 0, 2, 0))
                codes[f"new: column {i}"] = np.where(same | (earlier > 0), -1, 0)
        return who, codes

    @cached_property
    def middles(self) -> tuple[np.ndarray, np.ndarray]:
        """The middle ticks of the bins of first times, and of distances."""
        order = self.table.order
        assert order is not None
        return tuple(
            np.array([(low + high) // 2 for low, high in column.ranges], np.int64) for column in (order.start, order.gap)
        )


def _earlier(persons: PersonRows, column: np.ndarray) -> np.ndarray:
    """Return how many rows before (R,) of the same person have the same choice of a column (R,)."""
    order_of = np.lexsort((persons.place, column, persons.person))
    new = np.diff(column[order_of], prepend=-1) != 0
    new |= np.diff(persons.person[order_of], prepend=-1) != 0
    begins, earlier = np.flatnonzero(new), np.empty(len(order_of), np.int64)
    earlier[order_of] = np.arange(len(order_of)) - np.repeat(begins, np.diff(begins, append=len(order_of)))
    return earlier


def has_contrasts(size: int, ordered: int) -> bool:
    """Return whether contrasts tell choices apart: those in an order, or few of them.

    Args:
        size: the number of choices.
        ordered: how many of the first are in an order.
    """
    return ordered >= SHORTEST or 1 < size <= FEW


def column_of(name: str) -> int:
    """Return the column of a row that a target, or a feature, is named for."""
    return int(name.split()[-1])


def count_edges(most: int, *, coarse: bool = False) -> np.ndarray:
    """Return where the bins of numbers of rows, 0 to `most`, begin; the largest number has one of its own.

    Example:
        >>> count_edges(40).tolist(), count_edges(40, coarse=True).tolist()
        ([0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 22, 27, 33, 40], [0, 1, 2, 4, 8, 16, 32, 40])
    """
    if most <= _APART and not coarse:
        return np.arange(most + 1)
    edges = [0]
    while edges[-1] < most:
        edges.append(min(most, edges[-1] + max(1, edges[-1] // (1 if coarse else _BIN))))
    return np.array(edges)


def share_codes(number: np.ndarray, of: Any) -> np.ndarray:
    """Return the quarters of shares, rounded up, so that no other share is 0."""
    return -(-_SHARES * number // of)


def mean_codes(total: np.ndarray, number: np.ndarray, size: int) -> np.ndarray:
    """Return the codes of means; the last one where there is no value.

    Means are taken to the nearest choice, and of two choices to the next quarter, so that no other share is 0.

    Example:
        >>> mean_codes(np.array([0, 1, 8]), np.array([0, 9, 9]), 2), mean_codes(np.array([5, 7]), np.array([4, 4]), 9)
        (array([5, 1, 4]), array([1, 2]))
    """
    if size == 2:
        return np.where(number > 0, share_codes(total, np.maximum(number, 1)), _SHARES + 1)
    return np.where(number > 0, (2 * total + number) // (2 * np.maximum(number, 1)), size)
