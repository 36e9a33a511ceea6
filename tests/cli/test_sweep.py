"""`dpgen train -m` makes a run for each combination, each in its own folder, and a table."""

import contextlib
import csv
import io
import json
import re
import subprocess
import sys

import pytest

from lightning_dpgen.cli import sweep
from lightning_dpgen.cli.main import main
from lightning_dpgen.privacy.accounting.accountant import compute_epsilon
from lightning_dpgen.privacy.accounting.events import compose_events, decode

QUICK = ["model.steps=5", "model.hidden=8", "split.k=2", "split.iterations=2", "split.features=16", "rows=50"]
GRID = [*QUICK, "privacy.epsilon=2,4", "model=vae,rbm"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Return the folder of a finished sweep, and its output."""
    root = tmp_path_factory.mktemp("sweeps") / "sweep"
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["train", "-m", *GRID, f"run_dir={root}"]) == 0
    return root, out.getvalue()


def _certificates(root):
    return [json.loads((root / str(number) / "release" / "privacy.json").read_text()) for number in range(4)]


@pytest.mark.slow
def test_each_combination_is_a_run_of_its_own(swept):
    root, _ = swept
    found = _certificates(root)
    assert [own["target_epsilon"] for own in found] == [2.0, 2.0, 4.0, 4.0]
    assert all(own["private"] and own["epsilon"] <= own["target_epsilon"] for own in found)
    assert all((root / str(number) / "private" / "ledger.jsonl").exists() for number in range(4))


def test_the_table_says_what_became_of_each(swept):
    root, out = swept
    header, *rows = csv.reader((root / "summary.csv").read_text().splitlines())
    assert header == ["job", "privacy.epsilon", "model", "epsilon", "delta", "seconds", "ended"]
    assert [row[:3] for row in rows] == [["0", "2", "vae"], ["1", "2", "rbm"], ["2", "4", "vae"], ["3", "4", "rbm"]]
    assert all(row[-1] == "done" for row in rows) and all(re.search(rf"^{row[0]} .*done$", out, re.M) for row in rows)


def test_what_all_runs_cost_together_is_said(swept):
    root, out = swept
    epsilon = compute_epsilon(compose_events([decode(own["event"]) for own in _certificates(root)]), 1e-5).epsilon
    said = float(re.search(r"the 4 releases tell together: epsilon ([\d.]+) at delta 1e-05", out)[1])
    assert said == pytest.approx(epsilon, rel=1e-4) and said > 4.0


def test_the_same_sweep_again_runs_what_is_missing_alone(swept, dpgen, monkeypatch):
    root, _ = swept
    begun = []
    monkeypatch.setattr(sweep, "_launch", lambda *given: begun.append(given))
    assert dpgen("train", "-m", *GRID, f"run_dir={root}")[0] == 0 and len(begun) == 1
    before = _certificates(root)
    for number in range(4):
        sweep.job(sweep.DictConfig({"root": str(root), "place": ".", "job": number}))
    assert _certificates(root) == before
    status, _, err = dpgen("train", "-m", *GRID, "seed=1", f"run_dir={root}")
    assert status == 2 and "holds a sweep over other settings" in err


def test_a_sweep_is_no_run(dpgen, swept):
    """Finished or not, its folder is no place for one more release."""
    root, _ = swept
    status, _, err = dpgen("train", *QUICK, f"run_dir={root}")
    assert status == 2 and "holds a sweep" in err and not (root / "release").exists()


MISTAKES = {
    "a value of one job": (["privacy.epsilon=1,x"], r"job 1 \(privacy\.epsilon=x\): privacy\.epsilon=x: expected a number"),
    "a setting of all jobs": (["seed=0,1", "model.steps=0"], r"job 0 \(seed=0\): model\.steps=0"),
    "a setting of one model": (["model=vae,rbm", "model.latent=2"], r"job 1 \(model=rbm\): there is no setting"),
    "a sweeper that looks at results": (["hydra/sweeper=optuna", "seed=0,1"], "a sweeper that chooses by results"),
    "a launcher that is not there": (["hydra/launcher=nosuch", "seed=0,1"], r"pip install lightning_dpgen\[joblib\]"),
    "a setting of no launcher": (["hydra.launcher.nosuch=3", "seed=0,1"], r"hydra\.launcher\.nosuch=3: Could not override"),
    "an option": (["seed=0,1", "--quiet"], "unknown option '--quiet'"),
    "no grid": (["seed=[0,1"], r"argument 'seed=\[0,1': cannot be read as a setting or a sweep"),
    "a folder for each": (["seed=0,1", "run_dir=a,b"], "run_dir: expected one folder"),
    "names that are not said": (["model=glob(*)"], r"model=glob\(\*\): names no values; expected"),
    "a range without steps": (["model.lr=interval(1,2)"], r"model\.lr=interval\(1,2\): names no values; expected"),
    "an empty range": (["seed=range(0)"], r"seed=range\(0\): has no value; expected"),
    "nodes": (["seed=0,1", "trainer.num_nodes=2"], r"job 0 \(seed=0\): trainer\.num_nodes=2"),
}


@pytest.mark.parametrize(("words", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_sweep_with_a_mistake_begins_nothing(dpgen, tmp_path, words, message):
    status, _, err = dpgen("train", "-m", *words, f"run_dir={tmp_path / 'sweep'}")
    assert status == 2 and re.search(message, err) and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["+run_dir=gg"], "gg"),
        (["run_dir=first", "run_dir=last"], "last"),
        (["run_dir=first", "run_dir=null"], None),
        (['run_dir="a (b) ü"'], "a (b) ü"),
    ],
    ids=str,
)
def test_the_folder_of_a_sweep_is_that_of_a_run(dpgen, tmp_path, monkeypatch, words, name):
    monkeypatch.chdir(tmp_path)
    begun = []
    monkeypatch.setattr(sweep, "_launch", lambda root, *_: begun.append(root))
    dpgen("train", "-m", *GRID, *words)
    (root,) = begun
    assert root.parent == tmp_path / "runs" if name is None else root == tmp_path / name
    assert "run_dir" not in (root / "private" / "jobs.json").read_text()


def test_a_run_that_is_there_is_no_sweep(dpgen, trained, tmp_path):
    (tmp_path / "file").write_text("x")
    for folder, message in ((trained, "finished release"), (tmp_path, "is not empty, and holds no sweep")):
        status, _, err = dpgen("train", "-m", "seed=0,1", f"run_dir={folder}")
        assert status == 2 and message in err


def test_ranks_start_no_sweep(dpgen, tmp_path, monkeypatch):
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    status, _, err = dpgen("train", "-m", "seed=0,1", f"run_dir={tmp_path / 'sweep'}")
    assert status == 2 and "start a sweep as one process" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"], ["trainer.devices=2", "trainer.accelerator=cpu"]],
    ids=["joblib", "several devices"],
)
def test_other_ways_to_run_jobs(tmp_path, more):
    root = tmp_path / "sweep"
    words = ["train", "--multirun", *QUICK, "privacy.epsilon=2,4", *more, f"run_dir={root}"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "lightning_dpgen", *words], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("tell together") == 1 and done.stdout.count("done: epsilon") == 2
    assert {path.name for path in root.iterdir()} == {"0", "1", "private", "summary.csv"}
