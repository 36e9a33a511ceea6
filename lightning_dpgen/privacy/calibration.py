"""From a budget to a plan: of epsilon, noise and steps, any two give the third."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import dp_accounting

from lightning_dpgen.privacy.access import GAUSSIAN, Access
from lightning_dpgen.privacy.accountant import (
    check_delta,
    check_epsilon,
    gaussian_epsilon,
    gaussian_mu,
    gaussian_shift,
    round_down,
    round_up,
    spent,
    spent_by_rdp,
    without_failures,
)
from lightning_dpgen.privacy.errors import BudgetTooSmall
from lightning_dpgen.privacy.events import composed, stage_events
from lightning_dpgen.privacy.limits import EpsilonLimit, Limit, ReferenceLimit, root
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.pld import ADD_OR_REMOVE_ONE, RELATIONS, REPLACE_ONE
from lightning_dpgen.privacy.reference import Reference

_MOST_STEPS = 10**7
# The part of delta beside a reference, so that profiles need not be compared in their farthest tails.
_FAILURE_PART = 20.0
# Of a failure, for each sampled access: below it rounding could hide the tail that a record replaced has.
_REPLACEABLE = 2e-13


@dataclass(frozen=True)
class StageSpec:
    """A stage as it is asked for.

    Args:
        stage: its name.
        noise_shares: how the inverse squared noise of one access is divided among the noises drawn from it.
        count: how many accesses; None for as many as the budget buys at the given noise.
        sample_rate: Poisson rate of an access; 1 is a full pass.
        share: share of the whole budget's mu^2 (Gaussian-DP) that the stage may use, at delta = 0 of epsilon; None for the
            one stage that takes what is left. Without such a stage, shares are divided by their sum.
        noise: the multiplier of one access (of the one Gaussian that costs as much), if it is given and not solved for.
        max_noise: the noise multiplier beyond which a single noisy number outweighs all that the records of an access
            can add up to; a plan that needs more is refused.
        kinds: of the noises that are not Gaussian; see `Access`.
        deltas: of the noises that stand before a threshold, for one access; see `Access`. They are taken off the plan's
            delta before anything is shared out.
        n: the number of records that the numbers above were chosen for, kept in the plan; None where none of them depends
            on it.
    """

    stage: str
    noise_shares: Mapping[str, float]
    count: int | None
    max_noise: float
    sample_rate: float = 1.0
    share: float | None = None
    noise: float | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    deltas: Mapping[str, float] = field(default_factory=dict)
    n: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", {name: kind for name, kind in self.kinds.items() if kind != GAUSSIAN})

    def access(self, multiplier: float) -> Access:
        """The access whose noises together cost as much as one of this multiplier, if all are Gaussian (0: no noise)."""
        total = sum(self.noise_shares.values())
        multipliers = {name: multiplier / math.sqrt(w / total) for name, w in self.noise_shares.items()}
        return Access(self.stage, multipliers, self.sample_rate, self.kinds, self.deltas)


def make_plan(
    specs: Sequence[StageSpec],
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
        specs: the stages in the order in which they will run.
        epsilon: the budget.
        delta: in (0, 1); or 0, for stages whose noises are Laplace or known to be pure, at rate 1.
        relation: ``add_or_remove_one``; or ``replace_one``, for full passes that are all pure (delta 0) or all Gaussian.
        max_rows: how many records the unit of privacy has at most: 1, or as many as a person has; see `Plan`.

    Raises:
        ValueError: for an impossible epsilon, delta, share, noise or count, more unknowns than can be solved for, stages
            for different numbers of records, or deltas of the stages that leave nothing of the plan's.
        BudgetTooSmall: if a stage would need more noise than its records can outweigh; says what would fit.

    Example:
        >>> plan = make_plan([StageSpec("mean", {"sum": 1.0}, 1, max_noise=1e3, share=0.1),
        ...                   StageSpec("training", {"gradient": 1.0}, 100, max_noise=100, sample_rate=0.1)],
        ...                  epsilon=2.0, delta=1e-5)
        >>> 1.99 < plan.epsilon <= 2.0
        True
    """
    if delta != 0.0:
        check_delta(delta)
    if relation == REPLACE_ONE:
        _check_replaceable(specs, delta)
        return _replacing(make_plan(specs, epsilon=epsilon, delta=delta, max_rows=max_rows))
    if relation != ADD_OR_REMOVE_ONE:
        raise ValueError(f"relation={relation!r}: expected one of {', '.join(RELATIONS)}")
    # Noise is that of so many records, which are fewer against it.
    specs = [replace(spec, max_noise=spec.max_noise / max_rows) for spec in specs]
    rest, n = next((spec.stage for spec in specs if spec.share is None), None), _records(specs)
    return replace(_without_units(specs, epsilon, delta), max_rows=max_rows, flexible=rest, n=n)


