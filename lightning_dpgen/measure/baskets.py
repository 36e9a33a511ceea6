"""Statistics of baskets, which are normalised by their size, so that no basket has to be cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.measure.statistics import Statistic


class _BySize(Statistic):
    """Of baskets in strata of their sizes.

    Args:
        layout: of baskets, whose last group is the bin of their number of items (`Layout.sizes`).
        strata: in which stratum the baskets of each bin are; -1 for none.
    """

    bound = 1.0

    def __init__(self, layout: Layout, strata: Sequence[int]) -> None:
        if not layout.sizes:
            raise ValueError("records without sizes: expected baskets, whose last group says how many items they hold")
        if len(strata) != len(layout.sizes) or min(strata) < -1 or max(strata) < 0:
            raise ValueError(
                f"strata={strata}: expected for each of {len(layout.sizes)} bins of sizes its stratum, from 0, or -1"
            )
        self._strata, self.strata = np.asarray(strata), max(strata) + 1

    def _stratum(self, records: Encoded, stratum: int) -> scipy.sparse.csr_array:
        """Baskets of a stratum, as rows of 0 and 1."""
        own = self._strata[records.codes[:, -1]] == stratum
        return scipy.sparse.csr_array(records.units)[own].astype(np.float64)


class ItemsBySize(_BySize):
    """Sums of items over the root of the basket's size, by stratum: a basket of s items is s numbers of 1 / sqrt(s)."""

    def __init__(self, layout: Layout, strata: Sequence[int]) -> None:
        super().__init__(layout, strata)
        self.shape = (self.strata, layout.units)

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        rows = []
        for stratum in range(self.strata):
            units = self._stratum(records, stratum)
            rows.append(units.T @ (1.0 / np.sqrt(np.maximum(units.sum(axis=1), 1.0))))
        return torch.from_numpy(np.stack(rows))


class PairsBySize(_BySize):
    """Sums of pairs of items over the root of how many of them the basket holds, by stratum.

    A basket of s of the items is p = s (s - 1) / 2 numbers of 1 / sqrt(p), and none where s is below 2. Pairs (i, j) of i
    below j are in the order of ``torch.triu_indices(len(items), len(items), 1)``.

    Args:
        layout, strata: as of `ItemsBySize`.
        items: of which items the pairs are, public; None for all.
    """

    def __init__(self, layout: Layout, strata: Sequence[int], items: Sequence[int] | None = None) -> None:
        super().__init__(layout, strata)
        self.of = np.arange(layout.units) if items is None else np.asarray(items)
        distinct = np.unique(self.of)
        if len(self.of) < 2 or len(distinct) < len(self.of) or not np.isin(distinct, np.arange(layout.units)).all():
            raise ValueError(f"items: expected 2 or more different ones, from 0 to {layout.units - 1}")
        self.shape = (self.strata, len(self.of) * (len(self.of) - 1) // 2)

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        above, rows = np.triu_indices(len(self.of), 1), []
        for stratum in range(self.strata):
            units = self._stratum(records, stratum)[:, self.of]
            sizes = units.sum(axis=1)
            pairs = np.maximum(sizes * (sizes - 1.0) / 2.0, 1.0)
            together = (units.T @ (scipy.sparse.diags_array(1.0 / np.sqrt(pairs)) @ units)).toarray()
            rows.append(together[above])
        return torch.from_numpy(np.stack(rows))
