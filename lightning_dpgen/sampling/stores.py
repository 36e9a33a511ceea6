"""Where records are kept, and how the ones of a lot are fetched."""

from __future__ import annotations

import hashlib
import math
import random
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset, default_collate

from lightning_dpgen.sampling.csr import check_csr
from lightning_dpgen.sampling.errors import BadRecords

# What torch indexes, by the names that numpy and torch share.
_NUMBERS = {"float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool"}
# Numbers that are checked at a time: few enough to stay in the processor's cache.
_AT_ONCE = 1 << 17
# Records that are looked at together.
_ROWS = 4096


@dataclass(frozen=True)
class Steps:
    """Of what numbers are whole multiples; public.

    Args:
        unit: what a multiple of 1 stands for.
        bits: no multiple is below 0 or above 2^bits.
    """

    unit: float
    bits: int


class Store(ABC):
    """Records that are fetched by their positions; a store of the user's own derives from it.

    How many there are and what they hold is private: a store shows neither, in its representation or in an error.

    Attributes:
        persons: (N,) whole numbers, whose each record is; None where nobody has several. Private.
        steps: of what `stretch` gives the multiples, as bytes; None where it gives the numbers of the records.
    """

    persons: np.ndarray | None = None
    steps: Steps | None = None

    @abstractmethod
    def __len__(self) -> int:
        """How many records there are; private."""

    @abstractmethod
    def take(self, positions: np.ndarray) -> Any:
        """The records at these (B,) distinct int64 positions, in their order, as new tensors on the CPU.

        A tensor, or a tuple or dict of tensors, each with B rows. Types and all sizes but B are the same for every
        call, also for B = 0.
        """

    def blocks(self) -> Iterator[Tensor]:
        """All numbers that are kept, a few at a time; nothing, where they are only known once they are fetched."""
        return iter(())

    def stretch(self, rows: slice) -> Tensor | scipy.sparse.csr_array:
        """Records at positions one after the other, not to be changed: as `take` gives them, or their multiples of
        `steps`, or (B, m) sparse where they are kept so.
        """
        return self.take(np.arange(rows.start, rows.stop))


@dataclass(frozen=True, eq=False, repr=False)
class DenseStore(Store):
    """Rows of a tensor, in memory or mapped from a file.

    Args:
        values: (N, ...) on the CPU, of any real type, which the rows of a lot have too.
    """

    values: Tensor

    def __len__(self) -> int:
        return len(self.values)

    def take(self, positions: np.ndarray) -> Tensor:
        return self.values.index_select(0, torch.from_numpy(positions))

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
        return self.values.index_select(0, torch.from_numpy(positions)).to(torch.float32).div_(self.scale)

    @property
    def steps(self) -> Steps:
        return Steps(1.0 / self.scale, bits=8)

    def stretch(self, rows: slice) -> Tensor:
        return self.values[rows]


@dataclass(frozen=True, eq=False, repr=False)
class SparseStore(Store):
    """Rows of a matrix in CSR form, in memory or mapped from files, fetched as dense float32.

    Args:
        data, indices, indptr: of the matrix, whose format was checked in full: a column index beyond `width` would
            write into the row of another record. Entries of the same place are summed.
        width: number of columns.
    """

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    width: int

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def take(self, positions: np.ndarray) -> Tensor:
        starts = self.indptr[positions].astype(np.int64)
        counts = self.indptr[positions + 1] - starts
        ends = np.cumsum(counts)
        # Where the entries of these rows are kept, and what cells of the dense rows they go to.
        entries = np.repeat(starts - ends + counts, counts)
        entries += np.arange(len(entries))
        cells = np.repeat(np.arange(len(positions)) * self.width, counts)
        cells += self.indices[entries]
        rows = np.zeros((len(positions), self.width), np.float32)
        np.add.at(rows.reshape(-1), cells, _float32(self.data[entries]))
        return torch.from_numpy(rows)

    def stretch(self, rows: slice) -> scipy.sparse.csr_array:
        first, last = self.indptr[rows.start], self.indptr[rows.stop]
        parts = _float32(self.data[first:last]), self.indices[first:last], self.indptr[rows.start : rows.stop + 1] - first
        return scipy.sparse.csr_array(parts, shape=(rows.stop - rows.start, self.width))

    def blocks(self) -> Iterator[Tensor]:
        for start in range(0, len(self.data), _AT_ONCE):
            yield torch.from_numpy(_float32(self.data[start : start + _AT_ONCE]))


