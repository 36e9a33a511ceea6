"""From guesses to lower bounds: an attack that is right so often proves a least epsilon."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri
from scipy.stats import beta, binom, rankdata
from scipy.stats import t as student

from lightning_dpgen.privacy.accounting.accountant import gaussian_epsilon

# Halvings of the interval in which an epsilon is looked for.
_HALVINGS = 60
_LARGEST = 100.0
# A share of pairs in the wrong order is about normal if so many scores are among them.
_MIXED = 30.0


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
        raise ValueError(f"right={right}, guesses={guesses}, canaries={canaries}: expected right <= guesses <= canaries")
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
    # P[Bin >= v], and P[Bin >= v - i] for each i. A law that is made first, as an object, takes as long as all of them.
    i = np.arange(right + 1)
    at_least, *less = binom.sf(right - i - 1, guesses, 1.0 / (1.0 + math.exp(-epsilon)))
    fewer = (np.array(less) - at_least) / i[1:]
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


@dataclass(frozen=True)
class Shift:
    """The mu that pairs of runs show.

    Args:
        mu: the estimate, without a sign.
        low: the lower bound of mu.
        high: the upper bound of what this attack shows, which is no upper bound of mu.
    """

    mu: float
    low: float
    high: float


def paired_shift(without: np.ndarray, present: np.ndarray, confidence: float) -> Shift:
    """Return the mu that runs in pairs show, which may share their noise.

    A score with the record is above one without it, of another pair, with probability ``Phi(mu / sqrt 2)`` at most, since
    the whole trade-off curve is below that of mu (Dong, Roth, Su 2019). The share of such pairs of pairs is a U-statistic,
    whose deviation the jackknife estimates from above (Efron and Stein 1981). Where the two runs of a pair share their
    noise, most of the deviation cancels: mu comes within ``0.8 / sqrt(pairs)`` of itself, and not within 1.4 over mu times
    that. Where nearly all scores are apart, `gaussian_shift` takes its place. Each of the two has half of the error.

    Args:
        without, present: (n,) scores of runs without the record and with it; the scores at one place may share their noise,
            and are independent of all others.
        confidence: of each end of the interval, by Student's t.

    Raises:
        ValueError: for arrays of other shapes, or fewer than three pairs.

    Example:
        >>> noise = np.random.default_rng(0).normal(size=2_000)
        >>> found = paired_shift(noise, noise + 0.25, 0.99)
        >>> 0.23 < found.low < 0.25 < found.high < 0.27
        True
    """
    n = len(without)
    if without.shape != present.shape or without.ndim != 1 or n < 3:
        raise ValueError(f"scores {without.shape}, {present.shape}: expected pairs, three or more")
    check_confidence(confidence)
    matched = (without < present) + 0.5 * (without == present)
    # For each score without the record those above it with it, and the reverse; its own pair is left out.
    joint = rankdata(np.concatenate([without, present]))
    above = n - (joint[:n] - rankdata(without)) - matched
    below = joint[n:] - rankdata(present) - matched
    total = above.sum() / (n * (n - 1))
    left_out = (n * (n - 1) * total - above - below) / ((n - 1) * (n - 2))
    deviation = math.sqrt((n - 1) / n * float(((left_out - total) ** 2).sum()))
    error = 0.5 * (1.0 - confidence)

    def shift(share: float) -> float:
        return max(0.0, math.sqrt(2.0) * float(ndtri(min(max(share, 0.0), 1.0))))

    low = gaussian_shift(without, present, 1.0 - error)
    if n * (1.0 - total) >= _MIXED:
        low = max(low, shift(total - float(student.isf(error, n - 1)) * deviation))
    return Shift(shift(total), low, shift(total + float(student.isf(2.0 * error, n - 1)) * deviation))


def pure_epsilon(without: np.ndarray, present: np.ndarray, confidence: float) -> float:
    """Return a lower bound of epsilon at delta = 0, from how much more often a threshold is passed with the record."""
    above, below = rates(without, present, confidence, between=False)
    return max(0.0, math.log(below / above)) if below > 0.0 else 0.0


def check_confidence(confidence: float) -> None:
    """Raise ValueError unless it is a probability from 0.5."""
    if not 0.5 <= confidence < 1.0:
        raise ValueError(f"confidence={confidence}: expected a number from 0.5, below 1")
