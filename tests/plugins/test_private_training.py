"""A plain module becomes private in three lines, which spend, write and certify what the explicit parts do."""

import json
import math
import os
import re
import warnings
from pathlib import Path

import numpy as np
import pandas
import pytest
import pytorch_lightning as pl
import safetensors.torch
import torch
from marks import only
from pytorch_lightning.callbacks import EMAWeightAveraging, LearningRateMonitor, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import CatMetric, MeanSquaredError, MetricTracker, SpearmanCorrCoef

from lightning_dpgen import (
    Account,
    AccountEngine,
    DPNorm,
    Fixed,
    ImageSchema,
    MomentsAccountant,
    PerGroup,
    PerRecord,
    PoissonLots,
    PrivateOptimizer,
    PrivateSplitDataModule,
    PrivateTraining,
    SplitSettings,
    encode_images,
    load_release,
    make_plan,
    poisson_loader,
    release_weights,
    training_stage,
    verify,
)
from lightning_dpgen.privacy.errors import BudgetTooSmall, LedgerError, PlanMismatch
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.planning.stage_spec import declared_warning
from lightning_dpgen.privacy.studies.study import Study
from lightning_dpgen.release.files import NotARelease
from lightning_dpgen.sampling.lots import LotLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec"),
    pytest.mark.filterwarnings("ignore:.*logging interval"),
    pytest.mark.filterwarnings("ignore:.*max_epochs"),
    pytest.mark.filterwarnings("ignore:.*this fit will run with no optimizer"),
    pytest.mark.filterwarnings("ignore:GPU available"),
]

N, STEPS = 200, 12
SETTINGS = {"n": N, "epsilon": 8.0, "delta": 1e-5, "sample_rate": 0.2, "steps": STEPS, "clipping": DPNorm(c_max=8.0)}
RECORDS = torch.rand(N, 4, generator=torch.Generator().manual_seed(0))


