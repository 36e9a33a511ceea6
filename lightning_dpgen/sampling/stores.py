"""The places where records are kept, and from which those of a lot are fetched.

A process that uses a GPU is given rows in pinned memory, from which the GPU copies them by itself.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from lightning_dpgen.sampling.csr import read_entries, read_stretch
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.sampling.trees import leaves_of, map_tree

# Numbers that are checked at a time: few enough to stay in the processor's cache.
_AT_ONCE = 1 << 17


@dataclass(frozen=True)
class Steps:
    """The unit of which numbers are whole multiples; public.

    Args:
        unit: the number that a multiple of 1 stands for.
        bits: the bound of multiples: none is below 0 or above 2^bits.
    """

    unit: float
    bits: int


class Store(ABC):
    """Records that are fetched by their positions; a user's own store derives from it.

    Their number and content are private: a store shows neither, in its representation or in an error.

    Attributes:
        persons: (N,) whole numbers, the person of each record; None where each person has one. Private.
        steps: the steps whose multiples `stretch` gives, as bytes; None where it gives the numbers of the records.
    """

    persons: np.ndarray | None = None
    steps: Steps | None = None

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of records; private."""

    @abstractmethod
    def take(self, positions: np.ndarray) -> Any:
        """Return the records at these (B,) distinct int64 positions, in their order, as new tensors on the CPU.

        They are a tensor, or a tuple or dict of tensors, each with B rows. Types and all sizes but B are the same for every
        call, also for B = 0.
        """

    def in_tasks(self) -> Store:
        """Return the same records for the sums over blocks that other processes compute, which tell no persons apart."""
        return self

    def blocks(self) -> Iterator[Tensor]:
        """Yield all numbers that are kept, a few at a time; nothing, where they are known only once they are fetched."""
        return iter(())

    def stretch(self, rows: slice) -> Tensor | scipy.sparse.csr_array:
        """Return records at positions one after the other, which must not be changed.

        They are as `take` gives them, or their multiples of `steps`, or (B, m) sparse where they are kept so.
        """
        return self.take(np.arange(rows.start, rows.stop))


@dataclass(frozen=True, eq=False, repr=False)
class DenseStore(Store):
    """Rows of a tensor, in memory or mapped from a file.

    Args:
        values: (N, ...) numbers on the CPU, of any real type, which the rows of a lot have too.
    """

    values: Tensor

    def __len__(self) -> int:
        return len(self.values)

    def take(self, positions: np.ndarray) -> Tensor:
        index = torch.from_numpy(positions)
        if not torch.cuda.is_initialized():
            return self.values.index_select(0, index)
        # To pin what is gathered would copy it once more.
        rows = torch.empty((len(positions), *self.values.shape[1:]), dtype=self.values.dtype, pin_memory=True)
        return torch.index_select(self.values, 0, index, out=rows)

    def blocks(self) -> Iterator[Tensor]:
        rows = max(1, _AT_ONCE // max(1, math.prod(self.values.shape[1:])))
        for start in range(0, len(self), rows):
            yield self.values[start : start + rows]


@dataclass(frozen=True, eq=False, repr=False)
class ScaledStore(Store):
    """Rows of bytes, read as float32 ``byte / scale``: a quarter of the memory.

    Args:
        values: (N, ...) uint8 on the CPU, in memory or mapped from a file.
        scale: positive and finite, public; with the largest byte that there may be, rows are in [0, 1].
    """

    values: Tensor
    scale: float

    def __len__(self) -> int:
        return len(self.values)

    def take(self, positions: np.ndarray) -> Tensor:
        rows = self.values.index_select(0, torch.from_numpy(positions))
        return (
            torch.empty(rows.shape, dtype=torch.float32, pin_memory=torch.cuda.is_initialized())
            .copy_(rows)
            .div_(self.scale)
        )

    @property
    def steps(self) -> Steps:
        return Steps(1.0 / self.scale, bits=8)

    def stretch(self, rows: slice) -> Tensor:
        return self.values[rows]


@dataclass(frozen=True, eq=False, repr=False)
class SparseStore(Store):
    """Rows of a matrix in CSR form, in memory or mapped from files, fetched as dense float32.

    Args:
        data, indices, indptr: the arrays of the matrix. They are not copied, and are looked at wherever they are read: a
            column index beyond `width` would write into the row of another record. Entries of the same place are summed.
    """

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    width: int

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def take(self, positions: np.ndarray) -> Tensor:
        columns, numbers, counts = read_entries(positions, self.indptr, self.indices, self.data, self.width)
        # The cells of the dense rows that the entries go to.
        cells = np.repeat(np.arange(len(positions)) * self.width, counts)
        cells += columns
        rows = np.zeros((len(positions), self.width), np.float32)
        np.add.at(rows.reshape(-1), cells, _float32(numbers))
        return torch.from_numpy(rows)

    def stretch(self, rows: slice) -> scipy.sparse.csr_array:
        matrix = read_stretch(rows, self.indptr, self.indices, self.data, self.width)
        matrix.data = _float32(matrix.data)
        return matrix

    def blocks(self) -> Iterator[Tensor]:
        for start in range(0, len(self.data), _AT_ONCE):
            yield torch.from_numpy(_float32(self.data[start : start + _AT_ONCE]))


@dataclass(frozen=True, eq=False, repr=False)
class ColumnsStore(Store):
    """Records in several columns, such as pictures and labels.

    Args:
        columns: a tuple or dict of at least one store, with as many records in each. Lots have the same form.
    """

    columns: tuple[Store, ...] | dict[Any, Store]

    @property
    def persons(self) -> np.ndarray | None:
        persons_of_columns = [column.persons for column in leaves_of(self.columns) if column.persons is not None]
        if any(not np.array_equal(persons, persons_of_columns[0]) for persons in persons_of_columns):
            raise BadRecords(
                "two columns name different persons for a record: expected the same persons, or one such column"
            )
        return persons_of_columns[0] if persons_of_columns else None

    def __len__(self) -> int:
        return len(leaves_of(self.columns)[0])

    def take(self, positions: np.ndarray) -> Any:
        if type(self.columns) is tuple:
            return tuple([column.take(positions) for column in self.columns])
        return map_tree(lambda column: column.take(positions), self.columns)

    def blocks(self) -> Iterator[Tensor]:
        for column in leaves_of(self.columns):
            yield from column.blocks()


def _float32(values: np.ndarray) -> np.ndarray:
    """Return a float32 copy; too large numbers become infinite, which is treated like any record that is not finite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)
