"""From a budget to a plan: any two of epsilon, noise and steps give the third."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import SupportsIndex

import dp_accounting

from lightning_dpgen.common.arguments import read_whole
from lightning_dpgen.privacy.access import GAUSSIAN, Access
from lightning_dpgen.privacy.accounting.epsilon_range import (
    PLD,
    check_accountant,
    check_delta,
    gaussian_mu,
    round_down,
    round_up,
)
from lightning_dpgen.privacy.accounting.event_parts import gaussian_shift, without_failures
from lightning_dpgen.privacy.accounting.events import compose_events, stage_events
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE, RELATIONS, REPLACE_ONE
from lightning_dpgen.privacy.accounting.reference import Reference
from lightning_dpgen.privacy.errors import BudgetTooSmall
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.planning.solving import (
    EpsilonLimit,
    ReferenceLimit,
    event_of,
    solve_beside_given,
    solve_noise,
    stages_of,
)
from lightning_dpgen.privacy.planning.stage_spec import StageSpec, check_specs, records_of, shares_of

# The number of this planner, which certificates name. A change of the stages, noises or counts that follow from settings
# raises it: `verify` plans again only what this planner has planned (tests/verification/kept_plans.json).
PLANNER = 2
# The part of delta beside a reference, so that profiles need not be compared in their farthest tails.
_FAILURE_PART = 20.0
# The least failure for each sampled access: below it rounding could hide the tail that a record replaced has.
_REPLACEABLE = 2e-13


def make_plan(
    specs: Sequence[StageSpec],
    *,
    epsilon: float | None,
    delta: float,
    relation: str = ADD_OR_REMOVE_ONE,
    max_rows: SupportsIndex = 1,
    accountant: str = PLD,
    stops: Sequence[int] = (),
) -> Plan:
    """Make the plan with noise and steps for every stage, such that the whole run is (epsilon, delta)-private.

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
        max_rows: the most records that the unit of privacy has: 1, or as many as a person has; see `Plan`.
        accountant: ``pld`` (privacy loss distributions, the tightest); or ``rdp`` (Renyi moments, looser: more noise or
            fewer steps), where a comparison with other work needs its number. The certificate states the same.
        stops: numbers of accesses of the stage without a share (or the last one), rising and below its count, at which the
            run may end at a smaller epsilon (`Plan`). So many times and the whole have equal parts of delta, so noise is a
            little larger than without.

    Raises:
        ValueError: for an impossible epsilon, delta, share, noise, count, max_rows or stops, more unknowns than can be
            solved for, stages for different numbers of records, deltas of the stages that leave nothing of the plan's, or
            an accountant that gives no upper bound, saying why.
        BudgetTooSmall: if a stage would need more noise than its records can outweigh; the message says what would fit.

    Example:
        >>> from lightning_dpgen.privacy import Poisson
        >>> plan = make_plan([StageSpec("mean", {"sum": 1.0}, 1, max_noise=1e3, share=0.1),
        ...                   StageSpec("training", {"gradient": 1.0}, 100, max_noise=100, sampler=Poisson(0.1))],
        ...                  epsilon=2.0, delta=1e-5)
        >>> 1.99 < plan.epsilon <= 2.0
        True
    """
    if delta != 0.0:
        check_delta(delta)
    check_accountant(accountant)
    max_rows = read_whole("max_rows", max_rows)
    if relation == REPLACE_ONE:
        _check_replaceable(specs, delta)
        if stops:
            raise ValueError(f"stops={tuple(stops)}: of a record replaced no stop is certified below the whole plan")
        return _replacing(make_plan(specs, epsilon=epsilon, delta=delta, max_rows=max_rows, accountant=accountant))
    if relation != ADD_OR_REMOVE_ONE:
        raise ValueError(f"relation={relation!r}: expected one of {', '.join(RELATIONS)}")
    # A multiplier is one of max_rows records at once, so its noise outweighs an access max_rows times as soon.
    specs = [replace(spec, max_noise=spec.max_noise / max_rows) for spec in specs]
    rest, n = next((spec.stage for spec in specs if spec.share is None), None), records_of(specs)
    plan = _without_units(specs, epsilon, delta / (len(stops) + 1), accountant)
    return replace(plan, delta=delta, max_rows=max_rows, flexible=rest, n=n, stops=tuple(stops))


def make_first_plan(
    spec: StageSpec,
    *,
    epsilon: float,
    delta: float,
    max_rows: SupportsIndex = 1,
    sampled: int | None = None,
    pure: bool = False,
) -> Plan:
    """Make the plan of one access, and of a reference for all that is planned from what it releases (`make_rest`).

    The reference follows from these arguments alone. With it the whole costs epsilon at delta, whatever is planned later.

    Args:
        spec: the spec of the access, with its noise.
        epsilon, delta: the budget of the whole run.
        sampled: the most sampled accesses that may follow; None if that is not known. Only a plan that knows it is also
            stated for a record replaced.
        pure: whether noise that is not Gaussian may follow. Where neither sampled accesses nor such noise can, the
            reference costs nothing; otherwise a twentieth of delta is set aside.

    Raises:
        ValueError: as `make_plan`; for a spec without noise.
        BudgetTooSmall: if the access leaves nothing.

    Example:
        >>> from lightning_dpgen.privacy import Poisson
        >>> count = StageSpec("count", {"n": 1.0}, 1, max_noise=1e3, share=0.01, noise=24.0)
        >>> first = make_first_plan(count, epsilon=2.0, delta=1e-5)
        >>> steps = StageSpec("training", {"gradient": 1.0}, 100, max_noise=100, sampler=Poisson(0.1))
        >>> make_rest(first, [count, steps]).epsilon == first.epsilon
        True
    """
    max_rows = read_whole("max_rows", max_rows)
    check_delta(delta)
    check_specs([spec], epsilon)
    if spec.noise is None or not spec.has_closed_form or spec.count is None:
        raise ValueError(f"stage {spec.stage!r}: expected full passes, so many and with so much Gaussian noise")
    failure = 0.0 if sampled == 0 and not pure else delta / _FAILURE_PART
    stage = Stage(spec.access(spec.noise), spec.count, 1.0 if spec.share is None else spec.share)
    bought = compose_events([event for _, event in stage_events([(stage.access, stage.count)])])
    set_aside = Reference(1.0, failure, after=1).event
    noises, delta_left = without_failures(dp_accounting.ComposedDpEvent([bought, set_aside]), delta)
    target = round_down(epsilon)
    shift = gaussian_shift(noises)
    assert shift is not None, "an access without other kinds of noise is one Gaussian, and so is the reference"
    # The squared shift that is left for the reference, whose own shift is 1 so far.
    squared = gaussian_mu(target, delta_left) ** 2 - (shift**2 - 1.0) if delta_left else 0.0
    if squared <= 0.0:
        raise BudgetTooSmall(f"stage {spec.stage!r} uses up epsilon={target:g} at delta={delta:g}: give it a smaller share")
    replaceable = not pure and sampled is not None and failure >= _REPLACEABLE * sampled
    # The factor makes up for the last digits of a root finder.
    reference = Reference((1.0 + 1e-9) / math.sqrt(squared), failure, after=1, replaceable=replaceable)
    return Plan((stage,), float(epsilon), delta, max_rows=max_rows, reference=reference, n=spec.n)


def make_rest(promise: Plan, specs: Sequence[StageSpec]) -> Plan:
    """Make the plan of a whole run whose first stages were promised, and have been made.

    Where a reference stands for the rest, its noise is solved for such that the reference dominates it. Where all stages
    were promised, they stay as they are. Without privacy there is nothing to be solved.

    Args:
        promise: the plan of `make_first_plan` or `make_plan`.
        specs: the specs of all stages, those that were made among them; shares are of the whole budget.

    Raises:
        ValueError: as `make_plan`; or if the specs are not those of what was promised.
        BudgetTooSmall: as `make_plan`.
    """
    done = len(promise.stages)
    if not promise.private:
        plan = make_plan(
            specs,
            epsilon=math.inf,
            delta=promise.delta,
            relation=promise.relation,
            max_rows=promise.max_rows,
            accountant=promise.accountant,
        )
        return replace(plan, stages=promise.stages + plan.stages[done:], n=records_of(specs, promise))
    specs = [replace(spec, max_noise=spec.max_noise / promise.max_rows) for spec in specs]
    # A reference leaves open how many stages follow.
    counted = len(specs) == done if promise.reference is None else len(specs) > done
    if not counted or not all(map(_keeps, promise.stages, specs)):
        raise ValueError(
            f"stages {[spec.stage for spec in specs]}: their accesses are not those that were promised before the first "
            "pass: keep the settings of accesses (sample_rate, count, noise_shares), or start a new run, whose cost adds "
            "to this one's"
        )
    if promise.reference is None:
        _check_kept(promise, specs)
        return replace(promise, n=records_of(specs, promise))
    shares, rest = shares_of(specs), specs[done:]
    check_specs(specs, promise.target_epsilon)
    if any(spec.fails for spec in rest):
        raise ValueError(
            "deltas or truncated lots of stages after the first pass: expected none, since no part of delta was set aside"
        )
    delta_left = without_failures(promise.event, promise.delta)[1]
    limit = ReferenceLimit(promise.reference)
    stages = solve_noise(rest, shares[done:], promise.target_epsilon, delta_left, limit)
    flexible = next((spec.stage for spec in rest if spec.share is None), None)
    return replace(promise, stages=promise.stages + stages, flexible=flexible, n=records_of(specs, promise))


def _keeps(stage: Stage, spec: StageSpec) -> bool:
    """Return whether a stage is one of this spec, whatever its noise."""
    return stage.draws_as(replace(spec, count=stage.count).make_stage(stage.access.multiplier)) and (
        spec.count is None or stage.count == spec.count
    )


def _check_kept(promise: Plan, specs: Sequence[StageSpec]) -> None:
    for stage, spec in zip(promise.stages, specs, strict=True):
        if spec.noise is None and stage.access.multiplier > spec.max_noise:
            raise BudgetTooSmall(
                f"stage {stage.name!r}: the noise that was promised before the first pass, of multiplier "
                f"{stage.access.multiplier:.3g}, outweighs all that about {spec.max_noise:,.0f} records behind a "
                "number can add up to"
            )


def _without_units(specs: Sequence[StageSpec], epsilon: float | None, delta: float, accountant: str) -> Plan:
    shares = shares_of(specs)
    check_specs(specs, epsilon)
    if not any(spec.fails for spec in specs):
        return _solved(specs, shares, epsilon, delta, accountant)
    # The delta that those of stages leave is the delta of all the noise, exactly.
    noise_delta = _delta_of_noise(specs, delta)
    plain = [replace(spec, deltas={}, sampler=spec.sampler.without_failures()) for spec in specs]
    plan = _solved(plain, shares, epsilon, noise_delta, accountant)
    stages = tuple(
        replace(stage, access=replace(stage.access, deltas=spec.deltas, sampler=spec.sampler))
        for stage, spec in zip(plan.stages, specs, strict=True)
    )
    return replace(plan, stages=stages, delta=delta)


def _delta_of_noise(specs: Sequence[StageSpec], delta: float) -> float:
    """Return the delta that is left of a plan's when those of its stages are taken off."""
    spending = [spec for spec in specs if spec.fails]
    for spec in spending:
        if spec.count is None:
            reason = f"deltas={dict(spec.deltas)}" if spec.deltas else "truncated lots"
            raise ValueError(f"stage {spec.stage!r}: {reason} need a count, since each access spends a part of delta")
    # The noise may be any: only the deltas matter here.
    delta_left = without_failures(event_of(spending, [1.0] * len(spending), delta), delta)[1] if delta else 0.0
    if not delta_left:
        for spec in spending:
            if spec.sampler.fails:
                raise ValueError(spec.sampler.explain_failures(spec.known_count, delta))
        named = {spec.stage: dict(spec.deltas) for spec in spending}
        raise ValueError(f"delta={delta:g} is used up by the deltas of stages, {named}: expected a sum well below it")
    return delta_left


