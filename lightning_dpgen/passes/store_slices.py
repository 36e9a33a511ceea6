"""Records of any store as blocks of positions one after the other, and the part of them that falls to a rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse
from torch import Tensor

from lightning_dpgen.sampling.stores import Steps, Store

# Records of a block: enough that adding up its sums costs nothing beside computing them.
ROWS = 1 << 16


@dataclass(frozen=True, eq=False, repr=False)
class StoreSlice(Store):
    """Records of a store from one position to another, which stay where they are.

    Args:
        store: private.
        rows: their positions, within the store.
    """

    store: Store
    rows: slice

    def __len__(self) -> int:
        return self.rows.stop - self.rows.start

    @property
    def steps(self) -> Steps | None:
        return self.store.steps

    def take(self, positions: np.ndarray) -> Tensor:
        return self.store.take(positions + self.rows.start)

    def stretch(self, rows: slice) -> Tensor | scipy.sparse.csr_array:
        return self.store.stretch(slice(self.rows.start + rows.start, self.rows.start + rows.stop))


def part_of_rank(store: Store, rank: int, size: int) -> StoreSlice:
    """Return the records of one rank of several: as many for each, give or take one, and each record for one rank.

    Example:
        >>> from lightning_dpgen.sampling.as_store import store_of
        >>> [len(part_of_rank(store_of(np.zeros(5)), rank, 3)) for rank in range(3)]
        [1, 2, 2]
    """
    n = len(store)
    return StoreSlice(store, slice(n * rank // size, n * (rank + 1) // size))


def store_slices(n: int, rows: int = ROWS) -> dict[str, slice]:
    """Return the positions of blocks of so many of n records, by the keys of the blocks.

    Example:
        >>> store_slices(5, rows=3)
        {'from 0': slice(0, 3, None), 'from 3': slice(3, 5, None)}
    """
    return {f"from {start}": slice(start, min(start + rows, n)) for start in range(0, n, rows)}
