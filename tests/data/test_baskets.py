"""Baskets survive every way they are written in, no encoding depends on other records, and what does not fit is refused."""

import gzip
import io
import json
import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_dpgen.data.baskets.form import BasketForm
from lightning_dpgen.data.baskets.reading import CUT_COUNTED, OUTSIDE_COUNTED, basket_keys, read_baskets
from lightning_dpgen.data.baskets.schema import MOST_ITEMS, BasketSchema, read_items
from lightning_dpgen.data.files.text import MissingData
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.records import Records
from lightning_dpgen.sampling.errors import BadRecords

NAMES = ("bread", "milk", "tea", "gin", "öl", "NA", "12")
FOREIGN = "caviar"
quick = settings(max_examples=25, deadline=None)
one = st.lists(st.sampled_from(NAMES), max_size=8)
universes = st.sampled_from([NAMES, (5, 7, -2, 0, 11), tuple(range(3, 9))])


@st.composite
def records(draw):
    """Draw a schema, and baskets of its items with repetitions, labels and persons."""
    items = draw(universes)
    classes = draw(st.sampled_from([(), ("old", "young"), (1, 2, 3)]))
    baskets = draw(st.lists(st.lists(st.sampled_from(items), max_size=8), min_size=1, max_size=12))
    schema = BasketSchema(items, max_items=len(items), classes=classes)
    labels = [draw(st.sampled_from(classes)) for _ in baskets] if classes else None
    return schema, baskets, labels


def _sets(reading, schema):
    return [set(row) for row in schema.decode(reading.encoded, np.random.default_rng(0)).to_pydict()["items"]]


def _frame(baskets, labels=None, persons=None):
    """Write one row for each item; an empty basket has a row without one."""
    rows = [(f"b{i}", item) for i, basket in enumerate(baskets) for item in (basket or [None])]
    frame = pd.DataFrame(rows, columns=["basket", "item"], dtype=object)
    number = frame["basket"].str[1:].astype(int)
    for name, values in (("label", labels), ("person", persons)):
        if values is not None:
            frame[name] = [values[i] for i in number]
    return frame


def _as_lines(folder, baskets, labels):
    separator = ","
    lines = [separator.join(map(str, ([labels[i]] if labels else []) + row)) for i, row in enumerate(baskets)]
    path = folder / "x.dat.gz"
    path.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode()))
    return path


def _as_csv(folder, baskets, labels):
    _frame(baskets, labels).to_csv(folder / "x.csv", index=False)
    return folder / "x.csv"


def _as_tsv(folder, baskets, labels):
    _frame(baskets, labels).to_csv(folder / "x.tsv.gz", index=False, sep="\t")
    return folder / "x.tsv.gz"


def _as_parquet(folder, baskets, labels):
    _frame(baskets, labels).to_parquet(folder / "x.parquet")
    return folder / "x.parquet"


WAYS = {
    "lines": _as_lines,
    "csv": _as_csv,
    "tsv": _as_tsv,
    "parquet": _as_parquet,
    "frame": lambda folder, *known: _frame(*known),
}


@quick
@given(known=records(), way=st.sampled_from(sorted(WAYS)))
def test_what_is_written_is_read(tmp_path_factory, known, way):
    schema, baskets, labels = known
    reading = read_baskets(WAYS[way](tmp_path_factory.mktemp("b"), baskets, labels), schema)
    assert _sets(reading, schema) == [set(basket) for basket in baskets]
    assert reading.counted == {} and reading.persons is None
    assert reading.encoded.units.dtype == np.uint8 and set(reading.encoded.units.data) <= {1}
    decoded = schema.decode(reading.encoded, np.random.default_rng(0))
    assert decoded.schema == schema.arrow
    assert labels is None or decoded["label"].to_pylist() == labels
    # Items are in the universe's order, and what came out reads the same again.
    for row in decoded["items"].to_pylist():
        assert [schema.items.index(item) for item in row] == sorted(schema.items.index(item) for item in row)
    again = read_baskets(decoded["items"].to_pylist(), schema, label=labels)
    assert (again.encoded.units != reading.encoded.units).nnz == 0
    assert np.array_equal(again.encoded.codes, reading.encoded.codes)
    assert len(reading.encoded) == reading.encoded.units.shape[0] == len(baskets)


