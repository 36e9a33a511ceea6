"""Table 1 of dp-GAN: classifiers trained on generated rows of Adult and Mushroom, tested on real ones.

    python -m experiments.dpgan.tables FOLDER adult-balanced [--epsilon 3] [--runs 3] [--only NAME ...] [--choose]

A row is a variant: the paper's setting, with choices where it is silent (`conf/experiment/dpgan_table.yaml`), with and
without decay, its twin without privacy; `model=wgan` with its defaults, and with clearer labels; measured tables. Numbers
are the accuracies, and the largest distance of a column of generated rows from that of training rows: total variation of
choices, Kolmogorov-Smirnov (or Wasserstein, where few values lie far away) of numbers.
`--choose` scores them on a fifth of the training rows, which is held out of the training then: settings were chosen so.
Results are kept in FOLDER.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from experiments.common.arguments import read_count, read_positive
from experiments.common.kept import Kept
from experiments.common.training import train
from experiments.league.classifiers import scores, tables
from experiments.league.tasks import AdultBalanced, Mushroom, Tables
from lightning_dpgen import load_release
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.metrics.summaries import spreads
from lightning_dpgen.metrics.table_columns import column_distances
from lightning_dpgen.release.drawing.release import Release

PAPER = "experiment=dpgan_table"
DECAY = ["clipping=decay", "clipping.ratio=0.3"]
# A critic by SGD at that rate diverges where nothing is clipped; the GAN's is by Adam at 1e-3 in the paper's repository.
TWIN = ["model.optimizer=adam", "model.lr=1e-3", "privacy=off"]
VARIANTS: dict[str, list[str]] = {
    "paper": [PAPER],
    "paper, decay": [PAPER, *DECAY],
    "paper, no privacy": [PAPER, *TWIN],
    "defaults": ["model=wgan"],
    "defaults, clear label": ["model=wgan", "model.label_sharpness=4"],
    "defaults, label by generators": ["model=wgan", "model.label_share=0"],
    "measured": ["model=measured"],
    "measured, clear label": ["model=measured", "model.label_sharpness=4"],
}


class AdultChosen(AdultBalanced):
    """Adult, balanced, less a fifth of its training rows, on which settings are chosen."""

    n = 12_545

    def files(self, run: int) -> tuple[Path, Path]:
        table, schema = super().files(run)
        rows = pd.read_csv(table, dtype=str, keep_default_na=False)
        order = np.random.default_rng(1000 + run).permutation(len(rows))
        rows.iloc[np.sort(order[: self.n])].to_csv(table, index=False)
        rows.iloc[np.sort(order[self.n :])].to_csv(self.held_out(run), index=False)
        return table, schema

    def held_out(self, run: int) -> Path:
        return self.folder / f"adult_held_out_{run}.csv"

    def scores(self, made: Encoded, epsilon: float, run: int) -> list[float]:
        schema = tables(self.data, epsilon, run)[1].schema
        test = read_table(pd.read_csv(self.held_out(run), keep_default_na=False), schema).encoded
        return scores(made, test, schema.layout.label, run)[: len(self.columns)]


def settings_of(task: Tables, name: str, epsilon: float, run: int) -> list[str]:
    """Return the settings of a variant for `dpgen train`."""
    budget = [] if "privacy=off" in VARIANTS[name] else [f"privacy.epsilon={epsilon}", "privacy.delta=1e-5"]
    # Each variant has the bins that it has by default, and the paper's batches are of 256 records.
    data = [word for word in task.settings(run) if word != "data.bins_share=0"]
    batches = [f"model.rate={256 / task.n:.6g}"] if PAPER in VARIANTS[name] else []
    return [*data, *budget, f"seed={run}", *VARIANTS[name], *batches]


def folder_of(task: Tables, name: str, epsilon: float, run: int) -> Path:
    """Return the folder of the run of a variant."""
    return task.folder / f"{name.replace(' ', '_').replace(',', '')}_{epsilon:g}_{run}"


def scored(task: Tables, name: str, epsilon: float, run: int) -> list[float]:
    """Return the scores of a variant, trained unless it was before, and the largest distance of a column."""
    folder = folder_of(task, name, epsilon, run)
    train(folder, settings_of(task, name, epsilon, run))
    release = load_release(folder / "release")
    return [*task.scores(task.drawn(release, epsilon, run), epsilon, run), farthest(task, release, epsilon, run)]


def farthest(task: Tables, release: Release, epsilon: float, run: int) -> float:
    """Return the largest distance of a column of generated rows from the same of training rows, in [0, 1]."""
    real = tables(task.data, epsilon, run)[0]
    made = read_table(release.sample(task.n, seed=run), real.schema, values=True).values
    return max(column_distances(real.values, made, spreads(real.values)).values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("data", choices=("adult-balanced", "mushroom"))
    parser.add_argument("--epsilon", type=read_positive, default=3.0)
    parser.add_argument("--runs", type=read_count, default=3)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--choose", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    # Softmax of a network that is sure of itself has numbers that slow a processor down by three times.
    torch.set_flush_denormal(True)
    asked.folder.mkdir(parents=True, exist_ok=True)
    kind = Mushroom if asked.data == "mushroom" else AdultChosen if asked.choose else AdultBalanced
    task, kept = kind(asked.folder), Kept(asked.folder / "dpgan_tables.json")
    columns = ", ".join((*task.columns, "farthest column"))
    print(f"{asked.data}, epsilon {asked.epsilon:g}: {columns}; means of {asked.runs} runs (spread)")
    for name in asked.only:
        found = [
            kept.get(
                {"data": asked.data, "variant": VARIANTS[name], "epsilon": asked.epsilon, "run": run, "n": task.n},
                lambda name=name, run=run: scored(task, name, asked.epsilon, run),
            )
            for run in range(asked.runs)
        ]
        means, spread = np.mean(found, axis=0), np.std(found, axis=0)
        print(f"{name}: " + "  ".join(f"{m:.4f} ({s:.4f})" for m, s in zip(means, spread, strict=True)), flush=True)


if __name__ == "__main__":
    main()
