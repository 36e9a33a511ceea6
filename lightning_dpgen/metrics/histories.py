"""Distances of histories, row by row: whether they are whole, their numbers and times, and steps from row to row."""

from __future__ import annotations

import itertools

import numpy as np

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.histories.read_rows import broken_rows
from lightning_dpgen.data.histories.values import HistoryValues
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.metrics.history_sides import (
    A_STEP,
    GAP,
    HistorySides,
    SideRows,
    by_table,
    choose,
    glances,
    has_steps,
    joint,
    mean,
    smirnov,
    variation,
)
from lightning_dpgen.metrics.measure import Result, average_and_worst, register
from lightning_dpgen.metrics.table_columns import largest_differences
from lightning_dpgen.metrics.table_pairs import FEW, rank_correlations

WELL_FORMED = "persons whose history is well-formed"


def well_formed(values: HistoryValues) -> np.ndarray:
    """Return whether each person (N,) has no more rows than are declared, at times that are possible, in their order."""
    good = np.ones(len(values), bool)
    for table, rows in zip(values.schema.tables, values.tables, strict=True):
        good &= rows.counts <= table.max_rows
        if table.order is None:
            continue
        (low, high), (least, most) = table.order.start.limits, table.order.gap.limits
        first, gaps = rows.place == 0, rows.gaps
        wrong = np.where(first, (rows.times < low) | (rows.times > high), (gaps < least) | (gaps > most))
        if table.order.end is not None:
            wrong |= rows.times > table.order.last
        good[rows.person[wrong]] = False
    return good


def broken_rules(values: HistoryValues) -> dict[str, float]:
    """Return the share of rows that break each rule, by its words: all rules that rows, or several of them, have."""
    found = {}
    for table, rules, rows in zip(values.schema.tables, values.schema.rules, values.tables, strict=True):
        if len(rows.values):
            prefix = values.schema.prefix(table)
            found |= {f"{prefix}{text}": share for text, share in table.rows.rules.broken(rows.values.rows())}
            beyond = broken_rows(rules, table, rows.person, rows.times, rows.values, values.persons)
            found |= {f"{prefix}{text}": float(broken.mean()) for text, broken in beyond}
    return found


@register(
    "histories", section="integrity", place=5, better="target",
    says="Share of persons whose rows are no more than are declared, in the order of time, at times that are possible: 1. "
    "Share of rows that break a constraint: 0.",
)  # fmt: skip
def _check_forms(sides: HistorySides) -> Result:
    results, worst = [], broken_rules(sides.synthetic)
    for other in sides.compared:
        broken = {f"rows that break {text}": share for text, share in broken_rules(other).items()}
        results.append({WELL_FORMED: float(well_formed(other).mean())} | broken)
    told = [f"{text} is broken by {share:.2%} of the synthetic rows" for text, share in worst.items() if share]
    return Result(*results, remarks={"rules": told})


@register(
    "histories", section="rows", place=10, better="lower",
    says="Numbers of rows of a person by total variation. First times, times and distances from row to row as they are, by "
    "the Kolmogorov-Smirnov distance, and so columns of numbers (missing values count as the largest); categories by total "
    "variation. Two columns of a row together, the distance from the row before among them: total variation of ten "
    "levels each, which real values are cut into and the model does not know. 0 equal, 1 disjoint.",
    glance=glances(
        "rows",
        {
            "number of rows": "distance of the number of rows of a person",
            "column of a row, worst": "distance of the column of rows that differs most",
        },
    ),
)  # fmt: skip
def _compare_rows(sides: HistorySides) -> Result:
    return by_table(sides, lambda _, real, others: _rows_of_table(sides.seed, real, others))


def _rows_of_table(seed: int, real: SideRows, others: list[SideRows]) -> Result:
    columns = [name for name in real.columns if name != GAP]
    pairs = choose(list(itertools.combinations(real.columns, 2)), seed)
    results = []
    for other in others:
        sides = (other, real)
        scores = {"number of rows": variation(other.counts, real.counts)}
        if real.times is not None:
            scores["first time"] = smirnov(*(side.times[side.place == 0] for side in sides))
            scores["time of a row"] = smirnov(other.times, real.times)
            if has_steps(real.table):
                scores[GAP] = smirnov(other.gaps, real.gaps)
            first = [_apart(name, *sides, first=True) for name in columns]
            scores["column of first rows, mean"] = mean(first)
        scores |= average_and_worst("column of a row", [_apart(name, *sides) for name in columns])
        if pairs:
            scores["two columns of a row, mean"] = mean([two_apart(other, real, a, b) for a, b in pairs])
        results.append(scores)
    return Result(*results)