@quick
@given(known=records())
def test_a_matrix_is_read_like_lists_and_dense_units_decode_the_same(known):
    schema, baskets, labels = known
    reading = read_baskets(baskets, schema, label=labels)
    counts = scipy.sparse.lil_array((len(baskets), len(schema.items)), dtype=np.float64)
    for i, basket in enumerate(baskets):
        for item in basket:
            counts[i, schema.items.index(item)] += 1
    assert (read_baskets(counts.tocsr(), schema, label=labels).encoded.units != reading.encoded.units).nnz == 0
    dense = Encoded(reading.encoded.units.toarray(), reading.encoded.codes)
    random = np.random.default_rng(0)
    assert schema.decode(dense, random).equals(schema.decode(reading.encoded, random))


@quick
@given(known=records(), most=st.integers(1, 7), kind=st.sampled_from(["uint8", "bool", "int64", "float32"]), data=st.data())
def test_a_matrix_is_read_the_same_whatever_its_form(tmp_path_factory, known, most, kind, data):
    """Repeated entries and zeros, columns in any order, what it says of itself, a matrix or an array, in memory or not."""
    schema, baskets, _ = known
    schema = BasketSchema(schema.items, max_items=min(most, len(schema.items)))
    expected = read_baskets(baskets, schema)
    columns, values, ends = [], [], [0]
    for basket in baskets:
        zeros = data.draw(st.lists(st.integers(0, len(schema.items) - 1), max_size=2))
        entries = [(schema.items.index(item), 1) for item in basket * data.draw(st.sampled_from([1, 1, 256]))]
        entries = data.draw(st.permutations([*set(entries), *((zero, 0) for zero in zeros)])) + entries[:256]
        columns, values = columns + [at for at, _ in entries], values + [value for _, value in entries]
        ends.append(len(columns))
    places = data.draw(st.sampled_from([np.int32, np.int64]))
    container = data.draw(st.sampled_from([scipy.sparse.csr_array, scipy.sparse.csr_matrix]))
    parts = (np.array(values, kind), np.array(columns, places), np.array(ends, places))
    matrix = container(parts, shape=(len(baskets), len(schema.items)))
    before = [part.copy() for part in (matrix.data, matrix.indices, matrix.indptr)]
    if data.draw(st.booleans()):
        matrix.has_canonical_format = True
    path = tmp_path_factory.mktemp("b") / "x.npz"
    scipy.sparse.save_npz(path, matrix)
    for source in (matrix, path):
        reading = read_baskets(source, schema)
        found = reading.encoded.units
        assert reading.counted == expected.counted and (found.dtype, found.indices.dtype) == (np.uint8, np.int32)
        assert np.array_equal(found.indptr, expected.encoded.units.indptr) and set(found.data) <= {1}
        assert np.array_equal(found.indices, expected.encoded.units.indices)
        # A change of the matrix would not change what was read, nor was the matrix changed.
        assert not np.shares_memory(found.indices, matrix.indices)
    assert all(map(np.array_equal, before, (matrix.data, matrix.indices, matrix.indptr)))


def test_choices_among_many_baskets_are_made_a_few_at_a_time(monkeypatch):
    schema = BasketSchema(tuple(range(30)), max_items=4)
    random = np.random.default_rng(0)
    matrix = scipy.sparse.csr_array(random.random((200, 30)) < random.random((200, 1)) / 2)
    expected = read_baskets(matrix, schema).encoded.units
    monkeypatch.setattr("lightning_dpgen.data.baskets.reading._AT_ONCE", 7)
    assert (read_baskets(matrix, schema).encoded.units != expected).nnz == 0
    each = [read_baskets(matrix[[row]], schema).encoded.units.toarray()[0] for row in range(200)]
    assert np.array_equal(each, expected.toarray())


