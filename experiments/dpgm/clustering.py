"""Figure 3 of DPGM (TKDE; Figure 4 of ICDM): the accuracy with which private kernel k-means finds MNIST's ten digits.

    python -m experiments.dpgm.clustering FOLDER [--runs 10]

60,000 binary pictures, k = 10, T = 20 iterations, gamma = 0.005 (picked on noisy runs, which is not paid for), delta 1e-5,
add or remove one, exact composition of Gaussians. The whole epsilon goes to the split: 5 % of mu^2 to the first mean, or
35 % to the mean and the second moments where the search is in their leading directions. The rivals are diffprivlib's
k-means (pure epsilon), on features and on pixels, where it is installed (`pip install --no-deps diffprivlib`). Accuracy is
that of the best one-to-one naming of clusters by labels, which the split never sees. Results are kept in FOLDER, and not
computed again.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import sys
import types
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans

from experiments.common.kept import Kept
from lightning_dpgen.clustering.features import FourierFeatures
from lightning_dpgen.clustering.kmeans import private_split
from lightning_dpgen.clustering.settings import SplitSettings
from lightning_dpgen.data.public_sets import load_public_set, public_set
from lightning_dpgen.data.records import Records
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.epsilon_range import gaussian_mu
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage

EPSILONS, DELTA, N = (0.1, 0.25, 0.5, 1.0, 2.0, math.inf), 1e-5, 60_000
# The mean alone takes 15 % of its share.
IN_ALL = {"dimensions": None, "moments_share": 0.333, "lloyd_share": 0.945, "means_share": 0.004}
IN_FEW = {"dimensions": 16, "moments_share": 0.35, "lloyd_share": 0.645, "means_share": 0.004}
WAYS = {
    **{f"leading 16 directions of d = {d}": {"features": d, "gamma": 0.005} | IN_FEW for d in (100, 200, 400)},
    "leading 16 directions of the pixels": {"kernel": "identity", "radius": 28.0} | IN_FEW,
    **{f"paired features, d = {d}": {"features": d, "gamma": 0.005} | IN_ALL for d in (50, 100, 200)},
    "single cosines cut to norm 1 (DPGM), d = 200": {"features": 200, "gamma": 0.005, "paired": False} | IN_ALL,
    "Laplacian kernel, d = 200": {"features": 200, "gamma": 0.005, "kernel": "laplacian"} | IN_ALL,
    "pixels, norm 28": {"kernel": "identity", "radius": 28.0} | IN_ALL,
    "diffprivlib's k-means on features, d = 50": {"rival": 50},
    "diffprivlib's k-means on pixels": {"rival": None},
}


def binary_digits() -> tuple[Records, torch.Tensor]:
    """Return pictures of zeros and ones without labels, and the labels."""
    schema = dataclasses.replace(public_set("mnist").schema, threshold=127)
    encoded = load_public_set("mnist", schema, held_out=False).encoded
    unlabelled = dataclasses.replace(schema, classes=0)
    pictures = load_public_set("mnist", unlabelled, held_out=False).encoded
    return Records(unlabelled, pictures), torch.from_numpy(encoded.codes[:, 0]).to(torch.int64)


def plan_of(settings: SplitSettings, epsilon: float) -> Plan:
    """Plan the split alone, with all of epsilon: full passes of Gaussians, so multipliers follow in closed form."""
    mu, stages = (0.0 if math.isinf(epsilon) else gaussian_mu(epsilon, DELTA)), []
    for spec in settings.specs(N, means=False):
        multiplier = math.sqrt(spec.count / spec.share) / mu if mu else 0.0
        stages.append(Stage(spec.access(multiplier), spec.count, spec.share))
    return Plan(tuple(stages), epsilon, DELTA)


def accuracy(records: Records, labels: torch.Tensor, way: dict, epsilon: float, seed: int) -> float:
    clusters = by_rival(records, way["rival"], epsilon, seed) if "rival" in way else by_us(records, way, epsilon, seed)
    return best_naming(clusters.numpy(), labels.numpy(), (10, 10))


def best_naming(clusters: np.ndarray, labels: np.ndarray, shape: tuple[int, int]) -> float:
    """Return the share of records whose cluster has the name of their label, by the best naming (ACC of DPGM)."""
    counts = np.zeros(shape, np.int64)
    np.add.at(counts, (clusters, labels), 1)
    return float(counts[linear_sum_assignment(counts, maximize=True)].sum() / len(labels))


def by_rival(records: Records, features: int | None, epsilon: float, seed: int) -> torch.Tensor:
    """Cluster by diffprivlib, whose bounds of each number are public here too; without bounds where there is no noise."""
    rows = records.take(np.arange(len(records)))
    low, high = 0.0, 1.0
    if features is not None:
        generator = torch.Generator().manual_seed(seed)
        rows = FourierFeatures(torch.ones(rows.shape[1]), features, 0.005, generator)(rows)
        high = math.sqrt(2.0 / features)
        low = -high
    if math.isinf(epsilon):
        return torch.from_numpy(KMeans(10, n_init=1, random_state=seed).fit_predict(rows.numpy())).long()
    found = rival_k_means()(10, epsilon=epsilon, bounds=(low, high), random_state=seed).fit(rows.numpy())
    return torch.from_numpy(found.labels_).long()


def rival_k_means() -> type:
    """Import diffprivlib's KMeans without its forests, which do not import with a new scikit-learn."""
    forests = types.ModuleType("diffprivlib.models.forest")
    forests.RandomForestClassifier = forests.DecisionTreeClassifier = None
    sys.modules.setdefault(forests.__name__, forests)
    from diffprivlib.models.k_means import KMeans as RivalKMeans

    return RivalKMeans


