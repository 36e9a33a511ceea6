"""Statistics of baskets, normalised by the size of the basket, so that no basket has to be cut."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.measure.statistics import Statistic
from lightning_dpgen.sampling.csr import mark_entries

# Bits of the bound. The sums of 2^32 baskets stay below the end of int64.
_BITS = 30
# Baskets that are taken at a time. Only their entries take memory, and a table of all pairs is made for each such part.
_AT_ONCE = 1 << 14


class _BySize(Statistic):
    """A statistic of baskets in strata of their sizes: each basket is one whole number, as many times as it has entries.

    Args:
        layout: the baskets' layout, whose last group is the bin of their number of items (`Layout.sizes`).
        strata: the stratum of each bin.
    """

    bound, unit, at_once = 1.0, 2.0**-_BITS, _AT_ONCE

    def __init__(self, layout: Layout, strata: Sequence[int]) -> None:
        if not layout.sizes:
            raise ValueError("records without sizes: expected baskets, whose last group says how many items they hold")
        if len(strata) != len(layout.sizes) or sorted(set(strata)) != list(range(max(strata) + 1)):
            raise ValueError(f"strata={strata}: expected the stratum, from 0, of each of {len(layout.sizes)} bins of sizes")
        self.layout, self._strata, self.strata = layout, np.asarray(strata), max(strata) + 1


class ItemsBySize(_BySize):
    """Sums of items over the root of the basket's size, by stratum: a basket of s items is s numbers of 1 / sqrt(s).

    Where there is a label, strata are those of its first value, then those of the next.
    """

    def __init__(self, layout: Layout, strata: Sequence[int]) -> None:
        super().__init__(layout, strata)
        self._label = layout.label
        self.shape = (self.strata * (1 if layout.label is None else layout.groups[layout.label]), layout.units)

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        stratum = self._strata[records.codes[:, -1]].astype(np.int64)
        if self._label is not None:
            stratum = stratum + self.strata * records.codes[:, self._label].astype(np.int64)
        units = _sets(records)
        weights = _inverse_roots(units.sum(axis=1))
        gathered = scipy.sparse.coo_array((weights, (stratum, np.arange(len(weights)))), (self.shape[0], len(weights)))
        return torch.from_numpy((gathered.tocsr() @ units).toarray())


class PairsBySize(_BySize):
    """Sums of pairs of items over the root of how many pairs the basket holds, by stratum.

    A basket of s items is s (s - 1) / 2 numbers of the inverse root of that; pairs of other items than `items` are left
    out. Pairs (i, j) with i below j are in the order of ``torch.triu_indices(len(items), len(items), 1)``.

    Args:
        layout, strata: see `ItemsBySize`.
        items: the items that are paired, public; None for all.
    """

    def __init__(self, layout: Layout, strata: Sequence[int], items: Sequence[int] | None = None) -> None:
        super().__init__(layout, strata)
        self.of = np.arange(layout.units) if items is None else np.asarray(items)
        distinct = np.unique(self.of)
        if len(self.of) < 2 or len(distinct) < len(self.of) or not np.isin(distinct, np.arange(layout.units)).all():
            raise ValueError(f"items: expected 2 or more different ones, from 0 to {layout.units - 1}")
        self.shape = (self.strata, len(self.of) * (len(self.of) - 1) // 2)

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        rows = []
        stratum, units = self._strata[records.codes[:, -1]], _sets(records)
        for own in range(self.strata):
            held = units[stratum == own]
            sizes = held.sum(axis=1)
            weights = _inverse_roots(sizes * (sizes - 1) // 2)
            some = held[:, self.of]
            pairs = (some.T @ (scipy.sparse.diags_array(weights, dtype=np.int64) @ some)).toarray()
            rows.append(np.concatenate([row[place:] for place, row in enumerate(pairs, start=1)]))
        return torch.from_numpy(np.stack(rows))


def _sets(records: Encoded) -> scipy.sparse.csr_array:
    """Return baskets as 0 and 1, int64, whatever their units hold: weights follow from the numbers that they multiply."""
    return mark_entries(scipy.sparse.csr_array(records.units)).astype(np.int64)


def _inverse_roots(entries: np.ndarray) -> np.ndarray:
    """Return the largest whole numbers of which so many, squared and added up, are at most the squared bound."""
    distinct, places = np.unique(np.maximum(entries, 1), return_inverse=True)
    return np.array([math.isqrt(4**_BITS // number) for number in distinct.tolist()], dtype=np.int64)[places]
