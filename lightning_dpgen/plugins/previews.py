"""Sheets of samples in the logs while a model trains."""

from __future__ import annotations

from typing import Any

from lightning_dpgen.plugins.events import PublicEvents
from lightning_dpgen.plugins.lot_log import PUBLIC
from lightning_dpgen.plugins.namespaces import Callback, classes, pl
from lightning_dpgen.release.drawing.release import Release
from lightning_dpgen.release.rows.pictures import sheet


class Previews(Callback):
    """The callback that writes a sheet of samples to TensorBoard every so many steps.

    The samples are functions of released parameters, so they cost nothing and are public.

    Args:
        every: steps between two sheets.
    """

    def __init__(self, every: int) -> None:
        self._every, self._shown = every, 0

    # Modules are a `PrivateMixture`.
    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        pictured = trainer.is_global_zero and module.network.schema.dimensions == 2
        if not pictured or not trainer.loggers or module.steps_taken < self._shown + self._every:
            return
        self._shown = module.steps_taken
        picture = sheet(Release(module.mixture()))
        form = "HW" if picture.ndim == 2 else "HWC"
        loggers: list[Any] = trainer.loggers
        for logger in loggers:
            if isinstance(logger, PublicEvents):
                logger.log_picture("samples", picture, module.steps_taken)
            elif isinstance(logger, classes("loggers.TensorBoardLogger")):
                logger.experiment.add_image(f"{PUBLIC}samples", picture, module.steps_taken, dataformats=form)