def by_us(records: Records, way: dict, epsilon: float, seed: int) -> torch.Tensor:
    settings = SplitSettings(k=10, iterations=20, **way).for_layout(records.schema.layout)
    plan = plan_of(settings, epsilon)
    assert math.isinf(epsilon) or plan.epsilon <= epsilon * (1 + 1e-9)
    account = Account(plan, stream=PrivateStream(seed=seed))
    ones = torch.ones(records.schema.layout.width)
    return private_split(records, ones, settings, N, account, torch.Generator().manual_seed(seed)).clusters


def table(found: dict[str, list[list[float]]]) -> str:
    """Write means over runs, with the standard deviation of a run in brackets."""
    width = max(map(len, found)) + 2
    lines = [f"{'epsilon':<{width}}" + "".join(f"{epsilon:>15g}" for epsilon in EPSILONS)]
    for name, cells in found.items():
        shown = (f"{statistics.mean(cell):.3f} ({statistics.stdev(cell):.3f})" for cell in cells)
        lines.append(f"{name:<{width}}" + "".join(f"{text:>15}" for text in shown))
    return "\n".join(lines)


def picture(found: dict[str, list[list[float]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(12, 6))
    colours = pyplot.colormaps["tab20"].colors
    for i, (name, cells) in enumerate(found.items()):
        means = [statistics.mean(cell) for cell in cells]
        errors = [statistics.stdev(cell) / math.sqrt(len(cell)) for cell in cells]
        axis.errorbar(EPSILONS[:-1], means[:-1], errors[:-1], color=colours[i], marker="o", ms=3, capsize=2, label=name)
        axis.plot([EPSILONS[-2] * 1.6], means[-1:], color=colours[i], marker="D", ms=5)
    axis.set(xscale="log", xlabel="epsilon at delta 1e-5 (diamonds: no noise)", ylabel="accuracy of the clusters")
    axis.set_xticks([*EPSILONS[:-1], EPSILONS[-2] * 1.6], [*map(str, EPSILONS[:-1]), "none"])
    axis.minorticks_off()
    axis.axhline(0.112, color="k", lw=0.8, ls=":", label="all in one cluster")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=10)
    asked = parser.parse_args()
    if asked.runs < 2:
        parser.error(f"--runs {asked.runs}: expected 2 or more, for a spread")
    torch.set_num_threads(1)
    asked.folder.mkdir(parents=True, exist_ok=True)
    kept = Kept(asked.folder / "clustering_accuracy.json")
    records, labels = binary_digits()
    found: dict[str, list[list[float]]] = {}
    for name, way in WAYS.items():
        if "rival" in way and find_spec("diffprivlib") is None:
            print(f"{name}: not installed")
            continue
        found[name] = [
            [
                kept.get(
                    {"way": way, "epsilon": str(epsilon), "seed": seed},
                    lambda way=way, epsilon=epsilon, seed=seed: accuracy(records, labels, way, epsilon, seed),
                )
                for seed in range(asked.runs)
            ]
            for epsilon in EPSILONS
        ]
        print(f"{name}: " + "  ".join(f"{statistics.mean(cell):.3f}" for cell in found[name]), flush=True)
    print(table(found))
    picture(found, asked.folder / "clustering_accuracy.png")
    print(f"{N:,} records, {asked.runs} runs a cell, delta {DELTA:g}, one record added or removed")


if __name__ == "__main__":
    main()
