"""The best of a secret number of trials is chosen and charged once, and nothing of the others is left behind."""

import json
import shutil

import numpy as np
import pytest
import torch
from contracts import killed_trials
from contracts.sealed import rewrite

from lightning_dpgen.cli.main import main
from lightning_dpgen.release.drawing.release import load_release
from lightning_dpgen.runs import select as selection
from lightning_dpgen.runs.candidates import read_candidates
from lightning_dpgen.runs.reporter import SilentReporter
from lightning_dpgen.specs.words import asks_for_selection
from lightning_dpgen.verification.verify import verify

QUICK = [
    "model.steps=5", "model.hidden=8", "model.latent=2", "split.iterations=2", "split.features=16", "rows=50", "split.k=2",
]  # fmt: skip
BY_FIDELITY = ["privacy.selection_score=fidelity", "privacy.fidelity_share=0.1"]
LAW = ["privacy.selection=logarithmic", "privacy.selection_mean=5"]
KEPT = ["ledger.jsonl", "ledger.jsonl.heads", "ledger.jsonl.lock"]
SPACE = ["model.lr=0.001,0.01", "model.steps=3,4"]


def by_size(release):
    """Return a score for these tests: the number of numbers that the model has."""
    return sum(tensor.numel() for tensor in release._mixture.network.state_dict().values())


def of_nothing(release):
    raise RuntimeError("never works")


def of_the_larger(release):
    """Fail for the smaller of two models, as a trial that diverges may."""
    size = by_size(release)
    if size < 3_000 and release._mixture.run:
        raise FloatingPointError("diverged")
    return size


@pytest.fixture
def drawn(monkeypatch):
    """Return a function that sets which trials are drawn."""

    def of(*positions):
        def number(access, name):
            access.consume(name, "logarithmic")
            monkeypatch.setattr(access.stream, "integers", lambda size, below: np.array(positions)[:size] % below)
            return len(positions)

        monkeypatch.setattr(selection, "number_of_trials", number)

    return of


@pytest.fixture
def select(dpgen, tmp_path):
    def call(*words, name="run"):
        return *dpgen("train", *QUICK, *words, f"run_dir={tmp_path / name}"), tmp_path / name

    return call


@pytest.fixture(scope="module")
def selected(tmp_path_factory):
    """Return the folder of a finished selection."""
    folder = tmp_path_factory.mktemp("selections") / "run"
    law = [LAW[0], "privacy.selection_mean=2"]
    assert main(["train", *QUICK, *law, *BY_FIDELITY, "model.lr=0.001,0.01", "model.steps=3", f"run_dir={folder}"]) == 0
    return folder


def _certificate(run):
    return json.loads((run / "release" / "privacy.json").read_text())


def test_releases_the_winner_and_nothing_of_the_others(select, drawn):
    drawn(0, 3)
    status, out, err, run = select(*LAW, *BY_FIDELITY, *SPACE)
    assert status == 0, err
    assert "secret number of trials" in out and "trial" not in err
    assert sorted(path.name for path in (run / "private").iterdir()) == KEPT
    certificate = _certificate(run)
    assert verify(run / "release").good
    chosen = certificate["selection"]["chosen"]
    assert certificate["selection"]["space"] == {"model.lr": ["0.001", "0.01"], "model.steps": ["3", "4"]}
    assert certificate["declared"]["model"]["lr"] == float(chosen["model.lr"])
    assert certificate["event"]["type"] == "RepeatAndSelectDpEvent" and 3.9 < certificate["epsilon"] <= 4.0
    # Plans with three and with four steps differ, so a trial is one of the two.
    assert certificate["event"]["event"]["type"] == "OneOfDpEvent" and len(certificate["event"]["event"]["events"]) == 2
    assert "the best of a secret number of trials (logarithmic law, mean 5) by fidelity" in certificate["statement"]
    assert "listed under 'declared' but for model.lr, model.steps" in certificate["statement"]
    page = (run / "release" / "report.html").read_text()
    assert "the best of a secret number of trials" in page
    times = {path.stat().st_mtime for path in (*(run / "release").iterdir(), *(run / "private").iterdir(), run / "release")}
    assert len(times) == 1
    assert len(load_release(run / "release").sample(5, seed=0)) == 5


