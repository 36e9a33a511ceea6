"""The rules of histories while rows are drawn one after the other: which choices they leave to the next row."""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_dpgen.data.histories.rules import FIRST, LAST, ONCE, HistoryRules


class RowMasks:
    """The choices that the rules of a table leave to the next row of each person.

    Args:
        rules: of the table.
        table: that table of rows.
        attributes: (N, attributes) choices of persons.

    Attributes:
        earliest: the earliest time (N,) of rows, by the choices of attributes.
        latest: the latest (N,), likewise; None where there is no end.
    """

    def __init__(self, rules: HistoryRules, table: Any, attributes: np.ndarray) -> None:
        self._rules, self._attributes = rules, attributes
        self.earliest, self.latest = limits_of(rules, table, attributes)
        # For each rule the labels that each person has had, or the largest of them.
        self._had: list[np.ndarray] = []
        for rule in rules.sequence:
            once = rule.word == ONCE
            shape = (int(rule.labels.max(initial=0)) + 1, len(attributes)) if once else (len(attributes),)
            self._had.append(np.zeros(shape, bool) if once else np.full(shape, -1))

    def barred(self, column: int, who: np.ndarray, place: int, last: np.ndarray) -> np.ndarray | None:
        """Return the choices (choices, n) that the next row of persons does not have; None where no rule is of the column.

        Args:
            who: (n,) the persons.
            place: of the row, from 0.
            last: (n,) whether it is the last one.
        """
        parts = [
            rule.barred[self._attributes[who, rule.attribute]].T for rule in self._rules.pairs if rule.column == column
        ]
        for rule, had in zip(self._rules.sequence, self._had, strict=True):
            if rule.column != column:
                continue
            counts = (rule.labels >= 0)[:, None]
            if rule.word == LAST:
                parts.append(counts & ~last)
            elif rule.word == FIRST:
                parts.append(np.broadcast_to(counts & (place > 0), (len(counts), len(who))))
            elif rule.word == ONCE:
                parts.append(counts & had[rule.labels][:, who])
            else:
                parts.append(counts & (rule.labels[:, None] < had[who]))
        return np.logical_or.reduce(parts) if parts else None

    def see(self, who: np.ndarray, codes: dict[int, np.ndarray]) -> None:
        """Take the rows of persons (n,), by their columns, as those that they have now."""
        for rule, had in zip(self._rules.sequence, self._had, strict=True):
            labels = rule.labels[codes[rule.column]]
            if rule.word == ONCE:
                had[labels[labels >= 0], who[labels >= 0]] = True
            else:
                had[who] = np.maximum(had[who], labels)


def limits_of(rules: HistoryRules, table: Any, attributes: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the earliest and the latest time (N,) that choices of attributes let rows have; None where there is no end."""
    lower, upper = rules.limits(attributes)
    if table.order is None:
        return lower, None
    end = table.order.end is not None
    latest = np.minimum(upper, table.order.last) if end else upper
    return lower, latest if end or rules.times else None


def most_rows(rules: HistoryRules, table: Any, attributes: np.ndarray, head: np.ndarray) -> np.ndarray:
    """Return how many rows (N,) persons can have at most, given what they have up to the first row."""
    counts = head[:, 0] if rules.most_rows is None else np.minimum(head[:, 0], rules.most_rows)
    earliest, latest = limits_of(rules, table, attributes)
    gap = 0 if table.order is None else int(table.order.lowest[1].min())
    if latest is None or not gap:
        return counts
    first = table.order.lowest[0]
    room = latest - np.maximum(first[np.minimum(head[:, 1], len(first) - 1)], earliest)
    return np.minimum(counts, np.maximum(room // gap + 1, 1))


def barred_starts(rules: HistoryRules, table: Any, attributes: np.ndarray) -> np.ndarray:
    """Return the bins of first times (N, bins), bool, none of whose times lies within those that choices let rows have."""
    lower, upper = (limit[:, None] for limit in rules.limits(attributes))
    return np.maximum(table.order.lowest[0], lower) > np.minimum(table.order.latest, upper)


def barred_cells(rules: HistoryRules, table: Any, target: str, feature: str, shape: tuple[int, int]) -> np.ndarray:
    """Return the cells of a table of steps, bool, in which no step is by the rules and constraints of a table of rows.

    Args:
        target, feature: their names, as `models.history_steps.Steps` has them.
        shape: of the table: the choices of the feature, and of the target.
    """
    barred = np.zeros(shape, bool)
    column = int(target.split()[-1]) if target.startswith("column ") else None
    when, _, of = feature.partition(": ")
    given = int(of.split()[-1]) if of.startswith("column ") else None
    for rule in rules.sequence:
        counts = rule.labels >= 0
        # A column before may stand there twice, as that of rows in which a wide one stays and changes.
        before = rule.labels[np.arange(shape[0]) % len(counts), None]
        if rule.word == LAST and when == "before" and given == rule.column:
            barred[before[:, 0] >= 0] = True
        if rule.column != column or shape[1] != len(counts):
            continue
        if rule.word == FIRST:
            barred[:, counts] = True
        elif rule.word == LAST and feature == "last":
            barred[0, counts] = True
        elif rule.word != LAST and when == "before" and given == column:
            again = before == rule.labels if rule.word == ONCE else before > rule.labels
            barred |= again & (before >= 0) & counts
    for pair in rules.pairs:
        if pair.column == column and feature == f"attribute {pair.attribute}":
            barred |= pair.barred
    for first, second, none in table.pairs:
        if when == "now" and {first, second} == {column, given}:
            barred |= none if column == second else none.T
    return barred
