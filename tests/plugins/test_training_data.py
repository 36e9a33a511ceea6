"""A LightningDataModule trains as it stands: its training data become lots, and its hooks see one record at a time."""

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler, random_split

from lightning_dpgen import BadRecords, DataFree, Fixed, PerRecord, PrivateTraining, verify
from lightning_dpgen.plugins import PrivateValidation

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec"),
    pytest.mark.filterwarnings("ignore:.*max_epochs"),
    pytest.mark.filterwarnings("ignore:.*You have overridden"),
    pytest.mark.filterwarnings("ignore:GPU available"),
]
N = 160


class Rows(pl.LightningDataModule):
    """Records divided at random in `setup`, as teams write it."""

    def __init__(self, **loader):
        super().__init__()
        self.loader, self.stages, self.prepared = loader, [], 0

    def prepare_data(self):
        self.prepared += 1

    def setup(self, stage):
        self.stages.append(stage)
        rows = TensorDataset(torch.rand(200, 4), torch.arange(200) % 2)
        self.train, self.val = random_split(rows, [N, 40])

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=32, shuffle=True, **self.loader)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=40)


class Changing(Rows):
    """Its hooks scale records, and add noise to those of a training."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_before_batch_transfer(self, batch, dataloader_idx):
        x, y = batch
        return 2.0 * x, y

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        return tuple(part.to(device) for part in batch)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        x, y = batch
        self.seen.append((len(x), self.trainer.training))
        return (x + torch.rand_like(x) if self.trainer.training else x), y


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.validated = nn.Linear(4, 2), []

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch, batch_idx):
        self.validated.append(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Hooked(Classifier):
    on_before_batch_transfer = Changing.on_before_batch_transfer
    transfer_batch_to_device = Changing.transfer_batch_to_device
    on_after_batch_transfer = Changing.on_after_batch_transfer

    def __init__(self):
        super().__init__()
        self.seen = []


def _private(records, **changes):
    settings = {"n": N, "epsilon": 8.0, "delta": 1e-5, "sample_rate": 0.2, "steps": 4, "clipping": Fixed(1.0)}
    return PrivateTraining(records, **settings | changes)


def _trainer(private, **options):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    options = {"accelerator": "cpu", "max_epochs": 1, "val_check_interval": 2, "num_sanity_val_steps": 0} | options
    return pl.Trainer(callbacks=[private.callback()], **quiet, **options)


def test_a_fit_takes_the_datamodule_as_it_stands(tmp_path):
    data, model = Rows(), Classifier()
    private = _private(data)
    trainer = _trainer(private)
    trainer.fit(model, datamodule=data)
    assert trainer.global_step == 4 and private.account.remaining("training") == 0
    private.release(model, tmp_path / "release")
    assert verify(tmp_path / "release").good
    assert len(model.validated) == 2 and model.validated[0].shape == (40, 4)
    assert isinstance(data.train_dataloader(), DataLoader), "it has its own loader again"


def test_its_records_are_divided_once(tmp_path):
    """A second division would validate on what was trained on."""
    data = Rows()
    private = _private(data)
    chosen = list(data.train.indices)
    _trainer(private).fit(Classifier(), datamodule=data)
    assert data.stages == ["fit"] and list(data.train.indices) == chosen
    data.setup("test")
    assert data.stages == ["fit", "test"]


class Bought(Classifier):
    def on_validation_batch_start(self, *_):
        pytest.fail("the Trainer validates by itself")

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))


@pytest.mark.parametrize("before", [False, True], ids=["new", "set up before"])
def test_validation_that_is_bought_takes_the_records_of_the_one_setup(before):
    """Were the datamodule set up twice, most of its validation records would be trained on."""
    data = Rows()
    if before:
        data.setup("fit")
    validation = PrivateValidation(data, {"val_loss": (0, 4)}, n=40, share=0.2, every=2)
    private = _private(data, validation=validation)
    assert data.stages == ["fit"] and len(validation.store) == 40
    assert not set(data.train.indices) & set(data.val.indices)
    trainer = _trainer(private)
    trainer.fit(Bought(), datamodule=data)
    assert data.stages == ["fit"] and "public/val_loss" in trainer.callback_metrics
    assert trainer.limit_val_batches == 1.0, "it validates by itself again"


def test_validation_records_are_collated_as_their_loader_does():
    class Collating(Rows):
        def val_dataloader(self):
            return DataLoader(self.val, collate_fn=lambda items: items[0][0][None] + 5)

    validation = PrivateValidation(Collating(), {"val_loss": (0, 4)}, n=40)
    assert validation.store.take(np.arange(2)).min() >= 5


def test_validation_of_another_datamodule_is_refused():
    with pytest.raises(ValueError, match="another datamodule than the training's"):
        _private(Rows(), validation=PrivateValidation(Rows(), {"val_loss": (0, 4)}, n=40))


@pytest.mark.parametrize("waiting", [None, []], ids=["None", "empty"])
def test_an_attribute_that_waits_for_setup_is_no_training_data(waiting):
    class Waiting(Rows):
        train = waiting

        def train_dataloader(self):
            return DataLoader(self.train)

    data = Waiting()
    _private(data)
    assert data.stages == ["fit"] and data.prepared == 1 and len(data.train) == N


def test_a_datamodule_that_gives_records_is_not_set_up():
    data = Rows()
    data.setup("fit")
    chosen = list(data.train.indices)
    _private(data)
    assert data.stages == ["fit"] and data.prepared == 0 and list(data.train.indices) == chosen


def test_its_loader_says_how_records_are_collated_and_fetched():
    data = Rows(collate_fn=lambda items: {"x": items[0][0][None], "y": torch.tensor([items[0][1]])}, num_workers=1)

    class Named(Classifier):
        def training_step(self, batch, batch_idx):
            return super().training_step((batch["x"], batch["y"]), batch_idx)

    private = _private(data)
    assert private.callback()._lots.empty["x"].shape == (0, 4)
    trainer = _trainer(private, limit_val_batches=0)
    trainer.fit(Named(), datamodule=data)
    assert trainer.train_dataloader.workers == 1


@pytest.mark.parametrize("of_module", [False, True], ids=["datamodule", "module"])
def test_hooks_change_each_record_by_itself(of_module):
    """The gradients are those of records that were changed; batches of validation are changed as ever."""
    data, model = (Rows(), Hooked()) if of_module else (Changing(), Classifier())
    private = _private(data)
    _trainer(private).fit(model, datamodule=data)
    seen = (model if of_module else data).seen
    assert (40, False) in seen and (1, True) in seen and N not in dict(seen)
    assert all(float(x.max()) > 1.0 for x in model.validated), "doubled, and no noise was added"
    owner = model if of_module else data
    assert not {"on_after_batch_transfer", "training_step", "train_dataloader"} & set(vars(owner))


def test_an_augmentation_draws_for_each_record_by_itself():
    losses = []

    class Drawn(Changing):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            return torch.rand_like(batch[0]), batch[1]

    class Telling(Classifier):
        def training_step(self, batch, batch_idx):
            return (batch[0] @ self.net.weight[0]).mean()

        def on_train_batch_end(self, outputs, batch, batch_idx):
            losses.append(self.net.weight.detach().clone())

    rule = Fixed(1e6)
    data = Drawn()
    private = _private(data, clipping=rule, epsilon=float("inf"), steps=1, sample_rate=1.0)
    model = Telling()
    before = model.net.weight.detach().clone()
    _trainer(private, val_check_interval=1.0).fit(model, datamodule=data)
    moved = (before - losses[0])[0] / 0.1
    # The mean over 160 numbers of their own is near a half, and one number for all would be anywhere.
    assert torch.allclose(moved, torch.full_like(moved, 0.5), atol=0.15) and moved.std() > 0


def test_hooks_beside_terms_are_refused():
    class Terms(Classifier):
        def training_step(self, batch, batch_idx):
            return [PerRecord(self.loss), DataFree(lambda: self.net.weight.square().sum())]

        def loss(self, lot, noise):
            return self.net(lot.records[0]).sum(dim=1)

    data = Changing()
    private = _private(data)
    with pytest.raises(ValueError, match="on_before_batch_transfer changes a batch, and training_step returns terms"):
        _trainer(private).fit(Terms(), datamodule=data)
    assert not private.account.ledger.accesses


class Sampling(Rows):
    def train_dataloader(self):
        return DataLoader(self.train, sampler=WeightedRandomSampler([1.0] * N, N))


class Several(Rows):
    def train_dataloader(self):
        return [super().train_dataloader()]


class Stream(IterableDataset):
    def __iter__(self):
        return iter([1.0])


class Streaming(Rows):
    def train_dataloader(self):
        return DataLoader(Stream())


REFUSED = {
    "sampler": (Sampling, ValueError, r"train_dataloader\(\): it chooses its records by a sampler of its own.*0\.2"),
    "several": (Several, ValueError, r"train_dataloader\(\) is a list: expected a DataLoader"),
    "stream": (Streaming, BadRecords, r"train_dataloader\(\).dataset is an IterableDataset \(Stream\).*pass list\("),
}


@pytest.mark.parametrize("case", REFUSED)
def test_training_data_from_which_no_lot_can_be_drawn_are_refused(case):
    kind, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        _private(kind())


def test_another_datamodule_is_refused_before_the_first_step():
    private = _private(Rows())
    other = Rows()
    with pytest.raises(MisconfigurationException, match="or the LightningDataModule that it was given in the place of"):
        _trainer(private).fit(Classifier(), datamodule=other)
    assert not private.account.ledger.accesses
