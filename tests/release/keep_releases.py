"""Keep a small release of each kind in today's format of certificates, for the test that later software reads it.

    python tests/release/keep_releases.py

It writes `kept/format_N/KIND.zip`, N being the number of the format. Archives that are there are left as they are, since a
kept release is never made again: the software that reads it changes, and the release does not. Archives keep each byte as
it was written, which a checkout that translates ends of lines does not.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytorch_lightning as pl
import torch

from lightning_dpgen import Fixed, PrivateTraining
from lightning_dpgen.cli.main import main as dpgen
from lightning_dpgen.release.certificate import FORMAT_VERSION

KEPT = Path(__file__).parent / "kept"

_SCHEMA = """\
label: returned
columns:
  customer: {type: drop}
  age: {type: integer, low: 18, high: 90}
  place: {type: category, values: [north, south, elsewhere]}
  returned: {type: boolean}
"""

_HOMES = """\
label: owns
columns:
  place: {type: category, values: [0, 1, 2, 3]}
  town: {type: integer, low: 0, high: 7}
  owns: {type: boolean}
"""


def keep_releases(kept: Path) -> list[Path]:
    """Make a release of each kind of which `kept` holds none, and write all of them as archives into it."""
    packed = {}
    for kind, make in KINDS.items():
        if not (kept / f"{kind}.zip").exists():
            with tempfile.TemporaryDirectory() as folder:
                packed[kept / f"{kind}.zip"] = _packed(make(Path(folder)))
    kept.mkdir(parents=True, exist_ok=True)
    for path, content in packed.items():
        path.write_bytes(content)
    return list(packed)


def _packed(release: Path) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(release.iterdir()):
            archive.writestr(zipfile.ZipInfo(path.name), path.read_bytes(), zipfile.ZIP_DEFLATED, 9)
    return file.getvalue()


def _persons(folder: Path) -> Path:
    """Make a table whose unit is a person, learned by measured statistics."""
    random, n = np.random.default_rng(0), 600
    customer = np.sort(random.integers(0, 300, n))
    age = random.integers(18, 91, n)
    place = random.choice(["north", "south", "elsewhere"], n, p=[0.5, 0.3, 0.2])
    returned = random.random(n) < age / 120
    frame = pd.DataFrame({"customer": customer, "age": age, "place": place, "returned": returned})
    frame.to_csv(folder / "orders.csv", index=False)
    (folder / "orders.schema.yaml").write_text(_SCHEMA)
    table = ["data=table", f"data.path={folder}/orders.csv", f"data.schema={folder}/orders.schema.yaml", "data.n=600"]
    return _run(folder, "train", *table, "data.person=customer", "data.max_rows=3", "model=measured", "rows=20")


def _trees(folder: Path) -> Path:
    """Make a table of which columns follow from each other, with a label that is drawn last."""
    random, n = np.random.default_rng(1), 4000
    place = random.integers(0, 4, n)
    town = np.where(random.random(n) < 0.9, 2 * place + random.integers(0, 2, n), random.integers(0, 8, n))
    pd.DataFrame({"place": place, "town": town, "owns": (town > 3) ^ (random.random(n) < 0.2)}).to_csv(
        folder / "homes.csv", index=False
    )
    (folder / "homes.schema.yaml").write_text(_HOMES)
    table = ["data=table", f"data.path={folder}/homes.csv", f"data.schema={folder}/homes.schema.yaml", "data.n=4000"]
    return _run(folder, "train", *table, "model=measured", "rows=20")


def _numbers(folder: Path) -> Path:
    """Make a table of so many columns that pairs are not counted, one of which is a category of three."""
    random, n = np.random.default_rng(2), 600
    shared = random.standard_normal((n, 1))
    asked = pd.DataFrame(0.9 * shared + 0.5 * random.standard_normal((n, 100)) > 0).add_prefix("q")
    asked["age"] = random.integers(18, 91, n)
    asked["place"] = random.choice(["north", "south", "elsewhere"], n, p=[0.5, 0.3, 0.2])
    asked.to_csv(folder / "asked.csv", index=False)
    columns = "".join(f"  q{place}: {{type: boolean}}\n" for place in range(100))
    age = "  age: {type: integer, low: 18, high: 90, bins: 6}\n"
    place = "  place: {type: category, values: [north, south, elsewhere]}\n"
    (folder / "asked.schema.yaml").write_text(f"columns:\n{columns}{age}{place}")
    table = ["data=table", f"data.path={folder}/asked.csv", f"data.schema={folder}/asked.schema.yaml", "data.n=600"]
    return _run(folder, "train", *table, "model=measured", "privacy.epsilon=1", "rows=20")


def _pictures(folder: Path) -> Path:
    """Make a mixture of networks that draws pictures."""
    small = ["model=vae", "model.hidden=8", "model.latent=2", "model.steps=5", "split.k=2", "split.iterations=1", "rows=10"]
    return _run(folder, "train", "data=digits", *small)


def _projection(folder: Path) -> Path:
    """Projected rows, under the relation of one row replaced."""
    return _run(folder, "project", "data.n=50", "data.d=6", "project.radius=6", "project.k=3")


def _weights(folder: Path) -> Path:
    """Make the weights of a LightningModule that was trained by `PrivateTraining`."""
    records = torch.rand(64, 3, generator=torch.Generator().manual_seed(0))
    private = PrivateTraining(records, n=64, epsilon=8.0, delta=1e-5, sample_rate=0.25, steps=3, clipping=Fixed(1.0))
    module = Line()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    pl.Trainer(max_epochs=1, callbacks=[private.callback()], default_root_dir=folder, **quiet).fit(module, private.loader())
    private.release(module, folder / "release", data="made-up rows")
    return folder / "release"


class Line(pl.LightningModule):
    """The network whose weights are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, x: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return ((self.layer(x[:, :2]) - x[:, 2:]) ** 2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def _run(folder: Path, command: str, *settings: str) -> Path:
    """Run a command of `dpgen`, and return its release."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        status = dpgen([command, *settings, f"run_dir={folder}/run"])
    if status:
        raise RuntimeError(f"dpgen {command} {' '.join(settings)}: status {status}\n{printed.getvalue()}")
    return folder / "run" / "release"


KINDS: dict[str, Callable[[Path], Path]] = {
    "numbers": _numbers,
    "persons": _persons,
    "pictures": _pictures,
    "projection": _projection,
    "trees": _trees,
    "weights": _weights,
}


def main() -> int:
    for path in keep_releases(KEPT / f"format_{FORMAT_VERSION}"):
        print(f"{path.relative_to(KEPT)}: {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