def make_first_plan(
    spec: StageSpec, *, epsilon: float, delta: float, max_rows: int = 1, sampled: int | None = None, pure: bool = False
) -> Plan:
    """The plan of one access, and of a reference for all that is planned from what it releases (`make_rest`).

    The reference follows from these arguments alone. With it the whole costs epsilon at delta, whatever is planned later.

    Args:
        spec: of the access, with its noise.
        epsilon, delta: the budget of the whole run.
        max_rows: as for `make_plan`.
        sampled: how many sampled accesses may follow, at most; None if that is not known. Only if so many are known is
            the plan also stated for a record replaced.
        pure: whether noise that is not Gaussian may follow. Where neither sampled accesses nor such noise can, the
            reference costs nothing; otherwise a twentieth of delta is set aside.

    Raises:
        ValueError: as `make_plan`; for a spec without noise.
        BudgetTooSmall: if the access leaves nothing.

    Example:
        >>> count = StageSpec("count", {"n": 1.0}, 1, max_noise=1e3, share=0.01, noise=24.0)
        >>> first = make_first_plan(count, epsilon=2.0, delta=1e-5)
        >>> steps = StageSpec("training", {"gradient": 1.0}, 100, max_noise=100, sample_rate=0.1)
        >>> make_rest(first, [count, steps]).epsilon == first.epsilon
        True
    """
    check_delta(delta)
    _check([spec], epsilon)
    if spec.noise is None or spec.kinds or spec.sample_rate < 1.0 or spec.count is None:
        raise ValueError(f"stage {spec.stage!r}: expected full passes, so many and with so much Gaussian noise")
    failure = 0.0 if sampled == 0 and not pure else delta / _FAILURE_PART
    stage = Stage(spec.access(spec.noise), spec.count, 1.0 if spec.share is None else spec.share)
    bought = composed([event for _, event in stage_events([(stage.access, stage.count)])])
    set_aside = Reference(1.0, failure, after=1).event
    noises, left = without_failures(dp_accounting.ComposedDpEvent([bought, set_aside]), delta)
    target = round_down(epsilon)
    # Of the reference, whose own shift is 1 so far.
    squared = gaussian_mu(target, left) ** 2 - (gaussian_shift(noises) ** 2 - 1.0) if left else 0.0
    if squared <= 0.0:
        raise BudgetTooSmall(f"stage {spec.stage!r} uses up epsilon={target:g} at delta={delta:g}: give it a smaller share")
    replaceable = not pure and sampled is not None and failure >= _REPLACEABLE * sampled
    # The last digits of a root finder.
    reference = Reference((1.0 + 1e-9) / math.sqrt(squared), failure, after=1, replaceable=replaceable)
    return Plan((stage,), float(epsilon), delta, max_rows=max_rows, reference=reference, n=spec.n)


def make_rest(promise: Plan, specs: Sequence[StageSpec]) -> Plan:
    """The plan of a whole run, of which the first stages were promised, and have been made.

    Where a reference stands for the rest, its noise is solved for such that the reference dominates it. Where all stages
    were promised, they stay as they are. Without privacy there is nothing to be solved.

    Args:
        promise: of `make_first_plan` or `make_plan`.
        specs: of all stages, those that were made among them; shares are of the whole budget.

    Raises:
        ValueError: as `make_plan`; or if the specs are not those of what was promised.
        BudgetTooSmall: as `make_plan`.
    """
    made = len(promise.stages)
    if not promise.private:
        plan = make_plan(specs, epsilon=math.inf, delta=promise.delta, max_rows=promise.max_rows)
        return replace(plan, stages=promise.stages + plan.stages[made:], n=_records(specs, promise))
    specs = [replace(spec, max_noise=spec.max_noise / promise.max_rows) for spec in specs]
    # A reference leaves open how many stages follow.
    counted = len(specs) == made if promise.reference is None else len(specs) > made
    if not counted or not all(map(_keeps, promise.stages, specs)):
        raise ValueError(
            f"stages {[spec.stage for spec in specs]}: their accesses are not those that were promised before the first "
            "pass: keep the settings of accesses (their rate, number and shares), or start a new run, whose cost adds to "
            "this one's"
        )
    if promise.reference is None:
        _check_kept(promise, specs)
        return replace(promise, n=_records(specs, promise))
    shares, rest = _shares(specs), specs[made:]
    _check(specs, promise.target_epsilon)
    if any(spec.deltas for spec in rest):
        raise ValueError("deltas of stages after the first pass: expected none, since no part of delta was set aside")
    left = without_failures(promise.event, promise.delta)[1]
    limit = ReferenceLimit(promise.reference)
    stages = _within(rest, shares[made:], promise.target_epsilon, left, limit)
    flexible = next((spec.stage for spec in rest if spec.share is None), None)
    return replace(promise, stages=promise.stages + stages, flexible=flexible, n=_records(specs, promise))


