"""Sparse matrices in CSR form: checked before compiled code meets them, and read from a file.

Compiled routines of scipy follow `indptr` and `indices` without a look at their bounds, so a damaged one reads or writes
memory that is not the matrix's. ``check_format(full_check=True)`` of scipy does not prevent that: it asks how many
entries there are from the last number of `indptr`, and looks at nothing else where that is 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from lightning_dpgen.data.errors import BadRecords
from lightning_dpgen.data.files.arrays import load_arrays
from lightning_dpgen.data.names import shown

# As many as an index of 32 bits tells apart: no record that is ever written out is as wide.
MOST_COLUMNS = 2**31 - 1
_INDEX = (np.dtype(np.int32), np.dtype(np.int64))
_PARTS = ("format", "shape", "indptr", "indices", "data")


def check_csr(matrix: Any, name: str) -> None:
    """Refuse a CSR matrix whose arrays do not fit together. Nothing but numpy looks at them.

    Args:
        matrix: of format ``csr``, or ``csc``, which is the same of its transpose, and of two dimensions.
        name: what it is called in an error.

    Raises:
        BadRecords: naming the part that is damaged. It quotes no number of the matrix, which may be private.

    Example:
        >>> matrix = scipy.sparse.csr_array(np.eye(2))
        >>> check_csr(matrix, "rows")
        >>> matrix.indptr[1] = 7
        >>> check_csr(matrix, "rows")
        Traceback (most recent call last):
        lightning_dpgen.data.errors.BadRecords: rows is a damaged csr matrix: indptr must not decrease
    """
    shape = matrix.shape if matrix.format == "csr" else matrix.shape[::-1]
    if problem := _problem(shape, matrix.indptr, matrix.indices, matrix.data):
        raise BadRecords(f"{name} is a damaged {matrix.format} matrix: {problem}")


def load_csr(path: Path) -> scipy.sparse.csr_array:
    """A matrix in CSR form, as ``scipy.sparse.save_npz`` writes it. Nothing is unpickled.

    Raises:
        BadRecords: for anything else, or a damaged matrix.
    """
    try:
        arrays = load_arrays(path, _PARTS)
    except BadRecords as error:
        raise BadRecords(f"{error}; a csr matrix is written by scipy.sparse.save_npz") from None
    form = arrays["format"]
    form = form.item() if form.ndim == 0 and form.dtype.kind in "SU" else form.dtype.str
    form = form.decode("ascii", "replace") if isinstance(form, bytes) else form
    if form != "csr":
        raise BadRecords(
            f"{path} holds a {shown(form)} matrix: expected csr; write it by scipy.sparse.save_npz(path, matrix.tocsr())"
        )
    if missing := [part for part in _PARTS if part not in arrays]:
        raise BadRecords(f"{path} is a damaged csr matrix: it has no {', '.join(missing)}")
    shape = arrays["shape"]
    if shape.shape != (2,) or shape.dtype.kind not in "iu":
        raise BadRecords(f"{path} is a damaged csr matrix: expected two whole numbers as its shape")
    size = (int(shape[0]), int(shape[1]))
    indptr, indices, data = arrays["indptr"], arrays["indices"], arrays["data"]
    if problem := _problem(size, indptr, indices, data):
        raise BadRecords(f"{path} is a damaged csr matrix: {problem}")
    return scipy.sparse.csr_array((data, indices, indptr), shape=size)


def _problem(shape: tuple[int, ...], indptr: Any, indices: Any, data: Any) -> str | None:
    """The first thing that is wrong with a matrix, in words; None if it is sound."""
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
