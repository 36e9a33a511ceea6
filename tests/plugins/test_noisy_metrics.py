"""Bought numbers of a fit: means of its records, noise that was paid for, and callbacks that follow them."""

import json
import math

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from scipy.stats import chi2
from torch import nn
from torchmetrics import MeanMetric

from lightning_dpgen import (
    DataFree,
    DPNorm,
    Fixed,
    PerRecord,
    PrivateTraining,
    release_weights,
    verify,
)
from lightning_dpgen.clipping import PerPerson
from lightning_dpgen.plugins import NoisyMetrics, PrivateValidation
from lightning_dpgen.plugins.accountant import PURCHASES
from lightning_dpgen.privacy.errors import LedgerError, PlanMismatch
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.planning.calibration import make_plan

pytestmark = pytest.mark.filterwarnings("ignore")

N = 60
X = 3.0 * torch.randn(N, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] + X[:, 1] > 0).long()
VX = 3.0 * torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
VY = (VX[:, 0] > 0).long()
# The same means, with less noise.
MANY, MANY_VALIDATION = ((x.repeat(20, 1), y.repeat(20)) for x, y in ((X, Y), (VX, VY)))
SETTINGS = {"n": N, "epsilon": math.inf, "delta": 1e-5, "sample_rate": 1.0, "steps": 6, "clipping": Fixed(1.0)}
LOSS, BOTH = {"loss": (0.0, 0.9)}, {"loss": (0.0, 0.9), "acc": (0.0, 1.0)}
OF_VALIDATION = {"val_loss": (0.7, 1.5), "val_acc": (0.0, 1.0)}


class Network(pl.LightningModule):
    """Classifies rows; a learning rate of 0 leaves its parameters as they are."""

    def __init__(self, lr=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.0), nn.Linear(5, 2))
        self.lr, self.seen = lr, 0

    def training_step(self, batch, batch_idx):
        x, y = batch
        out = self.net(x)
        self.log("acc", (out.argmax(1) == y).float().mean(), on_step=True, on_epoch=True)
        self.log("a/private one", out.mean())
        return F.cross_entropy(out, y)

    def validation_step(self, batch, batch_idx):
        assert not self.training
        x, y = batch
        out = self.net(x)
        self.log_dict({"val_loss": F.cross_entropy(out, y), "val_acc": (out.argmax(1) == y).float().mean()})

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Kept(Logger):
    """A logger of a service, as it is told no private number."""

    name, version = "kept", ""

    def __init__(self):
        super().__init__()
        self.rows = []

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, *_, **__):
        pass

    def of(self, name):
        return [(step, row[name]) for step, row in self.rows if name in row]


def _private(records=(X, Y), **changes):
    return PrivateTraining(records, **SETTINGS | changes)


def _fit(private, module, *callbacks, **options):
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    log = Kept()
    fit = {name: options.pop(name) for name in ("val_dataloaders", "ckpt_path") if name in options}
    trainer = pl.Trainer(callbacks=[private.callback(), *callbacks], accelerator="cpu", **quiet | {"logger": log} | options)
    trainer.fit(module, private.loader(), **fit)
    return trainer, log


@torch.no_grad()
def _means(module, x, y, bounds):
    """Return the clamped means, by plain torch."""
    out = module.net(x)
    loss, hits = F.cross_entropy(out, y, reduction="none"), (out.argmax(1) == y).float()
    values = dict(zip(bounds, (loss, hits), strict=False))
    return {name: float(v.clamp(*bounds[name]).mean()) for name, v in values.items()}


