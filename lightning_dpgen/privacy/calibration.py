"""From a budget to a plan: of epsilon, noise and steps, any two give the third."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import dp_accounting
from scipy.optimize import brentq

from lightning_dpgen.privacy.access import GAUSSIAN, Access
from lightning_dpgen.privacy.accountant import (
    LARGEST_EPSILON,
    check_delta,
    check_epsilon,
    gaussian_epsilon,
    gaussian_mu,
    round_down,
    round_up,
    spent,
    spent_by_rdp,
    without_failures,
)
from lightning_dpgen.privacy.errors import BudgetTooSmall
from lightning_dpgen.privacy.events import composed, stage_events
from lightning_dpgen.privacy.loss import ADD_OR_REMOVE_ONE, RELATIONS, REPLACE_ONE
from lightning_dpgen.privacy.plan import Plan, Stage

# Noise so small protects nothing, and a search need not go there.
_SMALLEST_MULTIPLIER = 0.2
_MOST_STEPS = 10**7


@dataclass(frozen=True)
class Draft:
    """A stage as it is asked for.

    Args:
        stage: its name.
        weights: how the inverse squared noise of one access is divided among the noises drawn from it.
        count: how many accesses; None for as many as the budget buys at the given noise.
        rate: Poisson rate of an access; 1 is a full pass.
        share: share of the whole budget's mu^2 (Gaussian-DP) that the stage may use, at delta = 0 of epsilon; None for the
            one stage that takes what is left. Without such a stage, shares are divided by their sum.
        noise: the multiplier of one access (of the one Gaussian that costs as much), if it is given and not solved for.
        largest: the noise multiplier beyond which a single noisy number outweighs all that the records of an access
            can add up to; a plan that needs more is refused.
        kinds: of the noises that are not Gaussian; see `Access`.
        deltas: of the noises that stand before a threshold, for one access; see `Access`. They are taken off the plan's
            delta before anything is shared out.
    """

    stage: str
    weights: Mapping[str, float]
    count: int | None
    largest: float
    rate: float = 1.0
    share: float | None = None
    noise: float | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    deltas: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", {name: kind for name, kind in self.kinds.items() if kind != GAUSSIAN})

    def access(self, multiplier: float) -> Access:
        """The access whose noises together cost as much as one of this multiplier, if all are Gaussian (0: no noise)."""
        total = sum(self.weights.values())
        multipliers = {name: multiplier / math.sqrt(w / total) for name, w in self.weights.items()}
        return Access(self.stage, multipliers, self.rate, self.kinds, self.deltas)


def make_plan(
    drafts: Sequence[Draft],
    *,
    epsilon: float | None,
    delta: float,
    relation: str = ADD_OR_REMOVE_ONE,
    max_rows: int = 1,
) -> Plan:
    """Noise and steps for every stage, so that the whole run is (epsilon, delta)-private under `relation`.

    A share is a fraction of ``mu^2``, where ``mu`` is the Gaussian-DP parameter of the budget: of full passes with Gaussian
    noise, the sum of the inverse squared multipliers; of any other stage, that of the Gaussian which has its epsilon alone.
    One factor on all multipliers, found by the accountant itself, then brings the total to the target, from below and
    within 0.1 %.

    * epsilon and counts given: noise is solved for.
    * epsilon, and one stage with `noise` and no `count`: its count is the largest that fits.
    * epsilon None, and at least one stage with `noise`: epsilon is what it costs; the stages without noise of their own get
      as much as their share says beside that stage's.
    * epsilon infinite: no noise at all; the plan is not private.

    Args:
        drafts: the stages in the order in which they will run.
        epsilon: the budget.
        delta: in (0, 1); or 0, for stages whose noises are Laplace or known to be pure, at rate 1.
        relation: ``add_or_remove_one``; or ``replace_one``, for full passes that are all pure (delta 0) or all Gaussian.
        max_rows: how many records the unit of privacy has at most: 1, or as many as a person has; see `Plan`.

    Raises:
        ValueError: for an impossible epsilon, delta, share, noise or count, more unknowns than can be solved for, or
            deltas of the stages that leave nothing of the plan's.
        BudgetTooSmall: if a stage would need more noise than its records can outweigh; says what would fit.

    Example:
        >>> plan = make_plan([Draft("mean", {"sum": 1.0}, 1, largest=1e3, share=0.1),
        ...                   Draft("training", {"gradient": 1.0}, 100, largest=100, rate=0.1)],
        ...                  epsilon=2.0, delta=1e-5)
        >>> 1.99 < plan.epsilon <= 2.0
        True
    """
    if delta != 0.0:
        check_delta(delta)
    if relation == REPLACE_ONE:
        _check_replaceable(drafts, delta)
        return _replacing(make_plan(drafts, epsilon=epsilon, delta=delta, max_rows=max_rows))
    if relation != ADD_OR_REMOVE_ONE:
        raise ValueError(f"relation={relation!r}: expected one of {', '.join(RELATIONS)}")
    # Noise is that of so many records, which are fewer against it.
    drafts = [replace(draft, largest=draft.largest / max_rows) for draft in drafts]
    rest = next((draft.stage for draft in drafts if draft.share is None), None)
    return replace(_without_units(drafts, epsilon, delta), max_rows=max_rows, flexible=rest)


def _without_units(drafts: Sequence[Draft], epsilon: float | None, delta: float) -> Plan:
    shares = _shares(drafts)
    _check(drafts, epsilon)
    if not any(draft.deltas for draft in drafts):
        return _solved(drafts, shares, epsilon, delta)
    # What the deltas of stages leave is the delta of all the noise, exactly.
    left = _left(drafts, delta)
    plan = _solved([replace(draft, deltas={}) for draft in drafts], shares, epsilon, left)
    stages = zip(plan.stages, drafts, strict=True)
    stages = tuple(replace(stage, access=replace(stage.access, deltas=draft.deltas)) for stage, draft in stages)
    return replace(plan, stages=stages, delta=delta)


def _left(drafts: Sequence[Draft], delta: float) -> float:
    """The delta that is left of a plan's when those of its stages are taken off."""
    spending = [draft for draft in drafts if draft.deltas]
    for draft in spending:
        if draft.count is None:
            raise ValueError(f"stage {draft.stage!r}: deltas={dict(draft.deltas)} need a count: each access spends them")
    # Of any noise: only the deltas matter here.
    left = without_failures(_event(spending, [1.0] * len(spending), delta), delta)[1] if delta else 0.0
    if not left:
        named = {draft.stage: dict(draft.deltas) for draft in spending}
        raise ValueError(f"delta={delta:g} is used up by the deltas of stages, {named}: expected a sum well below it")
    return left


