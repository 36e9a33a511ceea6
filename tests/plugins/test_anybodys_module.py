"""Anybody's LightningModule, with one callback and its optimizer wrapped: private, certified and released."""

import json
import warnings
from pathlib import Path
from types import SimpleNamespace

import pandas
import pytest
import pytorch_lightning as pl
import torch
from marks import only
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from pytorch_lightning.utilities.types import LRSchedulerConfig
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_dpgen.gradients.clipping import DPNorm, Fixed
from lightning_dpgen.gradients.engines import ENGINES
from lightning_dpgen.gradients.terms import DataFree, PerGroup, PerRecord
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.optim.stages import training_stage
from lightning_dpgen.plugins.accountant import MomentsAccountant
from lightning_dpgen.plugins.events import PublicEvents
from lightning_dpgen.plugins.learning_rates import LearningRates
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import LedgerError, PlanMismatch
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.release.weights import release_weights
from lightning_dpgen.sampling.lots import LotLoader, PoissonLots, poisson_loader
from lightning_dpgen.verification.verify import verify

N, RATE, STEPS = 400, 0.1, 12
RULE = DPNorm(c_max=8.0)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec"),
    pytest.mark.filterwarnings("ignore:.*logging interval"),
    pytest.mark.filterwarnings("ignore:You are trying to `self.log"),
]


def _account(rule=RULE, steps=STEPS, epsilon=8.0):
    spec = training_stage(rule, n=N, sample_rate=RATE, steps=steps)
    return Account(make_plan([spec], epsilon=epsilon, delta=1e-5), stream=PrivateStream(seed=1))


class Stranger(pl.LightningModule):
    """Convolutions and dropout; knows nothing of this package but the optimizer that wraps its own."""

    def __init__(self, account, rule=RULE, wrap=True):
        super().__init__()
        self.settings = account, rule, wrap
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(48, 3))

    def losses(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y, reduction="none")

    def training_step(self, batch, batch_idx):
        losses = self.losses(batch)
        self.log("private/loss", losses.mean())
        return losses

    def configure_optimizers(self):
        account, rule, wrap = self.settings
        inner = torch.optim.Adam(self.parameters(), lr=1e-2)
        if not wrap:
            return inner
        return PrivateOptimizer(inner, account=account, clipping=rule)


def _records():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(N, 1, 4, 4, generator=generator), torch.randint(3, (N,), generator=generator)


def _trainer(account, **options):
    options = {"max_epochs": 1, "logger": False, "enable_checkpointing": False, "accelerator": "cpu"} | options
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    accountant = MomentsAccountant(account, options.pop("engine", "ghost"))
    return pl.Trainer(callbacks=[accountant, *options.pop("callbacks", [])], **options, **quiet)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_from_a_module_to_a_release(tmp_path, precision):
    account = _account()
    module = Stranger(account)
    before = [p.clone() for p in module.parameters()]
    trainer = _trainer(account, precision=precision)
    trainer.fit(module, poisson_loader(_records(), account))
    assert account.remaining("training") == 0 and trainer.callbacks[0].complete
    assert all(not torch.equal(a, b) and b.dtype == torch.float32 for a, b in zip(before, module.parameters(), strict=True))
    certificate = release_weights(module, account, tmp_path / "release", data="squares", n=N, declared={"rate": RATE})
    assert certificate["epsilon"] <= 8.0 and not certificate["private"], "a seeded stream"
    assert set(load_file(tmp_path / "release" / "model.safetensors")) == set(module.state_dict())
    assert json.loads((tmp_path / "release" / "model.json").read_text())["model"] == "weights"
    with pytest.raises(FileExistsError):
        release_weights(module, account, tmp_path / "release", data="squares", n=N)


def test_its_release_verifies(tmp_path):
    spec = training_stage(RULE, n=N, sample_rate=RATE, steps=STEPS)
    account = Account(make_plan([spec], epsilon=8.0, delta=1e-5))
    module = Stranger(account)
    _trainer(account).fit(module, poisson_loader(_records(), account))
    release_weights(module, account, tmp_path / "release", data="squares", n=N)
    assert verify(tmp_path / "release").good


