"""The settings among which a selection chooses, and what choosing the best of a secret number of trials costs."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.optimize import brentq

from lightning_dpgen.common.plain_text import say_count
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.accounting.epsilon_range import round_up
from lightning_dpgen.privacy.accounting.private_selection import SHAPES, probability_of_none
from lightning_dpgen.privacy.errors import BudgetTooSmall
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.runs.reporter import Reporter
from lightning_dpgen.runs.table import budget_table
from lightning_dpgen.specs.config_files import NO_FILES, OwnFiles
from lightning_dpgen.specs.custom import import_by_name
from lightning_dpgen.specs.first_pass import first_stage, has_first_pass
from lightning_dpgen.specs.grid import expand_grid
from lightning_dpgen.specs.run import RunSpec, load_settings
from lightning_dpgen.specs.settings import Settings, complete_settings
from lightning_dpgen.specs.source import Source, source_of
from lightning_dpgen.specs.usage_error import UsageError

STAGE, NUMBER = "selection", "trials"
FIDELITY_SCORE = "fidelity"
_MEAN = 10.0
# Settings that trials may differ in. Others say what a record is, what is promised, or where the run takes place.
_MAY_DIFFER = re.compile(r"(model|clipping|split)(\..+)?|seed")
_MOST = 1000
# The budget of a trial is found up to this part of it.
_CLOSE = 5e-3


@dataclass(frozen=True)
class Candidates:
    """A checked selection.

    Args:
        law, mean: of the secret number of trials.
        score: by which one is best: ``fidelity``, or the name of a function of a release.
        values: for each candidate, the settings in which it differs, by name.
        settings: of each candidate, at the budget of a trial.
        plan: of the selection as a whole.
        trial_epsilon: the budget of a trial, at the delta of the whole.
        scorer: the function, if it is one.
        source: of the records, which are the same for all.
    """

    law: str
    mean: float
    score: str
    values: tuple[Mapping[str, str], ...]
    settings: tuple[Settings, ...]
    plan: Plan
    trial_epsilon: float
    scorer: Callable[[Any], float] | None
    source: Source

    @property
    def space(self) -> dict[str, list[str]]:
        """The values of each setting."""
        return {name: list(dict.fromkeys(values[name] for values in self.values)) for name in self.values[0]}

    def describe(self, winner: int | None) -> dict[str, Any]:
        """Return the declared selection and its winner for the certificate; None is for no trial at all."""
        chosen = None if winner is None else dict(self.values[winner])
        return {"law": self.law, "mean": self.mean, "score": self.score, "space": self.space, "chosen": chosen}

    def table(self) -> str:
        """Return the budget in words: of a trial, and of the whole."""
        first, how = self.settings[0], f"{self.law} law, mean {self.mean:g}"
        several = f", here that of the first of {len(self.settings)} candidates" if len(self.settings) > 1 else ""
        lines = [
            f"each of a secret number of trials ({how}) has this plan{several}:",
            budget_table(first.plan(), of_person=first.spec.protects_persons),
            "",
            f"the best of them, by {self.score}: epsilon {round_up(self.plan.epsilon):g} of {self.plan.target_epsilon:g} "
            f"at delta {self.plan.delta:g} (Renyi moments); how many there are and how others fare must stay secret",
        ]
        if none := probability_of_none(self.law, self.mean):
            lines.append(f"with probability {none:.2g} there is none at all, and an untrained network is released")
        return "\n".join(lines)


def read_candidates(words: Sequence[str], reporter: Reporter, files: OwnFiles = NO_FILES) -> Candidates:
    """Return all that a selection may try, checked, at the budget of a trial with which the whole stays within epsilon.

    Args:
        words: of `dpgen train`, for its settings.
        reporter: hears how many candidates there are, since many take a while.
        files: of a person's own.

    Raises:
        UsageError: naming argument, value and what was expected.
        BudgetTooSmall: if a trial cannot be paid for.
    """
    jobs, varied = expand_grid(words, files)
    for name in varied:
        if name.startswith("model.init"):
            raise UsageError(
                f"{name}: all trials of a selection start from one network, as the certificate rests on its declaration; "
                "give one value"
            )
        if not _MAY_DIFFER.fullmatch(name):
            raise UsageError(
                f"{name}: trials of a selection may differ in settings of model, clipping and split, and in seed"
            )
        if name in (known := NO_FILES.groups()):
            for job in jobs:
                if job.varied[name] not in known[name]:
                    raise UsageError(
                        f"{name}={job.varied[name]}: the certificate of a selection names what it chose among, and not "
                        "what a file of your own holds; list values of settings, as in model.lr=1e-3,1e-2"
                    )
    if len(jobs) > _MOST:
        raise UsageError(f"{' '.join(varied)}: {len(jobs):,} combinations; expected {_MOST:,} at most")
    reporter.say(f"planning {say_count(len(jobs), 'candidate')}")
    specs = [load_settings(job.words) for job in jobs]
    privacy, source = specs[0].privacy, source_of(specs[0].data)
    _check(specs[0], source)
    scorer = None
    if privacy.selection_score != FIDELITY_SCORE:
        scorer = import_by_name("privacy.selection_score", privacy.selection_score)
    if scorer is not None and not callable(scorer):
        raise UsageError(f"privacy.selection_score={privacy.selection_score}: expected a function of a release")
    mean = _MEAN if privacy.selection_mean is None else privacy.selection_mean
    values = tuple(job.varied for job in jobs)
    largest, delta = privacy.epsilon, privacy.delta

    @functools.cache
    def plan_at(epsilon: float) -> tuple[tuple[Settings, ...], Plan]:
        settings = []
        for spec, job in zip(specs, jobs, strict=True):
            try:
                settings.append(complete_settings(spec.with_privacy(epsilon=epsilon), source))
            except UsageError as mistake:
                raise UsageError(f"{job}: {mistake}" if varied else str(mistake), mistake.status) from None
        # Candidates whose trees are the same cost the same: one of them is enough.
        trials = {repr(event): event for event in (candidate.plan().event for candidate in settings)}
        access = Access(STAGE, {NUMBER: mean}, kinds={NUMBER: privacy.selection}, trials=tuple(trials.values()))
        plan = Plan((Stage(access, 1, 1.0),), largest, delta, max_rows=specs[0].data.most_rows)
        return tuple(settings), plan

    epsilon = _trial_epsilon(lambda epsilon: plan_at(epsilon)[1].epsilon, largest)
    settings, plan = plan_at(epsilon)
    return Candidates(privacy.selection, mean, privacy.selection_score, values, settings, plan, epsilon, scorer, source)


def _check(spec: RunSpec, source: Source) -> None:
    privacy, trainer = spec.privacy, spec.trainer
    if privacy.selection not in SHAPES:
        raise UsageError(f"privacy.selection={privacy.selection}: expected {', '.join(SHAPES)}, or null")
    if privacy.selection_score is None:
        raise UsageError(
            f"privacy.selection={privacy.selection}: expected a score by which one is best, such as "
            "privacy.selection_score=fidelity with privacy.fidelity_share=0.1, which is paid for in each trial, or "
            "privacy.selection_score=package.function, which sees nothing but the release"
        )
    if not privacy.private or privacy.epsilon is None:
        raise UsageError(
            f"privacy.selection={privacy.selection}: expected a privacy.epsilon, of which the trials are paid; without "
            "privacy, dpgen train -m compares as many runs as you like"
        )
    if privacy.selection_score == FIDELITY_SCORE and privacy.fidelity_share is None:
        raise UsageError(
            "privacy.selection_score=fidelity: expected the share of a trial's budget that it may use, as in "
            "privacy.fidelity_share=0.1"
        )
    if spec.data.n is None or has_first_pass(spec, source.open_parts):
        if has_first_pass(spec, source.open_parts):
            first_stage(spec, source.open_parts)
        raise UsageError(
            f"privacy.selection={privacy.selection}: expected data.n and a complete schema: what is bought before the run "
            "is planned cannot be bought by each trial; declare it, or buy it in a run of its own"
        )
    if trainer.devices != 1 or trainer.num_nodes != 1:
        raise UsageError(
            f"trainer.devices={trainer.devices}, trainer.num_nodes={trainer.num_nodes}: trials of a selection "
            "are made one after the other by one process, on one device"
        )


def _trial_epsilon(whole: Callable[[float], float], largest: float) -> float:
    """Return the largest budget of a trial, nearly, with which the selection as a whole costs no more than `largest`."""
    good: dict[float, float] = {}

    def beyond(log_epsilon: float) -> float:
        epsilon = math.exp(log_epsilon)
        cost = whole(epsilon)
        if cost <= largest:
            good[epsilon] = cost
        return math.log(cost / largest) if math.isfinite(cost) else 10.0

    high = math.log(largest)
    low = high - math.log(2.0)
    try:
        while beyond(low) > 0.0:
            low, high = low - math.log(2.0), low
            if low < math.log(largest) - 14.0:
                raise BudgetTooSmall("it does not pay for one trial of a selection of this mean")
        if beyond(high) > 0.0:
            brentq(beyond, low, high, xtol=_CLOSE)
    except BudgetTooSmall as error:
        raise BudgetTooSmall(f"a trial of the selection has a part of privacy.epsilon={largest:g}: {error}") from None
    return max(good)
