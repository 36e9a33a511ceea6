"""Whatever becomes of the bytes of a file, it is read or refused in one line: never a traceback, never a warning."""

import gzip
import io

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from lightning_dpgen.data.baskets.reading import read_baskets
from lightning_dpgen.data.baskets.schema import BasketSchema, read_items
from lightning_dpgen.data.pictures.reading import read_pictures
from lightning_dpgen.data.series.reading import read_series
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.sampling.errors import BadRecords

PICTURES = np.random.default_rng(0).integers(0, 256, (3, 9, 9, 3), dtype=np.uint8)
PLAIN = SeriesSchema(2, 0, 10)
SERIES = SeriesSchema(2, 0, 10, classes=(1, 2))
BASKETS = BasketSchema((1, 2, 3, 11), max_items=2)


def _written(write):
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def _png(form):
    return _written(lambda file: Image.fromarray(PICTURES[0]).save(file, form))


def _frame(file):
    pd.DataFrame({"label": [1, 2], "t_0": [1.5, 2.0], "t_1": [3.0, 4.0]}).to_parquet(file)


WIDE = b"label,t_0,t_1\n1,1.5,3.0\n2,2.0,4.0\n"
LONG = b"d,value,label\n2024-01-01 00:00,1,1\n2024-01-01 00:30,2,1\n"
LINES = b"1 2 3\n\n11 2\n"
KINDS = {
    "a.png": (_png("PNG"), lambda path: read_pictures(path.parent, 4, 4)),
    "a.jpg": (_png("JPEG"), lambda path: read_pictures(path.parent, 4, 4)),
    "p.npz": (_written(lambda file: np.savez_compressed(file, images=PICTURES)), lambda path: read_pictures(path, 4, 4)),
    "p.npy": (_written(lambda file: np.save(file, PICTURES)), lambda path: read_pictures(path, 9, 9, channels=3)),
    "s.npy": (_written(lambda file: np.save(file, np.ones((5, 2)))), lambda path: read_series(path, PLAIN)),
    "s.csv": (WIDE, lambda path: read_series(path, SERIES)),
    "c.csv": (WIDE, lambda path: read_series(path, SERIES, outside="clamp")),
    "s.tsv": (b"1\t2\t3\n2\t3\t4\n", lambda path: read_series(path, SERIES, header=False)),
    "l.csv": (LONG, lambda path: read_series(path, SERIES, form="long", day="d")),
    "s.csv.gz": (gzip.compress(WIDE, mtime=0), lambda path: read_series(path, SERIES)),
    "s.parquet": (_written(_frame), lambda path: read_series(path, SERIES)),
    "b.csv": (b"b,i\n1,1\n1,2\n2,3\n", lambda path: read_baskets(path, BASKETS, outside="clamp")),
    "b.dat": (LINES, lambda path: read_baskets(path, BASKETS)),
    "b.dat.gz": (gzip.compress(LINES, mtime=0), lambda path: read_baskets(path, BASKETS)),
    "u.txt": (b"1\n2\n3\n", read_items),
    "u.csv": (b'"a"\nb\n3\n', read_items),
    "u.json": (b'["a","b"]', read_items),
}
places = st.floats(0, 1, exclude_max=True)
pieces = st.sampled_from([b"\n", b'"', b",", b"\t", b"nan", b"\xef\xbb\xbf", b"\xff", b"\0", b"1e999", b"\r", b"-"])
changes = st.lists(st.tuples(places, st.integers(0, 8), pieces | st.binary(max_size=3)), max_size=6)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=30, deadline=None)
@given(changes=changes, end=st.just(1.0) | places)
def test_it_is_read_or_refused(tmp_path_factory, name, changes, end):
    content, read = KINDS[name]
    for place, cut, piece in changes:
        at = int(place * len(content))
        content = content[:at] + piece + content[at + cut :]
    path = tmp_path_factory.getbasetemp() / f"damaged-{name}" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content[: int(end * len(content))])
    try:
        read(path)
    except BadRecords as error:
        assert "\n" not in str(error) and len(str(error)) < 500 + len(str(path))


@pytest.mark.parametrize("name", KINDS)
def test_undamaged_it_is_read(tmp_path, name):
    content, read = KINDS[name]
    (tmp_path / name).write_bytes(content)
    assert read(tmp_path / name) is not None


@pytest.mark.parametrize("name", ["s.csv", "c.csv", "s.tsv", "b.csv", "b.dat", "u.txt", "u.csv", "u.json"])
def test_a_byte_order_mark_and_other_line_breaks_make_no_difference(tmp_path, name):
    content, read = KINDS[name]
    (tmp_path / name).write_bytes(content)
    expected = read(tmp_path / name)
    for other in (b"\xef\xbb\xbf" + content, content.replace(b"\n", b"\r\n"), content.rstrip(b"\n")):
        (tmp_path / name).write_bytes(other)
        found = read(tmp_path / name)
        if isinstance(expected, tuple):
            assert found == expected
        else:
            assert abs(found.encoded.units - expected.encoded.units).sum() == 0
