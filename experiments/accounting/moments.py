"""The moments accountant of Abadi and others (2016), which three of the papers use: valid, and looser than ours.

alpha(lambda) is the logarithm of the moment generating function of the privacy loss, at lambda. Moments of independent
releases add; (epsilon, delta) follows by Markov's inequality.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from scipy.special import logsumexp


def gaussian_moment(lam: float, multiplier: float) -> float:
    """Compute alpha(lambda) of one Gaussian, exactly: (lambda^2 + lambda) / (2 multiplier^2).

    The privacy loss is normal with mean m = 1/(2 multiplier^2) and variance 2m.

    Example:
        >>> gaussian_moment(3, 1.0)
        6.0
    """
    return (lam * lam + lam) / (2.0 * multiplier**2)


def sampled_moment(lam: float, q: float, sigma: float) -> float:
    """Compute alpha(lambda) of the Poisson-sampled Gaussian under add or remove one: log max(E1, E2), by quadrature.

    E1 = E over mu0 of (mu0/mu1)^lambda and E2 = E over mu1 of (mu1/mu0)^lambda, with mu0 = N(0, sigma^2) and
    mu1 = (1-q) mu0 + q N(1, sigma^2). DPGM (section 5) and dp-GAN (equations 5, 6) have the same. Lambda need not be whole.

    Args:
        lam: order, above 0.
        q: sampling rate, in (0, 1].
        sigma: noise multiplier.

    Example:
        >>> import math
        >>> q, sigma = 0.01, 0.8  # at lambda = 1 it has a closed form
        >>> exact = math.log1p(q * q * math.expm1(sigma**-2))
        >>> math.isclose(sampled_moment(1, q, sigma), exact, rel_tol=1e-9)
        True
    """
    # The integrands are normal bumps between -lambda and lambda + 1: the trapezoid rule converges geometrically.
    step = min(sigma, sigma**2) / 8
    x = np.arange(-14 * sigma - lam, lam + 1 + 14 * sigma, step)
    stay = math.log1p(-q) if q < 1.0 else -math.inf
    ratio = np.logaddexp(stay, math.log(q) + (2 * x - 1) / (2 * sigma**2))
    density = math.log(step) - x * x / (2 * sigma**2) - math.log(sigma * math.sqrt(2 * math.pi))
    return float(max(logsumexp(density - lam * ratio), logsumexp(density + (lam + 1) * ratio)))


def epsilon_from_moments(moment: Callable[[int], float], delta: float, orders: Iterable[int] = range(1, 33)) -> float:
    """Compute epsilon from moments: min over lambda of (alpha(lambda) - log delta) / lambda.

    Example:
        >>> round(epsilon_from_moments(lambda lam: gaussian_moment(lam, 2.0), 1e-5), 2)
        2.53
    """
    return min((moment(lam) - math.log(delta)) / lam for lam in orders)