def _keeps(stage: Stage, spec: StageSpec) -> bool:
    """Whether a stage is one of this spec, whatever its noise."""
    ours, own = stage.access, spec.access(stage.access.multiplier)
    same = (ours.stage, ours.sample_rate, ours.kinds, ours.deltas) == (own.stage, own.sample_rate, own.kinds, own.deltas)
    counted = spec.count is None or stage.count == spec.count
    return (
        same
        and counted
        and ours.multipliers.keys() == own.multipliers.keys()
        and all(math.isclose(ours.multipliers[name], own.multipliers[name], rel_tol=1e-9) for name in own.multipliers)
    )


def _check_kept(promise: Plan, specs: Sequence[StageSpec]) -> None:
    for stage, spec in zip(promise.stages, specs, strict=True):
        if spec.noise is None and stage.access.multiplier > spec.max_noise:
            raise BudgetTooSmall(
                f"stage {stage.name!r}: the noise that was promised before the first pass, of multiplier "
                f"{stage.access.multiplier:.3g}, outweighs all that the about {spec.max_noise:.3g} records behind a "
                "number can add up to"
            )


def _without_units(specs: Sequence[StageSpec], epsilon: float | None, delta: float) -> Plan:
    shares = _shares(specs)
    _check(specs, epsilon)
    if not any(spec.deltas for spec in specs):
        return _solved(specs, shares, epsilon, delta)
    # What the deltas of stages leave is the delta of all the noise, exactly.
    left = _left(specs, delta)
    plan = _solved([replace(spec, deltas={}) for spec in specs], shares, epsilon, left)
    stages = zip(plan.stages, specs, strict=True)
    stages = tuple(replace(stage, access=replace(stage.access, deltas=spec.deltas)) for stage, spec in stages)
    return replace(plan, stages=stages, delta=delta)


def _left(specs: Sequence[StageSpec], delta: float) -> float:
    """The delta that is left of a plan's when those of its stages are taken off."""
    spending = [spec for spec in specs if spec.deltas]
    for spec in spending:
        if spec.count is None:
            raise ValueError(f"stage {spec.stage!r}: deltas={dict(spec.deltas)} need a count: each access spends them")
    # Of any noise: only the deltas matter here.
    left = without_failures(_event(spending, [1.0] * len(spending), delta), delta)[1] if delta else 0.0
    if not left:
        named = {spec.stage: dict(spec.deltas) for spec in spending}
        raise ValueError(f"delta={delta:g} is used up by the deltas of stages, {named}: expected a sum well below it")
    return left


def _solved(specs: Sequence[StageSpec], shares: Sequence[float], epsilon: float | None, delta: float) -> Plan:
    if epsilon is not None and math.isinf(epsilon):
        return Plan(_stages(specs, shares, [0.0] * len(specs)), math.inf, delta)
    if epsilon is None:
        multipliers = _beside_given(specs, shares, delta)
        plan = Plan(_stages(specs, shares, multipliers), math.inf, delta)
        return replace(plan, target_epsilon=round_up(plan.epsilon))
    stages = _within(specs, shares, epsilon, delta, EpsilonLimit(round_down(epsilon), delta))
    return Plan(stages, float(epsilon), delta)


def _within(
    specs: Sequence[StageSpec], shares: Sequence[float], epsilon: float, delta: float, limit: Limit
) -> tuple[Stage, ...]:
    """The stages of some specs, which together are within a limit; each share is of epsilon at delta."""
    target = round_down(epsilon)
    for spec, share in zip(specs, shares, strict=True):
        if not _worthwhile(spec, share, target, delta):
            raise _too_small(spec, specs, shares, target, delta)
    multipliers = [_alone(d, share, target, delta) for d, share in zip(specs, shares, strict=True)]
    if any(spec.count is None for spec in specs):
        specs = _filled(specs, multipliers, limit, delta)
    elif delta != 0.0:
        multipliers = _scaled(specs, multipliers, limit, delta)
    return _stages(specs, shares, multipliers)


