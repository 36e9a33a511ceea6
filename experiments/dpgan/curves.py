"""Figures 2, 4 and 7 of dp-GAN: scores over training, with a decaying bound, a falling learning rate, neither, no noise.

    python -m experiments.dpgan.curves FOLDER distance [--runs 5]      Figure 2: six Gaussians, epsilon 8
    python -m experiments.dpgan.curves FOLDER noise [--runs 5]         Figure 4: Adult, balanced, several noises
    python -m experiments.dpgan.curves FOLDER decay [--runs 10]        Table 1: Adult, balanced, epsilon 3
    python -m experiments.dpgan.curves FOLDER mushroom [--runs 10]     Figure 7: Mushroom, sigma 7
    python -m experiments.dpgan.curves FOLDER sigma7 [--runs 1]        Table 1 with the noise and networks of the paper

Training is the paper's form: one component, no means, a critic by SGD, generators by Adam. The score is taken at eight
points of each training: the sliced Wasserstein distance of 5,000 points from fresh real ones, measured from the data and
not from the critic's loss, or the accuracy on real test rows of a forest that is trained on generated ones. Variants of one
run have the same records, so their differences are paired; a 95 % interval of the mean difference at the end follows
Student's t. Results are kept in FOLDER, and a picture is drawn there. A training that was stopped is told and drawn up to
where it was, with its steps of those that were planned and what they have cost.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.stats import t as student
from sklearn.ensemble import RandomForestClassifier

from experiments.common.arguments import read_count
from experiments.common.kept import Kept
from experiments.common.pictures import save_picture
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
from lightning_dpgen.specs.settings import load_complete_settings

POINTS, MANY_POINTS = 8, 40
# Runs of each figure, all with seeds of their own.
RUNS = {"distance": 5, "noise": 5, "decay": 10, "mushroom": 10, "sigma7": 1}
# The ratio of the last bound to the first, or of the last learning rate to the first.
RATIO = 0.3

# The paper's form for tables, with a bound that may decay, in batches of 256 of Adult, balanced.
TABLE = [PAPER, "clipping=decay", "model.rate=0.016325"]
# All of the picture in the paper's repository, in full, so that a result which is kept is that of these settings. Its decay
# of 1e-2 comes with each pass over the records.
SIGMA7 = [
    "model=wgan", "clipping=decay", "split.k=1", "data.bins_share=0", "model.bias=zero", "model.latent=64",
    "model.made=256", "model.critic_steps=5", "model.optimizer=sgd", "clipping.c=0.2", "model.rate=0.016325",
    "model.hidden=512", "model.layers=3", "model.lr=5e-3", "model.generator_lr=1e-4", "model.noise=7",
    "clipping.factor=0.99", "clipping.every=305", "privacy.epsilon=3",
]  # fmt: skip


@dataclass(frozen=True)
class Curves:
    """The trainings of one figure.

    Args:
        title: that of the picture.
        variants: settings, and the ratio by which the learning rate falls, by name.
        data: the settings for the data of a run.
        score: the score of a run.
        points: looks at each training.
        folder: where trainings that may be stopped keep a checkpoint at each look; None for short ones.
    """

    title: str
    variants: dict[str, tuple[list[str], float | None]]
    data: Callable[[int], list[str]]
    score: Callable[[int], Callable[[Mixture], float]]
    points: int
    folder: Path | None = None


def bound_forms(settings: list[str], budget: list[str], twin: list[str]) -> dict[str, tuple[list[str], float | None]]:
    """Return four variants: their settings, and the ratio by which the learning rate falls."""
    fixed = [*settings, "clipping.factor=1"]
    return {
        "no privacy": ([*fixed, *twin], None),
        "fixed bound": ([*fixed, *budget], None),
        "falling rate": ([*fixed, *budget], RATIO),
        "decay": ([*settings, f"clipping.ratio={RATIO:g}", *budget], None),
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


def difference(ends: np.ndarray, others: np.ndarray) -> str:
    """Return the mean of paired differences with its 95 % interval (Student's t)."""
    each = ends - others
    half = student.ppf(0.975, len(each) - 1) * each.std(ddof=1) / np.sqrt(len(each)) if len(each) > 1 else np.inf
    return f"{each.mean():+.4f} ({each.mean() - half:+.4f} to {each.mean() + half:+.4f})"


def curves_of(figure: str, folder: Path) -> Curves:
    """Return the trainings of a figure; files that are made stand in the folder."""
    if figure == "distance":
        points = [
            *six_gaussians.SIZES, *six_gaussians.SGD, "split.k=1", "model.bias=zero", "model.steps=5000", "clipping=decay",
        ]  # fmt: skip
        return Curves(
            "six Gaussians, epsilon 8: sliced Wasserstein distance",
            bound_forms(points, ["privacy.epsilon=8"], ["privacy=off"]),
            lambda run: ["data=six_gaussians", f"data.draw={run}"],
            distance_from_points,
            POINTS,
        )
    if figure == "mushroom":
        task: Tables = Mushroom(folder)
        title = "Mushroom, sigma 7: accuracy of a forest"
        variants = bound_forms([*TABLE, "model.rate=0.05"], ["model.noise=7", "privacy.epsilon=null"], TWIN)
    else:
        task, title = AdultBalanced(folder), "Adult, balanced: accuracy of a forest"
        if figure == "decay":
            title = "Adult, balanced, epsilon 3: accuracy of a forest"
            variants = bound_forms(TABLE, ["privacy.epsilon=3"], TWIN)
        elif figure == "noise":
            fixed = [*TABLE, "clipping.factor=1"]
            variants = {"no privacy": ([*fixed, *TWIN], None)}
            for noise in (1, 2, 4, 8):
                variants[f"sigma {noise}"] = ([*fixed, f"model.noise={noise}", "privacy.epsilon=null"], None)
        else:
            title = "Adult, balanced, sigma 7, three layers of 512: accuracy of a forest"
            variants = {"decay, to epsilon 3": (SIGMA7, None)}

    def score(run: int) -> Callable[[Mixture], float]:
        return accuracy_of_forest(task, run)

    if figure == "sigma7":
        return Curves(title, variants, task.settings, score, MANY_POINTS, folder / "dpgan_sigma7")
    return Curves(title, variants, task.settings, score, POINTS)


def words_of(figure: Curves, name: str, run: int) -> list[str]:
    """Return the settings of `dpgen train` for a training of a figure."""
    settings = figure.variants[name][0]
    delta = [] if "privacy=off" in settings else ["privacy.delta=1e-5"]
    return [*figure.data(run), f"seed={run}", *delta, *settings]


def spent_at(figure: Curves, name: str, run: int, steps: int) -> dict[str, float]:
    """Return how many steps were planned, and epsilon after so many of them."""
    plan = load_complete_settings(words_of(figure, name, run)).plan()
    made = [replace(stage, count=steps) if stage.name == "training" else stage for stage in plan.stages]
    return {"planned": plan.stage("training").count, "epsilon": round(replace(plan, stages=tuple(made)).epsilon, 3)}


def trained(figure: Curves, kept: Kept, name: str, run: int, *, again: bool) -> np.ndarray:
    """Return (steps, score) at the points of one training (points, 2), which is kept.

    Args:
        again: whether one that was stopped goes on; None of its points is lost.
    """
    settings, falling = figure.variants[name]
    key = {"settings": settings, "falling": falling, "run": run}
    folder = None if figure.folder is None else figure.folder / f"{name.replace(' ', '_').replace(',', '')}_{run}"

    def tell(found: list) -> None:
        kept.get(key, lambda: found, again=True)

    def compute() -> list:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        words, told = words_of(figure, name, run), tell if folder is not None else None
        return watch(words, figure.points, figure.score(run), falling, folder, told)

    return np.array(kept.get(key, compute, again=again and folder is not None))


def draw(title: str, curves: dict[str, np.ndarray], path: Path) -> None:
    """Draw means of runs, with their spread as a band."""
    figure, axes = plt.subplots(figsize=(6.0, 3.8))
    for name, found in curves.items():
        steps, values = found[0, :, 0], found[:, :, 1]
        mean, spread = values.mean(axis=0), values.std(axis=0)
        (line,) = axes.plot(steps, mean, label=name, marker="o", markersize=3)
        axes.fill_between(steps, mean - spread, mean + spread, color=line.get_color(), alpha=0.15, linewidth=0)
    # Differences of less than a hundredth do not fill a picture.
    low, high = axes.get_ylim()
    half = max(0.01, (high - low) / 2.0)
    axes.set(xlabel="steps of the critic", ylim=((low + high) / 2.0 - half, (low + high) / 2.0 + half))
    axes.set_title(title, fontsize=10)
    axes.legend(frameon=False)
    figure.tight_layout()
    save_picture(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("figure", choices=RUNS)
    parser.add_argument("--runs", type=read_count)
    parser.add_argument("--go-on", action="store_true", help="sigma7: train on from the last checkpoint in FOLDER")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    # Softmax of a network that is sure of itself has numbers that slow a processor down by three times.
    torch.set_flush_denormal(True)
    asked.folder.mkdir(parents=True, exist_ok=True)
    kept = Kept(asked.folder / f"dpgan_{asked.figure}.json")
    figure, runs = curves_of(asked.figure, asked.folder), asked.runs or RUNS[asked.figure]
    # Run by run, so that variants of a command that was stopped can be compared.
    found = [{name: trained(figure, kept, name, run, again=asked.go_on) for name in figure.variants} for run in range(runs)]
    curves, stops = {}, {}
    for name in figure.variants:
        points = min(len(one[name]) for one in found)
        over = curves[name] = np.array([one[name][:points] for one in found])
        if points < figure.points:
            run = next(run for run, one in enumerate(found) if len(one[name]) == points)
            steps = int(over[run, -1, 0])
            about = {"settings": figure.variants[name][0], "run": run, "stopped": steps}
            spent = kept.get(about, partial(spent_at, figure, name, run, steps))
            stops[name] = f"stopped at {steps:,} of {spent['planned']:,} steps, epsilon {spent['epsilon']:.2f}"
        ends, means = over[:, -1, 1], over[:, :, 1].mean(axis=0)
        shown = " ".join(f"{value:.3f}" for value in means)
        where = f"{stops[name]}, in" if name in stops else "at the end of"
        print(f"{name}: {ends.mean():.4f} ({ends.std():.4f}) {where} {runs} runs; {shown}", flush=True)
    if "decay" in curves:
        for other in ("fixed bound", "falling rate"):
            print(f"decay less {other}: {difference(curves['decay'][:, -1, 1], curves[other][:, -1, 1])}")
    curves = {f"{name},\n{stops[name]}" if name in stops else name: over for name, over in curves.items()}
    draw(figure.title, curves, asked.folder / f"dpgan_{asked.figure}.png")


if __name__ == "__main__":
    main()
