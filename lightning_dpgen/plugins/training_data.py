"""The training records of a LightningDataModule, whose training data become lots during a private fit."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch.utils.data import default_collate

from lightning_dpgen.plugins.namespaces import pl
from lightning_dpgen.plugins.opacus_loader import dataset_of


class TrainingData:
    """The data set of a datamodule's `train_dataloader`, with its `collate_fn` and workers.

    Its data are prepared and set up once, before the fit: a second ``setup("fit")`` may divide the records anew, and what
    was trained on would be validated on. The batch size and the order of its loader are not used.

    Args:
        datamodule: the datamodule; ``setup("fit")`` does nothing from now on.
        rate: the probability with which each record takes part in a step.

    Raises:
        ValueError: for training data that are no DataLoader, or one with a sampler of its own.
        BadRecords: for a data set whose items have no positions.
    """

    def __init__(self, datamodule: pl.LightningDataModule, rate: float) -> None:
        self.datamodule = datamodule
        # One process of a node prepares data, as in Lightning.
        if int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0"))) == 0:
            datamodule.prepare_data()
        datamodule.setup("fit")
        loader = datamodule.train_dataloader()
        self.dataset = dataset_of(loader, rate, "train_dataloader()")
        self.collate_fn = None if loader.collate_fn is default_collate else loader.collate_fn
        self.workers = loader.num_workers
        instance: Any = datamodule
        instance.setup = _once(datamodule.setup)

    def replace_loader(self, loader: Any) -> None:
        """Let the datamodule give this loader for training, until `restore`."""
        instance: Any = self.datamodule
        instance.train_dataloader = lambda: loader

    def restore(self) -> None:
        vars(self.datamodule).pop("train_dataloader", None)


def _once(setup: Callable[[str], None]) -> Callable[[str], None]:
    def setup_others(stage: str) -> None:
        if stage != "fit":
            setup(stage)

    return setup_others
