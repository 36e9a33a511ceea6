"""The same records are read from a file of text, a Parquet file and a frame; what is wrong with one is said in one line."""

import gzip
import re

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from random_tables import records, schemas

from lightning_dpgen.data.files import delimited, rows
from lightning_dpgen.data.files.text import MissingData
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.sampling.errors import BadRecords

SOME = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write_text(path, table, schema):
    options = pa.csv.WriteOptions(include_header=schema.header, delimiter=schema.separator or ",")
    pa.csv.write_csv(table, path, options)


@SOME
@given(schemas(), st.integers(0, 2**32), st.integers(0, 12))
def test_every_source_gives_the_same(tmp_path_factory, schema, seed, rows):
    folder, table = tmp_path_factory.mktemp("t"), records(schema, seed, rows)
    expected = schema.encode(table)
    write_text(folder / "a.csv", table, schema)
    (folder / "b.csv.gz").write_bytes(gzip.compress((folder / "a.csv").read_bytes()))
    pa.parquet.write_table(pa.Table.from_batches([table]), folder / "c.parquet")
    frame = table.to_pandas()
    for source in (folder / "a.csv", str(folder / "b.csv.gz"), folder / "c.parquet", frame, table):
        read = read_table(source, schema)
        assert np.array_equal(read.encoded.codes, expected.codes) and np.array_equal(read.encoded.units, expected.units)
        assert read.encoded.codes.dtype == expected.codes.dtype and read.persons is None and read.counted == {}


def test_blocks_are_joined(monkeypatch, tmp_path):
    schema = parse_schema("columns: {a: {type: integer, low: 0, high: 999, bins: 1000}, who: {type: drop}}")
    numbers = np.random.default_rng(0).integers(0, 1000, 3000)
    frame = pd.DataFrame({"who": [f"p{n % 7}" for n in numbers], "a": numbers})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    monkeypatch.setattr(delimited, "_BYTES_AT_ONCE", 1000)
    monkeypatch.setattr(rows, "_ROWS_AT_ONCE", 100)
    for source in (tmp_path / "a.csv", tmp_path / "a.parquet", frame, pa.table(frame)):
        read = read_table(source, schema, person="who")
        assert np.array_equal(read.encoded.codes[:, 0], numbers)
        same = read.persons[:, None] == read.persons[None, :100]
        assert np.array_equal(same, numbers[:, None] % 7 == numbers[None, :100] % 7)
    frame.loc[2500, "a"] = 1000
    frame.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(BadRecords, match=re.escape("a.csv, line 2502: column 'a': '1000' is above high, 999; correct it")):
        read_table(tmp_path / "a.csv", schema)
    with pytest.raises(BadRecords, match=r"the table, row 2500 \(from 0\)"):
        read_table(frame, schema)


ABOUT = parse_schema("""
columns:
  n: {type: number, low: 0, high: 10, bins: 5}
  i: {type: integer, low: 0, high: 10, bins: 5, special: [99]}
  c: {type: category, values: [a, b, rest], other: rest}
  m: {type: category, values: [x, y], missing: true, missing_values: ["?", ""]}
  b: {type: boolean}
  d: {type: date, low: 2020-01-01, high: 2020-12-31, bins: 12}
  s: {type: datetime, low: 2020-01-01, high: 2020-12-31, bins: 12, resolution: hour}
  t: {type: time, bins: 24}
  id: {type: drop}
""")
ROW = {"n": "1.5", "i": "3", "c": "a", "m": "?", "b": "true", "d": "2020-02-03", "s": "2020-02-03 04:05:06", "t": "07:08"}
ROW["id"] = "Z"


def text_of(**changed):
    return pd.DataFrame([ROW, ROW | changed, ROW]).to_csv(index=False)


