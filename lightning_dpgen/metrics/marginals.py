"""Marginals: differences of the shares of values of one column, and of pairs of values of two columns."""

from __future__ import annotations

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.metrics.columns import blocks, check_fit, choose_pairs, column_sizes, columns, count_cells, count_pairs
from lightning_dpgen.metrics.measure import A_COLUMN, COLUMNS, Result, register
from lightning_dpgen.metrics.sides import EncodedSides
from lightning_dpgen.metrics.two_sided import TwoSided, compare, named_scores

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


@register(
    "images", "series", section=COLUMNS, place=20, better="lower", needs=(A_COLUMN,),
    says="Total variation distance between the shares of values, and of pairs of values: 0 equal, 1 disjoint.",
    glance={"one column, mean": "mean distance of a column", "two columns, mean": "mean distance of two columns"},
)  # fmt: skip
def _compare_columns(sides: EncodedSides) -> Result:
    metrics = compare(MarginalDistance(sides.layout, seed=sides.seed), sides)
    distances, shares = metrics[0].distances(), metrics[0].shares()
    units, groups = sides.layout.units, len(sides.layout.groups)
    # Pixels, readings and items have pictures of their own.
    worst = sorted(range(units, units + groups), key=lambda column: -float(distances["one_way"][column]))
    figures = {
        "columns": [
            {"name": sides.names[column - units], "column": column, "distance": float(distances["one_way"][column]),
             "choices": None if sides.choices is None else sides.choices[column - units],
             "synthetic": shares[column][0].numpy(), "real": shares[column][1].numpy()}
            for column in worst
        ],
        "pairs": [
            {"columns": (int(a), int(b)), "distance": float(value)}
            for (a, b), value in zip(metrics[0].pairs, distances["two_way"], strict=True)
            if min(a, b) >= units
        ],
    }  # fmt: skip
    words = {"one_way_mean": "one column, mean", "one_way_worst": "one column, worst",
             "two_way_mean": "two columns, mean", "two_way_worst": "two columns, worst"}  # fmt: skip
    return Result(*named_scores(metrics, words), figures=figures)