def _check_replaceable(specs: Sequence[StageSpec], delta: float) -> None:
    for spec in specs:
        if spec.sample_rate < 1.0 or (delta and spec.kinds) or spec.deltas:
            raise ValueError(
                f"stage {spec.stage!r}: a plan under {REPLACE_ONE} holds full passes, all of them pure at delta 0 or all "
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


def _records(specs: Sequence[StageSpec], promise: Plan | None = None) -> int | None:
    """Return the number of records that a plan of these stages is for, None if none of them says.

    Raises:
        ValueError: if two of them, or one of them and the promise, say different numbers.
    """
    said = [(f"stage {spec.stage!r}", spec.n) for spec in specs if spec.n is not None]
    if promise is not None and promise.n is not None:
        said.append(("the plan that was promised", promise.n))
    for who, n in said[1:]:
        if n != said[0][1]:
            raise ValueError(f"{said[0][0]} is for n={said[0][1]} records and {who} for n={n}: expected the same number")
    return said[0][1] if said else None


def _check(specs: Sequence[StageSpec], epsilon: float | None) -> None:
    if epsilon not in (None, math.inf):
        check_epsilon(epsilon)
    names = [spec.stage for spec in specs]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"stages {names}: expected at least one, and no name twice")
    for spec in specs:
        if spec.count is not None and (type(spec.count) is not int or spec.count < 1):
            raise ValueError(f"stage {spec.stage!r}: count={spec.count!r}, expected a whole number (int), 1 or more")
        if spec.n is not None and (type(spec.n) is not int or spec.n < 1):
            raise ValueError(f"stage {spec.stage!r}: n={spec.n!r}, expected a whole number (int) of records, 1 or more")
        if not spec.noise_shares or not all(0.0 < weight < math.inf for weight in spec.noise_shares.values()):
            raise ValueError(f"stage {spec.stage!r}: weights={dict(spec.noise_shares)}, expected positive numbers")
        if spec.noise is not None and not (spec.noise > 0.0 and math.isfinite(spec.noise)):
            raise ValueError(f"stage {spec.stage!r}: noise={spec.noise}, expected a positive finite multiplier")
    open_counts = [spec for spec in specs if spec.count is None]
    if len(open_counts) > 1 or any(d.noise is None for d in open_counts) or (open_counts and epsilon is None):
        raise ValueError(
            "epsilon, noise and steps: give two of them. A stage without a count needs its noise and an epsilon, and one "
            "stage may have no count"
        )
    if epsilon is None and all(spec.noise is None for spec in specs):
        raise ValueError("without an epsilon, at least one stage must have its noise given")


def _shares(specs: Sequence[StageSpec]) -> list[float]:
    rest = [spec for spec in specs if spec.share is None]
    given = [spec.share for spec in specs if spec.share is not None]
    if len(rest) > 1:
        raise ValueError(f"at most one stage may take what is left of the budget, found {len(rest)}")
    left = 1.0 - math.fsum(given)
    if any(not 0.0 < share <= 1.0 for share in given) or (rest and left <= 0.0) or left < -1e-9:
        raise ValueError(
            f"shares {given} of the budget: expected positive numbers that add up to less than 1, or to 1 if no stage "
            "takes what is left"
        )
    if rest:
        return [left if spec.share is None else spec.share for spec in specs]
    if abs(left) <= 1e-9:
        # The whole, but for rounding: a stage has the same share in every plan that it stands in.
        return given
    return [share / math.fsum(given) for share in given]


def _stages(specs: Sequence[StageSpec], shares: Sequence[float], multipliers: Sequence[float]) -> tuple[Stage, ...]:
    stages = zip(specs, shares, multipliers, strict=True)
    return tuple(Stage(spec.access(m), spec.count, share) for spec, share, m in stages)


def _event(specs: Sequence[StageSpec], multipliers: Sequence[float], delta: float) -> dp_accounting.DpEvent:
    runs = [(d.access(m), d.count) for d, m in zip(specs, multipliers, strict=True)]
    return composed([event for _, event in stage_events(runs, pure=delta == 0.0)])


def _alone(spec: StageSpec, share: float, epsilon: float, delta: float) -> float:
    """The multiplier with which a stage uses its share of the budget, seen alone."""
    if spec.noise is not None:
        return spec.noise
    if delta == 0.0:
        # Pure epsilon is a sum of inverse multipliers.
        return spent(_event([spec], [1.0], delta), 0.0).epsilon / (share * epsilon)
    mu = math.sqrt(share) * gaussian_mu(epsilon, delta)
    if spec.sample_rate == 1.0 and not spec.kinds:
        return math.sqrt(spec.count) / mu
    target = gaussian_epsilon(mu, delta)

    def by_rdp(m: float) -> float:
        return spent_by_rdp(_event([spec], [m], delta), delta)

    def coarsely(m: float) -> float:
        return spent(_event([spec], [m], delta), delta, interval=1e-3).epsilon

    # The factor that is solved for afterwards makes up for the coarseness.
    return root(coarsely, target, spec.max_noise, start=root(by_rdp, target, spec.max_noise))


