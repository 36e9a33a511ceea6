"""Strategies of correlated noise with the least error of the sums of gradients that a training adds up."""

from __future__ import annotations

import functools
import math

import numpy as np
import scipy.optimize
from scipy.signal import lfilter

from lightning_dpgen.privacy.sampling.strategy import Strategy

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
    left, ones = np.arange(steps, 0, -1.0), np.ones(steps)

    def coefficients(quotients: np.ndarray) -> np.ndarray:
        return np.concatenate([[1.0], np.cumprod(quotients)])

    def cost(quotients: np.ndarray) -> tuple[float, np.ndarray]:
        own = coefficients(quotients)
        sums = lfilter([1.0], own, ones)
        error, length = float(left @ sums**2), float(own @ own)
        moved = lfilter([1.0], own, sums)
        # d error / d c_j = -2 sum_t left_t sums_t moved_{t - j}.
        weighted = left * sums
        slope = np.array([-2.0 * (weighted[j:] @ moved[: steps - j]) for j in range(bands)]) / error + 2.0 * own / length
        by_quotient = np.cumsum((slope * own)[:0:-1])[::-1] / quotients
        return math.log(error) + math.log(length), by_quotient

    i = np.arange(1, bands)
    found = scipy.optimize.minimize(
        cost,
        (2.0 * i - 1.0) / (2.0 * i),
        jac=True,
        method="L-BFGS-B",
        bounds=[(_LEAST, 1.0)] * (bands - 1),
        options={"maxiter": 500, "ftol": 1e-12, "gtol": 1e-9},
    )
    return Strategy(steps, period, tuple(coefficients(found.x)))
