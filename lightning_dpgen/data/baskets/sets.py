"""Sets as rows of a matrix, and the choice of items that too large a set keeps."""

from __future__ import annotations

import numpy as np

from lightning_dpgen.data.persons import mixed

_AT_ONCE = 1 << 20


def as_sets(baskets: np.ndarray, items: np.ndarray, n: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a matrix, each item once and in order: indptr (n + 1,) int64 and items (E,) int32."""
    cells = np.sort(baskets * width + items)
    cells = cells[np.diff(cells, prepend=-1) != 0]
    baskets, items = np.divmod(cells, width)
    return np.concatenate([[0], np.cumsum(np.bincount(baskets, minlength=n))]), items.astype(np.int32)


def chosen(indptr: np.ndarray, items: np.ndarray, most: int) -> np.ndarray:
    """Mark the items (E,) that are among the `most` of their basket with the smallest hashes of item and basket.

    The hash is public and fixed: a large basket is cut the same way wherever it is read.
    """
    kept = np.ones(len(items), bool)
    large = np.flatnonzero(np.diff(indptr) > most)
    # Few baskets at a time: the hashes of an item take many times the memory of the item.
    ends = np.cumsum(indptr[large + 1] - indptr[large])
    for part in np.split(large, np.searchsorted(ends, np.arange(_AT_ONCE, ends[-1] if len(ends) else 0, _AT_ONCE))):
        begins, sizes = indptr[part], indptr[part + 1] - indptr[part]
        starts = np.cumsum(sizes) - sizes
        places = np.repeat(begins - starts, sizes) + np.arange(sizes.sum())
        kept[places] = _among(items[places], starts, sizes, most)
    return kept


def _among(items: np.ndarray, starts: np.ndarray, sizes: np.ndarray, most: int) -> np.ndarray:
    """Do so for consecutive baskets that are all too large."""
    hashes = mixed(items.astype(np.uint64) + np.uint64(1))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes, dtype=np.uint64)])
    # Sums are modulo 2^64, so that a basket's is a difference, whatever stands before it.
    of_basket = np.repeat(mixed(sums[starts + sizes] - sums[starts]), sizes)
    order = np.lexsort((mixed(hashes ^ of_basket), np.repeat(np.arange(len(sizes)), sizes)))
    kept = np.empty(len(items), bool)
    # Entries of a basket stay together, so that each basket begins where it did.
    kept[order] = np.arange(len(items)) - np.repeat(starts, sizes) < most
    return kept
