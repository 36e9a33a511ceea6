"""Trainings of experiments that are looked at on the way: a score of the mixture after so many steps.

Scores compare with real records, so choosing a step by them is not private: `dpgen train` has no such door.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from lightning_dpgen.data.records import Records
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.plugins.accountant import MomentsAccountant
from lightning_dpgen.plugins.checkpoints import DurableCheckpointIO
from lightning_dpgen.plugins.split import PrivateSplitDataModule
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.runs.train import quiet_lightning
from lightning_dpgen.specs.settings import Settings, load_complete_settings
from lightning_dpgen.specs.source import source_of

# Told the looks so far after each of them.
Tell = Callable[[list[list[Any]]], None]
_QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


class _Looks(pl.Callback):
    def __init__(self, due: list[int], look: Callable[[Any], Any], checkpoint: Path | None, tell: Tell | None) -> None:
        self._due, self._look, self._checkpoint, self._tell = due, look, checkpoint, tell
        self.found: list[list[Any]] = []

    # Modules are a `PrivateMixture`.
    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        while self._due and module.steps_taken >= self._due[0]:
            self._take(trainer, module)

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        # A training that was stopped has lost the steps since its checkpoint, and ends before the last point.
        if self._due and (not self.found or self.found[-1][0] < module.steps_taken):
            self._take(trainer, module)

    def _take(self, trainer: pl.Trainer, module: Any) -> None:
        self._due.pop(0)
        self.found.append([module.steps_taken, self._look(module)])
        if self._checkpoint is not None:
            trainer.save_checkpoint(self._checkpoint)
        if self._tell is not None:
            self._tell(self.found)

    def state_dict(self) -> dict[str, Any]:
        return {"due": self._due, "found": self.found}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._due, self.found = state["due"], state["found"]


def _lower_rates(module: Any, factor: float) -> None:
    """Let a WGAN lower the learning rate of its critics by a factor each outer loop."""
    after_step = module.after_step

    def lower(step: int) -> None:
        after_step(step)
        (group,) = module.optimizers()[0].optimizer.param_groups
        group["lr"] = module.lr * factor ** (step // module.critic_steps)

    module.after_step = lower


def watch(
    settings: Sequence[str],
    points: int,
    look: Callable[[Mixture], Any],
    falling: float | None = None,
    folder: Path | None = None,
    tell: Tell | None = None,
) -> list[list[Any]]:
    """Train with the settings of `dpgen train`, and return (steps, what `look` said) at so many points up to the end.

    A point is at the end of a block of steps, so up to a block late.

    Args:
        falling: the ratio of the last to the first learning rate of a critic, which falls by one factor each outer loop, as
            a bound does (dp-GAN, Algorithm 1); None leaves it as it is.
        folder: the folder of the ledger and of a checkpoint at each point, from which a training that was stopped goes on;
            steps since that point are spent and not made again. None keeps nothing.
        tell: told all looks so far after each of them.
    """
    asked = load_complete_settings(settings)
    records, _ = source_of(asked.spec.data).records(asked.schema)
    return watch_module(asked, records, points, lambda module: look(module.mixture()), falling, folder, tell)


def watch_module(
    asked: Settings,
    records: Records,
    points: int,
    look: Callable[[Any], Any],
    falling: float | None = None,
    folder: Path | None = None,
    tell: Tell | None = None,
) -> list[list[Any]]:
    """Train on these records, and return what `look` said of the module, a `PrivateMixture`, as `watch` does."""
    ledger, checkpoint = (None, None) if folder is None else (folder / "ledger", folder / "checkpoint.ckpt")
    goes_on = checkpoint is not None and checkpoint.is_file()
    account = Account.resume(ledger) if goes_on else Account(asked.plan(), ledger)
    module = asked.module(account)
    data = PrivateSplitDataModule(records, asked.split, account, n=asked.n, centres=asked.centres, seed=asked.spec.seed)
    steps = account.plan.stage("training").count
    if falling is not None:
        _lower_rates(module, falling ** (1.0 / ((steps - 1) // module.critic_steps)))
    looks = _Looks([round(steps * (i + 1) / points) for i in range(points)], look, checkpoint, tell)
    with quiet_lightning(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            max_epochs=1,
            accelerator="cpu",
            callbacks=[MomentsAccountant(account), looks],
            plugins=[DurableCheckpointIO()],
            **_QUIET,
        )
        trainer.fit(module, data, ckpt_path=checkpoint if goes_on else None)
    return looks.found
