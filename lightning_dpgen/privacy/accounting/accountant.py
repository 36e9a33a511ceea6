"""From an event to epsilon: the privacy-loss-distribution accountant, under either relation.

The event tree is stock dp-accounting; this file chooses the discretisation, and bounds the time that an account takes.
Unsampled Gaussians are joined before the numerical part (`event_parts`), since their composition is again a Gaussian.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import dp_accounting
import numpy as np
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

from lightning_dpgen.privacy.accounting.epsilon_range import LARGEST_EPSILON, PLD, RDP, check_accountant, gaussian_epsilon
from lightning_dpgen.privacy.accounting.event_parts import (
    CorrelatedGaussianDpEvent,
    Leaves,
    join_gaussians,
    leaves_of,
    without_failures,
)
from lightning_dpgen.privacy.accounting.pld import (
    ADD_OR_REMOVE_ONE,
    RELATIONS,
    REPLACE_ONE,
    Unaccountable,
    epsilon_at,
    in_arrays,
    loss_distribution,
)
from lightning_dpgen.privacy.accounting.renyi import epsilon_by_rdp, profile_by_rdp

# Measured (docs/guarantees/accounting.md, "Discretisation"): finer than 5e-6 rounding in the FFT inflates the tail; and for
# a delta below 1e-13 a composition, rounding is as large as the tail itself, in either direction.
INTERVALS = (*(1e-3 * 0.5**halvings for halvings in range(8)), 5e-6)
_SETTLED = 1e-3
_ROUNDING = 1e-13
# Points of loss distributions (docs/guarantees/limits.md, "What is read from others"): five microseconds each, all told.
MOST_POINTS = 1 << 20
# The fixed cost of a noise in points: its Renyi moments, and the fixed part of each composition.
_EACH = 8000
# The cost of a selection, and of each noise in its trials: these have Renyi moments alone.
_OF_TRIAL = 2000


def affordable(event: dp_accounting.DpEvent, interval: float) -> bool:
    """Return whether an account at this interval, and those of all stages alone, take less than about ten seconds.

    Unsampled Gaussians are joined in closed form and cost nothing, however many there are; equal noises of a stage are one.

    Args:
        event: the composition of the events of stages, or the event of the only one.

    Example:
        >>> lot = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
        >>> stage = dp_accounting.SelfComposedDpEvent(lot, 10**6)
        >>> affordable(stage, 1e-3), affordable(dp_accounting.ComposedDpEvent([stage] * 1000), 1e-3)
        (True, False)
    """
    stages = event.events if isinstance(event, dp_accounting.ComposedDpEvent) else [event]
    budget: float = MOST_POINTS
    for stage in stages:
        for leaf in set(_noises(stage)):
            budget -= _points(leaf, interval)
            if budget < 0:
                return False
    return True


def _noises(event: dp_accounting.DpEvent) -> Iterator[tuple[str, float, float]]:
    """Yield name, multiplier and rate of each noise that needs a distribution or moments of its own."""
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
        yield from _noises(event.event)
    elif isinstance(event, CorrelatedGaussianDpEvent):
        yield from _noises(event.standard)
    elif isinstance(event, dp_event.RepeatAndSelectDpEvent):
        yield "trial", event.mean, event.shape
        for _, multiplier, rate in _noises(event.event):
            yield "trial", multiplier, rate
    elif isinstance(event, dp_accounting.PoissonSampledDpEvent):
        yield "gaussian", event.event.noise_multiplier, event.sampling_probability
    elif isinstance(event, dp_accounting.LaplaceDpEvent):
        yield "laplace", event.noise_multiplier, 1.0
    else:
        for part in getattr(event, "events", ()):
            yield from _noises(part)


@functools.lru_cache(maxsize=4096)
def _points(noise: tuple[str, float, float], interval: float) -> float:
    """Return how many points the distributions of a noise have, for a record added and for one removed."""
    name, multiplier, rate = noise
    if name == "trial":
        return _OF_TRIAL
    if name == "laplace":
        # Losses from -1/m to 1/m.
        return _EACH + 2.0 / (multiplier * interval)
    points = float(_EACH)
    for adjacency in (AdjacencyType.ADD, AdjacencyType.REMOVE):
        bounds = GaussianPrivacyLoss(multiplier, sampling_prob=rate, adjacency_type=adjacency).connect_dots_bounds()
        points += (bounds.epsilon_upper - bounds.epsilon_lower) / interval
    return points


@dataclass(frozen=True)
class Spent:
    """An epsilon, with the way in which it was computed.

    Args:
        epsilon: an upper bound on epsilon at the given delta; ``inf`` if the event is not private.
        interval: the discretisation interval of the privacy loss with which it was found; 0 where none was needed.
        method: ``pld`` (privacy loss distributions), ``closed form`` (one Gaussian, or pure Laplace noise), or ``rdp``
            (Renyi moments: looser, but sound at any delta; asked for by name, or where delta is too small for the first).
    """

    epsilon: float
    interval: float
    method: str = "pld"


def compute_epsilon(
    event: dp_accounting.DpEvent,
    delta: float,
    *,
    relation: str = ADD_OR_REMOVE_ONE,
    interval: float | None = None,
    beside: dp_accounting.DpEvent | None = None,
    accountant: str = PLD,
) -> Spent:
    """Compute epsilon of `event` at `delta`, by privacy loss distributions or, if these are asked for, by Renyi moments.

    The interval starts at 1e-3 and is halved while the answer moves by more than 0.1 %, never below 5e-6. Every answer on
    the way is an upper bound (pessimistic rounding of losses), but for rounding in the FFT, which is small where delta is
    not; so the smallest is kept. Gaussians, one or any number, have a closed form. Failures (`EpsilonDeltaDpEvent`) are
    taken off delta, exactly. At delta = 0 epsilon is the sum of the inverse multipliers, exactly. Where delta is so small
    that rounding of the numerical composition could hide it, Renyi moments answer instead.

    Args:
        event: an event tree. Multipliers of Gaussians are those of add-or-remove-one, for either relation.
        delta: in (0, 1); or 0, for a tree of Laplace events alone, whose multipliers are those of `relation`.
        relation: ``add_or_remove_one`` or ``replace_one``.
        interval: the only discretisation interval to use, for quick looks; None applies the rule.
        beside: the composition of which `event` is a stage, if accounts of all stages are made: the rule takes no interval
            at which these are too dear together.
        accountant: ``pld``; or ``rdp`` for Renyi moments alone, which are looser, at a delta above 0.

    Raises:
        ValueError: if delta is outside [0, 1), or 0 for an event that is not pure or by ``rdp``, or the relation or the
            accountant is unknown.
        Unaccountable: if no sound account is known under this relation.

    Example:
        >>> round(compute_epsilon(dp_accounting.GaussianDpEvent(1.0), 1e-5).epsilon, 2)
        4.38
        >>> compute_epsilon(dp_accounting.LaplaceDpEvent(2.0), 0.0).epsilon
        0.5
    """
    if relation not in RELATIONS:
        raise ValueError(f"relation={relation!r}: expected one of {', '.join(RELATIONS)}")
    check_accountant(accountant)
    if accountant == RDP:
        return _spent_by_moments(event, delta, relation)
    if delta == 0.0:
        return Spent(_pure(event), 0.0, "closed form")
    event, delta = without_failures(event, delta, relation)
    flat = join_gaussians(event)
    if flat is None or delta == 0.0:
        return Spent(math.inf, 0.0)
    leaves = tuple(leaves_of(flat, 1))
    if not leaves:
        return Spent(0.0, 0.0, "closed form")
    if [type(leaf) for leaf, _ in leaves] == [dp_accounting.GaussianDpEvent]:
        shift = 2.0 if relation == REPLACE_ONE else 1.0
        epsilon = gaussian_epsilon(shift / leaves[0][0].noise_multiplier, delta)
        return Spent(epsilon if epsilon <= LARGEST_EPSILON else math.inf, 0.0, "closed form")
    if any(isinstance(leaf, dp_accounting.dp_event.RepeatAndSelectDpEvent) for leaf, _ in leaves):
        if relation == REPLACE_ONE:
            raise Unaccountable("the best of several trials has Renyi moments alone, of a record added or removed")
        epsilon = epsilon_by_rdp(leaves, delta, quick=False)
        return Spent(epsilon if epsilon <= LARGEST_EPSILON else math.inf, 0.0, "rdp")
    # Replacing is a removal and an addition, so an event that is too dear under one relation is so under both.
    bound = epsilon_by_rdp(leaves, delta)
    if bound > LARGEST_EPSILON:
        return Spent(math.inf, 0.0)
    if delta < _ROUNDING * sum(count for _, count in leaves):
        if relation == REPLACE_ONE:
            raise Unaccountable(f"delta={delta:g} is too small for a numerical account of replacing a record")
        return Spent(epsilon_by_rdp(leaves, delta, quick=False), 0.0, "rdp")
    if interval is not None:
        return Spent(_by_pld(leaves, delta, interval, relation), interval)
    best = Spent(math.inf, INTERVALS[0])
    for finer in intervals_for(event if beside is None else beside, bound):
        epsilon = _by_pld(leaves, delta, finer, relation)
        if epsilon > best.epsilon:
            return best
        moved = (best.epsilon - epsilon) / max(epsilon, 1e-12)
        best = Spent(epsilon, finer)
        if moved <= _SETTLED:
            return best
    return best


def _spent_by_moments(event: dp_accounting.DpEvent, delta: float, relation: str) -> Spent:
    if delta == 0.0:
        raise ValueError(
            f"accountant={RDP!r}: Renyi moments give no epsilon at delta=0, where epsilons add up: take {PLD!r}"
        )
    event, delta = without_failures(event, delta, relation)
    flat = join_gaussians(event)
    if flat is None or delta == 0.0:
        return Spent(math.inf, 0.0)
    leaves = tuple(leaves_of(flat, 1))
    if relation == REPLACE_ONE:
        if any(type(leaf) is not dp_accounting.GaussianDpEvent for leaf, _ in leaves):
            raise Unaccountable(
                f"accountant={RDP!r}: of a record replaced, Renyi moments are proved here for full passes with Gaussian "
                f"noise alone: take {PLD!r}"
            )
        leaves = tuple((dp_accounting.GaussianDpEvent(leaf.noise_multiplier / 2.0), count) for leaf, count in leaves)
    epsilon = epsilon_by_rdp(leaves, delta, quick=False) if leaves else 0.0
    return Spent(epsilon if epsilon <= LARGEST_EPSILON else math.inf, 0.0, "rdp")


def intervals_for(event: dp_accounting.DpEvent, bound: float) -> Iterator[float]:
    """Yield the intervals that an account may take, coarsest first.

    Where a finer one would be too dear to verify, the coarser one answers: it gives an upper bound, too.

    Args:
        bound: an upper bound of epsilon, by Renyi moments.

    Example:
        >>> lot = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0))
        >>> list(intervals_for(lot, bound=300.0))
        [0.001]
    """
    yield INTERVALS[0]
    for finer in INTERVALS[1:]:
        if not affordable(event, finer) or bound > 0.5 * MOST_POINTS * finer:
            return
        yield finer


def profile(
    event: dp_accounting.DpEvent, epsilons: np.ndarray, least: float, interval: float, relation: str = ADD_OR_REMOVE_ONE
) -> np.ndarray:
    """Compute upper bounds of delta at each of some epsilons: the privacy profile, in both directions.

    Args:
        event: an event tree without failures.
        epsilons: (n,) from 0, ascending.
        least: the smallest delta that has to be told from 0. Where rounding of the numerical composition could hide it,
            room for rounding is added, and Renyi moments bound the tail.
        relation: ``add_or_remove_one`` or ``replace_one``.

    Returns:
        (n,) each at most 1.

    Raises:
        Unaccountable: if no sound account is known under this relation.

    Example:
        >>> profile(dp_accounting.GaussianDpEvent(1.0), np.array([0.0, 1.0]), 1e-6, 1e-3).round(3).tolist()
        [0.383, 0.127]
    """
    flat = join_gaussians(event)
    if flat is None:
        return np.ones(len(epsilons))
    leaves = tuple(leaves_of(flat, 1))
    composition = _composition(leaves, interval, relation)
    # Asked one by one, since for a list of epsilons dp-accounting goes over all losses in Python.
    deltas = np.array([composition.get_delta_for_epsilon(epsilon) for epsilon in epsilons.tolist()])
    rounding = _ROUNDING * sum(count for _, count in leaves)
    if least < rounding:
        deltas = np.maximum(deltas, 0.0) + rounding
        if relation == ADD_OR_REMOVE_ONE:
            deltas = np.minimum(deltas, profile_by_rdp(leaves, epsilons))
    return np.clip(deltas, 0.0, 1.0)


@functools.lru_cache(maxsize=4096)
def _by_pld(leaves: Leaves, delta: float, interval: float, relation: str) -> float:
    return epsilon_at(_composition(leaves, interval, relation), delta)


@functools.lru_cache(maxsize=4)  # asked for at several deltas in a row
def _composition(leaves: Leaves, interval: float, relation: str) -> pld.PrivacyLossDistribution:
    parts = [in_arrays(loss_distribution(leaf, interval, relation).self_compose(count)) for leaf, count in leaves]
    return functools.reduce(pld.PrivacyLossDistribution.compose, parts or [pld.identity(interval)])


def _pure(event: dp_accounting.DpEvent) -> float:
    total = 0.0
    for leaf, count in leaves_of(event, 1):
        if isinstance(leaf, dp_accounting.NonPrivateDpEvent):
            return math.inf
        if not isinstance(leaf, dp_accounting.LaplaceDpEvent):
            raise ValueError(f"delta=0 with a {type(leaf).__name__}: only Laplace noise is pure; expected delta above 0")
        total += count / float(leaf.noise_multiplier)
    return total
