"""After a private fit, complete or refused, a module is its owner's again, and a second fit begins anew."""

import copy
import pickle

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_dpgen import Fixed, PrivateTraining
from lightning_dpgen.privacy.noise.stream import PrivateStream

pytestmark = pytest.mark.filterwarnings("ignore")

N, STEPS = 100, 6
RECORDS = torch.rand(N, 4, generator=torch.Generator().manual_seed(0))


class Module(pl.LightningModule):
    """Trains with or without privacy; draws for each record, and logs in each hook that may."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
        self.indices = []

    def training_step(self, batch, batch_idx):
        rows = batch[0] if isinstance(batch, list | tuple) else batch
        if batch_idx not in self.indices:
            self.indices.append(batch_idx)
        losses = (self.net(rows) - rows).square().sum(dim=1)
        self.log("loss", losses.mean())
        return losses if self.training_is_private else losses.mean()

    training_is_private = True

    def validation_step(self, batch, batch_idx):
        self.log("val", float(batch_idx))

    def on_train_epoch_end(self):
        self.log("end", 7.0)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class WithoutIndex(Module):
    def training_step(self, batch):
        return super().training_step(batch, 0)


def _private(**changes):
    settings = {"n": N, "epsilon": 8.0, "delta": 1e-5, "sample_rate": 0.2, "steps": STEPS, "clipping": Fixed(1.0)}
    return PrivateTraining(RECORDS, **settings | changes)


def _trainer(*callbacks, **options):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(callbacks=list(callbacks), accelerator="cpu", max_epochs=1, **quiet | options)


def _fit(model, private=None, **options):
    private = private or _private()
    _trainer(private.callback(), **options).fit(model, private.loader(block=2))
    return private


def _refused(model):
    private = _private()
    with pytest.raises(MisconfigurationException, match="accumulate_grad_batches"):
        _fit(model, private, accumulate_grad_batches=2)


ENDED = {"complete": _fit, "refused": _refused}


@pytest.mark.parametrize("end", ENDED.values(), ids=ENDED.keys())
def test_it_can_be_copied_saved_evaluated_and_fitted_again(end, tmp_path):
    model = Module()
    end(model)
    assert model.automatic_optimization
    copy.deepcopy(model)
    # A Trainer that is at hand is no part of a module.
    model.trainer = None
    pickle.dumps(model)
    assert _trainer().validate(model, DataLoader(TensorDataset(RECORDS[:2])), verbose=False) == [{"val": 0.5}]
    model.training_is_private = False
    before = model.net[0].weight.detach().clone()
    _trainer().fit(model, DataLoader(TensorDataset(RECORDS[:8])))
    assert not torch.equal(before, model.net[0].weight)
    model.training_is_private = True
    private = _fit(model)
    private.release(model, tmp_path / "release")


def test_a_second_fit_draws_from_its_own_account_and_is_checked_as_the_first():
    model, streams = Module(), [PrivateStream(seed=0), PrivateStream()]
    asked = []
    for name, stream in zip("ab", streams, strict=True):
        words = stream.words
        stream.words = lambda *a, words=words, name=name, **k: asked.append(name) or words(*a, **k)
    _fit(model, _private(stream=streams[0]))
    asked.clear()
    _fit(model, _private(stream=streams[1]))
    assert set(asked) == {"b"}

    def scheduled():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return {
            "optimizer": optimizer,
            "lr_scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
            "monitor": "x",
        }

    model.configure_optimizers = scheduled
    with pytest.raises(MisconfigurationException, match="follow private numbers"):
        _fit(model)


def test_other_hooks_log_as_ever_under_a_private_name(tmp_path):
    logger = CSVLogger(tmp_path)
    private, model = _private(), Module()
    trainer = _trainer(private.callback(), logger=logger, log_every_n_steps=1, val_check_interval=1)
    trainer.fit(model, private.loader(block=3), DataLoader(TensorDataset(RECORDS[:3])))
    assert float(trainer.callback_metrics["private/val"]) == 1.0, "the mean of three batches"
    assert float(trainer.callback_metrics["private/end"]) == 7.0
    assert "loss" not in " ".join(trainer.callback_metrics), "code that trains finds no mean of a lot"


@pytest.mark.parametrize("kind", [Module, WithoutIndex])
def test_a_training_step_is_called_as_lightning_calls_it(kind):
    model = kind()
    _fit(model)
    assert model.indices == (list(range(STEPS)) if kind is Module else [0])


@pytest.mark.parametrize("doubled", [False, True], ids=["by the Trainer", "by the module"])
def test_it_trains_in_double_precision(doubled):
    model = Module().double() if doubled else Module()
    private = PrivateTraining(RECORDS.double(), n=N, epsilon=8.0, delta=1e-5, sample_rate=0.2, steps=2, clipping=Fixed(1.0))
    _fit(model, private, **({} if doubled else {"precision": "64-true"}))
    assert model.net[0].weight.dtype == torch.float64 and private.account.finished


def test_a_module_near_its_optimum_passes_the_check_of_its_gradients():
    model = Module()
    model.net = nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        model.net.weight.copy_(torch.eye(4) + 1e-6)
    _fit(model)


LOOKING = {
    "a finder of rates": ({"callbacks": [pl.callbacks.LearningRateFinder()]}, "LearningRateFinder"),
}


@pytest.mark.parametrize(("options", "words"), LOOKING.values(), ids=LOOKING.keys())
def test_steps_that_no_plan_counts_are_refused(options, words):
    private = _private()
    callbacks = [*options.get("callbacks", []), private.callback()]
    with pytest.raises(MisconfigurationException, match=words):
        _trainer(*callbacks, **{k: v for k, v in options.items() if k != "callbacks"}).fit(Module(), private.loader())
    assert not private.account.ledger.accesses
