"""A run of a network: the split, what it learns from besides records, and the fit, on one device or several."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import Logger

from lightning_dpgen.data.records import Records
from lightning_dpgen.measure.workload import State
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.plugins.accountant import MomentsAccountant
from lightning_dpgen.plugins.checkpoints import Checkpoints, DurableCheckpointIO
from lightning_dpgen.plugins.mixture import PrivateMixture
from lightning_dpgen.plugins.previews import Previews
from lightning_dpgen.plugins.private_events import PrivateEvents
from lightning_dpgen.plugins.progress import PrivateProgress
from lightning_dpgen.plugins.public_events import PublicEvents
from lightning_dpgen.plugins.split import PrivateSplitDataModule
from lightning_dpgen.plugins.synthetic_batches import SyntheticBatches
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.ranks import Ranks, all_needed
from lightning_dpgen.runs import resume
from lightning_dpgen.runs.folder import RunFolder
from lightning_dpgen.runs.interrupts import Interrupts
from lightning_dpgen.runs.measure import accesses, kept, measure, split_module
from lightning_dpgen.runs.reporter import Reporter
from lightning_dpgen.specs.families import make_module
from lightning_dpgen.specs.settings import Settings

# Records at most in a lot of what a measured model makes.
_MADE = 256


@dataclass(frozen=True)
class Begun:
    """What other ranks have to know of a run that rank 0 has begun.

    Args:
        promise: the plan of the run, as it was promised.
        about: what its ledger says about settings and records.
    """

    promise: Mapping[str, Any]
    about: Mapping[str, Any]


def trained_mixture(
    settings: Settings,
    records: Records,
    account: Account,
    folder: RunFolder,
    interrupts: Interrupts,
    telling: Reporter,
    ranks: Ranks,
) -> Mixture:
    """The mixture of networks that DP-SGD has trained; by all ranks, of which this one leads."""
    conf = settings.conf
    data = split_module(settings, records, account, folder, interrupts)
    module = make_module(conf, settings.schema, settings.clipping, account)
    hybrid, state, checkpoint = conf.model.measured_share is not None, {}, None
    if account.resumed:
        state = kept(settings, account, folder) if hybrid else {}
        checkpoint = resume.restore(account, data, module, folder, telling, accesses(state))
    if account.remaining("training"):
        ranks.broadcast_object(Begun(account.ledger.promise, account.ledger.about))
        with interrupts.patient(), quiet_lightning():
            made = _made(settings, records, data, account, folder, interrupts, state) if hybrid else None
            fit(settings, module, data, account, folder, interrupts, ranks, telling.bar, checkpoint, made)
        interrupts.stop_here()
    else:
        ranks.broadcast_object(None)
        if account.finished:
            account.verify_complete()
    return module.mixture()


def _made(
    settings: Settings,
    records: Records,
    data: PrivateSplitDataModule,
    account: Account,
    folder: RunFolder,
    interrupts: Interrupts,
    state: State,
) -> SyntheticBatches:
    """What a network learns from besides records: lots of what a model of measurements makes."""
    k, conf = settings.split.k, settings.conf
    mixture = measure(settings, records, data.make_split().clusters, account, folder, interrupts, state)
    size = min(_MADE, max(1, round(conf.model.rate * conf.data.n)))
    return SyntheticBatches(mixture, torch.arange(mixture.network.k) % k, k, size=size, seed=conf.seed)


def fit(
    settings: Settings,
    module: PrivateMixture,
    data: PrivateSplitDataModule,
    account: Account,
    folder: RunFolder,
    interrupts: Interrupts,
    ranks: Ranks,
    bar: bool,
    checkpoint: Path | None = None,
    made: SyntheticBatches | None = None,
) -> None:
    """The private fit; all ranks come here, and `checkpoint` and `made` are what rank 0 says."""
    checkpoint, made = ranks.broadcast_object((checkpoint, made))
    if made is not None:
        # Its account is asked for: from here on all ranks know of the same run.
        account.join(ranks)
        account.leave()
        module.learn_from(made, steps=settings.conf.model.measured_steps, weight=settings.conf.model.measured_weight)
    options = settings.conf.trainer
    accountant = MomentsAccountant(account)
    every = options.checkpoint_every or max(1, account.plan.stage("training").count // 50)
    callbacks = [
        accountant,
        *([PrivateProgress(accountant)] if bar else []),
        Checkpoints(folder.checkpoint, every, asked_to_stop=lambda: interrupts.asked),
    ]
    if options.previews_every != 0:
        callbacks.append(Previews(options.previews_every or _between_previews(account.plan.stage("training").count)))
    loggers: list[Logger] = [PrivateEvents(folder.private, name="", version=folder.tensorboard.name)]
    if account.private:
        loggers.append(PublicEvents(folder.public))
    trainer = pl.Trainer(
        accelerator=options.accelerator,
        devices=options.devices,
        num_nodes=options.num_nodes,
        strategy="ddp" if ranks.size > 1 else "auto",
        precision=options.precision,
        max_epochs=1,
        logger=loggers,
        callbacks=callbacks,
        plugins=[DurableCheckpointIO()],
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=bar,
    )
    try:
        with all_needed():
            trainer.fit(module, datamodule=data, ckpt_path=checkpoint)
    except SystemExit:
        # Lightning turns an interrupt into an exit of its own.
        raise KeyboardInterrupt from None


def _between_previews(steps: int) -> int:
    """A sheet takes as long as some twenty steps: ten of them in a long training, and two in a short one."""
    return max(1, min(max(steps // 10, 1000), -(-steps // 2)))


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Silence Lightning's banner and its advice on dataloaders and logging, none of which concerns this program."""
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning.pytorch", "lightning_fabric")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="pytorch_lightning")
            warnings.filterwarnings("ignore", module="lightning_fabric")
            # Said before anything was spent.
            warnings.filterwarnings("ignore", message="split.k=")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
