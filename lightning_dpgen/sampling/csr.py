"""Sparse matrices in CSR form: checked before compiled code meets them.

A matrix is looked at again wherever something rests on it: it stays the caller's, who may change its arrays, and scipy
remembers what it once found of them (`has_canonical_format`).

Compiled routines of scipy follow `indptr` and `indices` without a look at their bounds, so a damaged one reads or writes
memory that is not the matrix's. ``check_format(full_check=True)`` of scipy does not prevent that: it asks how many
entries there are from the last number of `indptr`, and looks at nothing else where that is 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from lightning_dpgen.sampling.errors import BadRecords, describe_change

# The number of columns that an index of 32 bits tells apart: no record that is ever written out is as wide.
MOST_COLUMNS = 2**31 - 1
_INDEX = (np.dtype(np.int32), np.dtype(np.int64))


def entries_of(rows: np.ndarray, indptr: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of all entries of some rows, row after row, and the number of entries of each row.

    Example:
        >>> entries_of(np.array([2, 0]), np.array([0, 2, 3, 5]))
        (array([3, 4, 0, 1]), array([2, 2]))
    """
    starts = indptr[rows].astype(np.int64)
    counts = indptr[rows + 1] - starts
    entries = np.repeat(starts - np.cumsum(counts) + counts, counts)
    entries += np.arange(len(entries))
    return entries, counts


def read_entries(
    rows: np.ndarray, indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, width: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the columns and numbers of all entries of some rows, and the number of entries of each row.

    Raises:
        BadRecords: for arrays that are no longer those of a matrix of this width, since they were checked.
    """
    starts, ends = indptr[rows], indptr[rows + 1]
    if len(rows) and not (starts.min() >= 0 and (starts <= ends).all() and ends.max() <= len(indices)):
        raise BadRecords(describe_change("indptr must rise from 0 to the number of entries"))
    entries, counts = entries_of(rows, indptr)
    columns = indices[entries]
    if len(columns) and not (columns.min() >= 0 and columns.max() < width):
        raise BadRecords(describe_change("indices must be within the shape"))
    return columns, data[entries], counts


def read_stretch(
    rows: slice, indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, width: int
) -> scipy.sparse.csr_array:
    """Return rows one after the other as a matrix, on the same arrays.

    Raises:
        BadRecords: as `read_entries`.
    """
    first, last = indptr[rows.start], indptr[rows.stop]
    parts, shape = (
        (data[first:last], indices[first:last], indptr[rows.start : rows.stop + 1] - first),
        (rows.stop - rows.start, width),
    )
    if problem := problem_of(shape, parts[2], parts[1], parts[0]):
        raise BadRecords(describe_change(problem))
    return scipy.sparse.csr_array(parts, shape=shape)


def merge_entries(matrix: Any) -> scipy.sparse.csr_array:
    """Return a CSR matrix whose rows have rising columns: entries of one place are added up.

    The indices tell, and not what the matrix remembers of them. Its arrays are shared where there is nothing to do.

    Example:
        >>> matrix = scipy.sparse.csr_array(np.eye(2))
        >>> matrix.has_canonical_format
        True
        >>> matrix.indptr[:] = 0, 2, 2
        >>> matrix.indices[:] = 1
        >>> matrix.has_canonical_format, merge_entries(matrix).data
        (True, array([2.]))
    """
    # A new matrix remembers nothing.
    merged = scipy.sparse.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape)
    if not merged.has_canonical_format:
        merged = merged.copy()
        merged.sum_duplicates()
    return merged


def mark_entries(matrix: Any) -> scipy.sparse.csr_array:
    """Return a CSR matrix of truth values: each place with an entry that is not 0, once, in order.

    Example:
        >>> twice = scipy.sparse.csr_array((np.array([3, -3, 0]), np.array([1, 1, 0]), np.array([0, 3])), shape=(1, 2))
        >>> mark_entries(twice).indices.tolist(), mark_entries(twice).data.tolist()
        ([1], [True])
    """
    # Truth values never add up to 0, however often a place is repeated.
    marks = scipy.sparse.csr_array((matrix.data != 0, matrix.indices, matrix.indptr), shape=matrix.shape)
    if not marks.data.all():
        marks = marks.copy()
        marks.eliminate_zeros()
    return merge_entries(marks)


def check_csr(matrix: Any, name: str) -> None:
    """Refuse a CSR matrix whose arrays do not fit together. Only numpy looks at them.

    Args:
        matrix: a matrix of two dimensions, in format ``csr``, or ``csc``, the same format for its transpose.
        name: its name in an error.

    Raises:
        BadRecords: naming the part that is damaged. It quotes no number of the matrix, which may be private.

    Example:
        >>> import scipy.sparse
        >>> matrix = scipy.sparse.csr_array(np.eye(2))
        >>> check_csr(matrix, "rows")
        >>> matrix.indptr[1] = 7
        >>> check_csr(matrix, "rows")
        Traceback (most recent call last):
        lightning_dpgen.sampling.errors.BadRecords: rows is a damaged csr matrix: indptr must not decrease
    """
    shape = matrix.shape if matrix.format == "csr" else matrix.shape[::-1]
    if problem := problem_of(shape, matrix.indptr, matrix.indices, matrix.data):
        raise BadRecords(f"{name} is a damaged {matrix.format} matrix: {problem}")


def problem_of(shape: tuple[int, ...], indptr: Any, indices: Any, data: Any) -> str | None:
    """Return in words the first thing that is wrong with a matrix; None if it is sound."""
    for name, part in (("indptr", indptr), ("indices", indices), ("data", data)):
        if not isinstance(part, np.ndarray) or isinstance(part, np.ma.MaskedArray) or part.ndim != 1:
            return f"{name} must be an array of one dimension, without a mask"
    if indptr.dtype not in _INDEX or indices.dtype not in _INDEX:
        return f"indptr and indices must be int32 or int64, found {indptr.dtype} and {indices.dtype}"
    if data.dtype.hasobject or not data.dtype.isnative:
        return f"data must be numbers in this machine's order of bytes, found {data.dtype}"
    rows, columns = shape
    if rows < 0 or not 0 <= columns <= MOST_COLUMNS:
        return f"its shape must be (N, m) with m at most {MOST_COLUMNS:,}"
    if len(indptr) != rows + 1:
        return "indptr must have one number more than the shape says"
    if len(indices) != len(data):
        return "indices and data must be of one length"
    if indptr[0] != 0 or indptr[-1] != len(indices):
        return "indptr must begin at 0 and end at the number of entries"
    if (indptr[1:] < indptr[:-1]).any():
        return "indptr must not decrease"
    if len(indices) and not (indices.min() >= 0 and indices.max() < columns):
        return "indices must be within the shape"
    return None
