"""The components of a mixture in the logs: how many records each has, and how often the release draws it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from lightning_dpgen.plugins.events import PublicEvents, bars
from lightning_dpgen.plugins.lot_log import PRIVATE, PUBLIC
from lightning_dpgen.plugins.namespaces import classes
from lightning_dpgen.plugins.private_logs import is_local

_SIZES, _WEIGHTS = "sizes_of_components", "weights_of_components"


def log_components(loggers: Iterable[Any], clusters: Tensor, weights: Tensor, step: int) -> None:
    """Write a bar for each component into logs for TensorBoard.

    Args:
        clusters: (N,) the component of each record, private.
        weights: (k,) released.
    """
    sizes, shares = torch.bincount(clusters.flatten().cpu(), minlength=len(weights)).tolist(), weights.tolist()
    for logger in loggers:
        if isinstance(logger, PublicEvents):
            logger.log_bars(_WEIGHTS, shares, step)
        elif isinstance(logger, classes("loggers.TensorBoardLogger")) and is_local(logger):
            logger.experiment.add_histogram_raw(PRIVATE + _SIZES, **bars(sizes), global_step=step)
            logger.experiment.add_histogram_raw(PUBLIC + _WEIGHTS, **bars(shares), global_step=step)
