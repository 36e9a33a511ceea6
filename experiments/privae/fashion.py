"""Figure 1 of PriVAE: sparsity of codes, likelihood, and distance of codes from a sparse prior, of Fashion-MNIST.

    python -m experiments.privae.fashion FOLDER [--runs 10] [--epsilons 1 2 4 8] [--only VARIANT ...] [--kept]
    python -m experiments.privae.fashion FOLDER --rates .03 .1 .3 1        scores of training pictures by learning rate
    python -m experiments.privae.fashion FOLDER --classify [--runs 3]      a forest on codes beside one on pictures

Three numbers of the 10,000 test pictures: Hoyer sparsity of their mean codes, log likelihood by importance sampling (50
draws, 500 pictures; a density in nats), and squared discrepancy of 1,000 codes from draws of the prior (Cauchy kernels). A
fourth one is how far the weights moved in training. Faithful settings are conf/experiment/privae_fashion.yaml with the
dense pair in place of the convolutional one, which has one budget and is asked for by name. A tuned rate differs from them
in the learning rate alone. The best forms are privae_fashion_best.yaml, and the twins are the paper's own: Adam 5e-4, lots
of 256. Batch and micro aggregation are in aggregations.py. A classifier learns from codes of real training pictures, by an
encoder that never saw a label. Results are kept in FOLDER, a cell a run, and a picture is drawn there; with `--kept` of all
runs that are kept, and nothing is trained.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.stats import binomtest
from sklearn.ensemble import RandomForestClassifier

from experiments.common.arguments import read_count, read_positive
from experiments.common.kept import Kept
from experiments.common.training import train
from experiments.privae.aggregations import WholeLotNetwork
from experiments.privae.code_metrics import CodeDiscrepancy, HoyerSparsity, ImportanceLikelihood, log_weights
from lightning_dpgen import load_release
from lightning_dpgen.data.public_sets import load_public_set
from lightning_dpgen.models.divergences import make_kernel
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.sampling.lots import Lot

EPSILONS = (1.0, 2.0, 4.0, 8.0)
COLUMNS = ("Hoyer sparsity", "log likelihood", "discrepancy", "moved")
DRAWS, LIKELY, COMPARED = 50, 500, 1000
# The seed of trainings by which a rate is chosen.
CHOICE = 100
_CONV = ["experiment=privae_fashion"]
_FAITHFUL = [*_CONV, "model.network=dense", "model.hidden=400", "model.filters=null", "model.centred=false"]
_BEST = ["experiment=privae_fashion_best"]
# Chosen with `--rates`, by the likelihood of training pictures.
RATE = 10.0
_TUNED = [*_FAITHFUL, f"model.lr={RATE:g}"]
_TERMS = {
    "experiment=privae_fashion": ["divergence", "divergence_release", "divergence_weight", "kernel", "groups", "group_c"],
    "experiment=privae_fashion_best": [
        "divergence", "divergence_release", "divergence_weight", "divergence_share", "divergence_averaging", "kernel",
    ],
}  # fmt: skip
_OFF = ["privacy=off", "privacy.epsilon=null", "privacy.delta=null"]
# The paper's own form of both, without privacy.
_TWIN = ["model.optimizer=adam", "model.lr=5e-4", *_OFF]


def without(settings: list[str]) -> list[str]:
    """Return the settings of a form without its term."""
    return [*settings, *(f"model.{name}=null" for name in _TERMS[settings[0]])]


def whole_lot(aggregation: str) -> list[str]:
    """Return the settings of an aggregation that bounds the gradient of the lot as a whole, with the paper's C."""
    return [
        "data=fashion_mnist", "data.classes=0", "model=own", "model.target=experiments.privae.aggregations.WholeLotVAE",
        "model.bias=zero", "model.lr=1e-3", "model.rate=0.0042666667", "model.steps=2350", "clipping=fixed",
        "clipping.c=0.0002", "split.k=1", "privacy.delta=1e-5",
        f"+model.options={{aggregation: {aggregation}, weight: 100.0, hidden: 400, latent: 50, prior_scale: 0.05, "
        "likelihood: laplace, scale: 0.1, optimizer: sgd}",
    ]  # fmt: skip


