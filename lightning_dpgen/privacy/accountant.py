"""From an event to epsilon: the privacy-loss-distribution accountant, under either relation.

The event tree is stock dp-accounting; this file only chooses the discretisation and joins the unsampled Gaussians,
whose composition is again a Gaussian, before the numerical part.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import attrs
import dp_accounting
import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from scipy.optimize import brentq
from scipy.special import log_ndtr

from lightning_dpgen.privacy.cost import MOST_POINTS, affordable
from lightning_dpgen.privacy.delta_events import EpsilonDeltaDpEvent, left_of
from lightning_dpgen.privacy.pld import ADD_OR_REMOVE_ONE, RELATIONS, REPLACE_ONE, Unaccountable, loss_distribution
from lightning_dpgen.privacy.private_selection import OneOfDpEvent, selected_moments

# Measured (docs/PRIVACY.md, "Discretisation"): finer than 5e-6 rounding in the FFT inflates the tail; and for a delta
# below 1e-13 a composition, rounding is as large as the tail itself, in either direction.
INTERVALS = (*(1e-3 * 0.5**halvings for halvings in range(8)), 5e-6)
_SETTLED = 1e-3
_ROUNDING = 1e-13
# Beyond this nothing is protected, and a loss distribution would need gigabytes: reported as infinite.
LARGEST_EPSILON = 1000.0
# Below it nothing can be computed soundly.
SMALLEST_EPSILON = 1e-6
# Of an event tree: what it is made of, and how often.
_Leaves = tuple[tuple[dp_accounting.DpEvent, int], ...]
RDP_ORDERS = [*range(2, 33), 40, 48, 64, 96, 128, 192, 256, 512, 1024]
# For a search a few do, of which the largest take longest.
_FEW_ORDERS = [2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64]


@dataclass(frozen=True)
class Spent:
    """An epsilon, and how it was computed.

    Args:
        epsilon: upper bound on epsilon at the delta asked for; ``inf`` if the event is not private.
        interval: the discretisation interval of the privacy loss with which it was found; 0 where none was needed.
        method: ``pld`` (privacy loss distributions), ``closed form`` (one Gaussian, or pure Laplace noise), or ``rdp``
            (Renyi moments: looser, but sound at any delta).
    """

    epsilon: float
    interval: float
    method: str = "pld"


def spent(
    event: dp_accounting.DpEvent,
    delta: float,
    *,
    relation: str = ADD_OR_REMOVE_ONE,
    interval: float | None = None,
    beside: dp_accounting.DpEvent | None = None,
) -> Spent:
    """Epsilon of `event` at `delta`, by privacy loss distributions.

    The interval starts at 1e-3 and is halved while the answer moves by more than 0.1 %, never below 5e-6.
    Every answer on the way is an upper bound (pessimistic rounding of losses), but for rounding in the FFT, which is small
    where delta is not; so the smallest is kept. One Gaussian, and any number
    of them, has a closed form. Failures (`EpsilonDeltaDpEvent`) are taken off delta, exactly. At delta = 0 epsilon is the
    sum of the inverse multipliers, exactly. Where delta is so small that rounding of the numerical composition could hide
    it, Renyi moments answer instead.

    Args:
        event: an event tree. Multipliers of Gaussians are those of add-or-remove-one, for either relation.
        delta: in (0, 1); or 0, for a tree of Laplace events alone, whose multipliers are those of `relation`.
        relation: ``add_or_remove_one`` or ``replace_one``.
        interval: use this discretisation alone (quick looks); None applies the rule.
        beside: the composition of which `event` is a stage, if accounts of all stages are made: the rule takes no interval
            at which these are too dear together.

    Raises:
        ValueError: if delta is outside [0, 1), or 0 for an event that is not pure, or the relation is unknown.
        Unaccountable: if no sound account is known under this relation.

    Example:
        >>> round(spent(dp_accounting.GaussianDpEvent(1.0), 1e-5).epsilon, 2)
        4.38
        >>> spent(dp_accounting.LaplaceDpEvent(2.0), 0.0).epsilon
        0.5
    """
    if relation not in RELATIONS:
        raise ValueError(f"relation={relation!r}: expected one of {', '.join(RELATIONS)}")
    if delta == 0.0:
        return Spent(_pure(event), 0.0, "closed form")
    event, delta = without_failures(event, delta, relation)
    flat = _join_gaussians(event)
    if flat is None or delta == 0.0:
        return Spent(math.inf, 0.0)
    leaves = tuple(_leaves(flat, 1))
    if not leaves:
        return Spent(0.0, 0.0, "closed form")
    if [type(leaf) for leaf, _ in leaves] == [dp_accounting.GaussianDpEvent]:
        shift = 2.0 if relation == REPLACE_ONE else 1.0
        epsilon = gaussian_epsilon(shift / leaves[0][0].noise_multiplier, delta)
        return Spent(epsilon if epsilon <= LARGEST_EPSILON else math.inf, 0.0, "closed form")
    if any(isinstance(leaf, dp_accounting.dp_event.RepeatAndSelectDpEvent) for leaf, _ in leaves):
        if relation == REPLACE_ONE:
            raise Unaccountable("the best of several trials has Renyi moments alone, of a record added or removed")
        epsilon = _by_rdp(leaves, delta, quick=False)
        return Spent(epsilon if epsilon <= LARGEST_EPSILON else math.inf, 0.0, "rdp")
    # Replacing is a removal and an addition, so what is too dear under one relation is so under both.
    bound = _by_rdp(leaves, delta)
    if bound > LARGEST_EPSILON:
        return Spent(math.inf, 0.0)
    if delta < _ROUNDING * sum(count for _, count in leaves):
        if relation == REPLACE_ONE:
            raise Unaccountable(f"delta={delta:g} is too small for a numerical account of replacing a record")
        return Spent(_by_rdp(leaves, delta, quick=False), 0.0, "rdp")
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


def intervals_for(event: dp_accounting.DpEvent, bound: float) -> Iterator[float]:
    """The intervals that an account may take, coarsest first.

    Where a finer one would be too dear to verify, the coarser one answers: it gives an upper bound, too.

    Args:
        event: of whose parts accounts are made.
        bound: of an epsilon, by Renyi moments.

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