class Plain(pl.LightningModule):
    """Knows nothing of privacy but that it gives one loss a record."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 4))

    def training_step(self, batch, batch_idx):
        return (self.net(batch) - batch).square().sum(dim=1)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def _private(records=RECORDS, **changes):
    return PrivateTraining(records, **SETTINGS | changes)


def _trainer(*callbacks, **options):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(callbacks=list(callbacks), accelerator="cpu", **quiet | options)


def _fitted(private, model=None):
    model = model or Plain()
    _trainer(private.callback()).fit(model, private.loader())
    return model


class Wrapped(Plain):
    """The explicit way."""

    def __init__(self, account):
        super().__init__()
        self.account = account

    def configure_optimizers(self):
        return PrivateOptimizer(super().configure_optimizers(), account=self.account, clipping=SETTINGS["clipping"])


def test_it_does_what_the_explicit_parts_do(tmp_path):
    private = _private(stream=PrivateStream(seed=1))
    model = _fitted(private)
    certificate = private.release(model, tmp_path / "one", data="rows", declared={"rate": 0.2})

    stage = training_stage(SETTINGS["clipping"], n=N, sample_rate=0.2, steps=STEPS)
    account = Account(make_plan([stage], epsilon=8.0, delta=1e-5), stream=PrivateStream(seed=1))
    explicit = Wrapped(account)
    _trainer(MomentsAccountant(account)).fit(explicit, poisson_loader(RECORDS, account))
    expected = release_weights(explicit, account, tmp_path / "two", data="rows", declared={"rate": 0.2})

    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), explicit.parameters(), strict=True))
    assert private.plan == account.plan and private.account.ledger.accesses == account.ledger.accesses
    assert private.account.event == account.event
    for own in (certificate, expected):
        assert own["declared"] == {"data": "rows", "n": N, "rate": 0.2}
    unequal = {name for name in certificate if certificate[name] != expected[name]}
    assert unequal <= {"files", "digest"}, "model.json names the class of the module"


def test_its_release_verifies_and_says_the_declared_number(tmp_path):
    private = _private(RECORDS[:190])
    private.release(_fitted(private), tmp_path / "release")
    assert verify(tmp_path / "release").good
    assert json.loads((tmp_path / "release" / "privacy.json").read_text())["declared"]["n"] == N


def test_its_weights_are_loaded_as_those_of_any_network(tmp_path):
    private = _private()
    model = _fitted(private)
    private.release(model, tmp_path / "release")
    torch.manual_seed(5)
    again = Plain()
    nn.init.zeros_(again.net[0].weight)
    # The line that the error of load_release gives.
    with pytest.raises(NotARelease, match="holds the weights of a network") as said:
        load_release(tmp_path / "release")
    assert "\n" not in str(said.value)
    line = str(said.value).partition("call ")[2]
    exec(line, {"network": again, "safetensors": safetensors})
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_building_it_spends_nothing_and_shows_no_record():
    private = _private()
    private.loader()
    assert not private.account.ledger.accesses
    assert (
        repr(private) == "PrivateTraining(n=200, epsilon=8, delta=1e-05, sample_rate=0.2, 0 of 12 steps (2.4 epochs) made)"
    )


def test_without_privacy_it_fits_and_the_release_says_so(tmp_path):
    private = _private(epsilon=math.inf)
    assert not private.release(_fitted(private), tmp_path / "release")["private"]


BAD = {
    "clipping by name": ({"clipping": "flat"}, ValueError, "clipping='flat': expected a rule of lightning_dpgen.clipping"),
    "no clipping": ({"clipping": []}, ValueError, "clipping="),
    "number as a float": ({"n": 200.0}, ValueError, r"n=200\.0: expected a whole number of records"),
    "number as text": ({"n": "200"}, ValueError, "n='200': expected"),
    "no record declared": ({"n": 0}, ValueError, "n=0: expected"),
    "rate above 1": ({"sample_rate": 1.5}, ValueError, "sample_rate=1.5: expected"),
    "rate of 0": ({"sample_rate": 0.0}, ValueError, r"sample_rate=0\.0: expected"),
    "rate as text": ({"sample_rate": "0.2"}, ValueError, "sample_rate='0.2': expected"),
    "another engine": ({"engine": "x"}, ValueError, "engine='x': expected one of"),
    "a ledger that is no path": ({"ledger": 5}, ValueError, "ledger=5: expected a path"),
    "a seed as the stream": ({"stream": 5}, ValueError, "stream=5: expected a PrivateStream"),
    "the name of a study": ({"study": "census"}, ValueError, "study='census': expected a Study"),
    "half a step": ({"steps": 1.5}, ValueError, "steps=1.5: expected"),
    "delta": ({"delta": 2.0}, ValueError, "delta"),
    "a delta of 1/n": ({"delta": 0.005}, ValueError, "expected less than 1/n"),
    "epsilon": ({"epsilon": -1.0}, ValueError, "epsilon"),
    "tiny budget": ({"epsilon": 1e-4}, BudgetTooSmall, "too small"),
    "a loader": ({"records": DataLoader(TensorDataset(RECORDS))}, ValueError, "sampling"),
    "no records": ({"records": RECORDS[:0]}, ValueError, "records: there are none"),
    "not finite": ({"records": torch.full((9, 4), float("nan"))}, ValueError, "NaN"),
    "something else": ({"records": object()}, ValueError, "records"),
    "persons": ({"max_rows": 2}, ValueError, "persons=None"),
    "crowded": ({"max_rows": 2, "persons": np.zeros(N, int)}, ValueError, "more records than the plan's max_rows=2"),
}


@pytest.mark.parametrize(("changes", "kind", "words"), BAD.values(), ids=BAD.keys())
def test_a_setting_that_makes_no_sense_leaves_no_ledger_behind(changes, kind, words, tmp_path):
    with pytest.raises(kind, match=words) as found:
        _private(**{"ledger": tmp_path / "ledger"} | changes)
    assert "\n" not in str(found.value) and not (tmp_path / "ledger").exists()


class Two(Plain):
    def configure_optimizers(self):
        return super().configure_optimizers(), torch.optim.SGD(self.parameters(), lr=0.1)


class Manual(Plain):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class Matrix(Plain):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx)[:, None]


class Without(Plain):
    def configure_optimizers(self):
        return None


class Quasi(Plain):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters())


MODULES = {
    "two optimizers": (Two, "training_step returned Tensor for 2 optimizers"),
    "no optimizer": (Without, "returned no optimizer: return one"),
    "its own steps": (Manual, "automatic_optimization=False, and training_step makes no step of optimizer 0"),
    "no loss": (Matrix, "one value for each record"),
    "several evaluations": (Quasi, "LBFGS"),
}


@pytest.mark.parametrize(("kind", "words"), MODULES.values(), ids=MODULES.keys())
def test_a_module_that_cannot_be_fitted_costs_nothing_and_leaves_the_training_as_it_was(kind, words):
    private = _private()
    with pytest.raises((MisconfigurationException, ValueError), match=words):
        _fitted(private, kind())
    assert not private.account.ledger.accesses
    with pytest.raises(MisconfigurationException, match="are for a fit with its callback"):
        next(iter(private.loader()))
    _fitted(private)
    assert private.account.finished


def test_a_validation_step_may_call_the_training_step():
    class Shares(Plain):
        def validation_step(self, batch, *index):
            self.log("public/val", self.training_step(batch, *index).mean())

    private, public = _private(steps=2), torch.utils.data.DataLoader(RECORDS[:8], batch_size=4)
    trainer = _trainer(private.callback())
    trainer.fit(model := Shares(), private.loader(), public)
    assert private.account.finished
    with torch.no_grad():
        expected = float((model.net(RECORDS[:8]) - RECORDS[:8]).square().sum(dim=1).mean())
    assert float(trainer.callback_metrics["public/val"]) == pytest.approx(expected, rel=1e-5)


def test_a_dry_run_spends_nothing_of_a_ledger_that_stays(tmp_path):
    private = _private(ledger=tmp_path / "ledger.jsonl")
    with pytest.raises(MisconfigurationException, match="fast_dev_run=True with a ledger in"):
        _trainer(private.callback(), fast_dev_run=True).fit(Plain(), private.loader())
    assert not private.account.accesses
    private.account.ledger.close()


def test_an_optimizer_that_is_private_already_is_refused():
    private = _private()
    with pytest.raises(MisconfigurationException, match="return the torch optimizer"):
        _fitted(private, Wrapped(private.account))
    assert not private.account.ledger.accesses


LOADERS = {
    "plain": lambda _: DataLoader(TensorDataset(RECORDS)),
    "of another training": lambda _: _private().loader(),
    "of the account": lambda private: poisson_loader(RECORDS, private.account),
}


@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS.keys())
def test_another_loader_is_refused(loader):
    private = _private()
    with pytest.raises(MisconfigurationException, match=r"expected the loader\(\) of the PrivateTraining"):
        _trainer(private.callback()).fit(Plain(), loader(private))
    assert not private.account.ledger.accesses


def test_its_lots_are_for_its_own_fit_alone():
    private = _private()
    with pytest.raises(MisconfigurationException, match="are for a fit with its callback"):
        _trainer(max_epochs=1).fit(Plain(), private.loader())
    with pytest.raises(MisconfigurationException, match="are for a fit with its callback"):
        next(iter(private.loader()))
    assert not private.account.ledger.accesses and isinstance(private.loader(), LotLoader)


def test_a_release_follows_one_complete_fit_of_one_module(tmp_path):
    private = _private()
    model = Plain()
    with pytest.raises(PlanMismatch, match="nothing was trained yet"):
        private.release(model, tmp_path / "release")
    _trainer(private.callback(), limit_train_batches=1).fit(model, private.loader(block=5))
    with pytest.raises(PlanMismatch, match=r"5 of 12 steps \(2.4 epochs\) were made: go on"):
        private.release(model, tmp_path / "release")
    with pytest.raises(MisconfigurationException, match="begun with another module"):
        _fitted(private)
    _fitted(private, model)
    with pytest.raises(MisconfigurationException, match="have been made"):
        _fitted(private, model)
    with pytest.raises(ValueError, match="expected the module that was fitted"):
        private.release(Plain(), tmp_path / "release")
    assert not (tmp_path / "release").exists()
    private.release(model, tmp_path / "release")
    with pytest.raises(ValueError, match="was released before"):
        private.release(model, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("block", [-1, 0, 2.0, "2"])
def test_a_block_that_makes_no_sense_is_refused(block):
    with pytest.raises(ValueError, match=f"block={block!r}: expected a whole number"):
        _private().loader(block)


@pytest.mark.parametrize(("changes", "words"), [({"delta": 1e-3}, "above 1/"), ({"n": 20}, "n=20 is far from")], ids=str)
def test_it_warns_of_a_large_delta_and_of_a_number_far_off_which_it_does_not_tell(changes, words):
    with pytest.warns(UserWarning, match=words) as found:
        _private(**changes)
    assert not [told for told in found if str(len(RECORDS)) in str(told.message)]


def _account(n):
    return Account(make_plan([training_stage(Fixed(1.0), n=n, sample_rate=0.2, steps=2)], epsilon=8.0, delta=1e-5))


def _opacus(n):
    network = nn.Linear(4, 1)
    AccountEngine(_account(n)).make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(RECORDS)),
        max_grad_norm=1.0,
    )


def _datamodule(n):
    settings, schema = SplitSettings(k=2, iterations=1, features=4), ImageSchema(2, 2, levels=1)
    records = encode_images(torch.zeros(N, 2, 2, dtype=torch.int64).numpy(), None, schema)
    data = PrivateSplitDataModule(records, settings, Account(make_plan(settings.specs(n), epsilon=8.0, delta=1e-5)), n=n)
    data.setup("fit")


WAYS = {
    "PrivateTraining": lambda n: _private(n=n),
    "poisson_loader": lambda n: poisson_loader(RECORDS, _account(n)),
    "PoissonLots": lambda n: PoissonLots(RECORDS, _account(n)),
    "AccountEngine": _opacus,
    "PrivateSplitDataModule": _datamodule,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_every_way_to_a_fit_says_that_the_declared_number_is_far_off(way):
    """In one sentence, which is that of the program, and without the number of records."""
    for n, far in ((int(N * 1.1), False), (N - 18, False), (50 * N, True), (N - 19, True)):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            way(n)
        said = [str(x.message) for x in found if "is far from" in str(x.message)]
        assert said == ([declared_warning(n, N)] if far else [])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "step",
    [lambda net, batch: net(batch[0]), lambda net, batch: net(batch), lambda net, batch: [x for x, _ in batch]],
    ids=["by place", "whole", "taken apart"],
)
def test_lots_in_a_trainer_without_the_accountant_are_refused_with_the_cure(step):
    account = _account(N)

    class Alone(Plain):
        def training_step(self, batch, batch_idx):
            return step(self.net, batch).square().mean()

        def configure_optimizers(self):
            return PrivateOptimizer(super().configure_optimizers(), account=account, clipping=Fixed(1.0))

    with pytest.raises(TypeError, match=r"next lots.*callbacks=\[MomentsAccountant\(account\)\]"):
        _trainer().fit(Alone(), poisson_loader(RECORDS, account))
    assert not account.ledger.accesses


def test_parameters_that_changed_after_the_last_step_are_not_released(tmp_path):
    private = _private(ledger=tmp_path / "ledger")
    trainer = _trainer(private.callback())
    trainer.fit(model := Plain(), private.loader())
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    kept = model.net[0].weight.detach().clone()
    model.net[0].weight.data = RECORDS[:3]
    with pytest.raises(ValueError, match="are not those that the last private step left"):
        private.release(model, tmp_path / "release")
    model.net[0].weight.data = kept
    private.account.ledger.close()

    later = _private(ledger=tmp_path / "ledger")
    with pytest.raises(ValueError, match="are not those that the last private step left"):
        later.release(Plain(), tmp_path / "release")
    loaded = Plain()
    loaded.load_state_dict(torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"])
    later.release(loaded, tmp_path / "release")
    assert verify(tmp_path / "release").good


def test_a_cell_that_is_run_again_goes_on(tmp_path):
    """The training of the first time has the ledger, and gives it up unless the second is another one, or it is fitting."""

    class Stopping(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            trainer.save_checkpoint(tmp_path / "one.ckpt")
            with pytest.raises(LedgerError, match="is writing this ledger"):
                _private(ledger=tmp_path / "ledger")
            raise RuntimeError("a mistake in the cell")

    first = _private(ledger=tmp_path / "ledger")
    with pytest.raises(RuntimeError, match="a mistake in the cell"):
        _trainer(first.callback(), Stopping()).fit(Plain(), first.loader())
    with pytest.raises(LedgerError, match="other settings"):
        _private(ledger=tmp_path / "ledger", delta=1e-6)
    with pytest.raises(LedgerError, match="is writing this ledger"):
        Account.resume(tmp_path / "ledger")
    second = _private(ledger=tmp_path / "ledger")
    _trainer(second.callback()).fit(Plain(), second.loader(), ckpt_path=tmp_path / "one.ckpt")
    assert second.account.finished and second.account.ledger.count("training") == STEPS
    second.account.ledger.close()


def test_a_ledger_of_other_records_is_refused_and_stays(tmp_path):
    _interrupted(tmp_path)
    before = (tmp_path / "ledger").read_bytes()
    with pytest.raises(LedgerError, match="holds a run on other records"):
        _private(RECORDS.flip(0), ledger=tmp_path / "ledger")
    assert (tmp_path / "ledger").read_bytes() == before


def test_persons_are_grouped_as_they_were_when_it_goes_on(tmp_path):
    pairs = {"ledger": tmp_path / "ledger", "max_rows": 2, "persons": np.arange(N) // 2}
    _private(**pairs).account.ledger.close()
    with pytest.raises(LedgerError, match="on other records or persons"):
        _private(**pairs | {"persons": np.arange(N) % (N // 2)})
    _private(**pairs).account.ledger.close()


def test_what_a_hook_does_after_the_last_step_is_not_released(tmp_path):
    class Copying(Plain):
        def on_train_end(self):
            self.net[0].weight.data = RECORDS[:3]

    private = _private()
    with pytest.raises(ValueError, match="are not those that the last private step left"):
        private.release(_fitted(private, Copying()), tmp_path / "release")


def test_its_study_counts_it(tmp_path):
    private = _private(study=Study(tmp_path / "study.jsonl", epsilon=10.0, delta=1e-4))
    certificate = private.release(_fitted(private), tmp_path / "release")
    assert "together its runs so far" in certificate["statement"]
    with pytest.raises(BudgetTooSmall):
        _fitted(_private(study=Study(tmp_path / "study.jsonl", epsilon=10.0, delta=1e-4)))


def _interrupted(folder):
    private = _private(ledger=folder / "ledger")
    trainer = _trainer(private.callback(), limit_train_batches=2)
    trainer.fit(Plain(), private.loader(block=2))
    trainer.save_checkpoint(folder / "last.ckpt")
    private.account.ledger.close()


def test_it_goes_on_from_its_ledger(tmp_path):
    _interrupted(tmp_path)
    private = _private(ledger=tmp_path / "ledger")
    assert repr(private).endswith("4 of 12 steps (2.4 epochs) made)")
    with pytest.raises(MisconfigurationException, match="ckpt_path="):
        _fitted(private)
    model = Plain()
    _trainer(private.callback()).fit(model, private.loader(), ckpt_path=tmp_path / "last.ckpt", weights_only=False)
    assert private.account.ledger.count("training") == STEPS
    assert int(private.callback().fitted.trainer.optimizers[0].state_dict()["state"][0]["step"]) == STEPS, "Adam went on"
    certificate = private.release(model, tmp_path / "release")
    assert certificate["epsilon"] <= 8.0 and verify(tmp_path / "release").good


def test_a_ledger_in_which_nothing_stands_yet_begins_the_run(tmp_path):
    _private(ledger=tmp_path / "ledger").account.ledger.close()
    private = _private(ledger=tmp_path / "ledger")
    _fitted(private)
    assert private.account.finished


@pytest.mark.parametrize("changes", [{"epsilon": 4.0}, {"steps": 13}, {"delta": 1e-6}, {"clipping": Fixed(1.0)}], ids=str)
def test_a_ledger_of_other_settings_is_refused_and_stays(tmp_path, changes):
    _interrupted(tmp_path)
    before = (tmp_path / "ledger").read_bytes()
    with pytest.raises(LedgerError, match="holds a run with other settings"):
        _private(ledger=tmp_path / "ledger", **changes)
    assert (tmp_path / "ledger").read_bytes() == before
    _private(ledger=tmp_path / "ledger").account.ledger.close()


def test_one_of_several_launched_processes_leaves_the_ledger_alone(tmp_path, monkeypatch):
    _interrupted(tmp_path)
    before = (tmp_path / "ledger").read_bytes()
    monkeypatch.setenv("LOCAL_RANK", "1")
    private = _private(ledger=tmp_path / "ledger")
    with pytest.raises(MisconfigurationException, match="started as rank 1"):
        _fitted(private)
    assert (tmp_path / "ledger").read_bytes() == before


def test_a_schedule_of_the_plain_optimizer_is_followed():
    class Scheduled(Plain):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.1)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    private = _private()
    model = _fitted(private, Scheduled())
    assert model.trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-2 * 0.1**3)


def _refused(model, private, words, **options):
    """Fit a module that is refused by then: nothing was spent."""
    with pytest.raises((MisconfigurationException, ValueError), match=words) as said:
        _trainer(private.callback(), **options).fit(model, private.loader())
    assert not private.account.ledger.accesses and "\n" not in str(said.value)


class Scheduled(Plain):
    def __init__(self, **config):
        super().__init__()
        self.config = config

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5), **self.config}]


# Twelve steps at rate 0.2 are two whole passes and a part of one.
NEVER = {"interval": "epoch", "frequency": 3}, {"interval": "step", "frequency": STEPS + 1}
SOME = ({"interval": "epoch"}, 2), ({"interval": "epoch", "frequency": 2}, 1), ({"interval": "step", "frequency": 5}, 2)


@pytest.mark.parametrize("config", NEVER, ids=str)
def test_a_schedule_that_no_step_is_due_for_is_warned_of(config):
    model = Scheduled(**config)
    with pytest.warns(UserWarning, match="StepLR with .* the learning rate never changes: return .*'interval': 'step'"):
        _fitted(_private(), model)
    assert model.trainer.optimizers[0].param_groups[0]["lr"] == 1e-2


class ByRule(Plain):
    """A schedule that is made for the optimizer by `rule`."""

    def __init__(self, rule, **groups):
        super().__init__()
        self.rule, self.groups, self.seen = rule, groups, []

    def configure_optimizers(self):
        optimizer = torch.optim.Adam([{"params": list(self.parameters()), "lr": 1e-2, **self.groups}])
        return [optimizer], [{"scheduler": self.rule(optimizer), "interval": "step"}]

    def on_train_batch_end(self, *_):
        group = self.trainer.optimizers[0].param_groups[0]
        self.seen.append((float(group["lr"]), group["betas"]))


RATES = torch.optim.lr_scheduler


class Counting(RATES.LRScheduler):
    """A schedule of a user's own that counts its calls, and keeps no state."""

    def __init__(self, optimizer):
        self.times = 0
        super().__init__(optimizer)

    def get_lr(self):
        self.times += 1
        return [rate / self.times for rate in self.base_lrs]

    def state_dict(self):
        return {}


