"""Samplers by name, strategies that follow from public numbers, and the reasons for which other samplers are refused."""

from __future__ import annotations

import functools
import math

import numpy as np
import scipy.optimize
from scipy.signal import lfilter

from lightning_dpgen.common.arguments import check_name, check_number, read_whole
from lightning_dpgen.privacy.accounting.epsilon_range import check_delta, check_epsilon
from lightning_dpgen.privacy.accounting.event_parts import CorrelatedGaussianDpEvent
from lightning_dpgen.privacy.accounting.renyi import compute_epsilon_by_rdp
from lightning_dpgen.privacy.planning.solving import smallest_multiplier_within
from lightning_dpgen.privacy.sampling.samplers import (
    POISSON,
    SAMPLERS,
    TRUNCATED,
    Cyclic,
    Poisson,
    Sampler,
    TruncatedPoisson,
)
from lightning_dpgen.privacy.sampling.strategy import CYCLIC, MOST_BANDS, Strategy

# Most bands that are chosen without being asked for: each is as large as the parameters.
_MOST_CHOSEN = 64
# The epsilon for which a strategy is chosen where the budget has none.
_WITHOUT_BUDGET = 8.0
_LARGEST_MULTIPLIER = 1e4
_SHUFFLED = "passes in a shuffled order can cost more than Poisson lots, and no useful bound of their cost is proved"
# Names that users of other libraries know, each with the reason for which it is refused.
_REFUSED = {
    "shuffle": _SHUFFLED,
    "uniform": "lots of a fixed size have an account where a record is replaced and n is public, not in the relation here",
    "balls_in_bins": "its cost is estimated by drawing its losses at random, which gives no bound that is certain",
}
_REFUSED |= {"shuffled": _SHUFFLED, "sequential": _SHUFFLED, "without_replacement": _REFUSED["uniform"]}
_REFUSED = {name: f"{why}: take {POISSON!r} ({Poisson.law})" for name, why in _REFUSED.items()}
# The smallest part of a coefficient that the next one is.
_LEAST = 1e-6


def prefix_error(strategy: Strategy) -> float:
    """Return the root mean squared error of the sums of the first 1, 2, ..., T rows, for a multiplier of 1.

    Rows are no longer than 1. The error is in each number, and is that of a training whose steps add up what they release:
    ``sensitivity |A C^-1|_F / sqrt(T)``, with A the lower triangle of ones.

    Example:
        >>> independent = Strategy(steps=100, period=100)
        >>> round(prefix_error(independent) ** 2, 1)
        50.5
    """
    sums = lfilter(np.ones(1), np.array(strategy.coefficients), np.ones(strategy.steps))
    remaining = np.arange(strategy.steps, 0, -1)
    return strategy.sensitivity * math.sqrt(float(remaining @ sums**2) / strategy.steps)


@functools.lru_cache(maxsize=256)
def banded_strategy(steps: int, period: int, bands: int) -> Strategy:
    """Return the banded Toeplitz strategy of the least mean squared error of prefix sums.

    The search is L-BFGS over the quotients of neighbouring coefficients (each in (0, 1], so that coefficients never rise),
    from the ones that are optimal without a limit of bands. Where bands are within the period, the error of a strategy is
    proportional to the same function for any number of passes (McKenna 2024, "Scaling up the banded matrix factorization
    mechanism").

    Args:
        steps, period: as for `Strategy`.
        bands: the number of coefficients, at most `period`.

    Raises:
        ValueError: for more bands than the period, or as `Strategy`.

    Example:
        >>> [round(c, 3) for c in banded_strategy(100, 50, 3).coefficients]
        [1.0, 0.739, 0.622]
    """
    if not 1 <= bands <= period:
        raise ValueError(f"bands={bands}: expected 1 to {period}, the steps between two in which a record takes part")
    bands = min(bands, steps)
    if bands == 1:
        return Strategy(steps, period)
    remaining, ones = np.arange(steps, 0, -1.0), np.ones(steps)

    def coefficients(quotients: np.ndarray) -> np.ndarray:
        return np.concatenate([[1.0], np.cumprod(quotients)])

    def cost(quotients: np.ndarray) -> tuple[float, np.ndarray]:
        column = coefficients(quotients)
        sums = lfilter([1.0], column, ones)
        error, length = float(remaining @ sums**2), float(column @ column)
        moved = lfilter([1.0], column, sums)
        # d error / d c_j = -2 sum_t left_t sums_t moved_{t - j}.
        weighted = remaining * sums
        slope = np.array([-2.0 * (weighted[j:] @ moved[: steps - j]) for j in range(bands)]) / error + 2.0 * column / length
        by_quotient = np.cumsum((slope * column)[:0:-1])[::-1] / quotients
        return math.log(error) + math.log(length), by_quotient

    i = np.arange(1, bands)
    optimum = scipy.optimize.minimize(
        cost,
        (2.0 * i - 1.0) / (2.0 * i),
        jac=True,
        method="L-BFGS-B",
        bounds=[(_LEAST, 1.0)] * (bands - 1),
        options={"maxiter": 500, "ftol": 1e-12, "gtol": 1e-9},
    )
    return Strategy(steps, period, tuple(coefficients(optimum.x)))


