"""Laws of modules that step by themselves (manual optimization): who sees a record, and what a step costs."""

from __future__ import annotations

import pytorch_lightning as pl
import torch
from torch import nn

from lightning_dpgen.gradients.clipping import Fixed
from lightning_dpgen.gradients.isolation.hidden import is_hidden
from lightning_dpgen.plugins.private_training import PrivateTraining

_QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


class _GAN(pl.LightningModule):
    """Its critic steps twice between two steps of its generator.

    Args:
        generator_follows: how the losses of the generator follow from the batch: not at all (None), by a value that is
            read of it (``value``), or by the first of two backward passes (``first``).
    """

    def __init__(self, generator_follows: str | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.automatic_optimization = False
        self.critic, self.generator = nn.Linear(3, 1), nn.Linear(2, 3)
        self.batches: list[torch.Tensor] = []
        self.lines: list[str] = []
        self._follows = generator_follows

    def training_step(self, batch, batch_idx):
        if not is_hidden(batch):
            self.batches.append(batch)
        critic, generator = self.optimizers()
        self._step_of(generator, *self._of_batch(batch), self._of_generated())
        self._step_of(critic, self.critic(batch).mean())
        self._step_of(critic, self.critic(batch).square().mean())
        self._step_of(generator, *self._of_batch(batch), self._of_generated())

    def _of_batch(self, batch):
        if self._follows == "value":
            total = batch.sum()
            return [(total if is_hidden(batch) else float(total)) * self._of_generated()]
        return [self.critic(self.generator(batch[:, :2])).mean()] if self._follows == "first" else []

    def _of_generated(self):
        return self.critic(self.generator(torch.ones(4, 2))).mean()

    def _step_of(self, optimizer, *losses):
        optimizer.zero_grad()
        for loss in losses:
            self.manual_backward(loss)
        optimizer.step()

    def configure_optimizers(self):
        optimizers = [torch.optim.SGD(p.parameters(), lr=0.1) for p in (self.critic, self.generator)]
        for name, optimizer in zip(["critic", "generator"], optimizers, strict=True):
            optimizer.register_step_post_hook(lambda *_, name=name: self.lines.append(name))
        return optimizers


def _fitted(records: torch.Tensor, generator_follows: str | None = None) -> tuple[_GAN, PrivateTraining]:
    clipping = Fixed(1.0)
    private = PrivateTraining(records, n=40, epsilon=8.0, delta=1e-4, sample_rate=0.5, steps=4, clipping=clipping)
    model = _GAN(generator_follows)
    pl.Trainer(max_epochs=1, callbacks=[private.callback()], accelerator="cpu", **_QUIET).fit(model, private.loader())
    return model, private


def no_record_is_seen_but_alone() -> None:
    """Check that a training step is handed made-up records where these are not hidden from it."""
    for generator_follows in (None, "first"):
        model, _ = _fitted(torch.full((40, 3), 9.0), generator_follows)
        assert model.batches and all(float(batch.max()) < 9.0 for batch in model.batches)


def each_step_on_records_is_an_access() -> None:
    """Check that steps of the optimizer that sees records are accesses of a lot each, and made in the module's order."""
    model, private = _fitted(torch.rand(40, 3))
    assert model.lines == ["generator", "critic", "critic", "generator"] * 2
    assert private.account.ledger.count("training") == 4 and private.account.finished


def an_optimizer_that_may_follow_records_is_private(generator_follows: str) -> None:
    """Check that a generator with a loss that follows from the batch takes its turns at the lots."""
    model, private = _fitted(torch.rand(40, 3), generator_follows)
    assert model.lines == ["generator", "critic", "critic", "generator"]
    assert private.account.ledger.count("training") == 4 and private.account.finished