WAYS = {
    "ghost": {},
    "func": {"engine": "func"},
    "parts": {"micro_batch": 7},
    "parts gone through twice": {"micro_batch": 7, "clipping": DPNorm(c_max=4.0)},
    "slots": {"slots": True},
    "slots in parts": {"slots": True, "micro_batch": 20},
    "slots and no capture": {"slots": True, "capture": False},
    "persons": {"persons": np.arange(N) // 3, "max_rows": 3},
    "clipping of persons": {"persons": np.arange(N) // 3, "max_rows": 3, "clipping": PerPerson(Fixed(1.0))},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_without_noise_they_are_the_clamped_means(way):
    """Bounds cut off the losses of several records, and n is the number that is there."""
    private, module = _private(metrics=NoisyMetrics(BOTH, every=2), **way), Network()
    trainer, log = _fit(private, module)
    expected = _means(module, X, Y, BOTH)
    assert [step for step, _ in log.of("public/loss")] == [1, 3, 5]
    for name in BOTH:
        assert all(value == pytest.approx(expected[name], abs=2e-6) for _, value in log.of(f"public/{name}"))
        assert float(trainer.callback_metrics[f"public/{name}"]) == pytest.approx(expected[name], abs=2e-6)
        assert log.of(f"public/{name}_error")[-1][1] == 0.0
    out = module.net(X).detach()
    assert (F.cross_entropy(out, Y, reduction="none") > 0.9).sum() > 3


@pytest.mark.parametrize("more", [{}, {"persons": np.arange(N) // 3, "max_rows": 3}], ids=["records", "persons"])
@pytest.mark.parametrize("rate", [1.0, 0.999999])
def test_without_noise_a_validation_is_that_of_its_records(more, rate):
    persons = np.arange(40) // 2 if more else None
    validation = PrivateValidation((VX, VY), OF_VALIDATION, n=40, every=4, sample_rate=rate, persons=persons)
    private, module = _private(validation=validation, **more), Network()
    _, log = _fit(private, module)
    expected = _means(module, VX, VY, OF_VALIDATION)
    assert [step for step, _ in log.of("public/val_loss")] == [3, 5]
    for name in OF_VALIDATION:
        assert log.of(f"public/{name}")[-1][1] == pytest.approx(expected[name], abs=3e-6)
    assert module.training and module.validation_step.__func__ is Network.validation_step


@pytest.mark.parametrize(("n", "times"), [(45, 1.0), (119, 1.0), (240, 0.5), (20, 1.5)])
def test_the_denominator_is_a_noisy_count_near_the_declared_number(n, times):
    """A declared number that is off by less than a factor of 2 makes no difference."""
    private, module = _private(metrics=NoisyMetrics(LOSS), n=n), Network()
    trainer, _ = _fit(private, module)
    expected = 0.45 + times * (_means(module, X, Y, LOSS)["loss"] - 0.45)
    assert float(trainer.callback_metrics["public/loss"]) == pytest.approx(expected, abs=2e-6)


def _residuals(steps, bounds=BOTH, of_validation=None, **changes):
    """Return how far noisy means are from the exact ones, in deviations as the error bars state them, and the bars."""
    validation = PrivateValidation(MANY_VALIDATION, OF_VALIDATION, n=800, share=0.3, every=1, persons=of_validation)
    private = _private(
        MANY, n=1200, epsilon=40.0, steps=steps, metrics=NoisyMetrics(bounds, share=0.5, every=1), validation=validation,
        stream=PrivateStream(seed=5), **changes,
    )  # fmt: skip
    _, log = _fit(private, module := Network())
    expected = _means(module, X, Y, bounds) | _means(module, VX, VY, OF_VALIDATION)
    means, bars = ({n: np.array([x for _, x in log.of(f"public/{n}{end}")]) for n in expected} for end in ("", "_error"))
    return {name: (means[name] - expected[name]) * 1.959964 / bars[name] for name in expected}, bars, private.plan


PERSONS = {"persons": np.arange(1200) // 3, "max_rows": 3, "of_validation": np.arange(800) // 2}


@pytest.mark.parametrize("more", [{}, pytest.param(PERSONS, marks=pytest.mark.slow)], ids=["records", "persons"])
def test_the_noise_is_that_of_the_error_bar_and_of_the_plan(more):
    """Check 250 means of each number by their mean square; a false alarm in any of the four has a chance of 1e-6.

    Noise smaller by the root of two is found: that of one number for two, or of half of what a record can add.
    """
    residuals, bars, plan = _residuals(250, **more)
    low, high = chi2.ppf([1.2e-7, 1 - 1.2e-7], 250) / 250
    assert low > 0.5 and high < 2.0, "the test has no power"
    for name, of_number in residuals.items():
        assert len(of_number) == 250
        assert low < (of_number**2).mean() < high, name
        assert abs(of_number.mean()) < 5.5 / math.sqrt(250), name
    # The error bar itself, from the definition: multiplier times root of the numbers and the count, records of a person,
    # half width, and what the count adds, the root of two at most. Noise moves the count by some hundredths.
    for stage, name, half, size in (("training", "acc", 0.5, 1200), ("validation", "val_acc", 0.5, 800)):
        multiplier = plan.stage(stage).access.multipliers["metrics"]
        error = 1.959964 * multiplier * math.sqrt(3) * more.get("max_rows", 1) * half / size
        assert ((bars[name] > 0.9 * error) & (bars[name] < 1.1 * math.sqrt(2) * error)).all()


def test_an_error_bar_is_that_of_a_quotient():
    numbers = NoisyMetrics({"a": (-3.0, 5.0), "b": (0.0, 2.0)}).numbers
    found = numbers.means([30.0, 7.0], [60.0, 1.0], [50.0, 0.0], [2.0, 2.0])
    assert found == {"public/a": 3.0, "public/a_error": pytest.approx(1.959964 * 4.0 * 2.0 * math.sqrt(1.25) / 60.0)}


def test_a_window_of_steps_has_less_noise():
    errors = {}
    for every in (1, 4):
        private = _private(MANY, n=1200, epsilon=8.0, steps=10, metrics=NoisyMetrics(LOSS, every=every))
        errors[every] = [error for _, error in _fit(private, Network())[1].of("public/loss_error")]
    assert len(errors[1]) == 10 and len(errors[4]) == 3
    assert errors[1][0] == pytest.approx(2 * errors[4][0], rel=0.1)
    assert errors[4][2] == pytest.approx(math.sqrt(2) * errors[4][0], rel=0.1)


def test_they_are_a_share_of_the_plan():
    """The whole stays the budget, and the gradient has what is left of each lot."""
    plain, private = (_private(epsilon=2.0, sample_rate=0.3, metrics=m) for m in (None, NoisyMetrics(LOSS, share=0.1)))
    assert private.plan.epsilon == pytest.approx(plain.plan.epsilon, abs=2e-3) and private.plan.epsilon <= 2.0
    access = private.plan.stage("training").access
    assert access.multiplier == pytest.approx(plain.plan.stage("training").access.multiplier, rel=1e-3)
    assert (access.multiplier / access.multipliers["metrics"]) ** 2 == pytest.approx(0.1)
    with_both = _private(
        epsilon=2.0, metrics=NoisyMetrics(LOSS), validation=PrivateValidation((VX, VY), OF_VALIDATION, n=40, every=4)
    )
    assert [(s.name, s.count) for s in with_both.plan.stages] == [("validation", 2), ("training", 6)]
    assert with_both.plan.epsilon <= 2.0


def test_the_release_declares_them_and_holds_no_number_more(tmp_path):
    validation = PrivateValidation((VX, VY), OF_VALIDATION, n=40, every=4)
    private = _private(epsilon=8.0, sample_rate=0.3, metrics=NoisyMetrics(BOTH, every=4), validation=validation)
    module = Network(lr=0.5)
    _fit(private, module)
    assert private.account.finished and private.plan.epsilon == private.account.certify()[1].epsilon
    certificate = private.release(module, tmp_path / "release")
    assert verify(tmp_path / "release").good
    assert certificate["declared"]["metrics"] == {"bounds": {"loss": [0.0, 0.9], "acc": [0.0, 1.0]}, "every": 4}
    assert certificate["declared"]["validation"]["n"] == 40
    assert [stage["name"] for stage in certificate["stages"]] == ["validation", "training"]
    assert sorted(p.name for p in (tmp_path / "release").iterdir()) == sorted(
        p.name for p in _plain_release(tmp_path).iterdir()
    )
    # A stage less in the certificate is an epsilon less: `verify` finds it.
    path = tmp_path / "release" / "privacy.json"
    fields = json.loads(path.read_text())
    fields["event"]["events"][0]["count"] = 1
    path.write_text(json.dumps(fields))
    assert not verify(tmp_path / "release").good


def _plain_release(folder):
    private, module = _private(epsilon=8.0, sample_rate=0.3), Network(lr=0.5)
    _fit(private, module)
    private.release(module, folder / "plain")
    return folder / "plain"


def test_files_and_services_get_them_and_services_nothing_else(tmp_path):
    file, service = CSVLogger(tmp_path), Kept()
    private = _private(epsilon=8.0, sample_rate=0.5, metrics=NoisyMetrics(BOTH, every=3))
    trainer, _ = _fit(private, Network(), logger=[file, service], log_every_n_steps=1)
    names = {name for _, row in service.rows for name in row}
    bought = {"public/loss", "public/loss_error", "public/acc", "public/acc_error"}
    assert names == bought | {"public/bound", "public/epsilon", "public/learning_rate"}
    text = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text()
    assert "public/acc_error" in text and "private/acc" in text
    assert trainer.progress_bar_metrics.keys() == {"public/loss", "public/acc"}
    assert {name for name in trainer.callback_metrics if name.startswith("private/")} == set()


def test_an_empty_lot_adds_nothing():
    """A made-up record takes the place of the records there: its numbers do not count."""
    private, module = _private(sample_rate=1e-6, metrics=NoisyMetrics({"loss": (0.0, 4.0)}, every=1)), Network()
    _, log = _fit(private, module)
    assert {value for _, value in log.of("public/loss")} == {2.0}


class Terms(Network):
    """Gives a term, in which it logs, and one that sees no record."""

    def training_step(self, batch):
        def loss(lot, noise):
            x, y = lot.records
            out = self.net(x)
            self.log("acc", (out.argmax(1) == y).float().mean())
            return F.cross_entropy(out, y, reduction="none")

        return [PerRecord(loss), DataFree(lambda: 1e-3 * sum(p.square().sum() for p in self.parameters()))]


def test_terms_may_log_them():
    trainer, _ = _fit(_private(metrics=NoisyMetrics({"acc": (0, 1)})), module := Terms())
    assert float(trainer.callback_metrics["public/acc"]) == pytest.approx(_means(module, X, Y, BOTH)["acc"], abs=2e-6)
    with pytest.raises(ValueError, match=r"bounds\['loss'\]: training_step logs nothing by that name.*it has acc"):
        _fit(_private(metrics=NoisyMetrics(LOSS)), Terms())


class TwoOptimizers(Terms):
    """Two networks, whose optimizers take turns at the lots."""

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(4, 2)

    def training_step(self, batch):
        def loss(lot, noise):
            x, y = lot.records
            out = self.other(x)
            self.log("other_acc", (out.argmax(1) == y).float().mean())
            return F.cross_entropy(out, y, reduction="none")

        return super().training_step(batch)[0], PerRecord(loss)

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=0.0) for part in (self.net, self.other)]


def test_a_number_of_one_optimizer_is_a_mean_over_its_own_lots():
    bounds = {"acc": (0, 1), "other_acc": (0, 1)}
    _, log = _fit(_private(metrics=NoisyMetrics(bounds, every=3)), module := TwoOptimizers())
    expected = float((module.other(X).argmax(1) == Y).float().mean())
    assert all(value == pytest.approx(expected, abs=2e-6) for _, value in log.of("public/other_acc"))
    assert log.of("public/acc")[0][1] == pytest.approx(_means(module, X, Y, BOTH)["acc"], abs=2e-6)


# ---- callbacks


class Steered(Network):
    """Logs in validation a number that the test decides: the parameter itself, which falls with each step."""

    def __init__(self, **more):
        super().__init__(lr=1.0)
        self.at = nn.Parameter(torch.tensor([1.0]))
        self.more = more

    def training_step(self, batch, batch_idx):
        x, _ = batch
        self.log("at", self.at.detach().squeeze() + 0.0 * x.sum())
        return (self.at * x.sum(1).square().clamp(max=1.0)).mean() + 0.0 * self.net(x).sum()

    def validation_step(self, batch, batch_idx):
        self.log("val", self.at.detach().abs().squeeze() + 0.0 * batch[0].sum())

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        if not self.more:
            return optimizer
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.5, threshold=1e-9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule} | self.more}


def _steered(**changes):
    validation = PrivateValidation((VX, VY), {"val": (0.0, 9.0)}, n=40, every=2)
    metrics = NoisyMetrics({"at": (-9.0, 9.0)}, every=2)
    return _private(**{"steps": 12, "validation": validation, "metrics": metrics, "epsilon": math.inf} | changes)


PUBLIC_DATA = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(VX, VY), batch_size=20)


@pytest.mark.parametrize("val", [None, PUBLIC_DATA], ids=["no other validation", "public validation"])
def test_early_stopping_looks_at_each_new_value_once(val):
    """|at| falls in three steps or so and rises then; without the value it would look at the ends of epochs alone."""
    stop = EarlyStopping("public/val", patience=2, min_delta=0.0)
    looks = []
    check = stop._evaluate_stopping_criteria
    stop._evaluate_stopping_criteria = lambda value: looks.append(float(value)) or check(value)
    private = _steered()
    with pytest.warns(
        UserWarning,
        match=r"EarlyStopping\(monitor='public/val'\) ends the fit after \d+ of 12 steps[^:]*: .*whole",
    ):
        more = {} if val is None else {"val_dataloaders": val, "val_check_interval": 1}
        trainer, log = _fit(private, module := Steered(), stop, **more)
    values = [value for _, value in log.of("public/val")]
    assert looks == pytest.approx(values) and 3 <= len(values) < 6
    assert trainer.global_step == 2 * len(values) and private.account.remaining("training") == 12 - 2 * len(values)
    assert "on_validation_end" not in vars(stop), "it is given back"
    with pytest.raises(PlanMismatch, match="go on with the fit, or release the weights"):
        private.release(module, "never")


def test_what_was_stopped_is_charged_whole(tmp_path):
    private = _steered(epsilon=9.0)
    _fit(private, module := Steered(), EarlyStopping("public/val", stopping_threshold=9.0))
    assert private.account.remaining("training") == 10
    assert release_weights(module, private.account, tmp_path / "release", data="rows")["epsilon"] >= 8.99
    assert verify(tmp_path / "release").good


def test_a_stop_by_bought_numbers_is_charged_at_a_named_time(tmp_path):
    private = _steered(epsilon=9.0, stops=[4, 8])
    with pytest.warns(UserWarning, match="after 2 of 12 steps: the plan is charged up to the next of its stops"):
        _fit(private, module := Steered(), EarlyStopping("public/val", stopping_threshold=9.0))
    certificate = private.release(module, tmp_path / "release")
    assert certificate["epsilon"] < 7.0 and certificate["stopped"], "four steps, and all of validation"
    assert verify(tmp_path / "release").good


def test_checkpoints_are_those_of_the_best_values(tmp_path):
    best, by_steps = (
        ModelCheckpoint(tmp_path / name, monitor="public/val", save_top_k=k, filename="{step}", **more)
        for name, k, more in (("best", 1, {}), ("steps", -1, {"every_n_train_steps": 4}))
    )
    _, log = _fit(_steered(), Steered(), best, by_steps, enable_checkpointing=True)
    values = dict(log.of("public/val"))
    step = min(values, key=values.get)
    assert best.best_model_path.endswith(f"step={step + 1}.ckpt") and float(best.best_model_score) == pytest.approx(
        values[step]
    )
    assert sorted(p.name for p in (tmp_path / "steps").iterdir()) == ["step=12.ckpt", "step=4.ckpt", "step=8.ckpt"]
    state = torch.load(best.best_model_path, weights_only=False)
    assert abs(float(state["state_dict"]["at"])) == pytest.approx(values[step], abs=1e-3)


def test_what_is_logged_by_the_name_of_a_bought_number_is_private(tmp_path):
    """A validation of the Trainer's own, of private records, would else stand where callbacks find what was bought."""

    class Slips(Steered):
        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            for name in ("public/val", "public/val_error", "public/mine"):
                self.log(name, 8.0)

    saves = ModelCheckpoint(tmp_path, monitor="public/val", save_top_k=-1, every_n_train_steps=1)
    with pytest.warns(UserWarning, match=r"self\.log\('public/val', \.\.\.\): the plan buys the number of this name"):
        trainer, log = _fit(
            _steered(), Slips(), saves, enable_checkpointing=True, val_dataloaders=PUBLIC_DATA, val_check_interval=1
        )
    values = {value for _, value in log.of("public/val")}
    assert len(values) == 6 and 8.0 not in values
    assert {round(float(value), 5) for value in saves.best_k_models.values()} <= {round(value, 5) for value in values}
    assert float(trainer.callback_metrics["public/val_error"]) != 8.0 and trainer.callback_metrics["public/mine"] == 8.0
    assert trainer.callback_metrics["private/public/val"] == 8.0


def test_a_plateau_of_a_bought_number_lowers_the_rate():
    """A rate that is halved after two values that are no better, and looked at when there is a new one."""
    module, rates = Steered(monitor="public/val"), []

    class Note(pl.Callback):
        def on_train_batch_end(self, trainer, module, *_):
            rates.append(module.optimizers().param_groups[0]["lr"])

    _, log = _fit(_steered(), module, Note())
    values = [value for _, value in log.of("public/val")]
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
        torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0), patience=1, factor=0.5, threshold=1e-9
    )
    expected = []
    for value in values:
        expected.append(schedule.optimizer.param_groups[0]["lr"])
        schedule.step(value)
        expected.append(schedule.optimizer.param_groups[0]["lr"])
    assert rates == expected and rates[-1] < 1.0


