"""Distances of what whole histories come to: what persons ever have, their means and sums, beside attributes and tables."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from lightning_dpgen.metrics.history_sides import (
    ATTRIBUTES,
    GAP,
    TWO_TABLES,
    HistorySides,
    SideRows,
    by_table,
    choose,
    glances,
    has_steps,
    joint,
    levels_of,
    mean,
    smirnov,
    variation,
)
from lightning_dpgen.metrics.measure import COLUMNS, Listing, Result, average_and_worst, register
from lightning_dpgen.metrics.sides import TableSides
from lightning_dpgen.metrics.summaries import QuantileBins
from lightning_dpgen.metrics.table_columns import ONE_MEAN, column_distances, column_shares, compared_distances
from lightning_dpgen.metrics.table_pairs import rank_correlations

# Values that are listed, and levels of all columns together of which two are looked at.
_LISTED, _LEVELS = 10, 200
NUMBER_OF_ROWS, FIRST_TIME = "number of rows", "first time"


def moments(numbers: np.ndarray, person: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return means, standard deviations and sums (n,) of the numbers of each person, NaN being none."""
    there = ~np.isnan(numbers)
    person, numbers = person[there], numbers[there]
    count = np.bincount(person, minlength=n)
    count = np.where(count > 0, count, np.nan)
    sums = np.bincount(person, numbers, minlength=n)
    average = sums / count
    return average, np.sqrt(np.bincount(person, (numbers - average[person]) ** 2, minlength=n) / count), average * count


def ever(side: SideRows, name: str) -> np.ndarray:
    """Return whether each person ever has each level of a column: (N, levels) float32."""
    codes, names, _ = side.level(name)
    found = np.zeros((len(side.counts), len(names)), np.float32)
    found[side.person, codes] = 1.0
    return found


def time_spans(side: SideRows) -> np.ndarray:
    """Return the time from the first to the last row of each person (N,), NaN of those without rows."""
    ends = np.cumsum(side.counts) - 1
    found, there = np.full(len(side.counts), np.nan), side.counts > 0
    found[there] = side.times[ends[there]] - side.times[side.rows.begins[there]]
    return found


def summaries_of(side: SideRows) -> dict[str, np.ndarray]:
    """Return numbers (N,) that sum up histories: of rows, the first time, means of numbers, and what a person ever has."""
    found = {NUMBER_OF_ROWS: side.counts.astype(float)}
    if side.times is not None:
        found[FIRST_TIME] = np.full(len(side.counts), np.nan)
        found[FIRST_TIME][side.counts > 0] = side.times[side.place == 0]
    for name in side.columns:
        if name in side.numeric:
            found[f"mean of {name}"] = moments(side.numbers(name), side.person, len(side.counts))[0]
        else:
            flags = ever(side, name)
            found |= {f"ever {name} {value}": flags[:, i] for i, value in enumerate(side.level(name)[1])}
    return found


@register(
    "histories", section="whole histories", place=20, better="lower",
    says="Differences of the shares of persons who ever have a value, over all values of categories (rarer ones together) "
    "and tenths of numbers, and of those who have both of two; and the Kolmogorov-Smirnov distances of persons' means, "
    "standard deviations and sums of numbers, and of the time from the first to the last row.",
    glance=glances(
        "whole histories",
        {
            "ever has a value, mean difference": "difference of the shares of persons who ever have a value",
            "sum of a person, mean distance": "distance of persons' sums of a number",
        },
    ),
)  # fmt: skip
def _compare_whole(sides: HistorySides) -> Result:
    return by_table(sides, lambda _, real, others: _whole_of_table(sides.seed, real, others))


def _whole_of_table(seed: int, real: SideRows, others: list[SideRows]) -> Result:
    columns, numbers = [name for name in real.columns if name != GAP], [name for name in real.numeric if name != GAP]
    flags, sums = [_flags(side, columns) for side in (real, *others)], [_moments(side, numbers) for side in (real, *others)]
    # Levels that no person has, such as missing values where there are none, would make differences look small.
    had = np.flatnonzero(np.any([own.any(axis=0) for own in flags], axis=0))
    flags = [own[:, had] for own in flags]
    kept = np.array(choose(range(len(had)), seed), int)[:_LEVELS]
    shares = [own.mean(axis=0, dtype=np.float64) for own in flags]
    both = [(own[:, kept].T @ own[:, kept] / len(own))[np.triu_indices(len(kept), 1)] for own in flags]
    results = []
    for number, other in enumerate(others, start=1):
        apart, scores = np.abs(shares[number] - shares[0]), {}
        if len(had):
            scores["ever has a value, mean difference"] = float(apart.mean())
            scores["ever has a value, worst difference"] = float(apart.max())
        if len(had) > 1:
            scores["ever has two values, mean difference"] = float(np.abs(both[number] - both[0]).mean())
        words = ("mean of a person", "deviation within a person", "sum of a person")
        for place, word in enumerate(words if numbers else ()):
            pairs = zip(sums[number], sums[0], strict=True)
            scores[f"{word}, mean distance"] = mean([smirnov(one[place], two[place]) for one, two in pairs])
        if has_steps(real.table):
            scores["time from first to last row"] = smirnov(time_spans(other), time_spans(real))
        results.append(scores)
    named = [(name, value) for name in columns for value in real.level(name)[1]]
    return Result(*results, listings=_list_ever([named[place] for place in had], shares[1], shares[0]))


