"""Strategies of correlated noise with the least error of the sums of gradients that a training adds up."""

from __future__ import annotations

import functools
import math

import numpy as np
import scipy.optimize
from scipy.signal import fftconvolve, lfilter

from lightning_dpgen.privacy.strategy import FIXED_ORDER, Strategy, comb

# The smallest part of a coefficient that the next one is, and the ends of decays: inside of what a strategy allows.
_LEAST, _MOST = 1e-6, 1.0 - 1e-9
_TINY = 1e-300


def prefix_error(strategy: Strategy) -> float:
    """Return the root mean squared error of the sums of the first 1, 2, ..., T rows, for a multiplier of 1.

    Rows are no longer than 1. The error is in each number, and is that of a training whose steps add up what they release:
    ``sensitivity |A C^-1|_F / sqrt(T)``, with A the lower triangle of ones.

    Example:
        >>> independent = Strategy("fixed_order", steps=100, period=100)
        >>> round(prefix_error(independent) ** 2, 1)
        50.5
    """
    numerator, denominator = _transfer(strategy)
    sums = lfilter(numerator, denominator, np.ones(strategy.steps))
    left = np.arange(strategy.steps, 0, -1)
    return strategy.sensitivity * math.sqrt(float(left @ sums**2) / strategy.steps)


def _transfer(strategy: Strategy) -> tuple[np.ndarray, np.ndarray]:
    """Return numerator and denominator of the generating function of the first column of C^-1."""
    if not strategy.decays:
        return np.ones(1), np.array(strategy.coefficients)
    return _fraction(np.array(strategy.decays), np.array(strategy.scales))


def _fraction(decays: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Q and P of ``1 + sum_j scales_j x / (1 - decays_j x) = P(x) / Q(x)``."""
    below = functools.reduce(np.convolve, [np.array([1.0, -decay]) for decay in decays], np.ones(1))
    above = below.copy()
    for j, scale in enumerate(scales):
        others = [np.array([1.0, -decay]) for i, decay in enumerate(decays) if i != j]
        above += scale * functools.reduce(np.convolve, others, np.array([0.0, 1.0]))
    return below, above


@functools.lru_cache(maxsize=256)
def banded_strategy(sampler: str, steps: int, period: int, bands: int) -> Strategy:
    """Return the banded Toeplitz strategy of the least mean squared error of prefix sums.

    The search is L-BFGS over the quotients of neighbouring coefficients (each in (0, 1], so that coefficients never rise),
    from the ones that are optimal without a limit of bands. Where bands are within the period, the error of a strategy is
    proportional to the same function for any number of passes (McKenna 2024, "Scaling up the banded matrix factorization
    mechanism").

    Args:
        sampler, steps, period: as for `Strategy`.
        bands: the number of coefficients, at most `period`.

    Raises:
        ValueError: for more bands than the period, or as `Strategy`.

    Example:
        >>> [round(c, 3) for c in banded_strategy("fixed_order", 100, 50, 3).coefficients]
        [1.0, 0.739, 0.622]
    """
    if not 1 <= bands <= period:
        raise ValueError(f"bands={bands}: expected 1 to {period}, the steps between two in which a record takes part")
    bands = min(bands, steps)
    if bands == 1:
        return Strategy(sampler, steps, period)
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
    return Strategy(sampler, steps, period, tuple(coefficients(found.x)))


@functools.lru_cache(maxsize=64)
def buffered_strategy(steps: int, period: int, buffers: int) -> Strategy:
    """Return the buffered linear Toeplitz strategy of the least mean squared error of prefix sums, in a fixed order.

    The search is L-BFGS over decays and scales (McMahan, Xu and Zhang 2024), for all passes of the plan together;
    coefficients reach over several of these.

    Args:
        steps, period: as for `Strategy`.
        buffers: the number of buffers, each as large as the parameters.

    Example:
        >>> independent = Strategy("fixed_order", steps=200, period=50)
        >>> prefix_error(buffered_strategy(200, 50, 2)) < 0.6 * prefix_error(independent)
        True
    """
    left, ones, powers = np.arange(steps, 0, -1.0), np.ones(steps), np.arange(max(steps - 1, 1))

    def parts(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        decays = 1.0 - np.exp(x[:buffers])
        return np.clip(decays, 0.0, _MOST), np.exp(x[buffers:])

    def cost(x: np.ndarray) -> tuple[float, np.ndarray]:
        decays, scales = parts(x)
        column = np.concatenate([[1.0], (scales[:, None] * decays[:, None] ** powers).sum(axis=0)])[:steps]
        below, above = _fraction(decays, scales)
        sums = lfilter(below, above, ones)
        moved = lfilter(below, above, sums)
        reach = comb(column, period)
        error, length = float(left @ sums**2), float(reach @ reach)
        weighted = left * sums
        # Correlations of all lags at once; the transpose of `comb` is `comb` backwards.
        by_error = -2.0 * fftconvolve(weighted, moved[::-1])[steps - 1 :]
        by_length = 2.0 * _comb_backwards(reach, period)
        slope = (by_error / error + by_length / length)[1:]
        by_scale = (decays[:, None] ** powers)[:, : steps - 1] @ slope
        falling = np.zeros((buffers, max(steps - 1, 1)))
        falling[:, 1:] = powers[1:] * decays[:, None] ** (powers[1:] - 1)
        by_decay = scales * (falling[:, : steps - 1] @ slope)
        return math.log(error) + math.log(length), np.concatenate([by_decay * (decays - 1.0), by_scale * scales])

    # Decays at equal distances of the logarithms of their ranges, from 1 to all steps; scales of 1/2 in all, as the first
    # coefficient is without a limit of buffers.
    ranges = np.linspace(0.0, math.log(max(steps, 2)), buffers + 1)[1:]
    start = np.concatenate([-ranges, np.log(0.5 * np.exp(-ranges / 2) / np.exp(-ranges / 2).sum())])
    found = scipy.optimize.minimize(
        cost,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[(math.log(1e-7), -1e-6)] * buffers + [(-20.0, 0.0)] * buffers,
        options={"maxiter": 500, "ftol": 1e-12, "gtol": 1e-9},
    )
    decays, scales = parts(found.x)
    scales = scales / max(1.0, math.fsum(scales) * (1.0 + 1e-12))
    return Strategy(FIXED_ORDER, steps, period, decays=tuple(decays), scales=tuple(scales))


def _comb_backwards(values: np.ndarray, period: int) -> np.ndarray:
    rows = np.pad(values, (0, -len(values) % period)).reshape(-1, period)
    return rows[::-1].cumsum(axis=0)[::-1].ravel()[: len(values)]
