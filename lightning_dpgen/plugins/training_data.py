"""The records of a LightningDataModule: those of its training become lots, and those of its validation may be bought."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, default_collate

from lightning_dpgen.plugins.namespaces import pl, rank_zero_info
from lightning_dpgen.plugins.opacus_loader import dataset_of


class TrainingData:
    """The data set of a datamodule's `train_dataloader`, with its `collate_fn` and workers.

    The datamodule is set up once (`set_up`). The batch size and the order of its loader are not used.

    Args:
        datamodule: the datamodule; ``setup("fit")`` does nothing from now on.
        rate: the probability with which each record takes part in a step.
        validates: whether the fit looks at the validation records by itself; the Trainer then takes no
            batches of them beside the fit.

    Raises:
        ValueError: for training data that are no DataLoader, or one with a sampler of its own.
        BadRecords: for a data set whose items have no positions.
    """

    def __init__(self, datamodule: pl.LightningDataModule, rate: float, *, validates: bool) -> None:
        self.datamodule, self._validates = datamodule, validates
        self._limited: tuple[pl.Trainer, int | float] | None = None
        set_up(datamodule)
        loader = datamodule.train_dataloader()
        self.dataset, self.collate_fn = _records_of(loader, rate, "train_dataloader()")
        self.workers = loader.num_workers

    def begin(self, loader: Any, trainer: pl.Trainer) -> None:
        """Let the datamodule give this loader for training, until `restore`."""
        instance: Any = self.datamodule
        instance.train_dataloader = lambda: loader
        if self._validates:
            self._limited = trainer, trainer.limit_val_batches
            trainer.limit_val_batches = 0

    def restore(self) -> None:
        vars(self.datamodule).pop("train_dataloader", None)
        if self._limited is not None:
            trainer, limit = self._limited
            trainer.limit_val_batches = limit
            self._limited = None


def validation_data(datamodule: pl.LightningDataModule, rate: float) -> tuple[Any, Any]:
    """Return the data set of a datamodule's `val_dataloader`, and its `collate_fn`, or None for the default.

    The datamodule is set up once (`set_up`).

    Raises:
        ValueError, BadRecords: as `TrainingData`.
    """
    set_up(datamodule)
    return _records_of(datamodule.val_dataloader(), rate, "val_dataloader()")


def set_up(datamodule: pl.LightningDataModule) -> None:
    """Prepare a datamodule and set it up for a fit, unless it gives training data already.

    Afterwards ``setup("fit")`` does nothing, in a Trainer too. A second one may divide the records anew, and what was
    trained on would be validated on.
    """
    instance: Any = datamodule
    if isinstance(vars(datamodule).get("setup"), _WithoutFit):
        return
    if _gives_training_data(datamodule):
        rank_zero_info(
            f"{type(datamodule).__name__}: its train_dataloader() gives records, so it counts as set up, and "
            'setup("fit") is not called again'
        )
    else:
        # One process of a node prepares data, as in Lightning.
        if int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0"))) == 0:
            datamodule.prepare_data()
        datamodule.setup("fit")
    instance.setup = _WithoutFit(datamodule.setup)


def _gives_training_data(datamodule: pl.LightningDataModule) -> bool:
    """Return whether a datamodule seems to be set up: Lightning keeps no record of it."""
    try:
        loader: Any = datamodule.train_dataloader()
        # An attribute that waits for `setup` is None, or empty.
        return isinstance(loader, DataLoader) and loader.dataset is not None and len(loader.dataset) > 0  # type: ignore[arg-type]
    except Exception:
        return False


class _WithoutFit:
    """The `setup` of a datamodule that was set up for its fit."""

    def __init__(self, setup: Callable[[str], None]) -> None:
        self._setup = setup

    def __call__(self, stage: str) -> None:
        if stage != "fit":
            self._setup(stage)


def _records_of(loader: Any, rate: float, name: str) -> tuple[Any, Any]:
    dataset = dataset_of(loader, rate, name)
    return dataset, None if loader.collate_fn is default_collate else loader.collate_fn