def test_a_dataset_and_many_lots_a_batch_give_the_same_as_one(tmp_path):
    ends = []
    for records, block in ((_records(), 1), (TensorDataset(*_records()), 6)):
        account = _account()
        module = Stranger(account)
        module.net[2].p = 0.0  # torch's numbers are keyed from the stream at each lot
        _trainer(account).fit(module, poisson_loader(records, account, block=block))
        ends.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    torch.testing.assert_close(*ends)


class WithTerms(Stranger):
    def training_step(self, batch, batch_idx):
        codes = PerGroup(lambda lot, _, groups: groups.gather(self.net(lot.records[0])).sum(dim=(1, 2)), 4, places=N)
        return [
            PerRecord(lambda lot, _: self.losses(lot.records)),
            codes,
            DataFree(lambda: 0.01 * sum(p.square().sum() for p in self.parameters())),
        ]


@pytest.mark.parametrize("rate", [RATE, 0.002], ids=["usual lots", "many empty lots"])
def test_a_training_step_may_give_terms(rate):
    rules = [Fixed(1.0), Fixed(0.1)]
    spec = training_stage(rules, n=N, sample_rate=rate, steps=STEPS)
    account = Account(make_plan([spec], epsilon=50.0, delta=1e-5), stream=PrivateStream(seed=1))
    module = WithTerms(account, rules)
    _trainer(account).fit(module, poisson_loader(_records(), account))
    assert account.remaining("training") == 0


class Mixing(Stranger):
    def training_step(self, batch, batch_idx):
        x, y = batch
        return super().training_step((x - x.mean(dim=0), y), batch_idx)


class Matrix(Stranger):
    def training_step(self, batch, batch_idx):
        return self.net(batch[0])


class Wrong(Stranger):
    def training_step(self, batch, batch_idx):
        return {"losses": self.losses(batch)}


class Normed(Stranger):
    def training_step(self, batch, batch_idx):
        losses = self.losses(batch)
        return (losses / (losses.norm() + 1.0)).mean()


class Hardest(Stranger):
    def training_step(self, batch, batch_idx):
        return self.losses(batch).max()


class Standardised(Stranger):
    def training_step(self, batch, batch_idx):
        x, y = batch
        deviation = (x - x.mean(dim=0)).square().sum(dim=0) / (len(x) - 1)
        return self.losses(((x - x.mean(dim=0)) / deviation.sqrt(), y)).mean()


class Decorrelated(Stranger):
    def training_step(self, batch, batch_idx):
        shares = self.net(batch[0]).softmax(dim=1)
        return self.losses(batch).mean() + (shares.T @ shares).square().sum()


class ByPosition(Stranger):
    def training_step(self, batch, batch_idx):
        return self.losses(batch) * torch.arange(len(batch[0]))


@pytest.mark.parametrize(
    "kind, message",
    [
        (Mixing, "beside it"),
        (ByPosition, "beside it"),
        (Normed, "beside it"),
        (Hardest, "beside it"),
        (Standardised, "beside it"),
        (Decorrelated, "beside it"),
        (Matrix, "one value for each record"),
        (Wrong, "training_step returned dict"),
    ],
)
def test_what_is_no_loss_of_a_record_is_refused_before_anything_is_spent(kind, message):
    account = _account()
    with pytest.raises(ValueError, match=message):
        _trainer(account).fit(kind(account), poisson_loader(_records(), account))
    assert not account.ledger.accesses


REDUCTIONS = {
    "mean": lambda losses: losses.mean(),
    "sum": lambda losses: losses.sum(),
    "mean in a dict": lambda losses: {"loss": losses.mean(), "other": losses.detach()},
    "sum and a part without a record": lambda losses: losses.sum() + 3.0,
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("reduction", only(REDUCTIONS, "mean", "sum and a part without a record"))
def test_a_loss_over_the_batch_is_that_of_its_one_record(reduction, engine):
    class Reduced(Stranger):
        def training_step(self, batch, batch_idx):
            return reduction(self.losses(batch))

    ends = []
    for kind in (Stranger, Reduced):
        account = _account()
        module = kind(account)
        module.net[2].p = 0.0
        _trainer(account, engine=engine).fit(module, poisson_loader(_records(), account))
        ends.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    assert torch.equal(*ends)


class Weighted(Stranger):
    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y, weight=torch.tensor([1.0, 2.0, 5.0]))


