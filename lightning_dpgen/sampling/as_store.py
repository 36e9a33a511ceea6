"""The store that fits, for records in any form that can be drawn from."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

from lightning_dpgen.sampling.csr import check_csr
from lightning_dpgen.sampling.dataset_store import NUMBERS, DatasetStore, is_of_hugging_face, name_of
from lightning_dpgen.sampling.errors import PAD, BadRecords
from lightning_dpgen.sampling.stores import ColumnsStore, DenseStore, ScaledStore, SparseStore, Store


def store_of(records: Any, *, scale: float | None = None, collate_fn: Callable[[list], Any] | None = None) -> Store:
    """Return the store that fits the form of records. Rows, and what is mapped from a file, are not copied.

    Args:
        records: one of

            - a tensor on the CPU or a numpy array, (N, ...), in memory or memory-mapped (``np.memmap``,
              ``np.load(..., mmap_mode="r")``), of floats, whole numbers or bool, which lots keep;
            - a ``scipy.sparse`` ``csr_matrix`` or ``csr_array`` (N, m), whose rows lots hold as dense float32;
            - a tuple or dict of columns, each one of these (or a store) with the same N, in which form lots come too;
            - a map-style ``torch.utils.data.Dataset``, or one of Hugging Face's ``datasets`` (in the format ``torch`` or
              ``numpy``, or with a transform), whose items are collated by ``default_collate``;
            - a list of items, such as ``list(dataset)`` of one that is iterated over; tuples or dicts without `collate_fn`;
            - a store, which comes back as it is.
        scale: the divisor of a uint8 tensor or array: lots hold float32 ``byte / scale``. Public, so not the largest byte
            found.
        collate_fn: makes a batch of items, as for a DataLoader. It is called with a list of one item at a time, and gives
            tensors (1, ...) of the same sizes for each, so that no record's length follows from others: padding is up to a
            public length.

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
    if collate_fn is not None:
        return _collated(records, collate_fn)
    if scale is None:
        return _store(records, "records")
    if not 0.0 < scale < math.inf:
        raise BadRecords(f"scale={scale:g}: expected a positive number, by which bytes are divided, such as 255")
    values = _tensor(records, "records") if isinstance(records, Tensor | np.ndarray) else None
    if values is None or values.dtype != torch.uint8:
        what = type(records).__name__ if values is None else f"{type(records).__name__} of {name_of(values.dtype)}"
        raise BadRecords(
            f"scale={scale:g} with records that are a {what}: expected a tensor or array of uint8; leave scale out, and "
            "of several columns give store_of(column, scale=...) for each that needs one"
        )
    return ScaledStore(values, float(scale))


def _store(records: Any, name: str) -> Store:
    if isinstance(records, Store):
        return records
    if isinstance(records, Tensor | np.ndarray):
        return DenseStore(_tensor(records, name))
    if scipy.sparse.issparse(records):
        return _sparse(records, name)
    # A TensorDataset has its columns at hand, so no item has to be made.
    if type(records) is TensorDataset:
        records = records.tensors
    hugging_face = is_of_hugging_face(records)
    if isinstance(records, tuple | dict) and not hugging_face:
        return _columns(records, name)
    kind = type(records).__name__
    if isinstance(records, DataLoader):
        raise BadRecords(
            f"{name} is a {kind}: expected the data set, from which Poisson lots are drawn; pass the data set, "
            "loader.dataset: a loader has its own sampling, for which the plan's epsilon does not hold"
        )
    if isinstance(records, Sampler):
        raise BadRecords(
            f"{name} is a {kind}: expected the data set; pass it without a sampler: Poisson lots are drawn here, and for "
            "another sampling the plan's epsilon does not hold"
        )
    if isinstance(records, Dataset) or hugging_face or _is_list_of_items(records):
        return DatasetStore.of(records, name)
    raise BadRecords(
        f"{name} is a {kind}: expected a tensor, a numpy array, a scipy.sparse csr_matrix or csr_array, a tuple or dict of "
        "these as columns, a map-style torch Dataset, or a list of tuples or dicts; convert it to one of them (a DataFrame "
        f"by to_numpy, a list of equal records by numpy.stack{f'; {PAD}' if isinstance(records, list) else ''})"
    )


def _is_list_of_items(records: Any) -> bool:
    """Return whether a list holds a record in each place; one of arrays may be a list of columns."""
    return isinstance(records, list) and bool(records) and all(isinstance(item, tuple | dict) for item in records)


def _collated(records: Any, collate_fn: Callable[[list], Any]) -> DatasetStore:
    if not callable(collate_fn):
        raise BadRecords(f"collate_fn is a {type(collate_fn).__name__}: expected a function of a list of one item")
    if not isinstance(records, Dataset | list) and not is_of_hugging_face(records):
        raise BadRecords(
            f"records is a {type(records).__name__}, and collate_fn makes a batch of items: expected a map-style Dataset, "
            "such as TensorDataset(*columns), or a list of items; or leave collate_fn out"
        )
    return DatasetStore.of(records, "records", collate_fn)


def _tensor(values: Tensor | np.ndarray, name: str) -> Tensor:
    """Return values as a tensor (N, ...), of the same memory where that is possible."""
    if isinstance(values, np.ma.MaskedArray):
        raise BadRecords(f"{name} is a masked array: expected a value in every place; fill in what is masked, or drop it")
    on_disk, dtype = isinstance(values, np.memmap), values.dtype
    if (dtype.name if isinstance(values, np.ndarray) else name_of(dtype)) not in NUMBERS:
        raise BadRecords(
            f"{name} has dtype {name_of(dtype)}: expected float16, bfloat16, float32, float64, uint8, int8 to int64 or "
            f"bool; convert it, or encode what is not a real number{f'; {PAD}' if name_of(dtype) == 'object' else ''}"
        )
    if isinstance(values, np.ndarray):
        if not dtype.isnative:
            raise BadRecords(f"{name} has the byte order of another machine: convert it by astype('{dtype.name}')")
        values = np.asarray(values)
        # Torch has no such strides.
        if any(stride < 0 or stride % dtype.itemsize for stride in values.strides):
            values = np.ascontiguousarray(values)
        with warnings.catch_warnings():
            # A file that is mapped for reading is not written to here.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            values = torch.from_numpy(values)
    elif values.is_nested:
        raise BadRecords(f"{name} is a nested tensor: expected rows of one shape; {PAD}")
    elif values.layout != torch.strided:
        raise BadRecords(f"{name} is a tensor of layout {values.layout}: expected a dense one, or a scipy.sparse.csr_array")
    elif values.device.type != "cpu":
        raise BadRecords(f"{name} is on {values.device}: expected the CPU, from where each lot is copied; use .cpu()")
    if not values.dim():
        raise BadRecords(f"{name} has shape (): expected (N, ...), one row for each record")
    # A class of the caller's own might give other numbers each time.
    values = values.detach().as_subclass(Tensor)
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
                f"{named[key]} and {named[keys[0]]} have different numbers of rows: expected one row for each record in "
                "each; pass columns of the same records"
            )
    if isinstance(columns, dict):
        return ColumnsStore(stores)
    return ColumnsStore(columns._make(stores.values()) if hasattr(columns, "_make") else tuple(stores.values()))
