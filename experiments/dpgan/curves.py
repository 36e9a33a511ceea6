"""Figures 2, 4 and 7 of dp-GAN: scores over training, with a decaying bound, a falling learning rate, neither, no noise.

    python -m experiments.dpgan.curves FOLDER distance [--runs 5]      Figure 2: six Gaussians, epsilon 8
    python -m experiments.dpgan.curves FOLDER noise [--runs 5]         Figure 4: Adult, balanced, several noises
    python -m experiments.dpgan.curves FOLDER decay [--runs 10]        Table 1: Adult, balanced, epsilon 3
    python -m experiments.dpgan.curves FOLDER mushroom [--runs 10]     Figure 7: Mushroom, sigma 7

Training is the paper's form: one component, no means, a critic by SGD, generators by Adam. The score is taken at eight
points of each training: the sliced Wasserstein distance of 5,000 points from fresh real ones, measured from the data and
not from the critic's loss, or the accuracy on real test rows of a forest that is trained on generated ones. Variants of one
run have the same records, so their differences are paired; a 95 % interval of the mean difference at the end follows
Student's t. Results are kept in FOLDER, and a picture is drawn there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.stats import t as student
from sklearn.ensemble import RandomForestClassifier

from experiments.common.kept import Kept
from experiments.common.watched import watch
from experiments.dpgan import gaussians as six_gaussians
from experiments.dpgan.tables import PAPER, TWIN
from experiments.league.classifiers import tables
from experiments.league.tasks import AdultBalanced, Mushroom, Tables
from lightning_dpgen.data.simulated.points import draw_six_gaussians
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.metrics.marginals import WassersteinDistance
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.release.drawing.release import Release

POINTS = 8
# The ratio of the last bound to the first, or of the last learning rate to the first.
RATIO = 0.3
# The paper's form for tables, with a bound that may decay, in batches of 256 of Adult, balanced.
TABLE = [PAPER, "clipping=decay", "model.rate=0.016325"]


def bound_forms(settings: list[str], budget: list[str], twin: list[str]) -> dict[str, tuple[list[str], float | None]]:
    """Return four variants: their settings, and the ratio by which the learning rate falls."""
    fixed = [*settings, "clipping.factor=1"]
    return {
        "no privacy": ([*fixed, *twin], None),
        "fixed bound": ([*fixed, *budget], None),
        "falling rate": ([*fixed, *budget], RATIO),
        "decay": ([*settings, "clipping.factor=null", f"clipping.ratio={RATIO:g}", *budget], None),
    }


def distance_from_points(seed: int) -> Callable[[Mixture], float]:
    """Return the score of Figure 2: the sliced distance of generated from fresh real points."""
    real = torch.from_numpy(draw_six_gaussians(5000, draw=9_000 + seed))

    def score(mixture: Mixture) -> float:
        metric = WassersteinDistance(2)
        metric.update(real, real=True)
        made = Release(mixture).sample(5000, seed=seed)[["x", "y"]].to_numpy(np.float64)
        metric.update(torch.from_numpy(made), real=False)
        return float(metric.compute()["sliced"])

    return score


def accuracy_of_forest(task: Tables, seed: int) -> Callable[[Mixture], float]:
    """Return the score of tables: a forest that is trained on generated rows, on real test rows."""
    test = tables(task.data, 3.0, seed)[1]
    label = test.schema.layout.label
    asked, answers = np.delete(test.encoded.codes, label, axis=1), test.encoded.codes[:, label]

    def score(mixture: Mixture) -> float:
        rows = read_table(Release(mixture).sample(task.n, seed=seed), test.schema).encoded.codes
        made = rows[:, label]
        if (made == made[0]).all():
            return float((answers == made[0]).mean())
        return (
            RandomForestClassifier(100, random_state=seed).fit(np.delete(rows, label, axis=1), made).score(asked, answers)
        )

    return score


def curve(settings: list[str], falling: float | None, score: Callable[[Mixture], float]) -> list[list[float]]:
    """Return (steps, score) at the points of one training."""
    return watch(settings, POINTS, score, falling=falling)


def difference(ends: np.ndarray, others: np.ndarray) -> str:
    """Return the mean of paired differences with its 95 % interval (Student's t)."""
    each = ends - others
    half = student.ppf(0.975, len(each) - 1) * each.std(ddof=1) / np.sqrt(len(each)) if len(each) > 1 else np.inf
    return f"{each.mean():+.4f} ({each.mean() - half:+.4f} to {each.mean() + half:+.4f})"


def figures(folder: Path) -> dict[str, Any]:
    """Return for each figure: its data and title, variants, settings of a run, and score of a run."""
    adult, mushroom = AdultBalanced(folder), Mushroom(folder)
    points = [
        *six_gaussians.SIZES,
        *six_gaussians.SGD,
        "split.k=1",
        "model.bias=zero",
        "model.steps=5000",
        "clipping=decay",
    ]
    fixed = [*TABLE, "clipping.factor=1"]
    noises = {"no privacy": ([*fixed, *TWIN], None)}
    for noise in (1, 2, 4, 8):
        noises[f"sigma {noise}"] = ([*fixed, f"model.noise={noise}", "privacy.epsilon=null"], None)
    return {
        "distance": (
            "six Gaussians, epsilon 8: sliced Wasserstein distance",
            bound_forms(points, ["privacy.epsilon=8"], ["privacy=off"]),
            lambda run: ["data=six_gaussians", f"data.draw={run}"],
            distance_from_points,
        ),
        "noise": (
            "Adult, balanced: accuracy of a forest",
            noises,
            adult.settings,
            lambda run: accuracy_of_forest(adult, run),
        ),
        "decay": (
            "Adult, balanced, epsilon 3: accuracy of a forest",
            bound_forms(TABLE, ["privacy.epsilon=3"], TWIN),
            adult.settings,
            lambda run: accuracy_of_forest(adult, run),
        ),
        "mushroom": (
            "Mushroom, sigma 7: accuracy of a forest",
            bound_forms([*TABLE, "model.rate=0.05"], ["model.noise=7", "privacy.epsilon=null"], TWIN),
            mushroom.settings,
            lambda run: accuracy_of_forest(mushroom, run),
        ),
    }


def draw(title: str, curves: dict[str, np.ndarray], path: Path) -> None:
    """Draw means of runs, with their spread as a band."""
    figure, axes = plt.subplots(figsize=(6.0, 3.8))
    for name, found in curves.items():
        steps, values = found[0, :, 0], found[:, :, 1]
        mean, spread = values.mean(axis=0), values.std(axis=0)
        (line,) = axes.plot(steps, mean, label=name)
        axes.fill_between(steps, mean - spread, mean + spread, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set(title=title, xlabel="steps of the critic")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("figure", choices=("distance", "noise", "decay", "mushroom"))
    parser.add_argument("--runs", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.folder.mkdir(parents=True, exist_ok=True)
    kept = Kept(asked.folder / f"{asked.figure}.json")
    title, variants, settings_of, score_of = figures(asked.folder)[asked.figure]
    curves = {}
    for name, (settings, falling) in variants.items():
        found = []
        for run in range(asked.runs):

            def trained(settings=settings, falling=falling, run=run) -> list[list[float]]:
                words = [*settings_of(run), f"seed={run}", "privacy.delta=1e-5", *settings]
                if "privacy=off" in settings:
                    words.remove("privacy.delta=1e-5")
                return curve(words, falling, score_of(run))

            found.append(kept.get({"settings": settings, "falling": falling, "run": run}, trained))
        curves[name] = np.array(found)
        ends = curves[name][:, -1, 1]
        print(f"{name}: {ends.mean():.4f} ({ends.std():.4f}) at the end; " + " ".join(
            f"{value:.3f}" for value in curves[name][:, :, 1].mean(axis=0)
        ), flush=True)  # fmt: skip
    if "decay" in curves:
        for other in ("fixed bound", "falling rate"):
            print(f"decay less {other}: {difference(curves['decay'][:, -1, 1], curves[other][:, -1, 1])}")
    draw(title, curves, asked.folder / f"dpgan_{asked.figure}.png")


if __name__ == "__main__":
    main()
