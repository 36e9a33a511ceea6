"""One table in files of every kind: each reads the same, is drafted alike, and says in one line what is wrong with it."""

import bz2
import datetime
import decimal
import gzip
import json
import lzma
import re
import sqlite3
import uuid
import zipfile

import duckdb
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from marks import only

from lightning_dpgen.data.baskets.reading import read_baskets
from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.files import workbook
from lightning_dpgen.data.files.text import MissingData
from lightning_dpgen.data.files.values import ValueRows, pieces
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.record_check import check_table
from lightning_dpgen.data.tables.schema_draft import draft_of_file
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.sampling.errors import BadRecords

SCHEMA = """
columns:
  age: {type: integer, low: 0, high: 99, bins: 100, missing: true}
  pay: {type: number, low: 0, high: 100, decimals: 2, bins: 10000}
  sex: {type: category, values: [F, M]}
  seen: {type: date, low: 2020-01-01, high: 2024-12-31, bins: 2000}
  ok: {type: boolean}
"""
DAY = datetime.date(2021, 3, 4)
ROWS = [
    {"age": 41, "pay": 12.5, "sex": "F", "seen": DAY, "ok": True},
    {"age": None, "pay": 99.99, "sex": "M", "seen": DAY + datetime.timedelta(days=40), "ok": False},
    {"age": 7, "pay": 3.0, "sex": "M", "seen": DAY, "ok": True},
]
NAMES = list(ROWS[0])


def in_table(name="t", more=""):
    """Return SCHEMA for a named table or sheet."""
    return parse_schema(f"table: {name}\n{more}{SCHEMA}")


