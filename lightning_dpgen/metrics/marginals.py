"""Differences of the shares of values, of the associations of columns, and of records by their Wasserstein distance."""

from __future__ import annotations

import numpy as np
import scipy.sparse
import torch
from scipy.stats import wasserstein_distance
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.metrics.columns import (
    blocks,
    check_fit,
    choose_pairs,
    column_sizes,
    columns,
    count_cells,
    count_pairs,
    subsample,
    varying_units,
    written_out,
)
from lightning_dpgen.metrics.measure import A_COLUMN, COLUMNS, TABLE, Need, Result, register
from lightning_dpgen.metrics.sides import Collected, EncodedSides, Sides, TwoSided, compare, named_scores

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
    summary = {}
    for name, distances in values.items():
        if len(distances):
            summary |= {f"{name}_mean": distances.mean(), f"{name}_worst": distances.max()}
    return summary


@register(
    "images", "series", section=COLUMNS, place=20, better="lower", needs=(A_COLUMN,),
    says="Total variation distance between the shares of values, and of pairs of values: 0 equal, 1 disjoint.",
    glance={"one column, mean": "mean distance of a column", "two columns, mean": "mean distance of two columns"},
)  # fmt: skip
def compare_columns(sides: EncodedSides) -> Result:
    """Compare the shares of the values of columns, and of pairs of columns."""
    metrics = compare(MarginalDistance(sides.layout, seed=sides.seed), sides)
    distances, shares = metrics[0].distances(), metrics[0].shares()
    expected = metrics[1].distances()["one_way"].tolist() if len(metrics) > 1 else [None] * len(shares)
    units, groups = sides.layout.units, len(sides.layout.groups)
    # Pixels, readings and items have pictures of their own.
    worst = sorted(range(units, units + groups), key=lambda column: -float(distances["one_way"][column]))
    figures = {
        "columns": [
            {"name": sides.names[column - units], "column": column, "distance": float(distances["one_way"][column]),
             "expected": expected[column],
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


TRANSPORT = "Wasserstein distance"
# The most records of a side between which a distance is computed, and the most numbers that are written out.
MOVED, _NUMBERS = 10_000, 1 << 24


class WassersteinDistance(Collected):
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

    higher_is_better = False

    def __init__(self, width: int, *, directions: int = 128, seed: int = 0, **kwargs) -> None:
        for name, value in (("width", width), ("directions", directions)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name}={value!r}: expected a whole number, 1 or more")
        super().__init__(width, **kwargs)
        self._directions, self._seed = directions, seed

    def compute(self) -> dict[str, Tensor]:
        """Return the mean and the worst distance of a column, and the mean over directions (``sliced``).

        Raises:
            ValueError: where one side has no record.
        """
        real, synthetic = (side.cpu().numpy() for side in self._sides())
        columns = moved_columns(real, synthetic)
        sliced = sliced_wasserstein(real, synthetic, directions=self._directions, seed=self._seed)
        found = {"columns_mean": columns.mean(), "columns_worst": columns.max(), "sliced": sliced}
        return {name: torch.tensor(float(value)) for name, value in found.items()}


def moved_columns(real: np.ndarray, synthetic: np.ndarray) -> np.ndarray:
    """Return the Wasserstein-1 distance (width,) of each column of records (n, width) and (m, width)."""
    return np.array([wasserstein_distance(real[:, i], synthetic[:, i]) for i in range(real.shape[1])])


def sliced_wasserstein(real: np.ndarray, synthetic: np.ndarray, *, directions: int = 128, seed: int = 0) -> float:
    """Return the mean Wasserstein-1 distance of records (n, width) and (m, width) along random directions."""
    width = real.shape[1]
    drawn = np.random.default_rng(seed).standard_normal((directions if width > 1 else 1, width))
    along = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return float(np.mean([wasserstein_distance(real @ u, synthetic @ u) for u in along]))


@register(
    "series", section=TRANSPORT, place=55, better="lower", needs=(A_COLUMN,),
    says="How far records have to be moved to become the real ones, along random directions and unit by unit, each choice "
    "written as 0 and 1.",
)  # fmt: skip
@register(
    TABLE, section=TRANSPORT, place=75, better="lower", needs=(A_COLUMN,),
    says="How far records have to be moved to become the real ones, along random directions; a number is its place in the "
    "declared range, a category is written as 0 and 1.",
)  # fmt: skip
def _move(sides: Sides) -> Result:
    """Compare whole records, over random directions, and single units where these are of one kind."""
    sides = sides.encoded
    layout = sides.layout
    # Distances of few records are larger by chance, so there are as many on each side.
    most = min(MOVED, max(1, _NUMBERS // layout.width), *map(len, (sides.real, *sides.compared)))
    real, results = _numbers(sides.real, layout, most, sides.seed), []
    for other in sides.compared:
        numbers = _numbers(other, layout, most, sides.seed + 1)
        scores = {"whole records, sliced": sliced_wasserstein(real, numbers, seed=sides.seed)}
        if layout.units and sides.alike:
            units = moved_columns(real[:, : layout.units], numbers[:, : layout.units])
            scores |= {"one unit, mean": float(units.mean()), "one unit, worst": float(units.max())}
        results.append(scores)
    return Result(*results)


def _numbers(encoded: Encoded, layout: Layout, most: int, seed: int) -> np.ndarray:
    return written_out(subsample(encoded, most, seed), layout).double().numpy()


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
