"""The fit of clusters to known labels: the accuracy of the best one-to-one naming."""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torchmetrics import Metric


class ClusteringAccuracy(Metric):
    """The share of records whose cluster has the name of their label, by the best one-to-one naming (Hungarian algorithm).

    ACC of the DPGM paper (TKDE, section 6.2). Clusters beyond the number of labels have no name: their records are wrong.

    Example:
        >>> metric = ClusteringAccuracy(clusters=2, labels=2)
        >>> metric.update(torch.tensor([1, 1, 0, 0]), torch.tensor([0, 0, 1, 0]))
        >>> float(metric.compute())
        0.75
    """

    full_state_update = False
    higher_is_better = True

    def __init__(self, clusters: int, labels: int, **kwargs) -> None:
        super().__init__(**kwargs)
        self.add_state("counts", torch.zeros(clusters, labels, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, clusters: Tensor, labels: Tensor) -> None:
        """Take in the cluster (n,) and the label (n,) of records, whole numbers from 0.

        Raises:
            ValueError: for another number of labels than clusters, or numbers beyond those announced.
        """
        rows, columns = self.counts.shape
        if clusters.shape != labels.shape:
            raise ValueError(f"{len(clusters)} clusters and {len(labels)} labels: expected one of each a record")
        for name, given, most in (("cluster", clusters, rows), ("label", labels, columns)):
            if given.is_floating_point() or given.is_complex():
                raise ValueError(f"a {name} of {given.dtype}: expected whole numbers from 0 to {most - 1}")
            outside = given[(given < 0) | (given >= most)]
            if len(outside):
                raise ValueError(f"a {name} of {int(outside[0])}: expected whole numbers from 0 to {most - 1}")
        cells = clusters.to(torch.int64) * columns + labels.to(torch.int64)
        self.counts += torch.bincount(cells, minlength=rows * columns).view(rows, columns)

    def compute(self) -> Tensor:
        """Return the accuracy, from 0 to 1; NaN without records."""
        rows, columns = linear_sum_assignment(self.counts.cpu().numpy(), maximize=True)
        return self.counts[rows, columns].sum() / self.counts.sum()