PRIVATE = {
    "PriVAE + MMD": _FAITHFUL,
    "PriVAE": without(_FAITHFUL),
    "batch aggregation": whole_lot("batch"),
    "micro aggregation": whole_lot("micro"),
    "convolutional + MMD": _CONV,
    "convolutional": without(_CONV),
    "tuned rate + MMD": _TUNED,
    "tuned rate": without(_TUNED),
    "best + MMD": _BEST,
    "best": without(_BEST),
    # The noise of the term, and nothing of its gradient.
    "tuned rate, noise of MMD": [*_TUNED, "model.divergence_weight=1e-6"],
}
TWINS = {
    "VAE + MMD": [*_FAITHFUL, *_TWIN],
    "VAE": [*without(_FAITHFUL), *_TWIN],
    "best + MMD, not private": [*_BEST, *_OFF],
    "best, not private": [*without(_BEST), *_OFF],
}
# Those that are run at epsilon 4 alone.
AT_FOUR = ("convolutional + MMD", "convolutional", "tuned rate, noise of MMD")
# The rows of the picture, and its columns.
ROWS = {
    "The paper's method (runs of a point)": [
        "PriVAE + MMD", "PriVAE", "micro aggregation", "batch aggregation", "convolutional + MMD", "convolutional",
        "VAE + MMD", "VAE",
    ],
    "The same at a chosen learning rate, and the best forms": [
        "tuned rate + MMD", "tuned rate", "tuned rate, noise of MMD", "best + MMD", "best", "best + MMD, not private",
        "best, not private",
        "VAE + MMD", "VAE",
    ],
}  # fmt: skip
DRAWN = COLUMNS[:3]
# Codes for a classifier: a normal prior, and few long steps.
CODES = "normal prior"
_CODES = [
    "data=fashion_mnist", "data.classes=0", "model=vae", "model.hidden=200", "model.latent=32", "model.lr=1e-3",
    "model.rate=0.0333333", "model.steps=400", "model.averaging=0.98", "clipping=fixed", "split.k=1", "privacy.delta=1e-5",
]  # fmt: skip


def cell(name: str, epsilon: float | None, run: int) -> dict[str, Any]:
    """Return the key of a kept result."""
    return {"variant": name, "epsilon": epsilon, "run": run}


def runs_of(kept: Kept, name: str, epsilon: float | None) -> int:
    """Return how many runs of a point are kept."""
    return next(run for run in itertools.count() if kept.look(cell(name, epsilon, run)) is None)


def names_of(kept: Kept) -> list[str]:
    """Return the variants that are drawn; the convolutional pair takes long, and is one of them once it is kept."""
    return [name for name in (*PRIVATE, *TWINS) if not name.startswith("convolutional") or runs_of(kept, name, 4.0)]


def epsilons_of(name: str, asked: Sequence[float]) -> Sequence[float | None]:
    """Return the budgets at which a variant is run."""
    if name in TWINS:
        return [None]
    return [epsilon for epsilon in asked if epsilon == 4.0 or name not in AT_FOUR]


def pictures(held_out: bool) -> tuple[torch.Tensor, np.ndarray]:
    """Return pictures (n, 784), and the classes that no encoder sees."""
    encoded = load_public_set("fashion_mnist", held_out=held_out).encoded
    return torch.from_numpy(encoded.units.astype(np.float32) / 255.0), encoded.codes[:, 0]


