"""Each callback that ships with Lightning fits beside a private training, or is refused in one line before it costs."""

import importlib.util

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning import callbacks as stock
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.utils.data import DataLoader

from lightning_dpgen import Fixed, PrivateTraining

pytestmark = pytest.mark.filterwarnings("ignore")

RECORDS = torch.rand(60, 3, generator=torch.Generator().manual_seed(0))


class Network(pl.LightningModule):
    lr, batch_size = 0.1, 2

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 3)

    def training_step(self, batch, batch_idx):
        return (self.net(batch) - batch).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("public/bias", self.net.bias.detach().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Thawing(stock.BaseFinetuning):
    def freeze_before_training(self, module):
        self.freeze(module.net)

    def finetune_function(self, module, epoch, optimizer):
        self.unfreeze_and_add_param_group(module.net, optimizer)


class Writer(stock.BasePredictionWriter):
    """Writes nothing."""


WORKING = {
    "BasePredictionWriter": lambda: Writer("batch"),
    "Callback": stock.Callback,
    "Checkpoint": stock.Checkpoint,
    "DeviceStatsMonitor": stock.DeviceStatsMonitor,
    "EarlyStopping": lambda: stock.EarlyStopping("public/bias"),
    "LambdaCallback": lambda: stock.LambdaCallback(on_train_start=lambda *_: None),
    "LearningRateMonitor": stock.LearningRateMonitor,
    "ModelCheckpoint": stock.ModelCheckpoint,
    "ModelSummary": stock.ModelSummary,
    "OnExceptionCheckpoint": lambda: stock.OnExceptionCheckpoint("."),
    "ProgressBar": stock.ProgressBar,
    "RichModelSummary": stock.RichModelSummary,
    "RichProgressBar": stock.RichProgressBar,
    "ThroughputMonitor": lambda: stock.ThroughputMonitor(len),
    "Timer": stock.Timer,
    "TQDMProgressBar": stock.TQDMProgressBar,
}
REFUSED = {
    "BackboneFinetuning": (stock.BackboneFinetuning, "freezes parameters"),
    "BaseFinetuning": (Thawing, "freezes parameters"),
    "BatchSizeFinder": (stock.BatchSizeFinder, "steps that are discarded.*micro_batch='auto'"),
    "GradientAccumulationScheduler": (lambda: stock.GradientAccumulationScheduler({0: 2}), "several lots.*sample_rate"),
    "LearningRateFinder": (stock.LearningRateFinder, "steps that are discarded"),
    "ModelPruning": (lambda: stock.ModelPruning("l1_unstructured", amount=0.5), "after the last private step"),
    "SpikeDetection": (getattr(stock, "SpikeDetection", None), "losses of records"),
    "StochasticWeightAveraging": (lambda: stock.StochasticWeightAveraging(0.1), "averaging="),
    "EMAWeightAveraging": (getattr(stock, "EMAWeightAveraging", None), "averaging="),
    "WeightAveraging": (getattr(stock, "WeightAveraging", None), "averaging="),
}
NEEDED = {"DeviceStatsMonitor": "psutil", "RichModelSummary": "rich", "RichProgressBar": "rich"}


def _fit(callback, tmp_path):
    network = Network()
    private = PrivateTraining(RECORDS, n=60, epsilon=8.0, delta=1e-5, sample_rate=0.2, steps=3, clipping=Fixed(1.0))
    # Lightning itself refuses a search for the size of batches that are handed to `fit`.
    data = pl.LightningDataModule()
    data.train_dataloader, data.val_dataloader = private.loader, lambda: DataLoader(RECORDS[:4], 2)
    trainer = pl.Trainer(
        callbacks=[private.callback(), callback],
        accelerator="cpu",
        max_epochs=1,
        default_root_dir=tmp_path,
        logger=pl.loggers.CSVLogger(tmp_path),
        log_every_n_steps=1,
        enable_model_summary=False,
        enable_checkpointing=isinstance(callback, stock.Checkpoint),
        enable_progress_bar=isinstance(callback, stock.ProgressBar),
    )
    try:
        trainer.fit(network, data)
    finally:
        assert private.account.remaining("training") in (0, 3)
    return private, network


def test_each_is_in_the_list():
    assert set(stock.__all__) <= {*WORKING, *REFUSED}


@pytest.mark.parametrize("name", WORKING)
def test_it_fits_and_the_module_is_released(name, tmp_path):
    if name in NEEDED and importlib.util.find_spec(NEEDED[name]) is None:
        pytest.skip(f"{NEEDED[name]} is not installed")
    private, network = _fit(WORKING[name](), tmp_path)
    private.release(network, tmp_path / "release")


@pytest.mark.parametrize("name", [name for name in REFUSED if hasattr(stock, name)])
def test_it_is_refused_in_a_line_with_its_reason(name, tmp_path):
    make, words = REFUSED[name]
    with pytest.raises(MisconfigurationException, match=f"{make().__class__.__name__} .*{words}") as refused:
        _fit(make(), tmp_path)
    assert len(str(refused.value).splitlines()) == 1
