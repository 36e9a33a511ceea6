"""Train on synthetic MNIST with labels, test on the real test images, by three classifiers.

    python experiments/mnist_classifiers.py FOLDER RELEASE [RELEASE ...]
    python experiments/mnist_classifiers.py FOLDER real

A RELEASE is the folder of a run of `dpgen train data=mnist`. 20,000 synthetic pictures (`--rows`; the first so many of
`real`) train logistic regression on pixels / 255, a network 784-100-10, and a small convolutional one (two 5 x 5
convolutions of stride 2, 16 and 32 channels, 64 hidden units), the networks for 6 epochs. Results are kept in FOLDER.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from kept import Kept
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from torch import nn

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.public_sets import load_public_set, public_set
from lightning_dpgen.privacy.strict_json import read_json
from lightning_dpgen.release.files import CERTIFICATE
from lightning_dpgen.release.folder import release_folder
from lightning_dpgen.release.sampler import load_release

ROWS, EPOCHS, BATCH = 20_000, 6, 64


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


def accuracies(train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray], seed: int) -> dict[str, float]:
    x, y = train
    found = {
        "LR": LogisticRegression(max_iter=200).fit(x, y).score(*test),
        "MLP": MLPClassifier((100,), max_iter=EPOCHS, batch_size=BATCH, random_state=seed).fit(x, y).score(*test),
    }
    network, random = convolutional(seed), torch.Generator().manual_seed(seed)
    optimizer, x, y = torch.optim.Adam(network.parameters(), lr=1e-3), torch.from_numpy(x), torch.from_numpy(y)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x), generator=random).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        answers = network(torch.from_numpy(test[0])).argmax(dim=1).numpy()
    return found | {"CNN": float((answers == test[1]).mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("releases", nargs="+", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=ROWS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.folder.mkdir(parents=True, exist_ok=True)
    kept = Kept(asked.folder / "mnist_classifiers.json")
    schema = public_set("mnist").schema
    test = pictures(load_public_set("mnist", schema, held_out=True).encoded, 255)
    for path in asked.releases:
        if str(path) == "real":
            encoded, levels = load_public_set("mnist", schema, held_out=False).encoded[: asked.rows], 255
            about = said = "real"
        else:
            folder = release_folder(path)
            certificate, release = read_json(folder / CERTIFICATE), load_release(folder)
            encoded, levels = release.encoded(asked.rows, asked.seed), release.schema.layout.levels
            about, said = certificate["digest"], f"{path}, epsilon {certificate['epsilon']}"

        def score(encoded=encoded, levels=levels) -> dict[str, float]:
            return accuracies(pictures(encoded, levels), test, asked.seed)

        found = kept.get({"release": about, "seed": asked.seed, "rows": asked.rows}, score)
        print(f"{said}: " + "  ".join(f"{name} {value:.3f}" for name, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
