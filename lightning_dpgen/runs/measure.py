"""The measurements of a run, each kept as soon as it is paid for: those of `model=measured`, and of a network's label."""

from __future__ import annotations

import functools
import math
import shutil
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from lightning_dpgen.data.records import Records
from lightning_dpgen.measure.gaussians import label_components
from lightning_dpgen.measure.labels import LabelRecipe
from lightning_dpgen.measure.recipe import MostlyNoise, Recipe
from lightning_dpgen.measure.workload import Measured, State
from lightning_dpgen.metrics.fidelity import FIDELITY
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.passes.reduce import InBlocks
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.durable import make_room
from lightning_dpgen.privacy.errors import BudgetTooSmall, DamagedState
from lightning_dpgen.release.answers import Answers
from lightning_dpgen.runs.context import Context, load_state, paid_once, say_plan
from lightning_dpgen.runs.paths import remove_blocks


def measured_mixture(run: Context, records: Records | InBlocks | None) -> tuple[Mixture, Answers | None]:
    """Return the mixture that is fitted to what has been measured, and the counts that `data.workload` asks for.

    Args:
        records: None where the run goes on and `needs_records` no more.

    Raises:
        BudgetTooSmall: if something was paid for and lost before it was kept.
    """
    account, recipe = run.account, run.settings.recipe
    state: State = {}
    if account.resumed:
        shutil.rmtree(run.folder.staging, ignore_errors=True)
        state = _load_measured(run, recipe)
    _refuse_lost(run, recipe, state)
    if account.resumed:
        accesses = {stage: len(rounds) for stage, rounds in state.items()}
        account.go_on(accesses | paid_once(account))
        for stage in _lost_stages(run, recipe, state):
            run.reporter.warn(f"{stage} had been measured and was lost before it was saved: {recipe.dispensable[stage]}")
        say_plan(run)
    with run.interrupts.patient():
        if records is not None:
            component = label_components if isinstance(records, InBlocks) else label_components(records)
            _refuse_lost(run, recipe, state)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MostlyNoise)  # the plan has warned of it
                state = recipe.measure_state(records, component, account, state=state, **_saving(run))
        mixture = recipe.fit(state)
    run.interrupts.stop_here()
    if account.finished:
        account.verify_complete()
    sets = run.settings.spec.data.asked_sets
    return mixture, Answers(run.settings.schema, sets, *recipe.answers(state)) if sets else None


def labelled_mixture(run: Context, records: Records | InBlocks, mixture: Mixture) -> Mixture:
    """Return the mixture with its label drawn as real records say, on top of networks that are trained.

    Raises:
        Diverged: if the network is not finite, before anything is spent on the label.
        BudgetTooSmall: if all that was paid for the label was lost before it was kept.
    """
    settings, account = run.settings, run.account
    recipe = LabelRecipe(mixture, settings.n, settings.spec.model.label_sharpness, settings.spec.seed)
    state = _load_measured(run, recipe) if account.resumed else {}
    _refuse_lost(run, recipe, state)
    with run.interrupts.patient():
        mixture = recipe.measure(records, _one_component, account, state=state, **_saving(run))
    run.interrupts.stop_here()
    if account.finished:
        account.verify_complete()
    return mixture


def _one_component(records: Records) -> torch.Tensor:
    return torch.zeros(len(records), dtype=torch.int64)


def needs_records(run: Context) -> bool:
    """Tell whether a run of `measured_mixture` that goes on has something left to measure, before its records are read.

    Raises:
        BudgetTooSmall: if something was paid for and lost before it was kept, so that nothing can be released.
        LedgerError, DamagedState: for what was kept and does not fit.
    """
    recipe, figure = run.settings.recipe, run.settings.spec.privacy.fidelity_share is not None
    state = _load_measured(run, recipe)
    _refuse_lost(run, recipe, state)
    lacking = any(len(state.get(workload.stage, ())) < workload.rounds for workload in recipe.workloads)
    # A figure that was paid for is not bought again.
    return lacking or (figure and not run.account.ledger.count(FIDELITY))


def _saving(run: Context) -> dict[str, Callable[[State], None]]:
    """Return how the measurements of each access are kept, and how room is made for them before it."""
    return {"save": functools.partial(_save, run), "reserve": functools.partial(_reserve, run)}


def _reserve(run: Context, state: State) -> None:
    make_room(run.folder.measured, _content(run, state), run.account, "what is measured next")


def _save(run: Context, state: State) -> None:
    durable.save(run.folder.measured, _content(run, state))
    run.interrupts.stop_here()


def _content(run: Context, state: State) -> dict[str, Any]:
    rounds_of = {stage: [_numbers(sums) for sums in rounds] for stage, rounds in state.items()}
    return {"head": run.account.ledger.head, "made": rounds_of}


def _lost_stages(run: Context, recipe: Recipe, state: State) -> list[str]:
    """Return the stages of which all was paid for and nothing was kept."""
    stages = (workload.stage for workload in recipe.workloads)
    return [stage for stage in stages if stage not in state and not run.account.remaining(stage)]


def _refuse_lost(run: Context, recipe: Recipe, state: State) -> None:
    if lost := [stage for stage in _lost_stages(run, recipe, state) if stage not in recipe.dispensable]:
        # Encoded records would stay there for good.
        remove_blocks(run.folder.root)
        raise BudgetTooSmall(
            f"run_dir={run.folder.root}: {' and '.join(lost)} had been measured and were lost before they were saved, so "
            "there is nothing to release; start a new run, whose cost adds to what this one has spent"
        )


def _load_measured(run: Context, recipe: Recipe) -> State:
    """Return what an interrupted run has measured.

    Raises:
        LedgerError: if the ledger lacks lines that were there when it was kept.
        DamagedState: if it cannot be read, or is of another run.
    """
    path = run.folder.measured
    if not path.is_file():
        return {}
    content = load_state(path, run.account, "made")
    try:
        state = {stage: tuple(_read_numbers(numbers) for numbers in rounds) for stage, rounds in content["made"].items()}
        runs = {one.run for rounds in state.values() for measured in rounds for one in measured.values()}
        sound = recipe.fits(state) and runs <= {run.account.ledger.run}
    except (AttributeError, LookupError, TypeError, ValueError):
        sound = False
    if not sound:
        raise DamagedState(f"{path}: is not what a run has saved; start a new run, whose cost adds to it")
    return state


def _numbers(measured: Mapping[str, Measured]) -> dict[str, tuple[torch.Tensor, float, str]]:
    return {name: (one.sums, one.deviation, one.run) for name, one in measured.items()}


def _read_numbers(numbers: Mapping[str, tuple[torch.Tensor, float, str]]) -> dict[str, Measured]:
    """Raise ValueError, TypeError or AttributeError for what `_numbers` never made."""
    measured = {}
    for name, (sums, deviation, run) in numbers.items():
        if sums.dtype != torch.float64 or not sums.isfinite().all() or not 0.0 <= deviation < math.inf:
            raise ValueError(name)
        measured[name] = Measured(sums, deviation, run)
    return measured
