"""The Wasserstein distance between records: exact in one dimension, over random directions beyond."""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import wasserstein_distance
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.metrics.columns import subsample, written_out
from lightning_dpgen.metrics.measure import A_COLUMN, TABLE, Result, register
from lightning_dpgen.metrics.sides import Sides
from lightning_dpgen.metrics.two_sided import Collected

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
    real, found = _numbers(sides.real, layout, most, sides.seed), []
    for other in sides.compared:
        made = _numbers(other, layout, most, sides.seed + 1)
        scores = {"whole records, sliced": sliced_wasserstein(real, made, seed=sides.seed)}
        if layout.units and sides.alike:
            units = moved_columns(real[:, : layout.units], made[:, : layout.units])
            scores |= {"one unit, mean": float(units.mean()), "one unit, worst": float(units.max())}
        found.append(scores)
    return Result(*found)


def _numbers(encoded: Encoded, layout: Layout, most: int, seed: int) -> np.ndarray:
    return written_out(subsample(encoded, most, seed), layout).double().numpy()
