"""Sparse matrices in CSR form: checked before compiled code meets them.

Compiled routines of scipy follow `indptr` and `indices` without a look at their bounds, so a damaged one reads or writes
memory that is not the matrix's. ``check_format(full_check=True)`` of scipy does not prevent that: it asks how many
entries there are from the last number of `indptr`, and looks at nothing else where that is 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_dpgen.sampling.errors import BadRecords

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
        if not isinstance(part, np.ndarray) or part.ndim != 1:
            return f"{name} must be an array of one dimension"
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
