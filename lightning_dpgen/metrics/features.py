"""Encoded records as inputs of scikit-learn's classifiers, and written out for distances."""

from __future__ import annotations

import numpy as np
import scipy.sparse
import torch

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.metrics.columns import blocks

# The most units that trees look at; of more, the ones that vary most stand for all.
MOST_UNITS = 100
# The most categories that histogram boosting has bins for.
MOST_CATEGORIES = 255


def subsample(encoded: Encoded, most: int, seed: int) -> Encoded:
    """Choose at most so many of the records by a seed, and keep their order.

    Example:
        >>> records = Encoded(np.zeros((9, 0), np.uint8), np.arange(9, dtype=np.uint8)[:, None])
        >>> len(subsample(records, 4, seed=0)), subsample(records, 9, seed=0) is records
        (4, True)
    """
    if len(encoded) <= most:
        return encoded
    return encoded[np.sort(np.random.default_rng(seed).choice(len(encoded), size=most, replace=False))]


def varying_units(sides: list[Encoded], most: int) -> np.ndarray:
    """Return the units, ascending, that vary most in all records of all sides: at most so many.

    Example:
        >>> records = Encoded(np.array([[0, 0, 1], [0, 1, 1], [0, 0, 0]], np.uint8), np.zeros((3, 0), np.uint8))
        >>> varying_units([records], 2).tolist()
        [1, 2]
    """
    sums, squares = np.zeros((2, sides[0].units.shape[1]))
    for side in sides:
        for block in blocks(side, len(sums)):
            values = block.units.astype(np.float64)
            sums += values.sum(axis=0)
            squares += (values**2).sum(axis=0)
    count = max(1, sum(len(side) for side in sides))
    variance = squares / count - (sums / count) ** 2
    return np.sort(np.argsort(-variance, kind="stable")[:most])


def ordinals(encoded: Encoded, layout: Layout, units: np.ndarray, groups: list[int], *, total: bool = True) -> np.ndarray:
    """Write some units, the sum of all units and the codes of some groups as (N, columns) float32, for trees.

    The sum is there if there are several units, and it has a meaning (`total`): a basket's size, a picture's ink, a day's
    load. Columns of a table do not add up.

    Example:
        >>> records = Encoded(np.array([[1, 0, 1]], np.uint8), np.array([[4, 2]], np.uint8))
        >>> ordinals(records, Layout(units=3, levels=1, groups=(5, 3)), np.array([0, 1]), [1])
        array([[1., 0., 2., 2.]], dtype=float32)
    """
    values = encoded.units[:, units]
    values = values.toarray() if scipy.sparse.issparse(values) else values
    parts = [values, encoded.codes[:, groups]]
    if layout.units > 1 and total:
        sums = encoded.units.sum(axis=1, dtype=np.float64)
        parts.insert(1, np.asarray(sums).reshape(-1, 1))
    return np.concatenate([part.astype(np.float32) for part in parts], axis=1)


def categorical(layout: Layout, columns: int, groups: list[int]) -> list[bool]:
    """Mark the columns of `ordinals` that are categories with few enough choices for bins of their own."""
    few = [layout.groups[group] <= MOST_CATEGORIES for group in groups]
    return [False] * (columns - len(groups)) + few


def one_hot(encoded: Encoded, layout: Layout, groups: list[int]) -> np.ndarray | scipy.sparse.csr_array:
    """Write all units in [0, 1], then the choices of some groups as 0 and 1, for linear classifiers.

    Returns:
        (N, width) float32; a CSR matrix if most of it is zeros.

    Example:
        >>> records = Encoded(np.array([[51]], np.uint8), np.array([[1, 0]], np.uint8))
        >>> one_hot(records, Layout(units=1, levels=255, groups=(3, 2)), [0]).toarray()
        array([[0.2, 0. , 1. , 0. ]], dtype=float32)
    """
    units = encoded.units.astype(np.float32)
    if not scipy.sparse.issparse(units):
        units /= layout.levels or 1
    sizes = np.array([layout.groups[group] for group in groups], dtype=np.int64)
    if not scipy.sparse.issparse(units) and not len(groups):
        return units
    n = len(encoded)
    places = encoded.codes[:, groups] + (np.cumsum(sizes) - sizes)
    ones = np.ones(places.size, np.float32)
    starts = np.arange(n + 1) * len(groups)
    choices = scipy.sparse.csr_array((ones, places.reshape(-1), starts), shape=(n, int(sizes.sum())))
    if scipy.sparse.issparse(units) or layout.units < sizes.sum():
        return scipy.sparse.hstack([scipy.sparse.csr_array(units), choices], format="csr", dtype=np.float32)
    return np.concatenate([units, choices.toarray()], axis=1)


def written_out(encoded: Encoded, layout: Layout) -> torch.Tensor:
    """Write all units in [0, 1] and all choices as 0 and 1: (N, width) float32, for distances between records."""
    values = one_hot(encoded, layout, list(range(len(layout.groups))))
    return torch.from_numpy(values.toarray() if scipy.sparse.issparse(values) else values)
