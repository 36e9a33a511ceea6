"""The plan: every access that a run will make, with its noise, computed before any record is read."""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import dp_accounting
from scipy.optimize import brentq

from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.accountant import (
    ADD_OR_REMOVE_ONE,
    LARGEST_EPSILON,
    Spent,
    check_delta,
    gaussian_mu,
    round_down,
    spent,
    spent_by_rdp,
)
from lightning_dpgen.privacy.errors import BudgetTooSmall
from lightning_dpgen.privacy.events import composed, stage_events

# Noise so small protects nothing, and a search need not go there.
_SMALLEST_MULTIPLIER = 0.2


@dataclass(frozen=True)
class Draft:
    """A stage as it is asked for, before its noise is known.

    Args:
        stage: its name.
        weights: how the inverse squared noise of one access is divided among the Gaussians drawn from it.
        count: how many accesses.
        rate: Poisson rate of an access; 1 is a full pass.
        share: share of the whole budget's mu^2 (Gaussian-DP) that the stage may use; None for the one stage that
            takes what is left.
        largest: the noise multiplier beyond which a single noisy number outweighs all that the records of an access
            can add up to; a plan that needs more is refused.
    """

    stage: str
    weights: Mapping[str, float]
    count: int
    largest: float
    rate: float = 1.0
    share: float | None = None

    def access(self, multiplier: float) -> Access:
        """The access whose Gaussians together cost as much as one with this multiplier (0: no noise)."""
        total = sum(self.weights.values())
        multipliers = {name: multiplier / math.sqrt(w / total) for name, w in self.weights.items()}
        return Access(self.stage, multipliers, self.rate)


@dataclass(frozen=True)
class Stage:
    """One stage of a plan: `count` equal accesses."""

    access: Access
    count: int
    share: float

    @property
    def name(self) -> str:
        return self.access.stage


