"""The run whose outcome is kept in golden.json, and the script that writes it: ``python tests/end_to_end/golden.py``."""

import json
import tempfile
from pathlib import Path

import pyarrow.parquet

from lightning_dpgen.cli.main import main

GOLDEN = Path(__file__).with_name("golden.json")
ARGUMENTS = [
    "train",
    "debug.private_seed=7",
    "model.steps=12",
    "model.hidden=8",
    "model.latent=2",
    "split.iterations=2",
    "split.features=32",
    "rows=400",
    "trainer.accelerator=cpu",
]


def outcome(folder: Path) -> dict:
    """Return the public numbers of a run in `folder`: event tree, epsilon, mixture weights, means of synthetic columns."""
    assert main([*ARGUMENTS, f"run_dir={folder}"]) == 0
    certificate = json.loads((folder / "release" / "privacy.json").read_text())
    model = json.loads((folder / "release" / "model.json").read_text())
    table = pyarrow.parquet.read_table(folder / "release" / "synthetic.parquet").to_pandas()
    return {
        "event": certificate["event"],
        "epsilon": certificate["epsilon"],
        "mixture_weights": model["mixture_weights"],
        "column_means": table.mean().tolist(),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        GOLDEN.write_text(json.dumps(outcome(Path(scratch) / "run"), indent=1) + "\n")
