"""Encoded records as columns of small whole numbers, so that shares of values, and of pairs of values, can be counted."""

from __future__ import annotations

import numpy as np
import scipy.sparse

from lightning_dpgen.data.layout import Encoded, Layout, smallest_integer
from lightning_dpgen.sampling.errors import BadRecords

# Bins of [0, 1] for units that are not just 0 and 1: equal and fixed, so that nothing is read off the records.
BINS = 10
# Numbers that are made dense at a time.
_AT_ONCE = 1 << 24


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