class LogMean(Stranger):
    def training_step(self, batch, batch_idx):
        return self.losses(batch).exp().mean().log()


@pytest.mark.parametrize("kind", [Weighted, LogMean])
def test_weights_in_a_mean_are_warned_of(kind):
    account = _account()
    with pytest.warns(UserWarning, match="weighted mean"):
        _trainer(account).fit(kind(account), poisson_loader(_records(), account))


class Outliers(Stranger):
    """Weighs a record by the number of outliers beside it, of which made-up records have none."""

    def training_step(self, batch, batch_idx):
        return (self.losses(batch) * (1.0 + (batch[0].flatten(1).amax(dim=1) > 5.0).sum())).mean()


def test_whether_a_loss_is_refused_does_not_depend_on_the_records():
    """A refusal at the first lot is not charged, and would tell of an outlier in it."""
    x, y = _records()
    disturbed = x.clone()
    disturbed[0] = 10.0
    for records in (x, disturbed):
        account = _account()
        _trainer(account).fit(Outliers(account), poisson_loader((records, y), account))
        assert account.remaining("training") == 0


class FrozenNorm(Stranger):
    """A pretrained backbone with batch norms, and a head that is trained."""

    def __init__(self, account):
        super().__init__(account)
        self.net.insert(1, nn.BatchNorm2d(3))
        self.net[:2].eval().requires_grad_(False)

    def configure_optimizers(self):
        account, rule, _ = self.settings
        head = [p for p in self.parameters() if p.requires_grad]
        return PrivateOptimizer(torch.optim.Adam(head, lr=1e-2), account=account, clipping=rule)


@pytest.mark.filterwarnings("ignore:Found 2 module.s. in eval mode")
def test_a_fit_leaves_a_frozen_batch_norm_as_it_is():
    account = _account()
    module = FrozenNorm(account)
    before = {name: x.clone() for name, x in module.state_dict().items()}
    _trainer(account).fit(module, poisson_loader(_records(), account))
    assert account.remaining("training") == 0 and not module.net[1].training and module.net[3].training
    changed = {name for name, x in module.state_dict().items() if not torch.equal(x, before[name])}
    assert changed == {"net.5.weight", "net.5.bias"}


@pytest.mark.filterwarnings("ignore:Found 2 module.s. in eval mode")
@pytest.mark.parametrize("hook", ["on_fit_start", "on_train_start", "on_train_epoch_start", "training_step"])
def test_a_batch_norm_that_is_put_back_to_train_mode_is_refused_before_anything_is_spent(hook):
    def put_back(self, *given):
        self.train()
        return Stranger.training_step(self, *given) if given else None

    account = _account()
    module = type("PutBack", (FrozenNorm,), {hook: put_back})(account)
    with pytest.raises(ValueError, match=r"batch norm|BatchNorm2d"):
        _trainer(account).fit(module, poisson_loader(_records(), account))
    assert not account.ledger.accesses


class Fussy(Stranger):
    """Takes labels from some number on, and none below."""

    first = 9

    def __init__(self, account):
        super().__init__(account)
        self.table = nn.Embedding(3, 3)

    def losses(self, batch):
        x, y = batch
        return super().losses((x, y - self.first)) + self.table(y - self.first).square().sum(dim=1)


def _from(first):
    x, y = _records()
    return x, y + first


class FromOne(Fussy):
    first = 1


def test_labels_need_not_begin_at_zero():
    account = _account()
    _trainer(account).fit(FromOne(account), poisson_loader(_from(1), account))
    assert account.remaining("training") == 0


class ByLength(Stranger):
    """Means over the words of a text, of which a made-up text of length 0 has none."""

    def __init__(self, account):
        super().__init__(account)
        self.net = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3))

    def training_step(self, batch, batch_idx):
        words, lengths, y = batch
        mean = self.net[0](words).sum(dim=1) / lengths[:, None].float()
        return nn.functional.cross_entropy(self.net[1](mean), y)