def spent_by_rdp(event: dp_accounting.DpEvent, delta: float) -> float:
    """Epsilon by Renyi moments: looser and far quicker, for brackets and searches."""
    event, delta = without_failures(event, delta)
    flat = _join_gaussians(event)
    return math.inf if flat is None or delta == 0.0 else _by_rdp(tuple(_leaves(flat, 1)), delta)


def renyi_moments(event: dp_accounting.DpEvent, orders: Sequence[int]) -> np.ndarray:
    """(orders,) Renyi moments of an event under add-or-remove-one, its failures left out; infinite if it is not private.

    Example:
        >>> renyi_moments(dp_accounting.GaussianDpEvent(1.0), [2, 4]).tolist()
        [1.0, 2.0]
    """
    flat = _join_gaussians(without_failures(event, 0.5)[0])
    if flat is None:
        return np.full(len(orders), math.inf)
    return sum((count * _moments(leaf, tuple(orders)) for leaf, count in _leaves(flat, 1)), np.zeros(len(orders)))


def failure_probability(event: dp_accounting.DpEvent) -> float:
    """The probability that an event fails (`EpsilonDeltaDpEvent`), at most: the sum over all of its failures.

    Example:
        >>> failure_probability(dp_accounting.SelfComposedDpEvent(EpsilonDeltaDpEvent(0.0, 1e-7), 3))
        3e-07
    """
    return math.fsum(count * leaf.delta for leaf, count in _leaves(event, 1) if isinstance(leaf, EpsilonDeltaDpEvent))


def pure_moments(epsilon: float, orders: Sequence[int]) -> np.ndarray:
    """(orders,) the largest Renyi moments of an `epsilon`-private mechanism: those of randomised response.

    Example:
        >>> pure_moments(1.0, [2, 1024]).round(3).tolist()
        [0.735, 1.0]
    """
    a = np.asarray(orders, dtype=float)
    return (np.logaddexp(a * epsilon, (1.0 - a) * epsilon) - np.logaddexp(0.0, epsilon)) / (a - 1.0)


