"""A progress bar in steps, with epsilon by the plan."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

from lightning_dpgen.common import pace
from lightning_dpgen.common.plain_text import say_steps
from lightning_dpgen.plugins.accountant import MomentsAccountant
from lightning_dpgen.plugins.namespaces import pl


class PrivateProgress(pl.callbacks.ProgressBar):
    """A bar with the steps done, the time left, and epsilon by the plan against the budget.

    Args:
        accountant: the run's `MomentsAccountant`.
    """

    def __init__(self, accountant: MomentsAccountant) -> None:
        super().__init__()
        self._accountant = accountant
        self._stage: pace.Stage | None = None
        self._exits = ExitStack()
        self._enabled, self._planned = True, ""

    def enable(self) -> None:
        self._enabled = True

    def disable(self) -> None:
        self._enabled = False

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        super().on_train_start(trainer, module)
        if not self._enabled:
            return
        account, name = self._accountant.account, self._accountant.stage
        stage = account.plan.stage(name)
        total = stage.count
        self._planned = say_steps(total, stage.access.sample_rate)
        self._exits.enter_context(pace.show_progress(sys.stderr, bar=True))
        self._stage = self._exits.enter_context(
            pace.stage(name if account.private else f"{name} (NOT PRIVATE)", total, done=total - account.remaining(name))
        )

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, *_: Any
    ) -> None:
        stage = self._stage
        if stage is None:
            return
        stage.advance(len(batch))
        stage.note = f"{stage.done:,} of {self._planned}"
        epsilon = self._accountant.epsilon_at(int(stage.done)) if stage.moving else None
        if epsilon is not None:
            stage.note += f", epsilon {epsilon:.2f} of {self._accountant.account.plan.target_epsilon:g}"

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._close()

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        self._exits.close()
        self._stage = None
