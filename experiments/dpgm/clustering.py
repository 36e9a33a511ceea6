"""Figure 3 of DPGM (TKDE; Figure 4 of ICDM): the accuracy with which private kernel k-means finds MNIST's ten digits.

    python -m experiments.dpgm.clustering FOLDER [--runs 10]

60,000 binary pictures, k = 10, T = 20 iterations, gamma = 0.005 (picked on noisy runs, which is not paid for), delta 1e-5,
add or remove one, exact composition of Gaussians; the whole epsilon goes to the split. The paper starts its centres at ten
public records, which are random pictures of MNIST's test set here. Ours start at the noisy mean, which takes 5 % of mu^2,
or 35 % with the second moments where the search is in their leading directions. The rivals are diffprivlib's k-means (pure
epsilon), on features and on pixels, where it is installed (`pip install --no-deps diffprivlib`). Accuracy is that of the
best one-to-one naming of clusters by labels, which the split never sees. A row has as many runs as `--runs` and its own
limit (`WAYS`) allow; the paper has 100. Results are kept in FOLDER, and not computed again: experiments/results has ours.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import statistics
import sys
import types
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans

from experiments.common.arguments import read_count
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

EPSILONS, DELTA, N, K = (0.1, 0.25, 0.5, 1.0, 2.0, math.inf), 1e-5, 60_000, 10
# The mean alone takes 15 % of its share.
FROM_MEAN = {"dimensions": None, "moments_share": 0.333, "lloyd_share": 0.945, "means_share": 0.004}
FROM_PUBLIC = {"dimensions": None, "start": "public", "lloyd_share": 0.995, "means_share": 0.004}
IN_FEW = {"dimensions": 16, "moments_share": 0.35, "lloyd_share": 0.645, "means_share": 0.004}
PIXELS = {"kernel": "identity", "radius": 28.0}
RBF = {d: {"features": d, "gamma": 0.005} for d in (50, 100, 200, 400)}
SINGLE = {"paired": False}
# Settings of the split, or the number of features for the rival, and the number of runs.
WAYS = {
    "pixels, norm 28, from public records": (PIXELS | FROM_PUBLIC, 100),
    **{f"single cosines, d = {d}, from public records": (RBF[d] | SINGLE | FROM_PUBLIC, 100) for d in (50, 100, 200)},
    "pixels, norm 28": (PIXELS | FROM_MEAN, 20),
    **{f"pairs, d = {d}": (RBF[d] | FROM_MEAN, 100) for d in (50, 100, 200)},
    "pixels, 16 directions": (PIXELS | IN_FEW, 20),
    **{f"pairs, d = {d}, 16 directions": (RBF[d] | IN_FEW, 100 if d == 200 else 20) for d in (100, 200, 400)},
    "pixels, norm 12, from public records": (PIXELS | {"radius": 12.0} | FROM_PUBLIC, 20),
    "Laplacian kernel, d = 200": (RBF[200] | {"kernel": "laplacian"} | FROM_MEAN, 10),
    "diffprivlib, features, d = 50": ({"rival": 50}, 5),
    "diffprivlib, pixels": ({"rival": None}, 5),
}
# The curves of the two panels.
PANELS = {
    "as in the paper: centres start at public records": [*[*WAYS][:4], "pixels, norm 12, from public records"],
    "without public data": [*[*WAYS][4:12], "Laplacian kernel, d = 200"],
}
# One colour is one row, or the same in both panels.
COLOURS = dict(zip([*[*WAYS][:4], *[*WAYS][8:14]], [f"C{i}" for i in range(10)], strict=True))
COLOURS |= dict(zip([*WAYS][4:8], [f"C{i}" for i in range(4)], strict=True))


@dataclass(frozen=True)
class Digits:
    """Binary pictures without labels and their labels: private ones, and public ones as rows."""

    records: Records
    labels: np.ndarray
    public: torch.Tensor
    public_labels: np.ndarray


@functools.cache
def binary_digits() -> Digits:
    """Return MNIST's training pictures, and its test pictures, which stand for public data."""
    schema = dataclasses.replace(public_set("mnist").schema, threshold=127)
    unlabelled, found = dataclasses.replace(schema, classes=0), []
    for held_out in (False, True):
        pictures = load_public_set("mnist", unlabelled, held_out=held_out).encoded
        labels = load_public_set("mnist", schema, held_out=held_out).encoded.codes[:, 0].astype(np.int64)
        found += [Records(unlabelled, pictures), labels]
    records, labels, public, public_labels = found
    return Digits(records, labels, public.take(np.arange(len(public))), public_labels)


def plan_of(settings: SplitSettings, epsilon: float, *, means: bool = False) -> Plan:
    """Plan the split alone, with all of epsilon: full passes of Gaussians, so multipliers follow in closed form."""
    mu, stages = (0.0 if math.isinf(epsilon) else gaussian_mu(epsilon, DELTA)), []
    for spec in settings.specs(N, means=means):
        multiplier = math.sqrt(spec.count / spec.share) / mu if mu else 0.0
        stages.append(Stage(spec.access(multiplier), spec.count, spec.share))
    return Plan(tuple(stages), epsilon, DELTA)


