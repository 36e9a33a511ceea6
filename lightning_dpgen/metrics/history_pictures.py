"""Pictures of histories: numbers of rows, distances in time, steps from row to row and some persons, real and synthetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lightning_dpgen.data.histories.row_table import RowTable
from lightning_dpgen.metrics.histories import lagged, moved
from lightning_dpgen.metrics.history_sides import GAP, HistorySides, SideRows, has_steps
from lightning_dpgen.metrics.measure import Plot, Result, format_score, register

# Persons that a picture shows, groups of choices that it tells apart, columns that have one, and the longest lag.
PERSONS, _GROUPS, _COLUMNS, _LAGS = 12, 8, 3, 4
# Points of a curve of distances.
_POINTS = 200
# Groups of an ordered column by which marks are coloured; the difference of shares from which a cell is framed, and the
# share of steps; the ratio of distances from which their axis is logarithmic.
_SHADES, _APART, _OFTEN, _LONG = 4, 0.1, 0.01, 50
# Between the ends of a bin in its name, and behind the last one, which has no end.
_TO, _MORE = " to ", " or more"
_STEPS = (
    "How often each choice (across) comes after another one (down), in percent; beside the latter, the share of steps that "
    f"begin with it. Framed: what differs from the real share by {100 * _APART:.0f} percent points or more, after choices "
    f"that {100 * _OFTEN:.0f} % or more of the real steps begin with."
)
_HISTORIES = (
    "A dozen persons of each side, drawn at random at the same ranks by their number of rows, which stands before each."
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
            low, high = first.partition(_TO)[0], last.rpartition(_TO)[2]
            joined = f"{low}{_MORE}" if high.endswith(_MORE) else f"{low}{_TO}{high}"
            texts.append(first if first == last else joined)
    in_order = len(texts)
    rest = ordered + np.argsort(-counts[ordered:], kind="stable")
    alone = np.sort(rest if len(rest) <= most - in_order else rest[: most - in_order - 1])
    groups[rest] = in_order + len(alone)
    groups[alone] = in_order + np.arange(len(alone))
    texts += [names[place] for place in alone] + ["other"] * (len(alone) < len(rest))
    groups[size] = len(texts)
    return groups, texts, in_order


def steps_of(names: Sequence[str], ordered: int, sides: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[dict[str, Any]]:
    """Return the arguments of `charts.transitions` for a column of each side, in groups of the first side.

    Args:
        names, ordered: of its choices, as of `group_choices`.
        sides: choices (steps,) of the column before and after.
    """
    groups, texts, _ = group_choices(np.concatenate(sides[0]), names, ordered)
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
    table: RowTable,
    column: tuple[str, Sequence[str], int],
    sides: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    seed: int,
) -> list[dict[str, Any]]:
    """Return the arguments of `charts.timelines` for a few persons of each side, on one scale.

    Args:
        column: by which marks are coloured: its name, and the names of its choices and how many are in an order, as of
            `group_choices`. Choices in no order have colours, others shades.
        sides: numbers of rows (N,), the time (R,) of each row, or its place in a set, and its choice (R,).
    """
    name, names, ordered = column
    groups, texts, shades = group_choices(sides[0][2], names, ordered, _SHADES if ordered else _GROUPS)
    chosen = [[(times[own], groups[codes[own]]) for own in some_rows(counts, seed)] for counts, times, codes in sides]
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
    return [shared | {"persons": own, "alt": f"rows of {len(own)} persons by {name}"} for own in lines]


@register("histories", section="rows", place=11, better="lower")
def _draw_histories(sides: HistorySides) -> Result:
    plots: list[Plot] = []
    for real, (made, *_) in sides.rows:
        plots.append(_draw_counts(real, made))
        if has_steps(real.table):
            columns = [name for name in real.columns if name != GAP]
            distances = {name: moved(made, real, name) for name in columns}
            farthest = sorted(columns, key=lambda name: -distances[name])
            plots.append(_draw_distances(real, made))
            plots += [_draw_lags(real, made, name) for name in farthest if name in real.numeric][:_COLUMNS]
            plots += [plot for name in farthest[:_COLUMNS] for plot in _draw_steps(real, made, name, distances[name])]
        plots += _draw_persons(real, made, sides.seed)
    return Result(plots=plots)


def _draw_counts(real: SideRows, made: SideRows) -> Plot:
    size = 1 + max(1, *(int(side.counts.max(initial=0)) for side in (real, made)))
    shares = _of_both(real, made, lambda side: np.bincount(side.counts, minlength=size) / max(1, len(side.counts)))
    words = {"choices": None, "named": True, "alt": f"{real.prefix}persons by their number of rows, real and synthetic"}
    return Plot(_HEADING, f"{real.prefix}Rows of a person", "bars", shares | words)


def _draw_distances(real: SideRows, made: SideRows) -> Plot:
    gaps = {word: np.sort(side.gaps[side.place > 0]) for word, side in zip(_SIDES, (real, made), strict=True)}
    both = np.concatenate(list(gaps.values()))
    at = np.unique(np.quantile(both, np.linspace(0.0, 1.0, _POINTS), method="inverted_cdf")) if len(both) else np.zeros(1)
    # A curve begins at no row.
    shares = {word: np.append(0.0, np.searchsorted(own, at, "right") / max(1, len(own))) for word, own in gaps.items()}
    unit = "days" if real.table.order.start.type == "date" else real.table.order.name
    words = {"along": f"{unit} from a row to the next", "up": "share of rows up to there", "at": np.append(at[0], at)}
    words["steps"] = True
    usual = float(np.median(gaps["real"])) if len(gaps["real"]) else 0.0
    words["scales"] = ("symlog" if at[-1] > _LONG * max(1.0, usual / 10.0) else "linear", "linear")
    words["alt"] = f"{real.prefix}distances from row to row, real and synthetic"
    return Plot(_HEADING, f"{real.prefix}Distance from row to row", "lines", shares | words)


def _draw_lags(real: SideRows, made: SideRows, name: str) -> Plot:
    lags, title = range(1, min(_LAGS, real.table.max_rows - 1) + 1), f"{real.prefix}{name}"
    curves = _of_both(real, made, lambda side: np.array([1.0, *(lagged(side, name, lag) for lag in lags)]))
    words = {"along": "rows later", "up": "rank correlation", "alt": f"{title}: correlations by lag, real and synthetic"}
    return Plot(_HEADING, f"{title}: correlation with itself", "lines", curves | words | {"at": [0, *lags]})


def _of_both(real: SideRows, made: SideRows, compute: Callable[[SideRows], np.ndarray]) -> dict[str, np.ndarray]:
    return {word: compute(side) for word, side in zip(_SIDES, (real, made), strict=True)}


def _levels_of_both(real: SideRows, made: SideRows, name: str) -> tuple[list[np.ndarray], list[str], int]:
    """Return the levels of a column that any row has, of both sides, with their names and how many are in an order."""
    (codes, names, ordered), (others, *_) = real.level(name), made.level(name)
    had = np.unique(np.concatenate([codes, others]))
    places = [np.searchsorted(had, own) for own in (codes, others)]
    return places, [names[place] for place in had], int((had < ordered).sum())


def _draw_steps(real: SideRows, made: SideRows, name: str, far: float) -> list[Plot]:
    title, (codes, names, ordered) = f"{real.prefix}{name}", _levels_of_both(real, made, name)
    steps = [tuple(own[rows] for rows in side.steps()) for own, side in zip(codes, (real, made), strict=True)]
    drawn, plots = steps_of(names, ordered, steps), []
    apart = np.abs(drawn[1]["shares"] - drawn[0]["shares"])
    drawn[1]["framed"] = (apart >= _APART) & (drawn[0]["before"][:, None] >= _OFTEN)
    for word, told, content in zip(_SIDES, ("", f": distance {format_score(far)}"), drawn, strict=True):
        content["alt"] = f"{title} from a row to the next, {word}"
        plots.append(Plot("Steps from row to row", f"{title}, {word}{told}", "transitions", content, (_STEPS,)))
    return plots


def _draw_persons(real: SideRows, made: SideRows, seed: int) -> list[Plot]:
    name = next((name for name in real.columns if name not in real.numeric), next(iter(real.columns)))
    times = [side.place if side.times is None else side.times for side in (real, made)]
    levels, names, ordered = _levels_of_both(real, made, name)
    sides = [(side.counts, at, own) for side, at, own in zip((real, made), times, levels, strict=True)]
    drawn, plots = persons_of(real.table, (name, names, ordered), sides, seed), []
    for word, content in zip(_SIDES, drawn, strict=True):
        content["alt"] = f"{real.prefix}{word} {content['alt']}"
        plots.append(Plot("Some histories", f"{real.prefix}{word} persons, by {name}", "timelines", content, (_HISTORIES,)))
    return plots