def test_the_best_is_taken_by_a_function_of_the_release(select, drawn):
    drawn(0, 1)
    words = ["model.hidden=4,16", "privacy.selection_score=cli.test_selection.by_size"]
    status, _, err, run = select(*LAW, *words)
    assert status == 0, err
    assert _certificate(run)["selection"]["chosen"] == {"model.hidden": "16"}
    assert _certificate(run)["declared"]["model"]["hidden"] == 16


def test_a_trial_that_fails_is_the_worst(select, drawn):
    drawn(1, 0)
    status, _, err, run = select(*LAW, "model.hidden=4,16", "privacy.selection_score=cli.test_selection.of_the_larger")
    assert status == 0, err
    assert _certificate(run)["selection"]["chosen"] == {"model.hidden": "16"}


def test_where_all_fail_nothing_is_released(select, drawn, monkeypatch):
    drawn(0, 0)
    monkeypatch.setattr(selection, "learn", lambda *_: of_nothing(None))
    status, _, err, run = select(*LAW, *BY_FIDELITY)
    assert status == 2 and "all trials" in err and "never works" in err and not (run / "release").exists()


def test_where_none_is_drawn_an_untrained_network_is_released(select, monkeypatch):
    monkeypatch.setattr(selection, "number_of_trials", lambda access, name: int(0 * access.consume(name, "poisson")))
    status, out, err, run = select("privacy.selection=poisson", "privacy.selection_mean=3", *BY_FIDELITY, SPACE[0])
    assert status == 0 and "with probability 0.05 there is none" in out, err
    assert _certificate(run)["selection"]["chosen"] is None and verify(run / "release").good
    declared, described = _certificate(run)["declared"], json.loads((run / "release" / "model.json").read_text())
    assert declared["model"]["hidden"] == described["hidden"]
    assert "an untrained network" in _certificate(run)["statement"]


@pytest.mark.parametrize(
    "where",
    [
        "in a trial",
        pytest.param("after a trial", marks=pytest.mark.slow),
        pytest.param("before the first", marks=pytest.mark.slow),
        pytest.param("before the release", marks=pytest.mark.slow),
    ],
)
def test_goes_on_after_an_interrupt(select, drawn, monkeypatch, where):
    drawn(0, 1, 0)
    words = [*LAW, "model.hidden=4,16", "privacy.selection_score=cli.test_selection.by_size"]
    with monkeypatch.context() as patch:
        calls = {"learn": 0, "saved": 0}

        def interrupt(*_, **__):
            raise KeyboardInterrupt

        def counted(original, name, at):
            def call(*arguments):
                calls[name] += 1
                if calls[name] == at:
                    raise KeyboardInterrupt
                return original(*arguments)

            return call

        if where == "before the release":
            patch.setattr(selection, "write_release", interrupt)
        elif where == "before the first":
            patch.setattr(selection, "learn", counted(selection.learn, "learn", 1))
        elif where == "in a trial":
            patch.setattr(selection, "learn", counted(selection.learn, "learn", 2))
        else:
            save = selection._Trials._save
            patch.setattr(selection._Trials, "_save", counted(save, "saved", 3))
        status, _, err, run = select(*words)
        assert status == 130 and "To go on from where it stopped" in err
    before = (run / "private" / "ledger.jsonl").read_text().count('"selection"')
    # A new draw would give another number: nothing is drawn again.
    monkeypatch.setattr(selection, "number_of_trials", None)
    status, _, err, run = select(*words)
    assert status == 0, err
    assert _certificate(run)["selection"]["chosen"] == {"model.hidden": "16"}
    assert (run / "private" / "ledger.jsonl").read_text().count('"selection"') == before
    assert verify(run / "release").good


