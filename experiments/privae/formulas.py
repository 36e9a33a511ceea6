"""PriVAE: Takahashi and others, Differentially Private Variational Autoencoders with Term-wise Gradient Aggregation.

A step adds the clipped gradients of B records (bound C1) and of b groups (bound C2), each with its own noise.
"""

from __future__ import annotations

import math


def privae_kappa(delta: float) -> float:
    """Compute kappa = sigma_{eps/2} / sigma_eps = 2 sqrt(log(delta/2) / log delta), after equation (16).

    NOT the ratio that it is said to be: equation (5), from which it follows, is asymptotic, and the noise for half of
    epsilon and delta is 1.6 to 1.2 times that for the whole at epsilon 1 to 8. One released sum needs 1.

    Example:
        >>> round(privae_kappa(1e-5), 4)
        2.0593
    """
    return 2.0 * math.sqrt(math.log(delta / 2) / math.log(delta))


def privae_lemma2(C1: float, C2: float) -> float:
    """Compute Lemma 2's sensitivity, C1 + C2. NOT a bound: a group's clipped gradient can turn round, C1 + 2 C2."""
    return C1 + C2


def privae_table1(C1: float, C2: float, B: int, b: int, sigma: float, delta: float) -> float:
    """Compute Table 1's noise scale (C1/B + C2/b) kappa sigma of term-wise DP-SGD. NOT what Algorithm 1 draws.

    Independent noises add in squares: the standard deviation of equation (16) is `privae_noise`.
    """
    return (C1 / B + C2 / b) * privae_kappa(delta) * sigma


def privae_noise(C1: float, C2: float, B: int, b: int, sigma: float, delta: float) -> float:
    """Return the standard deviation of the noise that equation (16) adds to the averaged gradient.

    NOT enough for Theorem 2: the sum moves by `needed_noise` / sigma, which is more.

    Example:
        >>> round(privae_noise(0.05, 0.005, 256, 16, 1.0, 1e-5), 6), round(needed_noise(0.05, 0.005, 256, 16, 1.0), 6)
        (0.000759, 0.00082)
    """
    return math.hypot(C1 / B, C2 / b) * privae_kappa(delta) * sigma


def needed_noise(C1: float, C2: float, B: int, b: int, sigma: float) -> float:
    """Return the deviation that makes the released sum one Gaussian of multiplier sigma: (C1/B + 2 C2/b) sigma. Valid.

    A record has one gradient of its own (C1) and turns that of one group round (2 C2). No kappa: only the sum is seen.
    """
    return (C1 / B + 2.0 * C2 / b) * sigma