def _apart(name: str, other: SideRows, real: SideRows, *, first: bool = False) -> float:
    """Return the distance of a column in all rows, or in the first row of each person."""
    made, true = (side.exact(name)[side.place == 0] if first else side.exact(name) for side in (other, real))
    if isinstance(real.columns[name], Category) or not (len(made) and len(true)):
        return variation(made, true)
    return float(largest_differences(true[:, None], made[:, None])[0])


def two_apart(other: SideRows, real: SideRows, one: str, two: str) -> float:
    """Return the total variation distance of the levels of two columns together."""
    size = len(real.level(two)[1])
    return variation(*(joint(side.level(one)[0], side.level(two)[0], size) for side in (other, real)))


@register(
    "histories", section="steps from row to row", place=15, better="lower", needs=(A_STEP,),
    says="Total variation of a column before and after, together, in ten levels that the model does not know, over all "
    "steps; the difference of the shares of steps in which a category stays as it is; and how far the rank correlation of "
    "a number, and of the distance from row to row, with itself, one and two rows later, is from the real one.",
    glance=glances("steps from row to row", {"column before and after, mean": "distance of steps from row to row"}),
)  # fmt: skip
def _compare_steps(sides: HistorySides) -> Result:
    return by_table(sides, lambda _, real, others: _steps_of_table(real, others))


def _steps_of_table(real: SideRows, others: list[SideRows]) -> Result:
    if not has_steps(real.table):
        return Result()
    columns = [name for name in real.columns if name != GAP]
    categories = [name for name in columns if name not in real.numeric]
    lags = {lag: _told_lags(real, lag) for lag in (1, 2)[: real.table.max_rows - 1]}
    results = []
    for other in others:
        scores = average_and_worst("column before and after", [moved(other, real, name) for name in columns])
        if categories and len(real.steps()[0]):
            stays = [abs(_stays(other, name) - _stays(real, name)) for name in categories]
            scores["category stays as it is, mean difference"] = mean(stays)
        for lag, told in lags.items():
            if told:
                apart = [abs(lagged(other, name, lag) - lagged(real, name, lag)) for name in told]
                scores[f"rank correlation at lag {lag}, mean difference"] = mean(apart)
        results.append(scores)
    untold = {lag: [name for name in real.numeric if name not in told] for lag, told in lags.items()}
    notes = [
        f"no rank correlation at lag {lag} of {listed(names)}, which {FEW} real steps lack, or in which it does not vary"
        for lag, names in untold.items()
        if names
    ]
    return Result(*results, note="; ".join(notes) or None)


def moved(other: SideRows, real: SideRows, name: str) -> float:
    """Return the total variation distance of a column's levels before and after, together, over all steps."""
    size = len(real.level(name)[1])
    return variation(*(joint(*(side.level(name)[0][rows] for rows in side.steps()), size) for side in (other, real)))


def _stays(side: SideRows, name: str) -> float:
    before, after = (side.exact(name)[rows] for rows in side.steps())
    return float((before == after).mean()) if len(before) else 0.0


def _pairs_at(side: SideRows, name: str, lag: int) -> np.ndarray:
    return np.stack([side.numbers(name)[rows] for rows in side.steps(lag)], axis=1)


def _told_lags(real: SideRows, lag: int) -> list[str]:
    """Return the numbers whose correlation real steps tell of."""
    told = []
    for name in real.numeric:
        pairs = _pairs_at(real, name, lag)
        pairs = pairs[~np.isnan(pairs).any(axis=1)]
        if len(pairs) >= FEW and (pairs != pairs[0]).any(axis=0).all():
            told.append(name)
    return told


def lagged(side: SideRows, name: str, lag: int) -> float:
    """Return the rank correlation of a number with itself, so many rows later; 0 where one is constant."""
    return float(rank_correlations(_pairs_at(side, name, lag), np.array([[0, 1]]))[0])
