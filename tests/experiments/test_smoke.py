"""Each command of experiments/ runs from its start to its end on few records, and leaves its pictures and kept results."""

import ast
import doctest
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
from experiments.common import arguments
from experiments.common.kept import Kept
from experiments.dpgan import attacks, curves, gaussians
from experiments.dpgm import algorithm1, clustering, networks, samples
from experiments.league import paid_bins
from experiments.league.made_up_tables import TABLES
from experiments.privae import fashion, pinwheel
from lightning_dpgen.data.public_sets import NAMES

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
    "dpgm.algorithm1": Smoke(
        "FOLDER --epochs 1 --runs 1",
        {"WAYS": {"one lot for all at 10 q": algorithm1.Way(10, False, (1e-3,))}},
        ("dpgm_algorithm1.json",),
        public=True,
    ),
    "dpgm.mwem": Smoke(""),
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
    "dpgan.tables": Smoke(
        "FOLDER mushroom --epsilon 1 --runs 1 --only paper measured",
        {"VARIANTS": {"paper": ["experiment=dpgan_table", "model.steps=10"], "measured": ["model=measured"]}},
        ("dpgan_tables.json",),
        public=True,
    ),
    "dpgan.gaussians": Smoke(
        "FOLDER --runs 1",
        {"VARIANTS": {name: [*words, "model.steps=10"] for name, words in gaussians.VARIANTS.items()}},
        ("dpgan_gaussians.json", "dpgan_gaussians.png"),
    ),
    "privae.fashion": Smoke(
        "FOLDER --epsilons 4",
        {
            "PRIVATE": {"PriVAE": [*fashion.PRIVATE["PriVAE"], "model.steps=2"]},
            "TWINS": {"VAE": [*fashion.TWINS["VAE"], "model.steps=2"]},
        },
        ("privae_fashion.json", "privae_fashion.png"),
        public=True,
    ),
    "privae.pinwheel": Smoke(
        sizes={"VARIANTS": {"best, mmd": [*pinwheel.VARIANTS["best, mmd"], "model.steps=2"]}, "DRAWN": 1},
        leaves=("privae_pinwheel.json", "privae_pinwheel.png"),
    ),
    "training.persons": Smoke("--runs 2", {"N": 800, "STEPS": 3, "pictures": _pictures}),
    "training.correlated_noise": Smoke(
        "--epsilons 2 --passes 1 --lot 100 --runs 1", {"N": 1_000, "RATES": (1.0,), "pictures": _pictures}
    ),
    "league.ugly_tables": Smoke("FOLDER loans --runs 1", {"ROWS": 1_500, "TRIPLES": 3}, ("ugly_tables.json",)),
    "league.peer_tables": Smoke(
        "FOLDER --data adult-balanced --rows real --epsilons 1 --runs 1", leaves=("peer_tables.csv",), public=True
    ),
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


# Files with whole runs of commands that no line above has room for.
OF_THEIR_OWN = {"dpgm.queries": "test_basket_baselines.py", "league.league": "test_league.py"}
COMMANDS = {
    f"{path.parent.name}.{path.stem}": text
    for path in sorted((ROOT / "experiments").rglob("*.py"))
    if path.parent.name != "peers" and '__name__ == "__main__"' in (text := path.read_text(encoding="utf-8"))
}


def test_each_command_has_a_short_run():
    """A script that nobody runs breaks unseen; peers have environments of their own."""
    assert set(COMMANDS) == RUNS.keys() | OF_THEIR_OWN.keys()
    for name, file in OF_THEIR_OWN.items():
        assert ".main(" in (Path(__file__).parent / file).read_text(encoding="utf-8"), name


@pytest.mark.parametrize("name", [name for name, text in COMMANDS.items() if '"--runs"' in text])
def test_no_run_at_all_is_refused(name, tmp_path, monkeypatch, capsys):
    """Before anything is read or computed, in one line below the usage."""
    words = RUNS[name].words if name in RUNS else "FOLDER"
    module = importlib.import_module(f"experiments.{name}")
    monkeypatch.setattr(sys, "argv", [name, *words.replace("FOLDER", str(tmp_path / "new")).split(), "--runs", "0"])
    with pytest.raises(SystemExit) as stopped:
        module.main()
    said = capsys.readouterr().err.splitlines()[-1]
    assert stopped.value.code == 2 and re.search(r"argument --runs: '0': expected a whole number of 1 or more", said)
    assert not (tmp_path / "new").exists()


def test_examples():
    assert doctest.testmod(arguments).failed == 0


@pytest.mark.parametrize("text", ["{", "[1]", ""])
def test_a_file_that_holds_no_results_is_refused_and_stays(text, tmp_path):
    file = tmp_path / "kept.json"
    file.write_text(text)
    with pytest.raises(SystemExit, match=r"kept.json: holds no kept results .*restore it"):
        Kept(file)
    assert file.read_text() == text


@pytest.mark.parametrize("name", [name for name, text in COMMANDS.items() if '"--kept"' in text])
def test_nothing_is_drawn_of_an_empty_folder(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name, str(tmp_path), "--kept"])
    with pytest.raises(SystemExit, match="--kept: nothing is kept in"):
        importlib.import_module(f"experiments.{name}").main()


RESULTS = ROOT / "experiments/results"
PAGES = [*sorted((ROOT / "experiments").rglob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def _pictures_of(text):
    """Return patterns of the pictures that a module names; what it fills in has no underscore, or is a set's name."""
    filled = f"(?:[^_]+|{'|'.join(NAMES)})"
    for node in ast.walk(ast.parse(text)):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        texts = [part.value if isinstance(part, ast.Constant) else None for part in parts]
        if isinstance(texts[-1], str) and texts[-1].endswith(".png") and " " not in texts[0]:
            yield "".join(filled if part is None else re.escape(part) for part in texts)


def test_each_picture_is_drawn_by_a_command_that_its_page_shows():
    """A picture that no command draws cannot be had again; one that no page shows is not looked at."""
    pages, shown = {page: page.read_text(encoding="utf-8") for page in PAGES}, set()
    for picture in sorted(path.name for path in RESULTS.glob("*.png")):
        names = [name for name, text in COMMANDS.items() if any(re.fullmatch(p, picture) for p in _pictures_of(text))]
        assert names, f"{picture}: no command of experiments/ draws it"
        on = [text for text in pages.values() if f"results/{picture})" in text]
        assert on, f"{picture}: no page shows it"
        assert any(f"experiments.{name}" in text for name in names for text in on), f"{picture}: {names}"
        shown.add(picture)
    for page, text in pages.items():
        assert set(re.findall(r"\.\./results/(\w+\.png)", text)) <= shown, page
