"""Rows of numbers for a projection: simulated, or from a file."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import scipy.sparse

from lightning_dpgen.data.files.arrays import load_arrays, load_csr
from lightning_dpgen.data.files.text import check_there
from lightning_dpgen.sampling.errors import BadRecords

_UNREADABLE = (OSError, ValueError, TypeError, KeyError, EOFError, MemoryError, pa.ArrowException, zipfile.BadZipFile)
SUFFIXES = (".npy", ".npz", ".parquet")


def blobs(n: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw two clusters of unit variance whose centres are 4 apart in a random direction: rows (n, d) and labels (n,).

    Example:
        >>> blobs(6, 2, seed=0)[0].shape
        (6, 2)
    """
    random = np.random.default_rng(seed)
    direction = random.normal(size=d)
    direction /= np.linalg.norm(direction)
    labels = random.integers(0, 2, n)
    return random.normal(size=(n, d)) + np.outer(4.0 * labels - 2.0, direction), labels


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