def _flags(side: SideRows, columns: list[str]) -> np.ndarray:
    return np.hstack([ever(side, name) for name in columns])


def _moments(side: SideRows, numbers: list[str]) -> list[tuple[np.ndarray, ...]]:
    return [moments(side.numbers(name), side.person, len(side.counts)) for name in numbers]


def _list_ever(named: list[tuple[str, str]], made: np.ndarray, true: np.ndarray) -> list[Listing]:
    worst = np.argsort(-np.abs(made - true), kind="stable")[:_LISTED]
    rows = [(*named[k], float(made[k]), float(true[k])) for k in worst]
    note, head = "Shares of persons, those first that differ most.", ("column", "value", "synthetic", "real")
    return [Listing("values that persons ever have", note, head, rows)] if rows else []


@register(
    "histories", section=COLUMNS, place=25, better="lower", needs=(ATTRIBUTES,),
    says="Attributes of persons by their values: numbers by the larger of the Kolmogorov-Smirnov distance and the "
    "Wasserstein distance in units of the range of 98 % of the real values, categories by total variation; and two of them "
    "together, numbers cut at tenths of the real ones, by total variation.",
    glance={ONE_MEAN: "mean distance of an attribute", "two columns, mean": "mean distance of two attributes"},
)  # fmt: skip
def _compare_attributes(sides: HistorySides) -> Result:
    persons = sides.persons
    columns = [column.name for column in persons.real.schema.recorded]
    pairs = choose(list(itertools.combinations(columns, 2)), sides.seed)
    real, *others = ({name: attribute_levels(persons, side, name) for name in columns} for side in _sides_of(persons))
    results = []
    for other, values in zip(others, persons.compared, strict=True):
        apart = column_distances(persons.real, values, persons.spreads)
        scores = average_and_worst("one column", list(apart.values()))
        if pairs:
            both = [variation(*(joint(of[a][0], of[b][0], len(of[b][1])) for of in (other, real))) for a, b in pairs]
            scores |= average_and_worst("two columns", both)
        results.append(scores)
    return Result(*results)


def _sides_of(persons: TableSides) -> list:
    return [persons.real, *persons.compared]


def attribute_levels(persons: TableSides, side, name: str) -> tuple[np.ndarray, list[str], int]:
    """Return the levels of an attribute on one side, as `levels_of`."""
    column = next(column for column in persons.real.schema.recorded if column.name == name)
    return levels_of(column, persons.learned.column(name), side.column(name))


@register("histories", section=COLUMNS, place=24, better="lower")
def _show_columns(sides: HistorySides) -> Result:
    """Show attributes and columns of rows by their values, in bins of no model, numbers in a few figures, and pairs."""
    figures, pairs, own = [], [], {}
    if sides.schema.persons is not None:
        persons = sides.persons
        figures += column_shares(persons, compared_distances(persons))
        for place, column in enumerate(persons.real.schema.recorded):
            own[place] = [attribute_levels(persons, side, column.name) for side in (persons.real, persons.synthetic)]
    attributes = list(own)
    for number, (real, (made, *_)) in enumerate(sides.rows):
        table, before = sides.table_of_rows(number), len(figures)
        if not all(map(len, (table.real, table.synthetic, table.learned, table.first_synthetic))):
            continue
        distances = compared_distances(table)
        figures += column_shares(table, distances, real.prefix, before)
        of_rows = {before + i: [side.level(name) for side in (real, made)] for i, name in enumerate(distances[0])}
        beside = {a: [(codes[side.person], *rest) for (codes, *rest), side in zip(own[a], (real, made), strict=True)]
                  for a in attributes}  # fmt: skip
        both = [*itertools.combinations(of_rows, 2), *itertools.product(attributes, of_rows)]
        pairs += [_pair_figure(a, b, beside | of_rows) for a, b in choose(both, sides.seed)]
    pairs += [_pair_figure(a, b, own) for a, b in choose(list(itertools.combinations(attributes, 2)), sides.seed)]
    return Result(figures={"columns": sorted(figures, key=lambda column: -column["distance"]), "pairs": pairs})


def _pair_figure(a: int, b: int, levels: dict[int, list[tuple[np.ndarray, list[str], int]]]) -> dict[str, Any]:
    real, made = (joint(one[0], two[0], len(two[1])) for one, two in zip(levels[a], levels[b], strict=True))
    return {"columns": (a, b), "distance": variation(made, real)}