@quick
@given(baskets=st.lists(one, min_size=1, max_size=12), most=st.integers(1, 4), added=one, at=st.integers(0, 12))
def test_a_basket_more_changes_no_other(baskets, most, added, at):
    schema = BasketSchema(NAMES, max_items=most)
    at = min(at, len(baskets))
    before = read_baskets(baskets, schema).encoded.units.toarray()
    after = read_baskets([*baskets[:at], [*added, FOREIGN], *baskets[at:]], schema, outside="clamp").encoded.units.toarray()
    assert np.array_equal(np.delete(after, at, axis=0), before)
    assert after.sum(axis=1).max() <= most


def test_a_large_basket_keeps_a_choice_of_its_own_items_whatever_their_order():
    schema = BasketSchema(tuple(range(200)), max_items=5)
    random = np.random.default_rng(0)
    baskets = [random.choice(200, 50, replace=False).tolist() for _ in range(400)]
    reading = read_baskets(baskets, schema)
    kept = _sets(reading, schema)
    assert all(len(row) == 5 and row < set(basket) for row, basket in zip(kept, baskets, strict=True))
    assert reading.counted == {CUT_COUNTED: 400}
    assert _sets(read_baskets([basket[::-1] for basket in baskets], schema), schema) == kept
    # No item is preferred: 2,000 choices over 200 items, about 10 each. A Poisson count of 10 is above 35 with chance
    # 2e-10, so that one of 200 is with chance 4e-8; a choice of the first items would give some of them 100.
    assert max(np.bincount([item for row in kept for item in row], minlength=200)) <= 35


def test_persons_and_labels_belong_to_baskets():
    schema = BasketSchema(NAMES, max_items=3, classes=("a", "b"))
    baskets, labels, persons = [["tea"], [], ["milk", "tea"]], ["b", "a", "b"], ["eve", "eve", "ann"]
    frame = _frame(baskets, labels, persons)
    reading = read_baskets(frame, schema, person="person")
    assert reading.persons.tolist() == [0, 0, 1] and reading.encoded.codes[:, 0].tolist() == [1, 0, 1]
    assert read_baskets(baskets, schema, label=labels, person=persons).persons.tolist() == [0, 0, 1]
    frame.loc[3, "person"] = "bob"
    with pytest.raises(BadRecords, match=r"row 3 \(from 0\): the person differs"):
        read_baskets(frame, schema, person="person")
    frame.loc[3, ["person", "label"]] = ["ann", "a"]
    with pytest.raises(BadRecords, match=r"row 3 \(from 0\): the label differs"):
        read_baskets(frame, schema, person="person")


def test_rows_of_a_basket_may_stand_anywhere_and_in_many_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_dpgen.data.files.rows._ROWS_AT_ONCE", 3)
    monkeypatch.setattr("lightning_dpgen.data.files.delimited._BYTES_AT_ONCE", 64)
    monkeypatch.setattr("lightning_dpgen.data.baskets.files._BYTES_AT_ONCE", 8)
    schema = BasketSchema(tuple(range(50)), max_items=50)
    baskets = [[i, (i * 7) % 50] for i in range(50)]
    # Every basket begins in the first fifty rows.
    frame = _frame(baskets).sort_values("item", key=lambda items: [i % 2 for i in range(100)], kind="stable")
    frame.to_csv(tmp_path / "x.csv", index=False)
    frame.to_parquet(tmp_path / "x.parquet")
    (tmp_path / "x.dat").write_text("\n".join(f"{a}  {b} " for a, b in baskets))
    for name in ("x.csv", "x.parquet", "x.dat"):
        reading = read_baskets(tmp_path / name, schema)
        assert _sets(reading, schema) == [set(basket) for basket in baskets], name


