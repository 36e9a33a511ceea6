"""Figures 5 and 6 of dp-GAN: membership inference over the training and by the number of records, on balanced Adult.

    python -m experiments.dpgan.attacks FOLDER [--sizes 500 2000 10000]

Both files of Adult make one pool: all people above 50K and as many random others. Each of 2 n of them takes part in a
model by a fair coin, and the attacker asks of each person whether they did. The models are WGANs without privacy, trained
until they overfit, and at sigma 1 and 5, as in the paper; the same network at epsilon 3; and `model=measured` at epsilon 3,
all at delta 1e-5. Numbers are in as many bins as `dpgen train` chooses, of equal width, fewer under privacy.

Attacks score people by the critic (which no release holds), by the nearest of 10,000 synthetic records, or by the ratio of
densities to 3,000 further people of the pool. Each is also made with shadow models: every model is attacked once, and the
others are its shadows. All models of a row are pooled; half of the people choose a threshold, and the others test it.
Intervals are exact, at 95 %, those of areas by the bootstrap. Beside them stands the most that the plan allows any attack.
Results are kept in FOLDER, and pictures drawn there; scores of people go to FOLDER/dpgan_attack_scores.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from experiments.common.kept import Kept
from experiments.common.watched import watch_module
from experiments.dpgan.attack_pictures import draw_attacks, draw_curves
from experiments.dpgan.operating_curves import WRONGLY, accuracies, area, most_accurate, most_rightly, operating_points
from experiments.dpgan.shadow_models import Shadows, likelihood_ratios, train_shadows
from lightning_dpgen.data.public_sets import find_public_set, public_set
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_file import schema_text
from lightning_dpgen.measure.recipe import MostlyNoise
from lightning_dpgen.metrics.membership import density_ratio, nearness
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.plugins.wgan import WGAN
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.specs.settings import Settings, load_complete_settings

SYNTHETIC, REFERENCE, POINTS = 10_000, 3_000, 5
CRITIC, NEAREST, DENSITY = "critic", "nearest record", "densities"
SHADOWS = " by shadows"
_NETWORK = [
    "model=wgan", "split.k=1", "model.bias=zero", "model.hidden=128", "model.sampling=straight_through",
    "model.label_share=0",
]  # fmt: skip
# The first pass of a run, in which bins are bought, is no part of what is attacked.
_EPSILON = ["privacy.epsilon=3", "privacy.delta=1e-5", "data.bins_share=0"]
_LONG = [*_NETWORK, "model.steps=4000", "model.lr=2e-3"]
TWIN, SIGMA1, SIGMA5 = "WGAN, no privacy", "WGAN, sigma 1", "WGAN, sigma 5"
PRIVATE, MEASURED = "WGAN, epsilon 3", "measured, epsilon 3"
VARIANTS: dict[str, list[str]] = {
    TWIN: [*_LONG, "privacy=off"],
    SIGMA1: [*_LONG, "model.noise=1", "privacy.epsilon=null", "privacy.delta=1e-5"],
    SIGMA5: [*_LONG, "model.noise=5", "privacy.epsilon=null", "privacy.delta=1e-5"],
    PRIVATE: [*_NETWORK, *_EPSILON],
    MEASURED: ["model=measured", *_EPSILON],
}
# Lots of the long trainings hold so many records on average, whatever n is.
_LOT = 200
# Models of a row, by the number of records.
MODELS = {
    TWIN: {500: 3, 2_000: 3, 10_000: 3},
    SIGMA1: {500: 3, 2_000: 3, 10_000: 3},
    SIGMA5: {500: 3, 2_000: 3, 10_000: 3},
    PRIVATE: {500: 8, 2_000: 8, 10_000: 4},
    MEASURED: {500: 4, 2_000: 6, 10_000: 3},
}
SIZES = tuple(MODELS[TWIN])


def settings_of(name: str, n: int) -> list[str]:
    """Return the settings of a variant for n records."""
    return [*VARIANTS[name], *([f"model.rate={_LOT / n}"] if "model.steps=4000" in VARIANTS[name] else [])]


@dataclass(frozen=True)
class Pool:
    """People of both files of Adult in a random order, as many above 50K as below.

    Args:
        folder: the folder for files that are made.
    """

    folder: Path

    @cached_property
    def people(self) -> pd.DataFrame:
        known = public_set("adult").schema
        names = [column.name for column in known.columns]
        frames = [
            pd.read_csv(find_public_set("adult", held_out=held_out)[0], names=names, skipinitialspace=True, dtype=str,
                        keep_default_na=False)
            for held_out in (False, True)
        ]  # fmt: skip
        frame = pd.concat(frames, ignore_index=True).drop(columns="education")
        # The second file ends its labels with a point, and begins with a line that is no record.
        frame["income"] = frame["income"].str.rstrip(".")
        random = np.random.default_rng(0)
        few, many = (np.flatnonzero(frame["income"] == income) for income in (">50K", "<=50K"))
        chosen = np.concatenate([few, random.choice(many, len(few), replace=False)])
        return frame.iloc[random.permutation(chosen)].reset_index(drop=True)

    def settings(self, n: int, variant: list[str], seed: int) -> Settings:
        """Return the settings of `dpgen train` for n of these people."""
        table, schema = self.folder / "people.csv", self.folder / "people.schema.yaml"
        if not schema.is_file():
            self.people.to_csv(table, index=False)
            known = public_set("adult").schema
            columns = tuple(column for column in known.columns if column.name != "education")
            schema.write_text(schema_text(known.with_values(columns, header=True)), encoding="utf-8")
        data = ["data=table", f"data.path={table}", f"data.schema={schema}", f"data.n={n}"]
        return load_complete_settings([*data, *variant, f"seed={seed}"])

    def records(self, schema: TableSchema, rows: slice) -> Records:
        return Records(schema, read_table(self.people[rows], schema).encoded)


def attacked(pool: Pool, name: str, n: int, inside: np.ndarray, seed: int, points: int) -> dict[str, list]:
    """Train a model on some of 2 n people, and return the scores of all by each attack, after so many steps and at the end.

    Args:
        inside: the places of the people that it learns from, ascending.

    Returns:
        ``steps`` (points,), and by the name of an attack (points, 2 n) numbers of four digits; `model=measured` has one
        point.
    """
    asked = pool.settings(n, settings_of(name, n), seed)
    all_people, further = pool.records(asked.schema, slice(2 * n)), pool.records(asked.schema, slice(-REFERENCE, None))
    records = Records(asked.schema, all_people.encoded[inside])
    people, reference = (part.take(np.arange(len(part))) for part in (all_people, further))

    def by_release(mixture: Mixture) -> dict[str, Tensor]:
        made = Records(asked.schema, mixture.sample(SYNTHETIC, torch.Generator().manual_seed(seed)))
        synthetic = made.take(np.arange(SYNTHETIC))
        return {NEAREST: nearness(people, synthetic), DENSITY: density_ratio(people, synthetic, reference)}

    if asked.trains_network:

        def look(module: WGAN) -> dict[str, Tensor]:
            with torch.no_grad():
                scores = module.critic(people, (0, len(people)))
            return {CRITIC: scores} | by_release(module.mixture())

        looks = watch_module(asked, records, points, look)
    else:
        component = torch.zeros(len(records), dtype=torch.int64)
        looks = [[0, by_release(asked.recipe.measure(records, component, Account(asked.plan())))]]
    found: dict[str, list] = {"steps": [steps for steps, _ in looks]}
    for attack in looks[0][1]:
        found[attack] = [[float(f"{score:.4g}") for score in scores[attack].tolist()] for _, scores in looks]
    return found


def row(pool: Pool, folder: Path, name: str, n: int, points: int) -> dict[str, Any]:
    """Attack the models of a variant; their scores are kept in `folder`.

    Returns:
        ``models``, their number, and ``steps`` at each of the points; ``epsilon`` (None without privacy), the most
        ``accurate`` that any attack may be, and the ``most`` members that it may find at each of `WRONGLY`; by the name of
        an attack under ``accuracy`` what `accuracies` says at each of the points, under ``area`` and ``curve`` what `area`
        and `operating_points` say at the last one, and under ``beyond`` how many points of the curve are surely above what
        the plan allows.
    """
    models, plan = MODELS[name][n], pool.settings(n, settings_of(name, n), 0).plan()
    kept = Kept(folder / f"{name.replace(' ', '_').replace(',', '')}_{n}.json")

    def about(number: int) -> dict[str, Any]:
        return {"variant": settings_of(name, n), "n": n, "model": number, "points": points}

    def shadows(attack: str, point: int) -> Shadows:
        def score(inside: np.ndarray, number: int) -> Tensor:
            found = kept.get(about(number), lambda: attacked(pool, name, n, inside, number, points))
            return torch.tensor(found[attack][point], dtype=torch.float64)

        return train_shadows(score, 2 * n, models, seed=n)

    shadows(NEAREST, 0)
    one = kept.look(about(0))
    found: dict[str, Any] = {"models": models, "steps": one["steps"], "epsilon": plan.epsilon if plan.private else None}
    found |= {"accurate": most_accurate(plan), "most": most_rightly(plan, np.array(WRONGLY)).tolist()}
    found |= {"accuracy": {}, "area": {}, "curve": {}, "beyond": {}}
    for attack in [attack for attack in (CRITIC, NEAREST, DENSITY) if attack in one]:
        each = [shadows(attack, point) for point in range(len(one["steps"]))]
        inside = each[0].inside
        by_name = {attack: [given.scores for given in each], attack + SHADOWS: [likelihood_ratios(given) for given in each]}
        for called, scores in by_name.items():
            found["accuracy"][called] = [accuracies(part, inside) for part in scores]
            found["area"][called] = area(scores[-1], inside)
            curve = found["curve"][called] = operating_points(scores[-1], inside)
            allowed = most_rightly(plan, np.array(curve.pop("wrongly_high")))
            found["beyond"][called] = int((np.array(curve["low"]) > allowed).sum())
    return rounded(found)


def rounded(found: Any) -> Any:
    """Return a result with four decimals of each number, in which it is kept."""
    if isinstance(found, dict):
        return {name: rounded(value) for name, value in found.items()}
    if isinstance(found, list):
        return [rounded(value) for value in found]
    return round(found, 4) if isinstance(found, float) else found


def describe(name: str, n: int, found: dict[str, Any]) -> str:
    """Return the lines of a row."""
    epsilon = found["epsilon"]
    after = f", after {found['steps'][-1]:,} steps" if found["steps"][-1] else ""
    lines = [f"n = {n:,}, {name}, {found['models']} models{after}"]
    at = WRONGLY.index(0.01)
    if epsilon is not None:
        most = f"accuracy {found['accurate']:.3f} and {found['most'][at]:.3f} at 1 % of others"
        lines.append(f"    epsilon {epsilon:.3g} allows {most}; {sum(found['beyond'].values())} points are above it")
    for attack, points in found["accuracy"].items():
        last, whole, curve = points[-1], found["area"][attack], found["curve"][attack]
        lines.append(
            f"    {attack}: accuracy {last['accuracy']:.3f} ({last['low']:.3f} to {last['high']:.3f}), "
            f"AUC {whole['auc']:.3f} ({whole['low']:.3f} to {whole['high']:.3f}), "
            f"{curve['rightly'][at]:.3f} ({curve['low'][at]:.3f} to {curve['high'][at]:.3f}) at 1 % of others"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", nargs="+", type=int, choices=SIZES, default=list(SIZES))
    asked = parser.parse_args()
    scores = asked.folder / "dpgan_attack_scores"
    torch.set_num_threads(1)
    # Softmax of a network that is sure of itself has numbers that slow a processor down by three times.
    torch.set_flush_denormal(True)
    warnings.simplefilter("ignore", MostlyNoise)
    kept, pool, rows = Kept(asked.folder / "dpgan_attacks.json"), Pool(scores), {}
    for n in asked.sizes:
        points = POINTS if n == min(SIZES) else 1
        for name in [name for name in VARIANTS if n in MODELS[name]]:

            def attack(name: str = name, n: int = n, points: int = points) -> dict[str, Any]:
                scores.mkdir(parents=True, exist_ok=True)
                return row(pool, scores, name, n, points)

            about = {"variant": settings_of(name, n), "n": n, "models": MODELS[name][n], "points": points}
            rows[name, n] = kept.get(about, attack)
            print(describe(name, n, rows[name, n]), flush=True)
    draw_attacks(rows, asked.folder / "dpgan_attacks.png")
    draw_curves(rows, asked.folder / "dpgan_roc.png")


if __name__ == "__main__":
    main()
