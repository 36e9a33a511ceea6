"""Files of arrays: .npy, which stays on disk, .npz, and sparse matrices in CSR form."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path

import numpy as np
import scipy.sparse

from lightning_dpgen.data.names import shown
from lightning_dpgen.sampling.csr import problem_of
from lightning_dpgen.sampling.errors import BadRecords

ENDINGS = (".npy", ".npz")
_PARTS = ("format", "shape", "indptr", "indices", "data")


def load_arrays(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Load the arrays of a file that have one of these names. Nothing is unpickled.

    Args:
        path: ends in .npy, whose one array has the first name, and is mapped; or in .npz.
        names: the first must be there.

    Raises:
        BadRecords: for a file that is no such file, or damaged, or has no array of the first name.
    """
    try:
        with warnings.catch_warnings():
            # numpy warns of headers that Python 2 has written.
            warnings.simplefilter("ignore")
            if path.suffix == ".npy":
                # np.load would open an archive, and return something else than an array.
                return {names[0]: np.lib.format.open_memmap(path, mode="r")}
            with zipfile.ZipFile(path):
                pass  # numpy would read a single array, or try to unpickle, without saying that this is no .npz
            with np.load(path, allow_pickle=False) as arrays:
                found, held = {name: arrays[name] for name in names if name in arrays.files}, arrays.files
    # A damaged header raises any error of Python's own parser, zipfile or numpy.
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise BadRecords(f"{path} is not {path.suffix} of plain arrays: {said or type(error).__name__}") from None
    if names[0] not in found:
        raise BadRecords(f"{path} holds {shown(sorted(held))}: expected an array named {names[0]}")
    # A member of an archive that is no array comes as its bytes.
    for name, array in found.items():
        if not isinstance(array, np.ndarray):
            raise BadRecords(f"{path} is not .npz of plain arrays: {name} is no array")
    return found


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
