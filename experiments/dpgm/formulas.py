"""DPGM: Acs, Melis, Castelluccia and De Cristofaro, TKDE 2018 (and ICDM 2017): the privacy analysis of its section 5.

Theorem numbers are the same in both; equation (4) of TKDE is (3) of ICDM.
"""

from __future__ import annotations

import math

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from scipy.stats import norm

from experiments.accounting.moments import epsilon_from_moments, gaussian_moment, sampled_moment

# "It suffices to consider 10 different values of j_1" (end of section 5), which are not printed; these give 1.745.
TEN_SHARES = tuple(i / 11 for i in range(1, 11))
# The point of Figure 2 at 20 epochs of ceil(1/q) steps, quoted as epsilon = 1.74 in section 6.2 and Figures 4 and 7.
FIGURE_2 = {
    "q": 0.0017,
    "T_S": 20 * math.ceil(1 / 0.0017),
    "sigma_C": 4.0,
    "sigma_G": 1.0,
    "T_K": 20,
    "sigma_K": 40.0,
    "delta": 1e-5,
}


def dpgm_lemma1(lam: float, sigma: float) -> float:
    """Compute Lemma 1: alpha(lambda) = (lambda^2 + lambda) / (4 sigma^2). NOT a bound: it is half of the truth.

    The proof has the law of the loss right and halves the exponent of its moment generating function. It is right by
    accident where DPGM adds sqrt(2) sigma to a sum that moves by 1 (one record added).

    Example:
        >>> dpgm_lemma1(3, 1.0)  # truth: 6
        3.0
    """
    return (lam * lam + lam) / (4.0 * sigma**2)


def dpgm_equation4(
    lam: float, *, T_K: int, sigma_K: float, sigma_C: float | None = None, norms_each_iteration: bool = True
) -> float:
    """Compute equation (4), alpha_K: T_K times Lemma 1 for the norm histogram, the counts and the sums of k-means.

    NOT a bound where a record is replaced, which is the paper's relation: half of the truth. For one added, the counts and
    sums are exact; the histogram is charged T_K times where Algorithm 2 draws it once.

    Args:
        lam: order.
        T_K, sigma_K: iterations and their noise scale.
        sigma_C: noise scale of the norm histogram; None for the RBF kernel, where the paper leaves it out.
        norms_each_iteration: charge the histogram in each iteration, as printed; False charges it once.
    """
    norms = 0.0 if sigma_C is None else dpgm_lemma1(lam, sigma_C)
    return T_K * 2 * dpgm_lemma1(lam, sigma_K) + (T_K if norms_each_iteration else 1) * norms


def dpgm_theorem3(lam: float, q: float, sigma_C: float, sigma_G: float, shares: tuple[float, ...] = TEN_SHARES) -> float:
    """Compute Theorem 3 for histogram and gradient of one lot: min over j of j alpha_C(l/j) + (1-j) alpha_G(l/(1-j)).

    NOT a bound: Hoelder's inequality needs the moments of the gradient given the histogram, where the record is in the
    lot with its posterior probability; the paper inserts q. It is above the truth at the paper's noise, below at others.

    Args:
        lam: order.
        q: sampling rate of the lot.
        sigma_C, sigma_G: noise multipliers of the histogram and of the gradient.
        shares: values of j to try.

    Example:
        >>> import math
        >>> truth = math.log1p(0.001**2 * math.expm1(2 / 0.7**2))
        >>> dpgm_theorem3(1, 0.001, 0.7, 0.7) < 0.4 * truth
        True
    """

    def bound(j: float) -> float:
        return j * sampled_moment(lam / j, q, sigma_C) + (1 - j) * sampled_moment(lam / (1 - j), q, sigma_G)

    return min(bound(j) for j in shares)


def dpgm_theorem4(
    *,
    q: float,
    T_S: int,
    sigma_C: float,
    sigma_G: float,
    T_K: int,
    sigma_K: float,
    delta: float,
    rbf: bool = True,
    norms_each_iteration: bool = True,
    shares: tuple[float, ...] = TEN_SHARES,
) -> float:
    """Compute Theorem 4: epsilon of DPGM, min over lambda <= 32 of (alpha_K + alpha_Sk - log delta) / lambda.

    NOT a guarantee for the paper's Algorithm 1: besides Lemma 1 and Theorem 3 it takes k clusters, one of which is chosen
    in proportion to its size and visibly updated, for one data set sampled at q.

    Args:
        q, T_S: sampling rate and number of steps.
        sigma_C, sigma_G, sigma_K: noise scales; the paper draws sqrt(2) sigma times the clipping bound.
        T_K: iterations of k-means.
        delta: the delta of the guarantee.
        rbf: use no norm histogram in k-means (the text below equation 4).
        norms_each_iteration, shares: see `dpgm_equation4`, `dpgm_theorem3`.

    Example:
        >>> round(dpgm_theorem4(**FIGURE_2), 3)  # the paper prints 1.74
        1.745
    """

    def moment(lam: int) -> float:
        split = dpgm_equation4(
            lam, T_K=T_K, sigma_K=sigma_K, sigma_C=None if rbf else sigma_C, norms_each_iteration=norms_each_iteration
        )
        return split + T_S * dpgm_theorem3(lam, q, sigma_C, sigma_G, shares)

    return epsilon_from_moments(moment, delta)


