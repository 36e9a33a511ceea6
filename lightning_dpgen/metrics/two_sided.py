"""The base of metrics that add up numbers of real and of synthetic records."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric


class TwoSided(Metric):
    """Sums over the records of each side, as states whose first axis is the side: synthetic, then real.

    Args:
        sums: the shape of each sum, by its name.
        dtype: int64 for counts, float64 for other sums.
    """

    full_state_update = False
    higher_is_better = False

    def __init__(self, sums: dict[str, tuple[int, ...]], dtype: torch.dtype = torch.int64, **kwargs) -> None:
        super().__init__(**kwargs)
        self.add_state("records", torch.zeros(2, dtype=torch.int64), dist_reduce_fx="sum")
        for name, shape in sums.items():
            self.add_state(name, torch.zeros(2, *shape, dtype=dtype), dist_reduce_fx="sum")

    def _add(self, real: bool, count: int, **sums: np.ndarray | Tensor) -> None:
        """Add sums over so many records of one side."""
        self.records[int(real)] += count
        for name, found in sums.items():
            state = getattr(self, name)
            state[int(real)] += torch.as_tensor(found).to(state)

    def _counts(self) -> Tensor:
        """Return the numbers of records (2, 1).

        Raises:
            ValueError: where one side has no record.
        """
        if not self.records.all():
            raise ValueError(f"{type(self).__name__} of no records: expected at least one real and one synthetic record")
        return self.records[:, None]