def test_a_loss_that_divides_by_a_length_is_no_comparison_of_records():
    account = _account()
    records = torch.randint(9, (N, 5)), torch.randint(1, 6, (N,)), torch.randint(3, (N,))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the loss")
        _trainer(account).fit(ByLength(account), poisson_loader(records, account))
    assert account.remaining("training") == 0


def test_what_takes_no_made_up_record_is_refused_and_told_what_to_give():
    account = _account()
    with (
        pytest.warns(UserWarning, match="could not be tried on made-up records"),
        pytest.raises(ValueError, match=r"takes no made-up record .* example="),
    ):
        _trainer(account).fit(Fussy(account), poisson_loader(_from(9), account))
    assert not account.ledger.accesses


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda account: (Stranger(account, wrap=False), poisson_loader(_records(), account)), "not private: wrap"),
        (lambda account: (Stranger(_account()), poisson_loader(_records(), account)), "another account"),
        (lambda account: (Stranger(account), DataLoader(TensorDataset(*_records()))), "pass the records"),
    ],
    ids=["plain optimizer", "foreign account", "loader"],
)
def test_parts_that_do_not_fit_are_refused_before_anything_is_spent(change, message):
    account = _account()
    module, loader = change(account)
    with pytest.raises(MisconfigurationException, match=message):
        _trainer(account).fit(module, loader)
    assert not account.ledger.accesses


def test_a_loader_in_place_of_records_is_refused():
    with pytest.raises(ValueError, match="sampling"):
        poisson_loader(DataLoader(TensorDataset(*_records())), _account())
    bad = _records()
    bad[0][3, 0, 1, 1] = float("nan")
    with pytest.raises(ValueError, match="NaN"):
        poisson_loader(bad, _account())


def test_two_optimizers_of_one_parameter_are_refused():
    class Two(Stranger):
        def configure_optimizers(self):
            return super().configure_optimizers(), torch.optim.SGD(self.parameters(), lr=0.1)

    account = _account()
    with pytest.raises(MisconfigurationException, match="2 optimizers have a parameter in common"):
        _trainer(account).fit(Two(account), poisson_loader(_records(), account))
    assert not account.ledger.accesses


def test_noise_that_does_not_arrive_is_noticed_before_anything_is_spent(monkeypatch):
    account = _account()
    monkeypatch.setattr(account.stream, "add_normal_", lambda out, deviation: out.add_(0.1 * deviation))
    with pytest.raises(RuntimeError, match="would not be private"):
        _trainer(account).fit(Stranger(account), poisson_loader(_records(), account))
    assert not account.ledger.accesses