@dataclass(frozen=True, eq=False, repr=False)
class ColumnsStore(Store):
    """Records in several columns, such as pictures and labels.

    Args:
        columns: a tuple or dict, at least one; as many records in each. Lots are of the same form.
    """

    columns: tuple[Store, ...] | dict[Any, Store]

    @property
    def persons(self) -> np.ndarray | None:
        said = [column.persons for column in tree_leaves(self.columns) if column.persons is not None]
        if any(not np.array_equal(persons, said[0]) for persons in said):
            raise BadRecords("two columns say differently whose a record is: expected the same persons, or one that says")
        return said[0] if said else None

    def __len__(self) -> int:
        return len(tree_leaves(self.columns)[0])

    def take(self, positions: np.ndarray) -> Any:
        return tree_map(lambda column: column.take(positions), self.columns)

    def blocks(self) -> Iterator[Tensor]:
        for column in tree_leaves(self.columns):
            yield from column.blocks()


@dataclass(frozen=True, eq=False, repr=False)
class DatasetStore(Store):
    """The items of somebody's map-style Dataset, collated as a DataLoader does it.

    Items may draw random numbers, such as those of an augmentation, from the generators of torch's CPU, numpy and Python:
    while items are fetched, these are keyed by the operating system. They are put back afterwards, since a public
    generator that moves on with each record would tell how many there were. A generator of the data set's own has to
    be keyed by the operating system too.

    Args:
        dataset: its items become tensors of the same types and sizes.
        none: what a lot of no records is.
    """

    dataset: Dataset
    none: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, positions: np.ndarray) -> Any:
        """As of every store.

        Raises:
            BadRecords: for an item that cannot be fetched, or that differs from the first one in types or sizes.
        """
        if not len(positions):
            return self.none
        items = _collated(self.dataset, positions)
        if _form(items) != _form(self.none):
            raise BadRecords(
                "an item of the data set differs from its first one in form, types or sizes: expected the same of all; "
                "pad, crop or convert in its __getitem__"
            )
        return items


def store_of(records: Any, *, scale: float | None = None) -> Store:
    """The store that fits what records are kept in. Nothing is copied that is mapped from a file, or in rows already.

    Args:
        records: one of

            - a tensor on the CPU or a numpy array, (N, ...), in memory or memory-mapped (``np.memmap``,
              ``np.load(..., mmap_mode="r")``), of floats, whole numbers or bool, which lots keep;
            - a ``scipy.sparse`` ``csr_matrix`` or ``csr_array`` (N, m), whose rows lots hold as dense float32;
            - a tuple or dict of columns, each one of these (or a store) with the same N, in which form lots come too;
            - a map-style ``torch.utils.data.Dataset``, whose items are collated by ``default_collate``;
            - a store, which comes back as it is.
        scale: for a uint8 tensor or array: lots hold float32 ``byte / scale``. Public, so not the largest byte found.

    Raises:
        BadRecords: for anything else, saying what was found, what was expected and what to do. No message holds a
            record's content, its position, or the number of records. Nothing has been spent.

    Example:
        >>> pictures, labels = np.array([[0, 255], [51, 0], [9, 9]], dtype=np.uint8), np.array([1, 0, 2])
        >>> store = store_of((store_of(pictures, scale=255), labels))
        >>> store.take(np.array([0, 1]))
        (tensor([[0.0000, 1.0000],
                [0.2000, 0.0000]]), tensor([1, 0]))
        >>> store_of(scipy.sparse.eye_array(3, format="csr")).take(np.array([2]))
        tensor([[0., 0., 1.]])
    """
    if scale is None:
        return _store(records, "records")
    if not 0.0 < scale < math.inf:
        raise BadRecords(f"scale={scale:g}: expected a positive number, by which bytes are divided, such as 255")
    values = _tensor(records, "records") if isinstance(records, Tensor | np.ndarray) else None
    if values is None or values.dtype != torch.uint8:
        found = type(records).__name__ if values is None else f"{type(records).__name__} of {_name(values.dtype)}"
        raise BadRecords(
            f"scale={scale:g} with records that are a {found}: expected a tensor or array of uint8; leave scale out, and "
            "of several columns give store_of(column, scale=...) for each that needs one"
        )
    return ScaledStore(values, float(scale))


