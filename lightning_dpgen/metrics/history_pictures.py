"""Pictures of histories: numbers of rows, distances in time, steps from row to row and some persons, real and synthetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lightning_dpgen.data.histories.row_table import RowTable, running
from lightning_dpgen.metrics.histories import A_SCHEMA, Histories, TableOfHistories, has_steps, lagged, variation
from lightning_dpgen.metrics.measure import Plot, Result, format_score, register
from lightning_dpgen.metrics.sides import EncodedSides

# Persons that a picture shows, groups of choices that it tells apart, columns that have one, and the longest lag.
PERSONS, _GROUPS, _COLUMNS, _LAGS = 12, 8, 3, 4
# Groups of an ordered column by which marks are coloured; the difference of shares from which a cell is framed, and the
# share of steps; the ratio of distances from which their axis is logarithmic.
_SHADES, _APART, _OFTEN, _LONG = 4, 0.1, 0.01, 50
# Between the ends of a bin in its name.
_TO = " to "
_STEPS = (
    "How often each choice (across) comes after another one (down), in percent; beside the latter, the share of steps that "
    f"begin with it. Framed: what differs from the real share by {100 * _APART:.0f} percent points or more, after choices "
    f"that {100 * _OFTEN:.0f} % or more of the real steps begin with."
)
_HISTORIES = (
    "A dozen persons of each side, drawn at random at the same ranks by their number of rows, which stands before each. "
    "Times are the middles of their bins."
)
_HEADING, _SIDES = "Histories", ("real", "synthetic")


def group_choices(
    codes: np.ndarray, names: Sequence[str], ordered: int, most: int = _GROUPS
) -> tuple[np.ndarray, list[str], int]:
    """Gather choices into few groups: neighbours that are about as frequent together, and choices that are rare.

    Args:
        codes: choices (n,) by which frequency is told.
        names: of the choices.
        ordered: how many of the first choices are in an order.
        most: number of groups.

    Returns:
        The group of each choice, and of one more, which no history has; the names of the groups; how many of the first ones
        are in an order.

    Example:
        >>> group_choices(np.array([0, 1, 1, 2, 3, 3]), ["0 to 4", "5 to 9", "10", "11 to 19"], ordered=4, most=2)
        (array([0, 0, 1, 1, 2]), ['0 to 9', '10 to 19'], 2)
        >>> group_choices(np.array([0, 2, 2, 1, 1]), ["a", "b", "c"], ordered=0, most=2)
        (array([1, 0, 1, 2]), ['b', 'other'], 0)
    """
    size = len(names)
    if size <= most:
        return np.arange(size + 1), list(names), ordered
    counts = np.bincount(codes, minlength=size + 1)[:size]
    groups, texts = np.zeros(size + 1, np.int64), []
    if ordered:
        room = min(ordered, most - min(2, size - ordered))
        middles = np.cumsum(counts[:ordered]) - counts[:ordered] / 2
        parts = np.floor(room * middles / max(1, counts[:ordered].sum())).astype(np.int64)
        groups[:ordered] = np.unique(parts, return_inverse=True)[1]
        for group in range(groups[ordered - 1] + 1):
            inside = np.flatnonzero(groups[:ordered] == group)
            first, last = names[inside[0]], names[inside[-1]]
            texts.append(first if first == last else f"{first.partition(_TO)[0]}{_TO}{last.rpartition(_TO)[2]}")
    in_order = len(texts)
    rest = ordered + np.argsort(-counts[ordered:], kind="stable")
    alone = np.sort(rest if len(rest) <= most - in_order else rest[: most - in_order - 1])
    groups[rest] = in_order + len(alone)
    groups[alone] = in_order + np.arange(len(alone))
    texts += [names[place] for place in alone] + ["other"] * (len(alone) < len(rest))
    groups[size] = len(texts)
    return groups, texts, in_order


def steps_of(table: RowTable, column: int, sides: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[dict[str, Any]]:
    """Return the arguments of `charts.transitions` for a column of each side, in groups of the first side.

    Args:
        sides: choices (steps,) of the column before and after.
    """
    names = list(table.rows.choices.values())[column]
    groups, texts, _ = group_choices(np.concatenate(sides[0]), names, table.ordered_columns[column])
    found, size = [], len(texts)
    for before, after in ((groups[codes] for codes in side) for side in sides):
        there = (before < size) & (after < size)
        counts = np.bincount(before[there] * size + after[there], minlength=size**2).reshape(size, size)
        total = counts.sum(axis=1)
        shares = np.divide(counts, total[:, None], out=np.full((size, size), np.nan), where=total[:, None] > 0)
        found.append({"shares": shares, "before": total / max(1, total.sum()), "names": texts})
    return found


def some_rows(counts: np.ndarray, seed: int) -> list[np.ndarray]:
    """Return the places of the rows of a few persons, from the fewest to the most rows; those without any are left out.

    Persons have their ranks by the number of rows evenly spaced, so that two sides can be compared line by line.

    Example:
        >>> [rows.tolist() for rows in some_rows(np.array([2, 0, 1]), seed=0)]
        [[2], [0, 1]]
    """
    who = np.random.default_rng(seed).permutation(np.flatnonzero(counts))
    who = who[np.argsort(counts[who], kind="stable")]
    begins, drawn = np.cumsum(counts) - counts, min(PERSONS, len(who))
    ranks = (2 * np.arange(drawn) + 1) * len(who) // max(1, 2 * drawn)
    return [begins[person] + np.arange(counts[person]) for person in who[ranks]]


def persons_of(
    table: RowTable, sides: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], seed: int
) -> tuple[str, list[dict[str, Any]]]:
    """Return the arguments of `charts.timelines` for a few persons of each side, on one scale.

    Marks have the colour of the first column of categories; where there is none, shades by the first column.

    Args:
        sides: numbers of rows (N,), the time (R,) of each row, or its place in a set, and its choices (R, columns).

    Returns:
        The name of the column by which marks are coloured, and the arguments.
    """
    column = next((column for column, ordered in enumerate(table.ordered_columns) if not ordered), 0)
    (name, names), ordered = list(table.rows.choices.items())[column], table.ordered_columns[column]
    groups, texts, shades = group_choices(sides[0][2][:, column], names, ordered, _SHADES if ordered else _GROUPS)
    chosen = [[(times[own], groups[rows[own, column]]) for own in some_rows(counts, seed)] for counts, times, rows in sides]
    drawn = [times for persons in chosen for times, _ in persons]
    low, high = (float(end(np.concatenate(drawn))) if drawn else 0.0 for end in (np.min, np.max))
    if table.order is None:
        # The order of a set says nothing, so equal marks stand side by side.
        chosen = [[(times, np.sort(groups)) for times, groups in persons] for persons in chosen]
        ends = tuple(f"row {place + 1:.0f}" for place in (low, high))
    else:
        ends = tuple(str(table.order.start.scale.declared(int(tick))) for tick in (low, high))
    shared, width = {"names": texts, "ends": ends, "shades": shades}, max(high - low, 1.0)
    lines = ([((times - low) / width, groups) for times, groups in persons] for persons in chosen)
    return name, [shared | {"persons": own, "alt": f"rows of {len(own)} persons by {name}"} for own in lines]


@register("histories", section="rows", place=11, better="lower", needs=(A_SCHEMA,))
def _draw_histories(sides: EncodedSides) -> Result:
    plots: list[Plot] = []
    for real, made in zip(*(Histories(sides.schema, part).tables for part in (sides.real, sides.synthetic)), strict=True):
        plots.append(_draw_counts(real, made))
        if has_steps(real.table):
            moved = [_moved(real, made, column) for column in range(len(real.columns))]
            farthest = np.argsort(-np.array(moved), kind="stable").tolist()
            in_order = [column for column in farthest if real.ordered[column]][:_COLUMNS]
            plots += [_draw_distances(real, made), *(_draw_lags(real, made, column) for column in in_order)]
            plots += [plot for i in farthest[:_COLUMNS] for plot in _draw_steps(real, made, i, moved[i])]
        plots += _draw_persons(real, made, sides.seed)
    return Result(plots=plots)


def _moved(real: TableOfHistories, made: TableOfHistories, column: int) -> float:
    size, steps = real.columns[column][1] + 1, ((side.rows[:, column], *side.steps()) for side in (made, real))
    return variation(*(codes[before].astype(np.int64) * size + codes[after] for codes, before, after in steps))


def _draw_counts(real: TableOfHistories, made: TableOfHistories) -> Plot:
    size = 1 + max(1, *(int(side.counts.max(initial=0)) for side in (real, made)))
    shares = _of_both(real, made, lambda side: np.bincount(side.counts, minlength=size) / max(1, len(side.counts)))
    words = {"choices": None, "named": True, "alt": f"{real.prefix}persons by their number of rows, real and synthetic"}
    return Plot(_HEADING, f"{real.prefix}Rows of a person", "bars", shares | words)


def _draw_distances(real: TableOfHistories, made: TableOfHistories) -> Plot:
    order = real.table.order
    lows, highs = np.array(order.gap.ranges, float)[: order.gap.ordered].T

    def curve(side: TableOfHistories) -> np.ndarray:
        gaps = side.gaps[side.place > 0]
        counts = np.bincount(gaps, minlength=len(highs))[: len(highs)]
        return np.append(0.0, np.cumsum(counts)) / max(1, len(gaps))

    unit = "days" if order.start.type == "date" else order.name
    words = {"along": f"{unit} from a row to the next", "up": "share of rows up to there", "at": np.append(lows[0], highs)}
    words["scales"] = ("symlog" if highs[-1] > _LONG * max(1.0, highs[0]) else "linear", "linear")
    words["alt"] = f"{real.prefix}distances from row to row, real and synthetic"
    return Plot(_HEADING, f"{real.prefix}Distance from row to row", "lines", _of_both(real, made, curve) | words)


def _draw_lags(real: TableOfHistories, made: TableOfHistories, column: int) -> Plot:
    lags, name = range(1, min(_LAGS, real.table.max_rows - 1) + 1), f"{real.prefix}{real.columns[column][0]}"
    curves = _of_both(real, made, lambda side: np.array([1.0, *(lagged(side, column, lag) for lag in lags)]))
    words = {"along": "rows later", "up": "rank correlation", "alt": f"{name}: correlations by lag, real and synthetic"}
    return Plot(_HEADING, f"{name}: correlation with itself", "lines", curves | words | {"at": [0, *lags]})


def _of_both(
    real: TableOfHistories, made: TableOfHistories, compute: Callable[[TableOfHistories], np.ndarray]
) -> dict[str, np.ndarray]:
    return {word: compute(side) for word, side in zip(_SIDES, (real, made), strict=True)}


def _draw_steps(real: TableOfHistories, made: TableOfHistories, column: int, moved: float) -> list[Plot]:
    name = f"{real.prefix}{real.columns[column][0]}"
    steps = [[side.rows[rows, column] for rows in side.steps()] for side in (real, made)]
    drawn, plots = steps_of(real.table, column, steps), []
    apart = np.abs(drawn[1]["shares"] - drawn[0]["shares"])
    drawn[1]["framed"] = (apart >= _APART) & (drawn[0]["before"][:, None] >= _OFTEN)
    for word, told, content in zip(_SIDES, ("", f": distance {format_score(moved)}"), drawn, strict=True):
        content["alt"] = f"{name} from a row to the next, {word}"
        plots.append(Plot("Steps from row to row", f"{name}, {word}{told}", "transitions", content, (_STEPS,)))
    return plots


def _draw_persons(real: TableOfHistories, made: TableOfHistories, seed: int) -> list[Plot]:
    name, drawn = persons_of(real.table, [(side.counts, times_in_bins(side), side.rows) for side in (real, made)], seed)
    plots = []
    for word, content in zip(_SIDES, drawn, strict=True):
        content["alt"] = f"{real.prefix}{word} {content['alt']}"
        plots.append(Plot("Some histories", f"{real.prefix}{word} persons, by {name}", "timelines", content, (_HISTORIES,)))
    return plots


def times_in_bins(rows: TableOfHistories) -> np.ndarray:
    """Return the times of rows (R,), by the middles of bins; their places, where they have no order."""
    order = rows.table.order
    if order is None:
        return rows.place
    starts, gaps = (np.array([*(sum(ends) / 2 for ends in of.ranges), 0.0]) for of in (order.start, order.gap))
    steps = np.where(rows.place > 0, gaps[rows.gaps], starts[rows.starts[rows.person]])
    times = running(steps, rows.persons)
    return times if order.end is None else np.minimum(times, order.last)