def test_line_breaks_within_quotes_are_part_of_a_field(tmp_path):
    (tmp_path / "x.csv").write_text('\n\n"b","i"\n"1\n\n2",tea\n"1\n\n2",milk\n3,"milk\n"\n4,"\nbeer"\n')
    schema = BasketSchema(("tea", "milk"), max_items=2)
    reading = read_baskets(tmp_path / "x.csv", schema, outside="clamp")
    assert _sets(reading, schema) == [{"tea", "milk"}, {"milk"}, set()]
    with pytest.raises(BadRecords, match=r"line 12: the item 'beer'"):
        read_baskets(tmp_path / "x.csv", schema)


def test_names_with_blanks_are_parted_by_commas(tmp_path):
    (tmp_path / "x.txt").write_text("whole milk, tea\n\ntea,whole milk\ntea\n")
    schema = BasketSchema(("whole milk", "tea"), max_items=2)
    reading = read_baskets(tmp_path / "x.txt", schema)
    assert _sets(reading, schema) == [{"whole milk", "tea"}, set(), {"whole milk", "tea"}, {"tea"}]
    (tmp_path / "x.tsv").write_text("id\titem\n1\twhole milk\n")
    assert _sets(read_baskets(tmp_path / "x.tsv", schema), schema) == [{"whole milk"}]
    (tmp_path / "x.txt").write_text("whole milk;tea")
    assert _sets(read_baskets(tmp_path / "x.txt", schema, separator=";"), schema) == [{"whole milk", "tea"}]


def test_items_outside_the_universe_are_counted():
    schema = BasketSchema(NAMES, max_items=3)
    reading = read_baskets([["tea", FOREIGN], [FOREIGN]], schema, outside="clamp")
    assert _sets(reading, schema) == [{"tea"}, set()] and reading.counted == {OUTSIDE_COUNTED: 2}


@quick
@given(known=records())
def test_keys_without_a_universe(known):
    schema, baskets, _ = known
    keys = basket_keys(baskets, integers=type(schema.items[0]) is int)
    names = keys.names.to_pylist()
    assert names == sorted({item for basket in baskets for item in basket})
    held = [[names[i] for i in keys.ids[a:b]] for a, b in zip(keys.indptr, keys.indptr[1:], strict=False)]
    assert held == [sorted(set(basket)) for basket in baskets]


def test_keys_of_a_file(tmp_path):
    (tmp_path / "x.dat").write_text("3 10\n\n10")
    keys = basket_keys(tmp_path / "x.dat", integers=True)
    assert keys.names.to_pylist() == [3, 10] and keys.indptr.tolist() == [0, 2, 2, 3]
    (tmp_path / "y.dat").write_text("a 3 10\nb")
    assert basket_keys(tmp_path / "y.dat", form=BasketForm(label=True)).names.to_pylist() == ["10", "3"]
    (tmp_path / "x.dat").write_text("3 x")
    with pytest.raises(BadRecords, match=r"line 1: the item 'x' is not a whole number"):
        basket_keys(tmp_path / "x.dat", integers=True)


@given(
    items=st.lists(st.integers(-5, 5), min_size=1, max_size=6, unique=True) | st.just(list(range(16470))),
    data=st.data(),
)
@quick
def test_a_schema_survives_json(items, data):
    classes = data.draw(st.sampled_from([(), ("a", "b"), (0, 1)]))
    schema = BasketSchema(tuple(items), max_items=1, classes=classes)
    text = json.dumps(schema.as_json())
    assert BasketSchema.from_json(json.loads(text)) == schema
    assert len(text) < 200
    assert schema.layout.width == len(items) + len(classes) + 2


