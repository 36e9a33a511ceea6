"""Detection: the success of a classifier that tells real from synthetic records."""

from __future__ import annotations

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.metrics.columns import MOST_UNITS, categorical, check_fit, ordinals, subsample, varying_units
from lightning_dpgen.metrics.measure import DETECTION, TABLE, Need, Result, register
from lightning_dpgen.metrics.sides import Sides

# The most records of each side that are looked at, and the parts of the cross-validation.
ROWS = 10_000
FOLDS = 3
DETECTED = "detected, 2 AUC - 1"


def detection(real: Encoded, synthetic: Encoded, layout: Layout, *, total: bool = True, seed: int = 0) -> dict[str, float]:
    """Fit gradient boosting, cross-validated, to as many real as synthetic records.

    If there are many units, it sees those that vary most in both sides together, and the sum of all (`total`). This is a
    function, since a classifier does not add up over batches.

    Args:
        real, synthetic: at least `FOLDS` records each; `ROWS` at most are looked at, chosen by the seed.
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
    size = min(len(real), len(synthetic), ROWS)
    sides = [subsample(real, size, seed), subsample(synthetic, size, seed + 1)]
    groups = list(range(len(layout.groups)))
    if not layout.units + len(groups):
        return {"AUC": 0.5, "detected": 0.0}
    units = varying_units(sides, MOST_UNITS)
    x = np.concatenate([ordinals(side, layout, units, groups, total=total) for side in sides])
    y = np.repeat([1, 0], size)
    booster = HistGradientBoostingClassifier(
        categorical_features=categorical(layout, x.shape[1], groups), early_stopping=False, random_state=seed
    )
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    chances = cross_val_predict(booster, x, y, cv=folds, method="predict_proba")[:, 1]
    area = float(roc_auc_score(y, chances))
    return {"AUC": area, "detected": 2.0 * max(area, 0.5) - 1.0}


_ENOUGH = Need(
    lambda sides: min(len(sides.real), len(sides.synthetic)) >= FOLDS, f"there are fewer than {FOLDS} records on one side"
)
_ASKED = {
    "section": DETECTION, "better": "lower", "needs": (_ENOUGH,), "glance": {"AUC": "AUC of telling them apart"}
}  # fmt: skip


@register(
    "images", "baskets", "series", place=70, **_ASKED,
    says="Gradient boosting that is asked whether a record is real or synthetic, cross-validated: AUC 0.5 if it cannot "
    "tell, 1 if it always can.",
)  # fmt: skip
@register(
    TABLE, place=35, **_ASKED,
    says="Gradient boosting that is asked whether a record is real or synthetic, by its values, cross-validated on as "
    "many of each: AUC 0.5 if it cannot tell, 1 if it always can.",
)  # fmt: skip
def _tell_apart(sides: Sides) -> Result:
    sides = sides.encoded
    found = [
        detection(sides.real, other, sides.layout, total=sides.alike, seed=sides.seed)
        for other in sides.compared
        if len(other) >= FOLDS
    ]
    return Result(*({"AUC": scores["AUC"], DETECTED: scores["detected"]} for scores in found))
