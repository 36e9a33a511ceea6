"""A damaged CSR matrix is refused at every door, before compiled code follows what it says."""

import io

import numpy as np
import pytest
import scipy.sparse

from lightning_dpgen.data.baskets.reading import read_baskets
from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.files.arrays import load_csr, read_rows
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.records import Records
from lightning_dpgen.projection.project import check_rows
from lightning_dpgen.sampling.as_store import store_of
from lightning_dpgen.sampling.csr import MOST_COLUMNS, check_csr
from lightning_dpgen.sampling.errors import BadRecords

SCHEMA = BasketSchema(tuple(range(6)), max_items=3)
INDPTR, INDICES, DATA = np.array([0, 2, 3, 5]), np.array([0, 4, 5, 1, 2]), np.ones(5)


def _with(array, place, value):
    changed = array.copy()
    changed[place] = value
    return changed


# The first ones pass scipy's own full check: it looks at nothing where the last number of indptr is 0.
DAMAGED = {
    "an end of 0": {"indptr": _with(INDPTR, -1, 0)},
    "an end of 0 and a row that goes back": {"indptr": np.array([0, -(2**31), 3, 0])},
    "an end of 0 and far indices": {"indptr": _with(INDPTR, -1, 0), "indices": _with(INDICES, 1, 10**9)},
    "rows that go back": {"indptr": np.array([0, 4, 3, 5])},
    "an end beyond the entries": {"indptr": _with(INDPTR, -1, 6)},
    "an end before the last entry": {"indptr": _with(INDPTR, -1, 4)},
    "a start beyond 0": {"indptr": _with(INDPTR, 0, 1)},
    "a start before 0": {"indptr": _with(INDPTR, 0, -1)},
    "a column too many": {"indices": _with(INDICES, 0, 6)},
    "a column before the first": {"indices": _with(INDICES, 0, -1)},
    "fewer numbers than places": {"data": DATA[:4]},
    "fewer rows than said": {"indptr": INDPTR[:-1]},
    "real numbers as places": {"indices": INDICES.astype(np.float64)},
    "places of 16 bits": {"indptr": INDPTR.astype(np.int16)},
    "two dimensions": {"data": DATA[:, None]},
}
DOORS = {
    "baskets": lambda matrix: read_baskets(matrix, SCHEMA),
    "records": lambda matrix: Records(SCHEMA, Encoded(matrix, np.zeros((3, 1), np.uint8))),
    "stores": store_of,
    "rows of a projection": check_rows,
    "columns of a projection": lambda matrix: check_rows(_by_columns(matrix)),
}


def _sound():
    return scipy.sparse.csr_array((DATA, INDICES, INDPTR), shape=(3, 6))


def _by_columns(matrix):
    turned = scipy.sparse.csc_array((6, 3))
    turned.indptr, turned.indices, turned.data = matrix.indptr, matrix.indices, matrix.data
    return turned


@pytest.mark.parametrize("door", DOORS)
def test_a_sound_matrix_is_taken(door):
    matrix = _sound()
    check_csr(matrix, "it")
    DOORS[door](matrix.astype(np.uint8) if door == "records" else matrix)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_matrix_is_refused_at_every_door(door, damage):
    matrix = _sound()
    for part, value in DAMAGED[damage].items():
        setattr(matrix, part, value)
    with pytest.raises(BadRecords, match=r"damaged cs[rc] matrix") as error:
        DOORS[door](matrix)
    # Places and numbers belong to the records: none is quoted.
    assert not {str(10**9), str(2**31), "-1"} & set(str(error.value).replace(",", " ").split())


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("read", [load_csr, read_rows, lambda path: read_baskets(path, SCHEMA)])
def test_a_damaged_file_is_refused(tmp_path, damage, read):
    parts = {"format": b"csr", "shape": [3, 6], "indptr": INDPTR, "indices": INDICES, "data": DATA}
    np.savez(tmp_path / "sound.npz", **parts)
    read(tmp_path / "sound.npz")
    np.savez(tmp_path / "x.npz", **parts | DAMAGED[damage])
    with pytest.raises(BadRecords, match="damaged csr matrix"):
        read(tmp_path / "x.npz")


@pytest.mark.parametrize("shape", [[3, MOST_COLUMNS + 1], [2**62, 6], [3, -1], [3.0, 6.0], [3], [3, 6, 1], 3])
def test_a_shape_that_nothing_has(tmp_path, shape):
    np.savez(tmp_path / "x.npz", format=b"csr", shape=shape, indptr=INDPTR, indices=INDICES, data=DATA)
    with pytest.raises(BadRecords, match="damaged csr matrix"):
        load_csr(tmp_path / "x.npz")


def test_what_scipy_writes_is_read(tmp_path):
    for dtype in (np.uint8, bool, np.float32, np.int64):
        for matrix in (_sound().astype(dtype), scipy.sparse.csr_matrix(_sound().astype(dtype)), _sound()[:0].astype(dtype)):
            scipy.sparse.save_npz(tmp_path / "x.npz", matrix)
            found = load_csr(tmp_path / "x.npz")
            assert found.dtype == dtype and found.shape == matrix.shape and abs(found - matrix).sum() == 0


def test_a_file_that_is_none(tmp_path):
    file = io.BytesIO()
    scipy.sparse.save_npz(file, _sound().tocoo())
    whole = file.getvalue()
    for content, words in ((whole, "holds a 'coo' matrix"), (b"", "not .npz"), (whole[:60], "not .npz")):
        (tmp_path / "x.npz").write_bytes(content)
        with pytest.raises(BadRecords, match=words):
            load_csr(tmp_path / "x.npz")
