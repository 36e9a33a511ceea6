"""`dpgen train` goes on with a run that did not end, and with nothing else."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from lightning_dpgen.cli.launch import describe_stop
from lightning_dpgen.plugins.checkpoints import Checkpoints
from lightning_dpgen.runs import run as train
from lightning_dpgen.runs import train as trained_run
from lightning_dpgen.runs.run_folder import RunFolder

pytestmark = pytest.mark.filterwarnings("ignore")

SETTINGS = [
    "model.steps=12", "model.hidden=8", "model.latent=2", "split.k=3", "split.iterations=2", "split.features=16", "rows=50",
]  # fmt: skip


def _one_line(err):
    lines = [line for line in err.splitlines() if line.startswith("dpgen:") and "warning" not in line]
    assert len(lines) == 1 and "Traceback" not in err, err
    return lines[0]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """Return a run that was asked to stop after its first block of lots."""
    from lightning_dpgen.cli.main import main

    folder = tmp_path_factory.mktemp("resume") / "run"
    patch = pytest.MonkeyPatch()
    patch.setattr(trained_run, "Checkpoints", lambda path, every, asked_to_stop: Checkpoints(path, every, lambda: True))
    with patch.context():
        assert main(["train", *SETTINGS, f"run_dir={folder}"]) == 130
    patch.undo()
    return folder


@pytest.fixture
def run(interrupted, tmp_path):
    return shutil.copytree(interrupted, tmp_path / "run")


def _lines(run):
    return (run / "private" / "ledger.jsonl").read_bytes().splitlines(keepends=True)


def test_the_same_command_goes_on(dpgen, run):
    before = _lines(run)
    assert not (run / "release").exists()
    status, out, _ = dpgen("train", *SETTINGS, f"run_dir={run}")
    assert status == 0 and "after 1 step (" in out
    assert _lines(run)[: len(before)] == before, "nothing of the ledger is ever taken away"
    certificate = json.loads((run / "release" / "privacy.json").read_text())
    assert certificate["stages"][-1]["event"]["count"] == 12 and certificate["epsilon"] <= 4.0
    assert dpgen("verify", run / "release")[0] == 0


OTHER = {
    "model.hidden=9": "model.hidden was 8 and is 9",
    "privacy.epsilon=8": "privacy.epsilon was 4.0 and is 8.0",
    "rows=51": "rows was 50 and is 51",
    "privacy=off": "other settings",
    "debug.private_seed=1": "privacy.noise and debug.private_seed",
}


def test_other_settings_are_refused(dpgen, run):
    before = _lines(run)
    for override, words in OTHER.items():
        status, _, err = dpgen("train", *SETTINGS, override, f"run_dir={run}")
        assert status == 2 and words in _one_line(err)
    # The ledger notes that it was opened; nothing was spent.
    assert all(b'"id"' not in line for line in _lines(run)[len(before) :])
    assert dpgen("train", *SETTINGS, f"run_dir={run}")[0] == 0, "and the run is as good as before"


def test_other_records_are_refused(dpgen, tmp_path):
    pictures = np.random.default_rng(0).integers(0, 2, size=(300, 3, 3))
    declared = ["data=images", "data.n=300", "data.height=3", "data.width=3", "data.high=1", "privacy.epsilon=8"]
    arguments = [*declared, *SETTINGS, f"data.path={tmp_path / 'f.npz'}", f"run_dir={tmp_path / 'run'}"]
    np.savez(tmp_path / "f.npz", images=pictures)
    patch = pytest.MonkeyPatch()
    patch.setattr(trained_run, "Checkpoints", lambda path, every, asked_to_stop: Checkpoints(path, every, lambda: True))
    with patch.context():
        assert dpgen("train", *arguments)[0] == 130
    patch.undo()
    pictures[7, 1, 1] = 1 - pictures[7, 1, 1]
    np.savez(tmp_path / "f.npz", images=pictures)
    status, _, err = dpgen("train", *arguments)
    assert status == 2 and "other records" in _one_line(err)


@pytest.mark.parametrize("damage", ["edited", "missing", "empty", "another run's", "cut"])
def test_a_damaged_ledger_is_refused_and_left_alone(dpgen, run, trained, damage):
    lines = _lines(run)
    spoilt = {
        "edited": [lines[0], lines[1].replace(b'"sample_rate": 1.0', b'"sample_rate": 0.5'), *lines[2:]],
        "missing": lines[:3] + lines[4:],
        "empty": [],
        "another run's": (trained / "private" / "ledger.jsonl").read_bytes().splitlines(keepends=True),
        "cut": lines[:6],
    }[damage]
    path = run / "private" / "ledger.jsonl"
    path.write_bytes(b"".join(spoilt))
    status, _, err = dpgen("train", *SETTINGS, f"run_dir={run}")
    assert status == 2 and _one_line(err)
    assert path.read_bytes().startswith(b"".join(spoilt)) and not (run / "release").exists()


def test_a_ledger_that_is_gone_is_missed(dpgen, run):
    (run / "private" / "ledger.jsonl").unlink()
    status, _, err = dpgen("train", *SETTINGS, f"run_dir={run}")
    assert status == 2 and "whose ledger is missing" in _one_line(err)
    for state in ("checkpoint.ckpt", "split.pt"):
        (run / "private" / state).unlink()
    status, _, err = dpgen("train", *SETTINGS, f"run_dir={run}")
    assert status == 2 and "names lines that it held" in _one_line(err)


def test_a_network_of_another_run_is_not_released(dpgen, run, tmp_path, monkeypatch):
    """It is refused even where all steps are made, and only the release is left to write."""
    from lightning_dpgen.release.rows import pictures

    other = tmp_path / "other"
    with monkeypatch.context() as patch:
        patch.setattr(pictures, "write_sheet", lambda *_: (_ for _ in ()).throw(OSError("disk gone")))
        assert dpgen("train", *SETTINGS, f"run_dir={other}")[0] == 2
    for folder, foreign in ((run, other), (other, run)):
        kept = (folder / "private" / "checkpoint.ckpt").read_bytes()
        swapped = tmp_path / "swapped" / folder.name
        shutil.copytree(folder, swapped)
        shutil.copy(foreign / "private" / "checkpoint.ckpt", swapped / "private" / "checkpoint.ckpt")
        status, _, err = dpgen("train", *SETTINGS, f"run_dir={swapped}")
        assert status == 2 and "refers to lines" in _one_line(err) and not (swapped / "release").exists()
        assert (folder / "private" / "checkpoint.ckpt").read_bytes() == kept


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_split_of_another_run_is_not_taken_up(dpgen, run, trained, checkpoint):
    """It is refused beside a checkpoint of this run, and where the run has left none."""
    shutil.copy(trained / "private" / "split.pt", run / "private" / "split.pt")
    if not checkpoint:
        (run / "private" / "checkpoint.ckpt").unlink()
    before = _lines(run)
    status, _, err = dpgen("train", *SETTINGS, f"run_dir={run}")
    assert status == 2 and "split.pt: refers to lines" in _one_line(err) and not (run / "release").exists()
    assert all(b'"id"' not in line for line in _lines(run)[len(before) :]), "and nothing was spent"


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("checkpoint.ckpt", -1),
        pytest.param("split.pt", 700, marks=pytest.mark.slow),
        pytest.param("checkpoint.ckpt", 0, marks=pytest.mark.slow),
        pytest.param("split.pt", 1, marks=pytest.mark.slow),
    ],
)
def test_a_damaged_state_is_one_line_and_the_run_goes_on_without_it(dpgen, run, name, left):
    path = run / "private" / name
    path.write_bytes(path.read_bytes()[:left])
    status, _, err = dpgen("train", *SETTINGS, f"run_dir={run}")
    assert status == 2 and f"{name}: is not what a run has saved" in _one_line(err)
    path.unlink()
    assert dpgen("train", *SETTINGS, f"run_dir={run}")[0] == 0
    assert dpgen("verify", run / "release")[0] == 0


def test_an_interrupt_after_the_last_word_says_that_the_release_is_there(dpgen, run, monkeypatch):
    def interrupted(*arguments, **keywords):
        write_release(*arguments, **keywords)
        raise KeyboardInterrupt

    write_release = train.write_release
    monkeypatch.setattr(train, "write_release", interrupted)
    status, _, err = dpgen("train", *SETTINGS, f"run_dir={run}")
    assert status == 130 and "after the release was complete" in _one_line(err)
    assert dpgen("verify", run / "release")[0] == 0


def test_two_runs_in_one_folder(dpgen, run):
    from lightning_dpgen.privacy.ledger import Ledger

    held = Ledger.reopen(run / "private" / "ledger.jsonl")
    status, _, err = dpgen("train", *SETTINGS, f"run_dir={run}")
    assert status == 2 and "is writing this ledger" in _one_line(err)
    held.close()


def test_a_full_disk_loses_nothing(dpgen, tmp_path, monkeypatch):
    run, calls, real = tmp_path / "run", [], os.fsync

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) > 20:
            raise OSError(errno.ENOSPC, "No space left on device", "ledger.jsonl")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    status, _, err = dpgen("train", *SETTINGS, f"run_dir={run}")
    assert status == 2 and "No space left on device" in _one_line(err) and f"run_dir={run}" in err
    monkeypatch.undo()
    assert dpgen("train", *SETTINGS, f"run_dir={run}")[0] == 0
    assert dpgen("verify", run / "release")[0] == 0


def test_a_release_that_could_not_be_written_is_written_later(dpgen, tmp_path, monkeypatch):
    run = tmp_path / "run"
    from lightning_dpgen.release.rows import pictures

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "samples.png")

    monkeypatch.setattr(pictures, "write_sheet", full)
    status, _, err = dpgen("train", *SETTINGS, f"run_dir={run}")
    assert status == 2 and "No space left" in _one_line(err) and not (run / "release").exists()
    monkeypatch.undo()
    status, out, _ = dpgen("train", *SETTINGS, f"run_dir={run}")
    assert status == 0 and "after 12 steps (" in out and dpgen("verify", run / "release")[0] == 0


def _as_a_program(arguments, when, which):
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "lightning_dpgen", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    when()
    process.send_signal(which)
    _, err = process.communicate(timeout=100)
    return process.returncode, err


@pytest.mark.parametrize("program", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["called", "program"])
@pytest.mark.parametrize("which", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_in_training_ends_cleanly_and_says_how_to_go_on(dpgen, tmp_path, which, program):
    run = tmp_path / "run"
    ledger, deadline = run / "private" / "ledger.jsonl", time.monotonic() + 100
    arguments = ["train", *SETTINGS[1:], "model.steps=2000", f"run_dir={run}"]

    def trains():
        while time.monotonic() < deadline and not (ledger.exists() and '", "stage": "training"' in ledger.read_text()):
            time.sleep(0.02)

    if program:
        status, err = _as_a_program(arguments, trains, which)
    else:
        # If nothing else takes the signal, it must not end the tests.
        before = signal.signal(which, lambda *_: None)
        sender = threading.Thread(target=lambda: (trains(), os.kill(os.getpid(), which)))
        sender.start()
        status, _, err = dpgen(*arguments)
        sender.join()
        signal.signal(which, before)
    assert status == 130
    line = next(line for line in err.replace("\r", "\n").splitlines() if line.startswith("dpgen:"))
    assert re.search(rf"To go on from where it stopped: dpgen train .* run_dir={run}$", line)
    last = json.loads(ledger.read_text().splitlines()[-1])
    assert last["never_drawn"], "what was written ahead is given back"
    assert (run / "private" / "checkpoint.ckpt").is_file()


def test_a_bought_number_of_records_is_remembered(dpgen, tmp_path, monkeypatch):
    run = tmp_path / "run"
    arguments = [*SETTINGS, "data.n=null", "data.n_share=0.02", f"run_dir={run}"]
    with monkeypatch.context() as patch:
        patch.setattr(trained_run, "Checkpoints", lambda path, every, asked_to_stop: Checkpoints(path, every, lambda: True))
        status, out, _ = dpgen("train", *arguments)
    assert status == 130
    counted = int(re.search(r"counted, with noise: ([\d,]+) records", out)[1].replace(",", ""))
    assert abs(counted - 1500) < 100
    assert dpgen("train", *arguments)[0] == 0 and dpgen("verify", run / "release")[0] == 0
    certificate = json.loads((run / "release" / "privacy.json").read_text())
    assert certificate["declared"]["n"] == counted and certificate["stages"][0]["name"] == "first pass"
    assert str(counted) not in certificate["statement"] and certificate["epsilon"] <= 4.0


@pytest.mark.slow
def test_a_kill_between_count_and_plan_loses_no_count(dpgen, tmp_path, monkeypatch):
    run = tmp_path / "run"
    arguments = [*SETTINGS, "data.n=null", "data.n_share=0.02", f"run_dir={run}"]
    with monkeypatch.context() as patch:
        patch.setattr(train._Run, "_plan", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert dpgen("train", *arguments)[0] == 130
    counts = [line for line in _lines(run) if line.startswith(b'{"id"') and b'"stage": "first pass"' in line]
    status, _, err = dpgen("train", *arguments)
    assert status == 0, err
    again = [line for line in _lines(run) if line.startswith(b'{"id"') and b'"stage": "first pass"' in line]
    assert again == counts and len(counts) == 1
    assert dpgen("verify", run / "release")[0] == 0


def interrupted_after(work):
    def done(*given):
        work(*given)
        raise KeyboardInterrupt

    return done


def test_what_went_wrong_before_a_number_was_known_cannot_go_on(dpgen, tmp_path, monkeypatch):
    run = tmp_path / "run"
    arguments = [*SETTINGS, "data.n=null", "data.n_share=0.02", f"run_dir={run}"]
    with monkeypatch.context() as patch:
        patch.setattr(train.discover, "run_discovery", interrupted_after(train.discover.run_discovery))
        assert dpgen("train", *arguments)[0] == 130
    status, _, err = dpgen("train", *arguments)
    assert status == 2 and "in its first pass over the records" in _one_line(err)


def test_training_that_was_lost_whole_is_not_released(dpgen, tmp_path, monkeypatch):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "_save", lambda *_: (_ for _ in ()).throw(OSError("disk gone")))
        assert dpgen("train", *SETTINGS[1:], "model.steps=1", f"run_dir={run}")[0] == 2
    status, _, err = dpgen("train", *SETTINGS[1:], "model.steps=1", f"run_dir={run}")
    assert status == 3 and "nothing to release" in _one_line(err) and not (run / "release").exists()


def test_what_came_of_a_run_is_said_as_it_is(trained, tmp_path):
    """A rank may die when the release is already there, and a user who began anew would pay twice."""
    finished, begun, nothing = RunFolder(trained), RunFolder(tmp_path / "begun"), RunFolder(tmp_path / "nothing")
    begun.private.mkdir(parents=True)
    begun.ledger.touch()
    assert describe_stop("train", [], finished) == f", after the release was complete: {finished.release}"
    assert "the ledger holds all that was drawn. To go on" in describe_stop("train", [], begun)
    assert describe_stop("train", [], nothing).endswith("nothing was released, and nothing was spent")
