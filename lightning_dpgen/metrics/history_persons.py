"""Persons with their histories as features: told apart from real ones, and attacked by what is known of them. Private."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.data.histories.row_table import running
from lightning_dpgen.data.histories.values import HistoryValues, RowValues
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics.classifiers import ASKED, DETECTED, FOLDS, TOLD_APART, told_apart
from lightning_dpgen.metrics.columns import MOST_CATEGORIES
from lightning_dpgen.metrics.history_sides import GAP, HistorySides, SideRows, has_steps
from lightning_dpgen.metrics.history_summaries import moments, time_spans
from lightning_dpgen.metrics.measure import UNSEEN, Result, register
from lightning_dpgen.metrics.membership import (
    ATTACKED,
    ATTACKS,
    FEW_ATTACKED,
    MEMBERSHIP,
    attack,
    describe_twins,
    nearest_distances,
)

# Standard deviations beyond which a feature is cut where persons are compared by distance, and synthetic ones that are.
_FAR, _KNOWN = 4.0, 20_000
# A number that stands for none, below all others.
_NONE = -1e12
_IN_BINS = "AUC in the declared bins"


def person_features(
    persons: HistoryValues, learned: HistoryValues, *, without: str | None = None
) -> tuple[np.ndarray, list[bool]]:
    """Describe each person, with attributes and all rows, by numbers.

    Args:
        learned: persons by whose values numbers are cut, and rarer categories are put together.
        without: an attribute that is left out; None to leave out none.

    Returns:
        (N, features), NaN where a person has none; and whether each feature is a category.
    """
    schema, features = persons.schema, []

    def add(values: np.ndarray, choices: int = 0) -> None:
        features.append((np.asarray(values, np.float64), 0 < choices < MOST_CATEGORIES - 1))

    if persons.persons is not None:
        for column in persons.persons.schema.recorded:
            if column.name != without:
                values = persons.persons.column(column.name)
                add(values, column.present + 1 if isinstance(column, Category) else 0)
    for table, rows, of_learned in zip(schema.tables, persons.tables, learned.tables, strict=True):
        _describe_rows(SideRows(table, "", rows, of_learned), add)
    return np.stack([values for values, _ in features], axis=1), [category for _, category in features]


def _describe_rows(side: SideRows, add: Callable[..., None]) -> None:
    """Add the features of persons that follow from their rows in one table."""
    counts, n, there = side.counts, len(side.counts), side.counts > 0
    add(counts)
    before, after = side.steps()
    ends = side.rows.begins + counts
    if side.times is not None:
        first = np.full(n, np.nan)
        first[there] = side.times[side.rows.begins[there]]
        add(first)
        add(time_spans(side))
    for name in side.columns:
        numeric = name in side.numeric
        if numeric:
            numbers = side.numbers(name)
            for values in moments(numbers, side.person, n):
                add(values)
            for reduce in (np.fmin, np.fmax):
                add(_reduced(reduce, numbers, counts))
        if has_steps(side.table) and name != GAP:
            exact, names = side.exact(name), side.level(name)[1]
            for at in (side.rows.begins, ends - 1):
                own = np.full(n, np.nan)
                own[there] = exact[at[there]]
                add(own, 0 if numeric else side.columns[name].present + 1)
            add(moments((exact[before] == exact[after]).astype(float), side.person[after], n)[0])
        if not numeric:
            codes, names, _ = side.level(name)
            for value in range(len(names)):
                add(np.bincount(side.person[codes == value], minlength=n))


def _reduced(reduce: np.ufunc, values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Reduce the values of each person, so many one behind the other; NaN of persons without any."""
    found, there = np.full(len(counts), np.nan), counts > 0
    if there.any():
        found[there] = reduce.reduceat(values, (np.cumsum(counts) - counts)[there])
    return found


def in_bins(persons: HistoryValues) -> HistoryValues:
    """Return the same persons with numbers, times and distances at the middles of their declared bins."""
    attributes = persons.persons if persons.persons is None else _middles_of(persons.persons)
    tables = []
    for table, rows in zip(persons.schema.tables, persons.tables, strict=True):
        times = rows.times
        if table.order is not None and len(rows.values):
            ticks = np.where(rows.place > 0, rows.gaps, rows.times)
            steps = [_middle_of(column, ticks) for column in (table.order.gap, table.order.start)]
            times = running(np.where(rows.place > 0, *steps), rows)
        tables.append(RowValues(rows.counts, times, _middles_of(rows.values)))
    return HistoryValues(persons.schema, attributes, tuple(tables))


def _middles_of(values: TableValues) -> TableValues:
    numbers = values.numbers.copy()
    for place, column in enumerate(values.of_numbers):
        numbers[:, place] = _middle_of(column, numbers[:, place])
    return TableValues(values.schema, numbers, values.codes)


