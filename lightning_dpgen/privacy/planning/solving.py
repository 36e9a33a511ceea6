"""Noise and steps of stages, from their shares of a budget and the limit that they must meet together.

A limit is an epsilon that may not be passed, or a reference that must dominate.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import dp_accounting

from lightning_dpgen.privacy.accounting.accountant import INTERVALS, Spent, compute_epsilon
from lightning_dpgen.privacy.accounting.epsilon_range import (
    LARGEST_EPSILON,
    PLD,
    gaussian_epsilon,
    gaussian_mu,
    round_down,
    round_up,
)
from lightning_dpgen.privacy.accounting.events import compose_events, stage_events
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE, REPLACE_ONE
from lightning_dpgen.privacy.accounting.reference import Reference
from lightning_dpgen.privacy.accounting.renyi import compute_epsilon_by_rdp
from lightning_dpgen.privacy.errors import BudgetTooSmall
from lightning_dpgen.privacy.plan import Stage
from lightning_dpgen.privacy.planning.stage_spec import StageSpec

_MOST_STEPS = 10**7
# Noise so small protects nothing, and a search need not go there.
_SMALLEST_MULTIPLIER = 0.2
# In logarithms of a cost and of a multiplier: how near a root is found, and how far one step goes.
_CLOSE, _LONGEST_STEP = 1e-4, 1.0
# A cost of 0 has no logarithm.
_LEAST_COST = 1e-9
# The number of steps by secants, before the interval is halved.
_SECANTS = 12


class Limit(Protocol):
    """A limit that a composition of accesses must stay within."""

    def holds(self, event: dp_accounting.DpEvent, *, quick: bool = False) -> bool:
        """Return whether an event is within the limit; a quick answer may be no where the true one is yes."""

    def solve(self, event_at: Callable[[float], dp_accounting.DpEvent], largest: float) -> float:
        """Return the multiplier, at most `largest`, whose event is within the limit and within 0.1 % of it if there is one.

        Where even `largest` is too little noise, return `largest`.
        """

    def compare(self, event: dp_accounting.DpEvent) -> str:
        """Return in words what an event costs beside the limit."""


class EpsilonLimit:
    """The limit of epsilon `target` at `delta`, for a record added or removed; at delta 0 for pure noise."""

    def __init__(self, target: float, delta: float, accountant: str = PLD) -> None:
        self._target, self._delta, self._accountant = target, delta, accountant

    def _spent(self, event: dp_accounting.DpEvent, interval: float | None = None) -> Spent:
        return compute_epsilon(event, self._delta, interval=interval, accountant=self._accountant)

    def holds(self, event: dp_accounting.DpEvent, *, quick: bool = False) -> bool:
        # Renyi moments overstate, so an event that they allow is allowed.
        by_moments = quick and self._delta != 0.0
        epsilon = compute_epsilon_by_rdp(event, self._delta) if by_moments else self._spent(event).epsilon
        return epsilon <= self._target

    def solve(self, event_at: Callable[[float], dp_accounting.DpEvent], largest: float) -> float:
        """Solve by two root finders, the second from where the first one stopped.

        Coarse loss distributions come near and cost little. There the accountant settles on its interval, which the second
        one uses.
        """
        target = self._target

        def at(interval: float | None) -> Callable[[float], float]:
            return lambda multiplier: self._spent(event_at(multiplier), interval).epsilon

        multiplier = smallest_multiplier_within(at(INTERVALS[0]), target, largest)
        settled = self._spent(event_at(multiplier))
        if settled.epsilon < 0.999 * target:
            multiplier = smallest_multiplier_within(
                at(settled.interval or None), 0.9997 * target, multiplier, start=multiplier
            )
            # The accountant's own choice of interval has the last word; it differs by its 0.1 % at most.
            while multiplier < largest and not self.holds(event_at(multiplier)):
                multiplier *= 1.0005
        return min(multiplier, largest)

    def compare(self, event: dp_accounting.DpEvent) -> str:
        cost = self._spent(event).epsilon
        return f"cost epsilon {round_up(cost, 4):g} where {self._target:g} at delta={self._delta:g} may be spent"


class ReferenceLimit:
    """The limit of a reference that must dominate, under each relation that it is for."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference

    def holds(self, event: dp_accounting.DpEvent, *, quick: bool = False) -> bool:
        if quick:
            # Coarse loss distributions overstate.
            coarse = (
                self._reference.relative_shift(event, relation, INTERVALS[0]) for relation in self._reference.relations
            )
            return all(used.shift <= 1.0 for used in coarse)
        return self._reference.dominates(event)

    def solve(self, event_at: Callable[[float], dp_accounting.DpEvent], largest: float) -> float:
        """Solve as `EpsilonLimit.solve` does, for the shift that dominates instead of epsilon.

        A record replaced seldom asks for more noise than one added or removed.
        """
        multiplier = self._solve(event_at, largest, ADD_OR_REMOVE_ONE)
        if self._reference.replaceable and not self.holds(event_at(multiplier)):
            multiplier = max(multiplier, self._solve(event_at, largest, REPLACE_ONE))
        # The limit itself has the last word; this is seldom needed, and then a few times.
        while multiplier < largest and not self.holds(event_at(multiplier)):
            multiplier *= 1.0005
        return min(multiplier, largest)

    def _solve(self, event_at: Callable[[float], dp_accounting.DpEvent], largest: float, relation: str) -> float:
        def at(interval: float) -> Callable[[float], float]:
            return lambda multiplier: self._reference.relative_shift(event_at(multiplier), relation, interval).shift

        # Just below 1, which a sum of inverse squares may pass by its last digit.
        multiplier = smallest_multiplier_within(at(INTERVALS[0]), 1.0 - 1e-9, largest)
        settled = self._reference.relative_shift(event_at(multiplier), relation)
        if settled.shift < 0.999:
            # An interval that costs little comes first, after which the last root is near.
            if settled.interval < INTERVALS[3]:
                multiplier = smallest_multiplier_within(at(INTERVALS[3]), 0.9997, multiplier, start=multiplier)
            multiplier = smallest_multiplier_within(at(settled.interval), 0.9997, multiplier, start=multiplier)
        return multiplier

    def compare(self, event: dp_accounting.DpEvent) -> str:
        shift = max(self._reference.relative_shift(event, relation).shift for relation in self._reference.relations)
        return f"need {shift:.4g} times the Gaussian shift that was set aside for them before the first pass"