def check_finite(store: Store) -> None:
    """Look through all records once, in blocks, before anything is spent.

    Items of a Dataset are only known when they are fetched, so they pass unseen: such a record that is not finite adds
    exact zeros to the gradient later.

    Raises:
        BadRecords: for NaN or infinite values. The message names no record, so it may be shown.

    Example:
        >>> check_finite(store_of(np.array([[0.0, np.nan]])))
        Traceback (most recent call last):
        lightning_dpgen.sampling.errors.BadRecords: the records hold NaN or infinite values: replace or drop them first
    """
    for block in store.blocks():
        # The sum is quick, and finite only if all are; it may overflow where they are finite.
        if block.is_floating_point() and not block.sum().isfinite() and not block.isfinite().all():
            raise BadRecords("the records hold NaN or infinite values: replace or drop them first")


def content(store: Store) -> bytes:
    """A digest of all records in their order; of the items of a Dataset none, since these may be drawn. Private."""
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(store, DatasetStore):
        return b""
    for start in range(0, len(store), _ROWS):
        for part in tree_leaves(store.stretch(slice(start, min(start + _ROWS, len(store))))):
            arrays = (part.data, part.indices, part.indptr) if scipy.sparse.issparse(part) else (_as_bytes(part),)
            for array in arrays:
                digest.update(np.ascontiguousarray(array))
    return digest.digest()


def _as_bytes(values: Tensor) -> np.ndarray:
    return values.contiguous().flatten().view(torch.uint8).numpy()


def _store(records: Any, name: str) -> Store:
    if isinstance(records, Store):
        return records
    if isinstance(records, Tensor | np.ndarray):
        return DenseStore(_tensor(records, name))
    if scipy.sparse.issparse(records):
        return _sparse(records, name)
    # Its columns are at hand, so that no item has to be made.
    if type(records) is TensorDataset:
        records = records.tensors
    if isinstance(records, tuple | dict):
        return _columns(records, name)
    kind = type(records).__name__
    if isinstance(records, DataLoader):
        raise BadRecords(
            f"{name} is a {kind}: expected the data set, from which Poisson lots are drawn; hand over the data set, "
            "loader.dataset: a loader has its own sampling, for which the plan's epsilon does not hold"
        )
    if isinstance(records, Sampler):
        raise BadRecords(
            f"{name} is a {kind}: expected the data set; hand it over without a sampler: Poisson lots are drawn here, and "
            "for another sampling the plan's epsilon does not hold"
        )
    if isinstance(records, IterableDataset):
        raise BadRecords(
            f"{name} is a {kind}, an IterableDataset: expected a map-style Dataset, since a Poisson lot fetches records by "
            "their positions; give it __getitem__ and __len__, or write its records to an array and memory-map that"
        )
    if isinstance(records, Dataset):
        return _dataset(records, name)
    raise BadRecords(
        f"{name} is a {kind}: expected a tensor, a numpy array, a scipy.sparse csr_matrix or csr_array, a tuple or dict of "
        "these as columns, or a map-style torch Dataset; convert it to one of them (a DataFrame by to_numpy, a list of "
        "equal records by numpy.stack)"
    )