def _solved(drafts: Sequence[Draft], shares: Sequence[float], epsilon: float | None, delta: float) -> Plan:
    if epsilon is not None and math.isinf(epsilon):
        return _plan(drafts, shares, [0.0] * len(drafts), math.inf, delta)
    if epsilon is None:
        multipliers = _beside_given(drafts, shares, delta)
        plan = _plan(drafts, shares, multipliers, math.inf, delta)
        return replace(plan, target_epsilon=round_up(plan.epsilon))
    target = round_down(epsilon)
    for draft, share in zip(drafts, shares, strict=True):
        if not _worthwhile(draft, share, target, delta):
            raise _too_small(draft, drafts, shares, target, delta)
    multipliers = [_alone(d, share, target, delta) for d, share in zip(drafts, shares, strict=True)]
    if any(draft.count is None for draft in drafts):
        return _fill(drafts, shares, multipliers, epsilon, delta)
    if delta != 0.0:
        multipliers = _scaled(drafts, multipliers, target, delta)
    return _plan(drafts, shares, multipliers, float(epsilon), delta)


def _check_replaceable(drafts: Sequence[Draft], delta: float) -> None:
    for draft in drafts:
        if draft.rate < 1.0 or (delta and draft.kinds) or draft.deltas:
            raise ValueError(
                f"stage {draft.stage!r}: a plan under {REPLACE_ONE} holds full passes, all of them pure at delta 0 or all "
                "of them Gaussian, without deltas"
            )


def _replacing(plan: Plan) -> Plan:
    """The plan that costs under replace-one what this one costs under add-or-remove-one.

    Pure multipliers are those of whatever relation the plan is about. The accountant doubles the shift of a Gaussian when
    a record is replaced, so twice the multiplier costs the same.
    """

    def doubled(access: Access) -> Access:
        noises = {name: m * (2.0 if access.kind(name) == GAUSSIAN else 1.0) for name, m in access.multipliers.items()}
        return replace(access, multipliers=noises)

    stages = tuple(replace(stage, access=doubled(stage.access)) for stage in plan.stages)
    return replace(plan, stages=stages, relation=REPLACE_ONE)