def smallest_multiplier_within(
    cost_at: Callable[[float], float], target: float, largest: float, *, start: float = 1.0
) -> float:
    """Return the multiplier at which a falling cost meets `target`; `largest` where even that is too dear.

    The answer costs at most `target`; its cost is within a part in 1e4 of it, or the multiplier within as much of one that
    costs more. Costs are expensive and nearly a power of the multiplier, so secants in both logarithms are followed, and
    the interval is halved where they do not.

    Args:
        cost_at: the cost of a multiplier; may be 0 or infinite.
        target: a positive cost.
        largest: the largest multiplier that is allowed.
        start: the first multiplier that is tried.
    """
    x, highest = math.log(min(start, largest)), math.log(largest)
    dear = cheap = last = None
    for tried in itertools.count():
        # Beyond the largest epsilon there is no number; it is known only to be too much.
        cost = min(max(cost_at(math.exp(x) if x < highest else largest), _LEAST_COST * target), 2.0 * LARGEST_EPSILON)
        y = math.log(cost / target)
        if cost > target:
            if x == highest:
                return largest
            dear = x
        else:
            cheap = x
            if y > -_CLOSE or x < math.log(_SMALLEST_MULTIPLIER):
                break
        if dear is not None and cheap is not None and cheap - dear < _CLOSE:
            break
        slope = -1.0 if last is None or x == last[0] else (y - last[1]) / (x - last[0])
        last = x, y
        follows = slope < 0.0 and tried <= _SECANTS
        step = -(y + _CLOSE / 2) / slope if follows else math.copysign(_LONGEST_STEP, y)
        x += max(-_LONGEST_STEP, min(step, _LONGEST_STEP))
        if dear is not None and cheap is not None and (not dear < x < cheap or tried > _SECANTS):
            x = (dear + cheap) / 2
        x = min(x, highest)
    assert cheap is not None, "the loop ends at a multiplier that is cheap enough"
    return min(math.exp(cheap), largest)


