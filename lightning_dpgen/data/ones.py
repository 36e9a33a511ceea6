"""Wide records of few ones, as the places of their ones: what a network's first layer takes without writing them out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from lightning_dpgen.data.records import Records
from lightning_dpgen.data.stores import Store


@dataclass(frozen=True, eq=False, repr=False)
class OnesStore(Store):
    """Records whose lots hold, for each record, the places of its ones: (B, ones) int64, the width where there are fewer.

    Args:
        records: kept sparse, of a layout that says how many ones a record has at most (`Layout.ones`).

    Example:
        >>> from lightning_dpgen.data.baskets.schema import BasketSchema
        >>> schema = BasketSchema(tuple(range(200)), max_items=2)
        >>> units = scipy.sparse.csr_array(([1, 1, 1], ([0, 0, 2], [3, 30, 7])), shape=(3, 200), dtype=np.uint8)
        >>> store = OnesStore(Records(schema, schema.encode(units)))
        >>> store.take(np.array([0, 1, 2]))
        tensor([[  3,  30, 202],
                [203, 203, 200],
                [  7, 203, 201]])
    """

    records: Records

    @classmethod
    def possible(cls, records: Records) -> bool:
        """Whether they are kept so, and few of their numbers are 1."""
        return scipy.sparse.issparse(records.encoded.units) and records.schema.layout.ones is not None

    @property
    def persons(self) -> np.ndarray | None:
        return self.records.persons

    def __len__(self) -> int:
        return len(self.records)

    def take(self, positions: np.ndarray) -> Tensor:
        layout, encoded = self.records.schema.layout, self.records.encoded
        places = np.full((len(positions), layout.ones), layout.width)
        units = encoded.units
        starts = units.indptr[positions].astype(np.int64)
        counts = units.indptr[positions + 1] - starts
        ends = np.cumsum(counts)
        entries = np.repeat(starts - ends + counts, counts)
        entries += np.arange(len(entries))
        held = np.where(units.data[entries] > 0, units.indices[entries], layout.width)
        places[:, : layout.most][np.arange(layout.most) < counts[:, None]] = held
        if layout.groups:
            places[:, layout.most :] = encoded.codes[positions].astype(np.int64) + [span.start for span in layout.spans]
        return torch.from_numpy(places)


def places_of(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Of records as the places of their ones (B, ones): which record and which place each one is, (ones in all,) each."""
    records = (x < width).nonzero()[:, 0]
    return records, x[x < width]


def written(x: Tensor, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """(B, width) records written out as 0 and 1, from the places of their ones; others as they are.

    Example:
        >>> written(torch.tensor([[0, 2], [1, 3]]), width=3)
        tensor([[1., 0., 1.],
                [0., 1., 0.]])
    """
    if x.is_floating_point():
        return x
    return torch.zeros(len(x), width + 1, dtype=dtype, device=x.device).scatter_(1, x, 1.0)[:, :width]
