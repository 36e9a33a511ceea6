"""An evaluation of histories by their values: the persons of each side, their rows as numbers, and as levels of no model.

Private.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from lightning_dpgen.data.histories.row_table import RowTable
from lightning_dpgen.data.histories.values import HistoryValues, RowValues
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import Modelled
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics.evaluation import Evaluation, evaluate_sides
from lightning_dpgen.metrics.measure import Glance, Need, Result, format_score, rate, register
from lightning_dpgen.metrics.sides import ROWS, Answers, Sides, TableSides, check_seconds
from lightning_dpgen.metrics.summaries import QuantileBins
from lightning_dpgen.metrics.table_pairs import FEW, levels

# The distance of a row from the one before, as a column of rows; and rows of a side that are looked at.
GAP, _MOST_ROWS = "distance from row to row", 1 << 20
# Pairs of columns beyond which a choice of pairs stands for all.
_PAIRS = 500
# The quantile of a standard normal number, and the factor of Kolmogorov and Smirnov, that chance passes one time in 20.
_NORMAL, _SMIRNOV = 1.96, 1.358
A_STEP = Need(lambda sides: any(map(has_steps, sides.schema.tables)))
ATTRIBUTES = Need(lambda sides: sides.schema.persons is not None)
TWO_TABLES = Need(lambda sides: len(sides.schema.tables) > 1)
A_SECOND_SIDE = Need(lambda sides: sides.other is not None, "there are too few real persons to stand beside synthetic ones")


def has_steps(table: RowTable) -> bool:
    """Return whether rows follow one another: they have an order, and a person may have several."""
    return table.order is not None and table.max_rows > 1


class SideRows:
    """The rows of one side in one table: R of them, of N persons.

    Args:
        table: its description.
        prefix: of the names of its scores.
        rows: the rows.
        learned: those that were learned from, at whose quantiles numbers are cut.

    Attributes:
        counts, times, gaps, person, place: as of `RowValues`.
        columns: the columns of a row by their names; the last one is the distance from the row before.
        numeric: the names of those that are numbers.
        level, numbers: of a column by its name, computed once: see `_level` and `_numbers`.
    """

    def __init__(self, table: RowTable, prefix: str, rows: RowValues, learned: RowValues) -> None:
        self.table, self.prefix, self.rows, self.learned = table, prefix, rows, learned
        self.counts, self.times, self.gaps, self.person, self.place = (
            rows.counts, rows.times, rows.gaps, rows.person, rows.place
        )  # fmt: skip
        self.columns: dict[str, Modelled] = {column.name: column for column in table.rows.recorded}
        if has_steps(table):
            self.columns[GAP] = table.order.gap
        self.numeric = [name for name, column in self.columns.items() if not isinstance(column, Category)]
        self.level, self.numbers = cache(self._level), cache(self._numbers)

    def exact(self, name: str) -> np.ndarray:
        """Return the values (R,) of a column: numbers, NaN where missing, or codes of categories."""
        return _exact(self.rows, name)

    def _numbers(self, name: str) -> np.ndarray:
        """Return the numbers (R,) of a column, NaN where missing or special."""
        return np.where(np.isin(self.exact(name), self.columns[name].special_ticks), np.nan, self.exact(name))

    def _level(self, name: str) -> tuple[np.ndarray, list[str], int]:
        """Return the level (R,) of each value of a column, the names of levels, and how many first ones are in an order.

        Numbers are cut at quantiles of those that were learned from; rarer values of a category are one level.
        """
        return levels_of(self.columns[name], _exact(self.learned, name), self.exact(name))

    def steps(self, lag: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Return the places of rows, and of those so many rows later in the same history."""
        later = np.flatnonzero(self.place >= lag)
        return later - lag, later


def _exact(rows: RowValues, name: str) -> np.ndarray:
    return rows.gaps if name == GAP else rows.values.column(name)