def test_what_is_left_of_trials_when_it_was_killed_at_the_end_goes_with_the_next_call(select, drawn, monkeypatch):
    drawn(0, 1)
    words = [*LAW, "model.hidden=4,16", "privacy.selection_score=cli.test_selection.by_size"]
    with monkeypatch.context() as patch:
        patch.setattr(selection, "_forget", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        status, _, err, run = select(*words)
        assert status == 130 and "after the release was complete" in err and (run / "private" / "trials").exists()
    status, _, err, run = select(*words)
    assert status == 2 and "finished release" in err
    assert sorted(path.name for path in (run / "private").iterdir()) == KEPT


@pytest.mark.slow
def test_a_release_that_was_killed_while_it_was_written_is_written_again(select, drawn, monkeypatch):
    from lightning_dpgen.release import bundle

    drawn(0, 1)
    words = [*LAW, "model.hidden=4,16", "privacy.selection_score=cli.test_selection.by_size"]
    with monkeypatch.context() as patch:
        patch.setattr(bundle, "sync_files", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        assert select(*words)[0] == 130
    status, _, err, run = select(*words)
    assert status == 0 and verify(run / "release").good, err


def _stopped_before_the_release(select, monkeypatch, *words):
    with monkeypatch.context() as patch:
        patch.setattr(selection, "write_release", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        status, _, _, run = select(*words)
        assert status == 130
    return run


def test_the_order_of_the_words_is_that_of_what_was_drawn(select, drawn, monkeypatch):
    drawn(1)
    words = ["model.lr=0.001,0.01", "seed=0,1"]
    _stopped_before_the_release(select, monkeypatch, *LAW, *BY_FIDELITY, *words)
    status, _, err, _ = select(*LAW, *BY_FIDELITY, *words[::-1])
    assert status == 2 and "run_dir=" in err
    assert select(*LAW, *BY_FIDELITY, *words)[0] == 0


@pytest.mark.parametrize("stage", ["feature moments", "fidelity"])
def test_a_trial_whose_noisy_numbers_were_lost_costs_what_it_was_charged(stage):
    killed_trials.a_killed_trial_costs_what_was_planned_or_fails(stage)


def test_a_trial_that_is_gone_is_not_made_again(select, drawn, monkeypatch):
    drawn(0)
    run = _stopped_before_the_release(select, monkeypatch, *LAW, *BY_FIDELITY)
    shutil.rmtree(run / "private" / "trials")
    status, _, err, _ = select(*LAW, *BY_FIDELITY)
    assert status == 3 and "a trial is never made twice" in err and not (run / "release").exists()


@pytest.mark.slow
def test_a_trial_of_another_selection_is_not_taken(select, drawn, monkeypatch):
    drawn(0)
    mine = _stopped_before_the_release(select, monkeypatch, *LAW, *BY_FIDELITY)
    other, _ = select, shutil.copytree(mine, mine.with_name("other"))
    shutil.rmtree(mine)
    run = _stopped_before_the_release(other, monkeypatch, *LAW, *BY_FIDELITY)
    shutil.rmtree(run / "private" / "trials")
    shutil.copytree(run.with_name("other") / "private" / "trials", run / "private" / "trials")
    status, _, err, _ = select(*LAW, *BY_FIDELITY)
    assert status == 2 and "of another selection" in err and not (run / "release").exists()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        pytest.param(torch.OutOfMemoryError("CUDA"), marks=pytest.mark.slow),
        pytest.param(RuntimeError("can't allocate memory: 9"), marks=pytest.mark.slow),
    ],
)
def test_a_machine_without_memory_stops_a_selection_that_goes_on(select, drawn, monkeypatch, error):
    drawn(0)
    with monkeypatch.context() as patch:
        patch.setattr(selection, "learn", lambda *_: (_ for _ in ()).throw(error))
        status, _, err, _ = select(*LAW, *BY_FIDELITY)
        assert status == 2 and "out of memory" in err and "To go on from where it stopped" in err
    assert select(*LAW, *BY_FIDELITY)[0] == 0


def test_does_not_go_on_as_another_selection(select, drawn, monkeypatch):
    drawn(0)
    with monkeypatch.context() as patch:
        patch.setattr(selection, "write_release", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        assert select(*LAW, *BY_FIDELITY, SPACE[0])[0] == 130
    for words in (["privacy.selection=geometric", *BY_FIDELITY, SPACE[0]], [*LAW, *BY_FIDELITY, "model.lr=0.1,1"], []):
        status, _, err, _ = select(*words)
        assert status == 2 and "run_dir=" in err


REFUSED = {
    "selection_score": [*LAW],
    "logarithmic, poisson": ["privacy.selection=best", *BY_FIDELITY],
    "mean number": ["privacy.selection=geometric", "privacy.selection_mean=1", *BY_FIDELITY],
    "privacy.fidelity_share": [*LAW, "privacy.selection_score=fidelity"],
    "belongs to no selection": ["privacy.selection_mean=5"],
    "no_such": [*LAW, "privacy.selection_score=cli.test_selection.no_such"],
    "never works": [*LAW, "privacy.selection_score=cli.test_selection.of_nothing"],
    "may differ": [*LAW, *BY_FIDELITY, "privacy.epsilon=1,2"],
    "data.bins": [*LAW, *BY_FIDELITY, "data.bins=1,2"],
    "one device": [*LAW, *BY_FIDELITY, "trainer.devices=2"],
    "not with -m": [*LAW, *BY_FIDELITY, "-m", *SPACE],
    "expected data.n": [*LAW, *BY_FIDELITY, "data.n=null", "data.n_share=0.05"],
    "model.steps=0": [*LAW, *BY_FIDELITY, "model.steps=0,5"],
    "model=glob(*): names no values": [*LAW, *BY_FIDELITY, "model=glob(*)"],
    "seed=range(0): has no value": [*LAW, *BY_FIDELITY, "seed=range(0)"],
    "expected a privacy.epsilon": [*LAW, *BY_FIDELITY, "privacy.epsilon=null", "model.noise=1", "model.steps=5"],
}


@pytest.mark.parametrize("told", REFUSED)
def test_what_makes_no_selection_is_refused_before_anything_is_spent(select, told):
    status, _, err, run = select(*REFUSED[told])
    assert status == 2 and told in err and err.count("\n") == 1
    assert not (run / "private" / "ledger.jsonl").exists()


def test_a_budget_that_pays_for_no_trial_is_said(select):
    words = ["privacy.selection=poisson", "privacy.selection_mean=900", "privacy.epsilon=0.01"]
    status, _, err, run = select(*words, *BY_FIDELITY)
    assert status == 3 and "a trial of the selection" in err and not run.exists()


def test_the_budget_is_told_without_reading_a_record(dpgen):
    status, out, _ = dpgen("budget", *QUICK, *LAW, *BY_FIDELITY, *SPACE)
    assert status == 0 and "secret number of trials (logarithmic law, mean 5)" in out and "of 4 at delta 1e-05" in out
    assert out.startswith("planning 4 candidates\n")


def test_the_budget_of_a_trial_is_nearly_the_largest_that_fits():
    words = [*QUICK, *LAW, *BY_FIDELITY, *SPACE]
    found = read_candidates(words, SilentReporter())
    assert found.plan.epsilon <= 4.0 < 1.01 * found.plan.epsilon
    assert all(own.spec.privacy.epsilon == found.trial_epsilon for own in found.settings)
    for own in found.settings:
        assert own.plan().epsilon <= found.trial_epsilon


@pytest.mark.parametrize(
    "change",
    [
        {"mean": 9.0}, {"law": "geometric"}, {"chosen": {"model.lr": "7"}}, {"chosen": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_certificate_of_another_selection_is_not_to_be_trusted(selected, tmp_path, change):
    run = shutil.copytree(selected, tmp_path / "run")
    rewrite(run / "release", lambda c: c["selection"].update(change))
    assert any("selection" in problem for problem in verify(run / "release").problems)


def test_a_selection_is_asked_for_by_its_law():
    assert asks_for_selection(["privacy.selection=poisson"])
    assert not asks_for_selection(["privacy.selection=null", "privacy.selection_mean=4"])


def test_several_processes_make_no_trials(dpgen, tmp_path, monkeypatch):
    """Each would draw a number of trials of its own."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    status, _, err = dpgen("train", *LAW, *BY_FIDELITY)
    assert status == 2 and "without torchrun" in err and not list(tmp_path.iterdir())
