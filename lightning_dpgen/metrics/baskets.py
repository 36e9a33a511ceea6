"""Baskets: how often items are bought, and how many at a time."""

from __future__ import annotations

import numpy as np
import scipy.sparse
from torch import Tensor

from lightning_dpgen.metrics.two_sided import TwoSided


class BasketDistance(TwoSided):
    """Total variation distances between the items bought, and between the sizes of baskets: 0 equal, 1 disjoint.

    Example:
        >>> metric = BasketDistance(3)
        >>> metric.update(np.array([[1, 1, 0], [1, 0, 1]], np.uint8), real=True)
        >>> metric.update(np.array([[1, 0, 0], [1, 0, 1]], np.uint8), real=False)
        >>> {name: round(float(value), 3) for name, value in metric.compute().items()}
        {'items': 0.25, 'sizes': 0.5}
    """

    def __init__(self, items: int, **kwargs) -> None:
        super().__init__({"items": (items,), "sizes": (items + 1,)}, **kwargs)

    def update(self, baskets: np.ndarray | scipy.sparse.csr_array, *, real: bool) -> None:
        """Take in baskets (N, items) of 0 and 1 of one side, dense or CSR.

        Raises:
            ValueError: for another number of items.
        """
        if baskets.shape[1] != self.items.shape[1]:
            raise ValueError(f"baskets of {baskets.shape[1]} items: expected {self.items.shape[1]}")
        held = scipy.sparse.csr_array(baskets) != 0
        sizes = np.bincount(np.asarray(held.sum(axis=1)), minlength=self.sizes.shape[1])
        self._add(real, baskets.shape[0], items=np.asarray(held.sum(axis=0)), sizes=sizes)

    def shares(self) -> dict[str, Tensor]:
        """Return the shares of baskets that hold each item, ``items`` (2, items), and that have each size from 0, ``sizes``
        (2, items + 1); synthetic first.

        Raises:
            ValueError: where one side has no basket.
        """
        counts = self._counts()
        return {name: getattr(self, name).double() / counts for name in ("items", "sizes")}

    def compute(self) -> dict[str, Tensor]:
        """Return the distance of ``items``, as shares of all that is bought, and of ``sizes``, as shares of baskets."""
        shares = self.shares()
        bought = shares["items"].sum(dim=1, keepdim=True)
        if bought.all():
            items = 0.5 * (shares["items"] / bought).diff(dim=0).abs().sum()
        else:
            items = bought.any().double()
        return {"items": items, "sizes": 0.5 * shares["sizes"].diff(dim=0).abs().sum()}