def _name(dtype: torch.dtype | np.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tensor(values: Tensor | np.ndarray, name: str) -> Tensor:
    """As a tensor (N, ...) of the same memory, where that is possible."""
    if isinstance(values, np.ma.MaskedArray):
        raise BadRecords(f"{name} is a masked array: expected a value in every place; fill in what is masked, or drop it")
    on_disk, dtype = isinstance(values, np.memmap), values.dtype
    if (dtype.name if isinstance(values, np.ndarray) else _name(dtype)) not in _NUMBERS:
        raise BadRecords(
            f"{name} has dtype {_name(dtype)}: expected float16, bfloat16, float32, float64, uint8, int8 to int64 or bool; "
            "convert it, or encode what is no real number"
        )
    if isinstance(values, np.ndarray):
        if not dtype.isnative:
            raise BadRecords(f"{name} has the byte order of another machine: convert it by astype('{dtype.name}')")
        values = np.asarray(values)
        # What torch has no strides for.
        if any(stride < 0 or stride % dtype.itemsize for stride in values.strides):
            values = np.ascontiguousarray(values)
        with warnings.catch_warnings():
            # A file mapped for reading: nobody writes to it here.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            values = torch.from_numpy(values)
    elif values.layout != torch.strided:
        raise BadRecords(f"{name} is a tensor of layout {values.layout}: expected a dense one, or a scipy.sparse.csr_array")
    elif values.device.type != "cpu":
        raise BadRecords(f"{name} is on {values.device}: expected the CPU, from where each lot is copied; use .cpu()")
    if not values.dim():
        raise BadRecords(f"{name} has shape (): expected (N, ...), one row a record")
    values = values.detach()
    return values if on_disk else values.contiguous()


def _sparse(matrix: Any, name: str) -> SparseStore:
    if matrix.format != "csr" or matrix.ndim != 2:
        raise BadRecords(
            f"{name} is a sparse {matrix.format} of {matrix.ndim} dimensions: expected csr of 2, (N, m); use .tocsr()"
        )
    if matrix.dtype.kind not in "fiub":
        raise BadRecords(f"{name} has dtype {matrix.dtype}: expected real numbers; convert it")
    check_csr(matrix, name)
    return SparseStore(matrix.data, matrix.indices, matrix.indptr, matrix.shape[1])


def _columns(columns: tuple | dict, name: str) -> ColumnsStore:
    keys = list(columns) if isinstance(columns, dict) else range(len(columns))
    if not keys:
        raise BadRecords(f"{name} is an empty {type(columns).__name__}: expected at least one column")
    named = {key: f"{name}[{key!r}]" for key in keys}
    stores = {key: _store(columns[key], named[key]) for key in keys}
    for key in keys:
        if len(stores[key]) != len(stores[keys[0]]):
            raise BadRecords(
                f"{named[key]} and {named[keys[0]]} have different numbers of rows: expected one row a record in each; "
                "hand over columns of the same records"
            )
    if isinstance(columns, dict):
        return ColumnsStore(stores)
    return ColumnsStore(columns._make(stores.values()) if hasattr(columns, "_make") else tuple(stores.values()))


def _dataset(dataset: Dataset, name: str) -> DatasetStore:
    kind = type(dataset).__name__
    try:
        some = len(dataset) > 0
    except (TypeError, NotImplementedError):
        raise BadRecords(f"{name} is a {kind} without __len__: expected a map-style Dataset; give it one") from None
    if not some:
        # Without an item nobody knows what an empty lot looks like.
        raise BadRecords(f"{name} is a {kind} without items: expected at least one; hand over tensors of no rows instead")
    first = _collated(dataset, np.zeros(1, np.int64))
    for leaf in tree_leaves(first):
        if not isinstance(leaf, Tensor) or _name(leaf.dtype) not in _NUMBERS:
            found = _name(leaf.dtype) if isinstance(leaf, Tensor) else type(leaf).__name__
            raise BadRecords(f"{name} is a {kind} whose items hold {found}: expected numbers; encode it in __getitem__")
    return DatasetStore(dataset, tree_map(lambda x: x[:0].clone(), first))


def _collated(dataset: Dataset, positions: np.ndarray) -> Any:
    with randomness_of_their_own():
        try:
            return default_collate([dataset[i] for i in positions.tolist()])
        except Exception as error:
            # Neither its message nor its traceback is shown: both may quote a record, or say which one it was.
            raise BadRecords(
                f"items of the data set cannot be fetched and collated ({type(error).__name__}): expected numbers, arrays "
                "or tensors of equal sizes; try default_collate on its items by hand"
            ) from None


def _float32(values: np.ndarray) -> np.ndarray:
    """A copy; what is too large becomes infinite, which is treated like any record that is not finite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _form(records: Any) -> tuple:
    leaves, form = tree_flatten(records)
    return form, [(leaf.dtype, leaf.shape[1:]) if isinstance(leaf, Tensor) else type(leaf) for leaf in leaves]


@contextmanager
def randomness_of_their_own() -> Iterator[None]:
    """Within it the global generators are keyed by the operating system; afterwards they are where they were."""
    before = torch.default_generator.get_state(), np.random.get_bit_generator(), random.getstate()
    try:
        torch.default_generator.seed()
        np.random.set_bit_generator(np.random.PCG64DXSM())
        random.seed()
        yield
    finally:
        torch.default_generator.set_state(before[0])
        np.random.set_bit_generator(before[1])
        random.setstate(before[2])
