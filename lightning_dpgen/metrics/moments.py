"""Distances between the first and second moments of real and synthetic records."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric


class MomentDistance(Metric):
    """Root mean squared difference of column means, and of covariances between columns.

    Args:
        width: number of columns m.

    Example:
        >>> metric = MomentDistance(2)
        >>> metric.update(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), real=True)
        >>> metric.update(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), real=False)
        >>> {name: round(float(value), 3) for name, value in metric.compute().items()}
        {'means': 0.0, 'covariances': 0.354}
    """

    full_state_update = False
    higher_is_better = False

    def __init__(self, width: int, **kwargs) -> None:
        super().__init__(**kwargs)
        for side in ("real", "synthetic"):
            self.add_state(f"{side}_count", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
            self.add_state(f"{side}_sum", torch.zeros(width, dtype=torch.float64), dist_reduce_fx="sum")
            self.add_state(f"{side}_square", torch.zeros(width, width, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, records: Tensor, *, real: bool) -> None:
        """Take in records (n, m) of one side."""
        side = "real" if real else "synthetic"
        rows = records.double()
        getattr(self, f"{side}_count").add_(len(rows))
        getattr(self, f"{side}_sum").add_(rows.sum(dim=0))
        getattr(self, f"{side}_square").add_(rows.T @ rows)

    def compute(self) -> dict[str, Tensor]:
        """Return ``means`` and ``covariances``, in the units of the records and their squares."""
        sides = []
        for side in ("real", "synthetic"):
            count = getattr(self, f"{side}_count")
            mean = getattr(self, f"{side}_sum") / count
            sides.append((mean, getattr(self, f"{side}_square") / count - torch.outer(mean, mean)))
        (mean, covariance), (other_mean, other_covariance) = sides
        return {
            "means": (mean - other_mean).square().mean().sqrt(),
            "covariances": (covariance - other_covariance).square().mean().sqrt(),
        }
