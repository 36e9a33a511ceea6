"""The choice of k in DPGM (TKDE, section 6.2): t-SNE of public records, and of the noisy means of private clusters alone.

    python -m experiments.dpgm.means FOLDER

The paper has no figure of it: "selecting the optimal number of clusters k can be qualitatively and visually done", for
example by t-SNE of public data. MNIST's test set stands for public data here, which costs nothing. The other panels are
post-processing of one private split of the 60,000 training pictures for each k: noisy means, each drawn at its place in
t-SNE of the means alone, and noisy counts, by which it is darker or paler. Each split spends epsilon 0.5 at delta 1e-5, so
trying k on private records costs one split for each try, and a single split into many clusters shows as much. Splits are
kept in FOLDER (experiments/results has ours), and the picture is FOLDER/dpgm_means.png.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.manifold import TSNE

from experiments.common.kept import Kept
from experiments.dpgm.clustering import DELTA, Digits, N, binary_digits, plan_of
from lightning_dpgen.clustering.kmeans import private_split
from lightning_dpgen.clustering.settings import SplitSettings
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.noise.stream import PrivateStream

SIZES, EPSILON, PUBLIC, SIDE = (10, 20, 40), 0.5, 2000, 28
# The split has the whole epsilon, half of it for the means.
SETTINGS = {"iterations": 20, "features": 200, "gamma": 0.005}
SHARES = {"moments_share": 0.2, "lloyd_share": 0.3, "means_share": 0.499}


def release(k: int) -> dict:
    """Return the noisy means, cut to 0 and 1, in bytes, and the noisy counts of one split."""
    records = binary_digits().records
    settings = SplitSettings(k=k, **SETTINGS, **SHARES).for_layout(records.schema.layout)
    account = Account(plan_of(settings, EPSILON, means=True), stream=PrivateStream(seed=0))
    ones, generator = torch.ones(records.schema.layout.width), torch.Generator().manual_seed(0)
    split = private_split(records, ones, settings, N, account, generator)
    pixels = (255 * split.means.clamp(0.0, 1.0)).round().numpy().astype(np.uint8)
    return {"counts": split.counts.round().int().tolist(), "means": base64.b64encode(pixels.tobytes()).decode()}


def means_of(kept: dict) -> np.ndarray:
    """Return (k, 784) means between 0 and 1."""
    pixels = np.frombuffer(base64.b64decode(kept["means"]), np.uint8)
    return pixels.reshape(len(kept["counts"]), -1) / 255.0


def places(rows: np.ndarray, perplexity: float) -> np.ndarray:
    """Return (n, 2) places by t-SNE, between 0 and 1."""
    found = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(rows.astype(np.float32))
    low, high = found.min(axis=0), found.max(axis=0)
    return (found - low) / (high - low)


def picture(digits: Digits, releases: dict[int, dict], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 1 + len(releases), figsize=(4.0 * (1 + len(releases)), 4.3))
    public, names = digits.public[:PUBLIC].numpy(), digits.public_labels[:PUBLIC]
    axes[0].scatter(*places(public, 30.0).T, s=4, c=names, cmap="tab10", lw=0)
    axes[0].set_title(f"{len(public):,} public pictures, coloured by digit", fontsize=10)
    for axis, (k, kept) in zip(axes[1:], releases.items(), strict=True):
        means, counts = means_of(kept), np.array(kept["counts"])
        for (x, y), mean, count in zip(places(means, max(1.0, min(5.0, k / 4))), means, counts, strict=True):
            ink = mean.reshape(SIDE, SIDE) * min(1.0, 0.25 + 0.75 * count * k / N)
            box = (x - 0.05, x + 0.05, y - 0.05, y + 0.05)
            # Black of more or less cover, so that pictures that overlap are both seen.
            axis.imshow(np.dstack([0.0 * ink, 0.0 * ink, 0.0 * ink, ink]), extent=box)
        axis.set_title(f"k = {k}: noisy means at epsilon {EPSILON:g}", fontsize=10)
    for axis in axes:
        axis.set(xlim=(-0.07, 1.07), ylim=(-0.07, 1.07), xticks=[], yticks=[], aspect="equal")
    figure.tight_layout()
    figure.savefig(path, dpi=70)


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    kept = Kept(folder / "dpgm_means.json")
    asked = {"epsilon": EPSILON, "delta": DELTA, **SETTINGS, **SHARES}
    releases = {k: kept.get({"k": k, **asked}, lambda k=k: release(k)) for k in SIZES}
    for k, found in releases.items():
        print(f"k = {k}: noisy counts {' '.join(map(str, sorted(found['counts'], reverse=True)))}")
    picture(binary_digits(), releases, folder / "dpgm_means.png")


if __name__ == "__main__":
    main()
