"""`dpgen stop` ends an interrupted run for good, and its study has back what the run has not drawn."""

import shutil

import pytest

from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.ledger import Ledger
from lightning_dpgen.privacy.studies.study import Study

QUICK = ["model.steps=20", "model.hidden=8", "model.latent=2", "split.iterations=2", "split.features=16", "rows=50"]
TOTAL = ["privacy.study_epsilon=5", "privacy.study_delta=1e-5"]


@pytest.fixture
def interrupted(dpgen, tmp_path, monkeypatch):
    """Return words of a run in a study, which was interrupted at the eleventh step of its training, and its folder."""
    words = [*QUICK, f"privacy.study_folder={tmp_path / 'studies'}", "privacy.study=census", "privacy.epsilon=2"]
    made = []

    def opened(self, stage, **words):
        made.append(stage)
        if made.count("training") > 10:
            raise KeyboardInterrupt
        return opening(self, stage, **words)

    opening = Account.open
    with monkeypatch.context() as patch:
        patch.setattr(Account, "open", opened)
        status, _, err = dpgen("train", *words, *TOTAL, f"run_dir={tmp_path / 'run'}")
    assert status == 130, err
    return words, tmp_path / "run"


def test_what_was_not_drawn_goes_back(dpgen, tmp_path, interrupted):
    words, run = interrupted
    study = Study(tmp_path / "studies" / "census.jsonl")
    whole = study.total.epsilon
    status, out, _ = dpgen("stop", run)
    assert status == 0 and "of 20 accesses of 'training' were drawn. The run is stopped for good" in out
    assert "Study census counts what was drawn, and goes from epsilon" in out and "private curves" in out
    assert 0.0 < study.total.epsilon < whole
    status, out, _ = dpgen("budget", *words)
    assert status == 0 and "spent so far: epsilon" in out and "(1 run)" in out
    status, _, err = dpgen("train", *words, f"run_dir={run}")
    assert status == 2 and "was stopped for good" in err and not (run / "release").exists()
    after = study.total
    status, out, _ = dpgen("stop", run / "private" / "ledger.jsonl")
    assert status == 0 and "stays at epsilon" in out and study.total == after


def test_a_crash_between_ledger_and_study_is_completed(dpgen, tmp_path, interrupted):
    _, run = interrupted
    study = Study(tmp_path / "studies" / "census.jsonl")
    whole = study.total.epsilon
    ledger = Ledger.reopen(run / "private" / "ledger.jsonl")
    ledger.stop()
    assert study.total.epsilon == whole
    assert dpgen("stop", run)[0] == 0 and study.total.epsilon < whole


def test_a_study_that_was_moved_is_named(dpgen, tmp_path, interrupted):
    _, run = interrupted
    shutil.move(tmp_path / "studies", tmp_path / "moved")
    status, _, err = dpgen("stop", run)
    assert status == 2 and "census.jsonl" in err and not Ledger.read(run / "private" / "ledger.jsonl").stopped
    status, _, err = dpgen("stop", run, "--study", tmp_path / "nowhere.jsonl")
    assert status == 2 and "expected the file of a study" in err
    Study(tmp_path / "other.jsonl", epsilon=5.0, delta=1e-5)
    status, _, err = dpgen("stop", run, "--study", tmp_path / "other.jsonl")
    assert status == 2 and "belongs to the study" in err and not Ledger.read(run / "private" / "ledger.jsonl").stopped
    assert dpgen("stop", run, "--study", tmp_path / "moved" / "census.jsonl")[0] == 0


def test_a_run_that_is_going_on_is_left_alone(dpgen, interrupted):
    _, run = interrupted
    held = Ledger.reopen(run / "private" / "ledger.jsonl")
    status, _, err = dpgen("stop", run)
    assert status == 2 and "is writing this ledger" in err
    held.close()


def test_runs_that_have_nothing_to_give_back(dpgen, trained, tmp_path):
    status, _, err = dpgen("stop", trained)
    assert status == 2 and "entered in no study, so a stop would save nothing, and it is not stopped" in err
    for place in (tmp_path, tmp_path / "nothing"):
        status, _, err = dpgen("stop", place)
        assert status == 2 and "expected the folder of a run" in err


def test_a_study_in_the_place_of_a_run_is_called_one(dpgen, tmp_path):
    Study(tmp_path / "census.jsonl", epsilon=5.0, delta=1e-5)
    status, _, err = dpgen("stop", tmp_path / "census.jsonl")
    assert status == 2 and "is a study: name the run to stop, by its folder or its ledger" in err
