"""Noise and steps of stages, from their shares of a budget and the limit that they must meet together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import dp_accounting

from lightning_dpgen.privacy.accounting.accountant import spent
from lightning_dpgen.privacy.accounting.epsilon_range import round_down
from lightning_dpgen.privacy.accounting.events import composed, stage_events
from lightning_dpgen.privacy.accounting.gaussian_cost import gaussian_epsilon, gaussian_mu
from lightning_dpgen.privacy.accounting.renyi import spent_by_rdp
from lightning_dpgen.privacy.errors import BudgetTooSmall
from lightning_dpgen.privacy.plan import Stage
from lightning_dpgen.privacy.planning.limits import Limit, root
from lightning_dpgen.privacy.planning.stage_spec import StageSpec

_MOST_STEPS = 10**7


def within(
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


def beside_given(specs: Sequence[StageSpec], shares: Sequence[float], delta: float) -> list[float]:
    """Solve for multipliers where noise is given and epsilon is not: shares are relative to what the given stages use."""
    given = [(d, share) for d, share in zip(specs, shares, strict=True) if d.noise is not None]
    event = event_of([d for d, _ in given], [d.noise for d, _ in given if d.noise is not None], delta)
    cost, share = spent(event, delta).epsilon, math.fsum(share for _, share in given)
    if not 0.0 < cost < math.inf:
        raise ValueError(f"the given noise costs epsilon={cost:g} at delta={delta:g}: nothing can be measured by it")
    if delta == 0.0:
        whole = cost / share
    else:
        whole = gaussian_epsilon(gaussian_mu(cost, delta) / math.sqrt(share), delta)
    return [_own_multiplier(d, s, whole, delta) for d, s in zip(specs, shares, strict=True)]


def stages_of(specs: Sequence[StageSpec], shares: Sequence[float], multipliers: Sequence[float]) -> tuple[Stage, ...]:
    """Return the stages of specs with these multipliers."""
    return tuple(spec.planned(m, share) for spec, share, m in zip(specs, shares, multipliers, strict=True))


def event_of(specs: Sequence[StageSpec], multipliers: Sequence[float], delta: float) -> dp_accounting.DpEvent:
    """Return the composition of the accesses of specs with these multipliers."""
    runs = [(spec.access(m), spec.known_count) for spec, m in zip(specs, multipliers, strict=True)]
    return composed([event for _, event in stage_events(runs, pure=delta == 0.0)])


def _own_multiplier(spec: StageSpec, share: float, epsilon: float, delta: float) -> float:
    """Return the multiplier with which a stage uses its share of the budget, seen alone."""
    if spec.noise is not None:
        return spec.noise
    if delta == 0.0:
        # Pure epsilon is a sum of inverse multipliers.
        return spent(event_of([spec], [1.0], delta), 0.0).epsilon / (share * epsilon)
    mu = math.sqrt(share) * gaussian_mu(epsilon, delta)
    if spec.closed:
        return math.sqrt(spec.known_count) / mu
    target = gaussian_epsilon(mu, delta)

    def by_rdp(m: float) -> float:
        return spent_by_rdp(event_of([spec], [m], delta), delta)

    def coarsely(m: float) -> float:
        return spent(event_of([spec], [m], delta), delta, interval=1e-3).epsilon

    # The factor that is solved for afterwards makes up for the coarseness.
    return root(coarsely, target, spec.max_noise, start=root(by_rdp, target, spec.max_noise))


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
    if spec.closed or delta == 0.0:
        return _own_multiplier(spec, share, epsilon, delta) <= spec.max_noise
    target = gaussian_epsilon(math.sqrt(share) * gaussian_mu(epsilon, delta), delta)
    if target == 0.0:
        return False
    event = event_of([spec], [spec.max_noise], delta)
    return spent_by_rdp(event, delta) <= target or spent(event, delta, interval=1e-3).epsilon <= target


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
