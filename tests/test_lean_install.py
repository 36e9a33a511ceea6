"""`pip install lightning_dpgen` without the extra `dpgen`: an engineer's whole way, and one line where more is needed."""

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from absent import HEAD
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lightning_dpgen.cli.main import COMMANDS
from lightning_dpgen.privacy.extras import OF_DPGEN

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "tests" / "release" / "kept" / "format_2"
ENGINE = ("common", "privacy", "sampling", "gradients", "optim")
# The commands that work without it, on the weights of a network or the ledger of a run.
LEAN = ("verify", "dossier", "sign", "stop")

PROGRAM = """
import importlib, pkgutil, warnings
warnings.simplefilter("ignore")
import pytorch_lightning as pl, torch
from torch import nn
import lightning_dpgen
from lightning_dpgen import DPNorm, PrivateTraining, verify
from lightning_dpgen.cli.main import main

class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = (self.layer(x)[:, 0] - y).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

x = torch.rand(100, 4)
def fit(path=None, **options):
    budget = {"n": 100, "epsilon": 4, "delta": 1e-4, "sample_rate": 0.2, "steps": 6}
    private = PrivateTraining((x, x.sum(1)), **budget, clipping=DPNorm(c_max=5.0), ledger="ledger.jsonl")
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": pl.loggers.CSVLogger(".")}
    trainer = pl.Trainer(max_epochs=1, callbacks=[private.callback()], log_every_n_steps=1, **quiet, **options)
    trainer.fit(model := Line(), private.loader(), ckpt_path=path)
    trainer.save_checkpoint("kept.ckpt")
    return private, model

fit(max_steps=3)
private, model = fit("kept.ckpt")
assert private.release(model, "release", data="made up")["epsilon"] <= 4 and verify("release").good
print("fitted")
print("verify", main(["verify", "release"]), main(["dossier", "release", "-o", "dossier.md"]))
print("table", main(["verify", "table"]), main(["verify", "nothing"]), main([]), main(["--version"]))
for name in COMMANDS:
    print("command", name, main([name, "--help"]))
for place in ("lightning_dpgen", *(f"lightning_dpgen.{name}" for name in ENGINE)):
    package = importlib.import_module(place)
    for name in getattr(package, "__all__", ()):
        try:
            getattr(package, name)
        except ImportError as error:
            print("name", place, name, type(error).__name__, error)
for name in ENGINE:
    package = importlib.import_module(f"lightning_dpgen.{name}")
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(found.name)
print("imported", sorted({name.partition(".")[0] for name in sys.modules} & set(HIDDEN)))
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lean")
    with zipfile.ZipFile(KEPT / "numbers.zip") as archive:
        archive.extractall(folder / "table")
    names = {"HIDDEN": sorted(OF_DPGEN), "COMMANDS": list(COMMANDS), "ENGINE": ENGINE}
    program = "".join(f"{name} = {value!r}\n" for name, value in names.items()) + HEAD + PROGRAM
    return subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)


def test_an_engineer_fits_goes_on_releases_and_verifies(ended):
    assert ended.returncode == 0, ended.stderr
    assert {"fitted", "verify 0 0", "imported []"} <= set(ended.stdout.splitlines())


def test_a_release_of_a_model_is_not_checked_and_the_line_says_why(ended):
    line = "verdict: NOT CHECKED. the check of a release of anything but the weights of a network needs"
    (said,) = [text for text in ended.stdout.splitlines() if text.startswith("verdict: NOT CHECKED")]
    assert said.startswith(line) and said.endswith("pip install 'lightning_dpgen[dpgen]'")
    assert "table 2 2 2 0" in ended.stdout, ended.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_needs_more_is_one_line(ended, name):
    if name in LEAN:
        assert f"command {name} 0" in ended.stdout
        return
    assert f"command {name} 2" in ended.stdout
    line = rf"^dpgen: dpgen {name} needs \w+: pip install 'lightning_dpgen\[dpgen\]'$"
    assert re.search(line, ended.stderr, re.MULTILINE)


def test_a_name_that_needs_more_says_so(ended):
    told = [line.split(" ", 3) for line in ended.stdout.splitlines() if line.startswith("name ")]
    assert {"fit", "VAE", "load_release", "TableSchema", "evaluate"} <= {name for _, _, name, _ in told}
    for _, place, name, text in told:
        assert place == "lightning_dpgen", "a room of the engine needs none of it"
        assert re.fullmatch(rf"NotInstalled {place}.{name} needs \w+: pip install 'lightning_dpgen\[dpgen\]'", text)


def test_the_extra_has_the_packages_of_these_modules():
    with open(ROOT / "pyproject.toml", "rb") as file:
        extra = tomllib.load(file)["project"]["optional-dependencies"]["dpgen"]
    packages = packages_distributions()
    # Hydra brings omegaconf.
    ours = {canonicalize_name(dist) for name in OF_DPGEN - {"omegaconf"} for dist in packages[name]}
    assert ours == {canonicalize_name(Requirement(line).name) for line in extra}


def test_the_page_says_what_each_dependency_is_for():
    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    lists = {"": project["dependencies"], "dpgen": project["optional-dependencies"]["dpgen"]}
    asked = {(Requirement(line).name, extra) for extra, lines in lists.items() for line in lines}
    page = (ROOT / "docs" / "start" / "install.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| ([^|]+) \| (?:`(dpgen)`|always) \|$", page, re.MULTILINE)
    assert sorted((name, extra) for name, _, extra in rows) == sorted(asked)
    extras = re.findall(r"^\| `(\w+)` \| [^|]* \| [^|`]* \|$", page, re.MULTILINE)
    assert set(extras) >= set(project["optional-dependencies"])