def solve_noise(
    specs: Sequence[StageSpec], shares: Sequence[float], epsilon: float, delta: float, limit: Limit
) -> tuple[Stage, ...]:
    """Solve for the stages of some specs, which together are within a limit; each share is of epsilon at delta."""
    target = round_down(epsilon)
    for spec, share in zip(specs, shares, strict=True):
        if not _worthwhile(spec, share, target, delta):
            raise _too_small(spec, specs, shares, target, delta)
    multipliers = [_own_multiplier(d, share, target, delta) for d, share in zip(specs, shares, strict=True)]
    if any(spec.count is None for spec in specs):
        specs = _filled(specs, multipliers, limit, delta)
    elif delta != 0.0:
        multipliers = _scaled(specs, multipliers, limit, delta)
    return stages_of(specs, shares, multipliers)


def solve_beside_given(specs: Sequence[StageSpec], shares: Sequence[float], delta: float) -> list[float]:
    """Solve for multipliers where noise is given and epsilon is not: shares are relative to what the given stages use."""
    given = [(d, share) for d, share in zip(specs, shares, strict=True) if d.noise is not None]
    event = event_of([d for d, _ in given], [d.noise for d, _ in given if d.noise is not None], delta)
    cost, share = compute_epsilon(event, delta).epsilon, math.fsum(share for _, share in given)
    if not 0.0 < cost < math.inf:
        raise ValueError(f"the given noise costs epsilon={cost:g} at delta={delta:g}: nothing can be measured by it")
    if delta == 0.0:
        whole = cost / share
    else:
        whole = gaussian_epsilon(gaussian_mu(cost, delta) / math.sqrt(share), delta)
    return [_own_multiplier(d, s, whole, delta) for d, s in zip(specs, shares, strict=True)]


def stages_of(specs: Sequence[StageSpec], shares: Sequence[float], multipliers: Sequence[float]) -> tuple[Stage, ...]:
    """Return the stages of specs with these multipliers."""
    return tuple(spec.make_stage(m, share) for spec, share, m in zip(specs, shares, multipliers, strict=True))


def event_of(specs: Sequence[StageSpec], multipliers: Sequence[float], delta: float) -> dp_accounting.DpEvent:
    """Return the composition of the accesses of specs with these multipliers."""
    runs = [(spec.access(m), spec.known_count) for spec, m in zip(specs, multipliers, strict=True)]
    return compose_events([event for _, event in stage_events(runs, pure=delta == 0.0)])


def _own_multiplier(spec: StageSpec, share: float, epsilon: float, delta: float) -> float:
    """Return the multiplier with which a stage uses its share of the budget, seen alone."""
    if spec.noise is not None:
        return spec.noise
    if delta == 0.0:
        # Pure epsilon is a sum of inverse multipliers.
        return compute_epsilon(event_of([spec], [1.0], delta), 0.0).epsilon / (share * epsilon)
    mu = math.sqrt(share) * gaussian_mu(epsilon, delta)
    if spec.has_closed_form:
        return math.sqrt(spec.known_count) / mu
    target = gaussian_epsilon(mu, delta)

    def by_rdp(m: float) -> float:
        return compute_epsilon_by_rdp(event_of([spec], [m], delta), delta)

    def coarsely(m: float) -> float:
        return compute_epsilon(event_of([spec], [m], delta), delta, interval=1e-3).epsilon

    # The factor that is solved for afterwards makes up for the coarseness.
    start = smallest_multiplier_within(by_rdp, target, spec.max_noise)
    return smallest_multiplier_within(coarsely, target, spec.max_noise, start=start)


def _scaled(specs: Sequence[StageSpec], multipliers: list[float], limit: Limit, delta: float) -> list[float]:
    """Multiply all solved multipliers by the one factor that brings the whole to its limit, from within."""

    def scaled(factor: float) -> list[float]:
        return [m if d.noise is not None else m * factor for d, m in zip(specs, multipliers, strict=True)]

    def event(factor: float) -> dp_accounting.DpEvent:
        return event_of(specs, scaled(factor), delta)

    if all(spec.noise is not None for spec in specs):
        if not limit.holds(event(1.0)):
            raise BudgetTooSmall(
                f"the noise and counts that are given {limit.compare(event(1.0))}; give more noise, fewer accesses or no "
                "epsilon"
            )
        return multipliers
    # Seen alone each stage is within its share, so the factor is near 1.
    highest = min(d.max_noise / m for d, m in zip(specs, multipliers, strict=True) if d.noise is None)
    factor = limit.solve(event, min(highest, 4.0))
    if not limit.holds(event(factor)):
        raise BudgetTooSmall(
            f"the budget is too small: with the most noise that the records can outweigh the stages together "
            f"{limit.compare(event(factor))}"
        )
    return scaled(factor)