LEFT_EARLY = [
    {"fast_dev_run": True},
    {"limit_train_batches": 1},
    pytest.param({"max_time": "00:00:00:01"}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("options", LEFT_EARLY, ids=str)
def test_a_fit_that_is_left_early_is_charged_what_the_plan_says(tmp_path, options):
    account = _account(steps=3000)
    module = Stranger(account)
    trainer = _trainer(account, **options)
    trainer.fit(module, poisson_loader(_records(), account))
    assert 0 < account.remaining("training") < 3000 and not trainer.callbacks[0].complete
    certificate = release_weights(module, account, tmp_path / "release", data="squares", n=N)
    assert certificate["epsilon"] == pytest.approx(account.plan.epsilon, rel=1e-3)


def test_resume_from_a_checkpoint(tmp_path):
    stream, ledger = PrivateStream(seed=1), tmp_path / "ledger.jsonl"
    spec = training_stage(RULE, n=N, sample_rate=RATE, steps=60)
    account = Account(make_plan([spec], epsilon=8.0, delta=1e-5), ledger, stream)
    module = Stranger(account)
    trainer = _trainer(account, limit_train_batches=3)
    trainer.fit(module, poisson_loader(_records(), account))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    account.ledger.close()
    again = Account.resume(ledger, PrivateStream(seed=1))
    module = Stranger(again)
    trainer = _trainer(again)

    class Lots(pl.LightningDataModule):
        def train_dataloader(self):
            return poisson_loader(_records(), again)

    trainer.fit(module, datamodule=Lots(), ckpt_path=tmp_path / "last.ckpt", weights_only=False)
    assert again.remaining("training") == 0
    release_weights(module, again, tmp_path / "release", data="squares", n=N)


def test_a_release_needs_a_run_and_finite_parameters_and_no_statistics(tmp_path):
    account = _account()
    module = Stranger(account)
    with pytest.raises(PlanMismatch, match="nothing has been drawn"):
        release_weights(module, account, tmp_path / "r", data="squares", n=N)
    _trainer(account).fit(module, poisson_loader(_records(), account))
    module.register_buffer("seen", torch.tensor(3.0))
    with pytest.raises(ValueError, match="'seen'"):
        release_weights(module, account, tmp_path / "r", data="squares", n=N)
    with torch.no_grad():
        module.net[0].bias[0] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        release_weights(module, account, tmp_path / "r", data="squares", n=N, public=["seen"])
    assert not (tmp_path / "r").exists()


def test_lots_at_another_rate_than_the_plan_are_refused():
    account = _account()
    spec = training_stage(RULE, n=N, sample_rate=0.2, steps=3)
    lots = PoissonLots(_records(), Account(make_plan([spec], epsilon=8.0, delta=1e-5)))
    with pytest.raises(LedgerError, match="rate"):
        _trainer(account).fit(Stranger(account), LotLoader(lots, STEPS, 4))
    assert not account.ledger.accesses


def test_a_record_that_is_not_finite_reaches_no_parameter():
    """A Dataset cannot be checked before; its record adds exact zeros."""
    x, y = _records()
    x[:, 0, 0, 0] = torch.where(torch.arange(N) % 3 == 0, torch.tensor(float("nan")), x[:, 0, 0, 0])

    class Held(torch.utils.data.Dataset):
        def __len__(self):
            return N

        def __getitem__(self, i):
            return x[i], y[i]

    account = _account()
    module = Stranger(account)
    _trainer(account).fit(module, poisson_loader(Held(), account))
    assert all(torch.isfinite(p).all() for p in module.parameters())


class Penalised(Stranger):
    """Takes a gradient of its own, which the book-keeping engine cannot follow."""

    def training_step(self, batch, batch_idx):
        slope = torch.func.grad(lambda z: self.net(z).square().sum())(batch[0])
        return slope.flatten(1).square().sum(dim=1)


def test_what_one_engine_refuses_the_other_takes():
    account = _account()
    with pytest.raises((RuntimeError, ValueError)):
        _trainer(account).fit(Penalised(account), poisson_loader(_records(), account))
    assert not account.ledger.accesses
    callbacks = [MomentsAccountant(account, engine="func")]
    module = Penalised(account)
    module.net[2].p = 0.0
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", callbacks=callbacks, **quiet)
    trainer.fit(module, poisson_loader(_records(), account))
    assert account.remaining("training") == 0


class Leaky(Stranger):
    """A data-free term that holds on to the batch."""

    def training_step(self, batch, batch_idx):
        x, _ = batch
        self.seen = max(getattr(self, "seen", 0.0), float(x.detach().max()))
        return [PerRecord(lambda lot, _: self.losses(lot.records)), DataFree(lambda: self.net(x).mean())]


def test_a_term_that_keeps_the_batch_keeps_made_up_records():
    account = _account()
    module = Leaky(account)
    x, y = _records()
    _trainer(account).fit(module, poisson_loader((x + 5, y), account))
    assert account.remaining("training") == 0 and 0.0 < module.seen <= 1.0


class Logging(Stranger):
    def training_step(self, batch, batch_idx):
        self.log("smallest", batch[0].amin(dim=(1, 2, 3)).mean(), prog_bar=True)
        self.log_dict({"private/seven": 7.0})
        return self.losses(batch)


class LoggingTerms(Logging):
    def training_step(self, batch, batch_idx):
        return [
            PerRecord(lambda lot, _: Logging.training_step(self, lot.records, 0)),
            DataFree(lambda: self.net[0].bias.square().sum()),
        ]


@pytest.mark.parametrize("kind", [Logging, LoggingTerms])
def test_what_a_training_step_logs_is_a_private_mean_over_the_lot(kind, tmp_path):
    """Nothing of it reaches `callback_metrics`, nor do the made-up records of a rehearsal reach a log."""
    account, x, logger = _account(), 5 + torch.zeros(N, 1, 4, 4), CSVLogger(tmp_path)
    trainer = _trainer(account, logger=logger, log_every_n_steps=3)
    trainer.fit(kind(account), poisson_loader((x, _records()[1]), account))
    assert account.remaining("training") == 0 and not trainer.callback_metrics
    rows = pandas.read_csv(Path(logger.log_dir) / "metrics.csv")
    assert rows["step"].tolist() == [0, *range(2, STEPS, 3)], "as Lightning counts, and the first step"
    assert (rows["private/smallest"] == 5.0).all() and (rows["private/seven"] == 7.0).all()


class LoggingUnderAnyName(Stranger):
    NAMES = ("a", "b/a", "public/c", "private/d", "private/public/e", "public/private/f")

    def training_step(self, batch, batch_idx):
        losses = self.losses(batch)
        for name in self.NAMES:
            self.log(name, losses.mean())
        self.log_dict({f"{name} too": losses.mean() for name in self.NAMES})
        return losses


def test_what_a_training_step_logs_is_private_whatever_its_name(tmp_path):
    """Nothing of it reaches the public file."""
    account, private = _account(), CSVLogger(tmp_path)
    trainer = _trainer(account, logger=[PublicEvents(tmp_path / "public"), private], log_every_n_steps=3)
    trainer.fit(LoggingUnderAnyName(account), poisson_loader(_records(), account))
    names = [name.removeprefix("private/") for name in LoggingUnderAnyName.NAMES]
    logged = pandas.read_csv(Path(private.log_dir) / "metrics.csv")
    assert {f"private/{name}{too}" for name in names for too in ("", " too")} <= set(logged)
    shown = EventAccumulator(str(tmp_path / "public")).Reload().Tags()["scalars"]
    assert set(shown) == {"public/bound", "public/learning_rate"}


def test_a_schedule_of_the_learning_rate_is_followed():
    class Scheduled(Stranger):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, self.size, gamma=0.1)
            return [optimizer], [{"scheduler": schedule, "interval": self.interval}]

    account = _account()
    module = Scheduled(account)
    module.interval, module.size = "step", 4
    trainer = _trainer(account)
    trainer.fit(module, poisson_loader(_records(), account))
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-2 * 0.1**3)
    # A record is expected once in so many lots.
    lots = round(1 / RATE)
    account = _account()
    module = Scheduled(account)
    module.interval, module.size = "epoch", 1
    trainer = _trainer(account)
    trainer.fit(module, poisson_loader(_records(), account))
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-2 * 0.1 ** (STEPS // lots))
    assert STEPS // lots >= 1


def test_a_schedule_that_follows_a_plateau_is_refused():
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1))
    config = LRSchedulerConfig(plateau, interval="step")
    module = SimpleNamespace(trainer=SimpleNamespace(lr_scheduler_configs=[config]))
    with pytest.raises(MisconfigurationException, match="follow private numbers"):
        LearningRates(module, None, "training").check()