@pytest.mark.parametrize("monitor", ["public/other", "val", "private/val"])
def test_a_plateau_of_another_number_is_refused(monitor):
    with pytest.raises(MisconfigurationException, match=r"whose cost is in no plan.*one of public/at, public/val"):
        _fit(private := _steered(), Steered(monitor=monitor))
    assert not private.account.ledger.accesses


def test_free_numbers_are_refused_and_say_what_to_buy():
    for callback in (EarlyStopping("val"), ModelCheckpoint(monitor="val"), EarlyStopping("private/val")):
        with pytest.raises(MisconfigurationException, match=r"buy a noisy mean.*monitor='public/val'"):
            _fit(_steered(), Steered(), callback, enable_checkpointing=True)


def test_a_misspelled_number_is_refused_and_one_that_is_never_logged_stops_nothing(tmp_path):
    for callback in (EarlyStopping("public/vall"), ModelCheckpoint(tmp_path, monitor="public/vall")):
        private = _steered()
        with pytest.raises(MisconfigurationException, match="buys no number of this name, but 'public/val': follow that"):
            _fit(private, Steered(), callback, enable_checkpointing=True)
        assert private.account.remaining("training") == 12
    private, stop = _steered(), EarlyStopping("public/mine", mode="max")
    with pytest.warns(match=r"EarlyStopping\(monitor='public/mine'\) has stopped nothing"):
        _fit(private, Steered(), stop)
    assert private.account.finished and stop.strict, "all steps are made, and the fit ends as ever"


