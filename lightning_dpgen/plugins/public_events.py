"""TensorBoard for everybody: an event file that holds nothing but what the run's ledger covers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities.rank_zero import rank_zero_only
from torch.utils.tensorboard import SummaryWriter

from lightning_dpgen.plugins.lot_log import PUBLIC


class PublicEvents(Logger):
    """Writes what is logged under ``public/`` (bounds, epsilon by the plan, samples), and drops everything else.

    All of it follows from released parameters and noisy numbers, so whoever sees it learns no more than the epsilon of the
    whole run allows. How long steps take does depend on the records, so the time of an event is the number of its step.

    Args:
        folder: of the event file.

    Example:
        >>> import tempfile
        >>> events = PublicEvents(tempfile.mkdtemp())
        >>> events.log_metrics({"public/bound": 3.0, "private/loss": 2.0}, step=5)
        >>> events.finalize("success")
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self._folder, self._writer = Path(folder), None

    name, version = "public", ""

    @property
    def writer(self) -> SummaryWriter:
        if self._writer is None:
            self._writer = SummaryWriter(self._folder)
        return self._writer

    @rank_zero_only
    def log_hyperparams(self, *_, **__) -> None:
        """Nothing: settings stand in the certificate."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        for name, value in metrics.items():
            if name.startswith(PUBLIC):
                self.writer.add_scalar(name, value, step, walltime=float(step))

    @rank_zero_only
    def log_picture(self, name: str, picture: np.ndarray, step: int) -> None:
        """A picture (H, W) or (H, W, 3) that follows from released parameters."""
        form = "HW" if picture.ndim == 2 else "HWC"
        self.writer.add_image(f"{PUBLIC}{name}", picture, step, walltime=float(step), dataformats=form)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        if self._writer is not None:
            self._writer.close()