def _solved(
    specs: Sequence[StageSpec], shares: Sequence[float], epsilon: float | None, delta: float, accountant: str
) -> Plan:
    if epsilon is not None and math.isinf(epsilon):
        return Plan(stages_of(specs, shares, [0.0] * len(specs)), math.inf, delta, accountant=accountant)
    if epsilon is None:
        multipliers = solve_beside_given(specs, shares, delta)
        plan = Plan(stages_of(specs, shares, multipliers), math.inf, delta, accountant=accountant)
        return replace(plan, target_epsilon=round_up(plan.epsilon))
    stages = solve_noise(specs, shares, epsilon, delta, EpsilonLimit(round_down(epsilon), delta, accountant))
    return Plan(stages, float(epsilon), delta, accountant=accountant)


def _check_replaceable(specs: Sequence[StageSpec], delta: float) -> None:
    for spec in specs:
        if spec.sample_rate < 1.0 or (delta and spec.kinds) or spec.fails:
            raise ValueError(
                f"stage {spec.stage!r}: a plan under {REPLACE_ONE} holds full passes, all of them pure at delta 0 or all "
                "of them Gaussian, without deltas"
            )


def _replacing(plan: Plan) -> Plan:
    """Return the plan that costs under replace-one what this one costs under add-or-remove-one.

    Pure multipliers are those of the relation of the plan, whichever it is. The accountant doubles the shift of a Gaussian
    when a record is replaced, so twice the multiplier costs the same.
    """

    def doubled(access: Access) -> Access:
        noises = {name: m * (2.0 if access.kind(name) == GAUSSIAN else 1.0) for name, m in access.multipliers.items()}
        return replace(access, multipliers=noises)

    stages = tuple(replace(stage, access=doubled(stage.access)) for stage in plan.stages)
    return replace(plan, stages=stages, relation=REPLACE_ONE)
