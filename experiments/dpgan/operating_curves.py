"""Operating curves (ROC) of attacks: exact intervals, areas with bootstrap intervals, and the most that privacy allows."""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import beta, rankdata
from torch import Tensor

from lightning_dpgen.metrics.membership import MembershipInference
from lightning_dpgen.privacy.accounting.accountant import intervals_for, profile
from lightning_dpgen.privacy.plan import Plan

# Shares of the others that are taken for members.
WRONGLY = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_CONFIDENCE, _DRAWS = 0.95, 200
# Deltas below this one are taken for it.
_LEAST_DELTA = 1e-9


def pool(scores: Tensor) -> np.ndarray:
    """Return ranks (models, n) of the scores within each model, so that one threshold serves all models."""
    return np.stack([rankdata(one.numpy()) for one in scores])


def accuracies(scores: Tensor, inside: Tensor) -> dict[str, float]:
    """Attack all models together; scores and who was inside are (models, n).

    Returns:
        What `MembershipInference` computes.
    """
    ranks, metric = torch.from_numpy(pool(scores)), MembershipInference()
    metric.update(ranks[inside], member=True)
    metric.update(ranks[~inside], member=False)
    return {name: float(value) for name, value in metric.compute().items()}


def operating_points(scores: Tensor, inside: Tensor) -> dict[str, list[float]]:
    """Return shares of the members that are found, where at most some shares of the others are taken for members.

    A threshold is the lowest one that takes no more of the others than that. At it, the number of members found is
    binomial, so its interval is exact (Clopper and Pearson 1934, 95 % at each point); so is that of the share of others.

    Returns:
        ``wrongly``, the shares of others, and their upper ends ``wrongly_high``; ``rightly``, the shares of members,
        between ``low`` and ``high``.

    Example:
        >>> inside = torch.arange(2000)[None] >= 1000
        >>> found = operating_points(torch.arange(2000.0)[None], inside)
        >>> found["rightly"][0], round(found["low"][0], 4)
        (1.0, 0.9963)
    """
    ranks, inside = pool(scores), inside.numpy()
    members, others = np.sort(ranks[inside]), np.sort(ranks[~inside])[::-1]
    found: dict[str, list[float]] = {name: [] for name in ("wrongly", "rightly", "low", "high", "wrongly_high")}
    for share in WRONGLY:
        # Above the first of the others that must not be taken; ties with it are not taken.
        threshold = others[min(int(share * len(others)), len(others) - 1)]
        wrongly, rightly = (int((side > threshold).sum()) for side in (others, members))
        low, high = exact_interval(rightly, len(members))
        found["wrongly"].append(wrongly / len(others))
        found["rightly"].append(rightly / len(members))
        found["low"].append(low)
        found["high"].append(high)
        found["wrongly_high"].append(exact_interval(wrongly, len(others))[1])
    return found


def exact_interval(right: int, of: int) -> tuple[float, float]:
    """Return the interval of Clopper and Pearson (1934) for a share, at 95 %.

    Example:
        >>> exact_interval(0, 10)[0], round(exact_interval(0, 10)[1], 4)
        (0.0, 0.3085)
    """
    half = (1.0 - _CONFIDENCE) / 2.0
    low = float(beta.ppf(half, right, of - right + 1)) if right else 0.0
    high = float(beta.ppf(1.0 - half, right + 1, of - right)) if right < of else 1.0
    return low, high


def area(scores: Tensor, inside: Tensor, seed: int = 0) -> dict[str, float]:
    """Return the area under the curve, ``auc``, with its bootstrap interval at 95 %, ``low`` and ``high``.

    People are drawn anew, each with all that was said of them by all models.
    """
    models, n = scores.shape
    places = np.unique(pool(scores), return_inverse=True)[1].ravel()
    members = inside.numpy().ravel()

    def weighted(weights: np.ndarray) -> float:
        found, wrong = (np.bincount(places, np.where(side, weights, 0.0)) for side in (members, ~members))
        # Others that score less, and half of those that score the same.
        less = np.cumsum(wrong) - 0.5 * wrong
        return float(found @ less / (found.sum() * wrong.sum()))

    random = np.random.default_rng(seed)
    drawn = [
        weighted(np.tile(np.bincount(random.integers(n, size=n), minlength=n), models).astype(float)) for _ in range(_DRAWS)
    ]
    low, high = np.quantile(drawn, [(1.0 - _CONFIDENCE) / 2.0, (1.0 + _CONFIDENCE) / 2.0]).tolist()
    return {"auc": weighted(np.ones(models * n)), "low": low, "high": high}


def most_rightly(plan: Plan, wrongly: np.ndarray) -> np.ndarray:
    """Return the share of members that any attack on a run of a plan finds at most, by the share of others (m,).

    The privacy profile delta(epsilon) of the plan bounds it by ``e^epsilon wrongly + delta(epsilon)``, and by
    ``1 - e^-epsilon (1 - delta(epsilon) - wrongly)``, for each epsilon (Kairouz, Oh and Viswanath 2015).

    Returns:
        (m,) from 0 to 1; all 1 where the plan is not private.

    Example:
        >>> from lightning_dpgen import StageSpec, make_plan
        >>> plan = make_plan([StageSpec("mean", {"sum": 1.0}, 1, max_noise=100)], epsilon=1.0, delta=1e-5)
        >>> most_rightly(plan, np.array([0.0, 0.01, 1.0])).round(3).tolist()
        [0.0, 0.018, 1.0]
    """
    if not plan.private or not np.isfinite(plan.epsilon):
        return np.ones_like(wrongly)
    epsilons = np.linspace(0.0, plan.epsilon, 400)
    (interval, *_) = intervals_for(plan.event, plan.epsilon)
    deltas = profile(plan.event, epsilons, _LEAST_DELTA, interval)[:, None]
    grown = np.exp(epsilons)[:, None]
    most = np.minimum(grown * wrongly + deltas, 1.0 - (1.0 - deltas - wrongly) / grown)
    return most.min(axis=0).clip(0.0, 1.0)


def most_accurate(plan: Plan) -> float:
    """Return the accuracy that any attack on a run of a plan has at most, where half of the people are members."""
    wrongly = np.linspace(0.0, 1.0, 2001)
    return float((0.5 * (1.0 + most_rightly(plan, wrongly) - wrongly)).max())
