"""Labels: the difference of their shares, classifiers trained on synthetic records, and the scores of a classifier."""

from __future__ import annotations

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

# Bins of equal width in which stated probabilities are compared with how often they are right (Guo et al. 2017).
_BINS = 15
# The least probability that a log loss counts.
_LEAST = 1e-12


class LabelDistance(Metric):
    """Total variation distance between the label shares of real and synthetic records: 0 equal, 1 disjoint.

    Example:
        >>> metric = LabelDistance(2)
        >>> metric.update(torch.tensor([0, 1]), real=True)
        >>> metric.update(torch.tensor([1, 1]), real=False)
        >>> float(metric.compute())
        0.5
    """

    full_state_update = False
    higher_is_better = False

    def __init__(self, classes: int, **kwargs) -> None:
        super().__init__(**kwargs)
        self.add_state("counts", torch.zeros(2, classes, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, labels: Tensor, *, real: bool) -> None:
        """Take in labels (n,) of one side."""
        self.counts[int(real)] += torch.bincount(labels, minlength=self.counts.shape[1])

    def compute(self) -> Tensor:
        shares = self.counts / self.counts.sum(dim=1, keepdim=True)
        return 0.5 * (shares[0] - shares[1]).abs().sum()


class TrainOnSynthetic(Metric):
    """Accuracy on real held-out records of a logistic regression trained on synthetic ones.

    ``update`` takes training records (``test=False``) and held-out ones (``test=True``).

    Example:
        >>> metric = TrainOnSynthetic()
        >>> x, y = torch.tensor([[0.0], [0.1], [0.9], [1.0]]), torch.tensor([0, 0, 1, 1])
        >>> metric.update(x, y, test=False); metric.update(x, y, test=True)
        >>> float(metric.compute())
        1.0
    """

    full_state_update = False
    higher_is_better = True

    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        for name in ("train_x", "train_y", "test_x", "test_y"):
            self.add_state(name, [], dist_reduce_fx="cat")

    def update(self, x: Tensor, y: Tensor, *, test: bool) -> None:
        """Take in records (n, m) and labels (n,)."""
        side = "test" if test else "train"
        getattr(self, f"{side}_x").append(x)
        getattr(self, f"{side}_y").append(y)

    def compute(self) -> Tensor:
        """Return the accuracy; if the training labels are all equal, that of always answering this label."""
        x, y = dim_zero_cat(self.train_x).numpy(), dim_zero_cat(self.train_y).numpy()
        test_x, test_y = dim_zero_cat(self.test_x).numpy(), dim_zero_cat(self.test_y).numpy()
        if (y == y[0]).all():
            return torch.tensor(float((test_y == y[0]).mean()))
        classifier = LogisticRegression(max_iter=200, tol=1e-3).fit(x, y)
        return torch.tensor(float(classifier.score(test_x, test_y)))


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
