"""Labels: the difference of their shares, and the scores of a released classifier."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.metrics.measure import A_LABEL, TABLE, Need, Result, register
from lightning_dpgen.metrics.sides import EncodedSides, Sides

# Bins of equal width in which stated probabilities are compared with how often they are right (Guo et al. 2017).
_BINS = 15
# The least probability that a log loss counts.
_LEAST = 1e-12


def classifier_scores(shares: Tensor, labels: Tensor) -> dict[str, float]:
    """Score a classifier on records with known labels.

    Args:
        shares: (N, labels) the probabilities of labels, N above 0.
        labels: (N,) the true ones.

    Returns:
        ``accuracy``; ``log loss``, in nats; ``calibration error``: the mean difference between the probability of the
        answer and how often it is right, over 15 bins of that probability.

    Example:
        >>> classifier_scores(torch.tensor([[0.75, 0.25]] * 4), torch.tensor([0, 0, 0, 1]))["calibration error"]
        0.0
    """
    probable, told = shares.max(dim=1)
    right = (told == labels).to(shares.dtype)
    bins = (probable * _BINS).long().clamp(max=_BINS - 1)
    off = torch.zeros(_BINS, dtype=shares.dtype).index_add_(0, bins, right - probable).abs().sum() / len(labels)
    own = shares[torch.arange(len(labels)), labels].clamp(min=_LEAST)
    return {"accuracy": float(right.mean()), "log loss": float(-own.log().mean()), "calibration error": float(off)}


@register(
    "images", section="pictures", place=11, better="lower", needs=(A_LABEL,),
    says="Shares of labels: total variation.",
)  # fmt: skip
def _compare_labels(sides: EncodedSides) -> Result:
    label = sides.layout.label
    real, *others = (
        np.bincount(side.codes[:, label], minlength=sides.layout.groups[label]) / len(side)
        for side in (sides.real, *sides.compared)
    )
    return Result(*({"labels, total variation": float(0.5 * np.abs(other - real).sum())} for other in others))


@register(
    "images", "baskets", "series", TABLE, section="the released classifier", place=0, better="target",
    says="The classifier that the release holds, on real records that nothing was learned from: how often its answer is "
    "right, its mean log loss in nats, and by how much the probability of its answer is off on average.",
    needs=(Need(lambda sides: sides.answers is not None),),
    glance={"accuracy": "accuracy of the released classifier"},
)  # fmt: skip
def _score_answers(sides: Sides) -> Result | str:
    return sides.answers if isinstance(sides.answers, str) else Result(classifier_scores(*sides.answers))
