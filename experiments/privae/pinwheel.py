"""Figure 2 of PriVAE: the codes of four spirals, with a prior of four parts and KL of the codes from it, and without.

    python -m experiments.privae.pinwheel FOLDER [--runs 10] [--only VARIANT ...] [--kept]

Points are simulated as in Johnson et al. (2016), by `data=pinwheel`: 400, a draw for each run, and those held out of it
test. The settings are conf/experiment/privae_pinwheel.yaml and privae_pinwheel_best.yaml, which were chosen on other
draws. Purity is the share of test points whose arm is the commonest among those with the same nearest centre of the
prior, and beside it stands how many arms are the commonest of a centre. The error is the root mean squared distance of
test points from their reconstructions. K-means of the points themselves is printed first. The picture shows points,
reconstructions and codes of the first run. Results are kept in FOLDER; with `--kept` all runs that are kept are shown, and
nothing is trained.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.cluster import KMeans

from experiments.common.arguments import read_count
from experiments.common.kept import Kept
from experiments.common.training import train
from lightning_dpgen import load_release
from lightning_dpgen.data.public_sets import DRAWS, load_public_set, public_set
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.simulated.points import ARMS, PINWHEEL_SQUARE, draw_pinwheel
from lightning_dpgen.models.vae import StackedVAE

POINTS = public_set("pinwheel")
# Draws of the points that k-means and untrained encoders see.
DRAWN = 10
# Those of the code that the paper follows, and the other reading of its text: numbers in {0, 1}.
CENTRES = [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]
CORNERS = [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
_CORNERS = ["model.prior_centres=[[0,0],[0,1],[1,0],[1,1]]"]
_OFF = ["privacy=off", "privacy.epsilon=null", "privacy.delta=null"]
# Settings of the term of each form, which are left out without it.
TERM = {
    "privae_pinwheel": ["divergence", "divergence_draws", "divergence_weight", "groups", "group_c"],
    "privae_pinwheel_best": [
        "divergence", "divergence_release", "divergence_weight", "divergence_share", "kernel", "kernel_width", "features",
    ],
}  # fmt: skip


def without(form: str) -> list[str]:
    """Return the settings of a form without its term: the standard autoencoder."""
    return [f"experiment={form}", *(f"model.{name}=null" for name in TERM[form]), "model.beta=1"]


VARIANTS = {
    "faithful, KL": ["experiment=privae_pinwheel"],
    "faithful, without": without("privae_pinwheel"),
    "faithful, KL, not private": ["experiment=privae_pinwheel", *_OFF],
    "faithful, without, not private": [*without("privae_pinwheel"), *_OFF],
    "best, mmd": ["experiment=privae_pinwheel_best"],
    "best, without": without("privae_pinwheel_best"),
    "best, mmd, not private": ["experiment=privae_pinwheel_best", *_OFF],
    "best, without, not private": [*without("privae_pinwheel_best"), *_OFF],
    "faithful, KL, corners": ["experiment=privae_pinwheel", *_CORNERS],
    "faithful, KL, corners, not private": ["experiment=privae_pinwheel", *_CORNERS, *_OFF],
    "best, mmd, corners": ["experiment=privae_pinwheel_best", *_CORNERS],
}


def held_out(draw: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the test points (n, 2) of a draw, and the arm of each, (n,)."""
    return draw_pinwheel(POINTS.n, DRAWS + draw)


def purity(clusters: np.ndarray, arms: np.ndarray) -> tuple[float, int]:
    """Return the share of points of the commonest arm of their cluster, and how many arms are that of a cluster."""
    counts = np.zeros((ARMS, ARMS), int)
    np.add.at(counts, (clusters, arms), 1)
    commonest = counts.argmax(axis=1)[counts.sum(axis=1) > 0]
    return float(counts.max(axis=1).sum() / counts.sum()), len(set(commonest.tolist()))