def make_sampler(
    name: str,
    sample_rate: float,
    *,
    steps: int,
    epsilon: float,
    delta: float,
    bands: int | None = None,
    largest_lot: int | None = None,
    at_most: int | None = None,
) -> Sampler:
    """Make the sampler of a name, from public numbers.

    Args:
        name: ``poisson``, ``truncated_poisson`` or ``cyclic``.
        sample_rate: the expected part of the records in a step.
        steps: the number of steps.
        epsilon, delta: the budget.
        bands: for cyclic sampling, the number of steps over which noise is correlated, and of groups; the memory of the
            noise holds one copy of the parameters less. None chooses a power of two, 64 at most: that of the least error at
            the budget, noise multiplier times error of prefix sums, since more groups leave less to amplification by
            sampling.
        largest_lot, at_most: for truncated lots; see `TruncatedPoisson`.

    Raises:
        ValueError: for a sampler whose cost is not proved, saying why and what to take, a number that another sampler has,
            or one that is out of range.

    Example:
        >>> made = make_sampler("cyclic", 0.01, steps=1000, epsilon=8.0, delta=1e-6)
        >>> made.strategy.period == len(made.strategy.coefficients) > 1
        True
        >>> make_sampler("shuffle", 0.01, steps=1000, epsilon=8.0, delta=1e-6)
        Traceback (most recent call last):
        ValueError: sampler='shuffle': passes in a shuffled order can cost more than Poisson lots, ...
    """
    known = [sampler.name for sampler in SAMPLERS]
    check_name("sampler", name, known, _REFUSED, f"{' or '.join(map(repr, known))} ({Poisson.law})")
    check_number("sample_rate", sample_rate, lambda value: 0.0 < value <= 1.0, "above 0, up to 1")
    if name != TRUNCATED and (largest_lot is not None or at_most is not None):
        raise ValueError(
            f"largest_lot={largest_lot}, at_most={at_most}: lots of sampler={name!r} are not cut: leave both out, or take "
            f"sampler={TRUNCATED!r}"
        )
    if name != CYCLIC and bands is not None:
        raise ValueError(
            f"sampler={name!r} with bands={bands}: under Poisson sampling a record may take part in any two steps, and no "
            f"cost of correlated noise is proved: expected sampler={CYCLIC!r}"
        )
    if name == POISSON:
        return Poisson(sample_rate)
    if name == CYCLIC:
        if epsilon != math.inf:
            check_epsilon(epsilon)
        check_delta(delta)
        return Cyclic(sample_rate, _cyclic_strategy(bands, sample_rate, read_whole("steps", steps), epsilon, delta))
    if name != TRUNCATED:
        raise ValueError(f"sampler={name!r}: is not made from settings: give an object of its class")
    if largest_lot is None or at_most is None:
        raise ValueError(
            f"sampler={TRUNCATED!r}: expected largest_lot=..., the most records of a lot, and at_most=..., a number of "
            f"records that no data set of this kind can exceed; found largest_lot={largest_lot}, at_most={at_most}"
        )
    return TruncatedPoisson(sample_rate, largest_lot, at_most)


def _cyclic_strategy(bands: int | None, sample_rate: float, steps: int, epsilon: float, delta: float) -> Strategy:
    """Return the banded strategy with as many groups as bands: fewer would be unproved, more would lower the sampling."""
    most = int(1.0 / sample_rate * (1.0 + 1e-9))
    if bands is not None:
        if read_whole("bands", bands) > MOST_BANDS:
            raise ValueError(f"bands={bands}: expected at most {MOST_BANDS:,}, each as large as the parameters")
        if bands > most:
            raise ValueError(
                f"bands={bands} with sample_rate={sample_rate:g}: a step takes its records from one of {bands} groups, "
                f"which is {bands * sample_rate:g} times a group: expected at most {most} bands, or a smaller rate"
            )
        return banded_strategy(steps, bands, bands)
    powers = [2**i for i in range(min(most, steps, _MOST_CHOSEN).bit_length())]
    strategies = [banded_strategy(steps, power, power) for power in powers]
    budget = epsilon if math.isfinite(epsilon) else _WITHOUT_BUDGET
    return min(strategies, key=lambda strategy: _multiplier(strategy, sample_rate, budget, delta) * prefix_error(strategy))


@functools.lru_cache(maxsize=256)
def _multiplier(strategy: Strategy, sample_rate: float, epsilon: float, delta: float) -> float:
    """Return about the multiplier that costs epsilon, by Renyi moments; a plan solves for its own."""
    probability = min(1.0, sample_rate * strategy.period)

    def cost(multiplier: float) -> float:
        return compute_epsilon_by_rdp(CorrelatedGaussianDpEvent.of(multiplier, probability, strategy), delta)

    return smallest_multiplier_within(cost, epsilon, _LARGEST_MULTIPLIER)
