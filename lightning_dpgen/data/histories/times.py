"""Times of rows from their bins: those of a person stay within its limits, and where they can within their bins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from lightning_dpgen.data.histories.row_table import PersonRows, RowOrder

# The earliest and the latest time of each person's rows, both (N,), in ticks.
Limits = tuple[np.ndarray, np.ndarray]


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


def with_room(order: RowOrder, persons: PersonRows, limits: Limits) -> PersonRows:
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


def running(numbers: np.ndarray, persons: PersonRows) -> np.ndarray:
    """Return running sums (R,) of numbers, one a row, within each history.

    Example:
        >>> from lightning_dpgen.data.histories.row_table import PersonRows
        >>> two = PersonRows(np.array([2, 0, 1]), None, np.zeros(3), np.zeros((3, 1)))
        >>> running(np.array([1, 2, 5]), two).tolist()
        [1, 3, 5]
    """
    total, there = np.cumsum(numbers), persons.counts > 0
    return total - np.repeat((total - numbers)[persons.begins[there]], persons.counts[there])
