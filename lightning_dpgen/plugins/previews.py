"""Sheets of samples in the private log while a model trains."""

from __future__ import annotations

import pytorch_lightning as pl

from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.release.pictures import sheet
from lightning_dpgen.release.sampler import Release


class Previews(pl.Callback):
    """Writes a sheet of samples to TensorBoard every so many steps.

    The samples are functions of released parameters, so they cost nothing; the log stays private all the same, since
    losses and lot sizes stand beside them.

    Args:
        every: steps between two sheets.
    """

    def __init__(self, every: int) -> None:
        self._every, self._shown = every, 0

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_) -> None:
        pictured = trainer.is_global_zero and isinstance(module.network.schema, ImageSchema)
        if not pictured or trainer.logger is None or module.steps_taken < self._shown + self._every:
            return
        self._shown = module.steps_taken
        image = sheet(Release(module.mixture()))
        form = "HW" if image.ndim == 2 else "HWC"
        trainer.logger.experiment.add_image("samples", image, module.steps_taken, dataformats=form)
