"""A whole run of full passes at its worst neighbours: made many times with a unit of privacy and without it.

The adversary of differential privacy knows both data sets and sees every noisy value. Their best test is the likelihood
ratio of all of these, in which the exact values of each query follow from what was released before it: the run is replayed
on the other data set (`audit/replay.py`). Where a unit is as long as the bound in every access, the ratio is a Gaussian
whose shift is the mu of the plan, so the audit is tight. A choice by the exponential mechanism is no Gaussian. It is
attacked by itself, against its epsilon and a Gaussian that dominates it, and the whole run by all other noises.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lightning_dpgen.audit.bound import Shift, paired_shift, pure_epsilon
from lightning_dpgen.audit.replay import (
    OtherWay,
    WatchedAccount,
    WatchedStream,
    check_replayable,
    compare_noised,
)
from lightning_dpgen.common import pace
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.epsilon_range import gaussian_epsilon, gaussian_mu
from lightning_dpgen.privacy.accounting.event_parts import shift_of_full_passes
from lightning_dpgen.privacy.plan import Plan

# Rounding of sums moves a length by far less, and a wrong bound by far more.
_ROUNDING = 1e-6
# So many neighbours are left after so many pairs of runs of each, the last time at least; then by so many trials.
_KEPT, _PILOTS, _TRIALS = (12, 4, 1), (1, 4, 16), 20
# A run is code that makes all accesses of an account's plan to a data set, and returns what it releases, as tensors,
# numbers and text in lists and dicts.
Run = Callable[[Account, Any], Any]


@dataclass(frozen=True)
class Neighbours:
    """Two data sets that differ by a unit of privacy.

    Args:
        without, present: the data sets, as the run takes them.
    """

    without: Any
    present: Any


@dataclass(frozen=True)
class Attacked:
    """A part of a run, as the attack has seen it.

    Args:
        what: the part.
        claim: the mu that is stated for it.
        attained: the mu that the chosen neighbours have if the noise is what it was asked to be.
        shown: the mu that the attack shows.
        reach: the longest difference of any two neighbours, in units of the bound of a noise; above 1 the bound is wrong.
        delta: the delta at which an epsilon is told.
        leak: what was found wrong without any noise.
        of_choices: for choices, their epsilon together at delta 0, as it is stated, and its lower bound.
    """

    what: str
    claim: float
    attained: float
    shown: Shift
    reach: float
    delta: float
    leak: str | None = None
    of_choices: tuple[float, float] | None = None

    @property
    def refuted(self) -> bool:
        """True if the claim is false, unless the audit was misled by chance."""
        pairs = [(self.claim, self.shown.low), *([self.of_choices] if self.of_choices else [])]
        return self.leak is not None or self.too_long or any(low > claim * (1.0 + 1e-9) for claim, low in pairs)

    @property
    def too_long(self) -> bool:
        """True if the bound of a noise does not hold for some neighbours."""
        return self.reach > 1.0 + _ROUNDING

    @property
    def epsilons(self) -> tuple[float, float]:
        """The epsilon of the claim, and its lower bound."""
        if self.of_choices is not None:
            return self.of_choices
        return _epsilon(self.claim, self.delta), _epsilon(self.shown.low, self.delta)


@dataclass(frozen=True)
class AttackedRun:
    """A run, as the attack has seen it.

    Args:
        accesses: one for each stage of the plan, of all its accesses.
        noises: one for each noise of a stage that has several.
        whole: the whole run.
        trials: the number of pairs of runs.
    """

    accesses: tuple[Attacked, ...]
    noises: tuple[Attacked, ...]
    whole: Attacked
    trials: int

    @property
    def refuted(self) -> list[Attacked]:
        """The parts whose claims are false."""
        return [part for part in (*self.accesses, *self.noises, self.whole) if part.refuted]


def attack_run(
    run: Run, plan: Plan, candidates: Iterable[Neighbours], trials: int, confidence: float, *, seed: int | None = None
) -> AttackedRun:
    """Bound the mu of a run from below, by so many runs with a unit and as many without it.

    Two runs of a pair share their noise, which changes the law of neither and makes their difference plain
    (`bound.paired_shift`). All neighbours are tried first, and those are chosen of which the trials will show the most. Two
    more checks need no statistics. The longest difference that any neighbours have is held against each bound. A run and
    its replay on the other data set have to release the same, since all of it follows from noisy values.

    Args:
        run: the run; it is handed an account of the plan and a data set.
        plan: the plan of the run: full passes with Gaussian noise, some of it before a threshold, and choices.
        candidates: neighbours among which the worst are looked for.
        confidence: of all lower bounds together; half of the error is that of the whole run.
        seed: the seed of the noise; None draws one.

    Raises:
        ValueError: for a plan with lots, or with other noise; or for no neighbours.
    """
    attack, last = _Attack(run, plan), max(_PILOTS[-1], trials // _TRIALS)
    drawn = np.random.Generator(np.random.PCG64DXSM(seed)).integers(1 << 62, size=last + trials).tolist()
    ratios, squares, leak = np.zeros((2, trials, len(attack.names))), np.zeros(len(attack.names)), None
    try:
        worst = attack.worst(candidates, drawn[:last], trials)
        for trial, own in enumerate(pace.counted("attacking whole runs", drawn[last:])):
            ratios[:, trial], lengths = attack.pair(worst, own)
            squares += lengths / trials
    except OtherWay as error:
        leak = str(error)
    return attack.bounds(ratios, squares, confidence, leak)


class _Attack:
    """The attack on one run.

    Args:
        run, plan: see `attack_run`.
    """

    def __init__(self, run: Run, plan: Plan) -> None:
        check_replayable(plan)
        self._run, self._plan = run, plan
        self.names = [(stage.name, name) for stage in plan.stages for name in stage.access.multipliers]
        self._place = {name: place for place, name in enumerate(self.names)}
        # For each noise the number of accesses that draw it, and its multiplier.
        self._counts = np.array([plan.stage(stage).count for stage, _ in self.names])
        self._multipliers = np.array([plan.stage(stage).access.multipliers[name] for stage, name in self.names])
        self._reach = np.zeros(len(self.names))

    def _made(self, data: Any, seed: int, replayed: WatchedStream | None = None) -> tuple[WatchedStream, Any]:
        """Return the stream of a run, or of a replay, and what it releases."""
        stream = WatchedStream(seed, replayed)
        released = self._run(WatchedAccount(self._plan, stream), data)
        drawn = np.bincount([self._place[own.stage, own.name] for own in stream.noised], minlength=len(self.names))
        if (drawn != self._counts).any():
            stage, name = self.names[int((drawn != self._counts).argmax())]
            raise OtherWay(f"stage {stage!r}, noise {name!r}: was not drawn as often as the plan says")
        return stream, released

    def _both(self, here: Any, there: Any, seed: int) -> tuple[WatchedStream, WatchedStream]:
        """Make a run on the one data set, and replay it on the other."""
        first, released = self._made(here, seed)
        second, again = self._made(there, seed, first)
        if not _alike(released, again):
            raise OtherWay("the release depends on more than the noisy values: another data set changes it")
        return first, second

    def worst(self, candidates: Iterable[Neighbours], seeds: Sequence[int], trials: int) -> Neighbours:
        """Return the neighbours of which so many trials show the most, by a run with each seed."""

        def shown(neighbours: Neighbours, seeds: Sequence[int]) -> float:
            squares, errors = 0.0, 0.0
            for seed in seeds:
                ratios, lengths = self.pair(neighbours, seed)
                squared = float(lengths.sum())
                # The difference of two runs is the squared shift, but for where their noise is not the same.
                squares, errors = squares + squared, errors + float(ratios[1].sum() - ratios[0].sum() - squared) ** 2
            mu = math.sqrt(squares / len(seeds))
            return mu - 2.0 * math.sqrt(errors / len(seeds) / trials) / max(mu, 1e-9)

        remaining = list(candidates)
        if not remaining:
            raise ValueError("candidates: expected neighbours, one pair or more")
        for kept, pilots in zip(_KEPT, (*_PILOTS[:-1], len(seeds)), strict=True):
            tried = enumerate(pace.counted("trying neighbours", remaining))
            ranked = sorted(((shown(own, seeds[:pilots]), -place) for place, own in tried), reverse=True)
            remaining = [remaining[-place] for _, place in ranked[:kept]]
        return remaining[0]

    def pair(self, neighbours: Neighbours, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Make two runs of one seed, without the unit and with it, and keep how far apart exact values were.

        Returns:
            The logarithms (2, noises) of how much likelier the unit is there than not, and the mean squared shifts
            (noises,).
        """
        ratios, squares = np.zeros((2, len(self.names))), np.zeros(len(self.names))
        for present in (False, True):
            here, there = neighbours.without, neighbours.present
            if present:
                here, there = there, here
            first, second = self._both(here, there, seed)
            for noise, other in zip(first.noised, second.noised, strict=True):
                place = self._place[noise.stage, noise.name]
                ratio, square, length = compare_noised(noise, other)
                ratios[int(present), place] += -ratio if present else ratio
                self._reach[place] = max(self._reach[place], length * noise.multiplier)
                squares[place] += 0.5 * square
        return ratios, squares

    def bounds(self, ratios: np.ndarray, squares: np.ndarray, confidence: float, leak: str | None) -> AttackedRun:
        """Return the bounds that follow from the ratios (2, trials, noises) and the mean squared shifts (noises,)."""
        delta, error, events = self._plan.delta, 1.0 - confidence, dict(self._plan.stage_events)
        stages = [stage.name for stage in self._plan.stages]
        several = [stage for stage in stages if sum(stage_name == stage for stage_name, _ in self.names) > 1]
        parts = len(self.names) + len(stages)

        def part(what: str, claim: float, places: Sequence[int], error: float, epsilon: float | None = None) -> Attacked:
            without, present = ratios[:, :, places].sum(axis=2)
            shown, pure = Shift(0.0, 0.0, math.inf), 0.0
            if epsilon is not None:
                # Each of the two has half of the error.
                error *= 0.5
                pure = 0.0 if leak else pure_epsilon(without, present, 1.0 - error)
            if not leak:
                shown = paired_shift(without, present, 1.0 - error)
            attained, reach = math.sqrt(float(squares[places].sum())), float(self._reach[places].max())
            of_choices = None if epsilon is None else (epsilon, pure)
            return Attacked(what, claim, attained, shown, reach, delta, of_choices=of_choices)

        noises = []
        for place, (stage, name) in enumerate(self.names):
            if stage in several:
                claim = math.sqrt(self._counts[place]) / self._multipliers[place]
                noises.append(part(f"{stage}: {name}", claim, [place], 0.5 * error / parts))
        accesses = []
        for stage in self._plan.stages:
            places = [place for place, (stage_name, _) in enumerate(self.names) if stage_name == stage.name]
            if choices := stage.access.kinds:
                epsilon = sum(1.0 / stage.access.multipliers[name] for name in choices) * stage.count
                claim = shift_of_full_passes(events[stage.name])
                accesses.append(part(stage.name, claim, places, 0.5 * error / parts, epsilon))
            else:
                claim = math.sqrt(stage.count) / stage.access.multiplier
                accesses.append(part(stage.name, claim, places, 0.5 * error / parts))
        gaussian = [place for place, (stage, _) in enumerate(self.names) if not self._plan.stage(stage).access.kinds]
        whole = part("the whole run", gaussian_mu(self._plan.epsilon, delta), gaussian, 0.5 * error)
        return AttackedRun(tuple(accesses), tuple(noises), replace(whole, leak=leak), ratios.shape[1])


def _alike(one: Any, other: Any) -> bool:
    """Return whether two runs have released the same."""
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return bool(one == other)


def _epsilon(mu: float, delta: float) -> float:
    return gaussian_epsilon(mu, delta) if 0.0 < mu < math.inf else mu
