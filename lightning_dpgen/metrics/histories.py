"""Distances of histories: rows and their times, steps from row to row, and what persons ever have."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.stats import ks_2samp

from lightning_dpgen.data.histories.row_table import PersonRows, RowTable
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.metrics.marginals import compare_columns
from lightning_dpgen.metrics.measure import (
    COLUMNS,
    Glance,
    Listing,
    Need,
    Result,
    average_and_worst,
    beside_real,
    register,
)
from lightning_dpgen.metrics.sides import EncodedSides
from lightning_dpgen.metrics.table_pairs import rank_correlations
from lightning_dpgen.models.history_steps import count_edges

# The most choices of a column each of which is looked at by itself.
FEW = 20
# Pairs of columns beyond which a choice of pairs stands for all, and values that are listed.
_PAIRS, _LISTED = 500, 10


class Histories:
    """Encoded histories by persons, rows and steps, of N persons.

    Args:
        schema: of the histories (`data.histories.schema`).
        encoded: N of them. Codes that no history has count as one more choice.

    Attributes:
        attributes: (N, attributes) choices.
        tables: the rows of the persons in each table.
    """

    def __init__(self, schema: Any, encoded: Encoded) -> None:
        self.schema, self.encoded = schema, encoded
        self.attributes, parts = schema.parted(encoded)
        self.tables = [
            TableOfHistories(table, schema.prefix(table), rows) for table, rows in zip(schema.tables, parts, strict=True)
        ]


class TableOfHistories:
    """The rows of N persons in one table: R of them, one person behind the other.

    Args:
        table: its description.
        prefix: of the names of its scores.
        persons: the rows.

    Attributes:
        counts, starts, gaps, rows, person, place: as of `PersonRows`.
        columns: the names of the columns of a row, each with its number of choices.
        ordered: how many of the first choices of each column are in an order.
    """

    def __init__(self, table: RowTable, prefix: str, persons: PersonRows) -> None:
        self.table, self.prefix, self.persons = table, prefix, persons
        self.counts, self.starts, self.gaps, self.rows = persons.counts, persons.starts, persons.gaps, persons.rows
        self.person, self.place = persons.person, persons.place
        self.columns = list(zip(table.rows.choices, table.rows.layout.groups, strict=True))
        self.ordered = table.ordered_columns

    def steps(self, lag: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Return the places of rows, and of those so many rows later in the same history."""
        later = np.flatnonzero(self.place >= lag)
        return later - lag, later

    def numbers(self, column: int) -> np.ndarray:
        """Return the places (R,) of choices in their order, NaN of those that have none, such as missing values."""
        codes = self.rows[:, column]
        return np.where(codes < self.ordered[column], codes, np.nan)

    def ever(self, column: int) -> np.ndarray:
        """Return the shares of persons who ever have each choice of a column."""
        size = self.columns[column][1] + 1
        pairs = np.unique(self.person * size + self.rows[:, column])
        return np.bincount(pairs % size, minlength=size)[:-1] / len(self.counts)

    def means(self, column: int) -> np.ndarray:
        """Return each person's mean of a column in an order (N,), NaN of persons without a value."""
        return moments(self.numbers(column), self.person, len(self.counts))[0]


