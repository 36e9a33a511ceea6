"""Values of histories from their choices: attributes, times and columns, all of which keep the rules beyond a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.data.histories.row_table import PersonRows, RowOrder, RowTable, running
from lightning_dpgen.data.histories.rules import HistoryRules
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.tables.relative import ticks_of

# The earliest and the latest time of each person's rows, both (N,), in ticks.
Limits = tuple[np.ndarray, np.ndarray]
_NOTHING: Mapping[int, bool] = MappingProxyType({})


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
    columns = {rule.attribute: persons.rules.columns[rule.name] for rules in schema.rules for rule in rules.times}
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


def decode_rows(
    table: RowTable,
    persons: PersonRows,
    random: np.random.Generator,
    before: int = 0,
    *,
    limits: Limits | None = None,
    sort: Mapping[int, bool] = _NOTHING,
) -> pa.ListArray:
    """Return the list of rows of each person, in the order of time.

    Args:
        limits: the earliest and the latest time of each person's rows, where there are any. Rows for which these leave
            no room are left out.
        sort: columns by their places whose values never fall in a person (or, if True, never rise), as choices do.
    """
    if table.order is not None and (limits is not None or table.order.end is not None):
        persons = with_room(table.order, persons, limits)
    units = np.zeros((len(persons.rows), 0), np.float32)
    columns = list(table.rows.decode(Encoded(units, persons.rows), random, before).columns)
    for place, turned in sort.items():
        at = table.rows.arrow.get_field_index(list(table.rows.choices)[place])
        columns[at] = _sorted(columns[at], persons.person, turned)
    if table.order is not None:
        columns.insert(0, draw_times(table.order, persons, random, limits))
    ends = pa.array(np.append(persons.begins, len(persons.rows)).astype(np.int32))
    return pa.ListArray.from_arrays(ends, pa.StructArray.from_arrays(columns, fields=table.fields))


def _sorted(values: pa.Array, person: np.ndarray, turned: bool) -> pa.Array:
    """Return values (R,) of rows in their order within each person; missing ones stay where they are."""
    there = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
    ranks = pc.rank(values.take(pa.array(there)), "descending" if turned else "ascending").to_numpy().astype(np.int64)
    places = np.arange(len(values))
    places[there] = there[np.lexsort((ranks, person[there]))]
    return values.take(pa.array(places))


def draw_times(order: RowOrder, persons: PersonRows, random: np.random.Generator, limits: Limits | None) -> pa.Array:
    """Return the times of rows (R,): a time of the first bin, and distances that are added to it.

    Args:
        limits: those that persons have by rules; each has room for its rows (`with_room`). None for none.
    """
    assert persons.starts is not None
    there = persons.counts > 0
    first = order.start.scale.ticks(order.start.decode(persons.starts[there], None, random)).astype(np.int64)
    steps = order.gap.scale.ticks(order.gap.decode(persons.gaps, None, random)).astype(np.int64)
    if limits is not None:
        first = _begin_late(order, persons.starts[there], first, limits[0][there], random)
    steps[persons.begins[there]] = first
    times = running(steps, persons)
    if order.end is not None or limits is not None:
        lower, upper = _limits(order, len(persons.counts), limits)
        times = _end_early(order, persons, steps, times, lower, upper, random)
    return order.start.scale.column(times, np.zeros(len(steps), bool))


def with_room(order: RowOrder, persons: PersonRows, limits: Limits | None) -> PersonRows:
    """Return rows without the last ones of persons whose limits leave no room for all, even with the least distances."""
    lower, upper = _limits(order, len(persons.counts), limits)
    earliest = np.maximum(lower, order.start.limits[0])
    most = upper - earliest
    room = np.where(most >= 0, most // max(int(order.gap.limits[0]), 1) + 1, 0)
    room = np.where((most >= 0) & (order.gap.limits[0] == 0), persons.counts, room)
    room[earliest > order.start.limits[1]] = 0
    return persons.shortened(np.minimum(persons.counts, room))


def _limits(order: RowOrder, n: int, limits: Limits | None) -> Limits:
    """Return limits (n,) with the declared end."""
    last = np.full(n, order.last if order.end is not None else np.iinfo(np.int64).max // 2)
    if limits is None:
        return np.full(n, order.start.limits[0]), last
    return limits[0], np.minimum(limits[1], last)


def _begin_late(
    order: RowOrder, starts: np.ndarray, first: np.ndarray, lower: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """Return first times (n,), those that are too early drawn again: from the rest of their bin, if there is any."""
    ends = order.latest[starts]
    early = first < lower
    again = lower + np.floor(random.random(len(first)) * (np.maximum(ends - lower, 0) + 1)).astype(np.int64)
    return np.where(early, again, first)


def _end_early(
    order: RowOrder,
    persons: PersonRows,
    steps: np.ndarray,
    times: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    random: np.random.Generator,
) -> np.ndarray:
    """Return times (R,), none past the limit: distances of a person that would pass it shrink within their bins.

    They shrink by one part for each person, at random up to the one that ends there, so that times do not pile up at the
    end. Where even the lowest distances pass the end, the last rows are as near to it as the least distance lets them.
    """
    there = persons.counts > 0
    first, distances = order.lowest
    lowest = distances[persons.gaps]
    lowest[persons.begins[there]] = np.maximum(first[persons.starts[there]], lower[there])
    ends = persons.begins[there] + persons.counts[there] - 1
    above = np.maximum(times[ends] - running(lowest, persons)[ends], 1)
    part = np.ones(len(persons.counts))
    part[there] = np.clip((upper[there] - running(lowest, persons)[ends]) / above, 0.0, 1.0)
    part = np.where(part < 1.0, part * random.random(len(part)), part)
    shrunk = lowest + np.floor((steps - lowest) * part[persons.person]).astype(np.int64)
    behind = persons.counts[persons.person] - 1 - persons.place
    return np.minimum(running(shrunk, persons), upper[persons.person] - behind * int(order.gap.limits[0]))