class Partly(Stranger):
    def configure_optimizers(self):
        account, rule, _ = self.settings
        inner = torch.optim.SGD(self.net[4].parameters(), lr=1e-2)
        return PrivateOptimizer(inner, account=account, clipping=rule)


def test_an_optimizer_of_some_parameters_is_refused():
    """The other parameters would get gradients without a bound, from any optimizer that steps them."""
    account = _account()
    with pytest.raises(MisconfigurationException, match="2 of the module's 4 trainable parameters"):
        _trainer(account).fit(Partly(account), poisson_loader(_records(), account))
    assert not account.ledger.accesses
    module = Partly(account)
    module.net[0].requires_grad_(False)
    _trainer(account).fit(module, poisson_loader(_records(), account))
    assert account.remaining("training") == 0


class Untried(Fussy):
    """Gives terms, and takes no made-up records."""

    def training_step(self, batch, batch_idx):
        self.losses(batch)
        return [PerRecord(lambda lot, _: self.losses(lot.records))]


def test_terms_that_cannot_be_asked_for_with_made_up_records_are_refused():
    account = _account()
    with (
        pytest.warns(UserWarning, match="could not be tried"),
        pytest.raises(ValueError, match="takes no made-up record"),
    ):
        _trainer(account).fit(Untried(account), poisson_loader(_from(9), account))
    assert not account.ledger.accesses
