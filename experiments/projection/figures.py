"""The figures and the table of "Utility Preserving Secure Private Data Release", with its calibration and ours.

    python -m experiments.projection.figures FOLDER

Table 1 (k-means accuracy, twenty draws a cell) and Figure 3 (a million recovered distances) are printed and kept in
FOLDER. Figures 1 and 2 are drawn as FOLDER/projection_clusters.png, Figures 3 and 4 as FOLDER/projection_noise.png.
Epsilon 4, neighbours at a distance of at most 1, two clusters of unit variance 4 apart in a random direction, 2,000 rows.
The paper's rows use its Theorems 3 and 5 (`formulas.py`), which promise less than their epsilon; ours are pure.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import pyplot
from sklearn.cluster import KMeans

from experiments.common.kept import Kept
from experiments.common.pictures import save_picture
from experiments.projection.formulas import jl_claim7, jl_theorem3, jl_theorem5
from lightning_dpgen.data.simulated.points import blobs
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.projection.matrices import distortion, make_matrix
from lightning_dpgen.projection.neighbourhood import Neighbourhood
from lightning_dpgen.projection.project import Projection
from lightning_dpgen.projection.recovery import Recovery
from lightning_dpgen.release.projected import ProjectedRows

matplotlib.use("Agg")
EPSILON, DISTANCE, ROWS, DRAWS = 4.0, 1.0, 2000, 20
# A million recovered distances, as in the paper: pairs of rows, each with so many matrices.
PAIRS, TIMES, BINS = 1000, 1000, np.linspace(-150.0, 250.0, 101)
SIZES = ((3, 2), (10, 3), (50, 10), (100, 20))
PAPER = {
    "no noise": (0.9783, 0.9772, 0.9771, 0.9797),
    "element": (0.9441, 0.9082, 0.6954, 0.6927),
    "row": (0.9477, 0.9090, 0.6796, 0.6668),
}


def paper_scale(unit: str, d: int, k: int) -> float:
    """Return the scale of the paper's Laplace noise: its c over epsilon."""
    return (jl_theorem3(d, k)[0] if unit == "element" else jl_theorem5(k, DISTANCE**2)[0]) / EPSILON


def released(kind: str, d: int, k: int, unit: str, noise: str, draw: int, delta: float = 0.0):
    """Return clusters of one draw as this package releases them, and their labels."""
    rows, labels = blobs(ROWS, d, draw)
    projection = Projection(make_matrix(kind, d, k, draw), Neighbourhood(unit, distance=DISTANCE), noise)
    account = Account(projection.plan(EPSILON, delta))
    noisy, count = projection.release(rows, account)
    return ProjectedRows(noisy, projection, kind, projection.scale(account.plan), count), labels


def k_means(rows: np.ndarray) -> np.ndarray:
    return KMeans(2, n_init=10, random_state=0).fit_predict(rows)


def two_clusters(rows: np.ndarray, variance: float, steps: int = 100) -> np.ndarray:
    """Find two equal clusters of a known variance, noise included, by expectation maximisation from the principal axis."""
    rows = rows - rows.mean(axis=0)
    values, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
    mean = vectors[:, -1] * math.sqrt(max(values[-1] - variance, 0.1 * variance))
    for _ in range(steps):
        mean = (np.tanh(rows @ mean / variance)[:, None] * rows).mean(axis=0)
    return (rows @ mean > 0.0).astype(int)


def accuracy(found: np.ndarray, labels: np.ndarray) -> float:
    right = float(np.mean(found == labels))
    return max(right, 1.0 - right)


def paper_draw(unit: str | None, d: int, k: int, draw: int) -> float:
    """Cluster one draw of the paper's release by k-means."""
    rows, labels = blobs(ROWS, d, draw)
    projected = rows @ make_matrix("gaussian", d, k, draw)
    if unit:
        projected += np.random.default_rng(draw).laplace(scale=paper_scale(unit, d, k), size=projected.shape)
    return accuracy(k_means(projected), labels)


def our_draw(kind: str, unit: str, noise: str, d: int, k: int, draw: int, how: str, delta: float = 0.0) -> float:
    """Cluster one draw of our release in one of the ways."""
    release, labels = released(kind, d, k, unit, noise, draw, delta)
    if how == "k-means":
        return accuracy(k_means(release.rows), labels)
    # Whitened, a cluster has variance 1 whatever matrix and noise did to it.
    return accuracy(two_clusters(release.whitened(), 1.0), labels)