def _middle_of(column: Numeric, ticks: np.ndarray) -> np.ndarray:
    """Return the middle of the bin of each number (n,), NaN of missing ones; numbers outside are moved to the bounds."""
    codes, _ = column.encode(column.restored(np.nan_to_num(ticks), np.isnan(ticks)), True, Counter())
    return np.array([*((low + high) / 2 for low, high in column.ranges), np.nan])[codes]


def for_trees(features: np.ndarray, categories: Sequence[bool]) -> np.ndarray:
    """Return features as trees take them, with a number for none: a part of the persons may all lack one.

    Example:
        >>> for_trees(np.array([[np.nan, 7.0], [2.0, np.nan]]), [True, False]).tolist()
        [[0.0, 7.0], [3.0, -1000000000000.0]]
    """
    return np.where(np.isnan(features), np.where(categories, -1.0, _NONE), features) + np.array(categories)


@register(
    "histories", place=70,
    **(ASKED | {"glance": {"AUC": "AUC of telling them apart", _IN_BINS: "the same AUC in the declared bins"}}),
    says="Gradient boosting that is asked whether a person is real or synthetic, cross-validated on as many of each. It "
    "sees attributes, the number of rows, times, and what each column is first, last, on average, in sum, at its ends and "
    "how often, all by their values: AUC 0.5 if it cannot tell, 1 if it always can. In the declared bins it sees the "
    "middle of the bin of each number, time and distance: where these are much harder to tell, bins are too coarse.",
)  # fmt: skip
def _tell_persons_apart(sides: HistorySides) -> Result:
    results = []
    for other in sides.compared:
        if len(other) < FOLDS:
            continue
        size = min(len(sides.real), len(other), TOLD_APART)
        parts = sides.real[:size], other[:size], sides.learned
        found = _told_apart(*parts, sides.seed)
        results.append({"AUC": found["AUC"], DETECTED: found["detected"]})
        coarse = (in_bins(part[: TOLD_APART // 2]) for part in parts)
        results[-1][_IN_BINS] = _told_apart(*coarse, sides.seed)["AUC"]
    return Result(*results)


def _told_apart(real: HistoryValues, made: HistoryValues, learned: HistoryValues, seed: int) -> dict[str, float]:
    described = [person_features(part, learned) for part in (real, made)]
    parts, categories = [features for features, _ in described], described[0][1]
    return told_apart(*(for_trees(features, categories) for features in parts), categories, seed)


@register(
    "histories", section=MEMBERSHIP, place=80, needs=(UNSEEN,),
    **(ATTACKS | {"says": f"Persons are known by attributes, and by what their histories come to. {ATTACKS['says']}"}),
)  # fmt: skip
def _attack_persons(sides: HistorySides) -> Result | str:
    """Attack persons: their features on the scale of synthetic ones, categories by whether they are equal."""
    if min(len(sides.learned), len(sides.held_out)) < FEW_ATTACKED:
        return f"it needs {FEW_ATTACKED} persons that were learned from, and as many held-out ones"
    parts = (sides.first_synthetic[:_KNOWN], sides.learned, sides.held_out)
    described = [person_features(part, sides.first_synthetic) for part in parts]
    synthetic, members, others = as_points([features for features, _ in described], described[0][1])
    twins = [Encoded(values.numpy(), np.zeros((len(values), 0), np.uint8)) for values in (others, members, synthetic)]
    seen = "by attributes and what histories come to"
    return attack(members[: 2 * ATTACKED], others[: 2 * ATTACKED], synthetic, describe_twins(*twins, seen))


def as_points(parts: list[np.ndarray], categories: list[bool]) -> list[Tensor]:
    """Return features of persons as points whose nearest neighbours are about 1 apart, by what an attacker knows.

    Args:
        parts: (n, features) of synthetic persons, from which all scales are, and of others.
        categories: whether each feature is a category.
    """
    columns: list[list[np.ndarray]] = [[] for _ in parts]
    for place, category in enumerate(categories):
        values = [part[:, place] for part in parts]
        if category:
            for value in np.unique(values[0][~np.isnan(values[0])]):
                for own, column in zip(columns, values, strict=True):
                    own.append((column == value) / np.sqrt(2.0))
            continue
        known = values[0][~np.isnan(values[0])]
        centre, scale = (float(known.mean()), float(known.std())) if len(known) else (0.0, 0.0)
        for own, column in zip(columns, values, strict=True):
            own.append(np.clip(np.nan_to_num((column - centre) / (scale or 1.0), nan=-_FAR), -_FAR, _FAR))
    points = [torch.from_numpy(np.stack(own, axis=1).astype(np.float32)) for own in columns]
    half = len(points[0]) // 2
    apart = nearest_distances(points[0][:half][:ATTACKED], points[0][half:]).median() if half else torch.tensor(0.0)
    return [own / (float(apart) or 1.0) for own in points]
