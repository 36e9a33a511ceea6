"""Figures 4 and 7 of DPGM (TKDE): real samples of MNIST and those of five models, at a true epsilon.

    python -m experiments.dpgm.samples FOLDER [NAME=VALUE ...]

The command trains five models, each by `dpgen train experiment=dpgm_mnist ...` in a folder of its own: one autoencoder for
all, the mixture of autoencoders, the mixture of restricted Boltzmann machines, and the mixture of autoencoders with two
hidden layers at epsilon 1.74 and at 2; k = 10, 20 clustering iterations, q = 0.0017, 20 epochs, delta 1e-5, by privacy loss
distributions. A row is a component. More settings are handed to all of them (model.steps=500 makes a smaller run, which is
not the paper's). A training that was interrupted goes on. The samples that are drawn are kept in FOLDER, and a model whose
samples are there is not trained again: experiments/results has ours. The picture is FOLDER/dpgm_samples.png.
"""

from __future__ import annotations

import base64
import math
import sys
from pathlib import Path

import numpy as np

from experiments.common.kept import Kept
from experiments.common.training import train
from lightning_dpgen.common.strict_json import read_json
from lightning_dpgen.data.public_sets import load_public_set, public_set
from lightning_dpgen.release.drawing.release import load_release
from lightning_dpgen.release.files import CERTIFICATE, release_folder

MODELS = {
    "4b: one autoencoder": ["split.k=1"],
    "4c: ten autoencoders": [],
    "4d: ten RBMs": ["model=rbm"],
    "7a: two hidden layers": ["model.layers=2"],
    "7b: two hidden layers": ["model.layers=2", "privacy.epsilon=2"],
}
ACROSS, DOWN = 8, 10
SHEET = (DOWN, ACROSS, 28, 28)


def sheet(folder: Path) -> dict:
    """Return samples of a release, a component in each row where there are several, as bits, and its epsilon."""
    release = load_release(release_folder(folder))
    if release.components == 1:
        pictures = release.sample(ACROSS * DOWN, seed=0)
    else:
        pictures = np.concatenate([
            release.schema.pictures(release.sample_component(c, ACROSS, seed=c)) for c in range(release.components)
        ])  # fmt: skip
    bits = base64.b64encode(np.packbits(pictures > 0).tobytes()).decode()
    return {"epsilon": read_json(release_folder(folder) / CERTIFICATE)["epsilon"], "bits": bits}


def pictures_of(kept: dict) -> np.ndarray:
    """Return (DOWN, ACROSS, 28, 28) pictures of zeros and ones."""
    return np.unpackbits(np.frombuffer(base64.b64decode(kept["bits"]), np.uint8)).reshape(SHEET)


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    root, more = Path(sys.argv[1]), sys.argv[2:]
    root.mkdir(parents=True, exist_ok=True)
    kept, panels = Kept(root / "dpgm_samples.json"), {}
    for name, settings in MODELS.items():
        words, folder = ["experiment=dpgm_mnist", *settings, *more], root / name.replace(": ", "_").replace(" ", "_")
        drawn = kept.get({"trained": words}, lambda folder=folder, words=words: sheet(train(folder, words)))
        panels[f"{name}, epsilon {drawn['epsilon']:.3f}"] = pictures_of(drawn)
    real = load_public_set("mnist", public_set("mnist").schema, held_out=False).encoded.units[: ACROSS * DOWN] > 127
    panels = {"4a: real": real.reshape(SHEET)} | panels
    picture(panels, root / "dpgm_samples.png")


def picture(panels: dict[str, np.ndarray], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from PIL import Image

    across = math.ceil(len(panels) / 2)
    figure, axes = pyplot.subplots(2, across, figsize=(3.2 * across, 8.4))
    for axis, (name, pictures) in zip(axes.flat, panels.items(), strict=False):
        sheet = pictures.transpose(0, 2, 1, 3).reshape(28 * DOWN, 28 * ACROSS)
        axis.imshow(sheet, cmap="binary", interpolation="nearest")
        axis.set_title(name, fontsize=9)
        axis.axis("off")
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    # Sixteen greys keep the file small.
    Image.open(path).convert("L").quantize(16).save(path, optimize=True)


if __name__ == "__main__":
    main()