def cells() -> dict[str, Callable[[int, int, int], float]]:
    """Return rows of the table: a name, and a function that gives the accuracy of one draw at (d, k)."""
    rows: dict[str, Callable[[int, int, int], float]] = {
        "no projection, no noise": lambda d, k, i: accuracy(k_means(blobs(ROWS, d, i)[0]), blobs(ROWS, d, i)[1]),
        "paper's projection, no noise": lambda d, k, i: paper_draw(None, d, k, i),
        "paper's element-wise": lambda d, k, i: paper_draw("element", d, k, i),
        "paper's row-wise": lambda d, k, i: paper_draw("row", d, k, i),
    }
    for unit, noise in (("element", "laplace"), ("row", "laplace"), ("row", "spherical")):
        for kind in ("gaussian", "orthonormal", "hashed"):
            for how in ("k-means", "mixture"):
                rows[f"{unit}, {kind}, {noise}: {how}"] = lambda d, k, i, a=(kind, unit, noise), how=how: our_draw(
                    *a, d, k, i, how
                )
    for unit, noise, delta in (("element", "laplace", 0.0), ("row", "spherical", 0.0), ("row", "gaussian", 1e-5)):
        for how in ("k-means", "mixture"):
            rows[f"{unit}, k = d, {noise}: {how}"] = lambda d, k, i, a=(unit, noise), how=how, delta=delta: our_draw(
                "identity", *a, d, d, i, how, delta
            )
    return rows


def table(kept: Kept) -> None:
    """Print mean accuracy over the draws, and its standard error."""
    print(f"{'':<42}" + "".join(f"{f'{d}, {k}':>16}" for d, k in SIZES))
    for name, values in PAPER.items():
        print(f"{f'printed: {name}':<42}" + "".join(f"{value:>16.3f}" for value in values))
    for name, cell in cells().items():
        print(f"{name:<42}", end="", flush=True)
        for d, k in SIZES:
            sample = kept.get(
                {"table": name, "d": d, "k": k, "draws": DRAWS, "rows": ROWS},
                lambda cell=cell, d=d, k=k: [cell(d, k, draw) for draw in range(DRAWS)],
            )
            print(f"{np.mean(sample):>8.3f} +-{np.std(sample) / math.sqrt(DRAWS - 1):.3f}", end="", flush=True)
        print()


def recovered(unit: str, ours: bool, pairs: int, times: int) -> tuple[np.ndarray, np.ndarray]:
    """Return true squared distances (pairs,) and recovered ones (times, pairs), each time with a new matrix and noise.

    d = 10 to k = 3, as in the paper's smaller cases.
    """
    d, k = 10, 3
    rows, _ = blobs(2 * pairs, d, 0)
    truth = ((rows[:pairs] - rows[pairs:]) ** 2).sum(axis=1)
    found = np.empty((times, pairs))
    kind = "hashed" if ours else "gaussian"
    noise = "spherical" if ours and unit == "row" else "laplace"
    for i in range(times):
        matrix = make_matrix(kind, d, k, i)
        if ours:
            projection = Projection(matrix, Neighbourhood(unit, distance=DISTANCE), noise)
            plan = projection.plan(EPSILON)
            scale, (noisy, _) = projection.scale(plan), projection.release(rows, Account(plan))
        else:
            scale = paper_scale(unit, d, k)
            noisy = rows @ matrix + np.random.default_rng(i).laplace(scale=scale, size=(2 * pairs, k))
        found[i] = Recovery(k, noise, scale, distortion(kind, d, k)).squared_distances(noisy[:pairs], noisy[pairs:])
    return truth, found


def recovery(unit: str, ours: bool) -> dict[str, Any]:
    """Return bias, its standard error and spread of recovered distances, and how many are in each of `BINS`."""
    truth, found = recovered(unit, ours, PAIRS, TIMES)
    error = found - truth
    # Distances of one matrix share its error, so the standard error is that of the means over matrices.
    means = error.mean(axis=1)
    result = {
        "mean": float(means.mean()), "standard error": float(means.std() / math.sqrt(len(means))),
        "deviation": float(error.std()), "histogram": np.histogram(error, BINS)[0].tolist(),
    }  # fmt: skip
    if not ours:
        scale = paper_scale(unit, 10, 3)
        right = Recovery(3, "laplace", scale, distortion("gaussian", 10, 3))
        result["formula"] = math.sqrt(right.variance(truth).mean())
        result["Claim 7"] = math.sqrt(np.mean([jl_claim7(3, a, 2.0 * scale**2) for a in truth]))
    return result