def codes_of(folder: Path, run: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return test points, their arms, codes and reconstructions, by the release of a run."""
    release = load_release(folder / "release")
    points, arms = held_out(seed)
    records = Records(POINTS.schema, load_public_set("pinwheel", held_out=True, draw=seed).encoded)
    codes = release.encode(records)[["z_0", "z_1"]].to_numpy()
    with torch.no_grad():
        made = torch.sigmoid(
            release.mixture.network.decode(torch.tensor(codes, dtype=torch.float32), (0, POINTS.n))
        ).numpy()
    return points, arms, codes, (2.0 * made - 1.0) * PINWHEEL_SQUARE


@torch.no_grad()
def untrained(seed: int) -> float:
    """Return the purity of codes by the first weights of the best form, moved and scaled as a whole to fit the centres."""
    points, arms = held_out(seed)
    network = StackedVAE(POINTS.schema, 1, hidden=16, centred=True, generator=torch.Generator().manual_seed(seed))
    units = torch.from_numpy((points + PINWHEEL_SQUARE) / (2.0 * PINWHEEL_SQUARE)).float()
    codes = network.encode(units, (0, POINTS.n))[0].numpy()
    return purity(nearest((codes - codes.mean(axis=0)) / codes.std(), CENTRES), arms)[0]


def nearest(codes: np.ndarray, centres: list[list[float]]) -> np.ndarray:
    return np.linalg.norm(codes[:, None] - np.array(centres), axis=2).argmin(axis=1)


def centres_of(name: str) -> list[list[float]]:
    """Return the centres of the prior of a variant."""
    return CORNERS if "corners" in name else CENTRES


def trained(folder: Path, name: str, run: int) -> Path:
    """Return the run of a variant, trained unless it was before."""
    place = folder / f"{name.replace(' ', '_').replace(',', '')}_{run}"
    return train(place, [f"data.draw={run}", f"seed={run}", "rows=400", *VARIANTS[name]])


def scored(folder: Path, name: str, run: int) -> list[float]:
    """Return purity, arms seen, and error of a variant."""
    points, arms, codes, made = codes_of(trained(folder, name, run), run, run)
    pure, seen = purity(nearest(codes, centres_of(name)), arms)
    return [pure, seen, float(np.sqrt(np.square(points - made).sum(axis=1).mean()))]


def pictured(folder: Path, name: str) -> dict[str, str]:
    """Return codes and reconstructions of the test points by the first run of a variant, as text, which is short."""
    _, _, codes, made = codes_of(trained(folder, name, 0), 0, 0)
    return {name: " ".join(f"{x:.2f}" for x in numbers.ravel()) for name, numbers in (("codes", codes), ("made", made))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=read_count, default=1)
    parser.add_argument("--kept", action="store_true", help="train nothing: show the runs that are kept, how many they are")
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.folder.mkdir(parents=True, exist_ok=True)
    kept = Kept(asked.folder / "privae_pinwheel.json")
    if asked.kept:
        kept.check_some()
    means = []
    for run in range(DRAWN):
        points, arms = held_out(run)
        means.append(purity(KMeans(ARMS, n_init=10, random_state=run).fit_predict(points), arms)[0])
    print(f"k-means of the points: purity {np.mean(means):.3f}")
    alone = [untrained(run) for run in range(DRAWN)]
    print(f"untrained encoders: purity {np.mean(alone):.3f}, at most {np.max(alone):.3f}")
    for name in asked.only:
        there = next(run for run in itertools.count() if kept.look({"variant": name, "run": run}) is None)
        runs = there if asked.kept else asked.runs
        if not runs:
            continue
        found = np.array([
            kept.get({"variant": name, "run": run}, lambda name=name, run=run: scored(asked.folder, name, run))
            for run in range(runs)
        ])  # fmt: skip
        good = int(((found[:, 0] >= 0.9) & (found[:, 1] == ARMS)).sum())
        print(
            f"{name}: purity {found[:, 0].mean():.3f} ({found[:, 0].std():.3f}), arms seen {found[:, 1].mean():.1f}, "
            f"{good} of {runs} at .90 with all four; error {found[:, 2].mean():.3f} ({found[:, 2].std():.3f})",
            flush=True,
        )
    cells = {
        name: kept.get({"variant": name, "picture": 0}, lambda name=name: pictured(asked.folder, name))
        for name in asked.only
        if "corners" not in name and not (asked.kept and kept.look({"variant": name, "picture": 0}) is None)
    }
    draw(asked.folder / "privae_pinwheel.png", cells)


def draw(path: Path, cells: Mapping[str, Mapping[str, str]]) -> None:
    """Draw points, reconstructions and codes of the first run of each variant."""
    points, arms = held_out(0)
    figure, axes = plt.subplots(2, len(cells), figsize=(2.6 * len(cells), 5.2), squeeze=False)
    for (above, below), (name, cell) in zip(axes.T, cells.items(), strict=True):
        codes, made = (np.array(cell[what].split(), float).reshape(-1, 2) for what in ("codes", "made"))
        above.scatter(*points.T, s=3, color="#c0392b", label="points")
        above.scatter(*made.T, s=3, color="#e0b000", label="reconstructions")
        above.set_title(name, fontsize=9)
        below.scatter(*codes.T, s=3, c=arms, cmap="tab10", vmax=10)
        below.scatter(*np.array(CENTRES).T, marker="x", color="black", label="centres of the prior")
        for axis in (above, below):
            axis.set_aspect("equal", "datalim")
            axis.spines[["top", "right"]].set_visible(False)
    handles = [*axes[0, 0].get_legend_handles_labels()[0], *axes[1, 0].get_legend_handles_labels()[0]]
    handles += [
        plt.Line2D([], [], marker="o", markersize=3, linestyle="", color=f"C{arm}", label=f"codes of arm {arm + 1}")
        for arm in range(ARMS)
    ]
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
