"""The training of a network: the split and the fit, on one device or several."""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lightning_dpgen.common.plain_text import say_steps
from lightning_dpgen.data.records import Records
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.passes.kept_records import KeptRecords
from lightning_dpgen.passes.reduce import InBlocks
from lightning_dpgen.plugins.accountant import LEDGER, MomentsAccountant
from lightning_dpgen.plugins.checkpoints import Checkpoints, DurableCheckpointIO
from lightning_dpgen.plugins.events import PrivateEvents, PublicEvents
from lightning_dpgen.plugins.mixture import PrivateMixture
from lightning_dpgen.plugins.namespaces import pl
from lightning_dpgen.plugins.previews import Previews
from lightning_dpgen.plugins.progress import PrivateProgress
from lightning_dpgen.plugins.split import PrivateSplitDataModule
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import LedgerError, RankLost
from lightning_dpgen.privacy.plan import TRAINING, Plan
from lightning_dpgen.privacy.ranks import Ranks, all_needed
from lightning_dpgen.runs import context, identity
from lightning_dpgen.runs.context import Context, private_stream
from lightning_dpgen.runs.discover import settings_of
from lightning_dpgen.runs.in_blocks import store_of
from lightning_dpgen.runs.initial import with_kept_initial
from lightning_dpgen.runs.interrupts import Interrupts
from lightning_dpgen.runs.run_folder import RunFolder
from lightning_dpgen.specs.groups import RaySpec
from lightning_dpgen.specs.run import RunSpec
from lightning_dpgen.specs.settings import describe_reading
from lightning_dpgen.specs.source import Source
from lightning_dpgen.specs.usage_error import INTERRUPTED, OK, RANK_LOST, UsageError


@dataclass(frozen=True)
class RunFacts:
    """The facts that other ranks have to know of a run that rank 0 has begun.

    Args:
        promise: the plan of the run, as it was promised.
        about: what its ledger says about settings and records.
        blocks: the records in the files that rank 0 has encoded; None where each rank reads them into memory.
    """

    promise: Mapping[str, Any]
    about: Mapping[str, Any]
    blocks: KeptRecords | None = None


def trained_mixture(run: Context, records: Records | InBlocks) -> Mixture:
    """Return the mixture of networks that DP-SGD has trained; by all ranks, of which this one leads."""
    account, store = run.account, store_of(records)
    data = run.split_module(store)
    if isinstance(run.settings.spec.compute, RaySpec) and data.settings.k > 1 and not isinstance(store, KeptRecords):
        run.reporter.say("split: records are in memory, so the workers that train make it, and no other core does")
    module = run.settings.module(account)
    checkpoint = restore(run, data, module) if account.resumed else None
    if account.remaining(TRAINING):
        blocks = store if isinstance(store, KeptRecords) else None
        run.ranks.broadcast_object(RunFacts(account.ledger.promise, account.ledger.about, blocks))
        with run.interrupts.patient(), quiet_lightning():
            fit(run, module, data, checkpoint)
        run.interrupts.stop_here()
    else:
        run.ranks.broadcast_object(None)
        if account.finished:
            account.verify_complete()
    return module.mixture()


def restore(run: Context, data: PrivateSplitDataModule, module: PrivateMixture) -> Path | None:
    """Tell the account from which state the run goes on, and say which plan follows.

    Returns:
        The checkpoint that the fit has to start from, if there is one. The module of a run whose training is complete is
        restored here, for there is no fit.
    """
    account, folder = run.account, run.folder
    shutil.rmtree(folder.staging, ignore_errors=True)
    done, path = data.load(), None
    if folder.checkpoint.is_file():
        path = folder.checkpoint
        checkpoint = durable.load(path, LEDGER, "state_dict")
        if not account.ledger.knows(checkpoint[LEDGER]["head"]):
            raise LedgerError(f"{path}: refers to lines that the ledger does not hold: some of the ledger is missing")
        done = checkpoint[LEDGER]["done"]
    account.go_on(context.paid_once(account) | done)
    rate = account.plan.stage(TRAINING).access.sample_rate
    context.say_plan(run, f" after {say_steps(done.get(TRAINING, 0), rate)} of the training")
    if path is not None and not account.remaining(TRAINING):
        module.load_state_dict(checkpoint["state_dict"])
    return path


