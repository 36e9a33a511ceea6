"""Persons with their histories as features for trees: told apart from real ones, or a label that follows from them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.metrics.classifiers import (
    ASKED,
    CLASSIFIERS,
    DETECTED,
    FOLDS,
    ROWS,
    TOLD_APART,
    TRAINING,
    best_classifier,
    classifier,
    score_labels,
    told_apart,
)
from lightning_dpgen.metrics.columns import MOST_CATEGORIES, subsample
from lightning_dpgen.metrics.histories import A_SCHEMA, FEW, Histories, TableOfHistories, moments
from lightning_dpgen.metrics.measure import A_LABEL, A_TEST, Result, register
from lightning_dpgen.metrics.sides import EncodedSides


def person_features(histories: Histories, *, without: int | None = None) -> tuple[np.ndarray, list[bool]]:
    """Describe each person, with attributes and all rows, by numbers for trees.

    Args:
        without: an attribute that is left out; None to leave out none.

    Returns:
        (N, features), 0 where a person has none, and others from 1; and whether each feature is a category.
    """
    schema, features = histories.schema, []

    def add(values: np.ndarray, choices: int = 0) -> None:
        features.append((values, 0 < choices < MOST_CATEGORIES - 1))

    if schema.persons is not None:
        layout = schema.layout
        for i, (choices, ordered) in enumerate(zip(layout.groups, layout.ordered, strict=True)):
            if i != without and i < schema.attributes:
                add(histories.attributes[:, i], 0 if ordered else choices)
    for rows in histories.tables:
        _describe_rows(rows, add)
    table = np.stack([values for values, _ in features], axis=1).astype(float)
    # Trees take no feature that all persons lack.
    return 1.0 + np.nan_to_num(table, nan=-1.0), [category for _, category in features]


def _describe_rows(rows: TableOfHistories, add: Callable[..., None]) -> None:
    """Add the features of persons that follow from their rows in one table."""
    counts, person, order = rows.counts, rows.person, rows.table.order
    n, has_rows = len(counts), counts > 0
    add(counts)
    before, after = rows.steps()
    ends = np.cumsum(counts)
    if order is not None:
        add(np.where(has_rows, rows.starts, np.nan))
        gaps, steps = rows.gaps[after], np.maximum(counts - 1, 0)
        middles = np.array([(low + high) / 2 for low, high in order.gap.ranges] + [0.0])
        add(np.bincount(person[after], middles[gaps], minlength=n))
        add(moments(gaps.astype(float), person[after], n)[0])
        for reduce in (np.minimum, np.maximum):
            add(_reduced(reduce, gaps, steps))
    for i, (ordered, (_, choices)) in enumerate(zip(rows.ordered, rows.columns, strict=True)):
        codes = rows.rows[:, i]
        if order is not None:
            for at in (ends - counts, ends - 1):
                own = np.full(n, np.nan)
                own[has_rows] = codes[at[has_rows]]
                add(own, 0 if ordered else choices)
            add(moments((codes[before] == codes[after]).astype(float), person[after], n)[0])
        if ordered:
            for values in moments(rows.numbers(i), person, n):
                add(values)
        if choices <= FEW:
            for choice in range(choices):
                add(np.bincount(person[codes == choice], minlength=n))
        elif not ordered:
            pairs = np.unique(person * (choices + 1) + codes)
            add(np.bincount(pairs // (choices + 1), minlength=n))


def _reduced(reduce: np.ufunc, values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Reduce the values of each person, so many one behind the other; NaN of persons without any."""
    found, there = np.full(len(counts), np.nan), counts > 0
    if there.any():
        found[there] = reduce.reduceat(values, (np.cumsum(counts) - counts)[there])
    return found


@register(
    "histories", place=70, **(ASKED | {"needs": (A_SCHEMA, *ASKED["needs"])}),
    says="Gradient boosting that is asked whether a person is real or synthetic, cross-validated on as many of each. It "
    "sees attributes, the number of rows, times, and what each column is first, last, on average and how often: AUC 0.5 "
    "if it cannot tell, 1 if it always can.",
)  # fmt: skip
def _tell_persons_apart(sides: EncodedSides) -> Result:
    results = []
    for other in sides.compared:
        if len(other) < FOLDS:
            continue
        size = min(len(sides.real), len(other), TOLD_APART)
        parts = (subsample(sides.real, size, sides.seed), subsample(other, size, sides.seed + 1))
        (real, categories), (made, _) = (person_features(Histories(sides.schema, part)) for part in parts)
        found = told_apart(real, made, categories, sides.seed)
        results.append({"AUC": found["AUC"], DETECTED: found["detected"]})
    return Result(*results)


@register(
    "histories", section=TRAINING, place=60, better="higher", needs=(A_SCHEMA, A_LABEL, A_TEST),
    says="Gradient boosting that learns the label of persons from the other attributes and all rows of synthetic persons, "
    "tested on real ones; beside it, the same learned from real persons.",
    glance=best_classifier,
)  # fmt: skip
def _predict_labels(sides: EncodedSides) -> Result:
    return Result(*(_label_scores(train, sides) for train in (sides.synthetic, sides.real)))


def _label_scores(train: Encoded, sides: EncodedSides) -> dict[str, float]:
    label, boosting = sides.layout.label, CLASSIFIERS[2]
    parts = (subsample(train, ROWS, sides.seed), subsample(sides.test, ROWS, sides.seed + 1))
    y, answers = (part.codes[:, label] for part in parts)
    chances = None
    if len(np.unique(y)) > 1:
        (x, categories), (asked, _) = (person_features(Histories(sides.schema, part), without=label) for part in parts)
        chances = classifier(boosting, categories, sides.seed).fit(x, y).predict_proba(asked)
    return score_labels({boosting: chances}, y, answers, sides.layout.groups[label])