def accuracy(digits: Digits, way: dict, epsilon: float, seed: int) -> float:
    if "rival" in way:
        clusters = by_rival(digits.records, way["rival"], epsilon, seed)
    else:
        clusters = by_us(digits, way, epsilon, seed)
    return best_naming(clusters.numpy(), digits.labels, (K, 10))


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
        return torch.from_numpy(KMeans(K, n_init=1, random_state=seed).fit_predict(rows.numpy())).long()
    found = rival_k_means()(K, epsilon=epsilon, bounds=(low, high), random_state=seed).fit(rows.numpy())
    return torch.from_numpy(found.labels_).long()


def rival_k_means() -> type:
    """Import diffprivlib's KMeans without its forests, which do not import with a new scikit-learn."""
    forests = types.ModuleType("diffprivlib.models.forest")
    forests.RandomForestClassifier = forests.DecisionTreeClassifier = None
    sys.modules.setdefault(forests.__name__, forests)
    from diffprivlib.models.k_means import KMeans as RivalKMeans

    return RivalKMeans


def by_us(digits: Digits, way: dict, epsilon: float, seed: int) -> torch.Tensor:
    settings = SplitSettings(k=K, iterations=20, **way).for_layout(digits.records.schema.layout)
    plan = plan_of(settings, epsilon)
    assert math.isinf(epsilon) or plan.epsilon <= epsilon * (1 + 1e-9)
    account = Account(plan, stream=PrivateStream(seed=seed))
    ones, generator = torch.ones(digits.records.schema.layout.width), torch.Generator().manual_seed(seed)
    picked = np.random.default_rng(seed).choice(len(digits.public), K, replace=False)
    centres = digits.public[picked] if settings.start == "public" else None
    return private_split(digits.records, ones, settings, N, account, generator, centres=centres).clusters


def cell(kept: Kept, way: dict, epsilon: float, runs: int) -> list[float]:
    """Return the accuracies that are kept, and more of them up to a number of runs; none without the rival's package."""
    key = {"way": way, "epsilon": str(epsilon)}
    before = kept.look(key) or []
    if len(before) >= runs or ("rival" in way and find_spec("diffprivlib") is None):
        return before
    more = [round(accuracy(binary_digits(), way, epsilon, seed), 4) for seed in range(len(before), runs)]
    return kept.get(key, lambda: before + more, again=True)


def table(found: dict[str, list[list[float]]]) -> str:
    """Write means over runs, with the standard deviation of a run in brackets."""
    width = max(map(len, found)) + 2
    lines = [f"{'epsilon':<{width}}{'runs':>5}" + "".join(f"{epsilon:>14g}" for epsilon in EPSILONS)]
    for name, cells in found.items():
        shown = (f"{statistics.mean(cell):.3f} ({statistics.stdev(cell):.3f})" for cell in cells)
        lines.append(f"{name:<{width}}{min(map(len, cells)):>5}" + "".join(f"{text:>14}" for text in shown))
    return "\n".join(lines)


def picture(found: dict[str, list[list[float]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(11, 5), sharey=True)
    none = EPSILONS[-2] * 1.7
    for axis, (title, names) in zip(axes, PANELS.items(), strict=True):
        for name in (name for name in names if name in found):
            colour = COLOURS[name]
            means, spread = (np.array([of(cell) for cell in found[name]]) for of in (statistics.mean, statistics.stdev))
            axis.plot(EPSILONS[:-1], means[:-1], color=colour, marker="o", ms=3, lw=1.2, label=name)
            axis.fill_between(EPSILONS[:-1], (means - spread)[:-1], (means + spread)[:-1], color=colour, alpha=0.12, lw=0)
            axis.plot([none], means[-1:], color=colour, marker="D", ms=4)
        axis.axhline(0.112, color="k", lw=0.8, ls=":")
        axis.set(xscale="log", xlabel="epsilon at delta 1e-5 (diamonds: no noise)", title=title, ylim=(0.0, 0.65))
        axis.set_xticks([*EPSILONS[:-1], none], [*map(str, EPSILONS[:-1]), "none"])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7.5, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False)
    axes[0].set_ylabel("accuracy, with the deviation of a run")
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=read_count, default=10, help="the most of a row")
    asked = parser.parse_args()
    if asked.runs < 2:
        parser.error(f"--runs {asked.runs}: expected 2 or more, for a spread")
    torch.set_num_threads(1)
    asked.folder.mkdir(parents=True, exist_ok=True)
    kept = Kept(asked.folder / "dpgm_clustering.json")
    found: dict[str, list[list[float]]] = {}
    for name, (way, most) in WAYS.items():
        cells = [cell(kept, way, epsilon, min(asked.runs, most)) for epsilon in EPSILONS]
        if all(cells):
            found[name] = cells
            print(f"{name}: " + "  ".join(f"{statistics.mean(cell):.3f}" for cell in cells), flush=True)
        else:
            print(f"{name}: not installed")
    print(table(found))
    picture(found, asked.folder / "dpgm_clustering.png")
    print(f"{N:,} records, delta {DELTA:g}, one record added or removed")


if __name__ == "__main__":
    main()
