"""Baskets: how often items are bought, and how many at a time."""

from __future__ import annotations

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torchmetrics import Metric


class BasketDistance(Metric):
    """Total variation distances between the items bought, and between the sizes of baskets: 0 equal, 1 disjoint.

    Args:
        items: number of items that there are.

    Example:
        >>> metric = BasketDistance(3)
        >>> metric.update(np.array([[1, 1, 0], [1, 0, 1]], np.uint8), real=True)
        >>> metric.update(np.array([[1, 0, 0], [1, 0, 1]], np.uint8), real=False)
        >>> {name: round(float(value), 3) for name, value in metric.compute().items()}
        {'items': 0.25, 'sizes': 0.5}
    """

    full_state_update = False
    higher_is_better = False

    def __init__(self, items: int, **kwargs) -> None:
        super().__init__(**kwargs)
        self.add_state("records", torch.zeros(2, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("items", torch.zeros(2, items, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("sizes", torch.zeros(2, items + 1, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, baskets: np.ndarray | scipy.sparse.csr_array, *, real: bool) -> None:
        """Take in baskets (N, items) of 0 and 1 of one side, dense or CSR.

        Raises:
            ValueError: for another number of items.
        """
        if baskets.shape[1] != self.items.shape[1]:
            raise ValueError(f"baskets of {baskets.shape[1]} items: expected {self.items.shape[1]}")
        held = scipy.sparse.csr_array(baskets) != 0
        sizes = np.bincount(np.asarray(held.sum(axis=1)), minlength=self.sizes.shape[1])
        for state, found in ((self.items, np.asarray(held.sum(axis=0))), (self.sizes, sizes)):
            state[int(real)] += torch.from_numpy(found).to(state)
        self.records[int(real)] += baskets.shape[0]

    def shares(self) -> dict[str, Tensor]:
        """Return the shares of baskets that hold each item, ``items`` (2, items), and that have each size from 0, ``sizes``
        (2, items + 1); synthetic first.

        Raises:
            ValueError: where one side has no basket.
        """
        if not self.records.all():
            raise ValueError("distances of no baskets: expected at least one real and one synthetic one")
        return {name: getattr(self, name).double() / self.records[:, None] for name in ("items", "sizes")}

    def compute(self) -> dict[str, Tensor]:
        """Return the distance of ``items``, as shares of all that is bought, and of ``sizes``, as shares of baskets."""
        shares = self.shares()
        bought = shares["items"].sum(dim=1, keepdim=True)
        if bought.all():
            items = 0.5 * (shares["items"] / bought).diff(dim=0).abs().sum()
        else:
            items = bought.any().double()
        return {"items": items, "sizes": 0.5 * shares["sizes"].diff(dim=0).abs().sum()}