GOOD = BasketSchema(("a", "b"), max_items=1).as_json()
RANGE = {"first": 0, "last": 10**15}


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "images"}, {"items": []}, {"items": "ab"}, {"items": ["a", "a"]}, {"items": ["a", 1]}, {"items": [1.5]},
        {"items": [True, False]}, {"items": RANGE}, {"items": {"first": 3, "last": 1}}, {"items": {"first": 3}},
        {"items": None},
        {"items": {"first": "0", "last": 2}}, {"items": [" a"]}, {"items": ["a\nb"]}, {"items": [""]}, {"items": [10**30]},
        {"items": [["a"]]}, {"max_items": 0}, {"max_items": 3}, {"max_items": True}, {"max_items": 1.0},
        {"max_items": None},
        {"classes": ["one"]}, {"classes": None}, {"classes": ["x", "x"]}, {"classes": {}},
        {"more": 1},
        {"items": list(map(str, range(MOST_ITEMS + 1)))},
    ],
    ids=repr,
)  # fmt: skip
def test_nonsense_makes_no_schema(change):
    with pytest.raises(ValueError, match=r"^[^\n]{10,300}$"):
        BasketSchema.from_json({**GOOD, **change})


def test_universes(tmp_path):
    def write(name, text):
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path / name

    assert read_items("0:3") == (0, 1, 2) and read_items("1..3") == (1, 2, 3) and read_items("-2..-1") == (-2, -1)
    assert read_items(write("a.txt", "tea\nwhole milk\r\n\n")) == ("tea", "whole milk")
    assert read_items(write("a.txt", "3\n1\n2")) == (3, 1, 2)
    assert read_items(write("a.txt", "3\n01")) == ("3", "01")
    assert read_items(write("a.csv", '"tea, black"\nmilk\n')) == ("tea, black", "milk")
    assert read_items(write("a.json", '["a", "b"]')) == ("a", "b")
    assert read_items(write("a.json", "[3, 4]")) == (3, 4)
    for source, words in {
        "5..1": "smallest first",
        "0:0": "smallest first",
        "0..999999999": "100,000",
        "stock": "16470",
        write("b.txt", "tea\nmilk\ntea"): r"b.txt: .*'tea' appears twice \(lines 1 and 3\)",
        write("c.txt", "tea\n\nmilk"): r"\(line 2\)",
        write("d.txt", ""): "line 1",
        write("e.csv", "tea,3\n"): "line 1: found 2 fields",
        write("f.json", "{}"): "dict",
        write("g.json", "[1, 1]"): "appears twice",
        write("h.json", "[1,"): "not JSON",
        write("i.json", "[" * 100_000): "deeper than 64",
        write("j.txt", b"tea\n\xff"): "line 2.*UTF-8",
    }.items():
        with pytest.raises(BadRecords, match=words):
            read_items(source)
    with pytest.raises(MissingData, match=r"no\.txt"):
        read_items(tmp_path / "no.txt")
    for none in (None, ""):
        with pytest.raises(ValueError, match=r"leak.*items=FILE"):
            read_items(none)
    with pytest.raises(ValueError, match="leak"):
        read_baskets([["a"]], None)


