"""Wide records of few ones, as the places of their ones; a network's first layer takes these without writing them out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from lightning_dpgen.sampling.csr import read_entries
from lightning_dpgen.sampling.errors import BadRecords, describe_change
from lightning_dpgen.sampling.stores import Store


@dataclass(frozen=True, eq=False, repr=False)
class MultiHotStore(Store):
    """Records whose lots hold the places of each record's ones, (B, most + groups) int64, filled up with `width`.

    Args:
        units: (N, units) CSR matrix of 0 and 1.
        most: the most ones of the units that a record has.
        codes: (N, groups) the choice of each group.
        starts: the places where the choices of each group begin in a record that is written out.
        width: the number of numbers in a record that is written out.
        persons: (N,) the person of each record; None where each person has one.

    Example:
        >>> units = scipy.sparse.csr_array(([1, 1, 1], ([0, 0, 2], [3, 30, 7])), shape=(3, 200), dtype=np.uint8)
        >>> store = MultiHotStore(units, 2, np.array([[2], [3], [0]]), starts=(200,), width=204)
        >>> store.take(np.array([0, 1, 2]))
        tensor([[  3,  30, 202],
                [204, 204, 203],
                [  7, 204, 200]])
    """

    units: scipy.sparse.csr_array
    most: int
    codes: np.ndarray
    starts: tuple[int, ...]
    width: int
    persons: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, positions: np.ndarray) -> Tensor:
        places = np.full((len(positions), self.most + len(self.starts)), self.width)
        units, codes = self.units, self.codes[positions].astype(np.int64)
        columns, numbers, counts = read_entries(positions, units.indptr, units.indices, units.data, units.shape[1])
        ends = np.array([*self.starts[1:], self.width], np.int64)[: len(self.starts)]
        if len(positions) and (counts.max() > self.most or ((codes < 0) | (codes + self.starts >= ends)).any()):
            raise BadRecords(describe_change("more ones than the largest number, or a choice that its group has not"))
        ones = places[:, : self.most]
        ones[np.arange(self.most) < counts[:, None]] = np.where(numbers > 0, columns, self.width)
        # The norm of a gradient is that of so many different places (`MultiHotRankOne`), and entries may repeat one by now.
        ones.sort(axis=1)
        ones[:, 1:][ones[:, 1:] == ones[:, :-1]] = self.width
        places[:, self.most :] = codes + np.array(self.starts, np.int64)
        return torch.from_numpy(places)


def find_ones(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Find the record and the place of each one, (ones in all,) each, in records as the places of their ones (B, ones)."""
    records = (x < width).nonzero()[:, 0]
    return records, x[x < width]


def to_dense(x: Tensor, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Write out records as 0 and 1, (B, width), from the places of their ones; real numbers are returned as they are.

    Example:
        >>> to_dense(torch.tensor([[0, 2], [1, 3]]), width=3)
        tensor([[1., 0., 1.],
                [0., 1., 0.]])
    """
    if x.is_floating_point():
        return x
    return torch.zeros(len(x), width + 1, dtype=dtype, device=x.device).scatter_(1, x, 1.0)[:, :width]
