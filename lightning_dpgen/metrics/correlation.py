"""Associations between columns, and the differences between those of synthetic and of real records."""

from __future__ import annotations

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.metrics.columns import blocks, check_fit, choose_pairs, columns, count_pairs, varying_units
from lightning_dpgen.metrics.marginals import mean_and_worst
from lightning_dpgen.metrics.measure import Need, Result, register
from lightning_dpgen.metrics.sides import EncodedSides
from lightning_dpgen.metrics.two_sided import TwoSided, compare, named_scores

_CELLS = 1 << 23
# Items whose associations are compared: too few baskets hold two of the others.
COMMON_ITEMS = 200
# Below this a variance in [0, 1] is rounding: float32 units that are all the same.
_CONSTANT = 1e-12


class AssociationDistance(TwoSided):
    """Differences of Cramer's V between groups, and of Pearson's correlation between units.

    V does not depend on the order of choices, which categories do not have, and is in [0, 1] however many there are;
    correlations of one-hot numbers would count a column once for each of its choices. It is corrected for its bias
    (Bergsma 2013), so that sides of different sizes compare. Where a column is constant there is no association: 0.

    Args:
        most_pairs: number of pairs of groups beyond which a choice of pairs stands for all.
        most_units: number of units beyond which a choice of units stands for all.
        seed: seed of these choices; public.

    Attributes:
        pairs: (pairs, 2) groups.
        units: (some,) units, ascending, whose correlations are compared.

    Example:
        >>> metric = AssociationDistance(Layout(units=2))
        >>> none = np.zeros((3, 0), np.uint8)
        >>> metric.update(Encoded(np.array([[0, 0], [0.5, 0.5], [1, 1]], np.float32), none), real=True)
        >>> metric.update(Encoded(np.array([[0, 1], [0.5, 0.5], [1, 0]], np.float32), none), real=False)
        >>> metric.compute()
        {'units_mean': tensor(2., dtype=torch.float64), 'units_worst': tensor(2., dtype=torch.float64)}
    """

    def __init__(self, layout: Layout, *, most_pairs: int = 500, most_units: int = 300, seed: int = 0, **kwargs) -> None:
        wide, random = min(most_units, layout.units), np.random.default_rng(seed)
        super().__init__({"sums": (wide,), "products": (wide, wide)}, torch.float64, **kwargs)
        self.layout = layout
        self.sizes = np.array(layout.groups, dtype=np.int64)
        self.pairs = choose_pairs(self.sizes, most_pairs, _CELLS, seed)
        self.units = np.sort(random.choice(layout.units, size=wide, replace=False))
        cells = int(self.sizes[self.pairs].prod(axis=1).sum())
        self.add_state("tables", torch.zeros(2, cells, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, encoded: Encoded, *, real: bool) -> None:
        """Take in records of one side.

        Raises:
            BadRecords: for records that are not of the layout.
        """
        check_fit(encoded, self.layout)
        groups = np.arange(len(self.sizes)) + self.layout.units
        for block in blocks(encoded, len(self.units) + len(groups)):
            tables = count_pairs(columns(block, self.layout, groups), self.sizes, self.pairs)
            values = block.units[:, self.units].astype(np.float64)
            if not scipy.sparse.issparse(values):
                values /= self.layout.levels or 1
            products = values.T @ values
            if scipy.sparse.issparse(products):
                products = products.toarray()
            self._add(real, len(block), tables=tables, sums=np.asarray(values.sum(axis=0)), products=products)

    def differences(self) -> dict[str, Tensor]:
        """Return absolute differences: ``groups`` (pairs,) in [0, 1], and ``units`` (pairs of units,) in [0, 2].

        Raises:
            ValueError: where one side has no record.
        """
        self._counts()
        groups = [self._associations(side) for side in (0, 1)]
        units = [self._correlations(side) for side in (0, 1)]
        return {"groups": (groups[0] - groups[1]).abs(), "units": (units[0] - units[1]).abs()}

    def compute(self) -> dict[str, Tensor]:
        """Return the mean and the worst of `differences`, for each kind that is not empty."""
        return mean_and_worst(self.differences())

    def _associations(self, side: int) -> Tensor:
        shapes = self.sizes[self.pairs]
        tables = torch.split(self.tables[side], shapes.prod(axis=1).tolist())
        found = [cramers_v(table.reshape(*shape).cpu().numpy()) for table, shape in zip(tables, shapes, strict=True)]
        return torch.tensor(found, dtype=torch.float64)

    def _correlations(self, side: int) -> Tensor:
        mean = self.sums[side] / self.records[side]
        covariance = self.products[side] / self.records[side] - torch.outer(mean, mean)
        variance = covariance.diagonal()
        varies = variance > _CONSTANT
        scale = torch.where(varies, variance, torch.inf).rsqrt()
        upper = torch.triu_indices(len(mean), len(mean), offset=1, device=mean.device)
        return (covariance * torch.outer(scale, scale)).clamp(-1.0, 1.0)[upper[0], upper[1]]


def cramers_v(table: np.ndarray) -> float:
    """Compute Cramer's V of a table of counts, corrected for its bias: 0 without association, 1 if a column decides.

    Choices that do not occur are left out. V is 0 if a column has one value only.

    Example:
        >>> cramers_v(np.array([[50, 0], [0, 50]])), cramers_v(np.array([[25, 25], [25, 25]]))
        (1.0, 0.0)
    """
    table = table[table.sum(axis=1) > 0][:, table.sum(axis=0) > 0].astype(np.float64)
    rows, width = table.shape
    n = table.sum()
    if min(rows, width) < 2 or n < 2:
        return 0.0
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / n
    square = ((table - expected) ** 2 / expected).sum() / n - (rows - 1) * (width - 1) / (n - 1)
    fewest = min(rows - (rows - 1) ** 2 / (n - 1), width - (width - 1) ** 2 / (n - 1)) - 1
    if fewest <= 0.0:
        # As many choices as records: nothing can be said.
        return 0.0
    return float(np.sqrt(min(1.0, max(0.0, square) / fewest)))


GROUPS_APART = {"groups_mean": "Cramer's V, mean difference", "groups_worst": "Cramer's V, worst difference"}
_UNITS_APART = {"units_mean": "correlation, mean difference", "units_worst": "correlation, worst difference"}


@register(
    "baskets", "series", section="associations", place=30, better="lower",
    says="Cramer's V of two columns, or the correlation of two units: how far the synthetic one is from the real one.",
    needs=(
        Need(lambda sides: sides.layout.units > 1 or len(sides.layout.groups) > 1,
             "the records have no two columns to be associated"),
    ),
)  # fmt: skip
def _associate(sides: EncodedSides) -> Result:
    if sides.kind == "baskets":
        sides = sides.of_units(varying_units([sides.real, sides.synthetic], COMMON_ITEMS))
    metrics = compare(AssociationDistance(sides.layout, seed=sides.seed), sides)
    return Result(*named_scores(metrics, GROUPS_APART | _UNITS_APART))