ROWS = "basket,item\n1,tea\n"
FILES = {
    "an item outside": ("x.dat", "tea\nmilk caviar", r"x.dat, line 2: the item 'caviar' is not among .*outside=clamp"),
    "an item outside, a row": ("x.csv", ROWS + "1,caviar\n", r"x.csv, line 3: the item 'caviar'"),
    "no line": ("x.dat", "", "no baskets"),
    "no row": ("x.csv", "basket,item\n", "no baskets"),
    "no header": ("x.csv", "", "is empty"),
    "not UTF-8": ("x.dat", b"tea\nmilk \xff", r"line 2: byte 6 \(0xff\) is not UTF-8"),
    "UTF-16": ("x.dat", "tea".encode("utf-16"), "line 1: byte 1 .* is not UTF-8"),
    "a row not UTF-8": ("x.csv", ROWS.encode() + b"2,\xff", r"line 3: byte 3 \(0xff\) is not UTF-8"),
    "a header not UTF-8": ("x.csv", b"b\xff,item\n", r"line 1: byte 2"),
    "a broken gzip": ("x.dat.gz", b"\x1f\x8b\x08 no", "cannot be read"),
    "a cut gzip": ("x.dat.gz", gzip.compress(b"tea\n" * 1000)[:-9], "cannot be read"),
    "no gzip": ("x.csv.gz", b"basket,item\n", "cannot be read"),
    "no Parquet": ("x.parquet", b"PAR1", "cannot be read"),
    "another ending": ("x.xls", "tea", r"lines \(one basket in each line\)"),
    "three columns": ("x.csv", "basket,item,price\n1,tea,3\n", r"expected two.*columns="),
    "one column": ("x.csv", "item\ntea\n", "expected two"),
    "a column twice": (
        "x.csv",
        "item,item\ntea,milk\n",
        r"'item': expected each name once; rename one, or say",
    ),
    "a ragged row": ("x.csv", ROWS + "1,tea,milk\n", "line 3: found 3 fields, expected 2"),
    "a row without an id": ("x.csv", ROWS + ",tea\n", "line 3: nothing in the column 'basket'"),
}


def _npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _saved(matrix, **options):
    file = io.BytesIO()
    scipy.sparse.save_npz(file, matrix, **options)
    return file.getvalue()


seven = scipy.sparse.eye_array(7, format="csr", dtype=np.uint8)
PARTS = {"format": np.array(b"csr"), "indices": np.arange(2), "indptr": np.array([0, 1, 2]), "data": np.ones(2)}
WHOLE = PARTS | {"shape": [2, 7]}
FILES |= {
    "a matrix of no items": ("x.npz", _saved(seven[:0]), "no baskets"),
    "a matrix of another width": ("x.npz", _saved(seven[:, :5]), r"x.npz has shape \(7, 5\): expected \(N, 7\)"),
    "a matrix by columns": ("x.npz", _saved(seven.tocsc()), r"x.npz holds a 'csc' matrix: expected csr.*tocsr"),
    "a matrix of negative numbers": ("x.npz", _saved(-1.0 * seven), "x.npz holds numbers that are negative"),
    "a matrix of missing numbers": ("x.npz", _saved(seven * np.nan), "x.npz holds numbers that are negative"),
    "a matrix of infinite numbers": ("x.npz", _saved(seven * np.inf), "x.npz holds numbers that are negative"),
    "a matrix of complex numbers": ("x.npz", _saved(seven * 1j), "x.npz holds numbers that are negative"),
    "arrays of something else": ("x.npz", _npz(images=np.ones((2, 2))), "expected an array named format.*save_npz"),
    "an item beyond the last": ("x.npz", _npz(**WHOLE | {"indices": np.array([0, 7])}), "damaged csr.*indices must"),
    "an item before the first": ("x.npz", _npz(**WHOLE | {"indices": np.array([0, -1])}), "damaged csr.*indices must"),
    "rows that go back": ("x.npz", _npz(**WHOLE | {"indptr": np.array([0, 3, 2])}), "damaged csr.*indptr must"),
    "fewer rows than said": ("x.npz", _npz(**PARTS | {"shape": [3, 7]}), "damaged csr.*indptr must"),
    "a shape of text": ("x.npz", _npz(**PARTS | {"shape": "xy"}), "two whole numbers as its shape"),
    "no shape": ("x.npz", _npz(**PARTS), "it has no shape"),
    "pickled arrays": ("x.npz", _npz(**WHOLE | {"data": np.array([{}, 1])}), "allow_pickle"),
    "a pickle": ("x.npz", pickle.dumps([["tea"]]), "x.npz is not .npz of plain arrays"),
    "an empty matrix file": ("x.npz", b"", "x.npz is not .npz of plain arrays"),
    "a cut matrix file": ("x.npz", _saved(seven)[:-40], "x.npz is not .npz of plain arrays"),
    "a damaged matrix file": ("x.npz", _saved(seven, compressed=False).replace(b"\1" * 7, b"\2" * 7), "Bad CRC-32"),
    "a packed matrix": ("x.npz.gz", gzip.compress(_saved(seven)), "expected a name that ends in"),
}


