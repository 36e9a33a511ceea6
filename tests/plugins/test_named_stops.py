"""A fit that ends early is released at the next of its named stops, and what it has not drawn goes back to its study."""

import json
import shutil

import pytest
import pytorch_lightning as pl
import torch
from contracts.sealed import rewrite
from torch import nn

from lightning_dpgen import Fixed, PrivateTraining, make_plan, release_weights, training_stage, verify
from lightning_dpgen.privacy.accounting.accountant import compute_epsilon
from lightning_dpgen.privacy.accounting.epsilon_range import gaussian_mu, round_up
from lightning_dpgen.privacy.accounting.events import decode
from lightning_dpgen.privacy.errors import LedgerError, PlanMismatch
from lightning_dpgen.privacy.studies.study import Study

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec"),
    pytest.mark.filterwarnings("ignore:.*max_epochs"),
    pytest.mark.filterwarnings("ignore:.*no `val_dataloader`"),
    pytest.mark.filterwarnings("ignore:GPU available"),
]

N, STEPS = 400, 12
RECORDS = torch.rand(N, 4, generator=torch.Generator().manual_seed(0))
SETTINGS = {"n": N, "epsilon": 4.0, "delta": 1e-5, "sample_rate": 0.2, "steps": STEPS, "clipping": Fixed(1.0)}


class Plain(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(4, 4)

    def training_step(self, batch, batch_idx):
        return (self.net(batch) - batch).square().sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-2)


class StopAfter(pl.Callback):
    """Stops by the number of steps, which is no function of the records."""

    def __init__(self, steps):
        self.left = steps

    def on_train_batch_end(self, trainer, *_):
        self.left -= 1
        if not self.left:
            trainer.should_stop = True


def _fitted(steps=STEPS, checkpoint=None, model=None, keep=None, **changes):
    private, model = PrivateTraining(RECORDS, **SETTINGS | changes), model or Plain()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(callbacks=[private.callback(), StopAfter(steps)], accelerator="cpu", max_epochs=1, **quiet)
    trainer.fit(model, private.loader(), ckpt_path=checkpoint)
    if keep is not None:
        trainer.save_checkpoint(keep)
    return private, model


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize(("made", "charged"), [(2, 3), (3, 3), (5, 6), (6, 6), (9, 12), (12, 12)])
def test_it_is_released_at_the_next_named_stop(tmp_path, made, charged, accountant):
    private, model = _fitted(made, stops=[3, 6], accountant=accountant)
    certificate = private.release(model, tmp_path / "release")
    assert verify(tmp_path / "release").good, verify(tmp_path / "release").problems
    stops = certificate["stops"]
    assert (stops["named"], stops["charged"], stops["delta_of_each"]) == ([3, 6, 12], charged, pytest.approx(1e-5 / 3))
    assert (
        certificate["epsilon"] == stops["epsilons"][stops["named"].index(charged)] <= 4.0 == certificate["target_epsilon"]
    )
    # From the listed events alone.
    event = decode(certificate["event"])
    assert event.count == charged
    assert certificate["epsilon"] == round_up(compute_epsilon(event, 1e-5 / 3, accountant=accountant).epsilon)
    assert certificate.get("stopped") == (None if made == STEPS else {"training": made})
    # Other ways to state the cost are those of the procedure, whenever it ends.
    whole, replaced = private.plan.event, certificate["also"]["replace_one_epsilon"]
    if accountant == "pld":
        assert replaced == pytest.approx(compute_epsilon(whole, 1e-5 / 3, relation="replace_one").epsilon, rel=0.01)
    at, curve = next(pair for pair in certificate["also"]["curve"] if pair[0] == 1e-5)
    assert curve == pytest.approx(stops["epsilons"][-1], rel=1e-3) and at == 1e-5
    assert certificate["also"]["gaussian_mu"] == round_up(gaussian_mu(stops["epsilons"][-1], 1e-5))
    words = certificate["statement"]
    assert f"({stops['epsilons'][-1]:g}, 1e-05)-differentially private" in words
    assert "named 3 and 6 accesses of the stage 'training', before all 12" in words
    assert ("charged as a whole" in words) == (charged == 12)
    if charged < 12:
        assert f"after {made}, and is charged up to {charged}" in words and "add up to 1e-05" in words