def test_texts_that_say_the_same(tmp_path):
    first = read_table(pd.DataFrame([ROW]), ABOUT).encoded.codes
    for change in [
        {"n": " 1.5e0 "}, {"i": "3.0"}, {"b": "Yes"}, {"b": "1"}, {"m": ""}, {"s": "2020-02-03T04:59"}, {"t": "07:08:59.5"},
        {"id": "a,b\n\"c"}, {"c": " a"},
    ]:  # fmt: skip
        (tmp_path / "a.csv").write_text(text_of(**change))
        assert np.array_equal(read_table(tmp_path / "a.csv", ABOUT).encoded.codes, first.repeat(3, 0)), change
    typed = pd.DataFrame({
        "n": np.float32([1.5]), "i": pd.array([3], "Int8"), "c": pd.Categorical(["a"]), "m": [None], "b": [True],
        "d": pd.to_datetime(["2020-02-03"]), "s": pd.to_datetime(["2020-02-03 04:05:06"]), "id": [object()],
        "t": [pd.Timestamp("2020-01-01 07:08").time()],
    })  # fmt: skip
    assert np.array_equal(read_table(typed, ABOUT).encoded.codes, first)
    typed = typed.assign(n=[3 / 2], i=[3.0], b=[1], m=np.nan)
    assert np.array_equal(read_table(typed.drop(columns="id"), ABOUT).encoded.codes, first)


def test_what_is_clamped_is_counted(tmp_path):
    rows = [ROW, ROW | {"n": "-3", "i": "11", "c": "zebra", "m": "z", "d": "2021-05-05"}, ROW | {"n": "inf", "i": "99"}]
    pd.DataFrame(rows).to_csv(tmp_path / "a.csv", index=False)
    read = read_table(tmp_path / "a.csv", ABOUT, outside="clamp")
    assert read.counted == {
        "n: below low": 1, "n: above high": 1, "i: above high": 1, "c: not listed": 1, "m: not listed": 1,
        "d: above high": 1,
    }  # fmt: skip
    assert read.encoded.codes[1, :4].tolist() == [0, 4, 2, 2] and read.encoded.codes[2, :2].tolist() == [4, 5]
    with pytest.raises(BadRecords, match=r"line 3: column 'n': '-3' is below low, 0.0; .*outside=clamp"):
        read_table(tmp_path / "a.csv", ABOUT)


BAD_VALUES = {
    "text for a number": ({"n": "abc"}, "line 3: column 'n': 'abc': expected a number"),
    "thousands": ({"n": "1,234.5"}, "without thousands separators"),
    "decimal comma": ({"n": "1,5"}, "decimal point"),
    "nan": ({"n": "nan"}, "'nan': expected a number"),
    "infinite": ({"n": "-inf"}, "'-inf' is below low"),
    "missing": ({"n": ""}, "a value is missing; fill it in, or declare missing: true"),
    "half": ({"i": "3.5"}, "'3.5': expected a whole number"),
    "huge": ({"i": "9" * 30}, "above high, 10"),
    "huge float": ({"n": "1e400"}, "above high"),
    "unlisted": ({"c": "zebra" * 20}, r"'zebra.{0,40}\.\.\.: expected one of '.*'rest'; .*turn it to 'rest'"),
    "unlisted, missing": ({"m": "z"}, "clamp turn it to missing"),
    "empty category": ({"c": ""}, "missing"),
    "boolean": ({"b": "maybe"}, "'maybe': expected true or false"),
    "date": ({"d": "03/02/2020"}, "expected a date as YYYY-MM-DD"),
    "no date": ({"d": "2020-02-30"}, "expected a date"),
    "early date": ({"d": "2019-12-31"}, "below low, 2020-01-01"),
    "zone": ({"s": "2020-02-03T04:05:06Z"}, "without a time zone"),
    "time": ({"t": "24:00"}, "'24:00': expected a time of day"),
    "late special": ({"i": "98"}, "above high"),
}


@pytest.mark.parametrize(("change", "words"), BAD_VALUES.values(), ids=BAD_VALUES.keys())
def test_bad_values(tmp_path, change, words):
    (tmp_path / "a.csv").write_text(text_of(**change))
    with pytest.raises(BadRecords, match=words) as caught:
        read_table(tmp_path / "a.csv", ABOUT)
    assert "\n" not in str(caught.value) and "line 3" in str(caught.value) and len(str(caught.value)) < 300