def _check(drafts: Sequence[Draft], epsilon: float | None) -> None:
    if epsilon not in (None, math.inf):
        check_epsilon(epsilon)
    names = [draft.stage for draft in drafts]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"stages {names}: expected at least one, and no name twice")
    for draft in drafts:
        if draft.count is not None and (type(draft.count) is not int or draft.count < 1):
            raise ValueError(f"stage {draft.stage!r}: count={draft.count!r}, expected a whole number (int), 1 or more")
        if not draft.weights or not all(0.0 < weight < math.inf for weight in draft.weights.values()):
            raise ValueError(f"stage {draft.stage!r}: weights={dict(draft.weights)}, expected positive numbers")
        if draft.noise is not None and not (draft.noise > 0.0 and math.isfinite(draft.noise)):
            raise ValueError(f"stage {draft.stage!r}: noise={draft.noise}, expected a positive finite multiplier")
    open_counts = [draft for draft in drafts if draft.count is None]
    if len(open_counts) > 1 or any(d.noise is None for d in open_counts) or (open_counts and epsilon is None):
        raise ValueError(
            "epsilon, noise and steps: give two of them. A stage without a count needs its noise and an epsilon, and one "
            "stage may have no count"
        )
    if epsilon is None and all(draft.noise is None for draft in drafts):
        raise ValueError("without an epsilon, at least one stage must have its noise given")


def _shares(drafts: Sequence[Draft]) -> list[float]:
    rest = [draft for draft in drafts if draft.share is None]
    given = [draft.share for draft in drafts if draft.share is not None]
    if len(rest) > 1:
        raise ValueError(f"at most one stage may take what is left of the budget, found {len(rest)}")
    left = 1.0 - math.fsum(given)
    if any(not 0.0 < share <= 1.0 for share in given) or (rest and left <= 0.0) or left < -1e-9:
        raise ValueError(
            f"shares {given} of the budget: expected positive numbers that add up to less than 1, or to 1 if no stage "
            "takes what is left"
        )
    if rest:
        return [left if draft.share is None else draft.share for draft in drafts]
    if abs(left) <= 1e-9:
        # The whole, but for rounding: a stage has the same share in every plan that it stands in.
        return given
    return [share / math.fsum(given) for share in given]


def _plan(drafts, shares, multipliers: Sequence[float], target: float, delta: float) -> Plan:
    stages = zip(drafts, shares, multipliers, strict=True)
    return Plan(tuple(Stage(d.access(m), d.count, share) for d, share, m in stages), target, delta)


def _event(drafts: Sequence[Draft], multipliers: Sequence[float], delta: float) -> dp_accounting.DpEvent:
    runs = [(d.access(m), d.count) for d, m in zip(drafts, multipliers, strict=True)]
    return composed([event for _, event in stage_events(runs, pure=delta == 0.0)])


def _alone(draft: Draft, share: float, epsilon: float, delta: float) -> float:
    """The multiplier with which a stage uses its share of the budget, seen alone."""
    if draft.noise is not None:
        return draft.noise
    if delta == 0.0:
        # Pure epsilon is a sum of inverse multipliers.
        return spent(_event([draft], [1.0], delta), 0.0).epsilon / (share * epsilon)
    mu = math.sqrt(share) * gaussian_mu(epsilon, delta)
    if draft.rate == 1.0 and not draft.kinds:
        return math.sqrt(draft.count) / mu
    target = gaussian_epsilon(mu, delta)

    def by_rdp(m: float) -> float:
        return spent_by_rdp(_event([draft], [m], delta), delta)

    def coarsely(m: float) -> float:
        return spent(_event([draft], [m], delta), delta, interval=1e-3).epsilon

    # The factor that is solved for afterwards makes up for the coarseness.
    return _root(coarsely, target, _root(by_rdp, target, draft.largest, step=1.5), step=1.1)


def _beside_given(drafts: Sequence[Draft], shares: Sequence[float], delta: float) -> list[float]:
    """Multipliers where noise is given and epsilon is not: shares are relative to what the given stages use."""
    given = [(d, share) for d, share in zip(drafts, shares, strict=True) if d.noise is not None]
    event = _event([d for d, _ in given], [d.noise for d, _ in given], delta)
    cost, share = spent(event, delta).epsilon, math.fsum(share for _, share in given)
    if not 0.0 < cost < math.inf:
        raise ValueError(f"the given noise costs epsilon={cost:g} at delta={delta:g}: nothing can be measured by it")
    if delta == 0.0:
        whole = cost / share
    else:
        whole = gaussian_epsilon(gaussian_mu(cost, delta) / math.sqrt(share), delta)
    return [_alone(d, s, whole, delta) for d, s in zip(drafts, shares, strict=True)]


