"""A mistake that needs no library of learning is told before one is imported."""

import re
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_keys import column_of
from lightning_dpgen.models.forests import StackedProducts
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.release.drawing.model_files import write_model

SCHEMA = TableSchema((
    column_of("sex", {"type": "category", "values": ["F", "M"]}),
    column_of("age", {"type": "integer", "low": 0, "high": 99, "bins": 4}),
))  # fmt: skip
# Commands, each with mistakes in a setting, whose name is told.
SETTINGS = {
    "train": ["data.n=x", "model.hiden=3", "model.rate=2", "clipping=fixd", "hydra.launcher.n_jobs=4", "privacy.delta=0.5"],
    "budget": ["model.stepz=3", "privacy.epsilon=1e4"],
    "budget project": ["project.kk=3", "model=vae"],
    "audit": ["audit.drawz=3", "model.stepz=3", "data.n=5", "run_dir=x"],
    "project": ["project.radius=x", "model=vae", "project.kk=3"],
    "train -m seed=1,2": ["model.lrr=1,2"],
    "train privacy.selection=logarithmic": ["model.optimizer=adam,adm"],
}  # fmt: skip
_OF_TABLE = "data=table data.n=9"
# The words of each command, and a part of the line that it ends in.
MISTAKES = {f"{command} {word}": word.partition("=")[0] for command, words in SETTINGS.items() for word in words}
QUICKEST = len(MISTAKES)
MISTAKES |= {
    "trian": "dpgen train",
    f"train {_OF_TABLE} data.path=none.csv data.schema=t.yaml": "no file",
    f"train {_OF_TABLE} data.path=t.csv data.schema=none.yaml": "no such file",
    f"train {_OF_TABLE} data.path=t.csv data.schema=bad.yaml": "wor",
    f"train {_OF_TABLE} data.path=t.csv data.schema=ok.yaml data.person=aeg data.max_rows=2": "did you mean age?",
    f"train {_OF_TABLE} data.path=t.csv data.schema=t.yaml": "has sex, not in the schema",
    "train run_dir=done": "holds a finished release already",
    "train run_dir=t.csv": "is a file; expected a folder",
    "train data=images data.n=9 data.height=2 data.width=2 data.path=none": "no file",
    "sample": "are required: release",
    "sample none": "is not a folder",
    "sample r --where colour=red": "--where colour",
    "sample r --where age>100": "--where age>100",
    "sample r --where age>50 --where age<20": "no record fulfils all conditions on it: leave some out",
    "sample r --where age=40..30": "expected the smaller end",
    "sample r --where 'age'>50": "without quotes, or in backquotes: `age`",
    "sample r --component 7": "--component 7",
    "sample r --form long": "--form long",
    "sample r -o none/a.csv": "there is no folder",
    "sample r -o done/release/a.csv": "lies in a release",
    "sample r -o done/release/rows/": "lies in a release",
    "sample r -o sqlite:///done/release/a.db --table t": "lies in a release",
    "schema t.csv -o done/release/a.yaml": "lies in a release",
    "train run_dir=done/release": "lies in a release",
    "evaluate": "are required: release",
    "evaluate none data=table": "is not a folder",
    "evaluate r data=table data.path=none.csv": "no file",
    "evaluate r data=table data.path=t.csv --held-out none.csv": "there is no such file",
    "evaluate r data=table data.path=t.csv --by colour": "--by colour",
    "verify": "are required: release",
    "verify none": "is not a folder",
    "verify r": "privacy.json",
    "schema none.csv": "expected a file",
    "schema t.csv --explain a": "needs a schema",
    "schema bad.yaml": "wor",
    "encode r data=table data.path=t.csv -o c.parquet": "measured statistics",
    "sign r --key none.pem": "there is no such file",
}  # fmt: skip
HEAVY = ("torch", "sklearn", "opacus", "pytorch_lightning", "matplotlib", "dp_accounting")
# A setting is read without them, too.
FOR_RECORDS = ("scipy", "pandas")


def test_a_mistake_is_told_before_anything_heavy_is_imported(tmp_path):
    """One process for all, since the first command that imports something is told by its own line."""
    (tmp_path / "r").mkdir()
    write_model(tmp_path / "r", Mixture(StackedProducts(SCHEMA, 2), torch.full((2,), 0.5)))
    (tmp_path / "t.csv").write_text("sex,age\nF,1\n")
    (tmp_path / "t.yaml").write_text("columns:\n  age: {type: integer, low: 0, high: 99}\n")
    (tmp_path / "ok.yaml").write_text("columns:\n  sex: {type: drop}\n  age: {type: integer, low: 0, high: 99}\n")
    (tmp_path / "done" / "release").mkdir(parents=True)
    (tmp_path / "done" / "release" / "privacy.json").write_text("{}")
    (tmp_path / "bad.yaml").write_text("columns:\n  age: {type: wor}\n")
    code = (
        "import sys; from lightning_dpgen.cli.main import main\n"
        "for words in sys.argv[1:]:\n"
        f"    print(main(words.split()), [name for name in {(*HEAVY, *FOR_RECORDS)} if name in sys.modules])"
    )
    run = [sys.executable, "-c", code, *MISTAKES]
    done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=tmp_path)
    for place, (words, ended) in enumerate(zip(MISTAKES, done.stdout.splitlines(), strict=True)):
        for name in FOR_RECORDS if place >= QUICKEST else ():
            ended = re.sub(f"(, )?'{name}'", "", ended)
        assert ended == "2 []", (words, ended, done.stderr)
    for (words, said), line in zip(MISTAKES.items(), done.stderr.splitlines(), strict=True):
        assert said in line, (words, line)


# The libraries that networks are trained with, and the models that train none.
TRAINING = ("pytorch_lightning", "lightning_fabric", "opacus", "torchmetrics")
TRAINS_NOTHING = ("measured", "classifier")


@pytest.mark.slow
def test_a_run_that_trains_no_network_does_not_import_what_networks_are_trained_with(tmp_path):
    pictures, labels = np.random.default_rng(0).integers(0, 2, (200, 4, 4), np.uint8), np.arange(200) % 2
    np.savez(tmp_path / "p.npz", images=pictures, labels=labels)
    of_pictures = "data=images data.path=p.npz data.n=200 data.height=4 data.width=4 data.classes=2 privacy.epsilon=4"
    code = (
        "import sys; from lightning_dpgen.cli.main import main\n"
        "for words in sys.argv[1:]:\n"
        f"    print([main(words.split()), *(name for name in {TRAINING} if name in sys.modules)], file=sys.stderr)"
    )
    commands = [f"train {of_pictures} model={name} run_dir={name}" for name in TRAINS_NOTHING]
    run = [sys.executable, "-c", code, *commands]
    done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=tmp_path)
    ended = [line for line in done.stderr.splitlines() if line.startswith("[")]
    assert ended == ["[0]", "[0]"], done.stderr
    assert all(find_spec(name) for name in TRAINING), "a library by another name is not looked for"