def profile(
    event: dp_accounting.DpEvent, epsilons: np.ndarray, least: float, interval: float, relation: str = ADD_OR_REMOVE_ONE
) -> np.ndarray:
    """Upper bounds of delta at each of some epsilons: the privacy profile, in both directions.

    Args:
        event: an event tree without failures.
        epsilons: (n,) from 0, ascending.
        least: the smallest delta that has to be told from 0. Where rounding of the numerical composition could hide it,
            room for rounding is added, and Renyi moments bound the tail.
        interval: of the discretisation.
        relation: under which.

    Returns:
        (n,) each at most 1.

    Raises:
        Unaccountable: if no sound account is known under this relation.

    Example:
        >>> profile(dp_accounting.GaussianDpEvent(1.0), np.array([0.0, 1.0]), 1e-6, 1e-3).round(3).tolist()
        [0.383, 0.127]
    """
    flat = _join_gaussians(event)
    if flat is None:
        return np.ones(len(epsilons))
    leaves = tuple(_leaves(flat, 1))
    composition = _composition(leaves, interval, relation)
    # One by one: for a list of them dp-accounting goes over all losses in Python.
    deltas = np.array([composition.get_delta_for_epsilon(epsilon) for epsilon in epsilons.tolist()])
    rounding = _ROUNDING * sum(count for _, count in leaves)
    if least < rounding:
        deltas = np.maximum(deltas, 0.0) + rounding
        if relation == ADD_OR_REMOVE_ONE:
            deltas = np.minimum(deltas, _profile_by_rdp(leaves, epsilons))
    return np.clip(deltas, 0.0, 1.0)


def gaussian_shift(event: dp_accounting.DpEvent) -> float | None:
    """The shift of the one Gaussian that unsampled Gaussians are together; None if the event holds anything else.

    Example:
        >>> gaussian_shift(dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(2.0), 4))
        1.0
    """
    inverse_squares = 0.0
    for leaf, count in _leaves(event, 1):
        if not isinstance(leaf, dp_accounting.GaussianDpEvent):
            return None
        inverse_squares += count * float(leaf.noise_multiplier) ** -2
    return math.sqrt(inverse_squares)


def converted(order: int, delta: float) -> float:
    """What a Renyi moment of this order lacks to be an epsilon (Canonne, Kamath and Steinke 2020, Proposition 12)."""
    return math.log1p(-1.0 / order) - math.log(delta * order) / (order - 1)


def without_failures(
    event: dp_accounting.DpEvent, delta: float, relation: str = ADD_OR_REMOVE_ONE
) -> tuple[dp_accounting.DpEvent, float]:
    """The same event without its failures, and the delta at which it has the epsilon of the whole (`failures.left_of`).

    The delta is 0 where failures use up all of it: no epsilon is finite then.

    Raises:
        ValueError: if delta is outside (0, 1).
        Unaccountable: as `left_of`.
    """
    check_delta(delta)
    leaves = list(_leaves(event, 1))
    failures = [(leaf, count) for leaf, count in leaves if isinstance(leaf, EpsilonDeltaDpEvent)]
    if not failures:
        return event, delta
    rest = [
        leaf if count == 1 else dp_accounting.SelfComposedDpEvent(leaf, count)
        for leaf, count in leaves
        if not isinstance(leaf, EpsilonDeltaDpEvent)
    ]
    return dp_accounting.ComposedDpEvent(rest), left_of(delta, failures, relation)