@torch.no_grad()
def codes_of(network: StackedVAE, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean codes and draws of codes (n, latent)."""
    parts = [network.encode(part, (0, len(part))) for part in x.split(2000)]
    mean, log_variance = (torch.cat(each) for each in zip(*parts, strict=True))
    noise = torch.randn(mean.shape, generator=torch.Generator().manual_seed(0))
    return mean, mean + torch.exp(0.5 * log_variance) * noise


@torch.no_grad()
def scores(network: StackedVAE, x: torch.Tensor) -> list[float]:
    """Return the columns for pictures, all but the last one."""
    latent, generator = network.latent, torch.Generator().manual_seed(1)
    mean, z = codes_of(network, x)
    sparsity = HoyerSparsity(latent)
    sparsity.update(mean)
    likelihood = ImportanceLikelihood()
    for part in x[:LIKELY].split(200):
        noise = torch.randn(len(part), DRAWS * latent, generator=generator)
        likelihood.update(log_weights(network, Lot(part, (0, len(part))), noise))
    discrepancy = CodeDiscrepancy(make_kernel("cauchy", latent), latent)
    discrepancy.update(z[:COMPARED], prior=False)
    prior = network.prior.draw(torch.randn(COMPARED, network.prior.noise, generator=generator))
    discrepancy.update(prior, prior=True)
    return [float(metric.compute()) for metric in (sparsity, likelihood, discrepancy)]


@torch.no_grad()
def moved(network: StackedVAE, run: int) -> float:
    """Return how far the weights, biases aside, are from where they began, over the length that they had."""
    generator = torch.Generator().manual_seed(run)
    first = StackedVAE(network.schema, 1, generator=generator, **network.settings)
    began, ended = (torch.cat([p.flatten() for p in of.parameters() if p.dim() > 2]) for of in (first, network))
    return float((ended - began).norm() / began.norm())


def trained(folder: Path, name: str, epsilon: float | None, run: int, more: Sequence[str] = ()) -> StackedVAE:
    """Return the network of a variant, trained unless it was before; with more settings under a name of their own."""
    settings = [*(TWINS if epsilon is None else {**PRIVATE, CODES: _CODES})[name], f"seed={run}", "rows=100", *more]
    if epsilon is not None:
        settings.append(f"privacy.epsilon={epsilon:g}")
    words = re.sub(r"[^\w.]+", "_", " ".join([name, f"{epsilon or 'off'}", f"{run}", *more]))
    release = train(folder / words, settings) / "release"
    return load_release(release, networks=[WholeLotNetwork]).mixture.network


def choose_rate(folder: Path, rates: Sequence[float], kept: Kept) -> None:
    """Print the columns for training pictures, by a seed of their own, at each learning rate of the paper's SGD."""
    x, name = pictures(False)[0][:10_000], "PriVAE + MMD"
    for rate in rates:

        def score(rate: float = rate) -> list[float]:
            return scores(trained(folder, name, 4.0, CHOICE, [f"model.lr={rate:g}"]), x)

        found = kept.get({"variant": name, "rate": rate, "run": CHOICE}, score)
        print(f"{name}, rate {rate:g}: {described(np.array([found]))}", flush=True)


def classify(folder: Path, runs: int, kept: Kept) -> None:
    """Print the accuracy of forests on codes and on pictures."""
    (x, labels), (held_out, answers) = pictures(False), pictures(True)

    def accuracy(rows: torch.Tensor, asked: torch.Tensor, run: int) -> float:
        forest = RandomForestClassifier(100, n_jobs=1, random_state=run).fit(rows[:20_000].numpy(), labels[:20_000])
        return float(forest.score(asked.numpy(), answers))

    real = kept.get({"forest": "pictures"}, lambda: accuracy(x, held_out, 0))
    print(f"forest on 20,000 pictures: {real:.4f}")
    for name, epsilon in ((CODES, 4.0), ("best + MMD", 4.0), ("best", 4.0), ("VAE + MMD", None)):

        def score(run: int, name: str = name, epsilon: float | None = epsilon) -> float:
            network = trained(folder, name, epsilon, run)
            return accuracy(codes_of(network, x[:20_000])[0], codes_of(network, held_out)[0], run)

        rows = [
            kept.get({"forest": name, "epsilon": epsilon, "run": run}, lambda run=run, score=score: score(run))
            for run in range(runs)
        ]
        found = np.array(rows)
        print(f"forest on codes, {name}, {epsilon or 'no privacy'}: {found.mean():.4f} ({found.std():.4f}), "
              f"{found.mean() / real:.3f} of that", flush=True)  # fmt: skip


def described(rows: np.ndarray) -> str:
    """Write the mean and spread of each column of rows (runs, columns)."""
    means = zip(COLUMNS, rows.mean(axis=0), rows.std(axis=0), strict=False)
    return ", ".join(f"{column} {mean:.4f} ({spread:.4f})" for column, mean, spread in means)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=read_count, default=1)
    parser.add_argument("--kept", action="store_true", help="train nothing: draw the runs that are kept, how many they are")
    parser.add_argument("--epsilons", type=read_positive, nargs="+", default=EPSILONS)
    parser.add_argument("--only", nargs="+", choices=[*PRIVATE, *TWINS])
    parser.add_argument("--rates", type=read_positive, nargs="+")
    parser.add_argument("--classify", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.folder.mkdir(parents=True, exist_ok=True)
    kept = Kept(asked.folder / "privae_fashion.json")
    if asked.kept:
        kept.check_some()
    if asked.classify:
        classify(asked.folder, asked.runs, kept)
        return
    if asked.rates:
        choose_rate(asked.folder, asked.rates, kept)
        return
    found: dict[str, dict[float | None, np.ndarray]] = {}
    for name in asked.only or names_of(kept):
        for epsilon in epsilons_of(name, asked.epsilons):

            def score(run: int, name: str = name, epsilon: float | None = epsilon) -> list[float]:
                network = trained(asked.folder, name, epsilon, run)
                return [*scores(network, pictures(True)[0]), moved(network, run)]

            rows = np.array([
                kept.get(cell(name, epsilon, run), lambda run=run, score=score: score(run))
                for run in range(runs_of(kept, name, epsilon) if asked.kept else asked.runs)
            ])  # fmt: skip
            if not len(rows):
                continue
            found.setdefault(name, {})[epsilon] = rows
            print(f"{name}, epsilon {epsilon or 'off'}, runs {len(rows)}: {described(rows)}", flush=True)
    for name in ("PriVAE", "convolutional", "tuned rate", "best"):
        both = found.get(name, {}), found.get(f"{name} + MMD", {})
        for epsilon in sorted(both[0].keys() & both[1].keys()):
            pairs = min(len(each[epsilon]) for each in both)
            without_it, with_it = (each[epsilon][:pairs, 0] for each in both)
            above = int((with_it > without_it).sum())
            chance = binomtest(above, pairs, alternative="greater").pvalue
            gained = f"Hoyer gained {(with_it - without_it).mean():+.4f}"
            print(f"{name}, epsilon {epsilon:g}: {gained}; {above} of {pairs} above 0 (sign test {chance:.3f})")
    draw(asked.folder / "privae_fashion.png", found)


def draw(path: Path, found: dict[str, dict[float | None, np.ndarray]]) -> None:
    """Draw the columns against epsilon: the paper's method above, other rates and forms below, where twins are levels.

    Bands are the spread of runs, and a label says how many a point has. Above, twins are so far away that their levels are
    written.
    """
    figure, rows = plt.subplots(2, len(DRAWN), figsize=(12.0, 7.6))
    # Two shades of one color for a form with its term and without.
    pairs = sorted(found, key=lambda name: name == "tuned rate, noise of MMD")
    colors = dict(zip(pairs, plt.get_cmap("tab20").colors, strict=False))
    for level, (axes, names) in enumerate(zip(rows, ROWS.values(), strict=True)):
        here = [name for name in names if name in found]
        for column, (axis, title) in enumerate(zip(axes, DRAWN, strict=True)):
            far = []
            for place, name in enumerate(here):
                points = found[name]
                mean, spread = (np.array([of(each[:, column]) for each in points.values()]) for of in (np.mean, np.std))
                runs = sorted({len(each) for each in points.values()})
                label = f"{name} ({' to '.join(str(n) for n in sorted({runs[0], runs[-1]}))})"
                if None in points and level == 0:
                    far.append(f"{label} {mean[0]:.3g}")
                    continue
                if None in points:
                    axis.axhline(mean[0], color=colors[name], linestyle="--", linewidth=1.0, label=label)
                    continue
                # Curves on one level stay apart.
                x = np.array(list(points)) * 1.02 ** (place - len(here) / 2)
                axis.plot(x, mean, color=colors[name], marker="osD^v"[place % 5], markersize=5, label=label)
                axis.fill_between(x, mean - spread, mean + spread, color=colors[name], alpha=0.15, linewidth=0)
            axis.set(title=title, xlabel="epsilon", xscale="log")
            if far:
                low, high = axis.get_ylim()
                axis.set_ylim(low, high + 0.45 * (high - low))
                axis.text(0.98, 0.97, "\n".join(["without privacy:", *far]), transform=axis.transAxes, ha="right", va="top")
            axis.set_xlim(0.85 * EPSILONS[0], EPSILONS[-1] / 0.85)
            axis.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
            axis.minorticks_off()
            axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout(rect=(0, 0.05, 1, 0.97), h_pad=6.0)
    for axes, title in zip(rows, ROWS, strict=True):
        left, above, below = axes[0].get_position().x0, axes[0].get_position().y1, axes[0].get_position().y0
        figure.text(left, above + 0.04, title, fontsize=11, weight="bold")
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, below - 0.055)}
        figure.legend(*axes[0].get_legend_handles_labels(), **place, ncols=5, frameon=False, fontsize=8)
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
