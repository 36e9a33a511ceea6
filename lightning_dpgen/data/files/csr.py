"""Sparse matrices in CSR form, read from a file."""

from __future__ import annotations

from pathlib import Path

import scipy.sparse

from lightning_dpgen.data.files.arrays import load_arrays
from lightning_dpgen.data.names import shown
from lightning_dpgen.sampling.csr import problem_of
from lightning_dpgen.sampling.errors import BadRecords

_PARTS = ("format", "shape", "indptr", "indices", "data")


def load_csr(path: Path) -> scipy.sparse.csr_array:
    """Load a matrix in CSR form, as ``scipy.sparse.save_npz`` writes it. Nothing is unpickled.

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
    if problem := problem_of(size, indptr, indices, data):
        raise BadRecords(f"{path} is a damaged csr matrix: {problem}")
    return scipy.sparse.csr_array((data, indices, indptr), shape=size)
