"""Figures 5 and 6 of dp-GAN: membership inference over the training and by the number of records, on balanced Adult.

    python -m experiments.dpgan.attacks FOLDER [--sizes 500 2000 10000] [--seconds 900]

Both files of Adult make one pool: all people above 50K and as many random others. Of 2 n of them each model learns from a
random half of its own, and the attacker asks of each person whether they were in it. The models are a WGAN without privacy
that is trained until it overfits, the same network at epsilon 3, delta 1e-5, and `model=measured` at the same epsilon.
Numbers are in the bins that `dpgen train` chooses, which are coarser under privacy.

Attacks score people by the critic (which no release holds), by the nearest of 10,000 synthetic records, or by the ratio of
densities to 3,000 further people of the pool. Each is also made with shadow models: every model is attacked once, and the
others are its shadows. All models of a row are pooled; half of the people choose a threshold, and the others test it.
Intervals are exact, at 95 %. `--seconds` bounds the training of the models of a row. Results are kept in FOLDER.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from scipy.stats import rankdata
from torch import Tensor

from experiments.common.kept import Kept
from experiments.common.watched import watch_module
from experiments.dpgan.shadow_models import Shadows, likelihood_ratios, train_shadows
from lightning_dpgen.data.public_sets import find_public_set, public_set
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_file import schema_text
from lightning_dpgen.measure.recipe import MostlyNoise
from lightning_dpgen.metrics.membership import MembershipInference, density_ratio, nearness
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.plugins.wgan import WGAN
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.specs.settings import Settings, load_complete_settings

SYNTHETIC, REFERENCE, POINTS = 10_000, 3_000, 5
CRITIC, NEAREST, DENSITY = "critic", "nearest record", "densities"
SHADOWS = " by shadows"
_NETWORK = ["model=wgan", "split.k=1", "model.bias=zero", "model.hidden=128", "model.sampling=straight_through"]
_EPSILON = ["privacy.epsilon=3", "privacy.delta=1e-5"]
_LONG = ["model.steps=4000", "model.lr=2e-3"]
TWIN, LONG = "WGAN, no privacy", "WGAN, epsilon 3, as many steps"
PRIVATE, MEASURED = "WGAN, epsilon 3", "measured, epsilon 3"
VARIANTS: dict[str, list[str]] = {
    TWIN: [*_NETWORK, *_LONG, "privacy=off"],
    LONG: [*_NETWORK, *_LONG, *_EPSILON],
    PRIVATE: [*_NETWORK, *_EPSILON],
    MEASURED: ["model=measured", *_EPSILON],
}
# Lots of the long trainings hold so many records on average, whatever n is.
_LOT = 200
# Models of a row, by the number of records.
MODELS = {
    TWIN: {500: 5, 2_000: 3, 10_000: 3},
    LONG: {500: 3},
    PRIVATE: {500: 16, 2_000: 8, 10_000: 4},
    MEASURED: {500: 12, 2_000: 6, 10_000: 3},
}
SIZES = tuple(MODELS[TWIN])


def settings_of(name: str, n: int) -> list[str]:
    """Return the settings of a variant for n records."""
    return [*VARIANTS[name], *([f"model.rate={_LOT / n}"] if name in (TWIN, LONG) else [])]


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
    """Train a model on n of 2 n people, and return the scores of all by each attack, after so many steps and at the end.

    Args:
        inside: the places of the n people, ascending.

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


def accuracies(scores: Tensor, inside: Tensor) -> dict[str, float]:
    """Attack all models of a row; scores and who was inside are (models, 2 n)."""
    metric = MembershipInference()
    for one, own in zip(scores, inside, strict=True):
        # A threshold that serves all models.
        ranks = torch.from_numpy(rankdata(one.numpy()))
        metric.update(ranks[own], member=True)
        metric.update(ranks[~own], member=False)
    return {name: float(value) for name, value in metric.compute().items()}