LONE = parse_schema("columns: {a: {type: integer, low: 0, high: 9, bins: 10}, b: {type: boolean}}")
SINGLE = parse_schema("columns: {a: {type: integer, low: 0, high: 9, bins: 10, missing: true}}")
BAD_FILES = {
    "empty": (b"", "is empty: expected a header"),
    "ragged": (b"a,b\n1,true\n\n2\n", "line 4: found 1 field, expected 2, separated by ','"),
    "too long": (b"a,b\n1,true,3\n", "line 2: found 3 fields, expected 2"),
    "not UTF-8": (b"a,b\n1,true\n2,\xe9\n", r"line 3: byte 3 \(0xe9\) is not UTF-8"),
    "UTF-16": ("a,b\n1,true\n".encode("utf-16"), r"looks like UTF-16: .*\(iconv -f utf-16 -t utf-8\)"),
    "late not UTF-8": (b"a,b\n" + b"1,true\n" * 9999 + b"2,\xff\n", r"line 10001: byte 3 \(0xff\)"),
    "missing column": (b"a\n1\n", "lacks b: expected the same columns"),
    "other columns": (b"a,c\n1,true\n", "lacks b and has c, not in the schema"),
    "twice": (b"a,a,b\n1,1,true\n", r"two columns are named 'a'.*\(header: false in its schema\)"),
    "separator": (b"a;b\n1;true\n", "is it another separator"),
    "open quote": (b'a,b\n1,"true\n2,true\n', "a.csv"),
    "quoted line breaks": (b'a,b\n1,"tr\n\nue"\n', "line 2: column 'b'"),
    "after line breaks": (b'a,b\n\n1,"true\n"\nx,true\n', "line 5: column 'a': 'x'"),
    "long record": (b"a,b\n1," + b"x" * (40 << 20) + b"\n", "cannot be read"),
}


