"""From guesses to lower bounds: an attack that is right so often proves a least epsilon."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri
from scipy.stats import beta, binom

from lightning_dpgen.privacy.accountant import gaussian_epsilon

# Halvings of the interval in which an epsilon is looked for.
_HALVINGS = 60
_LARGEST = 100.0


@dataclass(frozen=True)
class Finding:
    """A finding of an audit about one claim.

    Args:
        what: the audited part.
        claim: the epsilon that is claimed for it.
        bound: lower bound of its epsilon, with the confidence of the audit.
        delta: delta of both; 0 for pure ones.
        how: the method, in words.
    """

    what: str
    claim: float
    bound: float
    delta: float
    how: str

    @property
    def refuted(self) -> bool:
        """True if the claim is false, unless the audit was misled by chance."""
        return self.bound > self.claim * (1.0 + 1e-9)


def one_run_epsilon(canaries: int, guesses: int, right: int, delta: float, confidence: float = 0.95) -> float:
    """Return the lower bound of epsilon from one run with many canaries (Steinke, Nasr and Jagielski 2023, Theorem 5.2).

    Each canary took part with probability 1/2, independently; `guesses` of them were guessed upon, and `right` guesses were
    right. If the run is (epsilon, delta)-private for each canary, then with ``p = e^eps / (1 + e^eps)``

        P[right >= v] <= P[Bin(r, p) >= v] + 2 m delta max_i P[v > Bin(r, p) >= v - i] / i.

    Args:
        canaries: m.
        guesses: r, fixed before the run.
        right: v.

    Raises:
        ValueError: for impossible numbers.

    Example:
        >>> round(one_run_epsilon(1000, 100, 90, 1e-5), 3)
        1.626
    """
    if not 0 <= right <= guesses <= canaries or canaries < 1:
        raise ValueError(f"right={right}, guesses={guesses}, canaries={canaries}: expected each at most the next")
    check_confidence(confidence)
    low, high = 0.0, _LARGEST
    if _chance(canaries, guesses, right, delta, 0.0) >= 1.0 - confidence:
        return 0.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        told = _chance(canaries, guesses, right, delta, middle) < 1.0 - confidence
        low, high = (middle, high) if told else (low, middle)
    return low


def _chance(canaries: int, guesses: int, right: int, delta: float, epsilon: float) -> float:
    law = binom(guesses, 1.0 / (1.0 + math.exp(-epsilon)))
    i = np.arange(1, right + 1)
    # P[Bin >= v - i] less P[Bin >= v].
    at_least = law.sf(right - 1)
    fewer = (law.sf(right - i - 1) - at_least) / i
    return float(at_least + 2.0 * canaries * delta * (fewer.max() if right else 0.0))


def rates(without: np.ndarray, present: np.ndarray, confidence: float, *, between: bool = True) -> tuple[float, float]:
    """Return bounds of how often a threshold on scores is passed without a record, from above, and with it, from below.

    The first half of each chooses the threshold, the second half counts (Clopper and Pearson).

    Args:
        without, present: scores of runs without the record and with it; larger where it is present.
        confidence: confidence of both bounds together.
        between: the threshold lies halfway between the two means; otherwise at the mean of those with the record.
    """
    check_confidence(confidence)
    cut, end = len(without) // 2, len(present) // 2
    threshold = present[:end].mean()
    if between:
        threshold = 0.5 * (threshold + without[:cut].mean())
    error = 0.5 * (1.0 - confidence)
    false, n = int((without[cut:] >= threshold).sum()), len(without) - cut
    true, m = int((present[end:] >= threshold).sum()), len(present) - end
    above = 1.0 if false == n else float(beta.ppf(1.0 - error, false + 1, n - false))
    below = 0.0 if true == 0 else float(beta.ppf(error, true, m - true + 1))
    return above, below


def gaussian_shift(without: np.ndarray, present: np.ndarray, confidence: float) -> float:
    """Return a lower bound of mu: a smaller mu would hide the record better (Dong, Roth, Su 2019).

    Args:
        without, present, confidence: see `rates`.

    Returns:
        The bound; 0 if the runs cannot be told apart.

    Example:
        >>> random = np.random.default_rng(0)
        >>> 0.8 < gaussian_shift(random.normal(size=20_000), 1.0 + random.normal(size=20_000), 0.99) < 1.0
        True
    """
    above, below = rates(without, present, confidence)
    return max(0.0, float(ndtri(below) - ndtri(above)))


def gaussian_bound(without: np.ndarray, present: np.ndarray, confidence: float, delta: float) -> float:
    """Return the lower bound of epsilon at delta that follows from `gaussian_shift`."""
    shift = gaussian_shift(without, present, confidence)
    return gaussian_epsilon(shift, delta) if shift else 0.0


def pure_epsilon(without: np.ndarray, present: np.ndarray, confidence: float) -> float:
    """Return a lower bound of epsilon at delta = 0, from how much more often a threshold is passed with the record."""
    above, below = rates(without, present, confidence, between=False)
    return max(0.0, math.log(below / above)) if below > 0.0 else 0.0


def check_confidence(confidence: float) -> None:
    """Raise ValueError unless it is a probability from 0.5."""
    if not 0.5 <= confidence < 1.0:
        raise ValueError(f"confidence={confidence}: expected a number from 0.5, below 1")