def row(pool: Pool, kept: Kept, name: str, n: int, points: int, seconds: float) -> dict[str, list]:
    """Return ``steps`` and, by the name of an attack, what `accuracies` says at each of the points."""

    def about(number: int) -> dict:
        return {"variant": settings_of(name, n), "n": n, "model": number, "points": points}

    def of_model(inside: np.ndarray, number: int) -> dict[str, list]:
        return kept.get(about(number), lambda: attacked(pool, name, n, inside, number, points))

    def shadows(attack: str, point: int, models: int, seconds: float | None) -> Shadows:
        def score(inside: np.ndarray, number: int) -> Tensor:
            return torch.tensor(of_model(inside, number)[attack][point], dtype=torch.float64)

        return train_shadows(score, 2 * n, models, seed=n, seconds=seconds)

    models = len(shadows(NEAREST, 0, MODELS[name][n], seconds).scores)
    one = kept.look(about(0))
    found: dict[str, list] = {"steps": one["steps"], "models": [models]}
    for attack in [attack for attack in (CRITIC, NEAREST, DENSITY) if attack in one]:
        each = [shadows(attack, point, models, None) for point in range(len(one["steps"]))]
        found[attack] = [accuracies(given.scores, given.inside) for given in each]
        if models > 2:
            found[attack + SHADOWS] = [accuracies(likelihood_ratios(given), given.inside) for given in each]
    return found


def draw(rows: dict[tuple[str, int], dict[str, list]], path: Path) -> None:
    """Draw Figure 5, of the smallest number of records, beside Figure 6; of each row the attacks by shadow models."""
    sizes = sorted({n for _, n in rows})
    figure, panels = plt.subplots(1, 4, figsize=(15, 4.2), sharey=True)
    titles = (
        f"critic, over training, n = {sizes[0]:,}", f"release, over training, n = {sizes[0]:,}",
        "critic, by number of records", "release, by number of records",
    )  # fmt: skip
    for panel, title in zip(panels, titles, strict=True):
        panel.axhline(0.5, color="#777", linewidth=0.8, linestyle=":")
        panel.set_title(title, fontsize=11)
    for panel in panels[:2]:
        panel.set(xlabel="% of the training", xlim=(0, 105))
    for panel in panels[2:]:
        panel.set(xlabel="records learned from", xscale="log", xticks=sizes, xticklabels=[f"{n:,}" for n in sizes])
        panel.minorticks_off()
    for name, colour in zip(VARIANTS, ("#b3261e", "#e07b39", "#1f5fa8", "#2e7d32"), strict=True):
        for place, attack in enumerate((CRITIC + SHADOWS, DENSITY + SHADOWS)):
            over = rows.get((name, sizes[0]), {})
            if attack in over and len(over["steps"]) > 1:
                parts = 100.0 * np.array(over["steps"]) / over["steps"][-1]
                _plot(panels[place], parts, over[attack], name, colour)
            by_size = {n: rows[name, n][attack][-1] for n in sizes if attack in rows.get((name, n), {})}
            if by_size:
                _plot(panels[2 + place], list(by_size), list(by_size.values()), name, colour)
    panels[0].set_ylabel("accuracy of the attack")
    named = dict(zip(*reversed(panels[3].get_legend_handles_labels()), strict=True))
    figure.legend(named.values(), named.keys(), loc="lower center", ncols=len(named), frameon=False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(path, dpi=80)
    plt.close(figure)


def _plot(panel: Axes, x: Sequence[float], points: list[dict[str, float]], name: str, colour: str) -> None:
    middle, low, high = np.array([[point["accuracy"], point["low"], point["high"]] for point in points]).T
    around = (middle - low, high - middle)
    panel.errorbar(x, middle, around, color=colour, label=name, marker="o", markersize=4, capsize=3, linewidth=1.4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", nargs="+", type=int, choices=SIZES, default=list(SIZES))
    parser.add_argument("--seconds", type=float, default=900.0)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    # Softmax of a network that is sure of itself has numbers that slow a processor down by three times.
    torch.set_flush_denormal(True)
    warnings.simplefilter("ignore", MostlyNoise)
    pool, rows = Pool(asked.folder), {}
    for n in asked.sizes:
        for name in [name for name in VARIANTS if n in MODELS[name]]:
            kept = Kept(asked.folder / f"{name.replace(' ', '_').replace(',', '')}_{n}.json")
            rows[name, n] = found = row(pool, kept, name, n, POINTS if n == min(asked.sizes) else 1, asked.seconds)
            after = f", after {found['steps'][-1]:,} steps" if found["steps"][-1] else ""
            print(f"n = {n:,}, {name}, {found['models'][0]} models{after}")
            for attack, points in found.items():
                if attack not in ("steps", "models"):
                    last = points[-1]
                    print(
                        f"    {attack}: accuracy {last['accuracy']:.3f} ({last['low']:.3f} to {last['high']:.3f}), "
                        f"AUC {last['auc']:.3f}",
                        flush=True,
                    )
    draw(rows, asked.folder / "attacks.png")


if __name__ == "__main__":
    main()