# ---- interruptions


class Crash(pl.Callback):
    """Saves after some step, and ends the fit after a later one, as a crash would."""

    def __init__(self, folder, save, crash):
        self.path, self.save, self.crash = folder / "saved.ckpt", save, crash

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.save:
            trainer.save_checkpoint(self.path)
        if trainer.global_step == self.crash:
            raise RuntimeError("crash")


@pytest.mark.parametrize(("save", "crash"), [(4, 5), (5, 5), (5, 11), (2, 8)])
def test_a_fit_goes_on_and_ends_with_its_plan(tmp_path, save, crash):
    """Nothing is drawn again: lost values stay lost, and the ledger ends as the plan says."""
    changes = {"epsilon": 50.0, "ledger": tmp_path / "ledger", "sample_rate": 0.5}
    first = _steered(**changes)
    with pytest.raises(RuntimeError, match="crash"):
        _fit(first, Steered(), Crash(tmp_path, save, crash))
    first.account.ledger.close()
    seen = torch.load(tmp_path / "saved.ckpt", weights_only=False)[PURCHASES]["shown"]
    again = _steered(**changes)
    assert again.account.count("training") >= crash and again.account.count("validation") == crash // 2
    shown = {}

    class Look(pl.Callback):
        def on_train_batch_start(self, trainer, *_):
            shown.setdefault("first", {name: float(x) for name, x in trainer.callback_metrics.items()})

    _, log = _fit(again, module := Steered(), Look(), ckpt_path=tmp_path / "saved.ckpt")
    assert shown["first"] == pytest.approx(seen, rel=1e-6)
    assert again.callback().complete and again.account.finished
    assert again.account.count("validation") == 6 and again.account.count("training") == 12
    assert len(log.of("public/val")) == 6 - crash // 2
    assert again.account.certify()[1].epsilon == again.plan.epsilon
    again.release(module, tmp_path / "release")
    assert verify(tmp_path / "release").good