@register(
    "histories", section="attributes and rows", place=26, better="lower", needs=(ATTRIBUTES,),
    says="Total variation of an attribute together with the number of rows, with a column of each row, and with what sums "
    "up a history: the first time, the mean of a number, whether a person ever has a value; all in ten levels or few more, "
    "which the model does not know.",
)  # fmt: skip
def _compare_attributes_with_rows(sides: HistorySides) -> Result:
    persons = sides.persons
    names = [column.name for column in persons.real.schema.recorded]
    attributes = [
        {name: attribute_levels(persons, side, name)[0] for name in names} for side in (persons.real, *persons.compared)
    ]

    def compare(number: int, real: SideRows, others: list[SideRows]) -> Result:
        pairs = choose(list(itertools.product(names, real.columns)), sides.seed)
        summed = _summary_levels(sides, number)
        of_persons = [pair for pair in itertools.product(names, summed[0]) if pair[1] != NUMBER_OF_ROWS]
        of_persons = choose(of_persons, sides.seed)
        results = []
        for own, other, levels in zip(attributes[1:], others, summed[1:], strict=True):
            both = ((own, other, levels), (attributes[0], real, summed[0]))
            rows = [
                variation(*(joint(of[a][side.person], side.level(b)[0], len(real.level(b)[1])) for of, side, _ in both))
                for a, b in pairs
            ]
            most = real.table.max_rows + 1
            counts = [variation(*(joint(of[a], side.counts, most) for of, side, _ in both)) for a in names]
            sums = [variation(*(joint(of[a], level[b], _SIZE) for of, _, level in both)) for a, b in of_persons]
            results.append(
                {"attribute and number of rows, mean": mean(counts)} | average_and_worst("attribute and column", rows)
                | average_and_worst("attribute and summary of a person", sums)
            )  # fmt: skip
        return Result(*results)

    return by_table(sides, compare)


# A number above that of levels of a summary.
_SIZE = 64


def _summary_levels(sides: HistorySides, number: int) -> list[dict[str, np.ndarray]]:
    """Return the levels (N,) of each summary of persons in a table, of the real side and all that are compared with it."""
    real, others = sides.rows[number]
    found = [summaries_of(side) for side in (real, *others)]
    bins = {name: QuantileBins.of(values) for name, values in found[0].items()}
    return [{name: bins[name].codes(values) for name, values in side.items()} for side in found]


@register(
    "histories", section="tables together", place=27, better="lower", needs=(TWO_TABLES,),
    says="Total variation of the numbers of rows of a person in two tables, together; of any two numbers that sum up the "
    "histories of a person in the one and in the other (number of rows, first time, mean of a number, ever has a value), "
    "in ten levels; and how far the rank correlations of numbers of rows, first times and means are from the real ones.",
)  # fmt: skip
def _compare_tables(sides: HistorySides) -> Result:
    tables, results = sides.schema.tables, [{} for _ in sides.compared]
    summed = [_summary_levels(sides, number) for number in range(len(tables))]
    for a, b in choose(list(itertools.combinations(range(len(tables)), 2)), sides.seed):
        name = f"{tables[a].name} and {tables[b].name}"
        pairs = choose(list(itertools.product(summed[a][0], summed[b][0])), sides.seed)
        one, two = ([real, *others] for real, others in (sides.rows[a], sides.rows[b]))
        ranks = [_rank_correlations(*both) for both in zip(one, two, strict=True)]
        real = summed[a][0], summed[b][0]
        for place, scores in enumerate(results, start=1):
            other = summed[a][place], summed[b][place]

            def apart(one: str, two: str, other=other, real=real) -> float:
                return variation(*(joint(of[0][one], of[1][two], _SIZE) for of in (other, real)))

            scores[f"numbers of {name}"] = apart(NUMBER_OF_ROWS, NUMBER_OF_ROWS)
            scores |= average_and_worst(f"two summaries in {name}", [apart(*pair) for pair in pairs])
            far = np.abs(ranks[place] - ranks[0])
            scores[f"rank correlation of the numbers of {name}, difference"] = float(far[0])
            scores[f"rank correlation of two summaries in {name}, mean difference"] = float(far.mean())
    return Result(*results)


def _rank_correlations(one: SideRows, other: SideRows) -> np.ndarray:
    """Return the rank correlations of numbers of rows, first times and means in one table with those in the other."""
    kept = [
        [values for name, values in summaries_of(side).items() if not name.startswith("ever ")] for side in (one, other)
    ]
    numbers = np.stack([*kept[0], *kept[1]], axis=1)
    pairs = list(itertools.product(range(len(kept[0])), range(len(kept[0]), numbers.shape[1])))
    return rank_correlations(numbers, np.array(pairs))
