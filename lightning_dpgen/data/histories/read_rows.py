"""Rows of persons as they are read, and what the rules of histories make of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_dpgen.data.files.blocks import RowSource
from lightning_dpgen.data.histories.row_table import RowTable
from lightning_dpgen.data.histories.rules import (
    FALLING,
    FIRST,
    LAST,
    ONCE,
    HistoryRules,
    PairRule,
    SequenceRule,
    TimeRule,
    as_learned,
)
from lightning_dpgen.data.reading import CLAMP
from lightning_dpgen.data.tables.column import shortened
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.row_rules import LEFT_OUT
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.sampling.errors import BadRecords


@dataclass(frozen=True, eq=False)
class ReadRows:
    """Rows of a table (R,), those of one person together, in the order of time, and then of their columns.

    Args:
        source: of the rows; None where these stand in none.
        places: the number of each row in its source, from 0.
        person: the number of the person.
        times: ticks; zeros without an order.
        codes: (R, columns) choices.
        fixed: (R, attributes) choices of attributes that stand in each row.
        values: of all columns that were read.
    """

    source: RowSource | None
    places: np.ndarray
    person: np.ndarray
    times: np.ndarray
    codes: np.ndarray
    fixed: np.ndarray
    values: TableValues

    def __getitem__(self, rows: np.ndarray) -> ReadRows:
        names = ("places", "person", "times", "codes", "fixed", "values")
        return ReadRows(self.source, *(getattr(self, name)[rows] for name in names))

    def place(self, row: int) -> str:
        """Return where a row stands, for an error."""
        assert self.source is not None
        return f"{self.source.where}, {self.source.place(int(self.places[row]))}"

    def in_order(self, rules: HistoryRules, table: RowTable) -> ReadRows:
        """Return the rows in their order; those of one time in one that keeps rules, where there is any."""
        ties = [_tie(rule, _labels(rule, table, self)) for rule in rules.sequence if rule.word != ONCE]
        # Attributes that bound times may differ within their bins.
        fixed = [self.values.column(rule.name) for rule in rules.times if self.fixed.shape[1]]
        return self[np.lexsort((*fixed, *self.fixed.T[::-1], *self.codes.T[::-1], *ties, self.times, self.person))]


def hold_to_rules(
    rows: ReadRows,
    rules: HistoryRules,
    table: RowTable,
    attributes: np.ndarray,
    by_values: TableValues | None,
    persons: Sequence[object],
    outside: str,
    counted: Counter[str],
) -> ReadRows:
    """Return the rows that keep the rules of a table. What is left out follows from the person alone.

    Args:
        rows: in their order.
        attributes: (N, attributes) choices of persons.
        by_values: the attributes by their values; None where persons have none.
        persons: the keys of persons, by their numbers.
        outside: ``refuse``, or ``clamp``, which leaves rows out where the column of a row does not say otherwise.
        counted: what is left out is added to it: private.

    Raises:
        BadRecords: naming the rows of a person who breaks a rule.
    """
    ticks = _ticks(rules, by_values)
    for rule in (*rules.pairs, *rules.times, *rules.sequence):
        broken = _broken(rule, table, rows, attributes, ticks)
        if not broken.any():
            continue
        if not _clamps(rule, table, outside):
            raise _refusal(rule, table, rows, broken, persons)
        counted[f"{rule.text}: {LEFT_OUT}"] += int(broken.sum())
        rows = rows[np.flatnonzero(~broken)]
    return rows


def broken_rows(
    rules: HistoryRules,
    table: RowTable,
    person: np.ndarray,
    times: np.ndarray | None,
    values: TableValues,
    by_values: TableValues | None,
) -> list[tuple[str, np.ndarray]]:
    """Return each rule of a table in words, and the rows (R,) to leave out so that others keep it.

    Args:
        person: (R,) of each row; the rows of one person are in a line, in their order.
        times: (R,) ticks; None without an order.
        values: of the rows.
        by_values: the attributes of persons; None where they have none.
    """
    attributes = np.zeros((int(person.max(initial=-1)) + 1, 0), np.int64) if by_values is None else _codes(by_values)
    times = np.zeros(len(person), np.int64) if times is None else times.astype(np.int64)
    rows = ReadRows(None, np.arange(len(person)), person, times, _codes(values), attributes[:0], values)
    ticks = _ticks(rules, by_values)
    every = (*rules.pairs, *rules.times, *rules.sequence)
    return [(rule.text, _broken(rule, table, rows, attributes, ticks)) for rule in every]


def _codes(values: TableValues) -> np.ndarray:
    """Return the choices (R, columns) of values; zeros of columns that are learned otherwise than they are written."""
    schema, rows = values.schema, values.rows()
    codes = np.zeros((len(values), len(schema.layout.groups)), np.int64)
    for place, column in as_learned(schema).values():
        numbers, absent = rows[column.name]
        whole = not isinstance(column, Numeric) or column.scale.whole
        codes[:, place] = column.encode(
            column.restored(numbers.astype(np.int64) if whole else numbers, absent), True, Counter()
        )[0]
    return codes


def _ticks(rules: HistoryRules, by_values: TableValues | None) -> dict[int, np.ndarray]:
    """Return the values (N,) of attributes that bound times, by their places."""
    if by_values is None:
        return {}
    return {rule.attribute: np.nan_to_num(by_values.column(rule.name)).astype(np.int64) for rule in rules.times}


def _broken(
    rule: Any, table: RowTable, rows: ReadRows, attributes: np.ndarray, ticks: Mapping[int, np.ndarray]
) -> np.ndarray:
    """Return the rows (R,) to leave out so that others keep a rule."""
    if isinstance(rule, SequenceRule):
        return rule.broken(_labels(rule, table, rows), rows.person)
    if isinstance(rule, PairRule):
        return rule.barred[attributes[rows.person, rule.attribute], rows.codes[:, rule.column]]
    assert isinstance(rule, TimeRule)
    lower, upper = HistoryRules(times=(rule,)).limits(attributes, ticks)
    return (rows.times < lower[rows.person]) | (rows.times > upper[rows.person])


def _labels(rule: SequenceRule, table: RowTable, rows: ReadRows) -> np.ndarray:
    """Return what a rule says of the column of each row (R,): -1 where it does not count."""
    if rule.whole:
        return rule.labels[rows.codes[:, rule.column]]
    values = rows.values.column(list(table.rows.choices)[rule.column])
    there = ~np.isnan(values)
    labels, ranks = np.full(len(values), -1), np.unique(values[there], return_inverse=True)[1].ravel()
    labels[there] = ranks.max(initial=0) - ranks if rule.word == FALLING else ranks
    return labels


def _tie(rule: SequenceRule, labels: np.ndarray) -> np.ndarray:
    """Return by what rows of one time are put in an order (R,), so that they keep a rule."""
    return labels >= 0 if rule.word == LAST else labels < 0 if rule.word == FIRST else labels


def _clamps(rule: Any, table: RowTable, outside: str) -> bool:
    """Tell whether rows that break a rule are left out."""
    if isinstance(rule, TimeRule):
        return outside == CLAMP
    return table.rows.rules.columns[list(table.rows.choices)[rule.column]].clamps(outside)


def _refusal(rule: Any, table: RowTable, rows: ReadRows, broken: np.ndarray, persons: Sequence[object]) -> BadRecords:
    """Return what is wrong with the first person who breaks a rule."""
    row = int(broken.argmax())
    named = [row]
    if isinstance(rule, SequenceRule):
        labels = _labels(rule, table, rows)
        begin = int(np.searchsorted(rows.person, rows.person[row]))
        before = labels[begin:row]
        if rule.word == ONCE:
            named.insert(0, begin + int(np.flatnonzero(before == labels[row])[-1]))
        elif rule.word == LAST:
            named.insert(0, begin + int(np.flatnonzero(before >= 0)[-1]))
        else:
            named.insert(0, row - 1 if rule.word == FIRST else begin + int(before.argmax()))
    where = " and ".join(map(rows.place, named))
    more = len(np.unique(rows.person[broken])) - 1
    others = f" (and {more:,} more)" if more else ""
    what = "these rows" if len(named) > 1 else "the row, the person"
    return BadRecords(
        f"{where}: the {table.person} {shortened(persons[rows.person[row]])}{others} breaks the constraint {rule.text}; "
        f"correct {what} or the constraint, or let outside=clamp leave rows out"
    )
