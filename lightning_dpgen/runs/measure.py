"""A run of `model=measured`: the split, the measurements, each kept as soon as it is paid for, and the fit."""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Mapping

import torch

from lightning_dpgen.data.records import Records
from lightning_dpgen.measure.gaussians import label_components
from lightning_dpgen.measure.recipe import MostlyNoise
from lightning_dpgen.measure.workload import Measured, State
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.plugins.split import PrivateSplitDataModule
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import BudgetTooSmall, DamagedState, LedgerError
from lightning_dpgen.runs.folder import RunFolder
from lightning_dpgen.runs.interrupts import Interrupts
from lightning_dpgen.runs.reporter import Reporter
from lightning_dpgen.runs.resume import paid_once
from lightning_dpgen.runs.table import budget_table
from lightning_dpgen.specs.measured import recipe_of
from lightning_dpgen.specs.settings import Settings


def split_module(
    settings: Settings, records: Records, account: Account, folder: RunFolder | None, interrupts: Interrupts
) -> PrivateSplitDataModule:
    """The datamodule of a run, which makes its split, and keeps it in the folder if it is to."""
    return PrivateSplitDataModule(
        records,
        settings.split,
        account,
        n=settings.conf.data.n,
        centres=settings.centres,
        room=settings.conf.split.room,
        seed=settings.conf.seed,
        keep=None if folder is None else folder.split,
        after_access=interrupts.stop_here,
    )


def measured_mixture(
    settings: Settings, records: Records, account: Account, folder: RunFolder, interrupts: Interrupts, telling: Reporter
) -> Mixture:
    """The mixture that is fitted to what has been measured, where nothing else is learned."""
    data = split_module(settings, records, account, folder, interrupts) if settings.split.k > 1 else None
    state: State = {}
    if account.resumed:
        shutil.rmtree(folder.staging, ignore_errors=True)
        state = kept(settings, account, folder)
        _refuse_lost(settings, account, folder, state)
        account.go_on(paid_once(account) | ({} if data is None else data.load()) | accesses(state))
        telling.say(f"going on with the run in {folder.root}; its plan is now:")
        telling.say(budget_table(account.plan))
    with interrupts.patient():
        clusters = torch.zeros(len(records), dtype=torch.int64) if data is None else data.make_split().clusters
        mixture = measure(settings, records, clusters, account, folder, interrupts, state)
    interrupts.stop_here()
    if account.finished:
        account.verify_complete()
    return mixture


def measure(
    settings: Settings,
    records: Records,
    clusters: torch.Tensor,
    account: Account,
    folder: RunFolder,
    interrupts: Interrupts,
    state: State,
) -> Mixture:
    """Measure what is not in the state, keep it as soon as it is paid for, and fit the mixture.

    Raises:
        BudgetTooSmall: if something was paid for and lost before it was kept.
    """
    _refuse_lost(settings, account, folder, state)
    recipe = recipe_of(settings.conf, settings.schema)

    def save(state: State) -> None:
        made = {stage: [_numbers(found) for found in rounds] for stage, rounds in state.items()}
        durable.save(folder.measured, {"head": account.ledger.head, "made": made})
        interrupts.stop_here()

    component = label_components(records, clusters, settings.split.k)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MostlyNoise)  # it was said with the plan
        return recipe.measure(records, component, account, state=state, save=save)


def _refuse_lost(settings: Settings, account: Account, folder: RunFolder, state: State) -> None:
    stages = [workload.stage for workload in recipe_of(settings.conf, settings.schema).workloads]
    if lost := [stage for stage in stages if stage not in state and not account.remaining(stage)]:
        raise BudgetTooSmall(
            f"run_dir={folder.root}: {' and '.join(lost)} had been measured and were lost before they were saved, so "
            "there is nothing to release; start a new run, whose cost adds to what this one has spent"
        )


def accesses(state: State) -> dict[str, int]:
    """How many of each stage have left their mark, for `Account.go_on`."""
    return {stage: len(made) for stage, made in state.items()}


def kept(settings: Settings, account: Account, folder: RunFolder) -> State:
    """What an interrupted run has measured.

    Raises:
        LedgerError: if the ledger lacks lines that were there when it was kept.
        DamagedState: if it cannot be read, or is of another run.
    """
    if not folder.measured.is_file():
        return {}
    kept = durable.load(folder.measured, "head", "made")
    if not account.ledger.knows(kept["head"]):
        raise LedgerError(f"{folder.measured}: knows of lines that the ledger does not hold; some of it is missing")
    try:
        state = {stage: tuple(_measured(found) for found in rounds) for stage, rounds in kept["made"].items()}
        runs = {own.run for rounds in state.values() for found in rounds for own in found.values()}
        sound = recipe_of(settings.conf, settings.schema).fits(state) and runs <= {account.ledger.run}
    except (AttributeError, LookupError, TypeError, ValueError):
        sound = False
    if not sound:
        raise DamagedState(f"{folder.measured}: is not what a run has saved; start a new run, whose cost adds to it")
    return state


def _numbers(found: Mapping[str, Measured]) -> dict[str, tuple[torch.Tensor, float, str]]:
    return {name: (measured.sums, measured.deviation, measured.run) for name, measured in found.items()}


def _measured(found: Mapping[str, tuple[torch.Tensor, float, str]]) -> dict[str, Measured]:
    """Raises ValueError, TypeError or AttributeError for what `_numbers` never made."""
    state = {}
    for name, (sums, deviation, run) in found.items():
        if sums.dtype != torch.float64 or not sums.isfinite().all() or not 0.0 <= deviation < math.inf:
            raise ValueError(name)
        state[name] = Measured(sums, deviation, run)
    return state