def _beside_given(specs: Sequence[StageSpec], shares: Sequence[float], delta: float) -> list[float]:
    """Multipliers where noise is given and epsilon is not: shares are relative to what the given stages use."""
    given = [(d, share) for d, share in zip(specs, shares, strict=True) if d.noise is not None]
    event = _event([d for d, _ in given], [d.noise for d, _ in given], delta)
    cost, share = spent(event, delta).epsilon, math.fsum(share for _, share in given)
    if not 0.0 < cost < math.inf:
        raise ValueError(f"the given noise costs epsilon={cost:g} at delta={delta:g}: nothing can be measured by it")
    if delta == 0.0:
        whole = cost / share
    else:
        whole = gaussian_epsilon(gaussian_mu(cost, delta) / math.sqrt(share), delta)
    return [_alone(d, s, whole, delta) for d, s in zip(specs, shares, strict=True)]


def _scaled(specs: Sequence[StageSpec], multipliers: list[float], limit: Limit, delta: float) -> list[float]:
    """All solved multipliers times the one factor that brings the whole to its limit, from within."""

    def scaled(factor: float) -> list[float]:
        return [m if d.noise is not None else m * factor for d, m in zip(specs, multipliers, strict=True)]

    def event(factor: float) -> dp_accounting.DpEvent:
        return _event(specs, scaled(factor), delta)

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
    """The specs with as many accesses of the stage without a count as fit."""

    def counted(count: int) -> list[StageSpec]:
        return [replace(d, count=count) if d.count is None else d for d in specs]

    def fits(count: int, *, quick: bool) -> bool:
        return limit.holds(_event(counted(count), multipliers, delta), quick=quick)

    # What fits by a quick look fits; from there on the limit itself.
    low = _most(lambda count: fits(count, quick=True), 0)
    low = _most(lambda count: fits(count, quick=False), low)
    if low == 0:
        stage = next(d.stage for d in specs if d.count is None)
        event = _event(counted(1), multipliers, delta)
        raise BudgetTooSmall(f"at this noise not one access of {stage!r} fits: together they would {limit.compare(event)}")
    return counted(low)


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


def _worthwhile(spec: StageSpec, share: float, epsilon: float, delta: float) -> bool:
    """Whether a stage can use its share with noise that its records outweigh."""
    if spec.noise is not None:
        return True
    if (spec.sample_rate == 1.0 and not spec.kinds) or delta == 0.0:
        return _alone(spec, share, epsilon, delta) <= spec.max_noise
    target = gaussian_epsilon(math.sqrt(share) * gaussian_mu(epsilon, delta), delta)
    if target == 0.0:
        return False
    event = _event([spec], [spec.max_noise], delta)
    return spent_by_rdp(event, delta) <= target or spent(event, delta, interval=1e-3).epsilon <= target


def _too_small(spec: StageSpec, specs, shares, target: float, delta: float) -> BudgetTooSmall:
    """What to say of a stage that would need more noise than makes sense, and what would do."""
    needed = target
    while not all(_worthwhile(d, share, needed, delta) for d, share in zip(specs, shares, strict=True)):
        needed *= 1.1
        if needed > 1e4:
            return BudgetTooSmall(
                f"stage {spec.stage!r}: about {spec.max_noise:.3g} records (or persons, with max_rows each) stand behind "
                f"each of its {spec.count} noisy numbers, and no epsilon makes that worthwhile: set fewer max_rows"
            )
    hint = f"epsilon={round(needed, 4 - math.floor(math.log10(needed)))} would do"
    share = shares[list(specs).index(spec)]
    fits = _most(lambda count: count < spec.count and _worthwhile(replace(spec, count=count), share, target, delta), 0)
    if spec.count > 1:
        hint += f", or {fits} of the {spec.count} accesses" if fits else ", and not even one access fits"
    accesses = "the access" if spec.count == 1 else f"the {spec.count} accesses"
    return BudgetTooSmall(
        f"epsilon={target:g} at delta={delta:g} is too small for {accesses} of stage {spec.stage!r}: each noisy number "
        f"would outweigh all that the about {spec.max_noise:.3g} records behind it can add up to; {hint}"
    )
