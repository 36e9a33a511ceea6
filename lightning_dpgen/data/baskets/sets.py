"""Sets as rows of a matrix, and which items of too large a set are kept."""

from __future__ import annotations

import numpy as np

# Public and fixed: a large basket is cut the same way wherever it is read.
_KEY = np.uint64(0x9E3779B97F4A7C15)
_AT_ONCE = 1 << 20


def as_sets(baskets: np.ndarray, items: np.ndarray, n: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a matrix, each item once and in order: indptr (n + 1,) int64 and items (E,) int32."""
    cells = np.sort(baskets * width + items)
    cells = cells[np.diff(cells, prepend=-1) != 0]
    baskets, items = np.divmod(cells, width)
    return np.concatenate([[0], np.cumsum(np.bincount(baskets, minlength=n))]), items.astype(np.int32)


def chosen(indptr: np.ndarray, items: np.ndarray, most: int) -> np.ndarray:
    """Mark the items (E,) that are among the `most` of their basket with the smallest hashes of item and basket."""
    kept = np.ones(len(items), bool)
    large = np.flatnonzero(np.diff(indptr) > most)
    # Few at a time: the hashes of an item take many times the memory of the item.
    ends = np.cumsum(indptr[large + 1] - indptr[large])
    for part in np.split(large, np.searchsorted(ends, np.arange(_AT_ONCE, ends[-1] if len(ends) else 0, _AT_ONCE))):
        begins, sizes = indptr[part], indptr[part + 1] - indptr[part]
        starts = np.cumsum(sizes) - sizes
        places = np.repeat(begins - starts, sizes) + np.arange(sizes.sum())
        kept[places] = _among(items[places], starts, sizes, most)
    return kept


def _among(items: np.ndarray, starts: np.ndarray, sizes: np.ndarray, most: int) -> np.ndarray:
    """Do so for consecutive baskets that are all too large."""
    hashes = _mixed(items.astype(np.uint64) + np.uint64(1))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes, dtype=np.uint64)])
    # Sums modulo 2^64, so that those over a basket are differences, whatever stands before it.
    of_basket = np.repeat(_mixed(sums[starts + sizes] - sums[starts]), sizes)
    order = np.lexsort((_mixed(hashes ^ of_basket), np.repeat(np.arange(len(sizes)), sizes)))
    kept = np.empty(len(items), bool)
    # Entries of a basket stay together, so that they begin where they did before.
    kept[order] = np.arange(len(items)) - np.repeat(starts, sizes) < most
    return kept


def _mixed(values: np.ndarray) -> np.ndarray:
    """Mix by SplitMix64 (Steele, Lea and Flood 2014): a bijection of 64 bits that looks random."""
    values = values + _KEY
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
