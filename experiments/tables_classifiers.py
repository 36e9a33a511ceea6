"""Train on synthetic tables, test on real ones: which records, and which classifiers.

`adult-balanced` is all people above 50K of Adult's training file and as many random others (seed: that of the run),
without `education`, which `education-num` repeats; its test the same of the test file, seed 1000. Making it is not covered
by epsilon. As many synthetic records as real ones train a random forest of 100 trees and gradient boosting on ordinal
codes, both with scikit-learn's defaults.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.metrics import roc_auc_score

from lightning_dpgen.cli.defaults import default_bins
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.public_sets import load_public_set, public_set
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.columns import column_of

DELTA, LEVELS = 1e-5, ("RF", "HGB", "AUC of HGB", "distance of tables")


def tables(data: str, epsilon: float, seed: int) -> tuple[Records, Records]:
    """Training and test records of `adult-balanced`, `adult` or `mushroom`, in the bins that follow from epsilon."""
    schema = public_set(data.removesuffix("-balanced")).schema
    n = 15_682 if data == "adult-balanced" else public_set(data).n
    if data == "adult-balanced":
        kept = (column_of(c.name, {"type": "drop"}) if c.name == "education" else c for c in schema.columns)
        schema = replace(schema, columns=tuple(kept))
    schema = schema.completed(default_bins(n, epsilon if math.isfinite(epsilon) else None, DELTA))
    parts = []
    for held_out, of in ((False, seed), (True, 1000)):
        encoded = load_public_set(data.removesuffix("-balanced"), schema, held_out=held_out).encoded
        if data == "adult-balanced":
            labels = encoded.codes[:, schema.layout.label]
            few, many = (np.flatnonzero(labels == choice) for choice in (1, 0))
            chosen = np.random.default_rng(of).choice(many, len(few), replace=False)
            encoded = encoded[np.sort(np.concatenate([few, chosen]))]
        parts.append(Records(schema, encoded))
    return parts[0], parts[1]


def scores(train: Encoded, test: Encoded, label: int, seed: int) -> list[float]:
    """What `LEVELS` names, of classifiers that are trained on some records and tested on others."""
    x, asked = (np.delete(part.codes, label, axis=1) for part in (train, test))
    y, answers = train.codes[:, label], test.codes[:, label]
    forest = RandomForestClassifier(100, random_state=seed).fit(x, y)
    boosting = HistGradientBoostingClassifier(random_state=seed).fit(x, y)
    auc = roc_auc_score(answers, boosting.predict_proba(asked)[:, 1])
    return [forest.score(asked, answers), boosting.score(asked, answers), float(auc), distance(train, test, label)]


def distance(one: Encoded, other: Encoded, label: int) -> float:
    """Mean total variation over tables of the label and another column."""
    far = []
    for column in range(one.codes.shape[1]):
        if column != label:
            cells = [part.codes[:, column].astype(np.int64) * 2 + part.codes[:, label] for part in (one, other)]
            size = max(int(found.max()) for found in cells) + 1
            shares = [np.bincount(found, minlength=size) / len(found) for found in cells]
            far.append(0.5 * np.abs(shares[0] - shares[1]).sum())
    return float(np.mean(far))
