"""The work that an account of an event tree takes, bounded where a plan is made so that others can verify the plan."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import dp_accounting
from dp_accounting import dp_event
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

from lightning_dpgen.privacy.accounting.correlated_events import CorrelatedGaussianDpEvent

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
    left: float = MOST_POINTS
    for stage in stages:
        for leaf in set(_noises(stage)):
            left -= _points(leaf, interval)
            if left < 0:
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
