"""Events that dp-accounting lacks, and the parts of an event tree: leaves, joined Gaussians, failures taken off delta."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import attrs
import dp_accounting
from scipy.stats import norm

from lightning_dpgen.privacy.accounting.epsilon_range import check_delta
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE, REPLACE_ONE, Unaccountable
from lightning_dpgen.privacy.accounting.private_selection import OneOfDpEvent
from lightning_dpgen.privacy.sampling.strategy import Strategy

# The parts of an event tree, and how often each of them stands there.
Leaves = tuple[tuple[dp_accounting.DpEvent, int], ...]
# If failures leave less than this part of delta, rounding would decide what is left.
_ROUNDING = 1e-9
# The smallest probability that a float and a normal quantile can still tell from 0.
SMALLEST_FAILURE = 1e-40
# Far more than rounding moves a sensitivity that is computed again, and far less than a difference that matters.
_SENSITIVITY_ROUNDING = 1e-9


@attrs.frozen
class CorrelatedGaussianDpEvent(dp_accounting.DpEvent):
    """All steps of a mechanism with correlated noise: they are one event, from the first step on.

    Args:
        noise_multiplier: the standard deviation of the independent noise over `sensitivity`.
        sampling_probability: the probability with which a record of a step's group takes part.
        sensitivity: that of the strategy; stated for its readers, and computed again by them.
        strategy: the matrix and the sampler.

    Raises:
        ValueError: for a sensitivity that is not the strategy's, or a probability that is none.

    Example:
        >>> noise = CorrelatedGaussianDpEvent.of(2.0, 0.1, Strategy(steps=20, period=4, coefficients=(1.0, 0.5)))
        >>> noise.standard
        SelfComposedDpEvent(event=PoissonSampledDpEvent(...), count=5)
    """

    noise_multiplier: float
    sampling_probability: float
    sensitivity: float
    strategy: Strategy

    def __attrs_post_init__(self) -> None:
        if not math.isclose(self.sensitivity, self.strategy.sensitivity, rel_tol=_SENSITIVITY_ROUNDING):
            raise ValueError(
                f"sensitivity={self.sensitivity!r}: a record moves this strategy by {self.strategy.sensitivity:.9g}"
            )
        if not 0.0 < self.sampling_probability <= 1.0:
            raise ValueError(f"sampling_probability={self.sampling_probability!r}: expected above 0, up to 1")

    @classmethod
    def of(cls, multiplier: float, probability: float, strategy: Strategy) -> CorrelatedGaussianDpEvent:
        """Return the event of a strategy, with its sensitivity."""
        return cls(multiplier, probability, strategy.sensitivity, strategy)

    @property
    def standard(self) -> dp_accounting.DpEvent:
        """The event of dp-accounting that costs as much (docs/guarantees/correlated_noise.md, "Correlated noise").

        That is a Poisson-sampled Gaussian for each round.
        """
        return self.after(self.strategy.steps)

    def after(self, steps: int) -> dp_accounting.DpEvent:
        """Return the event that bounds the Renyi moments of a beginning of so many steps, wherever that ends.

        It is `standard` for the rounds that have begun (docs/guarantees/several_releases.md, "Stopped runs").
        """
        noise = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        if self.sampling_probability < 1.0:
            noise = dp_accounting.PoissonSampledDpEvent(self.sampling_probability, noise)
        return dp_accounting.SelfComposedDpEvent(noise, -(-steps // self.strategy.period))


@attrs.frozen
class EpsilonDeltaDpEvent(dp_accounting.DpEvent):
    """A mechanism that is known to be (epsilon, delta)-private under add-or-remove-one, and nothing more.

    Name and fields are those that dp-accounting has for it after its release 0.6, which lacks it.

    Example:
        >>> EpsilonDeltaDpEvent(0.0, 1e-7)
        EpsilonDeltaDpEvent(epsilon=0.0, delta=1e-07)
    """

    epsilon: float
    delta: float


def remaining_delta(delta: float, failures: Iterable[tuple[dp_accounting.DpEvent, int]], relation: str) -> float:
    """Return the delta at which the rest of a composition must be accounted for, beside some (0, d)-private events.

    The worst (0, d)-private mechanism fails openly with probability d and says nothing otherwise. So whatever `rest` is,
    ``delta(eps) = f + (1 - f) delta_rest(eps)`` exactly, with ``1 - f`` the product of all ``1 - d``
    (docs/guarantees/sums.md, "Keys above a threshold"). A record replaced is one removed and one added: d twice.

    Args:
        delta: the delta of the whole composition.
        failures: each an `EpsilonDeltaDpEvent` of epsilon 0, and how often it stands there.
        relation: ``add_or_remove_one`` or ``replace_one``.

    Returns:
        ``(delta - f) / (1 - f)``; 0 if nothing is left, so that no epsilon is finite.

    Raises:
        Unaccountable: for an event with an epsilon of its own.

    Example:
        >>> round(remaining_delta(1e-5, [(EpsilonDeltaDpEvent(0.0, 1e-6), 2)], "add_or_remove_one") * 1e6, 4)
        8.0
    """
    logs, times = [], 2.0 if relation == REPLACE_ONE else 1.0
    for event, count in failures:
        if event.epsilon != 0.0:
            raise Unaccountable(f"{event}: only a mechanism that is private except for its delta can be accounted for")
        if times * event.delta >= 1.0:
            return 0.0
        logs.append(count * math.log1p(-times * event.delta))
    # Summed without rounding, so that no order of events makes a difference.
    log_sound = math.fsum(logs)
    remaining = (delta + math.expm1(log_sound)) / math.exp(log_sound)
    return remaining if remaining > _ROUNDING * delta else 0.0


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
    """Return an event without its failures, and the delta at which it has the epsilon of the whole (`remaining_delta`).

    The delta is 0 where failures use up all of it: no epsilon is finite then.

    Raises:
        ValueError: if delta is outside (0, 1).
        Unaccountable: as `remaining_delta`.
    """
    check_delta(delta)
    leaves = list(leaves_of(event, 1))
    failures = [(leaf, count) for leaf, count in leaves if isinstance(leaf, EpsilonDeltaDpEvent)]
    if not failures:
        return event, delta
    rest = [_times(leaf, count) for leaf, count in leaves if not isinstance(leaf, EpsilonDeltaDpEvent)]
    return dp_accounting.ComposedDpEvent(rest), remaining_delta(delta, failures, relation)


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