def recoveries(kept: Kept) -> dict[tuple[str, bool], dict[str, Any]]:
    """Return and print Figure 3 by unit and calibration, beside the formulas of the standard deviation."""
    found = {}
    for unit, ours in itertools.product(("element", "row"), (False, True)):
        asked = {"recovery": unit, "ours": ours, "pairs": PAIRS, "times": TIMES}
        one = found[unit, ours] = kept.get(asked, lambda unit=unit, ours=ours: recovery(unit, ours))
        formulas = "" if ours else f" (formula {one['formula']:.1f}, Claim 7 {one['Claim 7']:.1f})"
        print(
            f"{unit:<8} {'ours ' if ours else 'paper'}: mean difference {one['mean']:+.3f} +- {one['standard error']:.3f}, "
            f"standard deviation {one['deviation']:.1f}{formulas}"
        )
    return found


def draw_clusters(path: Path) -> None:
    """Draw Figures 1 and 2: the rows, and what each calibration releases of them."""
    rows, labels = blobs(ROWS, 3, 0)
    drawn = {"s": 4, "cmap": "coolwarm", "c": labels}
    figure = pyplot.figure(figsize=(11, 6.6), layout="constrained")
    grid = figure.add_gridspec(2, 3)
    whole = figure.add_subplot(grid[:, 0], projection="3d")
    whole.scatter(*rows.T, **drawn)
    whole.view_init(elev=8, azim=-75)
    whole.set(title=f"the rows, k-means {accuracy(k_means(rows), labels):.3f}")
    for place, unit in enumerate(("element", "row")):
        paper = rows @ make_matrix("gaussian", 3, 2, 0)
        paper += np.random.default_rng(0).laplace(scale=paper_scale(unit, 3, 2), size=paper.shape)
        ours, _ = released("hashed", 3, 2, unit, "laplace" if unit == "element" else "spherical", 0)
        for column, (name, found) in enumerate((("the paper's noise", paper), ("ours", ours.rows)), 1):
            axis = figure.add_subplot(grid[place, column])
            axis.scatter(*found.T, **drawn)
            right = accuracy(k_means(found), labels)
            axis.set(title=f"{unit}-wise, {name}: {right:.3f}", xlim=(-9, 9), ylim=(-9, 9), aspect="equal")
    save_picture(figure, path)


def draw_noise(found: dict[tuple[str, bool], dict[str, Any]], path: Path) -> None:
    """Draw Figure 3, recovered distances, and Figure 4, the noise of a released number against k."""
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for axis, unit in zip(axes, ("element", "row"), strict=False):
        for name, ours in (("the paper's noise", False), ("ours", True)):
            counts = np.array(found[unit, ours]["histogram"])
            axis.stairs(counts / counts.sum() / np.diff(BINS), BINS, label=name)
        axis.axvline(0, color="grey", linewidth=0.8)
        axis.set(title=f"Figure 3: {unit}-wise, d = 10, k = 3", xlabel="recovered less true squared distance")
        axis.legend()
    ks, d, axis = np.arange(1, 31), 100, axes[2]
    for unit in ("element", "row"):
        axis.plot(ks, [math.sqrt(1 + 2 * paper_scale(unit, d, k) ** 2) for k in ks], label=f"the paper's, {unit}-wise")
    for kind, unit, noise in (("hashed", "element", "laplace"), ("hashed", "row", "spherical")):
        spread = []
        for k in ks:
            projection = Projection(make_matrix(kind, d, int(k), 0), Neighbourhood(unit, distance=DISTANCE), noise)
            scale = projection.scale(projection.plan(EPSILON))
            spread.append(math.sqrt(1 + Recovery(int(k), noise, scale, 0.0).coordinate_variance))
        axis.plot(ks, spread, "--", label=f"ours, {unit}-wise, {noise}")
    axis.set(title="Figure 4: deviation of a number, d = 100", xlabel="k", ylim=(0, None))
    axis.legend(fontsize=8)
    save_picture(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    kept = Kept(folder / "projection_figures.json")
    table(kept)
    draw_noise(recoveries(kept), folder / "projection_noise.png")
    draw_clusters(folder / "projection_clusters.png")


if __name__ == "__main__":
    main()
