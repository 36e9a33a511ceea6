"""Figures 4 and 7 of DPGM (TKDE): real samples of MNIST and those of four models, at a true epsilon.

    python -m experiments.dpgm.samples FOLDER [NAME=VALUE ...]

The command trains four models, each by `dpgen train experiment=dpgm_mnist ...` in a folder of its own: one autoencoder for
all, the mixture of autoencoders, the same with two hidden layers, and the mixture of restricted Boltzmann machines; k = 10,
20 clustering iterations, q = 0.0017, 20 epochs, epsilon 1.74 at delta 1e-5 by privacy loss distributions. A row is a
component. More settings are handed to all of them (model.steps=500 makes a smaller run, which is not the paper's). A
training that was interrupted goes on, a finished one is not repeated. The picture is FOLDER/dpgm_samples.png.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from experiments.common.training import train
from lightning_dpgen.common.strict_json import read_json
from lightning_dpgen.data.public_sets import load_public_set, public_set
from lightning_dpgen.release.drawing.release import load_release
from lightning_dpgen.release.files import CERTIFICATE, release_folder

MODELS = {
    "one autoencoder": ["split.k=1"],
    "mixture of autoencoders": [],
    "two hidden layers": ["model.layers=2"],
    "mixture of RBMs": ["model=rbm", "~model.latent", "model.hidden=200", "model.lr=0.01", "model.bias=means"],
}
ACROSS, DOWN = 8, 10


def sheet(folder: Path) -> tuple[np.ndarray, float]:
    """Return pictures (DOWN, ACROSS, 28, 28), a component in each row where there are several, and a release's epsilon."""
    release = load_release(release_folder(folder))
    if release.components == 1:
        pictures = release.sample(ACROSS * DOWN, seed=0)
    else:
        pictures = np.concatenate([
            release.schema.pictures(release.sample_component(c, ACROSS, seed=c)) for c in range(release.components)
        ])  # fmt: skip
    return pictures.reshape(DOWN, ACROSS, 28, 28), read_json(release_folder(folder) / CERTIFICATE)["epsilon"]


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    root, more = Path(sys.argv[1]), sys.argv[2:]
    panels = {}
    for name, settings in MODELS.items():
        folder = root / name.replace(" ", "_")
        train(folder, ["experiment=dpgm_mnist", *settings, *more])
        pictures, epsilon = sheet(folder)
        panels[f"{name}, epsilon {epsilon:.3f}"] = pictures
    real = load_public_set("mnist", public_set("mnist").schema, held_out=False).encoded.units[: ACROSS * DOWN] > 127
    panels = {"real": real.reshape(DOWN, ACROSS, 28, 28)} | panels
    picture(panels, root / "dpgm_samples.png")


def picture(panels: dict[str, np.ndarray], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(panels), figsize=(3.4 * len(panels), 4.6))
    for axis, (name, pictures) in zip(axes, panels.items(), strict=True):
        axis.imshow(1 - pictures.transpose(0, 2, 1, 3).reshape(28 * DOWN, 28 * ACROSS) / pictures.max(), cmap="gray")
        axis.set_title(name, fontsize=9)
        axis.axis("off")
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
