"""Files of arrays: .npy, which stays on disk, .npz, and sparse matrices in CSR form; rows of numbers for a projection."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import scipy.sparse

from lightning_dpgen.data.files.text import check_there
from lightning_dpgen.data.names import quote
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
                wanted, names_there = {name: arrays[name] for name in names if name in arrays.files}, arrays.files
    # A damaged header raises any error of Python's own parser, zipfile or numpy.
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise BadRecords(f"{path} is not {path.suffix} of plain arrays: {said or type(error).__name__}") from None
    if names[0] not in wanted:
        raise BadRecords(f"{path} holds {quote(sorted(names_there))}: expected an array named {names[0]}")
    # A member of an archive that is no array comes as its bytes.
    for name, array in wanted.items():
        if not isinstance(array, np.ndarray):
            raise BadRecords(f"{path} is not .npz of plain arrays: {name} is no array")
    return wanted


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
            f"{path} holds a {quote(form)} matrix: expected csr; write it by scipy.sparse.save_npz(path, matrix.tocsr())"
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


_UNREADABLE = (OSError, ValueError, TypeError, KeyError, EOFError, MemoryError, pa.ArrowException, zipfile.BadZipFile)
SUFFIXES = (".npy", ".npz", ".parquet")


def read_rows(path: str | Path) -> np.ndarray | scipy.sparse.csr_array:
    """Read the rows of a file (n, d): ``.npy``, ``.npz`` as scipy.sparse.save_npz writes it, or ``.parquet`` of numbers.

    A ``.npy`` file stays on disk and is read as it is needed.

    Raises:
        MissingData: if there is no such file.
        BadRecords: if it holds something else.
    """
    path = Path(path)
    check_there(path)
    if path.suffix not in SUFFIXES:
        raise BadRecords(f"{path}: expected a name that ends in {', '.join(SUFFIXES)}")
    try:
        if path.suffix == ".npy":
            rows = load_arrays(path, ("rows",))["rows"]
        elif path.suffix == ".npz":
            rows = load_csr(path)
        else:
            # Arrow would read a path in its own way.
            with open(path, "rb") as file:
                rows = _table(pa.parquet.read_table(file), path)
    except BadRecords:
        raise
    except _UNREADABLE as error:
        raise BadRecords(f"{path} cannot be read as rows of numbers: {' '.join(str(error).split())[:200]}") from None
    if rows.ndim != 2:
        raise BadRecords(f"{path} holds an array of shape {rows.shape}: expected (n, d)")
    return rows


def _table(table: pa.Table, path: Path) -> np.ndarray:
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise BadRecords(f"{path}: column {name!r} is {kind}: expected numbers; leave it out or encode it")
    if not table.num_columns:
        raise BadRecords(f"{path} has no columns")
    # A missing value becomes NaN, and is refused like any other.
    return np.column_stack([column.to_numpy().astype(np.float64) for column in table.columns])
