"""Classifiers: trained on synthetic records and tested on real ones, asked to tell both apart, or released. Private."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.calibration import calibration_curve
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.metrics.columns import MOST_UNITS, categorical, check_fit, one_hot, ordinals, subsample, varying_units
from lightning_dpgen.metrics.measure import A_LABEL, A_TEST, ENCODED, SKILL, TABLE, Need, Plot, Result, rate, register

if TYPE_CHECKING:
    # A run that trains no network waits for no library that networks are trained with.
    from lightning_dpgen.metrics.measure import Glance
    from lightning_dpgen.metrics.sides import Sides

TRAINING, DETECTION = "train on synthetic, test on real", "telling them apart"
# The most records that a classifier is trained on, and tested on.
ROWS = 20_000
CLASSIFIERS = ("logistic regression", "random forest", "gradient boosting")
# Units that trees look at: every pixel of small pictures; of more, those that vary most.
_MOST_PIXELS = 1_000
# Pixels and readings beyond which boosting is left out: with many classes it takes minutes.
_BOOSTED = 100
# The most records of each side that are looked at, and the parts of the cross-validation.
TOLD_APART, FOLDS = 10_000, 3
DETECTED, COMMONEST = "detected, 2 AUC - 1", "commonest label, accuracy"
# Bins of equal width in which stated probabilities are compared with how often they are right (Guo et al. 2017).
_BINS = 15
# The least probability that a log loss counts.
_LEAST = 1e-12


def train_on_synthetic(
    train: Encoded,
    test: Encoded,
    layout: Layout,
    *,
    classifiers: Sequence[str] = CLASSIFIERS,
    total: bool = True,
    seed: int = 0,
) -> dict[str, float]:
    """Score how well classifiers trained on some records tell the labels of others.

    Logistic regression sees groups as one-hot, random forest as ordinals, histogram gradient boosting as categories. A
    classifier's accuracy does not add up over batches, so this is a function, of all records at once.

    Args:
        train: the records that are learned from; at most `ROWS` of them, chosen by the seed.
        test: real ones that nothing was learned from; at most as many.
        layout: layout of both, with a label.
        classifiers: some of `CLASSIFIERS`.
        total: whether the sum of all units has a meaning, so that trees see it.
        seed: seed of rows and classifiers.

    Returns:
        ``<classifier>, accuracy`` in [0, 1]; for two labels also ``<classifier>, AUC``, if both occur in the test; and
        ``commonest label, accuracy``, that of always answering the commonest label of training. If only one label was
        trained on, every classifier answers it.

    Raises:
        ValueError: without a label, or without a record to train on or to test.

    Example:
        >>> codes = np.array([[0, 0], [1, 1]] * 50, np.uint8)
        >>> records = Encoded(np.zeros((100, 0), np.uint8), codes)
        >>> train_on_synthetic(records, records, Layout(units=0, groups=(2, 2), label=1), classifiers=["random forest"])
        {'commonest label, accuracy': 0.5, 'random forest, accuracy': 1.0, 'random forest, AUC': 1.0}
    """
    return score_labels(*label_chances(train, test, layout, classifiers=classifiers, total=total, seed=seed))


def label_chances(
    train: Encoded, test: Encoded, layout: Layout, *, classifiers: Sequence[str], total: bool, seed: int
) -> tuple[dict[str, np.ndarray | None], np.ndarray, np.ndarray, int]:
    """Train classifiers as `train_on_synthetic` does, and return the arguments of `score_labels`."""
    if layout.label is None:
        raise ValueError("these records have no label: declare one in their schema to train classifiers for it")
    for name, encoded in (("train", train), ("test", test)):
        if not len(encoded):
            raise ValueError(f"{name} holds no record: expected at least one")
        check_fit(encoded, layout)
    if unknown := set(classifiers) - set(CLASSIFIERS):
        raise ValueError(f"classifiers={sorted(unknown)}: expected some of {', '.join(CLASSIFIERS)}")
    train, test = subsample(train, ROWS, seed), subsample(test, ROWS, seed + 1)
    groups = [group for group in range(len(layout.groups)) if group != layout.label]
    units = varying_units([train], _MOST_PIXELS)
    y, answers = train.codes[:, layout.label], test.codes[:, layout.label]
    chances = dict.fromkeys(classifiers)
    if len(np.unique(y)) > 1 and layout.units + len(groups):
        for name in classifiers:
            chances[name] = _chances(name, train, y, test, layout, units, groups, total, seed)
    return chances, y, answers, layout.groups[layout.label]


def score_labels(
    chances: Mapping[str, np.ndarray | None], learned: np.ndarray, answers: np.ndarray, labels: int
) -> dict[str, float]:
    """Score how likely classifiers hold each label, as `train_on_synthetic` does.

    Args:
        chances: (tested, labels that were learned), by classifier; None for one that always answers the commonest label.
        learned: (n,) labels that were learned from.
        answers: (tested,) the true labels.
        labels: the number of labels that there are.

    Example:
        >>> score_labels({"coin": np.array([[0.9, 0.1], [0.2, 0.8]])}, np.array([0, 0, 1]), np.array([0, 1]), 2)
        {'commonest label, accuracy': 0.5, 'coin, accuracy': 1.0, 'coin, AUC': 1.0}
    """
    commonest = np.bincount(learned).argmax()
    scores = {COMMONEST: float((answers == commonest).mean())}
    for name, likely in chances.items():
        told = commonest if likely is None else np.unique(learned)[likely.argmax(axis=1)]
        scores[f"{name}, accuracy"] = float((told == answers).mean())
        if labels == 2 and len(np.unique(answers)) == 2:
            scores[f"{name}, AUC"] = 0.5 if likely is None else float(roc_auc_score(answers, likely[:, 1]))
    return scores


@dataclass(frozen=True)
class LinearClassifier:
    """A public classifier: it answers the label with the largest score ``x.w + b``, the first of several.

    Args:
        labels: (c,) int64.
        weights: (c, width) w, for the numbers of a record as a layout writes them out; 0 for its label.
        offsets: (c,) b.
    """

    labels: Tensor
    weights: Tensor
    offsets: Tensor


def label_classifier(train: Encoded, layout: Layout) -> LinearClassifier:
    """Fit a logistic regression of the label; if only one label is known, the answer for all records.

    Args:
        train: the records that it learns from, at least one.
        layout: a layout with a label.
    """
    groups = [group for group in range(len(layout.groups)) if group != layout.label]
    y = train.codes[:, layout.label]
    if len(np.unique(y)) == 1 or not layout.units + len(groups):
        commonest = torch.from_numpy(np.bincount(y).argmax(keepdims=True))
        return LinearClassifier(commonest, torch.zeros(1, layout.width), torch.zeros(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = classifier(CLASSIFIERS[0], [], 0).fit(one_hot(train, layout, groups), y)
    slopes, biases = (torch.from_numpy(array).double() for array in (fitted.coef_, fitted.intercept_))
    if len(slopes) == 1:
        # With two labels only the second one has a score.
        slopes, biases = (torch.cat([torch.zeros_like(x), x]) for x in (slopes, biases))
    seen = torch.ones(layout.width, dtype=torch.bool)
    seen[layout.labels] = False
    weights = torch.zeros(len(slopes), layout.width, dtype=torch.float64)
    weights[:, seen] = slopes
    return LinearClassifier(torch.from_numpy(fitted.classes_.astype(np.int64)), weights, biases)


def _chances(name, train, y, test, layout, units, groups, total, seed) -> np.ndarray:
    """Return how likely each label is: (tested, labels that were trained on)."""
    if name == "logistic regression":
        x, asked = one_hot(train, layout, groups), one_hot(test, layout, groups)
    else:
        x, asked = (ordinals(part, layout, units, groups, total=total) for part in (train, test))
    with warnings.catch_warnings():
        # A classifier that has not fully converged after 200 rounds is part of the protocol.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return classifier(name, categorical(layout, x.shape[1], groups), seed).fit(x, y).predict_proba(asked)


def classifier(name: str, categories: Sequence[bool], seed: int) -> ClassifierMixin:
    """Return one of `CLASSIFIERS`, told which features are categories."""
    if name == "logistic regression":
        return LogisticRegression(max_iter=200, tol=1e-3)
    if name == "random forest":
        return RandomForestClassifier(100, random_state=seed)
    # Stopping early needs some of each label to put aside, which synthetic records may not have.
    return HistGradientBoostingClassifier(categorical_features=categories, early_stopping=False, random_state=seed)


def best_classifier(evaluation: Any) -> list[Glance]:
    """Pick the classifier that is right most often."""
    scores = {name: evaluation.scores.get(TRAINING, {}).get(f"{name}, accuracy") for name in CLASSIFIERS}
    scores = {name: value for name, value in scores.items() if value is not None}
    if not scores:
        return []
    best = max(scores, key=scores.__getitem__)
    real, commonest = evaluation.reference[TRAINING][f"{best}, accuracy"], evaluation.scores[TRAINING][COMMONEST]
    # Where real records do not teach the label either, nothing is lost.
    ends = (1.0, commonest) if real > commonest else None
    return [rate(scores[best], real, f"accuracy, {best}", ends, limits=SKILL)]


@register(
    ENCODED, TABLE, section=TRAINING, place=60, better="higher", needs=(A_LABEL, A_TEST),
    says="Classifiers that learn the label from synthetic records, tested on real ones; beside them, the same learned from "
    "real records.",
    glance=best_classifier,
)  # fmt: skip
def _train(sides: Sides) -> Result:
    """Train on synthetic records, test on real ones; beside it the same with real ones in their place."""
    sides = sides.encoded
    classifiers = CLASSIFIERS[:2] if sides.alike and sides.layout.units > _BOOSTED else CLASSIFIERS
    asked = {"classifiers": classifiers, "total": sides.alike, "seed": sides.seed}
    told = [label_chances(side, sides.test, sides.layout, **asked) for side in (sides.synthetic, sides.real)]
    scores = [score_labels(*own) for own in told]
    return Result(*scores, plots=_calibration(told, scores[0]))


def _calibration(told: Sequence[tuple], scores: Mapping[str, float]) -> list[Plot]:
    """Draw how often the best classifier is right by what it states: the second of two labels, or the likeliest of more."""
    best, curves = max(told[0][0], key=lambda name: scores[f"{name}, accuracy"]), {}
    for side, (all_chances, y, answers, _) in zip(("synthetic", "real"), told, strict=True):
        if (chances := all_chances[best]) is None:
            continue
        labels = np.unique(y)
        places = np.full(len(chances), 1) if len(labels) == 2 else chances.argmax(axis=1)
        stated = chances[np.arange(len(chances)), places]
        true, mean = calibration_curve(labels[places] == answers, stated, pos_label=True, n_bins=10, strategy="quantile")
        curves[f"learned from {side} records"] = mean, true
    axes = ("stated probability", "share of records of which it is true", "as stated")
    note = f"Answers of {best} for real records: the probability that they state, and how often they are right."
    drawn = {"rates": curves, "alt": "calibration of a classifier", "axes": axes}
    return [Plot("Calibration of a classifier", "", "operating_curves", drawn, (note,))] if curves else []


def detection(real: Encoded, synthetic: Encoded, layout: Layout, *, total: bool = True, seed: int = 0) -> dict[str, float]:
    """Fit gradient boosting, cross-validated, to as many real as synthetic records.

    If there are many units, it sees those that vary most in both sides together, and the sum of all (`total`). This is a
    function, since a classifier does not add up over batches.

    Args:
        real, synthetic: at least `FOLDS` records each; `TOLD_APART` at most are looked at, chosen by the seed.
        total: whether the sum of all units has a meaning.
        seed: seed of rows, folds and classifier.

    Returns:
        ``AUC``: 0.5 if they cannot be told apart, 1 if they always can; and ``detected``: ``2 max(AUC, 0.5) - 1``.
        An AUC below one half is no detection: cross-validation gives it where the same records occur in both sides.

    Raises:
        ValueError: for too few records.

    Example:
        >>> ones, none = np.ones((100, 1), np.uint8), np.zeros((100, 0), np.uint8)
        >>> detection(Encoded(none, ones), Encoded(none, 0 * ones), Layout(units=0, groups=(2,)))
        {'AUC': 1.0, 'detected': 1.0}
    """
    for name, encoded in (("real", real), ("synthetic", synthetic)):
        check_fit(encoded, layout)
        if len(encoded) < FOLDS:
            raise ValueError(f"fewer than {FOLDS} {name} records: expected one for each part of the cross-validation")
    size = min(len(real), len(synthetic), TOLD_APART)
    sides = [subsample(real, size, seed), subsample(synthetic, size, seed + 1)]
    groups = list(range(len(layout.groups)))
    if not layout.units + len(groups):
        return {"AUC": 0.5, "detected": 0.0}
    units = varying_units(sides, MOST_UNITS)
    real, synthetic = (ordinals(side, layout, units, groups, total=total) for side in sides)
    return told_apart(real, synthetic, categorical(layout, real.shape[1], groups), seed)


def told_apart(real: np.ndarray, synthetic: np.ndarray, categories: Sequence[bool], seed: int) -> dict[str, float]:
    """Tell as many real as synthetic records apart by their features, as `detection` does.

    Args:
        real, synthetic: (n, features), `FOLDS` or more each; NaN where a record lacks one.
        categories: whether each feature is a category.

    Example:
        >>> told_apart(np.ones((100, 1)), np.zeros((100, 1)), [False], seed=0)
        {'AUC': 1.0, 'detected': 1.0}
    """
    x, y = np.concatenate([real, synthetic]), np.repeat([1, 0], [len(real), len(synthetic)])
    booster = HistGradientBoostingClassifier(categorical_features=categories, early_stopping=False, random_state=seed)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    chances = cross_val_predict(booster, x, y, cv=folds, method="predict_proba")[:, 1]
    area = float(roc_auc_score(y, chances))
    return {"AUC": area, "detected": 2.0 * max(area, 0.5) - 1.0}


_ENOUGH = Need(
    lambda sides: min(len(sides.real), len(sides.synthetic)) >= FOLDS, f"there are fewer than {FOLDS} records on one side"
)
ASKED = {
    "section": DETECTION, "better": "lower", "needs": (_ENOUGH,), "glance": {"AUC": "AUC of telling them apart"},
    # Rows that are recognisable may have the right shares and means: that alone is never poor.
    "ends": (0.5, 1.0), "limits": (SKILL[0], np.inf),
}  # fmt: skip


@register(
    ENCODED, place=70, **ASKED,
    says="Gradient boosting that is asked whether a record is real or synthetic, cross-validated: AUC 0.5 if it cannot "
    "tell, 1 if it always can.",
)  # fmt: skip
@register(
    TABLE, place=35, **ASKED,
    says="Gradient boosting that is asked whether a record is real or synthetic, by its values, cross-validated on as "
    "many of each: AUC 0.5 if it cannot tell, 1 if it always can.",
)  # fmt: skip
def _tell_apart(sides: Sides) -> Result:
    sides = sides.encoded
    detections = [
        detection(sides.real, other, sides.layout, total=sides.alike, seed=sides.seed)
        for other in sides.compared
        if len(other) >= FOLDS
    ]
    return Result(*({"AUC": scores["AUC"], DETECTED: scores["detected"]} for scores in detections))


def classifier_scores(shares: Tensor, labels: Tensor) -> dict[str, float]:
    """Score a classifier on records with known labels.

    Args:
        shares: (N, labels) the probabilities of labels, N above 0.
        labels: (N,) the true ones.

    Returns:
        ``accuracy``; ``log loss``, in nats; ``calibration error``: the mean difference between the probability of the
        answer and how often it is right, over 15 bins of that probability.

    Example:
        >>> classifier_scores(torch.tensor([[0.75, 0.25]] * 4), torch.tensor([0, 0, 0, 1]))["calibration error"]
        0.0
    """
    probable, told = shares.max(dim=1)
    right = (told == labels).to(shares.dtype)
    bins = (probable * _BINS).long().clamp(max=_BINS - 1)
    off = torch.zeros(_BINS, dtype=shares.dtype).index_add_(0, bins, right - probable).abs().sum() / len(labels)
    own = shares[torch.arange(len(labels)), labels].clamp(min=_LEAST)
    return {"accuracy": float(right.mean()), "log loss": float(-own.log().mean()), "calibration error": float(off)}


@register(
    ENCODED, TABLE, section="the released classifier", place=0, better="target",
    says="The classifier that the release holds, on real records that nothing was learned from: how often its answer is "
    "right, its mean log loss in nats, and by how much the probability of its answer is off on average.",
    needs=(Need(lambda sides: sides.answers is not None),),
    glance={"accuracy": "accuracy of the released classifier"},
)  # fmt: skip
def _score_answers(sides: Sides) -> Result | str:
    return sides.answers if isinstance(sides.answers, str) else Result(classifier_scores(*sides.answers))