def test_a_ledger_knows_the_validation_records(tmp_path):
    changes = {"epsilon": 50.0, "ledger": tmp_path / "ledger"}
    _steered(**changes).account.ledger.close()
    other = PrivateValidation((VX.flip(0), VY), {"val": (0.0, 9.0)}, n=40, every=2)
    with pytest.raises(LedgerError, match="other records"):
        _steered(**changes, validation=other)
    with pytest.raises(LedgerError, match="other settings"):
        _steered(**changes, validation=None)
    _steered(**changes)


def test_a_mean_goes_over_the_steps_before_and_after_an_interruption(tmp_path):
    """A fit that max_steps ends in the middle of a window shows afterwards what one without a break does."""
    whole = dict(_fit(_steered(), Steered())[1].of("public/at"))
    changes = {"records": MANY, "n": 1200, "epsilon": 1000.0, "ledger": tmp_path / "ledger", "validation": None}
    private = _steered(**changes)
    trainer, log = _fit(private, Steered(), max_steps=3)
    trainer.save_checkpoint(tmp_path / "three.ckpt")
    assert dict(log.of("public/at")) == pytest.approx({1: whole[1]}, abs=0.1)
    private.account.ledger.close()
    again = _steered(**changes)
    _, log = _fit(again, Steered(), ckpt_path=tmp_path / "three.ckpt")
    found = dict(log.of("public/at"))
    assert found.keys() == whole.keys() - {1} and again.callback().complete
    assert found[3] == pytest.approx(whole[3], abs=0.1) and abs(whole[3] - whole[5]) > 0.5