@pytest.mark.parametrize("name", FILES)
def test_bad_files_get_one_clear_line(tmp_path, name):
    file, text, words = FILES[name]
    (tmp_path / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadRecords, match=words) as error:
        read_baskets(tmp_path / file, BasketSchema(NAMES, max_items=3))
    assert "\n" not in str(error.value)


LABELLED = BasketSchema(NAMES, max_items=3, classes=("a", "b"))
PLAIN = BasketSchema(NAMES, max_items=3)
NUMBERED = BasketSchema((1, 2), max_items=1)
eye = scipy.sparse.eye_array(7, format="csr")
BAD = {
    "a string": ("no_such.dat", PLAIN, {}, MissingData, "no_such.dat"),
    "a dense matrix": (np.eye(7), PLAIN, {}, BadRecords, "csr_array"),
    "another sparse matrix": (eye.tocsc(), PLAIN, {}, BadRecords, "csr_array"),
    "another width": (eye[:, :5], PLAIN, {}, BadRecords, "one column for each item"),
    "a negative entry": (-eye, PLAIN, {}, BadRecords, "negative"),
    "a missing entry": (eye * np.nan, PLAIN, {}, BadRecords, "negative"),
    "a list of text": (["tea"], PLAIN, {}, BadRecords, "basket 1 is a str"),
    "a number": (7, PLAIN, {}, BadRecords, "int"),
    "a number in a basket": ([["tea", 3]], PLAIN, {}, BadRecords, "basket 1: 3: expected all text"),
    "a float in a basket": ([[1.0]], NUMBERED, {}, BadRecords, r"basket 1: 1.0"),
    "a huge number": ([[10**30]], NUMBERED, {}, BadRecords, "cannot be read"),
    "nothing in a basket": ([["tea", None]], PLAIN, {}, BadRecords, "None"),
    "no baskets": ([], PLAIN, {}, BadRecords, "no baskets"),
    "no labels": ([["tea"]], LABELLED, {}, BadRecords, "no labels"),
    "too few labels": ([["tea"]], LABELLED, {"label": []}, BadRecords, "label"),
    "an unknown label": ([["tea"]], LABELLED, {"label": ["c"]}, BadRecords, "the label 'c'"),
    "too many persons": ([["tea"]], PLAIN, {"person": ["a", "b"]}, BadRecords, "person"),
    "another rule": ([["tea"]], PLAIN, {"outside": "drop"}, ValueError, "outside='drop'"),
    "no person column": (pa.table({"b": [1], "i": ["tea"]}), PLAIN, {"person": "p"}, BadRecords, "no column 'p'"),
    "a missing person": (
        pa.table({"b": [1], "i": ["tea"], "p": pa.array([None], pa.string())}),
        PLAIN, {"person": "p"}, BadRecords, "nothing in the column 'p'",
    ),
    "no label column": (pa.table({"b": [1], "i": ["tea"]}), LABELLED, {}, BadRecords, "no column 'label'"),
    "nested items": (pa.table({"b": [1], "i": [["tea"]]}), PLAIN, {}, BadRecords, "list"),
    "a person as an array": (pa.table({"b": [1], "i": ["tea"]}), PLAIN, {"person": [1]}, ValueError, "name of a column"),
    "labels as an array": (pa.table({"b": [1], "i": ["tea"]}), LABELLED, {"label": np.ones(2)}, ValueError, "label=array"),
    "persons of another kind": ([["tea"]], PLAIN, {"person": 5}, BadRecords, "person=5"),
    "columns of another kind": (pa.table({"b": [1], "i": ["tea"]}), PLAIN, {"columns": 5}, ValueError, "columns=5"),
    "a separator of another kind": (pa.table({"b": [1]}), PLAIN, {"separator": 5}, ValueError, "separator=5"),
    "one column named": (pa.table({"b": [1], "i": ["tea"]}), PLAIN, {"columns": "b"}, ValueError, "two names"),
    "an empty separator": (pa.table({"b": [1], "i": ["tea"]}), PLAIN, {"separator": ""}, ValueError, "separator=''"),
    "mixed items": (pd.DataFrame({"b": [1, 2], "i": ["tea", 3]}), PLAIN, {}, BadRecords, "row 1 .from 0.: the item 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_records_get_one_clear_line(name):
    source, schema, options, kind, words = BAD[name]
    with pytest.raises(kind, match=words) as error:
        read_baskets(source, schema, **options)
    assert "\n" not in str(error.value)


def test_blanks_around_fields_are_no_part_of_them(tmp_path):
    (tmp_path / "x.csv").write_text("basket, item\n1, tea\n 1,milk \n2 , \n")
    assert _sets(read_baskets(tmp_path / "x.csv", PLAIN), PLAIN) == [{"tea", "milk"}, set()]


def test_a_file_of_lines_has_no_column_of_persons(tmp_path):
    (tmp_path / "x.dat").write_text("tea\n")
    with pytest.raises(BadRecords, match="no column 'p' of persons"):
        read_baskets(tmp_path / "x.dat", PLAIN, person="p")
    (tmp_path / "x.dat").write_text("a tea\n\n")
    with pytest.raises(BadRecords, match="line 2: expected its label first"):
        read_baskets(tmp_path / "x.dat", LABELLED)


def test_a_matrix_holds_baskets_alone(tmp_path):
    scipy.sparse.save_npz(tmp_path / "x.npz", seven)
    for schema, options in ((PLAIN, {"person": "p"}), (LABELLED, {}), (LABELLED, {"label": "class"})):
        with pytest.raises(BadRecords, match=r"x.npz: a matrix holds baskets alone.*person"):
            read_baskets(tmp_path / "x.npz", schema, **options)
    with pytest.raises(BadRecords, match=r"x.npz: a matrix does not say which items.*items="):
        basket_keys(tmp_path / "x.npz")
    (tmp_path / "x.npz").rename(tmp_path / "x")
    assert read_baskets(tmp_path / "x", PLAIN, form="matrix").encoded.units.nnz == 7


def test_whole_numbers_are_found_however_a_table_holds_them():
    wanted = [{1}, {2}]
    numbers = [np.array([1, 2], dtype) for dtype in ("int8", "int64", "uint64", "float32", "float64", "str", "object")]
    for items in [*numbers, pd.Categorical(["1", "2"]), pd.Categorical([1, 2])]:
        assert _sets(read_baskets(pd.DataFrame({"b": [0, 1], "i": items}), NUMBERED), NUMBERED) == wanted
    with pytest.raises(BadRecords, match=r"row 1 \(from 0\)"):
        read_baskets(pd.DataFrame({"b": [0, 1], "i": [1.0, 2.5]}), NUMBERED)


@pytest.mark.parametrize("place", [-3, 4, 700])
def test_places_outside_the_items_are_refused(place):
    """scipy builds such a matrix without a word; what reads it later would take another record's numbers, or fail."""
    schema = BasketSchema(("tea", "milk", "jam", "rye"), max_items=2)
    units = scipy.sparse.csr_array((np.ones(2, np.uint8), np.array([0, 1]), np.array([0, 1, 2])), shape=(2, 4))
    encoded = schema.encode(units)
    encoded.units.indices[1] = place
    with pytest.raises(BadRecords, match="damaged csr matrix"):
        Records(schema, encoded)
