"""Checkpoints in the run's private folder, from which an interrupted run goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning_dpgen.plugins.namespaces import Callback, pl
from lightning_dpgen.privacy import durable
from lightning_dpgen.sampling.errors import BadRecords


class DurableCheckpointIO(pl.plugins.CheckpointIO):
    """Checkpoints that are written beside their place and replaced in one move, so a crash leaves a whole one.

    Lightning's own are written to the system's temporary folder first. For ``Trainer(plugins=[DurableCheckpointIO()])``.

    Raises:
        DamagedState: on loading a file that is no checkpoint, or a part of one.
        OSError: on saving, if the disk is full; the checkpoint before stays.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        durable.save(Path(path), checkpoint)

    def load_checkpoint(self, path: str | Path, *_: Any, **__: Any) -> dict[str, Any]:
        return durable.load(Path(path))

    def remove_checkpoint(self, path: str | Path) -> None:
        Path(path).unlink(missing_ok=True)


class Checkpoints(Callback):
    """The callback that saves the Trainer's state every so many steps and at the end, always under one name.

    A crash then loses the steps since the last checkpoint: they are spent, and not made again. Where records cannot be read
    the steps so far are saved, too, unless several processes train: some of them may wait for others then.

    Args:
        every: steps between two checkpoints.
        asked_to_stop: called after each batch of lots; if it returns True, the fit is left with a fresh checkpoint, by a
            KeyboardInterrupt.
    """

    def __init__(self, path: str | Path, every: int, asked_to_stop: Callable[[], bool] = lambda: False) -> None:
        self._path, self._every, self._asked_to_stop = Path(path), every, asked_to_stop
        self._saved = 0

    # Modules are a `PrivateMixture`, which counts its steps.
    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        self._saved = module.steps_taken

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        # If any rank was asked, all leave together.
        stop = trainer.strategy.reduce_boolean_decision(self._asked_to_stop(), all=False)
        if stop or module.steps_taken >= self._saved + self._every:
            self._save(trainer, module)
        if stop:
            raise KeyboardInterrupt

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        self._save(trainer, module)

    def on_exception(self, trainer: pl.Trainer, module: Any, exception: BaseException) -> None:
        # Records of a lot are fetched before its access is opened, so the module is as its last step has left it.
        if isinstance(exception, BadRecords) and trainer.world_size == 1 and module.steps_taken > self._saved:
            self._save(trainer, module)

    def _save(self, trainer: pl.Trainer, module: Any) -> None:
        trainer.save_checkpoint(self._path)
        self._saved = module.steps_taken
