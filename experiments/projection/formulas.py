"""JL + Laplace: Dhaliwal and others, Utility Preserving Secure Private Data Release, sections 3 and 4.

A record x (d columns) is released as x P + Laplace(c / epsilon) with P of d rows and k columns, entries N(0, 1/k).
"""

from __future__ import annotations

import math


def jl_theorem3(d: int, k: int) -> tuple[float, float]:
    """Compute Theorem 3: with c = 2 sqrt(k), epsilon-DP for one changed element but for a chance of d exp(-k/2).

    It holds, and is empty where the chance exceeds 1: in two of the four sizes of Table 1.

    Returns:
        c, and the bound on the chance of failure.

    Example:
        >>> [round(jl_theorem3(d, k)[1], 4) for d, k in ((3, 2), (10, 3), (50, 10), (100, 20))]
        [1.1036, 2.2313, 0.3369, 0.0045]
    """
    return 2.0 * math.sqrt(k), d * math.exp(-k / 2)


def jl_theorem5(k: int, alpha: float = 1.0, t: float | None = None) -> tuple[float, float]:
    """Compute Theorem 5: with c = k t, epsilon-DP for a changed row, but for a chance of 2k exp(-k t^2 / (2 alpha)).

    NOT true as stated: the chance is that of one pair of neighbours, chosen before P is drawn. The chance that all
    neighbours are covered at once, which is epsilon-DP of the algorithm with that P, has no bound without d.

    Args:
        k: columns of P.
        alpha: largest squared distance of the row before and after.
        t: at least sqrt(2 log(2k) alpha / k), which is the default; there the bound is exactly 1.

    Returns:
        c, and the bound on the chance of failure.
    """
    t = math.sqrt(2.0 * math.log(2 * k) * alpha / k) if t is None else t
    return k * t, 2 * k * math.exp(-k * t * t / (2.0 * alpha))


def jl_claim7(k: int, distance2: float, sigma2: float) -> float:
    """Compute Claim 7: variance of a recovered squared distance, (2/k) a^4 + 2k (7 s^4 - s^2) + 4 s^2 a^2. WRONG, even < 0.

    Args:
        k: columns of P.
        distance2: a^2, the squared distance of the two records.
        sigma2: s^2, the variance of one Laplace noise.

    Example:
        >>> jl_claim7(2, 16.0, 0.5), recovered_variance(2, 16.0, 0.5)
        (293.0, 327.0)
    """
    return 2 / k * distance2**2 + 2 * k * (7 * sigma2**2 - sigma2) + 4 * sigma2 * distance2


def recovered_variance(k: int, distance2: float, sigma2: float) -> float:
    """Return the variance of the recovered squared distance: (2/k) a^4 + 14 k s^4 + 8 s^2 a^2.

    A difference of two Laplace noises has variance 2 s^2 and fourth moment 18 s^4; the cross term 2 <a P, noise> has
    variance 4 a^2 2 s^2; and subtracting the constant 2 k s^2 changes no variance.
    """
    return 2 / k * distance2**2 + 14 * k * sigma2**2 + 8 * sigma2 * distance2