def _filled(specs: Sequence[StageSpec], multipliers: list[float], limit: Limit, delta: float) -> list[StageSpec]:
    """Return the specs with as many accesses as fit of the stage without a count."""

    def counted(count: int) -> list[StageSpec]:
        return [replace(d, count=count) if d.count is None else d for d in specs]

    def fits(count: int, *, quick: bool) -> bool:
        return limit.holds(event_of(counted(count), multipliers, delta), quick=quick)

    # A count that fits by a quick look fits; from there on the limit itself decides.
    low = _most(lambda count: fits(count, quick=True), 0)
    low = _most(lambda count: fits(count, quick=False), low)
    opened = next(d for d in specs if d.count is None)
    if low < opened.multiple:
        event, few = event_of(counted(opened.multiple), multipliers, delta), opened.multiple
        least = f"not one access of {opened.stage!r} fits" if few == 1 else f"not {few} accesses of {opened.stage!r} fit"
        raise BudgetTooSmall(f"at this noise {least}: together they would {limit.compare(event)}")
    return counted(low - low % opened.multiple)


def _most(fits: Callable[[int], bool], low: int) -> int:
    """Return the largest count that fits, where `low` is known to fit (0 always does)."""
    step = max(1, low // 8)
    while low + step <= _MOST_STEPS and fits(low + step):
        low, step = low + step, 2 * step
    high = min(low + step, _MOST_STEPS + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _worthwhile(spec: StageSpec, share: float, epsilon: float, delta: float) -> bool:
    """Return whether a stage can use its share with noise that its records outweigh."""
    if spec.noise is not None:
        return True
    if spec.has_closed_form or delta == 0.0:
        return _own_multiplier(spec, share, epsilon, delta) <= spec.max_noise
    target = gaussian_epsilon(math.sqrt(share) * gaussian_mu(epsilon, delta), delta)
    if target == 0.0:
        return False
    event = event_of([spec], [spec.max_noise], delta)
    return compute_epsilon_by_rdp(event, delta) <= target or compute_epsilon(event, delta, interval=1e-3).epsilon <= target


def _too_small(
    spec: StageSpec, specs: Sequence[StageSpec], shares: Sequence[float], target: float, delta: float
) -> BudgetTooSmall:
    """Return the error about a stage that would need more noise than makes sense; it says what would be enough."""
    needed = target
    while not all(_worthwhile(d, share, needed, delta) for d, share in zip(specs, shares, strict=True)):
        needed *= 1.1
        if needed > 1e4:
            return BudgetTooSmall(
                f"stage {spec.stage!r}: about {spec.max_noise:,.0f} records (or persons, with max_rows each) stand behind "
                f"each of its {spec.count} noisy numbers, and no epsilon makes that worthwhile: give it a larger share of "
                "the budget, or set fewer max_rows"
            )
    hint = f"epsilon={round(needed, 4 - math.floor(math.log10(needed)))} would do"
    share = shares[list(specs).index(spec)]
    planned = spec.known_count
    # Steps in turn are planned together, and fewer of them would be another strategy.
    if planned > 1 and not spec.sampler.in_turn:
        fits = _most(lambda count: count < planned and _worthwhile(replace(spec, count=count), share, target, delta), 0)
        hint += f", or {fits} of the {spec.count} accesses" if fits else ", and not even one access fits"
    accesses = "the access" if spec.count == 1 else f"the {spec.count} accesses"
    return BudgetTooSmall(
        f"epsilon={target:g} at delta={delta:g} is too small for {accesses} of stage {spec.stage!r}: each noisy number "
        f"would outweigh all that about {spec.max_noise:,.0f} records behind it can add up to; {hint}"
    )
