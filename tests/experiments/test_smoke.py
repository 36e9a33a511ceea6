"""Each command of experiments/ runs from its start to its end on few records, and leaves its pictures and kept results."""

import importlib
import math
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from experiments.accounting import accountants
from experiments.dpgan import attacks, curves, gaussians
from experiments.dpgm import clustering, networks, samples
from experiments.league import paid_bins
from experiments.league.made_up_tables import TABLES

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Smoke:
    """A short run of a command.

    Args:
        words: the words after the module; FOLDER is a new folder.
        sizes: constants of the module, which are smaller here, by name.
        leaves: files of FOLDER that are there at the end.
        public: whether it reads public sets, which `DPGEN_DATA` has.
    """

    words: str = "FOLDER"
    sizes: dict[str, Any] = field(default_factory=dict)
    leaves: tuple[str, ...] = ()
    public: bool = False


def _pictures(held_out):
    generator = torch.Generator().manual_seed(int(held_out))
    rows = nn.functional.normalize(torch.rand(1_200, 196, generator=generator))
    return rows, torch.randint(0, 10, (1_200,), generator=generator)


def _bank():
    bank = TABLES["bank"]
    return {
        "bank": paid_bins.Table(lambda run: (bank.draw(1_500, run), bank.draw(1_500, 100 + run)), bank.label, bank.schema)
    }


RUNS = {
    "accounting.papers": Smoke(""),
    "accounting.accountants": Smoke("", {"SETTINGS": accountants.SETTINGS[2:3], "TIMES": accountants.TIMES[:1]}),
    "dpgan.series": Smoke(
        "FOLDER --data powercons --only waves", leaves=("dpgan_series.json", "dpgan_series_powercons.png"), public=True
    ),
    "projection.figures": Smoke(
        sizes={"DRAWS": 2, "PAIRS": 10, "TIMES": 10, "ROWS": 200, "SIZES": ((3, 2),)},
        leaves=("projection_figures.json", "projection_noise.png", "projection_clusters.png"),
    ),
    "dpgm.clustering": Smoke(
        "FOLDER --runs 2",
        {"WAYS": {name: clustering.WAYS[name] for name in [*clustering.WAYS][1:6:4]}, "EPSILONS": (0.5, math.inf)},
        ("dpgm_clustering.json", "dpgm_clustering.png"),
        public=True,
    ),
    "dpgm.epsilon": Smoke(
        sizes={"EPOCHS": (1,), "PANELS": {"q": (0.0017,), "sigma_K": (40.0,)}},
        leaves=("dpgm_epsilon.json", "dpgm_epsilon.png"),
    ),
    "dpgm.table2": Smoke("transit --records 500"),
    "dpgm.networks": Smoke(
        "transit FOLDER data.n=600 model.rate=0.05 model.steps=2 privacy.delta=1e-4",
        {
            "EPSILONS": (1,),
            "LAYERS": (1,),
            "RUNS": {"transit": networks.RUNS["transit"] | {"k": (1,)}},
            "counting_queries": SimpleNamespace(main=lambda words: None),
        },
        ("transit.networks/k1_layers1_epsilon1/release/privacy.json",),
    ),
    "dpgm.means": Smoke(sizes={"SIZES": (3,), "PUBLIC": 100}, leaves=("dpgm_means.json", "dpgm_means.png"), public=True),
    "dpgm.samples": Smoke(
        "FOLDER model.steps=2 split.iterations=1",
        {"MODELS": {name: samples.MODELS[name] for name in [*samples.MODELS][::2]}},
        ("dpgm_samples.json", "dpgm_samples.png"),
        public=True,
    ),
    "dpgan.attacks": Smoke(
        sizes={
            "SIZES": (100, 200),
            "SYNTHETIC": 200,
            "REFERENCE": 100,
            "_LOT": 20,
            "MODELS": {name: {100: 3, 200: 3} for name in (attacks.TWIN, attacks.MEASURED)},
            "VARIANTS": {
                attacks.TWIN: [*attacks.VARIANTS[attacks.TWIN], "model.steps=10"],
                attacks.MEASURED: attacks.VARIANTS[attacks.MEASURED],
            },
        },
        leaves=("dpgan_attacks.json", "dpgan_attacks.png", "dpgan_roc.png"),
        public=True,
    ),
    "dpgan.curves": Smoke(
        "FOLDER mushroom --runs 1",
        {"POINTS": 1, "TABLE": [*curves.TABLE, "model.steps=10"]},
        ("dpgan_mushroom.json", "dpgan_mushroom.png"),
        public=True,
    ),
    "dpgan.gaussians": Smoke(
        "FOLDER --runs 1",
        {"VARIANTS": {name: [*words, "model.steps=10"] for name, words in gaussians.VARIANTS.items()}},
        ("dpgan_gaussians.json", "dpgan_gaussians.png"),
    ),
    "training.persons": Smoke("--runs 2", {"N": 800, "STEPS": 3, "pictures": _pictures}),
    "training.correlated_noise": Smoke(
        "--epsilons 2 --passes 1 --lot 100 --runs 1", {"N": 1_000, "RATES": (1.0,), "pictures": _pictures}
    ),
    "league.ugly_tables": Smoke("FOLDER loans --runs 1", {"ROWS": 1_500, "TRIPLES": 3}, ("ugly_tables.json",)),
    "league.paid_bins": Smoke("FOLDER --runs 1", {"tables": _bank, "TOLD_APART": 500}, ("paid_bins.json",)),
    "league.classifiers": Smoke("FOLDER mushroom --epsilons 1 --runs 1", leaves=("tables_classifiers.json",), public=True),
    "league.table_selection": Smoke("FOLDER --rows 2000 --pairs 5", leaves=("table_selection.json",), public=True),
    "league.mnist_classifiers": Smoke(
        "FOLDER real --rows 300 --only forest", leaves=("mnist_classifiers.json",), public=True
    ),
    "league.choice": Smoke("FOLDER --names hospital --candidates measured --epsilons 8", {"N": 1_000}, ("choice.json",)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RUNS)
def test_a_command_runs(name, tmp_path, monkeypatch):
    asked, module = RUNS[name], importlib.import_module(f"experiments.{name}")
    if asked.public and not os.environ.get("DPGEN_DATA"):
        pytest.skip("it reads public sets: DPGEN_DATA names no folder")
    for constant, value in asked.sizes.items():
        monkeypatch.setattr(module, constant, value)
    monkeypatch.setattr(sys, "argv", [name, *asked.words.replace("FOLDER", str(tmp_path)).split()])
    module.main()
    for file in asked.leaves:
        assert (tmp_path / file).stat().st_size > 0, file


def test_each_command_has_a_short_run():
    """A script that nobody runs breaks unseen. Some have a test file of their own, and peers their environments."""
    files = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    for path in sorted((ROOT / "experiments").rglob("*.py")):
        if path.parent.name == "peers" or '__name__ == "__main__"' not in path.read_text(encoding="utf-8"):
            continue
        room, stem = path.parent.name, path.stem
        names = [re.search(rf"from experiments\.{room} import (?:.*, )?{stem}(?: as (\w+))?", text) for text in files]
        own = any(name and f"{name[1] or stem}.main(" in text for name, text in zip(names, files, strict=True))
        assert own or f"{room}.{stem}" in RUNS, f"experiments.{room}.{stem} has no short run"