def levels_of(column: Modelled, learned: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, list[str], int]:
    """Return the levels of values as `SideRows.level`, those of numbers in the order of their values."""
    if isinstance(column, Category):
        (_, codes), names = levels(column, [learned, values], None)
        return codes, names, 0
    bins = QuantileBins.of(learned)
    order = bins.order()
    rank, names = np.empty(len(order), np.int64), bins.names(column)
    rank[order] = np.arange(len(order))
    return rank[bins.codes(values)], [names[place] for place in order], len(order) - 1


@dataclass(eq=False, kw_only=True)
class HistorySides(Sides):
    """Persons with their histories, by values."""

    kind: str = "histories"

    @property
    def schema(self) -> Any:
        """The description of all of them."""
        return self.real.schema

    @cached_property
    def rows(self) -> list[tuple[SideRows, list[SideRows]]]:
        """For each table the real rows, and all that are compared with them."""
        parts = (self.real, *self.compared)
        sides = [
            [SideRows(table, self.schema.prefix(table), part.tables[i], self.learned.tables[i]) for part in parts]
            for i, table in enumerate(self.schema.tables)
        ]
        return [(real, others) for real, *others in sides]

    @cached_property
    def persons(self) -> TableSides:
        """The attributes of persons, as a table."""
        return self._table(lambda part: part.persons)

    def table_of_rows(self, number: int) -> TableSides:
        """Return the rows of a table without their persons and times."""
        return self._table(lambda part: part.tables[number].values)

    def _table(self, of: Callable[[HistoryValues], TableValues]) -> TableSides:
        return TableSides(
            real=of(self.real), synthetic=of(self.synthetic), other=None if self.other is None else of(self.other),
            learned=of(self.learned), first_synthetic=of(self.first_synthetic), broken={}, seed=self.seed,
        )  # fmt: skip