def moments(numbers: np.ndarray, person: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations (n,) of the numbers of each person, NaN being none."""
    there = ~np.isnan(numbers)
    person, numbers = person[there], numbers[there]
    count = np.bincount(person, minlength=n)
    count = np.where(count > 0, count, np.nan)
    mean = np.bincount(person, numbers, minlength=n) / count
    return mean, np.sqrt(np.bincount(person, (numbers - mean[person]) ** 2, minlength=n) / count)


def variation(synthetic: np.ndarray, real: np.ndarray) -> float:
    """Return the total variation distance of codes (n,) and (m,): 0 equal, 1 disjoint, or where one side alone has none.

    Example:
        >>> variation(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]))
        0.25
    """
    if not (len(synthetic) and len(real)):
        return float(len(synthetic) != len(real))
    codes = np.concatenate([synthetic, real])
    size = int(codes.max()) + 1
    if size > len(codes):
        different, codes = np.unique(codes, return_inverse=True)
        size = len(different)
    made, true = (np.bincount(part, minlength=size) / len(part) for part in np.split(codes, [len(synthetic)]))
    return float(0.5 * np.abs(made - true).sum())


def smirnov(synthetic: np.ndarray, real: np.ndarray) -> float:
    """Return the Kolmogorov-Smirnov distance of numbers (n,) and (m,), NaN being none; as `variation` without any.

    Example:
        >>> smirnov(np.array([1.0, 2.0]), np.array([2.0, 3.0, np.nan]))
        0.5
    """
    synthetic, real = (side[~np.isnan(side)] for side in (synthetic, real))
    if not (len(synthetic) and len(real)):
        return float(len(synthetic) != len(real))
    return float(ks_2samp(synthetic, real, method="asymp").statistic)


def well_formed(histories: Histories) -> np.ndarray:
    """Return whether codes are those of a history, (N,): rows from the first place on, as many as their number says."""
    schema, tables = histories.schema, histories.tables
    again = schema.joined(histories.attributes, [own.persons for own in tables])
    good = (again.codes == histories.encoded.codes).all(axis=1)
    for own in tables:
        lacking = (own.rows >= np.array(own.table.rows.layout.groups)).any(axis=1)
        if own.table.order is not None:
            lacking |= (own.place > 0) & (own.gaps >= own.table.order.gap.choices)
            good &= (own.counts == 0) | (own.starts < own.table.order.start.choices)
        good[own.person[lacking]] = False
    return good


A_SCHEMA = Need(lambda sides: sides.schema is not None, "the schema of the histories was not given")
_STEPS = Need(lambda sides: sides.schema is None or any(map(has_steps, sides.schema.tables)))
_PERSONS = Need(lambda sides: sides.schema is None or sides.schema.persons is not None)
_TABLES = Need(lambda sides: sides.schema is None or len(sides.schema.tables) > 1)


def has_steps(table: RowTable) -> bool:
    """Return whether rows follow one another: they have an order, and a person may have several."""
    return table.order is not None and table.max_rows > 1


def _histories(sides: EncodedSides) -> tuple[Histories, list[Histories]]:
    """Return the real histories, and all that are compared with them."""
    real, *others = (Histories(sides.schema, part) for part in (sides.real, *sides.compared))
    return real, others


def _by_table(sides: EncodedSides, compare: Callable[..., Result]) -> Result:
    """Compare tables of rows one by one; names of scores begin with that of the table, where there are several.

    Args:
        compare: is given the sides, the real rows, and a list of all rows that are compared with them.
    """
    real, others = _histories(sides)
    results = [compare(sides, own, [other.tables[number] for other in others]) for number, own in enumerate(real.tables)]
    named = list(zip((own.prefix for own in real.tables), results, strict=True))
    scores = [
        {f"{prefix}{name}": value for prefix, result in named for name, value in getattr(result, side).items()}
        for side in ("scores", "reference")
    ]
    return Result(
        *scores,
        listings=[replace(own, title=f"{prefix}{own.title}") for prefix, result in named for own in result.listings],
    )


def _glances(section: str, words: Mapping[str, str]) -> Callable[[Any], list[Glance]]:
    """Return the function that picks scores to look at first, each for each table of rows."""

    def pick(evaluation: Any) -> list[Glance]:
        scores, reference = (of.get(section, {}) for of in (evaluation.scores, evaluation.reference))
        return [
            Glance(value, f"{score.removesuffix(name)}{said}", below=beside_real(reference.get(score)))
            for name, said in words.items()
            for score, value in scores.items()
            if score == name or score.endswith(f": {name}")
        ]

    return pick


def _some(pairs: Sequence[Any], seed: int) -> list[Any]:
    """Return all pairs, or a choice of them by the public seed."""
    chosen = np.random.default_rng(seed).permutation(len(pairs))[:_PAIRS]
    return [pairs[place] for place in np.sort(chosen)]


def _mean(distances: Sequence[float]) -> float:
    return float(np.mean(distances))


@register(
    "histories", section="integrity", place=5, better="higher", needs=(A_SCHEMA,),
    says="Share of persons whose codes are those of a history: rows in a line, as many as their number says, each with a "
    "time and all columns.",
)  # fmt: skip
def _check_forms(sides: EncodedSides) -> Result:
    _, others = _histories(sides)
    return Result(*({"persons whose history is well-formed": float(well_formed(other).mean())} for other in others))


@register(
    "histories", section="rows", place=10, better="lower", needs=(A_SCHEMA,),
    says="Total variation distance of the number of rows of a person, of the bins of first times and of distances from row "
    "to row, and of the columns of first rows and of all rows: 0 equal, 1 disjoint.",
    glance=_glances("rows", {"number of rows": "distance of the number of rows of a person"}),
)  # fmt: skip
def _compare_rows(sides: EncodedSides) -> Result:
    return _by_table(sides, _rows_of_table)


def _rows_of_table(sides: EncodedSides, real: TableOfHistories, others: list[TableOfHistories]) -> Result:
    columns = range(len(real.columns))
    pairs = _some(list(itertools.combinations(columns, 2)), sides.seed)
    results, order = [], real.table.order
    for other in others:
        scores = {"number of rows": variation(other.counts, real.counts)}
        if order is not None:
            scores["first time"] = variation(*(side.starts[side.counts > 0] for side in (other, real)))
            scores["distance from row to row"] = variation(*(side.gaps[side.place > 0] for side in (other, real)))
            first = [variation(*(side.rows[side.place == 0, i] for side in (other, real))) for i in columns]
            scores["column of first rows, mean"] = _mean(first)
        scores["column of a row, mean"] = _mean([variation(other.rows[:, i], real.rows[:, i]) for i in columns])
        if pairs:
            scores["two columns of a row, mean"] = _mean([
                variation(*(_joint(side.rows[:, a], side.rows[:, b], real.columns[b][1]) for side in (other, real)))
                for a, b in pairs
            ])  # fmt: skip
        results.append(scores)
    return Result(*results)


def _joint(one: np.ndarray, other: np.ndarray, choices: int) -> np.ndarray:
    """Return codes of two columns together; the other one has so many choices, and one for what no history has."""
    return one.astype(np.int64) * (choices + 1) + other


@register(
    "histories", section="tables together", place=12, better="lower", needs=(A_SCHEMA, _TABLES),
    says="Total variation distance of the numbers of rows of a person in two tables, together, in bins that get longer; "
    "and how far their rank correlation is from the real one.",
)  # fmt: skip
def _compare_tables(sides: EncodedSides) -> Result:
    real, others = _histories(sides)
    tables, results = sides.schema.tables, []
    edges = [count_edges(table.max_rows, coarse=True) for table in tables]
    pairs = _some(list(itertools.combinations(range(len(tables)), 2)), sides.seed)
    for other in others:
        scores = {}
        for a, b in pairs:
            name, codes, ranks = f"{tables[a].name} and {tables[b].name}", [], []
            for side in (other, real):
                counts = [side.tables[i].counts for i in (a, b)]
                binned = [np.searchsorted(edges[i], own, side="right") for i, own in zip((a, b), counts, strict=True)]
                codes.append(_joint(*binned, len(edges[b])))
                ranks.append(rank_correlations(np.stack(counts, axis=1).astype(float), np.array([[0, 1]]))[0])
            scores[f"numbers of {name}"] = variation(*codes)
            scores[f"rank correlation of the numbers of {name}, difference"] = float(abs(ranks[0] - ranks[1]))
        results.append(scores)
    return Result(*results)


@register(
    "histories", section="steps from row to row", place=15, better="lower", needs=(A_SCHEMA, _STEPS),
    says="Total variation distance of a column before and after, together, over all steps; and how far the rank "
    "correlation of a column in an order with itself, one and two rows later, is from the real one.",
    glance=_glances("steps from row to row", {"column before and after, mean": "distance of steps from row to row"}),
)  # fmt: skip
def _compare_steps(sides: EncodedSides) -> Result:
    return _by_table(sides, _steps_of_table)


def _steps_of_table(sides: EncodedSides, real: TableOfHistories, others: list[TableOfHistories]) -> Result:
    if not has_steps(real.table):
        return Result()
    in_order = [i for i, ordered in enumerate(real.ordered) if ordered]
    results = []
    for other in others:
        moved = []
        for i, (_, choices) in enumerate(real.columns):
            pairs = ((side.rows[:, i], *side.steps()) for side in (other, real))
            moved.append(variation(*(_joint(codes[before], codes[after], choices) for codes, before, after in pairs)))
        scores = average_and_worst("column before and after", moved)
        for lag in (1, 2)[: real.table.max_rows - 1]:
            apart = [abs(lagged(other, i, lag) - lagged(real, i, lag)) for i in in_order]
            scores |= {f"rank correlation at lag {lag}, mean difference": _mean(apart)} if apart else {}
        results.append(scores)
    return Result(*results)


def lagged(histories: TableOfHistories, column: int, lag: int) -> float:
    """Return the rank correlation of a column in an order with itself, so many rows later; 0 where one is constant."""
    numbers = histories.numbers(column)
    both = np.stack([numbers[rows] for rows in histories.steps(lag)], axis=1)
    return float(rank_correlations(both, np.array([[0, 1]]))[0])


@register(
    "histories", section="whole histories", place=20, better="lower", needs=(A_SCHEMA,),
    says=f"Differences of the shares of persons who ever have a choice, over all choices of columns with up to {FEW}; and "
    "the Kolmogorov-Smirnov distance of persons' means of a column in an order, by its bins.",
    glance=_glances(
        "whole histories",
        {"ever has a choice, mean difference": "difference of the shares of persons who ever have a choice"},
    ),
)  # fmt: skip
def _compare_whole(sides: EncodedSides) -> Result | str:
    result = _by_table(sides, _whole_of_table)
    return result if result.scores else f"no column of a row has up to {FEW} choices, or an order"


def _whole_of_table(sides: EncodedSides, real: TableOfHistories, others: list[TableOfHistories]) -> Result:
    few = [i for i, (_, choices) in enumerate(real.columns) if choices <= FEW]
    in_order = [i for i, ordered in enumerate(real.ordered) if ordered]
    results, listings = [], []
    for other in others:
        scores = {}
        if few:
            made, true = (np.concatenate([side.ever(i) for i in few]) for side in (other, real))
            apart = np.abs(made - true)
            scores["ever has a choice, mean difference"] = float(apart.mean())
            scores["ever has a choice, worst difference"] = float(apart.max())
            listings = listings or [_list_ever(real.table, few, made, true)]
        if in_order:
            scores["mean of a person, mean distance"] = _mean([smirnov(other.means(i), real.means(i)) for i in in_order])
        results.append(scores)
    return Result(*results, listings=listings)


def _list_ever(table: RowTable, columns: list[int], made: np.ndarray, true: np.ndarray) -> Listing:
    choices = list(table.rows.choices.items())
    named = [(name, choice) for name, own in (choices[i] for i in columns) for choice in own]
    worst = np.argsort(-np.abs(made - true), kind="stable")[:_LISTED]
    return Listing(
        "choices that persons ever have", "Shares of persons, those first that differ most.",
        ("column", "choice", "synthetic", "real"), [(*named[k], float(made[k]), float(true[k])) for k in worst],
    )  # fmt: skip


@register(
    "histories", section=COLUMNS, place=25, better="lower", needs=(A_SCHEMA, _PERSONS),
    says="Total variation distance of the attributes of persons, and of pairs of them: 0 equal, 1 disjoint.",
    glance={"one column, mean": "mean distance of an attribute", "two columns, mean": "mean distance of two attributes"},
)  # fmt: skip
def _compare_attributes(sides: EncodedSides) -> Result:
    return compare_columns(sides.of_groups(sides.schema.persons.layout))


@register(
    "histories", section="attributes and rows", place=26, better="lower", needs=(A_SCHEMA, _PERSONS),
    says="Total variation distance of an attribute together with the number of rows, and with a column of each row.",
)  # fmt: skip
def _compare_attributes_with_rows(sides: EncodedSides) -> Result:
    real, others = _histories(sides)
    attributes = [real.attributes, *(other.attributes for other in others)]

    def compare(sides: EncodedSides, real: TableOfHistories, others: list[TableOfHistories]) -> Result:
        of_persons, results = range(sides.schema.attributes), []
        pairs = _some(list(itertools.product(of_persons, range(len(real.columns)))), sides.seed)
        for own, other in zip(attributes[1:], others, strict=True):
            both = ((own, other), (attributes[0], real))
            rows = [
                variation(*(_joint(of[side.person, a], side.rows[:, i], real.columns[i][1]) for of, side in both))
                for a, i in pairs
            ]
            counts = [
                variation(*(_joint(of[:, a], side.counts, real.table.max_rows) for of, side in both)) for a in of_persons
            ]
            results.append(
                {"attribute and number of rows, mean": _mean(counts)} | average_and_worst("attribute and column", rows)
            )
        return Result(*results)

    return _by_table(sides, compare)