def write_text(path):
    text = pd.DataFrame(ROWS).astype({"age": "Int64"}).to_csv(index=False).encode()
    if path.suffix == ".zst":
        with pa.CompressedOutputStream(pa.OSFile(str(path), "wb"), "zstd") as file:
            file.write(text)
    else:
        path.write_bytes({".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)(text))


def write_json(path):
    lines = [json.dumps({key: value for key, value in row.items() if value is not None}, default=str) for row in ROWS]
    text = ("\n\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def write_parquet(path):
    table = pa.Table.from_pylist(ROWS)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
        return
    path.mkdir()
    pq.write_table(table.slice(0, 1), path / "part-0.parquet")
    pq.write_table(table.slice(1), path / "part-1.parquet")
    (path / "_SUCCESS").touch()


def write_workbook(path, sheets=("t",), rows=ROWS):
    book = openpyxl.Workbook()
    book.remove(book.active)
    for sheet in sheets:
        made = book.create_sheet(sheet)
        made.append([*rows[0]])
        for row in rows:
            made.append([*row.values()])
        # A used range beyond the records, as spreadsheets leave it.
        made.cell(len(rows) + 5, len(NAMES) + 3).number_format = "0.00"
    book.save(path)


def write_sqlite(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (age INTEGER, pay REAL, sex TEXT, seen TEXT, ok INTEGER)")
        rows = [[str(value) if isinstance(value, datetime.date) else value for value in row.values()] for row in ROWS]
        connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", rows)
        connection.execute("CREATE VIEW v AS SELECT sex, count(*) AS age FROM t GROUP BY sex")
    connection.close()


def write_duckdb(path):
    with duckdb.connect(str(path)) as connection:
        connection.register("given", pa.Table.from_pylist(ROWS))
        connection.execute("CREATE TABLE t AS SELECT * FROM given")
        connection.execute("CREATE VIEW v AS SELECT * FROM t")


KINDS = {
    "a.csv": write_text, "a.csv.gz": write_text, "a.csv.bz2": write_text, "a.csv.zst": write_text,
    "a.jsonl": write_json, "a.ndjson.gz": write_json, "a.parquet": write_parquet, "folder": write_parquet,
    "a.xlsx": write_workbook, "a.sqlite": write_sqlite, "a.db": write_sqlite, "a.duckdb": write_duckdb,
    "b.db": write_duckdb,
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_reads_the_same(tmp_path, name):
    schema = parse_schema(SCHEMA)
    KINDS[name](tmp_path / name)
    before = sorted(tmp_path.rglob("*"))
    read = read_table(tmp_path / name, schema, person="sex")
    expected = read_table(pa.Table.from_pylist(ROWS), schema)
    assert read.encoded.codes.tolist() == expected.encoded.codes.tolist() and read.persons.tolist() == [0, 1, 1]
    assert sorted(tmp_path.rglob("*")) == before
    drafts, about = draft_of_file(tmp_path / name)
    # SQLite has no type of true and false.
    truth = "integer" if name in ("a.sqlite", "a.db") else "boolean"
    assert [draft.fields["type"] for draft in drafts] == ["integer", "number", "category", "date", truth] and not about
    # A draft of Parquet looks at its types alone.
    typed = name in ("a.parquet", "folder")
    assert drafts[1].fields.get("decimals") == (None if typed else 2)


def test_a_table_is_named_where_there_are_several(tmp_path):
    write_workbook(tmp_path / "a.xlsx", ("t", "other"))
    write_sqlite(tmp_path / "a.sqlite")
    write_duckdb(tmp_path / "a.duckdb")
    with sqlite3.connect(tmp_path / "a.sqlite") as connection:
        connection.execute("CREATE TABLE other (x)")
    connection.close()
    for name in ("a.xlsx", "a.sqlite", "a.duckdb"):
        assert len(read_table(tmp_path / name, in_table()).encoded) == 3
        assert draft_of_file(tmp_path / name, table="t")[1] == {"table": "t"}
        with pytest.raises(BadRecords, match=r"has no (sheet|table) 'wards': it has t"):
            read_table(tmp_path / name, in_table("wards"))
    for name in ("a.xlsx", "a.sqlite"):
        with pytest.raises(BadRecords, match=r"has 2 \w+: .* table: t in its schema \(dpgen schema --table t .*has t, ot"):
            read_table(tmp_path / name, parse_schema(SCHEMA))
    for name in ("a.sqlite", "a.duckdb"):
        with pytest.raises(BadRecords, match="'v' is a view, whose rows may depend on several records"):
            read_table(tmp_path / name, in_table("v"))


def test_a_database_that_is_being_written_is_read_with_what_was_committed(tmp_path):
    """A write-ahead log beside the file holds records that the file does not."""
    connection = sqlite3.connect(tmp_path / "a.sqlite")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE t (sex TEXT)")
    connection.execute("INSERT INTO t VALUES ('F')")
    connection.commit()
    schema = parse_schema("columns: {sex: {type: category, values: [F, M]}}")
    assert len(read_table(tmp_path / "a.sqlite", schema).encoded) == 1
    connection.execute("INSERT INTO t VALUES ('M')")
    assert len(read_table(tmp_path / "a.sqlite", schema).encoded) == 1
    connection.close()


def spoilt_workbook(change):
    def write(path):
        write_workbook(path)
        book = openpyxl.load_workbook(path)
        change(book["t"])
        book.save(path)

    return write


def titled(sheet):
    sheet.insert_rows(1, 2)
    sheet["A1"] = "Report of visits"


def set_cell(cell, value):
    return spoilt_workbook(lambda sheet: sheet.__setitem__(cell, value))


def written(content):
    return lambda path: path.write_bytes(content)


def two_types(path):
    path.mkdir()
    for number, type_ in enumerate((pa.int64(), pa.string())):
        pq.write_table(pa.table({"age": pa.array([1], pa.int64()).cast(type_)}), path / f"{number}.parquet")


def half(write):
    def cut(path):
        write(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return cut


LINE = json.dumps(ROWS[0], default=str)
OPEN_QUOTE = b'age,pay,sex,seen,ok\n1,2,F,2021-03-04,1\n1,2,"M,2021-03-04,1\n1,2,F,2021-03-04,1\n'
BAD = {
    "a formula without its value": ("a.xlsx", set_cell("B2", "=1+1"), "sheet 't', cell B2 holds a formula without its"),
    "an error": ("a.xlsx", set_cell("B3", "#DIV/0!"), r"cell B3 holds the error #DIV/0!: correct it"),
    "merged": ("a.xlsx", spoilt_workbook(lambda sheet: sheet.merge_cells("A2:A3")), "has merged cells"),
    "a title": ("a.xlsx", spoilt_workbook(titled), "row 3 has these names: declare skip_rows: 2"),
    "a nameless column": ("a.xlsx", set_cell("B1", None), "lacks pay: .*; column 2 has no name in the header"),
    "a value beside": ("a.xlsx", set_cell("G2", 5), "row 2: holds a value to the right of the last of 5 columns"),
    "text among numbers": ("a.xlsx", set_cell("B3", "n/a"), "sheet 't', row 3: column 'pay': 'n/a': expected a number"),
    "a password": ("a.xlsx", written(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"x" * 99), "has a password, or is an old"),
    "no workbook": ("a.xlsx", written(b"PK"), "cannot be read as a workbook"),
    "no cells": ("a.xlsx", lambda path: zipfile.ZipFile(path, "w").close(), "cannot be read as a workbook"),
    "empty workbook": ("a.xlsx", written(b""), "cannot be read as a workbook"),
    "no database": ("a.sqlite", written(b"SQLite format 3\0" + b"x" * 500), "cannot be read as SQLite"),
    "no DuckDB": ("a.duckdb", written(b"x" * 500), "cannot be read as DuckDB"),
    "empty database": ("a.db", written(b""), "cannot be read as DuckDB"),
    "half an archive": ("a.csv.zst", written(b"\x28\xb5\x2f\xfd\x04\x00"), "a.csv.zst cannot be read"),
    "half a bzip2": ("a.csv.bz2", written(bz2.compress(b"age,pay,sex,seen,ok\n1")[:-4]), "a.csv.bz2 cannot be read"),
    "half a gzip": ("a.csv.gz", written(gzip.compress(b"age,pay,sex,seen,ok\n1")[:-9]), "is it whole, and"),
    "no gzip": ("a.csv.gz", written(b"age,pay"), "a.csv.gz cannot be read: .*; is it whole, and what its name says"),
    "half a workbook": ("a.xlsx", half(write_workbook), "cannot be read as a workbook: .* copy it again"),
    "half a Parquet": ("a.parquet", half(write_parquet), "read as Parquet: .* copy it again"),
    "half a DuckDB": ("a.duckdb", half(write_duckdb), "cannot be read as DuckDB: .* copy it again"),
    "an open quote": ("a.csv", written(OPEN_QUOTE), "line 3: a double quote is opened and never"),
    "an open quote, packed": ("a.csv.gz", written(gzip.compress(OPEN_QUOTE)), "line 3: a double quote is opened and never"),
    "a quote within": ("a.csv", written(OPEN_QUOTE.replace(b'"M', b'M"')), "line 3: column 'sex': 'M\"': expected one of"),
    "a zero byte": ("a.csv", written(OPEN_QUOTE.replace(b'"M', b"\0M")), r"line 3 holds a zero byte \(NUL\), and "),
    "a zero byte, packed": ("a.csv.gz", written(gzip.compress(OPEN_QUOTE.replace(b"M", b"\0"))), "line 3 holds a zero"),
    "lines in quotes": ("a.csv", written(OPEN_QUOTE + b'"x'), "line 3: .*: close the double quote that may be left"),
    "a text of lines": ("a.csv", written(OPEN_QUOTE.replace(b'"M', b'"M\n1"')), "is a double quote before it left open"),
    "no JSON": ("a.jsonl", written(b'{"age": 1}\n{"age" 5}\n'), r"line 2: is not JSON \(Expecting .*, at character 8\)"),
    "no key in a line": ("a.jsonl", written(f"{LINE}\n{{}}".encode()), "line 2: column 'pay': a value is missing; fi"),
    "a list": ("a.jsonl", written(b'[{"age": 1}]\n'), "line 1: expected an object such as"),
    "a key twice": ("a.jsonl", written(b'{"age": 1, "age": 2}\n'), "line 1: the key 'age' appears twice"),
    "a key later": ("a.jsonl", written(f'{LINE}\n'.encode() * 1000 + b'{"x": 1}\n'), "line 1001: has the key 'x'"),
    "a key never": ("a.jsonl", written(LINE.replace('"age": 41, ', "").encode()), "no line has the key 'age'"),
    "nested": ("a.jsonl", written(LINE.replace("41", "[41]").encode()), r"column 'age' holds a list: expected single"),
    "nested and not": ("a.jsonl", written(f"{LINE}\n{LINE}".replace("41", "[41]", 1).encode()), "'age' holds a list: exp"),
    "latin-1": ("a.jsonl", written('{"age": "é"}'.encode("latin-1")), r"line 1: byte 10 \(0xe9\) is not UTF-8"),
    "no line": ("a.jsonl", written(b"\n"), "is empty: expected an object"),
    "other types": ("folder", two_types, r"1.parquet has other columns than .*0.parquet: 'age' is string and not int64"),
    "Stata": ("a.dta", written(b""), r"a.dta is not read: save it as Parquet \(python -c .*read_stata\('a.dta'\)"),
    "a list of JSON": ("a.json", written(b"[]"), r"write one object a line \(jq -c '\.\[\]' a.json > NEW.jsonl\)"),
}  # fmt: skip


def test_a_draft_leaves_out_what_is_nested(tmp_path):
    rows = [{"a": 1, "who": {"age": 41}, "tags": ["x"], "b": "F"}] * 2
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    drafts = draft_of_file(tmp_path / "a.jsonl")[0]
    kinds = [(draft.name, draft.fields["type"]) for draft in drafts]
    assert kinds == [("a", "integer"), ("who", "drop"), ("tags", "drop"), ("b", "category")]
    assert "jq -c '.who + del(.who)' puts its fields beside the others" in drafts[1].why["type"]
    columns = (
        "{a: {type: integer, low: 0, high: 9}, who: {type: drop}, tags: {type: drop}, b: {type: category, values: [F]}}"
    )
    assert len(read_table(tmp_path / "a.jsonl", parse_schema(f"columns: {columns}").with_bins(5)).encoded) == 2


@pytest.mark.parametrize("charset", ["utf-8", "utf-16", "latin-1"])
def test_a_quote_that_is_left_open_loses_no_rows_unseen(tmp_path, charset):
    """The rows below would be a part of a field, of a column that is left out."""
    text = 'a,b\nx,1\nx,Ģ\nx,"2\nx,3\nx,4\n'.replace("Ģ", "é" if charset == "latin-1" else "Ģ")
    (tmp_path / "a.csv").write_bytes(text.encode(charset))
    schema = parse_schema(f"{{charset: {charset}, columns: {{a: {{type: category, values: [x, y]}}, b: {{type: drop}}}}}}")
    with pytest.raises(BadRecords, match="line 4: a double quote is opened and never closed"):
        read_table(tmp_path / "a.csv", schema)
    (tmp_path / "a.csv").write_bytes(text.replace("2", '2"').encode(charset))
    assert len(read_table(tmp_path / "a.csv", schema).encoded) == 5


@pytest.mark.parametrize(("name", "write", "words"), BAD.values(), ids=BAD)
def test_a_fault_is_told_in_one_line(tmp_path, name, write, words):
    write(tmp_path / name)
    with pytest.raises(BadRecords, match=words) as told:
        read_table(tmp_path / name, parse_schema(SCHEMA))
    assert len(str(told.value).splitlines()) == 1 and str(tmp_path) in str(told.value)


# Files that are no text, by how each is written and what is advised in place of a name of text.
OTHERS = {
    "gzip": (written(gzip.compress(b"age,pay")), "rename it to {}.gz"),
    "bzip2": (written(bz2.compress(b"age,pay")), "rename it to {}.bz2"),
    "zstd": (written(pa.compress(b"age,pay", "zstd", asbytes=True)), "rename it to {}.zst"),
    "xz": (written(lzma.compress(b"age,pay")), "unpack it, or pack"),
    "zip": (lambda path: zipfile.ZipFile(path, "w").close(), "unpack it, or pack"),
    "an Excel workbook": (write_workbook, "rename it to a.xlsx"),
    "Parquet": (lambda path: pq.write_table(pa.Table.from_pylist(ROWS), path), "rename it to a.parquet"),
    "Feather": (lambda path: feather.write_feather(pa.Table.from_pylist(ROWS), path), "save the table as text"),
    "SQLite": (write_sqlite, "rename it to a.sqlite"),
    "DuckDB": (write_duckdb, "rename it to a.duckdb"),
    "PDF": (written(b"%PDF-1.7\n1 0 obj"), "save the table as text"),
}


@pytest.mark.parametrize(("kind", "write", "advice"), [(kind, *how) for kind, how in OTHERS.items()], ids=OTHERS)
@pytest.mark.parametrize("name", only(("a.csv", "a.tsv", "a.jsonl", "a.dat", "a.csv.gz"), "a.csv", "a.dat"))
def test_a_file_that_is_no_text_is_told_by_its_kind(tmp_path, name, kind, write, advice):
    write(tmp_path / "made")
    content, path = (tmp_path / "made").read_bytes(), tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    baskets = name == "a.dat"
    readers = [lambda: read_baskets(path, BasketSchema(("age",), max_items=1))] if baskets else [
        lambda: read_table(path, parse_schema(SCHEMA)), lambda: draft_of_file(path),
        lambda: check_table(path, parse_schema(SCHEMA)),
    ]  # fmt: skip
    for read in readers:
        with pytest.raises(BadRecords, match=f"{re.escape(str(path))} is {kind}.*, not text: ") as told:
            read()
        packed = name.endswith(".gz") and advice.startswith("rename it to {}")
        assert ("unpack it once" if packed else advice.format(name)) in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize("name", ["a.csv", "a.csv.bz2"])
def test_a_draft_tells_of_a_zero_byte(tmp_path, name):
    text = b"age,pay\n" + b"1,2\n" * 9 + b"1,\0\n"
    (tmp_path / name).write_bytes(bz2.compress(text) if name.endswith("bz2") else text)
    with pytest.raises(BadRecords, match="line 11 holds a zero byte"):
        draft_of_file(tmp_path / name)


def test_a_folder_without_parquet_files_is_no_table(tmp_path):
    with pytest.raises(MissingData, match=r"is a folder without \.parquet files: expected"):
        read_table(tmp_path, parse_schema(SCHEMA))


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    write_workbook(tmp_path / "a.xlsx")
    monkeypatch.setattr(workbook, "_MOST_BYTES", 5000)
    with pytest.raises(BadRecords, match=r"unpacks to [\d,]+ bytes, [\d,]+ of them texts: expected at most 5,000"):
        read_table(tmp_path / "a.xlsx", parse_schema(SCHEMA))


def test_a_formula_has_the_value_that_was_saved(tmp_path):
    """A program that computes formulas writes their values beside them."""
    write_workbook(tmp_path / "a.xlsx")
    with zipfile.ZipFile(tmp_path / "a.xlsx") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    sheet = next(name for name in parts if name.startswith("xl/worksheets/"))
    assert b"<v>12.5</v>" in parts[sheet]
    parts[sheet] = parts[sheet].replace(b"<v>12.5</v>", b"<f>10+2.5</f><v>12.5</v>")
    with zipfile.ZipFile(tmp_path / "b.xlsx", "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    schema = parse_schema(SCHEMA)
    codes = read_table(tmp_path / "b.xlsx", schema).encoded.codes
    assert codes.tolist() == read_table(tmp_path / "a.xlsx", schema).encoded.codes.tolist()


class Handed(ValueRows):
    """Rows of values in memory."""

    def __init__(self, rows, at_once):
        self.rows, self.at_once = rows, at_once
        super().__init__("the rows", ["x", "y"])

    def value_blocks(self, columns):
        yield from pieces(self.rows, self.at_once)


VALUES = st.sampled_from([
    None, True, False, 0, 7, -3, 2**70, 1.125, 2.0, 1e-20, "7", "1.125", "n/a", "?", decimal.Decimal("1.125"),
    decimal.Decimal("1E-20"), decimal.Decimal("NaN"), datetime.date(2024, 1, 31), datetime.datetime(2024, 1, 31),
    datetime.datetime(2024, 1, 31, tzinfo=datetime.timezone(datetime.timedelta(hours=2))), datetime.time(3),
    uuid.UUID(int=7),
])  # fmt: skip


def _handed(rows, at_once):
    read = [batch.to_pylist() for batch in Handed(rows, at_once).batches(["x", "y"])]
    return [(repr(row["x"]).replace(".0", ""), repr(row["y"]).replace(".0", "")) for batch in read for row in batch]


@given(rows=st.lists(st.tuples(VALUES, VALUES), max_size=12), at_once=st.integers(1, 13))
def test_a_value_is_read_by_itself(rows, at_once):
    """Whatever stands beside it in a block; whole numbers may come as either type of numbers, which are read alike."""
    assert _handed(rows, at_once) == [value for row in rows for value in _handed([row], 1)]


ALIKE = """columns:
  n: {type: number, low: 0, high: 5000, decimals: 3, decimal: ",", thousands: ".", bins: 5000}
  w: {type: boolean, words: [nein, ja], missing: true}
  k: {type: integer, low: -8, high: 10, missing: true, missing_values: ["?", "-9"], bins: 30}
"""


@pytest.mark.parametrize("one_more", [{"n": "3,5", "w": "ja", "k": "?"}, {"n": None, "w": None, "k": None}, {"n": 2**60}])
def test_one_more_record_leaves_all_others_as_they_were(tmp_path, one_more):
    rows = [{"n": n, "w": w, "k": k} for n, w, k in zip([1.125, 2, 3.375], [True, False, True], [-9, 4, 4], strict=True)]
    schema, codes = parse_schema(ALIKE), []
    for name, more in (("a", []), ("b", [{"w": "nein", "k": 3} | one_more])):
        text = "".join(json.dumps(row) + "\n" for row in [*rows, *more])
        (tmp_path / f"{name}.jsonl").write_text(text.replace('"n": null', '"n": 1'))
        codes.append(read_table(tmp_path / f"{name}.jsonl", schema, outside="clamp").encoded.codes[:3].tolist())
    assert codes[0] == codes[1]


CODES = """columns:
  ward: {type: category, values: ["12", "12.5", A3], missing: true, missing_values: ["99", ""]}
  age: {type: integer, low: 0, high: 99, bins: 100, missing: true, missing_values: [-9, "?", ""]}
  ok: {type: boolean, missing: true, missing_values: [7, ""]}
"""


@pytest.mark.parametrize("name", ["a.xlsx", "a.jsonl", "a.csv"])
def test_numbers_among_texts_are_the_texts_that_are_shown(tmp_path, name):
    """A code that is a number in one cell, and a code for a missing value, read alike from each kind of file."""
    wards, ages = [12, "A3", 12.5, 99, 12.0, None, "12"], [4, -9, 5.0, "?", -9.0, 6, None]
    rows = [{"ward": w, "age": a, "ok": o} for w, a, o in zip(wards, ages, [1, 0, 7, 7.0, True, "no", None], strict=True)]
    KINDS_OF_CODES[name](tmp_path / name, rows)
    codes = read_table(tmp_path / name, parse_schema(CODES)).encoded.codes.tolist()
    assert codes == [[0, 4, 1], [2, 100, 0], [1, 5, 2], [3, 100, 2], [0, 100, 1], [3, 6, 0], [0, 100, 2]]


KINDS_OF_CODES = {
    "a.xlsx": lambda path, rows: write_workbook(path, rows=rows),
    "a.jsonl": lambda path, rows: path.write_text("".join(json.dumps(row) + "\n" for row in rows)),
    "a.csv": lambda path, rows: pd.DataFrame(rows, dtype=object).map(_as_shown).to_csv(path, index=False),
}


def _as_shown(value):
    return int(value) if isinstance(value, float) and value.is_integer() else value


def test_a_folder_of_other_files_beside_parquet_is_refused(tmp_path):
    pq.write_table(pa.table({"age": [1]}), tmp_path / "a.parquet")
    (tmp_path / "_SUCCESS").touch()
    assert (
        len(read_table(tmp_path, parse_schema("columns: {age: {type: integer, low: 0, high: 9}}").with_bins(5)).encoded)
        == 1
    )
    (tmp_path / "b.csv").write_text("age\n2\n")
    with pytest.raises(BadRecords, match=r"'b.csv' lies beside the .parquet files and would not be read"):
        draft_of_file(tmp_path)
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(MissingData, match=r"a folder without \.parquet files"):
        draft_of_file(tmp_path)


def test_the_scale_of_decimals_moves_no_other_record():
    edges = [round(0.001 * place, 3) for place in range(1, 99)]
    schema = parse_schema(f"columns: {{x: {{type: number, low: 0, high: 1, edges: {edges}}}}}")
    rows = [decimal.Decimal(place) / 1000 for place in range(99)]
    codes = [
        read_table(pd.DataFrame({"x": [*rows, *more]}), schema).encoded.codes[:99].tolist()
        for more in ([], [decimal.Decimal("1E-20")], [decimal.Decimal("1E-30")])
    ]
    assert codes[0] == codes[1] == codes[2] == [[place] for place in range(99)]


def test_a_library_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_dpgen.data.files.kinds.find_spec", lambda _: None)
    KINDS["a.xlsx"](tmp_path / "a.xlsx")
    with pytest.raises(BadRecords, match=r"a.xlsx needs \w+: pip install 'lightning_dpgen\[excel\]'"):
        read_table(tmp_path / "a.xlsx", parse_schema(SCHEMA))