def fit(run: Context, module: PrivateMixture, data: PrivateSplitDataModule, checkpoint: Path | None = None) -> None:
    """Train a module; all ranks come here, and start from the checkpoint of rank 0."""
    checkpoint = run.ranks.broadcast_object(checkpoint)
    account, folder, options = run.account, run.folder, run.settings.spec.trainer
    accountant, steps = MomentsAccountant(account, say=run.reporter.say), account.plan.stage(TRAINING).count
    every = options.checkpoint_every or max(1, steps // 50)
    callbacks = [
        accountant,
        *([PrivateProgress(accountant)] if run.reporter.bar else []),
        Checkpoints(folder.checkpoint, every, asked_to_stop=lambda: run.interrupts.asked),
    ]
    if options.previews_every != 0:
        callbacks.append(Previews(options.previews_every or _between_previews(steps)))
    private = PrivateEvents(folder.private, name="", version=folder.tensorboard.name)
    # They stand in the certificate, too.
    private.hparams.update(run.settings.dump_public())
    loggers: list[Any] = [private]
    if account.private:
        loggers.append(PublicEvents(folder.public))
    trainer = pl.Trainer(
        **_devices(run),
        precision=options.precision,
        max_epochs=1,
        logger=loggers,
        callbacks=callbacks,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=run.reporter.bar,
        log_every_n_steps=options.log_every,
    )
    try:
        with all_needed():
            trainer.fit(module, datamodule=data, ckpt_path=checkpoint)
    except SystemExit:
        # Lightning turns an interrupt into an exit of its own.
        raise KeyboardInterrupt from None


def _devices(run: Context) -> dict[str, Any]:
    """Return where a Trainer computes, and how the processes of the run are connected."""
    options, plugins = run.settings.spec.trainer, [DurableCheckpointIO()]
    if not isinstance(run.settings.spec.compute, RaySpec):
        return {
            "accelerator": options.accelerator,
            "devices": options.devices,
            "num_nodes": options.num_nodes,
            "strategy": "ddp" if run.ranks.size > 1 else "auto",
            "plugins": plugins,
        }
    from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment
    from ray.train.torch import get_device

    # Ray says whether this worker has a GPU; the machine may have some that are others'.
    return {
        "accelerator": "gpu" if get_device().type == "cuda" else "cpu",
        "devices": "auto",
        "strategy": RayDDPStrategy(),
        "plugins": [*plugins, RayLightningEnvironment()],
    }


def _between_previews(steps: int) -> int:
    """Return the steps between two looks: ten in a long training, two in a short one; a sheet takes some twenty steps."""
    return max(1, min(max(steps // 10, 1000), -(-steps // 2)))


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Silence Lightning's banner and its advice on dataloaders and logging, none of which concerns this program."""
    loggers = [
        logging.getLogger(name)
        for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch", "lightning.fabric")
    ]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"(pytorch_lightning|lightning_fabric|lightning)(\.|$)")
            # Said before anything was spent.
            warnings.filterwarnings("ignore", message="split.k=")
            warnings.filterwarnings("ignore", message="n=")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def run_worker(spec: RunSpec, source: Source, folder: RunFolder, ranks: Ranks) -> int:
    """Do this rank's part, and return the exit status; rank 0 alone reports.

    Raises:
        UsageError: if this rank has other settings or records than rank 0.
    """
    interrupts = Interrupts()
    try:
        with interrupts.caught():
            facts: RunFacts | None = ranks.broadcast_object()
            if facts is not None:
                _train_rank(spec, source, facts, folder, interrupts, ranks)
    except KeyboardInterrupt:
        return INTERRUPTED
    except RankLost:
        return RANK_LOST
    return OK


def _train_rank(
    spec: RunSpec, source: Source, facts: RunFacts, folder: RunFolder, interrupts: Interrupts, ranks: Ranks
) -> None:
    source.check()
    source.files()
    identity.check_rank(facts.about, source.contents(), describe_reading(spec, source), ranks.rank)
    settings = settings_of(with_kept_initial(spec, folder), source, facts.about)
    identity.check_rank_settings(facts.about, settings.dump_for_resume(), ranks.rank)
    if spec.trainer.threads is not None:
        torch.set_num_threads(spec.trainer.threads)
    records = facts.blocks
    if records is None:
        records, _ = source.records(settings.schema)
    elif not records.is_there():
        raise UsageError(
            f"rank {ranks.rank}: does not see the records that rank 0 has encoded into {folder.blocks}: expected the "
            "folder of the run in one place for all nodes; share it, or raise data.memory_gib where machines have room"
        )
    account = Account(Plan.from_json(facts.promise), stream=private_stream(spec))
    run = Context(settings, account, folder, interrupts, ranks=ranks, keeps=False)
    with interrupts.patient(), quiet_lightning():
        fit(run, settings.module(account), run.split_module(records))
