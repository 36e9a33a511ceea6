"""The limits that noise is solved for: an epsilon that may not be passed, or a reference that must dominate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Protocol

import dp_accounting

from lightning_dpgen.privacy.accounting.accountant import INTERVALS, Spent, spent
from lightning_dpgen.privacy.accounting.epsilon_range import LARGEST_EPSILON, PLD, round_up
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE, REPLACE_ONE
from lightning_dpgen.privacy.accounting.reference import Reference
from lightning_dpgen.privacy.accounting.renyi import spent_by_rdp

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
        return spent(event, self._delta, interval=interval, accountant=self._accountant)

    def holds(self, event: dp_accounting.DpEvent, *, quick: bool = False) -> bool:
        # Renyi moments overstate, so an event that they allow is allowed.
        by_moments = quick and self._delta != 0.0
        epsilon = spent_by_rdp(event, self._delta) if by_moments else self._spent(event).epsilon
        return epsilon <= self._target

    def solve(self, event_at: Callable[[float], dp_accounting.DpEvent], largest: float) -> float:
        """Solve by two root finders, the second from where the first one stopped.

        Coarse loss distributions come near and cost little. There the accountant settles on its interval, which the second
        one uses.
        """
        target = self._target

        def at(interval: float | None) -> Callable[[float], float]:
            return lambda multiplier: self._spent(event_at(multiplier), interval).epsilon

        multiplier = root(at(INTERVALS[0]), target, largest)
        settled = self._spent(event_at(multiplier))
        if settled.epsilon < 0.999 * target:
            multiplier = root(at(settled.interval or None), 0.9997 * target, multiplier, start=multiplier)
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
            coarse = (self._reference.used(event, relation, INTERVALS[0]) for relation in self._reference.relations)
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
            return lambda multiplier: self._reference.used(event_at(multiplier), relation, interval).shift

        # Just below 1, which a sum of inverse squares may pass by its last digit.
        multiplier = root(at(INTERVALS[0]), 1.0 - 1e-9, largest)
        settled = self._reference.used(event_at(multiplier), relation)
        if settled.shift < 0.999:
            # An interval that costs little comes first, after which the last root is near.
            if settled.interval < INTERVALS[3]:
                multiplier = root(at(INTERVALS[3]), 0.9997, multiplier, start=multiplier)
            multiplier = root(at(settled.interval), 0.9997, multiplier, start=multiplier)
        return multiplier

    def compare(self, event: dp_accounting.DpEvent) -> str:
        shift = max(self._reference.used(event, relation).shift for relation in self._reference.relations)
        return f"need {shift:.4g} times the Gaussian shift that was set aside for them before the first pass"


def root(cost_at: Callable[[float], float], target: float, largest: float, *, start: float = 1.0) -> float:
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
