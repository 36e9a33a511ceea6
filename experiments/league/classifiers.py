"""Train on synthetic tables, test on real ones: `model=measured` with and without accesses for the label.

    python -m experiments.league.classifiers FOLDER adult-balanced [--epsilons 0.3 1 3] [--runs 5]
    python -m experiments.league.classifiers FOLDER adult --epsilons 3
    python -m experiments.league.classifiers FOLDER mushroom --epsilons 1

`adult-balanced` is all people above 50K of Adult's training file and as many random others (seed: that of the run),
without `education`, which `education-num` repeats; its test set is the same of the test file, seed 1000. Making it is not
covered by epsilon. As many synthetic records as real ones train a random forest of 100 trees and gradient boosting on
ordinal codes, both with scikit-learn's defaults. The rows are: real records; the mixture alone; the label drawn from its
regression; the same with its logits doubled, which makes labels more predictable than they are. `--epsilons inf` is the
non-private twin. The last column but one is the mean total variation between the (label, column) tables of synthetic and
of test records. Results are kept in FOLDER.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.metrics import roc_auc_score

from experiments.common.arguments import read_count, read_positive
from experiments.common.kept import Kept
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.public_sets import load_public_set, public_set
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.schema_keys import column_of
from lightning_dpgen.measure.tables import TableRecipe, pays_by_label
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.specs.defaults import Defaults, default_bins

DELTA, LEVELS = 1e-5, ("RF", "HGB", "AUC of HGB", "distance of tables")


def tables(data: str, epsilon: float, seed: int) -> tuple[Records, Records]:
    """Return training and test records, with their values."""
    schema = public_set(data.removesuffix("-balanced")).schema
    n = 15_682 if data == "adult-balanced" else public_set(data).n
    if data == "adult-balanced":
        kept = (column_of(c.name, {"type": "drop"}) if c.name == "education" else c for c in schema.columns)
        schema = schema.with_values(kept)
    schema = schema.with_bins(default_bins(n, epsilon if math.isfinite(epsilon) else None, DELTA))
    parts = []
    for held_out, of in ((False, seed), (True, 1000)):
        read = load_public_set(data.removesuffix("-balanced"), schema, held_out=held_out)
        encoded, values = read.encoded, read.values
        if data == "adult-balanced":
            labels = encoded.codes[:, schema.layout.label]
            few, many = (np.flatnonzero(labels == choice) for choice in (1, 0))
            chosen = np.random.default_rng(of).choice(many, len(few), replace=False)
            rows = np.sort(np.concatenate([few, chosen]))
            encoded, values = encoded[rows], values[rows]
        parts.append(Records(schema, encoded, values=values))
    return parts[0], parts[1]


def scores(train: Encoded, test: Encoded, label: int, seed: int) -> list[float]:
    parts = ((np.delete(part.codes, label, axis=1), part.codes[:, label]) for part in (train, test))
    return [*learned(*parts, seed), distance(train, test, label)]


def learned(train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray], seed: int) -> list[float]:
    """Return accuracies of a forest and of boosting, and the AUC of boosting.

    Args:
        train, test: (N, columns) features and (N,) labels.
    """
    forest = RandomForestClassifier(100, random_state=seed).fit(*train)
    boosting = HistGradientBoostingClassifier(random_state=seed).fit(*train)
    auc = roc_auc_score(test[1], boosting.predict_proba(test[0])[:, 1])
    return [forest.score(*test), boosting.score(*test), float(auc)]


def distance(one: Encoded, other: Encoded, label: int) -> float:
    """Return the mean total variation over tables of the label and another column."""
    far = []
    for column in range(one.codes.shape[1]):
        if column != label:
            cells = [part.codes[:, column].astype(np.int64) * 2 + part.codes[:, label] for part in (one, other)]
            shares = [np.bincount(c, minlength=max(map(np.max, cells)) + 1) / len(c) for c in cells]
            far.append(0.5 * np.abs(shares[0] - shares[1]).sum())
    return float(np.mean(far))


def released(train: Records, epsilon: float, label_share: float | None, seed: int) -> tuple[Mixture, float]:
    """Return a mixture with default settings, and the seconds that it took."""
    n, layout = len(train), train.schema.layout
    chosen = Defaults(n, layout, epsilon if math.isfinite(epsilon) else None, DELTA)
    share = chosen.label_share if label_share is None else label_share
    by_label = pays_by_label(layout, chosen.strength)
    recipe = TableRecipe(train.schema, chosen.components, n, seed=seed, label_share=share, by_label=by_label)
    began = time.perf_counter()
    account = Account(make_plan(recipe.specs(1.0), epsilon=epsilon, delta=DELTA))
    mixture = recipe.measure(train, torch.zeros(n, dtype=torch.int64), account)
    return mixture, time.perf_counter() - began


def compared(data: str, epsilon: float, label_share: float | None, seed: int) -> dict[str, list[float]]:
    """Return scores by row, and seconds."""
    train, test = tables(data, epsilon, seed)
    label = train.schema.layout.label
    mixture, seconds = released(train, epsilon, label_share, seed)

    def score() -> list[float]:
        made = mixture.sample(len(train), torch.Generator().manual_seed(seed))
        return scores(made, test.encoded, label, seed)

    if label_share == 0.0:
        return {"mixture alone": [*score(), seconds]}
    found = {"label drawn": [*score(), seconds]}
    for tensor in (mixture.network.label_weights, mixture.network.label_closeness, mixture.network.label_level):
        tensor *= 2.0
    return found | {"label drawn, logits doubled": [*score(), seconds]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("data", choices=("adult-balanced", "adult", "mushroom"))
    parser.add_argument("--epsilons", nargs="+", type=read_positive, default=[0.3, 1.0, 3.0])
    parser.add_argument("--runs", type=read_count, default=5)
    parser.add_argument("--label-share", type=float)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.folder.mkdir(parents=True, exist_ok=True)
    kept = Kept(asked.folder / "tables_classifiers.json")
    print(f"{asked.data}: {', '.join(LEVELS)}, seconds; means of {asked.runs} runs (standard deviation)")
    for epsilon in asked.epsilons:
        rows: dict[str, list[list[float]]] = {}
        for seed in range(asked.runs):

            def real(epsilon=epsilon, seed=seed) -> dict[str, list[float]]:
                train, test = tables(asked.data, epsilon, seed)
                return {"real": [*scores(train.encoded, test.encoded, train.schema.layout.label, seed), 0.0]}

            about = {"data": asked.data, "epsilon": epsilon, "seed": seed}
            parts = [kept.get(about | {"row": "real"}, real)]
            for share in (0.0, asked.label_share):

                def one(epsilon=epsilon, share=share, seed=seed) -> dict[str, list[float]]:
                    return compared(asked.data, epsilon, share, seed)

                parts.append(kept.get(about | {"label share": share}, one))
            for part in parts:
                for name, values in part.items():
                    rows.setdefault(name, []).append(values)
        for name, runs in rows.items():
            means, spread = np.mean(runs, axis=0), np.std(runs, axis=0)
            print(
                f"epsilon {epsilon:g}, {name}: "
                + "  ".join(f"{mean:.4f} ({deviation:.4f})" for mean, deviation in zip(means, spread, strict=True)),
                flush=True,
            )


if __name__ == "__main__":
    main()
