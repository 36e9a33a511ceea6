"""dp-GAN: Frigerio, de Oliveira, Gomez and Duverger, Differentially Private GANs for Time Series, ..., section 4.2."""

from __future__ import annotations

from experiments.accounting.moments import epsilon_from_moments


def dpgan_asymptotic(lam: float, q: float, sigma: float) -> float:
    """Compute alpha(lambda) <= q^2 lambda (lambda+1) / ((1-q) sigma^2), without its O(q^3/sigma^3).

    NOT a bound: it holds only for sigma >= 1 and lambda <= sigma^2 log(1/(q sigma)) (Abadi and others, Lemma 3), which
    the paper leaves out. Already at lambda = 1 the truth is q^2 (exp(1/sigma^2) - 1).

    Example:
        >>> from experiments.accounting.moments import sampled_moment
        >>> f"{dpgan_asymptotic(8, 0.00197, 0.6):.1e}", f"{sampled_moment(8, 0.00197, 0.6):.1f}"
        ('7.8e-04', '43.9')
    """
    return q * q * lam * (lam + 1) / ((1.0 - q) * sigma**2)


def dpgan_epsilon(q: float, sigma: float, steps: int, delta: float) -> float:
    """Compute Theorem 4.2 by Theorem 4.1 and the asymptotic: NOT a guarantee, since `dpgan_asymptotic` is no bound."""
    return epsilon_from_moments(lambda lam: steps * dpgan_asymptotic(lam, q, sigma), delta)
