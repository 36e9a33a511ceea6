"""The Wasserstein distance between records: exact in one dimension, over random directions beyond."""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import wasserstein_distance
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from lightning_dpgen.metrics.tensors import check_records


class WassersteinDistance(Metric):
    """The Wasserstein-1 distance of synthetic records from real ones, by columns and sliced (Bonneel et al. 2015).

    In one dimension it is exact: the area between two distribution functions. Records of more dimensions are projected to
    random directions, fixed by a seed, in each of which it is exact again; with more of these, their mean is nearer to that
    over all directions, which is a lower bound of the distance itself.

    Args:
        width: the number of numbers of a record.
        directions: the number of random directions; of records of one number there is one.
        seed: the seed of the directions.

    Example:
        >>> metric = WassersteinDistance(1)
        >>> metric.update(torch.tensor([[0.0], [1.0]]), real=True)
        >>> metric.update(torch.tensor([[0.5], [2.5]]), real=False)
        >>> {name: float(value) for name, value in metric.compute().items()}
        {'columns_mean': 1.0, 'columns_worst': 1.0, 'sliced': 1.0}
    """

    full_state_update = False
    higher_is_better = False

    def __init__(self, width: int, *, directions: int = 128, seed: int = 0, **kwargs) -> None:
        super().__init__(**kwargs)
        for name, value in (("width", width), ("directions", directions)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name}={value!r}: expected a whole number, 1 or more")
        drawn = np.random.default_rng(seed).standard_normal((directions if width > 1 else 1, width))
        self._directions = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
        self.width = width
        for side in ("real", "synthetic"):
            self.add_state(side, [], dist_reduce_fx="cat")

    def update(self, records: Tensor, *, real: bool) -> None:
        """Take in records (n, width) of one side.

        Raises:
            ValueError: for no tensor of finite numbers, or another width.
        """
        check_records("records", records, self.width)
        (self.real if real else self.synthetic).append(records.to(torch.float64))

    def compute(self) -> dict[str, Tensor]:
        """Return the mean and the worst distance of a column, and the mean over directions (``sliced``).

        Raises:
            ValueError: where one side has no record.
        """
        real, synthetic = (
            (dim_zero_cat(side) if len(side) else torch.zeros(0, self.width)).cpu().numpy()
            for side in (self.real, self.synthetic)
        )
        if not len(real) or not len(synthetic):
            raise ValueError("Wasserstein distance of no records: expected at least one on each side")
        columns = [wasserstein_distance(real[:, i], synthetic[:, i]) for i in range(self.width)]
        sliced = [wasserstein_distance(real @ u, synthetic @ u) for u in self._directions]
        found = {"columns_mean": np.mean(columns), "columns_worst": np.max(columns), "sliced": np.mean(sliced)}
        return {name: torch.tensor(float(value)) for name, value in found.items()}