def joined(*multipliers: float) -> float:
    """Return the multiplier of several Gaussians over one lot: their inverse squares add."""
    return sum(m**-2 for m in multipliers) ** -0.5


def dpgm_events(
    *, q: float, T_S: int, sigma_C: float, sigma_G: float, T_K: int, sigma_K: float, share: float = 1.0
) -> tuple[DpEvent, DpEvent]:
    """Return the events of k-means and training with DPGM's noise: sqrt(2) sigma on sums that one record moves by 1.

    Args:
        q, T_S, sigma_C, sigma_G, T_K, sigma_K: as in `dpgm_theorem4`.
        share: the share of records in the cluster of the record in question. That cluster is updated, visibly, in that
            share of the steps (the mean; chance adds a little), each at the rate q / share. 1 is all components in one lot.
    """
    root = math.sqrt(2)
    split = SelfComposedDpEvent(GaussianDpEvent(joined(root * sigma_K, root * sigma_K)), T_K)
    lot = GaussianDpEvent(joined(root * sigma_C, root * sigma_G))
    return split, SelfComposedDpEvent(PoissonSampledDpEvent(q / share, lot), round(share * T_S))


def dpgm_corrected(
    *, q: float, T_S: int, sigma_C: float, sigma_G: float, T_K: int, sigma_K: float, delta: float, share: float = 1.0
) -> float:
    """Return epsilon of `dpgm_events` by the moments accountant, lambda <= 32: a guarantee, under add or remove one.

    Histogram and gradient of a lot are one Gaussian, whose moments are taken as they are; no Hoelder's inequality.

    Example:
        >>> round(dpgm_corrected(**FIGURE_2, share=0.1), 2)  # by privacy loss distributions 2.10
        2.7
    """
    root = math.sqrt(2)
    split, lot = joined(root * sigma_K, root * sigma_K), joined(root * sigma_C, root * sigma_G)

    def moment(lam: int) -> float:
        return T_K * gaussian_moment(lam, split) + round(share * T_S) * sampled_moment(lam, q / share, lot)

    return epsilon_from_moments(moment, delta)


def dpgm_least(*, q: float, T_S: int, sigma_C: float, sigma_G: float, delta: float, share: float) -> float:
    """Return a proved lower bound on epsilon of Algorithm 1's training alone, for a record in a cluster of that share.

    Each step visibly updates that cluster with probability `share`, and its lot is sampled at q / share. The number of such
    steps is random, so this is more than the cost of their mean number in `dpgm_events`.

    Example:
        >>> names = ("q", "T_S", "sigma_C", "sigma_G", "delta")
        >>> round(dpgm_least(**{name: FIGURE_2[name] for name in names}, share=0.01), 4)
        8.0276
    """
    root = math.sqrt(2)
    return least_epsilon(q / share, joined(root * sigma_C, root * sigma_G), share, T_S, delta)


def least_epsilon(
    rate: float, multiplier: float, chance: float, count: int, delta: float, step: float = 4e-5, reach: float = 20.0
) -> float:
    """Return a lower bound on epsilon of `count` steps, each of which visibly happens with `chance`, or shows nothing.

    The privacy losses of (1-q) N(0) + q N(1) against N(0) are rounded *down* to a grid of `step` and composed by FFT.
    Losses beyond the reach are dropped; those below its negative would come round as a gain, but have probability e^-20 at
    most.

    Args:
        rate, multiplier: of the Poisson-sampled Gaussian of a step that happens.
    """
    losses = step * np.arange(math.floor(math.log1p(-rate) / step), math.ceil(reach / step))
    with np.errstate(divide="ignore", invalid="ignore"):
        x = multiplier**2 * np.log((np.expm1(losses) + rate) / rate) + 0.5
    x = np.where(np.isnan(x), -np.inf, x)
    reached = (1 - rate) * norm.cdf(x, 0, multiplier) + rate * norm.cdf(x, 1, multiplier)
    wheel = np.zeros(2 * math.ceil(reach / step))
    wheel[np.rint(losses[:-1] / step).astype(int)] = chance * np.diff(reached)
    wheel[0] += 1 - chance
    total = np.clip(np.fft.irfft(np.fft.rfft(wheel) ** count, len(wheel))[: len(wheel) // 2], 0.0, None)
    grid = step * np.arange(len(total))
    low, high = 0.0, reach / 2
    for _ in range(40):
        middle = (low + high) / 2
        if np.sum(total * -np.expm1(np.minimum(middle - grid, 0.0))) > delta:
            low = middle
        else:
            high = middle
    return low
