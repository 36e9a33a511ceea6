"""Do bins that are paid for give columns as they are? Raw values of a release beside real ones, with bounds alone.

    python -m experiments.league.paid_bins FOLDER [--epsilon 3] [--runs 3]

Two tables with public bounds and nothing else declared of a number: Adult, and a made-up bank (20,000 rows with spikes,
long tails and a column that is -1 where another one is 0). Each is learned with `data.bins_share=0` and with its default,
and Adult also with the schema of the package. Printed are the largest Kolmogorov-Smirnov distance of a column, the AUC of
boosted trees that tell synthetic rows from real ones by raw values, and the accuracy on other real rows of a forest that
learned from synthetic ones (balanced by weights). Results are kept in FOLDER.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import ks_2samp
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from sklearn.model_selection import cross_val_predict

from experiments.common.arguments import read_count, read_positive
from experiments.common.kept import Kept
from experiments.common.training import train
from experiments.league.made_up_tables import TABLES
from lightning_dpgen.data.public_sets import find_public_set, public_set
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.schema_file import schema_text

TOLD_APART = 8_000


def adult(held_out: bool) -> pd.DataFrame:
    """Return the rows of Adult as they are in its files."""
    names = [column.name for column in public_set("adult").schema.columns]
    (path,) = find_public_set("adult", held_out=held_out)
    frame = pd.read_csv(path, names=names, skipinitialspace=True, comment="|", na_values="?")
    return frame.assign(income=frame["income"].str.rstrip("."))


def bounds_alone() -> str:
    """Return Adult's schema without what it says of the bins of numbers."""
    known = public_set("adult").schema
    columns = (c.with_values(transform="linear", special=()) if isinstance(c, Numeric) else c for c in known.columns)
    return schema_text(known.with_values(columns, header=True))


def scores(real: pd.DataFrame, other: pd.DataFrame, made: pd.DataFrame, label: str, seed: int) -> list[float]:
    """Return the largest distance of a column, the AUC of telling apart, and the accuracy of a forest on other rows."""
    numbers = [name for name in real if pd.api.types.is_numeric_dtype(real[name])]
    kinds = {name: sorted(real[name].dropna().unique()) for name in real if name not in numbers}

    def coded(frame: pd.DataFrame) -> pd.DataFrame:
        codes = {name: pd.Categorical(frame[name], categories=kinds[name]).codes for name in kinds}
        return frame.assign(**codes)[list(real)].astype(float)

    real, other, made = coded(real), coded(other), coded(made)
    far = max(float(ks_2samp(real[name], made[name]).statistic) for name in numbers)
    parts = [frame.sample(min(TOLD_APART, len(frame)), random_state=seed) for frame in (real, made)]
    told = np.repeat([0, 1], [len(part) for part in parts])
    guess = cross_val_predict(HistGradientBoostingClassifier(), pd.concat(parts), told, cv=3, method="predict_proba")
    forest = RandomForestClassifier(100, min_samples_leaf=5, class_weight="balanced", random_state=seed)
    forest.fit(made.drop(columns=label), made[label])
    found = balanced_accuracy_score(other[label], forest.predict(other.drop(columns=label)))
    return [far, float(roc_auc_score(told, guess[:, 1])), float(found)]


@dataclass(frozen=True)
class Table:
    """A table, other rows of it, and its schema.

    Args:
        rows: the function that returns both, by the number of a run.
    """

    rows: Callable[[int], tuple[pd.DataFrame, pd.DataFrame]]
    label: str
    schema: str


def tables() -> dict[str, Table]:
    bank, own = TABLES["bank"], schema_text(public_set("adult").schema.with_values(header=True))
    return {
        "bank": Table(lambda run: (bank.draw(20_000, run), bank.draw(20_000, 1000 + run)), bank.label, bank.schema),
        "adult, bounds alone": Table(lambda _: (adult(False), adult(True)), "income", bounds_alone()),
        "adult, the package's schema": Table(lambda _: (adult(False), adult(True)), "income", own),
    }


def measured(place: Path, table: Table, epsilon: float, run: int, words: list[str]) -> list[float]:
    """Return the scores of a table that is learned in a folder."""
    real, other = table.rows(run)
    file, described = Path(f"{place}.csv"), Path(f"{place}.schema.yaml")
    real.to_csv(file, index=False, na_rep="?")
    described.write_text(table.schema, encoding="utf-8")
    data = ["data=table", f"data.path={file}", f"data.schema={described}", f"data.n={len(real)}"]
    train(place, [*data, "model=auto", f"privacy.epsilon={epsilon:g}", f"seed={run}", *words])
    made = pd.read_parquet(place / "release" / "synthetic.parquet")
    return scores(real, other, made[list(real)], table.label, run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epsilon", type=read_positive, default=3.0)
    parser.add_argument("--runs", type=read_count, default=3)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    kept = Kept(asked.folder / "paid_bins.json")
    for name, table in tables().items():
        for bins, words in (("equal width", ["data.bins_share=0"]), ("paid for", [])):
            rows = []
            for run in range(asked.runs):
                place = asked.folder / re.sub(r"[^a-z0-9]+", "_", f"{name} {bins} {asked.epsilon:g} {run}")
                what = {"table": name, "bins": bins, "epsilon": asked.epsilon, "run": run}
                rows.append(kept.get(what, partial(measured, place, table, asked.epsilon, run, words)))
            far, told, accuracy = np.mean(rows, axis=0)
            print(f"{name}, {bins}: worst distance {far:.3f}, told apart {told:.3f}, forest {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
