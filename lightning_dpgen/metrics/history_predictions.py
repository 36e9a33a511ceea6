"""Predictions that are learned from synthetic histories and tested on real ones: of labels, and of next rows. Private."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_dpgen.data.histories.values import HistoryValues
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.metrics.classifiers import CLASSIFIERS, ROWS, TRAINING, best_classifier, classifier, score_labels
from lightning_dpgen.metrics.columns import MOST_CATEGORIES
from lightning_dpgen.metrics.history_persons import for_trees, person_features
from lightning_dpgen.metrics.history_sides import A_SECOND_SIDE, A_STEP, GAP, HistorySides, SideRows, by_table, has_steps
from lightning_dpgen.metrics.measure import Need, Result, register
from lightning_dpgen.metrics.table_pairs import ACCURACY, AUC, R2, TREE_ROWS, score_learner

# Categories of a table whose next value is predicted, and numbers; values of a category that are told apart; and steps that
# are learned from, and tested on.
NEXT_ROW, _CHOSEN, _CLASSES, _STEPS = "prediction of the next row", 2, 20, 5_000
_A_LABEL = Need(
    lambda sides: sides.schema.persons is not None and sides.schema.persons.label is not None,
    "the persons have no label to be learned",
)


@register(
    "histories", section=TRAINING, place=60, better="higher", needs=(_A_LABEL, A_SECOND_SIDE),
    says="Gradient boosting that learns the label of persons from the other attributes and all rows of synthetic persons, "
    "tested on real ones; beside it, the same learned from as many real persons.",
    glance=best_classifier,
)  # fmt: skip
def _predict_labels(sides: HistorySides) -> Result:
    return Result(*(_label_scores(train, sides) for train in sides.compared))


def _label_scores(train: HistoryValues, sides: HistorySides) -> dict[str, float]:
    label, boosting, test = sides.schema.persons.label, CLASSIFIERS[2], sides.real[:ROWS]
    train = train[:ROWS]
    y, answers = (_label_of(sides, part) for part in (train, test))
    chances = None
    if len(np.unique(y)) > 1:
        (x, categories), (asked, _) = (person_features(part, sides.learned, without=label) for part in (train, test))
        x, asked = (for_trees(features, categories) for features in (x, asked))
        chances = classifier(boosting, categories, sides.seed).fit(x, y).predict_proba(asked)
    return score_labels({boosting: chances}, y, answers, len(np.unique(_label_of(sides, sides.learned))))


def _label_of(sides: HistorySides, part: HistoryValues) -> np.ndarray:
    """Return the labels (N,) as whole numbers from 0: a label that is a number has choices of one value each."""
    values, known = (persons.column(sides.schema.persons.label) for persons in (part.persons, sides.learned.persons))
    return values if values.dtype.kind == "i" else np.searchsorted(np.unique(known), values)


@dataclass(frozen=True, eq=False)
class StepsOfSide:
    """The steps of one side in a table, at most so many, by what is known before them and what follows.

    Args:
        features: (S, features) of the row before, NaN where it has none.
        categories: whether each is a category.
        targets: the columns (S,) of the row that follows.
    """

    features: np.ndarray
    categories: list[bool]
    targets: dict[str, np.ndarray]

    def __getitem__(self, rows: slice) -> StepsOfSide:
        return StepsOfSide(self.features[rows], self.categories, {name: own[rows] for name, own in self.targets.items()})


def steps_of_side(part: HistoryValues, side: SideRows, seed: int) -> StepsOfSide:
    """Return steps of one side, chosen by the seed: the row before, its place, time and distance, and attributes."""
    before, after = side.steps()
    chosen = np.random.default_rng(seed).permutation(len(before))[:_STEPS]
    before, after = before[chosen], after[chosen]
    features, categories = [side.place[before].astype(float), side.times[before]], [False, False]
    for name, column in side.columns.items():
        features.append(side.exact(name)[before])
        categories.append(isinstance(column, Category) and column.present < MOST_CATEGORIES - 2)
    for column in () if part.persons is None else part.persons.schema.recorded:
        features.append(part.persons.column(column.name)[side.person[before]])
        categories.append(isinstance(column, Category) and column.present < MOST_CATEGORIES - 2)
    return StepsOfSide(np.stack(features, axis=1), categories, {name: _target(side, name)[after] for name in side.columns})


def _target(side: SideRows, name: str) -> np.ndarray:
    """Return the column (R,) that is predicted: numbers, or categories of which rarer ones of very many are together."""
    if name in side.numeric:
        return side.numbers(name)
    codes = side.exact(name) if side.columns[name].present <= _CLASSES else side.level(name)[0]
    return codes.astype(float)


def _measure_of(side: SideRows, name: str, answers: np.ndarray) -> str:
    if name in side.numeric:
        return R2
    return AUC if len(np.unique(answers)) == 2 else ACCURACY


@register(
    "histories", section=NEXT_ROW, place=62, better="higher", needs=(A_STEP, A_SECOND_SIDE),
    says="Gradient boosting that learns from synthetic persons what the next row of a person is, by the row before, its "
    "place and time, and attributes; tested on real persons, and beside it the same learned from as many real ones. For "
    "each table two categories and two numbers (the distance in time may be one), those that a tree predicts best among "
    "real rows: categories of two values by AUC, of more by accuracy, numbers by R2, which is 0 for the mean and below it "
    "for what is worse.",
)  # fmt: skip
def _predict_next(sides: HistorySides) -> Result | str:
    result = by_table(sides, lambda number, real, others: _next_of_table(sides, number, real, others))
    return result if result.scores else "too few real persons have two rows"


def _next_of_table(sides: HistorySides, number: int, real: SideRows, others: list[SideRows]) -> Result:
    if not has_steps(real.table):
        return Result()
    test = steps_of_side(sides.real, real, sides.seed)
    trains = [steps_of_side(part, side, sides.seed) for part, side in zip(sides.compared, others, strict=True)]
    results: list[dict[str, float]] = [{} for _ in trains]
    for name in _predictable(real, test, sides.seed):
        word = name if name == GAP else f"next {name}"
        measure = _measure_of(real, name, test.targets[name])
        scored = [_score(train, test, name, measure, sides.seed) for train in trains]
        for scores, one in zip(results, scored, strict=True):
            scores[f"{word}, {measure}"] = one[0]
            if measure == ACCURACY:
                scores[f"{word}, commonest value, accuracy"] = one[1]
    return Result(*results)


def _score(
    train: StepsOfSide, test: StepsOfSide, name: str, measure: str, seed: int, *, boosted: bool = True
) -> tuple[float, float] | None:
    y, answers = train.targets[name], test.targets[name]
    learned, tested = ~np.isnan(y), ~np.isnan(answers)
    if measure == AUC:
        positive = np.nanmax(answers, initial=0.0)
        y, answers = (y == positive).astype(float), (answers == positive).astype(float)
    x, asked = (for_trees(side.features, side.categories) for side in (train, test))
    parts = (x[learned], y[learned]), (asked[tested], answers[tested])
    return score_learner(*parts, train.categories, measure, seed, boosted=boosted)


def _predictable(real: SideRows, steps: StepsOfSide, seed: int) -> list[str]:
    """Return the categories, and the numbers, that a tree predicts best by the row before, of real steps alone."""
    half, gains = min(TREE_ROWS, len(steps.features) // 2), {}
    for name in real.columns:
        measure = _measure_of(real, name, steps.targets[name])
        scored = _score(steps[:half], steps[half : 2 * half], name, measure, seed, boosted=False)
        if scored is not None:
            gains[name] = (scored[0] - scored[1]) / (1.0 - scored[1])
    best = sorted(gains, key=lambda name: -gains[name])
    numbers = [name for name in best if name in real.numeric]
    return [*[name for name in best if name not in numbers][:_CHOSEN], *numbers[:_CHOSEN]]
