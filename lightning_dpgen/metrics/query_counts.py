"""Exact counts of baskets that hold all, or any, of the items of each of many queries, 64 baskets or queries to a word."""

from __future__ import annotations

import numpy as np
import scipy.sparse

from lightning_dpgen.sampling.csr import mark_entries

# Baskets that are taken at a time, fewer if they would have more cells of (items asked for, baskets) than this: so the
# work stays in the processor's cache.
_MOST_ROWS, _CELLS, _WORD = 1 << 12, 1 << 24, 64


class QueryCounts:
    """Counting queries, prepared once for any number of baskets.

    For ANY, each item is a row of bits, one for each query that names it, and the rows of a basket's items are joined. For
    ALL, each item is a row of bits, one for each basket that holds it, and the rows of a query's items are intersected;
    hardly any query has a basket left after three items.

    Args:
        queries: (Q, items) CSR, not 0 for items that are asked for; at least one in each row.

    Example:
        >>> counts = QueryCounts(scipy.sparse.csr_array(np.array([[1, 1, 0], [0, 0, 1]])))
        >>> counts.of(scipy.sparse.csr_array(np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0]])))
        (array([1, 0]), array([2, 0]))
    """

    def __init__(self, queries: scipy.sparse.csr_array) -> None:
        queries = mark_entries(scipy.sparse.csr_array(queries))
        self.count, self.items = queries.shape
        asked, columns = np.unique(queries.indices, return_inverse=True)
        # The place of each item among those that are asked for.
        self._column = np.full(self.items, -1)
        self._column[asked] = np.arange(len(asked))
        self._asked, self._starts, self._lengths = columns, queries.indptr[:-1], np.diff(queries.indptr)
        named = np.zeros((len(asked), _words(self.count) * _WORD), bool)
        named[columns, np.repeat(np.arange(self.count), self._lengths)] = True
        self._named = _packed(named)

    def of(self, baskets: np.ndarray | scipy.sparse.csr_array) -> tuple[np.ndarray, np.ndarray]:
        """Count the baskets (N, items), dense or CSR, that hold ALL and ANY of each query's items: (Q,) int64 each."""
        all_of, any_of = np.zeros(self.count, np.int64), np.zeros(self.count, np.int64)
        step = max(_WORD, min(_MOST_ROWS, _CELLS // len(self._named)))
        for start in range(0, baskets.shape[0], step):
            block = scipy.sparse.csr_array(baskets[start : start + step])
            held = block.data != 0
            column = self._column[block.indices[held]]
            row = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))[held][column >= 0]
            column = column[column >= 0]
            # A power of two, so that halves can be added.
            rows = 1 << max(6, (block.shape[0] - 1).bit_length())
            all_of += self._all(row, column, rows)
            any_of += self._any(row, column, rows)
        return all_of, any_of

    def _all(self, row: np.ndarray, column: np.ndarray, rows: int) -> np.ndarray:
        held = np.zeros((len(self._named), rows), bool)
        held[column, row] = True
        bits = _packed(held)
        found, left = np.zeros(self.count, np.int64), np.arange(self.count)
        both = bits[self._asked[self._starts]]
        for taken in range(1, int(self._lengths.max()) + 1):
            done = self._lengths[left] == taken
            found[left[done]] = np.unpackbits(both[done].view(np.uint8), axis=1).sum(axis=1)
            on = ~done & both.any(axis=1)
            left = left[on]
            if not len(left):
                break
            both = both[on] & bits[self._asked[self._starts[left] + taken]]
        return found

    def _any(self, row: np.ndarray, column: np.ndarray, rows: int) -> np.ndarray:
        sizes = np.bincount(row, minlength=rows)
        # The largest baskets first, so that those which have one more item are always the first ones.
        order = np.argsort(-sizes, kind="stable")
        starts, sizes = (np.cumsum(sizes) - sizes)[order], sizes[order]
        hit = np.zeros((rows, self._named.shape[1]), np.uint64)
        for taken in range(int(sizes[0])):
            some = np.searchsorted(-sizes, -taken)
            hit[:some] |= self._named[column[starts[:some] + taken]]
        return _column_sums(hit)[: self.count]


def _words(bits: int) -> int:
    return -(-bits // _WORD)


def _packed(bits: np.ndarray) -> np.ndarray:
    """Pack truth values (n, 64 w) into words (n, w)."""
    return np.packbits(bits, axis=1).view(np.uint64)


def _column_sums(bits: np.ndarray) -> np.ndarray:
    """Count (64 w,) the words (rows, w) that have each bit; rows are a power of two.

    Halves are added, again and again, as binary numbers whose digits lie in one array each.
    """
    digits = [bits]
    while len(digits[0]) > 1:
        half = len(digits[0]) // 2
        carry, added = np.zeros_like(digits[0][:half]), []
        for digit in digits:
            first, second = digit[:half], digit[half:]
            either = first ^ second
            added.append(either ^ carry)
            carry = (first & second) | (either & carry)
        digits = [*added, carry]
    return sum(np.unpackbits(digit.view(np.uint8)).astype(np.int64) << power for power, digit in enumerate(digits))
