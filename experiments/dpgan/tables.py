"""Table 1 and Figure 7 of dp-GAN: classifiers trained on generated rows of Adult and Mushroom, tested on real ones.

    python -m experiments.dpgan.tables FOLDER adult-balanced [--epsilon 3] [--runs 5] [--only NAME ...] [--choose]

A row is a variant: the paper's setting, with choices where it is silent (`conf/experiment/dpgan_table.yaml`), with and
without decay, its twin without privacy, and the best that was found; networks whose label noisy gradients have corrected;
measured tables.
`--choose` scores them on a fifth of the training rows, which is held out of the training then: settings were chosen so.
Results are kept in FOLDER.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from experiments.common.kept import Kept
from experiments.common.training import train
from experiments.league.classifiers import scores, tables
from experiments.league.tasks import AdultBalanced, Mushroom, Tables
from lightning_dpgen import load_release
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.tables.reading import read_table

# The paper's form in 4,000 steps, for which noise is solved: with sigma 7 a run at epsilon 3 has 92,465 of them. Layers,
# widths and rates were chosen on rows held out of the training file, where three layers were worse by .01 and varied more.
FORM = [
    "experiment=dpgan_table", "model.rate=0.016325", "model.noise=null", "model.steps=4000", "model.hidden=256",
    "model.layers=1", "model.lr=1", "model.generator_lr=5e-4", "model.averaging=0.995",
]  # fmt: skip
FIXED, DECAY = (
    [*FORM, "clipping.every=null", *bound]
    for bound in (["clipping.factor=1"], ["clipping.factor=null", "clipping.ratio=0.3"])
)
# A critic by SGD at that rate diverges where nothing is clipped; the GAN's is by Adam at 1e-3 in the paper's repository.
TWIN = ["model.optimizer=adam", "model.lr=1e-3", "privacy=off"]
# The twin trained to convergence: more steps, a second layer and a generator step for two of the critic, chosen as above.
CONVERGED = [
    "model.optimizer=adam", "model.lr=5e-4", "model.generator_lr=5e-4", "model.layers=2", "model.critic_steps=2",
    "model.steps=20000", "model.averaging=0.999", "privacy=off",
]  # fmt: skip
VARIANTS: dict[str, list[str]] = {
    "sigma 7": ["experiment=dpgan_table", "model.rate=0.016325", "clipping.every=305"],
    "faithful": FIXED,
    "faithful, decay": DECAY,
    "faithful, no privacy": [*FIXED, *TWIN],
    "faithful, no privacy, converged": [*FIXED, *CONVERGED],
    "ten components, no privacy": ["model=wgan", "privacy=off"],
    "ten components, no privacy, trained on": ["model=wgan", "privacy=off", "model.steps=8000"],
    "ten components, held means": ["model=wgan"],
    "labels first": ["model=wgan", "model.conditional=true"],
    "labels first, averaged": ["model=wgan", "model.conditional=true", "model.averaging=0.95"],
    "labels first, choices drawn": ["model=wgan", "model.conditional=true", "model.sampling=straight_through"],
    "measured": ["model=measured"],
    "measured, clear labels": ["model=measured", "model.label_sharpness=4"],
    "autoencoders": ["model=vae"],
}
for _name in ("ten components, held means", "autoencoders"):
    _label = [*VARIANTS[_name], "model.label_share=0.3"]
    VARIANTS |= {f"{_name}, label": _label, f"{_name}, clear label": [*_label, "model.label_sharpness=4"]}


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
    return [*task.settings(run), *budget, f"seed={run}", *VARIANTS[name]]


def folder_of(task: Tables, name: str, epsilon: float, run: int) -> Path:
    """Return the folder of the run of a variant."""
    return task.folder / f"{name.replace(' ', '_').replace(',', '')}_{epsilon:g}_{run}"


def scored(task: Tables, name: str, epsilon: float, run: int) -> list[float]:
    """Return the scores of a variant, trained unless it was before."""
    folder = folder_of(task, name, epsilon, run)
    train(folder, settings_of(task, name, epsilon, run))
    return task.scores(task.drawn(load_release(folder / "release"), epsilon, run), epsilon, run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("data", choices=("adult-balanced", "mushroom"))
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--choose", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.folder.mkdir(parents=True, exist_ok=True)
    kind = Mushroom if asked.data == "mushroom" else AdultChosen if asked.choose else AdultBalanced
    task, kept = kind(asked.folder), Kept(asked.folder / "dpgan_tables.json")
    print(f"{asked.data}, epsilon {asked.epsilon:g}: {', '.join(task.columns)}; means of {asked.runs} runs (spread)")
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
