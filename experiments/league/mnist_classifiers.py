"""Train on synthetic MNIST or Fashion-MNIST with labels, test on the real test images, by five classifiers.

    python -m experiments.league.mnist_classifiers FOLDER RELEASE [RELEASE ...]
    python -m experiments.league.mnist_classifiers FOLDER real

A RELEASE is the folder of a run of `dpgen train data=mnist`, or of `data=fashion_mnist` with `--data fashion_mnist`.
20,000 synthetic pictures (`--rows`; the first so many of `real`) train logistic regression on pixels / 255, a forest of
100 trees, a network 784-100-10, a small convolutional one (two 5 x 5 convolutions of stride 2, 16 and 32 channels, 64
hidden units), and a small residual one (a convolution of stride 2, blocks of 16, 32 and 32 channels), the networks for 6
epochs, the last for 3; `--only CNN forest` trains these alone. Results are kept in FOLDER.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from torch import nn

from experiments.common.arguments import read_count
from experiments.common.kept import Kept
from lightning_dpgen.common.strict_json import read_json
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.public_sets import load_public_set, public_set
from lightning_dpgen.release.drawing.release import load_release
from lightning_dpgen.release.files import CERTIFICATE, release_folder

ROWS, EPOCHS, RESIDUAL_EPOCHS, BATCH = 20_000, 6, 3, 64


def pictures(encoded: Encoded, levels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (N, 784) float32 pixels in [0, 1] and (N,) labels."""
    return encoded.units.astype(np.float32) / levels, encoded.codes[:, 0].astype(np.int64)


def convolutional(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU(),
        nn.Conv2d(16, 32, 5, stride=2, padding=2), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 49, 64), nn.ReLU(),
        nn.Linear(64, 10),
    )  # fmt: skip


class Block(nn.Module):
    """Two convolutions beside a short cut; the first one may halve the picture."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(before, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip
        self.short = nn.Identity() if (before, stride) == (channels, 1) else nn.Conv2d(before, channels, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x) + self.short(x))


def residual(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        Block(16, 16, 1), Block(16, 32, 2), Block(32, 32, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


Pictures = tuple[np.ndarray, np.ndarray]


def network_accuracy(network: nn.Module, epochs: int, train: Pictures, test: Pictures, seed: int) -> float:
    random = torch.Generator().manual_seed(seed)
    optimizer, (x, y) = torch.optim.Adam(network.parameters(), lr=1e-3), map(torch.from_numpy, train)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=random).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()
    network.eval()
    with torch.no_grad():
        answers = network(torch.from_numpy(test[0])).argmax(dim=1).numpy()
    return float((answers == test[1]).mean())


CLASSIFIERS = {
    "LR": lambda train, test, _: LogisticRegression(max_iter=200).fit(*train).score(*test),
    "forest": lambda train, test, seed: RandomForestClassifier(100, random_state=seed).fit(*train).score(*test),
    "MLP": lambda train, test, seed: MLPClassifier(
        (100,), max_iter=EPOCHS, batch_size=BATCH, random_state=seed
    ).fit(*train).score(*test),
    "CNN": lambda train, test, seed: network_accuracy(convolutional(seed), EPOCHS, train, test, seed),
    "ResNet": lambda train, test, seed: network_accuracy(residual(seed), RESIDUAL_EPOCHS, train, test, seed),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("releases", nargs="+", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=read_count, default=ROWS)
    parser.add_argument("--data", choices=["mnist", "fashion_mnist"], default="mnist")
    parser.add_argument("--only", nargs="+", choices=CLASSIFIERS, default=list(CLASSIFIERS))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.folder.mkdir(parents=True, exist_ok=True)
    kept = Kept(asked.folder / "mnist_classifiers.json")
    schema = public_set(asked.data).schema
    test = pictures(load_public_set(asked.data, schema, held_out=True).encoded, 255)
    for path in asked.releases:
        if str(path) == "real":
            encoded, levels = load_public_set(asked.data, schema, held_out=False).encoded[: asked.rows], 255
            about = said = "real"
        else:
            folder = release_folder(path)
            certificate, release = read_json(folder / CERTIFICATE), load_release(folder)
            encoded, levels = release.sample_encoded(asked.rows, asked.seed), release.schema.layout.levels
            about, said = certificate["digest"], f"{path}, epsilon {certificate['epsilon']}"

        found = {}
        for name in asked.only:

            def score(name=name, encoded=encoded, levels=levels) -> float:
                return CLASSIFIERS[name](pictures(encoded, levels), test, asked.seed)

            about_it = {"data": asked.data, "release": about, "seed": asked.seed, "rows": asked.rows, "classifier": name}
            found[name] = kept.get(about_it, score)
        print(f"{said}: " + "  ".join(f"{name} {value:.3f}" for name, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