def counting(optimizer):
    calls = []

    def factor(step):
        calls.append(step)
        return 1 / len(calls)

    return RATES.LambdaLR(optimizer, factor)


RULES = {
    "cosine": lambda o: RATES.CosineAnnealingLR(o, STEPS),
    "one cycle": lambda o: RATES.OneCycleLR(o, 0.1, total_steps=STEPS),
    "a function": lambda o: RATES.LambdaLR(o, lambda step: 0.9**step),
    "one after the other": lambda o: RATES.SequentialLR(o, [RATES.LinearLR(o, 0.1, 1.0, 4), RATES.StepLR(o, 3)], [5]),
    "of a user's own": Counting,
    "a function that counts": counting,
    "both at once": lambda o: RATES.ChainedScheduler([RATES.LinearLR(o, 0.1, 1.0, 4), RATES.ExponentialLR(o, 0.9)]),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("lr", only({"a number": float, "a tensor": torch.tensor}, "a tensor"))
def test_a_schedule_that_is_tried_before_a_fit_is_as_it_was(rule, lr):
    """The learning rates, and the moments that OneCycleLR moves, are those of a schedule that no one has tried."""
    model = _fitted(_private(), ByRule(rule, lr=lr(1e-2)))
    alone = torch.optim.Adam([{"params": [nn.Parameter(torch.zeros(1))], "lr": 1e-2}])
    schedule, expected = rule(alone), []
    for _ in range(STEPS):
        alone.step()
        schedule.step()
        expected.append((float(alone.param_groups[0]["lr"]), alone.param_groups[0]["betas"]))
    assert [rate for rate, _ in model.seen] == pytest.approx([rate for rate, _ in expected])
    assert [betas for _, betas in model.seen] == [betas for _, betas in expected]


def test_a_schedule_that_would_fail_within_the_plan_is_refused_before_the_first_step():
    words = rf"OneCycleLR: its step {STEPS - 1} of {STEPS} in this plan fails .*such as total_steps={STEPS}"
    _refused(ByRule(lambda o: RATES.OneCycleLR(o, 0.1, total_steps=STEPS - 2)), _private(), words)


def test_a_schedule_whose_first_change_is_behind_the_plan_is_warned_of():
    with pytest.warns(UserWarning, match=f"StepLR .*: the plan has {STEPS} whole steps, in which .* never changes"):
        _fitted(_private(), ByRule(lambda o: RATES.StepLR(o, STEPS + 1)))


def test_a_module_steps_a_schedule_by_its_own_hook():
    class Hooked(ByRule):
        def lr_scheduler_step(self, scheduler, metric):
            scheduler.step()
            scheduler.step()

    model = _fitted(_private(), Hooked(lambda o: RATES.LambdaLR(o, lambda step: 0.9**step)))
    assert [rate for rate, _ in model.seen] == pytest.approx([1e-2 * 0.9 ** (2 * i) for i in range(1, STEPS + 1)])


@pytest.mark.parametrize(("config", "times"), SOME, ids=str)
def test_a_schedule_by_epochs_counts_passes(config, times):
    model = _fitted(_private(), Scheduled(**config))
    assert model.trainer.optimizers[0].param_groups[0]["lr"] == 1e-2 * 0.5**times and model.trainer.current_epoch == 1


class Chosen(Plain):
    """Hands other parameters to its optimizer than those that are trained."""

    def __init__(self, choose):
        super().__init__()
        self.choose = choose

    def configure_optimizers(self):
        return torch.optim.SGD(self.choose(self), lr=0.1)


def _with_a_frozen_one(module):
    module.net[0].bias.requires_grad_(False)
    return list(module.parameters())


CHOSEN = {
    "some": (lambda module: [module.net[0].weight], "has 1 of the module's 4 trainable parameters: pass all"),
    "others": (
        lambda module: [*module.parameters(), *nn.Linear(2, 2).parameters()],
        r"has 2 parameters that are not to be trained \(0 frozen in the module, 2 not of the module\)",
    ),
    "some, and others": (
        lambda module: [module.net[0].weight, *nn.Linear(2, 2).parameters()],
        "has 1 of the module's 4 trainable parameters: pass all",
    ),
    "a frozen one": (_with_a_frozen_one, r"has 1 parameters that are not to be trained \(1 frozen in the module, 0 not"),
}


@pytest.mark.parametrize(("choose", "words"), CHOSEN.values(), ids=CHOSEN)
def test_an_optimizer_of_other_parameters_is_told_how_many(choose, words):
    _refused(Chosen(choose), _private(public=["net.0.bias"] if choose is _with_a_frozen_one else []), words)


class Frozen(Plain):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(4))
        self.net[0].bias.requires_grad_(False)

    def configure_optimizers(self):
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1)