def evaluate_histories(
    real: HistoryValues,
    synthetic: HistoryValues,
    *,
    held_out: HistoryValues | None = None,
    answers: Answers = None,
    seed: int = 0,
    seconds: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Evaluation:
    """Compare synthetic with real histories, by values as files hold them.

    Synthetic persons are compared with held-out ones, and so are as many real persons in their place that were learned
    from, which are as good as can be expected: perfect persons would score like them. Without held-out persons the real
    ones are halved at random. All sides of a comparison have as many persons, since distances of few are larger by chance.
    Numbers, times and distances in time are compared as they are, or cut at quantiles of real ones, and never at a model's
    own bins.

    Args:
        real: the persons that the generator has learned from, at least one.
        synthetic: synthetic persons, at least one.
        held_out: persons that the generator has not learned from; membership inference needs them.
        answers, seed, seconds, progress: as of `evaluate_encoded`.

    Raises:
        ValueError: for no person on one side, another schema, or a limit that is not positive.

    Example:
        >>> from lightning_dpgen.data.histories.schema import HistorySchema
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> visits = RowTable("visits", parse_schema("columns: {ward: {type: category, values: [a, b]}}"), max_rows=2)
        >>> codes = TableValues(visits.rows, np.zeros((100, 0)), np.arange(100)[:, None] // 50)
        >>> one = HistoryValues(HistorySchema(None, (visits,)), None, (RowValues(np.ones(100, int), None, codes),))
        >>> two = replace(one, tables=(RowValues(np.full(50, 2), None, codes),))
        >>> evaluate_histories(one, two).scores["rows"]["number of rows"]
        1.0
    """
    check_seconds(seconds)
    given = {"real": real, "synthetic": synthetic} | ({} if held_out is None else {"held out": held_out})
    for name, values in given.items():
        if not len(values):
            raise ValueError(f"there is no {name} person: expected at least one to compare")
        if values.schema != real.schema:
            raise ValueError(f"the {name} persons are of another schema than the real ones")
    random = np.random.default_rng(seed)
    given = {name: values[random.permutation(len(values))] for name, values in given.items()}
    real, synthetic, aside = (given.get(name) for name in ("real", "synthetic", "held out"))
    half = max(1, len(real) // 2)
    compared, other = (real[:half], real[half:]) if aside is None else (aside, real)
    most = max(1, min(ROWS, *(_MOST_ROWS * len(real) // (1 + int(rows.counts.sum())) for rows in real.tables)))
    size = min(len(compared), len(other) or most, len(synthetic), most)
    sides = HistorySides(
        real=compared[:size], synthetic=synthetic[:size], other=other[:size] if len(other) else None,
        learned=real[:most], first_synthetic=synthetic[:most], held_out=None if aside is None else aside[:most],
        answers=answers, seed=seed,
    )  # fmt: skip
    beside = 0 if sides.other is None else size
    rows = {"real": (len(real), beside), "synthetic": (len(synthetic), size)}
    if aside is None:
        rows["real"] = (len(real), beside + size)
        origin = "half of the persons that were given as learned from, compared with the other half; no person was given "
        origin += "as not learned from"
    else:
        rows["held out"] = (len(aside), size)
        origin = "persons that were given as learned from, compared with held-out ones, as synthetic persons are"
    return evaluate_sides(sides, rows, origin, seconds, progress)


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
    points = np.sort(np.concatenate([synthetic, real]))
    made, true = (np.searchsorted(np.sort(side), points, "right") / len(side) for side in (synthetic, real))
    return float(np.abs(made - true).max())


def joint(one: np.ndarray, other: np.ndarray, choices: int) -> np.ndarray:
    """Return codes of two columns together, of which the other one has so many choices."""
    return one.astype(np.int64) * choices + other


def mean(distances: Sequence[float]) -> float:
    """Return the mean of some numbers."""
    return float(np.mean(distances))


def choose(pairs: Sequence[Any], seed: int) -> list[Any]:
    """Return all pairs, or a choice of them by the public seed."""
    chosen = np.random.default_rng(seed).permutation(len(pairs))[:_PAIRS]
    return [pairs[place] for place in np.sort(chosen)]


def by_table(sides: HistorySides, compare: Callable[[int, SideRows, list[SideRows]], Result]) -> Result:
    """Compare tables of rows one by one; names of scores begin with that of the table, where there are several.

    Args:
        compare: is given the number of the table, the real rows, and a list of all rows that are compared with them.
    """
    results = [(real.prefix, compare(number, real, others)) for number, (real, others) in enumerate(sides.rows)]
    scores = [
        {f"{prefix}{name}": value for prefix, result in results for name, value in getattr(result, side).items()}
        for side in ("scores", "reference")
    ]
    notes = [f"{prefix}{result.note}" for prefix, result in results if result.note]
    listings = [replace(one, title=f"{prefix}{one.title}") for prefix, result in results for one in result.listings]
    return Result(*scores, note="; ".join(notes) or None, listings=listings)


def glances(section: str, words: Mapping[str, str]) -> Callable[[Any], list[Glance]]:
    """Return the function that picks scores to look at first, each for each table of rows."""

    def pick(evaluation: Any) -> list[Glance]:
        scores, reference = (of.get(section, {}) for of in (evaluation.scores, evaluation.reference))
        return [
            rate(value, reference.get(score), f"{score.removesuffix(name)}{said}")
            for name, said in words.items()
            for score, value in scores.items()
            if score == name or score.endswith(f": {name}")
        ]

    return pick


@register("histories", section="chance", place=1, better="target")
def _tell_chance(sides: HistorySides) -> Result:
    """Say how far equal sides are apart by chance: a real score of 0 beside a synthetic one would look like a bound."""
    n = len(sides.real)
    share, distribution = _NORMAL * math.sqrt(0.5 / n), _SMIRNOV * math.sqrt(2.0 / n)
    words = f"a share of persons by up to {format_score(share)}, a distribution of one number a person "
    words += f"(Kolmogorov-Smirnov) by up to {format_score(distribution)}"
    several = max(min(int((side.counts > 1).sum()) for side in (real, *others)) for real, others in sides.rows)
    if any(map(has_steps, sides.schema.tables)) and several >= FEW:
        words += f", a rank correlation with the row before by up to {format_score(_NORMAL * math.sqrt(2.0 / several))}"
    text = f"with {n:,} persons on each side, equal ones differ in {words}, 95 % of the time. A smaller difference says "
    text += "nothing, and nor does a real one near 0"
    if sides.other is None:
        text += "; there are too few real persons to stand beside synthetic ones"
    return Result(remarks={"chance": [text]})