def _scaled(drafts: Sequence[Draft], multipliers: list[float], target: float, delta: float) -> list[float]:
    """All solved multipliers times the one factor that makes the whole cost the target, from below."""

    def scaled(factor: float) -> list[float]:
        return [m if d.noise is not None else m * factor for d, m in zip(drafts, multipliers, strict=True)]

    def event(factor: float) -> dp_accounting.DpEvent:
        return _event(drafts, scaled(factor), delta)

    if all(draft.noise is not None for draft in drafts):
        if spent(event(1.0), delta).epsilon > target:
            raise BudgetTooSmall(
                f"epsilon={target:g} at delta={delta:g}: the noise and counts that are given cost "
                f"{spent(event(1.0), delta).epsilon:.4g}; give more noise, fewer accesses or no epsilon"
            )
        return multipliers
    # Seen alone each stage is within its share, so the factor is near 1.
    highest = min(d.largest / m for d, m in zip(drafts, multipliers, strict=True) if d.noise is None)
    factor = _calibrate(event, target, delta, min(highest, 4.0))
    if spent(event(factor), delta).epsilon > target:
        raise BudgetTooSmall(
            f"epsilon={target:g} at delta={delta:g} is too small: with the most noise that the records can outweigh the "
            f"stages together cost {spent(event(factor), delta).epsilon:.4g}"
        )
    return scaled(factor)


def _fill(drafts, shares, multipliers: list[float], epsilon: float, delta: float) -> Plan:
    """As many accesses of the stage without a count as fit."""
    target = round_down(epsilon)

    def plan(count: int) -> Plan:
        counted = [replace(d, count=count) if d.count is None else d for d in drafts]
        return _plan(counted, shares, multipliers, float(epsilon), delta)

    def fits(count: int, *, quick: bool) -> bool:
        event = plan(count).event
        if delta == 0.0:
            return spent(event, 0.0).epsilon <= target
        return (spent_by_rdp(event, delta) if quick else spent(event, delta).epsilon) <= target

    # Renyi moments overstate, so what fits by them fits; from there on the accountant itself.
    low = _most(lambda count: fits(count, quick=True), 0)
    low = _most(lambda count: fits(count, quick=False), low)
    if low == 0:
        stage = next(d.stage for d in drafts if d.count is None)
        raise BudgetTooSmall(f"epsilon={epsilon:g} at delta={delta:g}: at this noise not one access of {stage!r} fits")
    return plan(low)


def _most(fits: Callable[[int], bool], low: int) -> int:
    """The largest count that fits, where `low` is known to fit (0 always does)."""
    step = max(1, low // 8)
    while low + step <= _MOST_STEPS and fits(low + step):
        low, step = low + step, 2 * step
    high = min(low + step, _MOST_STEPS + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _calibrate(event_at, target: float, delta: float, largest: float) -> float:
    """The argument, at most `largest`, whose event costs at most `target`, and within 0.1 % of it where there is one.

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


def _worthwhile(draft: Draft, share: float, epsilon: float, delta: float) -> bool:
    """Whether a stage can use its share with noise that its records outweigh."""
    if draft.noise is not None:
        return True
    if (draft.rate == 1.0 and not draft.kinds) or delta == 0.0:
        return _alone(draft, share, epsilon, delta) <= draft.largest
    target = gaussian_epsilon(math.sqrt(share) * gaussian_mu(epsilon, delta), delta)
    if target == 0.0:
        return False
    event = _event([draft], [draft.largest], delta)
    return spent_by_rdp(event, delta) <= target or spent(event, delta, interval=1e-3).epsilon <= target


def _too_small(draft: Draft, drafts, shares, target: float, delta: float) -> BudgetTooSmall:
    """What to say of a stage that would need more noise than makes sense, and what would do."""
    needed = target
    while not all(_worthwhile(d, share, needed, delta) for d, share in zip(drafts, shares, strict=True)):
        needed *= 1.1
        if needed > 1e4:
            return BudgetTooSmall(
                f"stage {draft.stage!r}: about {draft.largest:.3g} records (or persons, with max_rows each) stand behind "
                f"each of its {draft.count} noisy numbers, and no epsilon makes that worthwhile: set fewer max_rows"
            )
    hint = f"epsilon={round(needed, 4 - math.floor(math.log10(needed)))} would do"
    share = shares[list(drafts).index(draft)]
    fits = _most(lambda count: count < draft.count and _worthwhile(replace(draft, count=count), share, target, delta), 0)
    if draft.count > 1:
        hint += f", or {fits} of the {draft.count} accesses" if fits else ", and not even one access fits"
    accesses = "the access" if draft.count == 1 else f"the {draft.count} accesses"
    return BudgetTooSmall(
        f"epsilon={target:g} at delta={delta:g} is too small for {accesses} of stage {draft.stage!r}: each noisy number "
        f"would outweigh all that the about {draft.largest:.3g} records behind it can add up to; {hint}"
    )
