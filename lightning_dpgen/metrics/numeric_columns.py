"""Distances of columns of numbers, by their values and without bins."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.stats import wasserstein_distance
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat


class NumericDistance(Metric):
    """Kolmogorov-Smirnov and Wasserstein distances of columns of numbers, and differences of their missing shares.

    The Kolmogorov-Smirnov distance is the largest difference of two distribution functions, 0 for equal columns and 1 for
    disjoint ones. A missing value counts as larger than all others, so the distance is at least the difference of the
    shares of missing values. The Wasserstein-1 distance is of the values that are there, as a share of the range. Where a
    side has no value it is 1, and 0 where neither has one.

    Args:
        ranges: (columns,) positive numbers, the public range of each column; None for ranges of 1.
        width: number of columns, where no ranges are given.

    Example:
        >>> metric = NumericDistance(torch.tensor([10.0]))
        >>> metric.update(torch.tensor([[0.0], [0.0], [0.0], [4.0]]), real=True)
        >>> metric.update(torch.tensor([[0.0], [2.0], [4.0], [6.0]]), real=False)
        >>> {name: round(float(value), 3) for name, value in metric.compute().items() if name.endswith("mean")}
        {'kolmogorov_smirnov_mean': 0.5, 'wasserstein_mean': 0.2, 'missing_mean': 0.0}
    """

    full_state_update = False
    higher_is_better = False

    def __init__(self, ranges: Tensor | None = None, *, width: int | None = None, **kwargs) -> None:
        super().__init__(**kwargs)
        if ranges is None:
            if type(width) is not int or width < 1:
                raise ValueError(f"width={width!r}: expected a whole number, 1 or more, or ranges")
            ranges = torch.ones(width, dtype=torch.float64)
        valid = isinstance(ranges, Tensor) and ranges.ndim == 1 and len(ranges) and torch.isfinite(ranges).all()
        if not valid or not (ranges > 0).all():
            raise ValueError("ranges: expected a tensor (columns,) of positive numbers")
        self._ranges = ranges.double().cpu().numpy()
        for side in ("real", "synthetic"):
            self.add_state(side, [], dist_reduce_fx="cat")

    def update(self, values: Tensor, *, real: bool) -> None:
        """Take in values (n, columns) of one side, NaN where missing.

        Raises:
            ValueError: for no tensor of real numbers, another width, or an infinite number.
        """
        if not isinstance(values, Tensor) or values.is_complex():
            raise ValueError(
                f"values: found {type(values).__name__}, expected a tensor (n, {len(self._ranges)}) of numbers"
            )
        if values.ndim != 2 or values.shape[1] != len(self._ranges):
            raise ValueError(f"values of shape {tuple(values.shape)}: expected (n, {len(self._ranges)})")
        if torch.isinf(values).any():
            raise ValueError("values hold infinite numbers: expected finite ones, or NaN where missing")
        (self.real if real else self.synthetic).append(values.to(torch.float64))

    def distances(self) -> dict[str, Tensor]:
        """Return ``kolmogorov_smirnov``, ``wasserstein`` and ``missing``, each (columns,).

        Raises:
            ValueError: where one side has no record.
        """
        sides = [
            dim_zero_cat(side).cpu().numpy() if len(side) else np.zeros((0, 1)) for side in (self.real, self.synthetic)
        ]
        if not all(map(len, sides)):
            raise ValueError("NumericDistance of no records: expected at least one on each side")
        pairs = [(sides[0][:, column], sides[1][:, column]) for column in range(len(self._ranges))]
        found = {
            "kolmogorov_smirnov": [_largest_difference(*pair) for pair in pairs],
            "wasserstein": [_moved(*pair, width) for pair, width in zip(pairs, self._ranges, strict=True)],
            "missing": [abs(np.isnan(a).mean() - np.isnan(b).mean()) for a, b in pairs],
        }
        return {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}

    def compute(self) -> dict[str, Tensor]:
        """Return the mean and the worst of `distances`, as ``<name>_mean`` and ``<name>_worst``."""
        found = self.distances()
        return {
            f"{name}_{what}": getattr(values, of)() for name, values in found.items() for what, of in _SUMMARIES.items()
        }


_SUMMARIES = {"mean": "mean", "worst": "max"}


def _largest_difference(one: np.ndarray, other: np.ndarray) -> float:
    points = np.unique(np.concatenate([one[~np.isnan(one)], other[~np.isnan(other)]]))
    # NaN is sorted to the end.
    shares = [np.searchsorted(np.sort(side), points, "right") / len(side) for side in (one, other)]
    return float(np.abs(shares[0] - shares[1]).max(initial=0.0))


def _moved(one: np.ndarray, other: np.ndarray, width: float) -> float:
    one, other = (side[~np.isnan(side)] for side in (one, other))
    if not len(one) or not len(other):
        return 0.0 if len(one) == len(other) else 1.0
    found = wasserstein_distance(one, other) / width
    return found if math.isfinite(found) else 1.0
