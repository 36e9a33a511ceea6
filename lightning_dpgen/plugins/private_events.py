"""TensorBoard for the curator: an event file of exact functions of records, which only its owner may read."""

from __future__ import annotations

from pathlib import Path

from pytorch_lightning.loggers import TensorBoardLogger
from torch.utils.tensorboard import SummaryWriter

from lightning_dpgen.privacy.folders import restrict


class PrivateEvents(TensorBoardLogger):
    """Lightning's logger, with a folder and files that give no rights to others, under any umask."""

    @property
    def experiment(self) -> SummaryWriter:
        begins, writer = self._experiment is None, super().experiment
        if begins and self._experiment is not None:
            restrict(Path(self.log_dir))
        return writer

    def save(self) -> None:
        super().save()
        if self._experiment is not None:
            restrict(Path(self.log_dir))
