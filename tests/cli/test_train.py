"""`dpgen train` leaves a complete release with nothing private in it, and ends cleanly when it is interrupted."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

from lightning_dpgen.data.public_sets import load_public_set
from lightning_dpgen.release.drawing.release import load_release
from lightning_dpgen.release.files import NotARelease

from .conftest import QUICK

pytestmark = pytest.mark.filterwarnings("ignore")

FILES = {
    "model.safetensors", "model.json", "privacy.json", "synthetic.parquet", "samples.png", "report.html", "README.md",
    "croissant.json",
}  # fmt: skip


def test_the_release_is_complete(trained):
    assert {path.name for path in (trained / "release").iterdir()} == FILES
    table = pd.read_parquet(trained / "release" / "synthetic.parquet")
    assert list(table.columns) == [f"pixel_{i}" for i in range(64)] + ["label"] and len(table) == 50
    assert table.to_numpy().min() >= 0 and table.iloc[:, :64].to_numpy().max() <= 16 and table["label"].max() <= 9
    page = (trained / "release" / "report.html").read_text()
    assert "http" not in page.replace("http-equiv", "") and "<script" not in page


def test_the_ledger_is_the_plan(trained):
    lines = [json.loads(line) for line in (trained / "private" / "ledger.jsonl").read_text().splitlines()]
    stages = [line["stage"] for line in lines if "id" in line]
    assert stages == ["feature moments"] + ["clustering"] * 2 + ["final pass"] + ["training"] * 5
    assert lines[-1]["closed"] == 9 and lines[-1]["never_drawn"] == []
    certificate = json.loads((trained / "release" / "privacy.json").read_text())
    assert certificate["private"] and certificate["epsilon"] <= certificate["target_epsilon"] == 4.0
    assert [stage["name"] for stage in certificate["stages"]] == list(dict.fromkeys(stages))


def test_nothing_private_is_released(trained):
    """The release has no raw record in any array, and no word that is only for private/."""
    records = load_public_set("digits").encoded.units
    raw = {row.tobytes() for row in records}
    rows = pd.read_parquet(trained / "release" / "synthetic.parquet").iloc[:, :64].to_numpy().astype(np.uint8)
    assert not any(row.tobytes() in raw for row in rows)
    names = set(load_file(trained / "release" / "model.safetensors"))
    layers = {f"{side}.layers.{i}.weight" for side in ("encoder", "decoder") for i in (0, 1)}
    layers |= {"encoder.layers.0.bias", "encoder.layers.1.bias", "decoder.layers.0.bias"}
    assert names == layers | {"output_bias"}
    for name in ("model.json", "privacy.json", "README.md", "report.html"):
        text = (trained / "release" / name).read_text()
        assert not any(word in text for word in ("negative_elbo", "lot_size", "ledger", str(trained)))


def test_a_release_samples_pictures(trained):
    release = load_release(trained / "release")
    pictures = release.sample(7, seed=1)
    assert pictures.shape == (7, 8, 8) and (pictures == release.sample(7, seed=1)).all()
    assert release.sample(0).shape == (0, 8, 8)


def test_the_folder_of_a_run_stands_for_its_release(trained, tmp_path):
    """As for every command; a folder without a release is told by its own name."""
    expected = load_release(trained / "release").sample(5, seed=1)
    assert all((load_release(given).sample(5, seed=1) == expected).all() for given in (trained, str(trained)))
    (tmp_path / "private").mkdir()
    with pytest.raises(NotARelease, match=rf"^{tmp_path} holds no model.json"):
        load_release(tmp_path)


ODD = [
    ["split.k=1"],
    pytest.param(["split.k=40", "privacy.epsilon=8"], marks=pytest.mark.slow, id="split.k=40"),
    ["model.rate=1", "clipping=fixed", "rows=0", "data.n=900"],
    ["data.classes=0", "data.threshold=7", "model.bias=zero"],
]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd[0])
def test_odd_settings_make_true_certificates(dpgen, tmp_path, odd):
    status, _, err = dpgen("train", *QUICK[:-1], "rows=20", *odd, f"run_dir={tmp_path / 'run'}")
    assert status == 0, err
    assert dpgen("verify", tmp_path / "run" / "release")[0] == 0


@pytest.mark.parametrize("which, after", [pytest.param(signal.SIGINT, 1.0, marks=pytest.mark.slow), (signal.SIGTERM, 0.3)])
def test_interruption_before_anything_is_spent(tmp_path, which, after):
    script = "import sys, lightning_dpgen.cli.main as m; print('up', flush=True); sys.exit(m.main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "train", "model.steps=20000", "model.rate=0.01", f"run_dir={tmp_path / 'run'}"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONWARNINGS": "ignore"}
    )
    assert process.stdout.readline() == "up\n"
    time.sleep(after)
    process.send_signal(which)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err.startswith("dpgen: interrupted; nothing was released"), err
    assert len(err.splitlines()) == 1 and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "clipping",
    [["clipping=decay"], ["clipping=quantile", "clipping.smooth=0.5"], ["clipping=normalised", "clipping.c=0.5"]],
    ids=" ".join,
)
def test_every_clipping_rule_trains(dpgen, tmp_path, clipping):
    assert dpgen("train", *QUICK, *clipping, f"run_dir={tmp_path / 'r'}")[0] == 0
    assert dpgen("verify", tmp_path / "r" / "release")[0] == 0


def test_a_training_that_diverges_stops_in_one_line_and_releases_nothing(dpgen, tmp_path):
    settings = ["model=wgan", "model.optimizer=sgd", "model.lr=1000", "model.generated=data_free", "model.steps=100"]
    status, _, err = dpgen("train", *QUICK, *settings, f"run_dir={tmp_path / 'run'}")
    last = err.splitlines()[-1]
    assert status == 2 and last.startswith("dpgen: model.lr=1000: the training has diverged: after "), err
    assert "What was drawn is spent" in last and not (tmp_path / "run" / "release").exists()
    drawn = [
        line for line in (tmp_path / "run" / "private" / "ledger.jsonl").read_text().splitlines() if "training" in line
    ]
    assert 0 < len(drawn) < 100
