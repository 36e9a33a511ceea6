"""A progress bar in steps, with epsilon by the plan."""

from __future__ import annotations

import sys
from typing import Any

import pytorch_lightning as pl
from tqdm import tqdm

from lightning_dpgen.plugins.accountant import MomentsAccountant


class PrivateProgress(pl.callbacks.ProgressBar):
    """A bar with the steps done, the time left, and epsilon by the plan against the budget.

    Args:
        accountant: the run's `MomentsAccountant`.
    """

    def __init__(self, accountant: MomentsAccountant) -> None:
        super().__init__()
        self._accountant = accountant
        self._bar: tqdm | None = None
        self._enabled = True

    def enable(self) -> None:
        self._enabled = True

    def disable(self) -> None:
        self._enabled = False

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        super().on_train_start(trainer, module)
        account = self._accountant.account
        stage = self._accountant.stage
        total = account.plan.stage(stage).count
        self._bar = tqdm(
            total=total,
            initial=total - account.remaining(stage),
            desc=stage if account.private else f"{stage} (NOT PRIVATE)",
            unit="step",
            file=sys.stderr,
            disable=not self._enabled,
            dynamic_ncols=True,
            bar_format="{desc} {percentage:3.0f}% |{bar}| {n}/{total} steps, {remaining} left{postfix}",
        )

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, *_: Any
    ) -> None:
        if self._bar is None:
            return
        epsilon = self._accountant.epsilon_at(self._bar.n + len(batch)) if self._enabled else None
        if epsilon is not None:
            target = self._accountant.account.plan.target_epsilon
            self._bar.set_postfix_str(f"epsilon {epsilon:.2f} of {target:g}", refresh=False)
        self._bar.update(len(batch))

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._close()

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
