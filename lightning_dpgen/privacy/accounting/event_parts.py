"""The parts of an event tree: its leaves, its Gaussians joined into one, and its failures taken off delta."""

from __future__ import annotations

import math
from collections.abc import Iterator

import attrs
import dp_accounting
from scipy.stats import norm

from lightning_dpgen.privacy.accounting.correlated_events import CorrelatedGaussianDpEvent
from lightning_dpgen.privacy.accounting.delta_events import EpsilonDeltaDpEvent, left_of
from lightning_dpgen.privacy.accounting.gaussian_cost import check_delta
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE
from lightning_dpgen.privacy.accounting.private_selection import OneOfDpEvent

# The parts of an event tree, and how often each of them stands there.
Leaves = tuple[tuple[dp_accounting.DpEvent, int], ...]


def leaves_of(event: dp_accounting.DpEvent, count: int) -> Iterator[tuple[dp_accounting.DpEvent, int]]:
    if isinstance(event, dp_accounting.ComposedDpEvent):
        for part in event.events:
            yield from leaves_of(part, count)
    elif isinstance(event, dp_accounting.SelfComposedDpEvent):
        yield from leaves_of(event.event, count * event.count)
    elif isinstance(event, CorrelatedGaussianDpEvent):
        yield from leaves_of(event.standard, count)
    elif isinstance(event, dp_accounting.dp_event.RepeatAndSelectDpEvent):
        yield attrs.evolve(event, event=hashable(event.event)), count
    else:
        yield event, count


def _times(event: dp_accounting.DpEvent, count: int) -> dp_accounting.DpEvent:
    return event if count == 1 else dp_accounting.SelfComposedDpEvent(event, count)


def join_gaussians(event: dp_accounting.DpEvent) -> dp_accounting.DpEvent | None:
    """Join the unsampled Gaussians of an event into one, and count equal parts; None if the event is not private."""
    inverse_squares = 0.0
    rest: dict[dp_accounting.DpEvent, int] = {}
    for leaf, count in leaves_of(event, 1):
        if isinstance(leaf, dp_accounting.NonPrivateDpEvent):
            return None
        if isinstance(leaf, dp_accounting.GaussianDpEvent):
            inverse_squares += count * float(leaf.noise_multiplier) ** -2
        else:
            rest[leaf] = rest.get(leaf, 0) + count
    events = [_times(leaf, count) for leaf, count in rest.items()]
    if inverse_squares:
        events.append(dp_accounting.GaussianDpEvent(inverse_squares**-0.5))
    return dp_accounting.ComposedDpEvent(events)


def without_failures(
    event: dp_accounting.DpEvent, delta: float, relation: str = ADD_OR_REMOVE_ONE
) -> tuple[dp_accounting.DpEvent, float]:
    """Return an event without its failures, and the delta at which it has the epsilon of the whole (`left_of`).

    The delta is 0 where failures use up all of it: no epsilon is finite then.

    Raises:
        ValueError: if delta is outside (0, 1).
        Unaccountable: as `left_of`.
    """
    check_delta(delta)
    leaves = list(leaves_of(event, 1))
    failures = [(leaf, count) for leaf, count in leaves if isinstance(leaf, EpsilonDeltaDpEvent)]
    if not failures:
        return event, delta
    rest = [_times(leaf, count) for leaf, count in leaves if not isinstance(leaf, EpsilonDeltaDpEvent)]
    return dp_accounting.ComposedDpEvent(rest), left_of(delta, failures, relation)


def failure_probability(event: dp_accounting.DpEvent) -> float:
    """Return an upper bound of the probability that an event fails (`EpsilonDeltaDpEvent`): the sum over its failures.

    Example:
        >>> failure_probability(dp_accounting.SelfComposedDpEvent(EpsilonDeltaDpEvent(0.0, 1e-7), 3))
        3e-07
    """
    return math.fsum(count * leaf.delta for leaf, count in leaves_of(event, 1) if isinstance(leaf, EpsilonDeltaDpEvent))


def gaussian_shift(event: dp_accounting.DpEvent) -> float | None:
    """Return the shift of the one Gaussian that unsampled Gaussians are together; None if the event holds anything else.

    Example:
        >>> gaussian_shift(dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(2.0), 4))
        1.0
    """
    inverse_squares = 0.0
    for leaf, count in leaves_of(event, 1):
        if not isinstance(leaf, dp_accounting.GaussianDpEvent):
            return None
        inverse_squares += count * float(leaf.noise_multiplier) ** -2
    return math.sqrt(inverse_squares)


def shift_of_full_passes(event: dp_accounting.DpEvent) -> float | None:
    """Return the shift of a Gaussian that dominates unsampled Gaussian and Laplace noise; None if there is anything else.

    A Laplace noise of multiplier b counts as the Gaussian of the same total variation, which dominates it.

    Example:
        >>> parts = [dp_accounting.GaussianDpEvent(4.0), dp_accounting.LaplaceDpEvent(4.0)]
        >>> round(shift_of_full_passes(dp_accounting.ComposedDpEvent(parts)), 3)
        0.387
    """
    squares = 0.0
    for leaf, count in leaves_of(event, 1):
        if isinstance(leaf, dp_accounting.LaplaceDpEvent):
            shift = 2.0 * float(norm.isf(0.5 * math.exp(-0.5 / leaf.noise_multiplier)))
        elif isinstance(leaf, dp_accounting.GaussianDpEvent):
            shift = 1.0 / float(leaf.noise_multiplier)
        else:
            return None
        squares += count * shift**2
    return math.sqrt(squares)


def gaussian_history(event: dp_accounting.DpEvent) -> list[tuple[float, float, int]] | None:
    """Return the event as (noise multiplier, sampling rate, count), the history of an Opacus accountant.

    It is None for an event that holds anything but Gaussians.
    """
    history = []
    for leaf, count in leaves_of(event, 1):
        sampled = isinstance(leaf, dp_accounting.PoissonSampledDpEvent)
        noise = leaf.event if sampled else leaf
        if not isinstance(noise, dp_accounting.GaussianDpEvent):
            return None
        history.append((noise.noise_multiplier, leaf.sampling_probability if sampled else 1.0, count))
    return history


def hashable(event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    """Return the event with tuples in place of lists, for a cache."""
    if isinstance(event, dp_accounting.ComposedDpEvent | OneOfDpEvent):
        return attrs.evolve(event, events=tuple(map(hashable, event.events)))
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
        return attrs.evolve(event, event=hashable(event.event))
    return event
