"""A module is trained by replayed operations as by its code, to the last bit; one that looks at its Trainer by its code."""

import pytest
import pytorch_lightning as pl
import torch

from lightning_dpgen import Fixed, PrivateTraining
from lightning_dpgen.gradients import engines, repeat
from lightning_dpgen.privacy.noise.stream import PrivateStream

X = torch.rand(300, 4, generator=torch.Generator().manual_seed(0))


class _Module(pl.LightningModule):
    def __init__(self, way):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.drop, self.way = torch.nn.Linear(4, 1), torch.nn.Dropout(0.3), way

    def training_step(self, batch, batch_idx):
        x, y = batch
        return (self.way(self, self.layer(self.drop(x)), batch_idx)[:, 0] - y).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def _log(module, x, _):
    module.log("mean", x.mean())
    return x


WAYS = {
    "torch alone": (lambda module, x, _: x.tanh(), None),
    "the step of the Trainer": (lambda module, x, _: x * (1.0 + (module.global_step > 12)), "its Trainer"),
    "the epoch": (lambda module, x, _: x * (1.0 + module.current_epoch), "its Trainer"),
    "the index of the batch": (lambda module, x, index: x * (1.0 + 0.1 * index), ""),
    "a turn of the index": (lambda module, x, index: x if index % 5 else -x, "the index of its batch"),
    "logs": (_log, "logs a value"),
}


def _trained(way):
    module = _Module(way)
    private = PrivateTraining(
        (X, X.sum(dim=1)),
        n=300,
        epsilon=4,
        delta=1e-5,
        sample_rate=0.1,
        steps=30,
        clipping=Fixed(1.0),
        stream=PrivateStream(7),
    )
    trainer = pl.Trainer(
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu",
        callbacks=[private.callback()],
    )  # fmt: skip
    trainer.fit(module, private.loader())
    return module


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("way", "says"), WAYS.values(), ids=WAYS)
def test_a_fit_is_that_of_the_code(monkeypatch, way, says):
    monkeypatch.setattr(repeat, "_BEFORE", 3)
    ours = _trained(way)
    states = list(repeat._states[ours].values())
    assert [state.program is not None for state in states] == [says is None]
    assert says is None or says in states[0].why

    def by_code(*_, by_code, keyed, **__):
        with keyed():
            return by_code()

    monkeypatch.setattr(engines, "repeat", by_code)
    theirs = _trained(way)
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))
