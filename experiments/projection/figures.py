"""The figures and the table of "Utility Preserving Secure Private Data Release", with its calibration and ours.

    python -m experiments.projection.figures table             Table 1: k-means accuracy, twenty draws a cell (some minutes)
    python -m experiments.projection.figures recovery          Figure 3: a million recovered distances
    python -m experiments.projection.figures pictures FOLDER   Figures 1 to 4

Epsilon 4, neighbours at a distance of at most 1, two clusters of unit variance 4 apart in a random direction, 2,000 rows.
The paper's rows use its Theorems 3 and 5 (`formulas.py`), which promise less than their epsilon; ours are pure.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans

from experiments.projection.formulas import jl_claim7, jl_theorem3, jl_theorem5
from lightning_dpgen.data.files.arrays import blobs
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.projection.matrices import distortion, make_matrix
from lightning_dpgen.projection.neighbourhood import Neighbourhood
from lightning_dpgen.projection.project import Projection
from lightning_dpgen.projection.recovery import Recovery
from lightning_dpgen.release.projected import ProjectedRows

EPSILON, DISTANCE, ROWS, DRAWS = 4.0, 1.0, 2000, 20
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


def table() -> None:
    """Print mean accuracy over the draws, and its standard error."""
    print(f"{'':<42}" + "".join(f"{f'{d}, {k}':>16}" for d, k in SIZES))
    for name, values in PAPER.items():
        print(f"{f'printed: {name}':<42}" + "".join(f"{value:>16.3f}" for value in values))
    for name, cell in cells().items():
        print(f"{name:<42}", end="", flush=True)
        for d, k in SIZES:
            sample = [cell(d, k, draw) for draw in range(DRAWS)]
            print(f"{np.mean(sample):>8.3f} +-{np.std(sample) / math.sqrt(DRAWS - 1):.3f}", end="", flush=True)
        print()


def recovered(unit: str, ours: bool, pairs: int = 1000, times: int = 1000) -> tuple[np.ndarray, np.ndarray]:
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


def recovery() -> None:
    """Print bias and spread of a million recovered distances, beside the formula."""
    for unit in ("element", "row"):
        for ours in (False, True):
            truth, found = recovered(unit, ours)
            error = found - truth
            # Distances of one matrix share its error, so the standard error is that of the means over matrices.
            means = error.mean(axis=1)
            print(
                f"{unit:<8} {'ours ' if ours else 'paper'}: mean difference {means.mean():+.3f} "
                f"+- {means.std() / math.sqrt(len(means)):.3f}, standard deviation {error.std():.1f}",
                end="",
            )
            if ours:
                print()
            else:
                s2 = 2.0 * paper_scale(unit, 10, 3) ** 2
                right = Recovery(3, "laplace", paper_scale(unit, 10, 3), distortion("gaussian", 10, 3))
                claimed = np.mean([jl_claim7(3, a, s2) for a in truth])
                print(f" (formula {math.sqrt(right.variance(truth).mean()):.1f}, Claim 7 {math.sqrt(claimed):.1f})")


def pictures(folder: Path) -> None:
    """Draw figures 1 to 4 as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    rows, labels = blobs(ROWS, 3, 0)
    figure = pyplot.figure(figsize=(5, 5))
    figure.add_subplot(projection="3d").scatter(*rows.T, c=labels, s=4, cmap="coolwarm")
    figure.suptitle("Figure 1: the rows")
    figure.savefig(folder / "figure_1.png", dpi=120)
    figure, axes = pyplot.subplots(2, 2, figsize=(9, 9))
    for i, unit in enumerate(("element", "row")):
        paper = rows @ make_matrix("gaussian", 3, 2, 0)
        paper += np.random.default_rng(0).laplace(scale=paper_scale(unit, 3, 2), size=paper.shape)
        ours, _ = released("hashed", 3, 2, unit, "laplace" if unit == "element" else "spherical", 0)
        for axis, name, found in ((axes[i, 0], "paper", paper), (axes[i, 1], "ours", ours.rows)):
            axis.scatter(*found.T, c=labels, s=4, cmap="coolwarm")
            right = accuracy(k_means(found), labels)
            axis.set(title=f"{unit}-wise, {name}: k-means {right:.3f}", xlim=(-9, 9), ylim=(-9, 9))
    figure.suptitle("Figure 2: d = 3, k = 2, epsilon 4")
    figure.tight_layout()
    figure.savefig(folder / "figure_2.png", dpi=120)
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
    for axis, unit in zip(axes, ("element", "row"), strict=True):
        for name, ours in (("paper", False), ("ours", True)):
            truth, found = recovered(unit, ours)
            axis.hist((found - truth).ravel(), bins=200, range=(-150, 250), histtype="step", density=True, label=name)
        axis.set(title=f"{unit}-wise", xlabel="recovered less true squared distance")
        axis.legend()
    figure.suptitle("Figure 3: a million recovered distances, d = 10, k = 3")
    figure.tight_layout()
    figure.savefig(folder / "figure_3.png", dpi=120)
    figure, axis = pyplot.subplots(figsize=(6, 4))
    ks, d = np.arange(1, 31), 100
    for unit in ("element", "row"):
        axis.plot(ks, [math.sqrt(1 + 2 * paper_scale(unit, d, k) ** 2) for k in ks], label=f"paper, {unit}-wise")
    ours = (("hashed", "element", "laplace"), ("hashed", "row", "spherical"), ("gaussian", "row", "laplace"))
    for kind, unit, noise in ours:
        spread = []
        for k in ks[ks <= 20]:
            projection = Projection(make_matrix(kind, d, k, 0), Neighbourhood(unit, distance=DISTANCE), noise)
            scale = projection.scale(projection.plan(EPSILON))
            spread.append(math.sqrt(1 + Recovery(int(k), noise, scale, 0.0).coordinate_variance))
        axis.plot(ks[ks <= 20], spread, "--", label=f"ours, {unit}-wise, {kind}, {noise}")
    axis.set(title="Figure 4: standard deviation of a released number, d = 100", xlabel="k")
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(folder / "figure_4.png", dpi=120)


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else "table"
    if what == "pictures":
        pictures(Path(sys.argv[2]))
    else:
        {"table": table, "recovery": recovery}[what]()
