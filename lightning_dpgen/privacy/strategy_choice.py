"""Correlated noise as it is asked for, and the strategy that follows from the sampler and public numbers."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from lightning_dpgen.privacy.correlated_events import CorrelatedGaussianDpEvent
from lightning_dpgen.privacy.epsilon_range import check_epsilon
from lightning_dpgen.privacy.gaussian_cost import check_delta
from lightning_dpgen.privacy.limits import root
from lightning_dpgen.privacy.number_arguments import check_number, read_whole
from lightning_dpgen.privacy.renyi import spent_by_rdp
from lightning_dpgen.privacy.samplers import POISSON, TRUNCATED, check_sampler
from lightning_dpgen.privacy.strategy import CYCLIC, FIXED_ORDER, MOST_BANDS, MOST_BUFFERS, Strategy
from lightning_dpgen.privacy.strategy_search import banded_strategy, buffered_strategy, prefix_error

# Most bands that are chosen without being asked for: each is as large as the parameters.
_MOST_CHOSEN = 64
# More bands are worth their memory if they lower the error by this part.
_WORTHWHILE = 0.01
# The epsilon for which a strategy is chosen where the budget has none.
_WITHOUT_BUDGET = 8.0
_LARGEST_MULTIPLIER = 1e4


@dataclass(frozen=True)
class BandedNoise:
    """Noise that takes back a part of that of the last steps: the banded matrix mechanism (BandMF), with a Toeplitz matrix.

    Args:
        bands: the number of coefficients; the memory holds one copy of the parameters less. None chooses a power of two, 64
            at most. With cyclic sampling it is the one of the least error at the budget, noise multiplier times error of
            prefix sums, since there are as many groups as bands, and more groups leave less to amplification by sampling.
            In a fixed order it is the smallest whose error is within a hundredth of the least.

    Raises:
        ValueError: for a number that is not whole, or out of range.

    Example:
        >>> BandedNoise(bands=8)
        BandedNoise(bands=8)
    """

    bands: int | None = None

    def __post_init__(self) -> None:
        _check_most("bands", self.bands, MOST_BANDS)


@dataclass(frozen=True)
class BufferedNoise:
    """Noise that takes back a part of that of all earlier steps, kept in a few buffers (buffered linear Toeplitz, BLT).

    Args:
        buffers: the number of buffers, each as large as the parameters.

    Raises:
        ValueError: for a number that is not whole, or out of range.

    Example:
        >>> BufferedNoise(buffers=2)
        BufferedNoise(buffers=2)
    """

    buffers: int = 3

    def __post_init__(self) -> None:
        _check_most("buffers", read_whole("buffers", self.buffers), MOST_BUFFERS)


def _check_most(name: str, value: int | None, most: int) -> None:
    if value is not None and read_whole(name, value) > most:
        raise ValueError(f"{name}={value}: expected at most {most:,}, each as large as the parameters")


def make_strategy(
    sampler: str,
    noise: BandedNoise | BufferedNoise | None,
    *,
    sample_rate: float,
    steps: int,
    epsilon: float,
    delta: float,
) -> Strategy | None:
    """Make the strategy of a sampler and a kind of noise, from public numbers; None for Poisson sampling.

    Args:
        sampler: one of `SAMPLERS` (`privacy/samplers.py`).
        noise: the kind of correlated noise. None is independent noise, and banded noise with cyclic sampling, which has no
            other use.
        sample_rate: the expected part of the records in a step. In a fixed order a pass takes the whole number of steps
            that is nearest to its inverse.
        steps: the number of steps.
        epsilon, delta: the budget.

    Raises:
        ValueError: for a combination that is not proved, naming it and what to take, or a number out of range.

    Example:
        >>> made = make_strategy("cyclic", BandedNoise(), sample_rate=0.01, steps=1000, epsilon=8.0, delta=1e-6)
        >>> made.period == len(made.coefficients) > 1
        True
    """
    check_sampler(sampler)
    if not isinstance(noise, BandedNoise | BufferedNoise | None):
        raise ValueError(f"noise={noise!r}: expected BandedNoise(...), BufferedNoise(...) or None")
    if epsilon != math.inf:
        check_epsilon(epsilon)
    check_delta(delta)
    check_number("sample_rate", sample_rate, lambda value: 0.0 < value <= 1.0, "above 0, up to 1")
    steps = read_whole("steps", steps)
    if sampler in (POISSON, TRUNCATED):
        if noise is not None:
            raise ValueError(
                f"sampler={sampler!r} with noise={noise}: under Poisson sampling a record may take part in any two steps, "
                f"and no cost of correlated noise is proved: expected sampler={CYCLIC!r} (the same relation) or "
                f"{FIXED_ORDER!r}"
            )
        return None
    if sampler == CYCLIC:
        if isinstance(noise, BufferedNoise):
            raise ValueError(
                f"sampler={CYCLIC!r} with noise={noise}: buffers reach over all steps, and groups are proved for noise "
                f"that ends before their next turn: expected BandedNoise(...), or sampler={FIXED_ORDER!r}"
            )
        return _cyclic(noise or BandedNoise(), sample_rate, steps, epsilon, delta)
    period = max(1, round(1.0 / sample_rate))
    if isinstance(noise, BufferedNoise):
        return buffered_strategy(steps, period, noise.buffers)
    if noise is None:
        return Strategy(FIXED_ORDER, steps, period)
    if noise.bands is not None:
        return banded_strategy(FIXED_ORDER, steps, period, noise.bands)
    found = [banded_strategy(FIXED_ORDER, steps, period, bands) for bands in _powers_of_two(min(period, steps))]
    errors = [prefix_error(strategy) for strategy in found]
    return next(s for s, error in zip(found, errors, strict=True) if error <= (1.0 + _WORTHWHILE) * min(errors))


def _cyclic(noise: BandedNoise, sample_rate: float, steps: int, epsilon: float, delta: float) -> Strategy:
    """Return the banded strategy with as many groups as bands: fewer would be unproved, more would lower the sampling."""
    most = int(1.0 / sample_rate * (1.0 + 1e-9))
    if noise.bands is not None:
        if noise.bands > most:
            raise ValueError(
                f"noise={noise} with sample_rate={sample_rate:g}: a step takes its records from one of {noise.bands} "
                f"groups, which is {noise.bands * sample_rate:g} times a group: expected at most {most} bands, or a "
                "smaller rate"
            )
        return banded_strategy(CYCLIC, steps, noise.bands, noise.bands)
    found = [banded_strategy(CYCLIC, steps, bands, bands) for bands in _powers_of_two(min(most, steps))]
    budget = epsilon if math.isfinite(epsilon) else _WITHOUT_BUDGET
    return min(found, key=lambda strategy: _multiplier(strategy, sample_rate, budget, delta) * prefix_error(strategy))


def _powers_of_two(most: int) -> list[int]:
    return [2**i for i in range(min(most, _MOST_CHOSEN).bit_length())]


@functools.lru_cache(maxsize=256)
def _multiplier(strategy: Strategy, sample_rate: float, epsilon: float, delta: float) -> float:
    """Return about the multiplier that costs epsilon, by Renyi moments; a plan solves for its own."""
    probability = min(1.0, sample_rate * strategy.period)

    def cost(multiplier: float) -> float:
        return spent_by_rdp(CorrelatedGaussianDpEvent.of(multiplier, probability, strategy), delta)

    return root(cost, epsilon, _LARGEST_MULTIPLIER)
