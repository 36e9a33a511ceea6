"""Membership inference: an attacker tells the records of a training from others, by a score of each."""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from lightning_dpgen.metrics.tensors import check_scores


class MembershipInference(Metric):
    """Accuracy and AUC of a membership inference attack that gives a score to each record, higher for likely members.

    Members and others are taken in equal numbers, so guessing is right half of the time. The threshold is chosen on every
    second record and tested on the rest, so that chance does not count as success. The interval is that of Clopper and
    Pearson (1934) for all tested records together: with unequal chances of the two kinds the number of right answers varies
    less than that of equal ones (Hoeffding 1956), so it covers as often or more.

    Scores may be those of a critic (dp-GAN, section 5), the negative distance to the nearest synthetic record, or the
    likelihood ratio of models that were trained with and without a record.

    Args:
        confidence: that of the interval.

    Example:
        >>> metric = MembershipInference()
        >>> metric.update(torch.arange(100.0) + 200.0, member=True)
        >>> metric.update(torch.arange(100.0), member=False)
        >>> {name: round(float(value), 3) for name, value in metric.compute().items()}
        {'accuracy': 1.0, 'low': 0.964, 'high': 1.0, 'auc': 1.0, 'tested': 100.0}
    """

    full_state_update = False
    higher_is_better = False

    def __init__(self, confidence: float = 0.95, **kwargs) -> None:
        super().__init__(**kwargs)
        if not isinstance(confidence, float) or not 0.0 < confidence < 1.0:
            raise ValueError(f"confidence={confidence!r}: expected a number between 0 and 1")
        self.confidence = confidence
        for side in ("members", "others"):
            self.add_state(side, [], dist_reduce_fx="cat")

    def update(self, scores: Tensor, *, member: bool) -> None:
        """Take in the scores (n,) of records of one kind.

        Raises:
            ValueError: for no tensor of finite numbers, or another shape.
        """
        check_scores("scores", scores)
        (self.members if member else self.others).append(scores.to(torch.float64))

    def _sides(self) -> tuple[np.ndarray, np.ndarray]:
        """Return scores of as many members as others."""
        members, others = (
            dim_zero_cat(side).cpu().numpy() if len(side) else np.zeros(0) for side in (self.members, self.others)
        )
        count = min(len(members), len(others))
        if count < 4:
            raise ValueError(f"{len(members)} members and {len(others)} others: expected 4 or more of each")
        return members[:count], others[:count]

    def compute(self) -> dict[str, Tensor]:
        """Return ``accuracy``, its interval (``low``, ``high``), the ``auc`` of all, and the number of records ``tested``.

        Raises:
            ValueError: for fewer than four records of either kind.
        """
        members, others = self._sides()
        chosen, tested = ((members[i::2], others[i::2]) for i in (0, 1))
        false, true, thresholds = roc_curve(np.repeat([1, 0], list(map(len, chosen))), np.concatenate(chosen))
        threshold = thresholds[np.argmax(true - false)]
        count = min(map(len, tested))
        right = int((tested[0][:count] >= threshold).sum() + (tested[1][:count] < threshold).sum())
        interval = binomtest(right, 2 * count).proportion_ci(self.confidence, method="exact")
        auc = roc_auc_score(np.repeat([1, 0], len(members)), np.concatenate([members, others]))
        found = {
            "accuracy": right / (2 * count), "low": interval.low, "high": interval.high, "auc": auc, "tested": 2.0 * count
        }  # fmt: skip
        return {name: torch.tensor(float(value)) for name, value in found.items()}

    def roc(self) -> tuple[np.ndarray, np.ndarray]:
        """Return false and true positive rates of all thresholds.

        Raises:
            ValueError: as `compute`.
        """
        members, others = self._sides()
        return roc_curve(np.repeat([1, 0], len(members)), np.concatenate([members, others]))[:2]
