"""Private numbers reach no service by any entry of a Trainer: not its log, and not the text that it uploads."""

import re

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.utils.data import DataLoader

from lightning_dpgen import Fixed, MomentsAccountant, PrivateOptimizer, PrivateTraining, poisson_loader, term_gradients
from lightning_dpgen.gradients.terms import PerRecord

pytestmark = pytest.mark.filterwarnings("ignore")

N, STEPS = 60, 4
RECORDS = torch.rand(N, 3, generator=torch.Generator().manual_seed(0))


class Service(pl.loggers.Logger):
    """Stands for Weights & Biases or MLflow: keeps what would leave the machine."""

    name = version = "service"

    def __init__(self):
        super().__init__()
        self.lines = {}

    def log_hyperparams(self, params, *_, **__): ...

    def log_metrics(self, metrics, step=None):
        self.lines |= metrics


class Evaluated(pl.LightningModule):
    """Logs by plain names, in bars, from each step that may log; and a public number beside."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 3)

    def training_step(self, batch, batch_idx):
        loss = (self.net(batch) - batch).square().mean()
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val", batch.mean(), True)
        self.log_dict({"more": batch.sum(), "public/bias": self.net.bias.detach().mean()}, prog_bar=True)

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return self.net(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Overriding(Evaluated):
    """Has a `log` of its own, which shows all in bars."""

    def log(self, name, value, *_, **options):
        super().log(name, value, **options | {"prog_bar": True})


class Passing(Evaluated):
    """Calls the functions of its parent, which those of an instance do not hide."""

    def training_step(self, batch, batch_idx):
        loss = (self.net(batch) - batch).square().mean()
        super().log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        super().log("val", batch.mean(), True)
        super().log_dict({"more": batch.sum(), "public/bias": self.net.bias.detach().mean()}, prog_bar=True)

    test_step = validation_step


class Beside(pl.Callback):
    """Logs by the function that a Trainer has given it before any setup."""

    def on_validation_batch_end(self, trainer, module, outputs, batch, *_):
        self.log("seen", batch.sum(), prog_bar=True)

    on_test_batch_end = on_validation_batch_end


class Direct(pl.Callback):
    """Writes to the loggers itself, as monitors of devices do."""

    def on_train_batch_end(self, trainer, *_):
        for logger in trainer.loggers:
            logger.log_metrics({"DeviceStatsMonitor.on_train_batch_end/allocated": 7.0, "lr-Adam": 0.1}, step=0)


def _private(**changes):
    given = {"n": N, "epsilon": 8.0, "delta": 1e-5, "sample_rate": 0.2, "steps": STEPS, "clipping": Fixed(1.0)}
    return PrivateTraining(RECORDS, **given | changes)


def _trainer(*callbacks, **options):
    quiet = {"enable_checkpointing": False, "enable_model_summary": False, "log_every_n_steps": 1, "logger": False}
    return pl.Trainer(accelerator="cpu", max_epochs=1, callbacks=list(callbacks), **quiet | options)


# Each entry of a Trainer.
ENTRIES = {
    "fit": lambda trainer, model, private: trainer.fit(model, private.loader(), DataLoader(RECORDS, batch_size=20)),
    "validate": lambda trainer, model, _: trainer.validate(model, DataLoader(RECORDS, batch_size=20)),
    "test": lambda trainer, model, _: trainer.test(model, DataLoader(RECORDS, batch_size=20)),
    "predict": lambda trainer, model, _: trainer.predict(model, DataLoader(RECORDS, batch_size=20)),
}


@pytest.mark.parametrize(
    "kind, beside",
    [(Evaluated, []), (Evaluated, ["file"]), (Overriding, []), (Passing, [])],
    ids=["alone", "beside a file", "overriding", "passing"],
)
@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES.keys())
def test_nothing_private_reaches_a_service(entry, kind, beside, tmp_path, capfd):
    service, private, model = Service(), _private(), kind()
    trainer = _trainer(private.callback(), Direct(), Beside(), logger=[service, *(CSVLogger(tmp_path) for _ in beside)])
    given = entry(trainer, model, private)
    assert all(name in ("epoch", "lr-Adam") or name.startswith("public/") for name in service.lines)
    text = "".join(capfd.readouterr())
    assert not re.search(r"private/|\b(val|more|loss|seen)\b", text), "what a console capture would upload"
    # The curator's own program has all of it, under names that say what it is.
    if given and isinstance(given[0], dict):
        assert given[0].keys() == {"private/val", "private/more", "private/seen", "public/bias"}
        assert "public/bias" in service.lines
    loops = trainer.fit_loop.epoch_loop, trainer.fit_loop.epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop
    changed = [vars(x).keys() & {"log", "log_dict", "log_metrics"} for x in (model, service, *(y._results for y in loops))]
    assert not any(changed), "what a private fit leaves behind"
    service.log_metrics({"private/x": 1.0})
    assert service.lines["private/x"] == 1.0


@pytest.mark.parametrize("entry", ["fit", "validate", "test"])
def test_without_a_service_bars_and_tables_show_what_is_logged(entry, tmp_path, capfd):
    private = _private()
    ENTRIES[entry](_trainer(private.callback(), logger=CSVLogger(tmp_path)), Evaluated(), private)
    assert "private/val" in "".join(capfd.readouterr())
    files = list(tmp_path.rglob("metrics.csv"))
    assert files and all(file.stat().st_mode & 0o77 == 0 for file in files)


def test_a_service_is_told_all_where_that_is_allowed(capfd):
    service, private, model = Service(), _private(share_private_logs=True), Evaluated()
    trainer = _trainer(private.callback(), logger=service)
    trainer.fit(model, private.loader(), DataLoader(RECORDS, batch_size=20))
    trainer.test(model, DataLoader(RECORDS, batch_size=20))
    assert {"private/loss", "private/val"} <= service.lines.keys() and "private/val" in "".join(capfd.readouterr())


def test_a_file_logger_of_a_bucket_is_a_service(tmp_path, monkeypatch):
    # The logger makes a local folder, too.
    monkeypatch.chdir(tmp_path)
    logger = TensorBoardLogger("memory://bucket")
    private = _private()
    with pytest.warns(UserWarning, match="TensorBoardLogger is told no number under private/"):
        _trainer(private.callback(), logger=logger, enable_progress_bar=False).validate(Evaluated(), DataLoader(RECORDS))


def test_a_bar_alone_is_warned_of():
    class InBars(Evaluated):
        def validation_step(self, batch, batch_idx):
            self.log("val", batch.mean(), prog_bar=True, logger=False)

    with pytest.warns(UserWarning, match="bars and tables leave out what is private") as found:
        _trainer(_private().callback(), logger=Service()).validate(InBars(), DataLoader(RECORDS))
    assert sum("bars and tables" in str(x.message) for x in found) == 1


def test_steps_of_a_modules_own_are_behind_the_same_split(capfd):
    private = _private()
    account = private.account

    class Stepping(Evaluated):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers().optimizer
            for lot in batch:
                term = PerRecord(lambda lot, _: (self.net(lot.records) - lot.records).square().sum(dim=1))
                optimizer.set_gradients(term_gradients(self, term, lot, account.stream))
                optimizer.step()
                self.log("loss", lot.records.sum(), prog_bar=True)

        def configure_optimizers(self):
            return PrivateOptimizer(super().configure_optimizers(), account=account, clipping=Fixed(1.0))

    service = Service()
    trainer = _trainer(MomentsAccountant(account), logger=service)
    trainer.fit(Stepping(), poisson_loader(RECORDS, account))
    assert account.remaining("training") == 0 and "private/loss" in trainer.logged_metrics
    assert service.lines.keys() == {"public/bound", "public/epsilon", "public/learning_rate"}
    assert "loss" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("name", ["private/val:.3f", "val", "val:.2f", "val/dataloader_idx_0", "epochs", ""])
@pytest.mark.parametrize("setting", ["filename", "CHECKPOINT_NAME_LAST"])
def test_a_number_of_records_is_in_no_name_of_a_file(name, setting, tmp_path):
    private, saving = _private(), ModelCheckpoint(tmp_path, save_last=True)
    setattr(saving, setting, f"{{epoch}}-{{{name}}}")
    trainer = _trainer(private.callback(), saving, enable_checkpointing=True)
    with pytest.raises(MisconfigurationException, match=rf"ModelCheckpoint\({setting}=.*into the name of a file: expected"):
        trainer.fit(Evaluated(), private.loader(), DataLoader(RECORDS))
    assert not private.account.ledger.accesses


def test_public_numbers_are_in_names_of_files(tmp_path):
    private = _private()
    saving = ModelCheckpoint(tmp_path, filename="{epoch:02d}-{step}-{public/bias:.2f}", auto_insert_metric_name=False)
    trainer = _trainer(private.callback(), saving, enable_checkpointing=True)
    trainer.fit(Evaluated(), private.loader(), DataLoader(RECORDS, batch_size=20))
    (file,) = tmp_path.iterdir()
    assert re.fullmatch(r"00-\d+--?\d\.\d\d\.ckpt", file.name)


def test_a_trainer_without_the_callback_logs_as_ever(capfd):
    service = Service()
    _trainer(logger=service).validate(Evaluated(), DataLoader(RECORDS, batch_size=20))
    assert "val" in service.lines and "val" in "".join(capfd.readouterr())
