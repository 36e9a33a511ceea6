"""Checkpoints in the run's private folder, from which an interrupted run goes on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytorch_lightning as pl


class Checkpoints(pl.Callback):
    """Saves the Trainer's state every so many steps and at the end, always under one name, replaced in one move.

    With it in place, what a crash loses is the steps since the last checkpoint: they are spent, and not made again.

    Args:
        path: the file.
        every: steps between two checkpoints.
        asked_to_stop: tells, after each block of lots, whether the fit is to be left; it is left with a fresh checkpoint,
            by a KeyboardInterrupt.
    """

    def __init__(self, path: str | Path, every: int, asked_to_stop: Callable[[], bool] = lambda: False) -> None:
        self._path, self._every, self._asked_to_stop = Path(path), every, asked_to_stop
        self._saved = 0

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._saved = module.steps_taken

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_) -> None:
        stop = self._asked_to_stop()
        if stop or module.steps_taken >= self._saved + self._every:
            self._save(trainer, module)
        if stop:
            raise KeyboardInterrupt

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._save(trainer, module)

    def _save(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        part = self._path.with_suffix(".part")
        trainer.save_checkpoint(part)
        os.replace(part, self._path)
        self._saved = module.steps_taken
