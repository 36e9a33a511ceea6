"""Attributes of persons from their bins, so that the times of their rows can keep the rules that speak of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.histories.row_table import PersonRows, RowTable
from lightning_dpgen.data.histories.rules import HistoryRules
from lightning_dpgen.data.histories.times import Limits
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.tables.relative import ticks_of


def draw_attributes(
    schema: Any, attributes: np.ndarray, rows: Sequence[PersonRows], random: np.random.Generator
) -> tuple[pa.RecordBatch, list[Limits | None]]:
    """Return the values of persons' attributes, and the limits that they are to the times of each table's rows.

    A value that bounds times is drawn again from that part of its bin which leaves room for the bins of the times, where
    there is one.

    Args:
        schema: of the histories, whose persons have attributes.
        attributes: (N, attributes) choices.
        rows: of the persons in each table.
    """
    persons, encoded = schema.persons, Encoded(np.zeros((len(attributes), 0), np.float32), attributes)
    values = persons.values(encoded, random)
    names = list(persons.choices)
    columns = {
        rule.attribute: persons.rules.columns[names[rule.attribute]] for rules in schema.rules for rule in rules.times
    }
    ticks = {place: ticks_of(column, values.column(column.name))[0] for place, column in columns.items()}
    before = {place: own.copy() for place, own in ticks.items()}
    for table, rules, own in zip(schema.tables, schema.rules, rows, strict=True):
        if rules.times:
            _make_room(table, rules, attributes, own, ticks, random)
    if any((ticks[place] != before[place]).any() for place in ticks):
        cells = {}
        for place, column in columns.items():
            absent = attributes[:, place] >= column.present
            cells[column.name] = np.ones(len(absent), bool), column.restored(ticks[place], absent)
        values = persons.values(encoded, random, cells)
    return values, [rules.limits(attributes, ticks) if rules.times else None for rules in schema.rules]


def _make_room(
    table: RowTable,
    rules: HistoryRules,
    attributes: np.ndarray,
    rows: PersonRows,
    ticks: dict[int, np.ndarray],
    random: np.random.Generator,
) -> None:
    """Draw the values `ticks` again, in place, that leave no room for the rows of a table."""
    assert table.order is not None and rows.starts is not None
    there, (first, distances) = np.flatnonzero(rows.counts), table.order.lowest
    if not len(there):
        return
    attributes, starts, latest = attributes[there], rows.starts[there], table.order.latest
    lowest = distances[rows.gaps]
    lowest[rows.begins[there]] = 0
    lengths = np.add.reduceat(lowest, rows.begins[there])
    # Lower bounds are moved first, to leave room below the latest of upper ones.
    upper = rules.limits(attributes)[1]
    upper = upper if table.order.end is None else np.minimum(upper, table.order.last)
    for rule in sorted(rules.times, key=lambda rule: rule.upper):
        if rule.upper:
            lower = rules.limits(attributes, {place: own[there] for place, own in ticks.items()})[0]
            goal = np.maximum(first[starts], lower) + lengths - rule.add
        else:
            goal = np.minimum(latest[starts], upper - lengths) - rule.add
        own = ticks[rule.attribute][there]
        wrong = np.flatnonzero(rule.applies(attributes) & ((own < goal) if rule.upper else (own > goal)))
        choice, goal = attributes[wrong, rule.attribute], goal[wrong]
        low, high = rule.lowest[choice], rule.highest[choice]
        if rule.upper:
            low = np.clip(goal, low, high)
        else:
            high = np.clip(goal, low, high)
        ticks[rule.attribute][there[wrong]] = random.integers(low, high, endpoint=True)