def _a_time_later(c):
    """Fewer steps than the named time before the one that is charged."""
    c["stopped"].update(training=2)


FORGED = {
    "fewer steps than the time before": (_a_time_later, "expected the first time behind the 2 accesses"),
    "an interleaved stage": (lambda c: c["stages"][0].update(interleaved=True), "of an interleaved stage"),
    "metrics without their noise": (
        lambda c: c["declared"].update(metrics={"bounds": {"loss": [0, 4]}, "every": 2}),
        "no noise of this name",
    ),
    "validation without a stage": (
        lambda c: c["declared"].update(validation={"n": 4, "bounds": {"loss": [0, 4]}, "every": 2}),
        "no noise of this name",
    ),
    "a time that was not named": (lambda c: c["stops"].update(named=[3, 7, 12]), "expected a named time"),
    "an earlier time than was drawn": (lambda c: c["stopped"].update(training=7), "the event has fewer"),
    "delta that is not divided": (lambda c: c["stops"].update(delta_of_each=1e-5), "over the 3 named times"),
    "no stop for good": (lambda c: c.pop("stopped"), "stopped for good"),
    "fewer named times": (lambda c: c["stops"].update(named=[6, 12], epsilons=c["stops"]["epsilons"][1:]), "delta_of_each"),
    "cheaper whole": (lambda c: c["stops"]["epsilons"].__setitem__(2, 3.0), "epsilon of a named time"),
    "an epsilon too few": (lambda c: c["stops"]["epsilons"].pop(), "an epsilon for each"),
    "falling": (lambda c: c["stops"].update(named=[6, 3, 12]), "rising"),
    "no such stage": (lambda c: c["stops"].update(stage="x"), "expected a stage"),
    "charged to nothing": (lambda c: c["stops"].update(charged=3), "the event of so many"),
    "without the field": (lambda c: c.pop("stops"), "is stated as"),
    "another stage": (lambda c: c["stopped"].update(x=1), "the event has fewer"),
    "more than a thousand": (lambda c: c["stops"].update(named=[*range(1, 22)]), "too long"),
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped") / "release"
    private, model = _fitted(5, stops=[3, 6])
    private.release(model, folder)
    return folder


@pytest.mark.parametrize(("change", "words"), FORGED.values(), ids=FORGED)
def test_a_certificate_that_claims_another_time_is_refused(stopped, tmp_path, change, words):
    folder = shutil.copytree(stopped, tmp_path / "release")
    rewrite(folder, change)
    problems = verify(folder).problems
    assert any(words in problem for problem in problems), problems


def test_an_odometer_is_no_certificate(stopped, tmp_path):
    """The event of the five steps that were made, at all of delta and without named times, passes as no stopped run."""
    folder = shutil.copytree(stopped, tmp_path / "release")

    def read_off(c):
        c["stops"].update(charged=5, named=[5, 6, 12])
        for tree in (c["event"], c["stages"][0]["event"]):
            tree["count"] = 5

    rewrite(folder, read_off)
    assert any("is stated as" in problem for problem in verify(folder).problems), "its epsilon is that of six"


def test_without_named_stops_it_says_how(tmp_path):
    private, model = _fitted(5)
    with pytest.raises(PlanMismatch, match=r"5 of 12 steps .*were made: .* \(a plan with stops=\[\.\.\.\]"):
        private.release(model, tmp_path / "release")
    certificate = release_weights(model, private.account, tmp_path / "whole", data="rows")
    assert certificate["epsilon"] == round_up(private.plan.epsilon) and "stops" not in certificate


def test_before_it_is_stopped_for_good_it_is_charged_whole(tmp_path):
    """Otherwise it could go on after a release that speaks of an end."""
    private, model = _fitted(5, stops=[3, 6])
    certificate = release_weights(model, private.account, tmp_path / "release", data="rows")
    assert certificate["epsilon"] == round_up(private.plan.epsilon) and certificate["stops"]["charged"] == 12
    assert verify(tmp_path / "release").good


def test_a_released_run_never_goes_on(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    private, model = _fitted(5, stops=[6], ledger=ledger)
    (tmp_path / "there").mkdir()
    with pytest.raises(FileExistsError):
        private.release(model, tmp_path / "there")
    assert not private.account.ledger.stopped
    private.release(model, tmp_path / "release")
    with pytest.raises(LedgerError, match="was stopped for good"):
        PrivateTraining(RECORDS, **SETTINGS, stops=[6], ledger=ledger)
    with pytest.raises(LedgerError, match="other settings"):
        PrivateTraining(RECORDS, **SETTINGS, stops=[7], ledger=ledger)


def test_it_may_go_on_instead_of_being_released(tmp_path):
    """Steps that were lost between two fits count where it ends."""
    ledger, kept = tmp_path / "ledger.jsonl", tmp_path / "kept.ckpt"
    first, _ = _fitted(2, stops=[6], ledger=ledger, keep=kept)
    shutil.copy(kept, tmp_path / "older.ckpt")
    first.account.ledger.close()
    second, model = _fitted(3, stops=[6], ledger=ledger, checkpoint=kept, keep=tmp_path / "later.ckpt")
    assert second.account.ledger.count("training") == 5
    second.account.ledger.close()
    with pytest.warns(UserWarning, match=r"3 steps .*after this checkpoint are paid for"):
        third, model = _fitted(1, stops=[6], ledger=ledger, checkpoint=tmp_path / "older.ckpt")
    certificate = third.release(model, tmp_path / "release")
    assert certificate["stopped"] == {"training": 6} and certificate["stops"]["charged"] == 6
    assert verify(tmp_path / "release").good


def test_a_fit_that_another_program_has_gone_on_with_counts_whole_in_the_first(tmp_path):
    """The first one has closed its ledger, by a release; what another account draws then counts when it stops."""
    ledger, kept = tmp_path / "ledger.jsonl", tmp_path / "kept.ckpt"
    study = Study(tmp_path / "study.jsonl", epsilon=9.0, delta=1e-5)
    first, model = _fitted(2, stops=[3, 6], ledger=ledger, keep=kept, study=study)
    release_weights(model, first.account, tmp_path / "early", data="rows")
    whole = study.total.epsilon
    second, later = _fitted(7, stops=[3, 6], ledger=ledger, checkpoint=kept, study=study)
    second.account.ledger.close()
    with pytest.raises(ValueError, match="not those that the last private step left"):
        first.release(model, tmp_path / "release")
    assert study.total.epsilon == whole and not first.account.ledger.stopped
    assert first.stop().drawn == (("training", 9, 12),)
    certificate = second.release(later, tmp_path / "release")
    assert certificate["stops"]["charged"] == 12 and certificate["stopped"] == {"training": 9}
    assert certificate["study"]["epsilon"] == round_up(study.total.epsilon) and verify(tmp_path / "release").good


def test_what_a_stopped_training_has_not_drawn_goes_back(tmp_path):
    """Its weights may be released, at the cost of the whole plan; the study counts what was drawn."""
    study = Study(tmp_path / "study.jsonl", epsilon=9.0, delta=1e-5)
    private, model = _fitted(2, study=study, ledger=tmp_path / "ledger.jsonl")
    whole = study.total.epsilon
    stopped = private.stop()
    assert stopped.drawn == (("training", 2, 12),) and stopped.after.epsilon == study.total.epsilon < whole
    certificate = release_weights(model, private.account, tmp_path / "release", data="rows")
    assert certificate["epsilon"] == round_up(private.plan.epsilon)
    assert certificate["study"]["epsilon"] == round_up(study.total.epsilon) and certificate["stopped"] == {"training": 2}
    assert "It was stopped for good, and its study may count only what it had drawn" in certificate["statement"]
    assert verify(tmp_path / "release").good
    rewrite(tmp_path / "release", lambda c: c.pop("stopped") and None)
    assert any("less than what this run alone costs" in problem for problem in verify(tmp_path / "release").problems)


def test_a_fit_that_is_under_way_is_not_stopped_from_within():
    class Hasty(pl.Callback):
        def on_train_batch_end(self, *_):
            private.stop()

    private = PrivateTraining(RECORDS, **SETTINGS, stops=[6])
    trainer = pl.Trainer(
        callbacks=[private.callback(), Hasty()], accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False
    )
    with pytest.raises(LedgerError, match="a fit is under way"):
        trainer.fit(Plain(), private.loader())


def test_the_number_of_named_stops_costs_little_noise():
    """The table of the page: noise rises by a few parts in a hundred, and half way costs two thirds of the whole."""
    stage = training_stage(Fixed(1.0), n=60_000, sample_rate=256 / 60_000, steps=2_344)
    found = {}
    for times in (1, 2, 4, 8):
        stops = [round(2_344 * place / times) for place in range(1, times)]
        plan = make_plan([stage], epsilon=3.0, delta=1e-6, stops=stops)
        half = plan.cost_of(plan.stopped_after(1_172).event).epsilon
        found[times] = (round(plan.stages[0].access.multiplier, 3), round(half, 2))
    assert found == {1: (0.735, 2.46), 2: (0.747, 2.48), 4: (0.759, 2.5), 8: (0.771, 2.52)}


def test_stops_that_make_no_sense_leave_no_ledger(tmp_path):
    for stops, words in (((0.5,), "whole numbers"), ("half", "a list of numbers"), ((12,), "from 1 to 11"), (6, "a list")):
        with pytest.raises(ValueError, match=words):
            PrivateTraining(RECORDS, **SETTINGS, stops=stops, ledger=tmp_path / "ledger.jsonl")
    with pytest.raises(ValueError, match="no stop is certified below the whole plan"):
        PrivateTraining(RECORDS, **SETTINGS | {"sampler": "cyclic", "steps": 20}, stops=(6,))
    assert not [*tmp_path.iterdir()]


def test_without_privacy_stops_change_nothing(tmp_path):
    private, model = _fitted(5, stops=[6], epsilon=float("inf"))
    certificate = private.release(model, tmp_path / "release")
    assert not certificate["private"] and "stops" not in certificate
    assert json.loads((tmp_path / "release" / "privacy.json").read_text())["epsilon"] is None


def test_early_stopping_on_a_number_that_was_paid_for_is_certified_at_its_step(tmp_path):
    """EarlyStopping follows a noisy mean of the plan; validation is charged whole, though only a part of it was made."""
    from lightning_dpgen.plugins.noisy_metrics import NoisyMetrics
    from lightning_dpgen.plugins.private_validation import PrivateValidation

    class Logging(Plain):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", (self.net(batch) - batch).square().sum())

    private = PrivateTraining(
        RECORDS, **SETTINGS, stops=[6], metrics=NoisyMetrics({"loss": (0, 4)}, every=2),
        validation=PrivateValidation(RECORDS, {"val_loss": (0, 4)}, n=N, every=4),
    )  # fmt: skip
    model = Logging()
    # Any number is above the least: it stops at the second look.
    rule = pl.callbacks.EarlyStopping(
        "public/val_loss", mode="min", patience=1, min_delta=10.0, check_on_train_epoch_end=False
    )
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(callbacks=[private.callback(), rule, StopAfter(5)], accelerator="cpu", max_epochs=1, **quiet)
    trainer.fit(model, private.loader())
    certificate = private.release(model, tmp_path / "release")
    made = certificate["stopped"]["training"]
    assert made <= 6 == certificate["stops"]["charged"] and certificate["epsilon"] < 3.5
    counts = {stage["name"]: stage["event"]["count"] for stage in certificate["stages"]}
    assert counts == {"validation": 3, "training": 6} and certificate["stopped"]["validation"] == 1
    assert verify(tmp_path / "release").good, verify(tmp_path / "release").problems
    assert [stage.get("interleaved") for stage in certificate["stages"]] == [True, None]
    for number, (change, words) in enumerate(
        (
            (lambda c: c["stops"].update(stage="validation", named=[1, 3], epsilons=[1.0, 2.0], charged=3), "interleaved"),
            (lambda c: c["stages"][0].pop("interleaved"), "stage 'validation' stands before 'training'"),
            (lambda c: (c["stages"][0].pop("interleaved"), c["stopped"].pop("validation")), "stands before"),
        )
    ):
        folder = shutil.copytree(tmp_path / "release", tmp_path / f"forged {number}")
        rewrite(folder, lambda c, change=change: change(c) and None)
        problems = verify(folder).problems
        assert any(words in problem for problem in problems), problems