def gaussian_history(event: dp_accounting.DpEvent) -> list[tuple[float, float, int]] | None:
    """The event as (noise multiplier, sampling rate, count): what an Opacus accountant takes as its history.

    None if it holds anything but Gaussians.
    """
    history = []
    for leaf, count in _leaves(event, 1):
        sampled = isinstance(leaf, dp_accounting.PoissonSampledDpEvent)
        noise = leaf.event if sampled else leaf
        if not isinstance(noise, dp_accounting.GaussianDpEvent):
            return None
        history.append((noise.noise_multiplier, leaf.sampling_probability if sampled else 1.0, count))
    return history


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The shift ``mu`` (1 over the multiplier) of the one Gaussian that is exactly (epsilon, delta)-private.

    Balle and Wang 2018, Theorem 8: ``delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)``.

    Example:
        >>> round(1 / gaussian_mu(1.0, 1e-5), 2)
        3.73
    """
    check_delta(delta)
    if math.isinf(epsilon):
        return math.inf
    # The shift is below eps for small eps and near sqrt(2 eps) above, but for a delta near 1.
    high = 10.0 + 2.0 * math.sqrt(2.0 * epsilon)
    while _log_delta(high, epsilon) < math.log(delta):
        high *= 2.0
    return brentq(lambda mu: _log_delta(mu, epsilon) - math.log(delta), 1e-6 * epsilon, high, xtol=1e-12)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon for which one Gaussian of shift ``mu`` is (epsilon, delta)-private; see `gaussian_mu`.

    Example:
        >>> round(gaussian_epsilon(1.0, 1e-5), 2)
        4.38
    """
    check_delta(delta)
    if _log_delta(mu, 0.0) <= math.log(delta):
        return 0.0
    # The loss is N(mu^2/2, mu^2), so its tail beyond this is below any delta that a float holds.
    high = mu * mu / 2 + 40.0 * mu
    return brentq(lambda epsilon: _log_delta(mu, epsilon) - math.log(delta), 0.0, high, xtol=1e-12, rtol=1e-12)


def _log_delta(mu: float, epsilon: float) -> float:
    """log delta of a Gaussian shift; all in logarithms, so that e^eps does not overflow."""
    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return first + math.log(-math.expm1(min(second - first, -1e-300)))


def check_delta(delta: float) -> None:
    """Raise ValueError unless 0 < delta < 1."""
    if not (isinstance(delta, (int, float)) and 0.0 < delta < 1.0):
        raise ValueError(f"delta={delta}: expected a number between 0 and 1")


def check_epsilon(epsilon: float) -> None:
    """Raise ValueError unless a budget of this epsilon can be planned for."""
    if not (isinstance(epsilon, (int, float)) and SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON):
        raise ValueError(f"epsilon={epsilon}: expected a number from {SMALLEST_EPSILON:g} to {LARGEST_EPSILON:g}")


def round_up(epsilon: float, digits: int = 6) -> float:
    """`epsilon` rounded up to `digits` significant digits, so that a printed number is never too small."""
    return _round(epsilon, digits, math.ceil)


def round_down(epsilon: float, digits: int = 6) -> float:
    """`epsilon` rounded down to `digits` significant digits: the target that a rounded-up answer must meet."""
    return _round(epsilon, digits, math.floor)


def _round(value: float, digits: int, direction) -> float:
    if not math.isfinite(value) or value <= 0.0:
        return value
    places = digits - 1 - math.floor(math.log10(value))
    # A value that already has so few digits must stay: 1.74 * 1e5 is 174000.00000000003 in floating point.
    nearest = round(value, places)
    if math.isclose(value, nearest, rel_tol=1e-14):
        return nearest
    return round(direction(value * 10.0**places) / 10.0**places, places)


# Plan, certificate and verification ask for the same numbers, and so does the next run with these settings.
@functools.lru_cache(maxsize=4096)
def _by_rdp(leaves: _Leaves, delta: float, quick: bool = True) -> float:
    # Whole orders only: the fractional ones fail to converge for large lots and add nothing to a bracket.
    orders = _FEW_ORDERS if quick else RDP_ORDERS
    moments = sum((count * _moments(leaf, tuple(orders)) for leaf, count in leaves), np.zeros(len(orders)))
    epsilon, order = compute_epsilon(orders, moments, delta)
    # A small epsilon needs large orders.
    return _by_rdp(leaves, delta, quick=False) if quick and order == _FEW_ORDERS[-1] else float(epsilon)