# ---- messages


BAD = {
    "no bounds": (lambda: NoisyMetrics({}), "expected the bounds of each number"),
    "one bound": (lambda: NoisyMetrics({"loss": 5}), "expected the least and the largest value"),
    "reversed": (lambda: NoisyMetrics({"loss": (5, 0)}), r"expected the smaller one first, as in \(0, 5\)"),
    "infinite": (lambda: NoisyMetrics({"loss": (0, math.inf)}), "expected a number finite"),
    "named public": (lambda: NoisyMetrics({"public/loss": (0, 5)}), "not under public/"),
    "twice": (lambda: NoisyMetrics({"loss": (0, 5), "private/loss": (0, 5)}), "two of them have the same name"),
    "share": (lambda: NoisyMetrics(LOSS, share=2), "share=2: expected a number above 0, below 1"),
    "every": (lambda: NoisyMetrics(LOSS, every=0), "every=0: expected a whole number of steps"),
    "a dict": (lambda: _private(metrics=LOSS), "metrics=.*expected a NoisyMetrics"),
    "records": (lambda: _private(validation=(VX, VY)), "validation=.*expected a PrivateValidation"),
    "no records": (lambda: PrivateValidation((VX[:0], VY[:0]), LOSS, n=4), "there are none"),
    "rate": (lambda: PrivateValidation((VX, VY), LOSS, n=4, sample_rate=2), "sample_rate=2"),
    "number": (lambda: PrivateValidation((VX, VY), LOSS, n=0), "n=0: expected a whole number of records"),
    "same name": (
        lambda: _private(metrics=NoisyMetrics(LOSS), validation=PrivateValidation((VX, VY), LOSS, n=40)),
        "public/loss: metrics and validation buy a number by this name",
    ),
    "persons": (
        lambda: _private(
            persons=np.arange(N), max_rows=2, validation=PrivateValidation((VX, VY), OF_VALIDATION, n=40)
        ),
        "persons=None",
    ),
    "correlated": (
        lambda: _private(sampler="cyclic", sample_rate=0.1, epsilon=2.0, metrics=NoisyMetrics(LOSS)),
        "metrics with correlated noise: expected none.*validation=",
    ),
    "delta": (
        lambda: _private(validation=PrivateValidation((VX, VY), OF_VALIDATION, n=10**6), epsilon=2.0), "delta=1e-05"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_what_is_no_purchase_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class Logs(Network):
    """Logs what the test says, in both steps."""

    def __init__(self, log):
        super().__init__()
        self.log_ = log
        self.metric = MeanMetric()

    def training_step(self, batch, batch_idx):
        self.log_(self, batch[0])
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.log_(self, batch[0])


UNFIT = {
    "unknown": (
        lambda module, x: module.log("other", x.mean()),
        r"logs nothing by that name; of its records it has .*other",
    ),
    "no record's": (lambda module, x: module.log("it", 3.0), "logs a number that follows from no record"),
    "several": (lambda module, x: module.log("it", x[0]), r"of a tensor \(4,\), whose noisy mean is bought"),
    "a row of the batch": (lambda module, x: module.log("it", x.sum(1)), "whose noisy mean is bought"),
    "a look": (lambda module, x: module.log("it", x.sum() if x.sum() > 0 else -x.sum()), "looks at a value"),
}


@pytest.mark.parametrize(("log", "message"), UNFIT.values(), ids=UNFIT)
def test_a_step_that_does_not_log_them_is_refused_before_the_first_step(log, message):
    bounds = {"it": (0, 1)}
    for bought in ({"metrics": NoisyMetrics(bounds)}, {"validation": PrivateValidation((VX, VY), bounds, n=40)}):
        private = _private(epsilon=8.0, **bought)
        with pytest.raises(ValueError, match=message):
            _fit(private, Logs(log))
        assert not private.account.ledger.accesses, "nothing was spent"


def test_a_validation_that_updates_a_metric_is_refused_by_its_name():
    private = _private(epsilon=8.0, validation=PrivateValidation((VX, VY), {"it": (0, 1)}, n=40))

    def log(module, x):
        if not module.training:
            module.metric.update(x.mean())
        module.log("it", x.mean())

    with pytest.raises(ValueError, match=r"validation_step updates self.metric \(MeanMetric\)"):
        _fit(private, Logs(log))
    assert not private.account.ledger.accesses


def test_a_plan_and_a_step_agree_about_them(tmp_path):
    """A step by hand that does not agree with its plan is refused before a charge."""
    from lightning_dpgen import Account, PoissonLots, PrivateOptimizer, term_gradients, training_stage

    weight = nn.Linear(4, 1)
    for share, message in ((0.1, "lists the noise 'metrics'"), (None, "lists no noise 'metrics'")):
        stage = training_stage(Fixed(1.0), n=N, sample_rate=0.5, steps=2, metrics=share)
        account = Account(make_plan([stage], epsilon=4.0, delta=1e-5))
        optimizer = PrivateOptimizer(torch.optim.SGD(weight.parameters(), lr=0.1), account=account, clipping=Fixed(1.0))
        lot = PoissonLots(X, account).draw()
        term = PerRecord(lambda lot, noise: weight(lot.records).square().sum(1))
        gradients = term_gradients(weight, term, lot, account.stream)
        optimizer.set_gradients(gradients, metrics=None if share else lambda access: None)
        with pytest.raises(RuntimeError, match=message):
            optimizer.step()
        assert not account.ledger.accesses