@dataclass(frozen=True)
class Plan:
    """What a run promises: its stages in order, and the budget that they were calibrated to.

    `epsilon` is computed from `event`; it is `inf` for a run without privacy, whose event is one NonPrivateDpEvent.
    Relation: add or remove one record.
    """

    stages: tuple[Stage, ...]
    target_epsilon: float
    delta: float
    relation: str = ADD_OR_REMOVE_ONE

    @property
    def private(self) -> bool:
        return all(stage.access.private for stage in self.stages)

    @property
    def accesses(self) -> list[tuple[Access, int]]:
        return [(stage.access, stage.count) for stage in self.stages]

    @property
    def stage_events(self) -> list[tuple[str, dp_accounting.DpEvent]]:
        return stage_events(self.accesses, pure=self.delta == 0.0)

    @property
    def event(self) -> dp_accounting.DpEvent:
        return composed([event for _, event in self.stage_events])

    @cached_property
    def spent(self) -> Spent:
        return spent(self.event, self.delta)

    @property
    def epsilon(self) -> float:
        return self.spent.epsilon

    def stage(self, name: str) -> Stage:
        """The stage of that name.

        Raises:
            KeyError: if the plan has none.
        """
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(f"the plan has no stage {name!r}; it has {[stage.name for stage in self.stages]}")

    def as_json(self) -> dict[str, Any]:
        """The plan as it stands in a ledger; a target that is infinite is null."""
        return {
            "stages": [stage.access.as_json() | {"count": stage.count, "share": stage.share} for stage in self.stages],
            "target_epsilon": self.target_epsilon if math.isfinite(self.target_epsilon) else None,
            "delta": self.delta,
            "relation": self.relation,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Plan:
        """The plan that `as_json` described."""
        stages = tuple(Stage(Access.from_json(s), s["count"], s["share"]) for s in fields["stages"])
        target = math.inf if fields["target_epsilon"] is None else fields["target_epsilon"]
        return cls(stages, target, fields["delta"], fields["relation"])

    def rewritten(self, made: Mapping[str, int], done: Mapping[str, int]) -> Plan:
        """The plan of a run that goes on: what was made, what is still to be done, and the steps that still fit.

        Multipliers stay. Accesses that were made and lost are made again, and the last stage gives up as many as it takes
        to stay within the budget; its own total never grows.

        Args:
            made: accesses of each stage that were made, lost ones included.
            done: accesses of each stage whose results are still there.

        Raises:
            BudgetTooSmall: if not one access of the last stage would fit.
        """
        *before, last = self.stages
        grown = [
            replace(stage, count=made.get(stage.name, 0) + stage.count - done.get(stage.name, 0)) for stage in before
        ]
        if grown == before:
            return self

        def shortened(count: int) -> Plan:
            return replace(self, stages=(*grown, replace(last, count=count)))

        def fits(count: int) -> bool:
            event = shortened(count).event
            return spent(event, self.delta, interval=self.spent.interval or None).epsilon <= self.target_epsilon

        low, high = max(made.get(last.name, 0), 1), last.count
        if not fits(low):
            raise BudgetTooSmall(
                f"what was spent before the interruption leaves no room for stage {last.name!r} within epsilon="
                f"{self.target_epsilon:g}: start a new run, whose cost adds to what this one has spent"
            )
        if fits(high):
            return shortened(high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return shortened(low)

    def curve(self, name: str, points: int = 16) -> Curve:
        """Epsilon after each part of stage `name`, with all that comes before it, for a progress bar.

        The knots are computed before the run; between two of them the later one is shown, so that the display never
        understates. It is a display of the plan and not an odometer: stopping early does not lower a certificate.
        """
        before: list[tuple[Access, int]] = []
        for stage in self.stages:
            if stage.name == name:
                break
            before.append((stage.access, stage.count))
        stage = self.stage(name)
        steps = sorted({max(1, round(stage.count * i / points)) for i in range(1, points + 1)})
        knots = []
        for count in steps:
            events = [event for _, event in stage_events([*before, (stage.access, count)])]
            knots.append(spent(composed(events), self.delta, interval=1e-3).epsilon)
        return Curve(tuple(steps), tuple(min(knot, self.epsilon) for knot in knots))


@dataclass(frozen=True)
class Curve:
    """Epsilon by the plan at a few step counts, rounded up to the next knot in between."""

    steps: tuple[int, ...]
    epsilons: tuple[float, ...]

    def at(self, step: int) -> float:
        if step <= 0:
            return 0.0
        return self.epsilons[min(bisect.bisect_left(self.steps, step), len(self.steps) - 1)]


def make_plan(drafts: Sequence[Draft], *, epsilon: float | None, delta: float) -> Plan:
    """Noise for every stage, so that the whole run is (epsilon, delta)-private under add-or-remove-one.

    Stages with a share get the multiplier that uses this share of ``mu^2``, where ``mu`` is the Gaussian-DP parameter
    of the budget; the stage without one absorbs the rest, found by the accountant itself, so the total meets the
    target from below within 0.1 %.

    Args:
        drafts: the stages in the order in which they will run; exactly one has ``share=None``.
        epsilon: the budget; None for a run without noise (its plan is not private).
        delta: in (0, 1).

    Raises:
        ValueError: for an epsilon that is not positive and finite, a delta outside (0, 1), or shares that leave nothing.
        BudgetTooSmall: if a stage would need more noise than its records can outweigh; says what would fit.

    Example:
        >>> plan = make_plan([Draft("mean", {"sum": 1.0}, 1, largest=1e3, share=0.1),
        ...                   Draft("training", {"gradient": 1.0}, 100, largest=100, rate=0.1)],
        ...                  epsilon=2.0, delta=1e-5)
        >>> 1.99 < plan.epsilon <= 2.0
        True
    """
    check_delta(delta)
    rest = [draft for draft in drafts if draft.share is None]
    if len(rest) != 1:
        raise ValueError(f"exactly one stage must take what is left of the budget, found {len(rest)}")
    shares = [draft.share for draft in drafts if draft.share is not None]
    left = 1.0 - sum(shares)
    if any(not 0.0 < share < 1.0 for share in shares) or left <= 0.0:
        raise ValueError(f"shares {shares} of the budget: expected positive numbers that add up to less than 1")
    for draft in drafts:
        if draft.count < 1:
            raise ValueError(f"stage {draft.stage!r}: count={draft.count}, expected 1 or more")
    if epsilon is None:
        stages = tuple(Stage(d.access(0.0), d.count, d.share or left) for d in drafts)
        return Plan(stages, math.inf, delta)
    if not 0.0 < epsilon <= LARGEST_EPSILON:
        raise ValueError(f"epsilon={epsilon}: expected a positive number, at most {LARGEST_EPSILON:g}")

    target = round_down(epsilon)
    _check_feasible(drafts, rest[0], target, delta)
    multiplier = _calibrate(lambda m: _event(drafts, target, delta, m), target, delta, rest[0].largest)
    stages = tuple(
        Stage(d.access(m), d.count, d.share or left)
        for d, m in zip(drafts, _multipliers(drafts, target, delta, multiplier), strict=True)
    )
    return Plan(stages, float(epsilon), delta)


def _multipliers(drafts: Sequence[Draft], epsilon: float, delta: float, rest: float) -> list[float]:
    mu = gaussian_mu(epsilon, delta)
    return [rest if d.share is None else math.sqrt(d.count / d.share) / mu for d in drafts]


def _event(drafts: Sequence[Draft], epsilon: float, delta: float, rest: float) -> dp_accounting.DpEvent:
    multipliers = _multipliers(drafts, epsilon, delta, rest)
    runs = [(d.access(m), d.count) for d, m in zip(drafts, multipliers, strict=True)]
    return composed([event for _, event in stage_events(runs)])


def _calibrate(event_at, target: float, delta: float, largest: float) -> float:
    """The multiplier, at most `largest`, whose event costs at most `target`, and within 0.1 % of it where there is one.

    Three root finders, each from where the last one stopped: Renyi moments bound epsilon from above and cost nothing;
    coarse loss distributions come near; there the accountant settles on its interval, at which the last one ends.
    """

    def at(interval: float | None):
        return lambda multiplier: spent(event_at(multiplier), delta, interval=interval).epsilon

    multiplier = _root(lambda m: spent_by_rdp(event_at(m), delta), target, largest, step=1.5)
    multiplier = _root(at(1e-3), target, multiplier, step=1.1)
    settled = spent(event_at(multiplier), delta)
    if settled.epsilon < 0.999 * target:
        multiplier = _root(at(settled.interval or None), 0.9997 * target, multiplier, step=1.02)
        # The accountant's own choice of interval has the last word; it differs by its 0.1 % at most.
        while multiplier < largest and spent(event_at(multiplier), delta).epsilon > target:
            multiplier *= 1.0005
    return min(multiplier, largest)


def _root(epsilon_at, target: float, high: float, step: float) -> float:
    """Where a falling function meets `target`, going down from `high` in growing steps; `high` if it is too dear already.

    The answer costs at most `target`, and lies within a part in 1e4 of the multiplier that costs just as much.
    """
    epsilon_at = functools.cache(epsilon_at)
    low, factor = high, step
    while epsilon_at(low) <= target:
        high, low, factor = low, low / factor, factor * step
        if low < _SMALLEST_MULTIPLIER:
            return high
    if low == high:
        return high

    def excess(log_multiplier: float) -> float:
        # Beyond the largest epsilon there is no number, only that it is too much.
        return math.log(min(epsilon_at(math.exp(log_multiplier)), 2.0 * LARGEST_EPSILON) / target)

    root = math.exp(brentq(excess, math.log(low), math.log(high), xtol=3e-5))
    while epsilon_at(root) > target:
        root *= 1.00003
    return min(root, high)


def _check_feasible(drafts: Sequence[Draft], rest: Draft, target: float, delta: float) -> None:
    blocking = _blocking(drafts, target, delta)
    if blocking is None:
        return
    needed = target
    while _blocking(drafts, needed, delta) is not None:
        needed *= 1.1
        if needed > 1e4:
            raise BudgetTooSmall(
                f"stage {blocking.stage!r}: no epsilon makes {blocking.count} accesses with at most "
                f"{blocking.largest:g} records of weight worthwhile"
            )
    hint = f"epsilon={round(needed, 4 - math.floor(math.log10(needed)))} would do"
    if blocking is rest:
        fits = _largest_count(drafts, rest, target, delta)
        hint += f", or {fits} of the {rest.count} accesses" if fits else ", and not even one access fits"
    raise BudgetTooSmall(
        f"epsilon={target:g} at delta={delta:g} is too small for the {blocking.count} accesses of stage "
        f"{blocking.stage!r}: each noisy number would outweigh all that the about {blocking.largest:.0f} records "
        f"behind it can add up to; {hint}"
    )


def _blocking(drafts: Sequence[Draft], epsilon: float, delta: float) -> Draft | None:
    """The first stage that needs more than its largest multiplier, if any."""
    largest = next(d.largest for d in drafts if d.share is None)
    for draft, multiplier in zip(drafts, _multipliers(drafts, epsilon, delta, largest), strict=True):
        if draft.share is not None and multiplier > draft.largest:
            return draft
    if not _affordable(_event(drafts, epsilon, delta, largest), epsilon, delta):
        return next(d for d in drafts if d.share is None)
    return None


def _affordable(event: dp_accounting.DpEvent, epsilon: float, delta: float) -> bool:
    """Whether an event costs at most epsilon; Renyi moments settle the clear cases at once."""
    if spent_by_rdp(event, delta) <= epsilon:
        return True
    return spent(event, delta, interval=1e-3).epsilon <= epsilon


def _largest_count(drafts: Sequence[Draft], rest: Draft, epsilon: float, delta: float) -> int:
    def fits(count: int) -> bool:
        shorter = [Draft(d.stage, d.weights, count, d.largest, d.rate) if d is rest else d for d in drafts]
        return _affordable(_event(shorter, epsilon, delta, rest.largest), epsilon, delta)

    low, high = 0, rest.count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