@pytest.mark.parametrize(("content", "words"), BAD_FILES.values(), ids=BAD_FILES.keys())
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_bad_files(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(BadRecords, match=words) as caught:
        read_table(tmp_path / name, LONE)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_files_that_are_fine(tmp_path):
    file = tmp_path / "a.csv"
    for content, codes in [
        (b"a,b\n", []), (b"a,b", []), (b"\xef\xbb\xbfa,b\r\n1,true\r\n\r\n2,no\r\n", [[1, 1], [2, 0]]),
        (b"\n\nb, a\nf, 3", [[3, 0]]), (b'"a","b"\n"1","true"', [[1, 1]]), (b'a,b\n1,"true\n"\n', [[1, 1]]),
    ]:  # fmt: skip
        file.write_bytes(content)
        read = read_table(file, LONE)
        assert read.encoded.codes.tolist() == codes and read.encoded.codes.shape == (len(codes), 2)
    file.write_bytes(b"a\n1\n\n2\n")
    assert read_table(file, SINGLE).encoded.codes[:, 0].tolist() == [1, 10, 2]
    (tmp_path / "a.tsv").write_bytes(b"a\tb\n1\tt\n")
    assert read_table(tmp_path / "a.tsv", LONE).encoded.codes.tolist() == [[1, 1]]
    bare = parse_schema("{header: false, separator: ' ', columns: {a: {type: drop}, b: {type: boolean}}}")
    for content, codes in [(b"", []), (b"1 t\n2 f\n", [[1], [0]])]:
        file.write_bytes(content)
        assert read_table(file, bare).encoded.codes.tolist() == codes
    file.write_bytes(b"t\n")
    with pytest.raises(BadRecords, match="line 1: found 1 field, expected 2"):
        read_table(file, bare)
    many = parse_schema("columns: {a: {type: category, values: [" + ",".join(f"v{i}" for i in range(10_000)) + "]}}")
    assert read_table(pd.DataFrame({"a": ["v9999", "v0"]}), many).encoded.codes.tolist() == [[9999], [0]]


FRAME = pd.DataFrame({"a": [1, 2], "b": [True, False]})
BAD_SOURCES = {
    "list": ([1, 2], "a list: expected"),
    "suffix": ("a.xls", "a.xls is not read: open it in its program and save it as .xlsx or .csv"),
    "mixed": (FRAME.assign(a=[1, "x"]), "row 1 .from 0.: column 'a': 'x': expected a whole number"),
    "odd mixture": (
        FRAME.assign(a=pd.Series([np.datetime64("2020-01-01"), np.float32(3)], dtype=object)),
        "'a': holds timestamp.us.: expected a whole",
    ),
    "names": (FRAME.rename(columns={"a": 0}), "lacks a and has 0, not in the schema"),
    "twice": (pd.concat([FRAME, FRAME], axis=1), "two columns are named 'a'"),
    "nested": (FRAME.assign(a=[[1], [2]]), "column 'a' holds a list: expected single values; unpack it"),
    "bytes": (FRAME.assign(a=[b"1", b"2"]), "column 'a' holds bytes"),
    "dates for numbers": (FRAME.assign(a=pd.to_datetime(["2020-01-01"] * 2)), "holds timestamp.* expected a whole number"),
    "numbers for truth": (FRAME.assign(b=[0, 2]), r"row 1 \(from 0\): column 'b': 2: expected true or false"),
    "NaN": (FRAME.assign(a=[1.0, np.nan]), r"row 1 \(from 0\): column 'a': a value is missing"),
    "infinite": (FRAME.assign(a=[1.0, np.inf]), "inf is above high"),
    "truth for numbers": (FRAME.assign(a=[True, False]), "holds bool"),
    "all missing": (FRAME.assign(a=None), r"row 0 \(from 0\): column 'a': a value is missing"),
    "periods": (FRAME.assign(a=pd.period_range("2020", periods=2)), "column 'a'"),
}


@pytest.mark.parametrize(("source", "words"), BAD_SOURCES.values(), ids=BAD_SOURCES.keys())
def test_bad_sources(tmp_path, monkeypatch, source, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.xls").write_bytes(b"x")
    with pytest.raises(BadRecords, match=words):
        read_table(source, LONE)


def test_bad_parquet_and_gzip(tmp_path):
    with pytest.raises(MissingData, match=r"no file .*b\.csv"):
        read_table(tmp_path / "b.csv", LONE)
    (tmp_path / "a.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(BadRecords, match="cannot be read as Parquet"):
        read_table(tmp_path / "a.parquet", LONE)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(bytes(500))[:15])
    with pytest.raises(BadRecords, match="cannot be read"):
        read_table(tmp_path / "a.csv.gz", LONE)
    zoned = pa.table({"a": [1], "b": [True]}).append_column("s", pa.array([0], pa.timestamp("us", "UTC")))
    pa.parquet.write_table(zoned, tmp_path / "a.parquet")
    schema = parse_schema(
        "columns: {s: {type: datetime, low: 1970-01-01, high: 1971-01-01, bins: 3}, a: {type: drop}, b: {type: drop}}"
    )
    with pytest.raises(BadRecords, match=r"column 's': holds times of the zone UTC.*without their zone"):
        read_table(tmp_path / "a.parquet", schema)


def test_persons(tmp_path):
    frame = FRAME.assign(who=["x", "y"])
    assert read_table(frame, LONE, person="who").persons.tolist() == [0, 1]
    assert read_table(frame.assign(who=7), LONE, person="who").persons.tolist() == [0, 0]
    assert read_table(frame[:0], LONE, person="who").persons.shape == (0,)
    assert read_table(FRAME, LONE, person="a").persons.tolist() == [0, 1]
    for broken, words in [
        (FRAME, r"has no column person='who'"),
        (frame.rename(columns={"who": "whose"}), r"has no column person='who'"),
        (frame.assign(who=["x", None]), "column 'who': a value is missing"),
        (frame.assign(who=["", "x"]), r"row 0 \(from 0\): column 'who'"),
        (frame.assign(who=[[1], [2]]), "column 'who' holds a list"),
        (frame.assign(who=[1.0, np.nan]), "column 'who': a value is missing"),
    ]:  # fmt: skip
        with pytest.raises(BadRecords, match=words):
            read_table(broken, LONE, person="who")
    with pytest.raises(BadRecords, match="has who, not in the schema"):
        read_table(frame, LONE)
