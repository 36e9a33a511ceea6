"""The measurements of `model=measured`: the split, the statistics, each kept as soon as it is paid for, and the fit."""

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
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.errors import BudgetTooSmall, DamagedState
from lightning_dpgen.runs.context import Context
from lightning_dpgen.runs.resume import load_state, paid_once, say_plan


def measured_mixture(run: Context, records: Records) -> Mixture:
    """Return the mixture that is fitted to what has been measured.

    Raises:
        BudgetTooSmall: if something was paid for and lost before it was kept.
    """
    account, k = run.account, run.settings.split.k
    data = run.split_module(records) if k > 1 else None
    state: State = {}
    if account.resumed:
        shutil.rmtree(run.folder.staging, ignore_errors=True)
        state = _kept(run)
    _refuse_lost(run, state)
    if account.resumed:
        accesses = {stage: len(made) for stage, made in state.items()}
        account.go_on(paid_once(account) | ({} if data is None else data.load()) | accesses)
        say_plan(run)
    with run.interrupts.patient():
        clusters = torch.zeros(len(records), dtype=torch.int64) if data is None else data.make_split().clusters
        component = label_components(records, clusters, k)
        _refuse_lost(run, state)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MostlyNoise)  # it was said with the plan
            mixture = run.settings.recipe.measure(
                records, component, account, state=state, save=lambda state: _save(run, state)
            )
    run.interrupts.stop_here()
    if account.finished:
        account.verify_complete()
    return mixture


def _save(run: Context, state: State) -> None:
    made = {stage: [_numbers(found) for found in rounds] for stage, rounds in state.items()}
    durable.save(run.folder.measured, {"head": run.account.ledger.head, "made": made})
    run.interrupts.stop_here()


def _refuse_lost(run: Context, state: State) -> None:
    stages = [workload.stage for workload in run.settings.recipe.workloads]
    if lost := [stage for stage in stages if stage not in state and not run.account.remaining(stage)]:
        raise BudgetTooSmall(
            f"run_dir={run.folder.root}: {' and '.join(lost)} had been measured and were lost before they were saved, so "
            "there is nothing to release; start a new run, whose cost adds to what this one has spent"
        )


def _kept(run: Context) -> State:
    """Return what an interrupted run has measured.

    Raises:
        LedgerError: if the ledger lacks lines that were there when it was kept.
        DamagedState: if it cannot be read, or is of another run.
    """
    path = run.folder.measured
    if not path.is_file():
        return {}
    kept = load_state(path, run.account, "made")
    try:
        state = {stage: tuple(_measured(found) for found in rounds) for stage, rounds in kept["made"].items()}
        runs = {own.run for rounds in state.values() for found in rounds for own in found.values()}
        sound = run.settings.recipe.fits(state) and runs <= {run.account.ledger.run}
    except (AttributeError, LookupError, TypeError, ValueError):
        sound = False
    if not sound:
        raise DamagedState(f"{path}: is not what a run has saved; start a new run, whose cost adds to it")
    return state


def _numbers(found: Mapping[str, Measured]) -> dict[str, tuple[torch.Tensor, float, str]]:
    return {name: (measured.sums, measured.deviation, measured.run) for name, measured in found.items()}


def _measured(found: Mapping[str, tuple[torch.Tensor, float, str]]) -> dict[str, Measured]:
    """Raise ValueError, TypeError or AttributeError for what `_numbers` never made."""
    state = {}
    for name, (sums, deviation, run) in found.items():
        if sums.dtype != torch.float64 or not sums.isfinite().all() or not 0.0 <= deviation < math.inf:
            raise ValueError(name)
        state[name] = Measured(sums, deviation, run)
    return state