def test_parts_that_were_not_trained_are_named_before_the_first_step(tmp_path):
    for public in ((), ["scale"], ["net.0.bias"]):
        _refused(Frozen(), _private(public=public), r"buffers or frozen parameters \['(net.0.bias|scale)'.* public=")
    _refused(Frozen(), _private(public=["scale", "net.0.bias", "scales"]), r"public: \['scales'\] are no buffers or frozen")
    private = _private(public=["scale", "net.0.bias"])
    certificate = private.release(_fitted(private, Frozen()), tmp_path / "release")
    assert certificate["declared"]["public"] == ["net.0.bias", "scale"] and verify(tmp_path / "release").good
    with pytest.raises(ValueError, match="public='scale': expected a list of names, or 'frozen'"):
        _private(public="scale")


class Tied(Plain):
    """Two names of one frozen weight, and of one buffer."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Linear(4, 4, bias=False).requires_grad_(False), nn.Linear(4, 4, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("again", self.scale)

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.1)


@pytest.mark.parametrize("public", [["embedding.weight", "scale"], ["head.weight", "again"]], ids=" ".join)
def test_a_tensor_of_several_names_is_public_by_each(public, tmp_path):
    model, private = Tied(), _private(public=public)
    assert {name for name, p in model.named_parameters() if not p.requires_grad} == {"embedding.weight"}
    private.release(_fitted(private, model), tmp_path / "release")
    assert verify(tmp_path / "release").good
    _refused(Tied(), _private(public=public[1:]), r"frozen parameters \['embedding.weight', 'head.weight'\]")


def test_rank_0_writes_the_release_of_what_each_rank_has(tmp_path):
    """Two processes that run one script would write one folder."""
    private = _private(ledger=tmp_path / "ledger")
    module = _fitted(private)
    private.account.follows = True
    assert private.release(module, tmp_path / "release") == {} and not (tmp_path / "release").exists()


class Keeping(Plain):
    """Keeps a value of each call, in a list of its own."""

    def __init__(self, keep):
        super().__init__()
        self.keep, self.losses, self.history, self.last = keep, [], {"loss": []}, None

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.keep(self, loss.detach())
        return loss


def _anew(module, loss):
    """Keep what the call itself uses, as a mixture of experts does."""
    module.losses = []
    module.losses.extend([loss, loss])
    module.last = torch.stack(module.losses).mean()


GROW = {
    "self.losses": lambda module, loss: module.losses.append(loss),
    "self.history['loss']": lambda module, loss: module.history["loss"].append(loss),
    "self.history": lambda module, loss: module.history.update({len(module.history): loss}),
}
STAY = {
    "the last value": lambda module, loss: setattr(module, "last", loss),
    "a list that each call makes": _anew,
    "how many calls there were": lambda module, loss: module.losses.append(len(module.losses)),
}


@pytest.mark.parametrize("name", GROW)
def test_a_list_of_values_of_records_is_found_before_the_first_step(name):
    _refused(Keeping(GROW[name]), _private(), f"adds a value computed from records to {re.escape(name)}, .* self.log")


@pytest.mark.parametrize("keep", STAY.values(), ids=STAY)
def test_a_value_that_each_call_writes_anew_may_stay(keep):
    private = _private()
    _fitted(private, Keeping(keep))
    assert not private.account.remaining("training")


def test_several_processes_need_a_ledger_that_outlives_rank_0(monkeypatch):
    """Rank 0 alone has the ledger, and every rank has the weights."""
    monkeypatch.setattr(pl.Trainer, "world_size", 2)
    _refused(Plain(), _private(), "ledger=None with 2 processes: .* ledger='private/ledger.jsonl'")


def test_a_training_whose_object_is_gone_gives_up_its_ledger(tmp_path):
    """The Trainer of the failed fit still holds the account."""
    private, stop = _private(ledger=tmp_path / "ledger"), Broken()
    trainer = _trainer(private.callback(), stop)
    with pytest.raises(RuntimeError, match="broken"):
        trainer.fit(Plain(), private.loader())
    del private
    again = _private(ledger=tmp_path / "ledger").account
    assert again.resumed and again.ledger.count("training") == 7 and trainer.callbacks
    again.ledger.close()


class Broken(pl.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if index == 6:
            raise RuntimeError("broken")


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_it_goes_on_from_any_checkpoint_and_a_release_says_which_weights_it_takes(tmp_path):
    folder = tmp_path / "checkpoints"
    checkpoints = ModelCheckpoint(folder, "{step}", every_n_train_steps=3, save_top_k=-1)
    private = _private(ledger=tmp_path / "ledger")
    with pytest.raises(RuntimeError, match="broken"):
        _trainer(private.callback(), checkpoints, Broken(), enable_checkpointing=True).fit(Plain(), private.loader())
    private, model = _private(ledger=tmp_path / "ledger"), Plain()
    words = rf"4 steps \(0.8 epochs\) after this checkpoint are paid for, .*makes {STEPS - 7} steps \(1 epoch\)"
    with pytest.warns(UserWarning, match=words):
        _trainer(private.callback()).fit(model, private.loader(), ckpt_path=folder / "step=3.ckpt")
    assert private.account.ledger.count("training") == STEPS, "the steps after the checkpoint stay spent"

    # The program ends before it releases: the last parameters are in no checkpoint.
    late = _private(ledger=tmp_path / "ledger")
    earlier = Plain()
    earlier.load_state_dict(torch.load(folder / "step=6.ckpt", weights_only=True)["state_dict"])
    with pytest.raises(ValueError, match=r"is released by release_weights\(model, private.account, ...\)"):
        late.release(earlier, tmp_path / "no")
    release_weights(earlier, late.account, tmp_path / "earlier", data="rows")
    assert verify(tmp_path / "earlier").good
    late.release(model, tmp_path / "last")
    assert verify(tmp_path / "last").good
    late.account.ledger.close()


class Measured(Plain):
    """Updates a metric of torchmetrics in its training step, or in the term that this returns."""

    def __init__(self, metric, way):
        super().__init__()
        self.parts = nn.ModuleDict({"error": metric})
        self.way = way

    def training_step(self, batch, batch_idx):
        return PerRecord(lambda lot, _: self._measured(lot.records)) if self.way == "term" else self._measured(batch)

    def _measured(self, x):
        y, metric = self.net(x), self.parts["error"]
        call = metric.update if self.way == "update" else metric
        call(*[y.flatten(), x.flatten()][: 1 if isinstance(metric, CatMetric) else 2])
        return (y - x).square().sum(dim=1)


@pytest.mark.filterwarnings("ignore:Metric `SpearmanCorrcoef` will save all")
@pytest.mark.parametrize("way", ["update", "forward", "term"])
@pytest.mark.parametrize("metric", [MeanSquaredError, SpearmanCorrCoef, CatMetric], ids=lambda m: m.__name__)
def test_a_metric_that_a_training_step_updates_is_refused_by_its_name(metric, way):
    model = Measured(metric(), way)
    words = rf"training_step updates self.parts.error \({metric.__name__}\), .*self\.log.*validation_step"
    _refused(model, _private(), words)
    assert model.parts["error"].update_count == 0


def test_a_metric_that_a_training_step_makes_for_itself_is_refused(recwarn):
    class Tracked(Plain):
        def __init__(self):
            super().__init__()
            self.errors = MetricTracker(MeanSquaredError())

        def training_step(self, batch, batch_idx):
            self.errors.increment()
            self.errors.update(self.net(batch), batch)
            return super().training_step(batch, batch_idx)

    _refused(Tracked(), _private(), r"training_step updates self.errors.\d \(MeanSquaredError\)")


def test_a_cause_that_is_its_own_ends_the_search_for_metrics():
    class Circular(Plain):
        def training_step(self, batch, batch_idx):
            error = RuntimeError("circular")
            raise error from error

    with pytest.warns(UserWarning, match="could not be tried"), pytest.raises(ValueError, match="circular"):
        _fitted(_private(), Circular())


def test_a_metric_of_a_later_step_ends_the_fit_with_the_reason():
    """It can be seen in no trial; the Trainer moves the metric when it ends, which hides no error."""

    class Late(Measured):
        def training_step(self, batch, batch_idx):
            later = self._measured(batch) if batch_idx >= 3 else 0.0
            return later + (self.net(batch) - batch).square().sum(dim=1)

    model, private = Late(MeanSquaredError(), "update"), _private()
    with pytest.raises(ValueError, match="the layer MeanSquaredError writes a value"):
        _fitted(private, model)


def test_what_a_module_does_after_a_step_is_released(tmp_path):
    class Bounded(Plain):
        def on_train_batch_end(self, *_):
            for p in self.parameters():
                p.data.clamp_(-0.1, 0.1)

    private, model = _private(), Bounded()
    private.release(_fitted(private, model), tmp_path / "release")
    weights = safetensors.torch.load_file(tmp_path / "release/model.safetensors")
    assert max(float(x.abs().max()) for x in weights.values()) <= 0.1 + 1e-6


@pytest.mark.parametrize(
    "loss", [lambda m, x: [m.term()], lambda m, x: m.term(), lambda m, x: (m.net(x) - x).square().mean()]
)
def test_a_dictionary_with_a_loss_is_the_loss(loss):
    class Dictionary(Plain):
        def training_step(self, batch, batch_idx):
            return {"loss": loss(self, batch)}

        def term(self):
            return PerRecord(lambda lot, _: (self.net(lot.records) - lot.records).square().sum(dim=1))

    _fitted(_private(), Dictionary())


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_loss_in_a_list_is_refused_with_the_cure(kind):
    class Listed(Plain):
        def training_step(self, batch, batch_idx):
            return kind([super().training_step(batch, batch_idx)])

    _refused(Listed(), _private(), f"a {kind.__name__} with a tensor: expected the loss itself, as in return loss")


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_an_average_by_a_callback_is_refused_with_the_cure(first):
    private, model = _private(), Plain()
    callbacks = [EMAWeightAveraging(), private.callback()]
    with pytest.raises(MisconfigurationException, match=r"EMAWeightAveraging copies .*averaging=0\.999"):
        _trainer(*(callbacks if first else callbacks[::-1])).fit(model, private.loader())
    assert not private.account.ledger.accesses


def test_groups_without_room_for_a_lot_are_warned_of():
    class Grouped(Plain):
        def training_step(self, batch, batch_idx):
            return PerGroup(self.loss, groups=2, places=3)

        def loss(self, lot, noise, groups):
            return groups.gather(self.net(lot.records)).square().sum(dim=(1, 2))

    expected = SETTINGS["n"] * SETTINGS["sample_rate"]
    with pytest.warns(UserWarning, match=rf"expected to have {expected / 2:g} .*places={PerGroup.slots(expected, 2)}"):
        _fitted(_private(), Grouped())


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`", "ignore:Experiment logs directory")
@pytest.mark.parametrize("block", [1, 4])
def test_logs_of_callbacks_count_the_steps_of_the_plan(tmp_path, block):
    """Those of a fit that goes on begin where the fit before has ended."""
    seen = []
    for last in (5, -1):
        private = _private(ledger=tmp_path / "ledger")
        logger = CSVLogger(tmp_path, name=f"until {last}")
        trainer = _trainer(private.callback(), LearningRateMonitor(), logger=logger, log_every_n_steps=1, max_steps=last)
        going_on = {} if last == 5 else {"ckpt_path": tmp_path / "five.ckpt"}
        trainer.fit(ByRule(RULES["cosine"]), private.loader(block), **going_on)
        trainer.save_checkpoint(tmp_path / "five.ckpt")
        logs = pandas.read_csv(Path(logger.log_dir) / "metrics.csv")
        seen.append(sorted(set(logs.loc[logs["lr-Adam"].notna(), "step"])))
    assert seen == [list(range(0, 5, block)), list(range(5, STEPS, block))]


class Logged(Plain):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        return loss


class Rights(pl.Callback):
    """The logs of a folder that others may read after some block."""

    def __init__(self, folder):
        self.folder, self.open = folder, set()

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        logs = [path for name in ("events*", "*.csv", "hparams*") for path in self.folder.rglob(name)]
        self.open |= {path.name for path in logs if path.stat().st_mode & 0o077 and path.parent.stat().st_mode & 0o077}


@pytest.mark.filterwarnings("ignore:Experiment logs directory")
@pytest.mark.skipif(os.name != "posix", reason="rights as POSIX has them")
@pytest.mark.parametrize("kind", [CSVLogger, TensorBoardLogger])
@pytest.mark.parametrize("own", [True, False], ids=["a folder of its own", "a folder of others"])
def test_logs_of_records_are_closed_to_others(tmp_path, kind, own):
    mask, folder = os.umask(0), tmp_path / "logs"
    try:
        folder.mkdir()
        (folder / "code.py").write_text("")
        # A CSVLogger writes its file after some steps.
        options = {"flush_logs_every_n_steps": 3} if kind is CSVLogger else {}
        logger = kind(folder, name="mine" if own else "", version=None if own else "", **options)
        private, rights = _private(), Rights(folder)
        _trainer(private.callback(), rights, logger=logger, log_every_n_steps=1).fit(Logged(), private.loader())
    finally:
        os.umask(mask)
    logs = [path for path in Path(logger.log_dir).iterdir() if path.name.startswith(("events", "metrics", "hparams"))]
    assert logs and all(path.stat().st_mode & 0o077 == 0 for path in logs)
    assert (Path(logger.log_dir).stat().st_mode & 0o077 == 0) == own
    assert not rights.open, "a fit that is killed leaves logs as they are"
    assert (folder / "code.py").stat().st_mode & 0o777 == 0o666


UNITS = {
    "a record": ({}, "<b>1 record</b><span>added or removed</span>"),
    "a person": (
        {"persons": np.arange(N) // 2, "max_rows": 2},
        "<b>1 person</b><span>added or removed, with at most 2 records</span>",
    ),
}


@pytest.mark.parametrize(("changes", "words"), UNITS.values(), ids=UNITS)
def test_the_page_of_weights_says_for_whom_it_holds(tmp_path, changes, words):
    private = _private(**changes)
    private.release(_fitted(private), tmp_path / "release")
    assert words in (tmp_path / "release/report.html").read_text(encoding="utf-8")
