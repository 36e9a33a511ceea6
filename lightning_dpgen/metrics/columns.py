"""Encoded records as columns of small whole numbers, which are counted, and as numbers for classifiers and distances."""

from __future__ import annotations

import numpy as np
import scipy.sparse
import torch

from lightning_dpgen.data.layout import Encoded, Layout, smallest_integer
from lightning_dpgen.sampling.errors import BadRecords

# Bins of [0, 1] for units that are not just 0 and 1: equal and fixed, so that nothing is read off the records.
BINS = 10
# Numbers that are made dense at a time.
_AT_ONCE = 1 << 24
# The most units that trees look at; of more, the ones that vary most stand for all.
MOST_UNITS = 100
# The most categories that histogram boosting has bins for.
MOST_CATEGORIES = 255


def column_sizes(layout: Layout) -> np.ndarray:
    """Return the number of values (columns,) that each column can have: 2 or `BINS` a unit, then the choices of groups.

    Example:
        >>> column_sizes(Layout(units=2, levels=1, groups=(5,))), column_sizes(Layout(units=1, levels=255))
        (array([2, 2, 5]), array([10]))
    """
    return np.array([2 if layout.levels == 1 else BINS] * layout.units + list(layout.groups), dtype=np.int64)


def check_fit(encoded: Encoded, layout: Layout) -> None:
    """Raise unless these are records of this layout.

    Raises:
        BadRecords: if they are not. The message names no record.
    """
    found = (encoded.units.shape[1:], encoded.codes.shape)
    if found != ((layout.units,), (encoded.units.shape[0], len(layout.groups))):
        raise BadRecords(
            f"encoded records have {encoded.units.shape[1:]} units and codes of shape {encoded.codes.shape}: expected "
            f"{layout.units} units and {len(layout.groups)} codes of each record, as their layout says"
        )
    if scipy.sparse.issparse(encoded.units) and layout.levels != 1:
        raise BadRecords(f"units are a sparse matrix with levels={layout.levels}: a sparse one holds 0 and 1, levels=1")
    codes, units = encoded.codes, encoded.units
    if codes.size and ((codes.min(axis=0) < 0).any() or (codes.max(axis=0) >= np.array(layout.groups)).any()):
        raise BadRecords("encoded records hold codes beyond the choices of their group: expected 0 to one less than those")
    values = units.data if scipy.sparse.issparse(units) else units
    most = 1 if layout.levels is None else layout.levels
    # NaN fails the comparison too.
    if values.size and not (values.min() >= 0 and values.max() <= most):
        raise BadRecords(f"units hold NaN, or values outside 0 to {most}: encode the records by their schema")


def columns(encoded: Encoded, layout: Layout, which: np.ndarray) -> np.ndarray:
    """Return the values of some columns in each record: units in their bins, groups as their codes.

    Args:
        encoded: N records that fit.
        which: columns, ascending: units from 0, then groups.

    Returns:
        (len(which), N) in the smallest whole-number type that fits, one row a column.

    Example:
        >>> encoded = Encoded(np.array([[0, 255], [30, 20]], np.uint8), np.array([[3], [1]], np.uint8))
        >>> columns(encoded, Layout(units=2, levels=255, groups=(4,)), np.array([0, 1, 2])).tolist()
        [[0, 1], [9, 0], [3, 1]]
    """
    units, groups = which[which < layout.units], which[which >= layout.units] - layout.units
    binned = _binned(encoded.units, units, layout.levels).T
    codes = encoded.codes[:, groups].T
    if not len(groups) or not len(units):
        return np.ascontiguousarray(codes if len(groups) else binned)
    kind = smallest_integer(int(column_sizes(layout)[which].max()) - 1)
    return np.concatenate([binned.astype(kind), codes.astype(kind)])


def _binned(values: np.ndarray | scipy.sparse.csr_array, which: np.ndarray, levels: int | None) -> np.ndarray:
    """Return the bin of each value, (N, len(which)) uint8."""
    if scipy.sparse.issparse(values):
        return (values[:, which].toarray() != 0).view(np.uint8)
    values = values[:, which]
    if levels == 1:
        return values.astype(np.uint8, copy=False)
    if levels is None:
        return np.minimum(values * np.float32(BINS), BINS - 1).astype(np.uint8)
    return np.minimum(values.astype(np.int64) * BINS // levels, BINS - 1).astype(np.uint8)


def blocks(encoded: Encoded, width: int) -> list[Encoded]:
    """Cut the records into blocks that may be made dense in `width` columns."""
    step = max(1, _AT_ONCE // max(1, width))
    return [encoded[start : start + step] for start in range(0, len(encoded), step)]


def choose_pairs(sizes: np.ndarray, most: int, cells: int, seed: int) -> np.ndarray:
    """Return all pairs of columns, or a choice of them by a public seed if there are too many.

    Args:
        most: largest number of pairs.
        cells: largest number of cells of all their tables together.

    Returns:
        (pairs, 2) columns a < b, in order.

    Example:
        >>> choose_pairs(np.array([2, 2, 2]), most=10, cells=100, seed=0).tolist()
        [[0, 1], [0, 2], [1, 2]]
        >>> len(choose_pairs(np.full(20_000, 2), most=500, cells=10**6, seed=0))
        500
    """
    total = len(sizes) * (len(sizes) - 1) // 2
    chosen = np.random.default_rng(seed).choice(total, size=min(most, total), replace=False)
    # Pair number b (b - 1) / 2 + a; the root of a whole number that large is off by less than one half.
    second = ((1 + np.sqrt(1 + 8 * chosen.astype(np.float64))) / 2 + 1e-9).astype(np.int64)
    pairs = np.stack([chosen - second * (second - 1) // 2, second], axis=1)
    kept = pairs[np.cumsum(sizes[pairs].prod(axis=1)) <= cells]
    return kept[np.lexsort(kept.T[::-1])]


def count_cells(encoded: Encoded, layout: Layout) -> np.ndarray:
    """Count each value of each column, one column after the other: (sum of sizes,) int64."""
    sizes, first = column_sizes(layout), 0
    counts = [np.zeros(0, np.int64)]
    if scipy.sparse.issparse(encoded.units):
        ones = np.asarray((encoded.units != 0).sum(axis=0), dtype=np.int64)
        counts.append(np.stack([len(encoded) - ones, ones], axis=1).reshape(-1))
        first = layout.units
    for row, size in zip(columns(encoded, layout, np.arange(first, len(sizes))), sizes[first:], strict=True):
        counts.append(np.bincount(row, minlength=size))
    return np.concatenate(counts)


def count_pairs(values: np.ndarray, sizes: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Count the contingency tables of pairs of columns, each row by row, one after the other.

    Args:
        values: (columns, N), as `columns` returns them.
        pairs: (pairs, 2) places in `values`.
    """
    counts = [
        np.bincount(values[a].astype(np.int64) * sizes[b] + values[b], minlength=sizes[a] * sizes[b]) for a, b in pairs
    ]
    return np.concatenate([np.zeros(0, np.int64), *counts])


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
