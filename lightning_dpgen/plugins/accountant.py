"""The moments accountant as a callback: holds the plan, refuses what would break it, compares it with the ledger."""

from __future__ import annotations

import pytorch_lightning as pl
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import nn

from lightning_dpgen.privacy.account import Account

_MIXING = (nn.modules.batchnorm._BatchNorm, nn.SyncBatchNorm)


class MomentsAccountant(pl.Callback):
    """Watches over a private fit.

    At setup it refuses what would silently break privacy. During the fit, `epsilon_at` tells epsilon by the plan. When
    the last planned step is done it stops the Trainer and compares ledger and plan.

    Args:
        account: the account of the run, shared with module and datamodule.

    Raises:
        MisconfigurationException: at setup, naming the setting and what to do.
        PlanMismatch: at the end of a complete fit, if what was drawn is not what was promised.

    Attributes:
        complete: whether every planned access was made.
    """

    def __init__(self, account: Account) -> None:
        self.account = account
        self.complete = False
        self._curve = None

    def setup(self, trainer: pl.Trainer, module: pl.LightningModule, stage: str) -> None:
        if stage == "fit":
            _refuse(trainer, module)

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self.account.plan.private:
            self._curve = self.account.plan.curve("training")

    def epsilon_at(self, step: int) -> float | None:
        """Epsilon by the plan after `step` training steps, rounded up to a knot; None without privacy."""
        return None if self._curve is None else self._curve.at(step)

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_) -> None:
        if self.account.plan.private and not self.account.remaining("training"):
            self.complete = True
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        # One pass over the loader is the whole plan, with or without noise.
        trainer.should_stop = True

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self.complete or not self.account.plan.private:
            self.account.settle()


def _refuse(trainer: pl.Trainer, module: pl.LightningModule) -> None:
    for name, layer in module.named_modules():
        if isinstance(layer, _MIXING):
            raise MisconfigurationException(
                f"{name} ({type(layer).__name__}) mixes the records of a lot, so a record's gradient is not its own: "
                "use nn.GroupNorm or nn.LayerNorm"
            )
    if trainer.precision not in ("32-true", "64-true"):
        raise MisconfigurationException(
            f"precision={trainer.precision!r}: expected '32-true' or '64-true', since norms and clipped sums rest on "
            "full precision (and '16-mixed' scales the loss, so gradients would be clipped at the wrong size)"
        )
    if trainer.accumulate_grad_batches != 1:
        raise MisconfigurationException(
            f"accumulate_grad_batches={trainer.accumulate_grad_batches} joins several lots into one step, "
            "which is not what the plan promises: ask for larger lots instead"
        )
    if trainer.gradient_clip_val:
        raise MisconfigurationException(
            f"gradient_clip_val={trainer.gradient_clip_val} clips sums and not records: choose a clipping rule instead"
        )
    if trainer.overfit_batches:
        raise MisconfigurationException("overfit_batches replaces Poisson sampling, which the accounting rests on")
    if trainer.world_size > 1:
        raise MisconfigurationException(
            f"{trainer.world_size} processes would each make the split and charge it once: use devices=1"
        )
