"""Sets as rows of a matrix, and which items of too large a set are kept."""

from __future__ import annotations

import numpy as np

# Public and fixed: a large basket is cut the same way wherever it is read.
_KEY = np.uint64(0x9E3779B97F4A7C15)


def as_sets(baskets: np.ndarray, items: np.ndarray, n: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a matrix, each item once, in order: indptr (n + 1,) int64 and items (E,) int32."""
    cells = np.sort(baskets * width + items)
    cells = cells[np.diff(cells, prepend=-1) != 0]
    baskets, items = np.divmod(cells, width)
    return np.concatenate([[0], np.cumsum(np.bincount(baskets, minlength=n))]), items.astype(np.int32)


def chosen(indptr: np.ndarray, items: np.ndarray, most: int) -> np.ndarray:
    """Which items (E,) are among the `most` of their basket with the smallest hashes of item and whole basket."""
    sizes = np.diff(indptr)
    large = np.flatnonzero(np.repeat(sizes > most, sizes))
    hashes = _mixed(items.astype(np.uint64) + np.uint64(1))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes, dtype=np.uint64)])
    # Sums modulo 2^64, so that those over a basket are differences, whatever stands before it.
    of_basket = np.repeat(_mixed(sums[indptr[1:]] - sums[indptr[:-1]]), sizes)[large]
    baskets = np.repeat(np.arange(len(sizes)), sizes)[large]
    order = np.lexsort((_mixed(hashes[large] ^ of_basket), baskets))
    # Within each basket: its entries stay together, so that they begin where they did before.
    ranks = np.arange(len(large)) - np.searchsorted(baskets, baskets)
    kept = np.ones(len(items), bool)
    kept[large[order[ranks >= most]]] = False
    return kept


def _mixed(values: np.ndarray) -> np.ndarray:
    """SplitMix64 (Steele, Lea and Flood 2014): a bijection of 64 bits that looks random."""
    values = values + _KEY
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
