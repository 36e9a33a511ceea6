"""Shadow models: an attacker trains models with and without each record, and compares how they score it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# The least variance that is divided by.
_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class Shadows:
    """Scores of the same records by several models. Private, where the records are.

    Args:
        scores: (models, n) by an attack that is higher for likely members.
        inside: (models, n) whether a model has learned from a record.
    """

    scores: Tensor
    inside: Tensor


def train_shadows(train: Callable[[np.ndarray, int], Tensor], n: int, models: int, *, seed: int = 0) -> Shadows:
    """Train models on random parts of n records, and score all records by each.

    Each record takes part in each model by a fair coin of its own, so epsilon for one record that is added or removed
    bounds every attack on a model.

    Args:
        train: learns from the records at these places (ascending), under this number of a model, and returns the scores
            (n,) of all records.
        n: the number of records.
        models: how many; each may stand for the attacked one beside the others (`likelihood_ratios`).
        seed: seed of the coins.

    Example:
        >>> found = train_shadows(lambda places, _: torch.zeros(4), 4, 2)
        >>> found.scores.shape, found.inside.sum(dim=1).tolist()
        (torch.Size([2, 4]), [2, 2])
    """
    random, scores, inside = np.random.default_rng(seed), [], []
    for number in range(models):
        taken = random.random(n) < 0.5
        scores.append(train(np.flatnonzero(taken), number).to(torch.float64))
        inside.append(torch.from_numpy(taken))
    return Shadows(torch.stack(scores), torch.stack(inside))


def likelihood_ratios(shadows: Shadows) -> Tensor:
    """Score the records by each model as the attacked one, the others being its shadows (Carlini et al. 2022, LiRA).

    A record's scores by models with it, and by models without it, are taken as two normal distributions of one deviation;
    the logarithm of the ratio of their densities says for which its score speaks. Records that get high scores from any
    model then tell nothing, which can make this much stronger than scores alone. With few shadows a record's own means are
    uncertain, so their middle and their gap are shrunk towards those of all records (empirical Bayes).

    The membership in the attacked model has no part in its row: coins are independent.

    Returns:
        (models, n).

    Raises:
        ValueError: for fewer than three models.

    Example:
        >>> inside = torch.rand(8, 100, generator=torch.Generator().manual_seed(0)) < 0.5
        >>> found = likelihood_ratios(Shadows(torch.arange(100.0) + inside, inside))
        >>> bool(((found > 0) == inside).double().mean() > 0.95)
        True
    """
    if len(shadows.scores) < 3:
        raise ValueError(f"{len(shadows.scores)} models: expected 3 or more, one attacked and its shadows")
    # Models may score on scales of their own.
    scores = shadows.scores.to(torch.float64)
    scores = scores - scores.mean(dim=1, keepdim=True)
    scores = scores / scores.std(dim=1, keepdim=True).clamp_min(_TINY)
    found = []
    for target in range(len(scores)):
        others = torch.arange(len(scores), device=scores.device) != target
        found.append(_ratio(scores[target], scores[others], shadows.inside[others]))
    return torch.stack(found)


def _ratio(score: Tensor, shadows: Tensor, inside: Tensor) -> Tensor:
    """Return the logarithm (n,) of the ratio for one model."""
    sides = (inside, ~inside)
    counts = [side.sum(dim=0).double() for side in sides]
    means = [(shadows * side).sum(dim=0) / count.clamp_min(1.0) for side, count in zip(sides, counts, strict=True)]
    off = shadows - torch.where(inside, *means)
    # A mean of one score leaves nothing of it.
    free = float(sum((count - 1.0).clamp_min(0.0).sum() for count in counts))
    variance = max(float(off.square().sum()) / max(free, 1.0), _TINY)

    both = (counts[0] > 0.0) & (counts[1] > 0.0)
    uncertain = variance * sum(1.0 / count.clamp_min(1.0) for count in counts)
    gap = _shrunk(means[0] - means[1], uncertain, both)
    rest = (shadows - gap * (inside.double() - 0.5)).mean(dim=0)
    middle = _shrunk(rest, torch.full_like(rest, variance / len(shadows)), torch.ones_like(both))
    return gap * (score - middle) / variance


def _shrunk(values: Tensor, uncertain: Tensor, known: Tensor) -> Tensor:
    """Shrink values (n,) with these variances towards the mean of those that are known (empirical Bayes)."""
    if not known.any():
        return torch.zeros_like(values)
    mean = values[known].mean()
    true = ((values[known] - mean).square().mean() - uncertain[known].mean()).clamp_min(0.0)
    return torch.where(known, mean + true / (true + uncertain) * (values - mean), mean)
