"""Numbers, each once and in order, and how many count for each: a column as a tree or a histogram counts it. Private."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightning_dpgen.data.key_owners import held_at_most, number_hashes
from lightning_dpgen.data.value_grid import Leaves
from lightning_dpgen.privacy.noise.stream import PrivateStream


@dataclass(frozen=True, eq=False, repr=False)
class NumberCounts:
    """Different numbers and how many rows count for each. Private.

    Args:
        numbers: (R,) float64, rising; infinities among them, and no NaN.
        counts: (R,) int64, from 1.
    """

    numbers: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(
        cls,
        numbers: np.ndarray,
        owners: np.ndarray | None = None,
        most: int | None = None,
        salts: np.ndarray | None = None,
        stream: PrivateStream | None = None,
    ) -> NumberCounts:
        """Count the rows of each number, of which an owner counts with `most` (None for all).

        Args:
            numbers: (N,); NaN where there is none, which is left out.
            owners: (N,) whole numbers, the owner of each row where the unit is a person; None where it is a record.
            salts, stream: as for `key_owners.held_at_most`; salts are (N,).

        Example:
            >>> counted = NumberCounts.of(np.array([2.0, np.nan, 1.0, 2.0]))
            >>> counted.numbers.tolist(), counted.counts.tolist()
            ([1.0, 2.0], [1, 2])
        """
        there = ~np.isnan(numbers)
        numbers = numbers[there]
        if owners is not None and most is not None:
            owners, salts = owners[there], None if salts is None else salts[there]
            hashes = number_hashes(numbers, owners)
            numbers = numbers[held_at_most(owners, np.arange(len(numbers)), most, hashes, salts, stream)]
        return cls(*np.unique(numbers, return_counts=True))

    def in_children(self, leaves: Leaves, firsts: Sequence[int], width: int, branching: int) -> np.ndarray:
        """Return how many rows count for each child of some nodes of a tree.

        Args:
            leaves: of the numbers.
            firsts: the first leaf of each node, rising.
            width: of a child, in leaves.
            branching: the number of children of a node.

        Returns:
            np.ndarray: (len(firsts), branching) int64.
        """
        edges = np.array(firsts, np.int64)[:, None] + width * np.arange(branching + 1)
        before = np.append(0, self.counts.cumsum())[np.searchsorted(leaves(self.numbers), edges)]
        return np.diff(before, axis=1)
