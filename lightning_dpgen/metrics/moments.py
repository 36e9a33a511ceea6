"""Distances between the first and second moments of real and synthetic records."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_dpgen.metrics.two_sided import TwoSided


class MomentDistance(TwoSided):
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

    def __init__(self, width: int, **kwargs) -> None:
        super().__init__({"sums": (width,), "squares": (width, width)}, torch.float64, **kwargs)

    def update(self, records: Tensor, *, real: bool) -> None:
        """Take in records (n, m) of one side."""
        rows = records.double()
        self._add(real, len(rows), sums=rows.sum(dim=0), squares=rows.T @ rows)

    def compute(self) -> dict[str, Tensor]:
        """Return ``means`` and ``covariances``, in the units of the records and their squares.

        Raises:
            ValueError: where one side has no record.
        """
        count = self._counts()
        means = self.sums / count
        covariances = self.squares / count[:, None] - means[:, :, None] * means[:, None]
        return {
            name: (synthetic - real).square().mean().sqrt()
            for name, (synthetic, real) in (("means", means), ("covariances", covariances))
        }
