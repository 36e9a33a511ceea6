"""Marginals: differences of the shares of values of one column, and of pairs of values of two columns."""

from __future__ import annotations

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.metrics.columns import blocks, check_fit, choose_pairs, column_sizes, columns, count_cells, count_pairs
from lightning_dpgen.metrics.two_sided import TwoSided

# Cells of the tables of all pairs together: 64 MB a side.
_CELLS = 1 << 23


class MarginalDistance(TwoSided):
    """Total variation distance of one-way and two-way marginals: 0 equal, 1 disjoint.

    A column is a unit (in ten equal bins of [0, 1], or 0 and 1) or a group of the layout.

    Args:
        most_pairs: number of pairs beyond which a choice of pairs stands for all.
        seed: seed of that choice; public.

    Attributes:
        pairs: (pairs, 2) the columns of each pair, units from 0, then groups.
        sizes: (columns,) the number of values of each.

    Example:
        >>> metric = MarginalDistance(Layout(units=0, groups=(2, 2)))
        >>> sides = np.array([[0, 0], [1, 1]], np.uint8), np.array([[0, 1], [1, 0]], np.uint8)
        >>> metric.update(Encoded(np.zeros((2, 0), np.uint8), sides[0]), real=True)
        >>> metric.update(Encoded(np.zeros((2, 0), np.uint8), sides[1]), real=False)
        >>> {name: float(value) for name, value in metric.compute().items()}
        {'one_way_mean': 0.0, 'one_way_worst': 0.0, 'two_way_mean': 1.0, 'two_way_worst': 1.0}
    """

    def __init__(self, layout: Layout, *, most_pairs: int = 500, seed: int = 0, **kwargs) -> None:
        sizes = column_sizes(layout)
        pairs = choose_pairs(sizes, most_pairs, _CELLS, seed)
        super().__init__({"one_way": (int(sizes.sum()),), "two_way": (int(sizes[pairs].prod(axis=1).sum()),)}, **kwargs)
        self.layout, self.sizes, self.pairs = layout, sizes, pairs

    def update(self, encoded: Encoded, *, real: bool) -> None:
        """Take in records of one side.

        Raises:
            BadRecords: for records that are not of the layout.
        """
        check_fit(encoded, self.layout)
        paired = np.unique(self.pairs)
        places = np.searchsorted(paired, self.pairs)
        wide = len(paired) if scipy.sparse.issparse(encoded.units) else len(self.sizes)
        for block in blocks(encoded, wide):
            tables = count_pairs(columns(block, self.layout, paired), self.sizes[paired], places)
            self._add(real, len(block), one_way=count_cells(block, self.layout), two_way=tables)

    def shares(self) -> list[Tensor]:
        """Return for each column the shares of its values, (2, values), synthetic first.

        Raises:
            ValueError: where one side has no record.
        """
        return list(torch.split(self.one_way.double() / self._counts(), self.sizes.tolist(), dim=1))

    def distances(self) -> dict[str, Tensor]:
        """Return the distances ``one_way`` (columns,) and ``two_way`` (pairs,), each in [0, 1].

        Raises:
            ValueError: where one side has no record.
        """
        counts = self._counts()
        return {
            "one_way": _halved(self.one_way.double() / counts, self.sizes),
            "two_way": _halved(self.two_way.double() / counts, self.sizes[self.pairs].prod(axis=1)),
        }

    def compute(self) -> dict[str, Tensor]:
        """Return the mean and the worst of `distances`, for each kind that is not empty."""
        return mean_and_worst(self.distances())


def _halved(shares: Tensor, sizes: np.ndarray) -> Tensor:
    """Sum half the absolute differences over each table."""
    owners = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)).to(shares.device)
    differences = 0.5 * (shares[0] - shares[1]).abs()
    return torch.zeros(len(sizes), dtype=torch.float64, device=shares.device).index_add_(0, owners, differences)


def mean_and_worst(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the mean and the largest number of each tensor that is not empty.

    Example:
        >>> mean_and_worst({"a": torch.tensor([1.0, 3.0]), "b": torch.zeros(0)})
        {'a_mean': tensor(2.), 'a_worst': tensor(3.)}
    """
    found = {}
    for name, each in values.items():
        if len(each):
            found |= {f"{name}_mean": each.mean(), f"{name}_worst": each.max()}
    return found