def _profile_by_rdp(leaves: _Leaves, epsilons: np.ndarray) -> np.ndarray:
    """(n,) delta at each epsilon by the best of the orders (Canonne, Kamath and Steinke 2020, Proposition 12)."""
    orders = np.array(RDP_ORDERS, dtype=float)
    moments = sum((count * _moments(leaf, tuple(RDP_ORDERS)) for leaf, count in leaves), np.zeros(len(orders)))
    logs = (orders - 1.0) * (moments + np.log1p(-1.0 / orders) - epsilons[:, None]) - np.log(orders)
    return np.exp(np.minimum(logs.min(axis=1), 0.0))


@functools.lru_cache(maxsize=4096)
def _moments(event: dp_accounting.DpEvent, orders: tuple[int, ...]) -> np.ndarray:
    """(orders,) Renyi moments of an event."""
    if isinstance(event, OneOfDpEvent):
        return np.max([_moments(one, orders) for one in event.events], axis=0)
    if isinstance(event, dp_accounting.dp_event.RepeatAndSelectDpEvent):
        return selected_moments(_moments(event.event, orders), orders, event.mean, event.shape)
    return RdpAccountant(orders=list(orders)).compose(event).rdp


@functools.lru_cache(maxsize=4096)
def _by_pld(leaves: _Leaves, delta: float, interval: float, relation: str) -> float:
    return float(_composition(leaves, interval, relation).get_epsilon_for_delta(delta))


@functools.lru_cache(maxsize=4)  # asked for at several deltas in a row
def _composition(leaves: _Leaves, interval: float, relation: str) -> pld.PrivacyLossDistribution:
    total = pld.identity(value_discretization_interval=interval)
    for leaf, count in leaves:
        total = total.compose(loss_distribution(leaf, interval, relation).self_compose(count))
    return total


def _pure(event: dp_accounting.DpEvent) -> float:
    total = 0.0
    for leaf, count in _leaves(event, 1):
        if isinstance(leaf, dp_accounting.NonPrivateDpEvent):
            return math.inf
        if not isinstance(leaf, dp_accounting.LaplaceDpEvent):
            raise ValueError(f"delta=0 with a {type(leaf).__name__}: only Laplace noise is pure; expected delta above 0")
        total += count / float(leaf.noise_multiplier)
    return total


def _join_gaussians(event: dp_accounting.DpEvent) -> dp_accounting.DpEvent | None:
    """The same event with its unsampled Gaussians joined into one, and equal ones counted; None if it is not private."""
    inverse_squares = 0.0
    rest: dict[dp_accounting.DpEvent, int] = {}
    for leaf, count in _leaves(event, 1):
        if isinstance(leaf, dp_accounting.NonPrivateDpEvent):
            return None
        if isinstance(leaf, dp_accounting.GaussianDpEvent):
            inverse_squares += count * float(leaf.noise_multiplier) ** -2
        else:
            rest[leaf] = rest.get(leaf, 0) + count
    events = [leaf if count == 1 else dp_accounting.SelfComposedDpEvent(leaf, count) for leaf, count in rest.items()]
    if inverse_squares:
        events.append(dp_accounting.GaussianDpEvent(inverse_squares**-0.5))
    return dp_accounting.ComposedDpEvent(events)


def _leaves(event: dp_accounting.DpEvent, count: int):
    if isinstance(event, dp_accounting.ComposedDpEvent):
        for part in event.events:
            yield from _leaves(part, count)
    elif isinstance(event, dp_accounting.SelfComposedDpEvent):
        yield from _leaves(event.event, count * event.count)
    elif isinstance(event, dp_accounting.dp_event.RepeatAndSelectDpEvent):
        yield attrs.evolve(event, event=hashable(event.event)), count
    else:
        yield event, count


def hashable(event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    """The same with tuples where there are lists, for a cache."""
    if isinstance(event, dp_accounting.ComposedDpEvent | OneOfDpEvent):
        return attrs.evolve(event, events=tuple(map(hashable, event.events)))
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
        return attrs.evolve(event, event=hashable(event.event))
    return event
