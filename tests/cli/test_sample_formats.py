"""Synthetic records come out as real ones went in: every format is read again by the schema that the model knows."""

import csv
import io
import json
import sqlite3

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from lightning_dpgen.data.files.database import DatabaseQuery
from lightning_dpgen.data.pictures.reading import read_pictures
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.series.reading import read_series
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_draft import draft_of_file
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.data.tables.schema_keys import column_of
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.rbm import StackedRBM
from lightning_dpgen.release.drawing import draws
from lightning_dpgen.release.drawing.model_files import write_model
from lightning_dpgen.release.drawing.release import load_release
from lightning_dpgen.release.rows import folder_of_rows
from lightning_dpgen.release.rows.output_format import OutputFormat
from lightning_dpgen.release.rows.tables import csv_text

GERMAN = parse_schema("""
charset: cp1252
separator: ";"
decimal: ","
thousands: "."
table: Besuche
columns:
  Größe: {type: integer, low: -20000, high: 20000, bins: 20}
  Gewicht: {type: number, low: 0, high: 2000, decimals: 2, bins: 20, missing: true, missing_values: ["-"]}
  geboren: {type: date, low: 1900-01-01, high: 2024-12-31, format: "%d.%m.%Y", bins: 20}
  gesehen: {type: datetime, low: "2020-01-01 00:00", high: "2024-12-31 23:59", resolution: minute, bins: 20,
            zone: Europe/Berlin}
  um: {type: time, format: "%H.%M", resolution: minute, bins: 20}
  raucht: {type: boolean, words: [nein, ja], missing: true, missing_values: ["?", "k. A."]}
  Stadt: {type: category, values: [Köln, "=München", "-1"], missing: true, missing_values: ["-"]}
""")
PLAIN = parse_schema("columns: {a: {type: integer, low: 0, high: 9, bins: 10}, b: {type: boolean, missing: true}}")
BARE = parse_schema("header: false\ncolumns: {a: {type: integer, low: 0, high: 9, bins: 10}, b: {type: boolean}}")


def released(folder, schema):
    """Write a model of these records that was not trained."""
    folder.mkdir()
    torch.manual_seed(0)
    write_model(folder, Mixture(StackedRBM(schema, 2, hidden=2, chains=2), torch.ones(2)))
    return folder


FORMATS = ["a.csv", "a.tsv", "a.jsonl", "a.xlsx", "a.parquet", "a.sqlite", "a.duckdb", "a.db"]
# A header is left out of text alone.
CASES = [(schema, name) for schema in (GERMAN, BARE) for name in FORMATS[: len(FORMATS) if schema is GERMAN else 2]]
CASES += [pytest.param(PLAIN, name, marks=pytest.mark.slow) for name in FORMATS]


@pytest.mark.parametrize(("schema", "name"), CASES)
def test_every_format_is_read_again(dpgen, tmp_path, name, schema):
    model = released(tmp_path / "model", schema)
    of_database = name == "a.db"
    output = f"sqlite:///{tmp_path / name}" if of_database else tmp_path / name
    named = of_database or (name.endswith((".xlsx", ".sqlite", ".duckdb")) and schema is GERMAN)
    table = ["--table", "Besuche"] if named else []
    status, out, err = dpgen("sample", model, "-n", 300, "--seed", 3, "-o", output, *table)
    assert status == 0 and "300 synthetic records in" in out, err
    source = DatabaseQuery(output, "select * from Besuche") if of_database else tmp_path / name
    expected = load_release(model).table(300, 3)
    read = read_table(source, schema).encoded.codes
    assert read.tolist() == read_table(expected, schema).encoded.codes.tolist()
    # A file of text is written as the real one is.
    if name.endswith(".csv") and schema is GERMAN:
        text = (tmp_path / name).read_bytes().decode("cp1252")
        assert text.startswith("Größe;Gewicht;geboren;gesehen;um;raucht;Stadt\n") and '"' not in text
        assert all(word in text for word in (";ja;", ";nein;", ";?;", "+01:00", ".19", "'=München"))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "model"])


def test_types_of_other_files(dpgen, tmp_path):
    model = released(tmp_path / "model", GERMAN)
    for output, more in (("a.jsonl", []), ("a.xlsx", ["--table", "Mein Blatt"]), ("a.parquet", [])):
        assert dpgen("sample", model, "-n", 50, "--seed", 1, "-o", tmp_path / output, *more)[0] == 0
    row = json.loads((tmp_path / "a.jsonl").read_text().splitlines()[0])
    assert list(row) == GERMAN.arrow.names and isinstance(row["Größe"], int) and row["geboren"][2] == "."
    sheet = openpyxl.load_workbook(tmp_path / "a.xlsx")["Mein Blatt"]
    cells = [sheet.cell(2, column) for column in range(1, 8)]
    assert [cell.value for cell in sheet[1]] == GERMAN.arrow.names and cells[0].data_type == "n"
    assert {cell.data_type for cell in sheet["G"]} <= {"s", "n"}, "a text is never a formula"
    kinds = pq.read_schema(tmp_path / "a.parquet")
    assert kinds.names == GERMAN.arrow.names and kinds.field("gesehen").type.tz == "Europe/Berlin"


WORKBOOK = parse_schema("""
decimal: ","
thousands: "."
columns:
  day: {type: date, low: 1899-12-01, high: 1900-06-01, format: "%d.%m.%Y", bins: 20}
  at: {type: datetime, low: "2020-01-01 00:00", high: "2024-12-31 23:59", format: "%d/%m/%Y %H:%M", resolution: minute}
  um: {type: time, resolution: second, missing: true}
  iso: {type: date, low: 2020-01-01, high: 2024-12-31}
  pay: {type: number, low: 0, high: 9000, decimals: 2}
  zip: {type: integer, low: 10000, high: 99999, thousands: ""}
  n: {type: integer, low: 1000, high: 9999}
  ok: {type: boolean}
  smokes: {type: boolean, words: [nein, ja]}
""").with_bins(20)


def test_cells_of_a_workbook_are_of_the_kind_of_their_column(dpgen, tmp_path):
    model = released(tmp_path / "model", WORKBOOK)
    assert dpgen("sample", model, "-n", 200, "--seed", 1, "-o", tmp_path / "a.xlsx")[0] == 0
    sheet = openpyxl.load_workbook(tmp_path / "a.xlsx").active
    cells = {column[0].value: column[1:] for column in sheet.columns}
    # Before March 1900 Excel has no days.
    kinds = {name: {cell.data_type for cell in column if cell.value is not None} for name, column in cells.items()}
    assert kinds == {"day": {"d", "s"}, "at": {"d"}, "um": {"d"}, "iso": {"d"}, "pay": {"n"}, "zip": {"n"}, "n": {"n"},
                     "ok": {"b"}, "smokes": {"s"}}  # fmt: skip
    shown = {name: {cell.number_format for cell in column} - {"General"} for name, column in cells.items()}
    assert shown == {"day": {r"dd\.mm\.yyyy"}, "at": {r"dd\/mm\/yyyy\ hh\:mm"}, "um": {"hh:mm:ss"}, "iso": {"yyyy-mm-dd"},
                     "pay": {"#,##0.00"}, "zip": {"0"}, "n": {"#,##0"}, "ok": set(), "smokes": set()}  # fmt: skip
    read = read_table(tmp_path / "a.xlsx", WORKBOOK).encoded.codes
    assert read.tolist() == read_table(load_release(model).table(200, 1), WORKBOOK).encoded.codes.tolist()


@pytest.mark.parametrize(("declared", "named"), [("Staff 2024", "Staff 2024"), ("a/b", "synthetic"), (None, "synthetic")])
def test_a_sheet_is_named_as_the_one_that_was_read(dpgen, tmp_path, declared, named):
    fields = {} if declared is None else {"table": declared}
    model = released(tmp_path / "model", TableSchema((column_of("ok", {"type": "boolean"}),), **fields))
    assert dpgen("sample", model, "-n", 2, "-o", tmp_path / "a.xlsx")[0] == 0
    assert openpyxl.load_workbook(tmp_path / "a.xlsx").sheetnames == [named]


def test_numbers_are_written_with_their_decimals_and_signs(dpgen, tmp_path):
    model = released(tmp_path / "model", WORKBOOK)
    out = dpgen("sample", model, "-n", 200, "--seed", 1)[1]
    rows = pd.read_csv(io.StringIO(out), dtype=str)
    assert rows["pay"].str.fullmatch(r"\d{0,1}\.?\d{1,3},\d\d").all()
    assert rows["zip"].str.fullmatch(r"\d{5}").all() and rows["n"].str.fullmatch(r"\d\.\d{3}").all()


QUOTED = {
    "needed": 'a,n,"b,c",w\n"x,y",1,,no\nz,,"",yes\n',
    "texts": '"a","n","b,c","w"\n"x,y",1,,"no"\n"z",,"","yes"\n',
    "all": '"a","n","b,c","w"\n"x,y","1","","no"\n"z","","","yes"\n',
}


@pytest.mark.parametrize("quotes", QUOTED)
def test_fields_are_quoted_as_in_the_file_that_was_read(tmp_path, quotes):
    columns = {"a": {"type": "category", "values": ["x,y"]}, "n": {"type": "integer", "low": 0, "high": 9},
               "b,c": {"type": "category", "values": ["", "q"]},
               "w": {"type": "boolean", "words": ["no", "yes"]}}  # fmt: skip
    schema = TableSchema([column_of(name, fields) for name, fields in columns.items()], quotes=quotes)
    chunk = pa.record_batch({"a": ["x,y", "z"], "n": [1, None], "b,c": [None, ""], "w": [False, True]})
    assert "".join(csv_text([chunk], form=OutputFormat.of(schema))) == QUOTED[quotes]
    # A draft of the file says the same, and Python's own reader finds the same fields.
    (tmp_path / "a.csv").write_text(QUOTED[quotes])
    assert draft_of_file(tmp_path / "a.csv")[1] == ({} if quotes == "needed" else {"quotes": quotes})
    assert list(csv.reader(QUOTED[quotes].splitlines()))[1:] == [["x,y", "1", "", "no"], ["z", "", "", "yes"]]


def test_a_table_of_a_database_has_types_and_is_made_once(dpgen, tmp_path, monkeypatch):
    monkeypatch.setattr(draws, "LARGEST_BLOCK", 10)
    schema = parse_schema("""columns:
  a: {type: number, low: 0, high: 1, decimals: 2, bins: 10}
  at: {type: datetime, low: "2020-01-01 00:00", high: "2020-12-31 00:00", bins: 9}
  ok: {type: boolean}""")
    model, url = released(tmp_path / "model", schema), f"sqlite:///{tmp_path / 'a.db'}"
    assert dpgen("sample", model, "-o", url, "--table", "made", "-n", 25, "--seed", 3)[0] == 0
    before = (tmp_path / "a.db").read_bytes()
    status, _, err = dpgen("sample", model, "-o", url, "--table", "made")
    assert status == 2 and "has a table 'made' already: choose another name" in err
    assert (tmp_path / "a.db").read_bytes() == before
    connection = sqlite3.connect(tmp_path / "a.db")
    kinds = [row[2] for row in connection.execute("PRAGMA table_info(made)")]
    assert kinds == ["DOUBLE", "DATETIME", "BOOLEAN"]
    assert connection.execute("SELECT count(*) FROM made").fetchone() == (25,)
    connection.close()


@pytest.mark.parametrize("there", [False, True])
def test_an_interrupted_draw_leaves_nothing(dpgen, tmp_path, monkeypatch, there):
    """Half a table would look whole, in a database that was there and in a new one."""
    monkeypatch.setattr(draws, "LARGEST_BLOCK", 10)
    model = released(tmp_path / "model", PLAIN)
    if there:
        connection = sqlite3.connect(tmp_path / "a.db")
        connection.execute("CREATE TABLE mine (x)")
        connection.commit()
        connection.close()
    blocks = type(load_release(model)).sample_blocks

    def broken(self, *arguments):
        yield next(blocks(self, *arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(type(load_release(model)), "sample_blocks", broken)
    for output, table in ((f"sqlite:///{tmp_path / 'a.db'}", ["--table", "made"]), (tmp_path / "a.xlsx", [])):
        assert dpgen("sample", model, "-n", 25, "-o", output, *table)[0] == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.db", "model"] if there else ["model"]
    if there:
        connection = sqlite3.connect(tmp_path / "a.db")
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]
        connection.close()


@pytest.mark.parametrize(("channels", "names"), [(1, ()), (3, ("cat", "dög"))])
def test_pictures_are_files_by_label(dpgen, tmp_path, channels, names):
    schema = ImageSchema(5, 4, levels=16, classes=len(names), names=names, channels=channels)
    model = released(tmp_path / "model", schema)
    status, out, err = dpgen("sample", model, "-n", 30, "--seed", 3, "-o", f"{tmp_path / 'out'}/")
    assert status == 0 and "30 synthetic records in" in out, err
    expected = load_release(model).sample_encoded(30, 3)
    files = sorted((tmp_path / "out").rglob("*.png"), key=lambda path: path.name)
    assert len(files) == 30 and files[0].name == "01.png"
    found = np.stack([np.asarray(Image.open(path)) for path in files])
    assert (np.rint(found.astype(float) * 16 / 255) == schema.pictures(expected)).all()
    if names:
        assert [path.parent.name for path in files] == [names[code] for code in expected.codes[:, 0]]
    again, labels = read_pictures(tmp_path / "out", 5, 4, channels=channels, classes=list(names) or 0)
    assert len(again) == 30 and (not names or np.bincount(labels).tolist() == np.bincount(expected.codes[:, 0]).tolist())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"]


@pytest.mark.parametrize("classes", [(), ("low", "high")])
def test_series_are_long_where_they_are_asked_for_or_were_read_so(dpgen, tmp_path, monkeypatch, classes):
    schema = SeriesSchema(4, low=(0.0, -1.0), high=(9.0, 1.0), channels=("load", "sun"), classes=classes, decimals=3)
    model = released(tmp_path / "model", schema)
    assert dpgen("sample", model, "-n", 25, "--seed", 3, "-o", tmp_path / "wide.csv")[0] == 0
    assert dpgen("sample", model, "-n", 25, "--seed", 3, "-o", tmp_path / "long.csv", "--form", "long")[0] == 0
    wide = read_series(tmp_path / "wide.csv", schema).encoded
    long = read_series(tmp_path / "long.csv", schema, form="long", by="series").encoded
    assert (wide.units == long.units).all() and (wide.codes == long.codes).all()
    columns = ["series", "time", "load", "sun", *["label"] * bool(classes)]
    assert pd.read_csv(tmp_path / "long.csv").columns.tolist() == columns
    # The certificate of an older release says how the real ones were read, and that is the default.
    monkeypatch.setattr(folder_of_rows, "read_certificate", lambda _: {"declared": {"form": "long", "by": "house"}})
    status, out, _ = dpgen("sample", model, "-n", 2)
    assert status == 0 and out.startswith("house,load,sun")
    assert dpgen("sample", model, "-n", 2, "--form", "wide")[1].startswith("load_0,")


MISTAKES = {
    "no table": (["-o", "sqlite:///{}/a.db"], "give its new table a name, as in --table people"),
    "password": (["-o", "postgresql://a:s3cr@host/db", "--table", "t"], "expected a URL without its password"),
    "no folder": (["-o", "sqlite:///{}/nowhere/a.db", "--table", "t"], "there is no folder"),
    "no database": (["-o", "nodb://h/d", "--table", "t"], "no driver of this kind"),
    "a table of a file": (["-o", "{}/a.csv", "--table", "t"], "--table t: names a table of a database, or the sheet"),
    "a sheet": (["-o", "{}/a.xlsx", "--table", "a/b"], "--table a/b: 'a/b': expected a name of a sheet"),
    "a folder with other files": (["-o", "{}/model/"], "/model: holds 'b.db': expected a new folder, or one"),
    "a kind of no folder": (["-o", "{}/a.csv", "--format", "csv"], "--format csv: applies to the files of a folder"),
    "processes for a file": (["-o", "{}/a.csv", "--processes", "2"], "--processes 2: one file is written by one process"),
    "no process": (["-o", "{}/a/", "--processes", "0"], "--processes 0: expected 1 to 1024"),
    "long": (["--form", "long"], "--form long: this release is of kind table: leave it out"),
    "too many rows": (["-o", "{}/a.xlsx", "-n", "1048576"], "a sheet holds 1,048,575 records"),
    "there already": (["-o", "{}/model/b.db"], "give the URL sqlite:///"),
    "letters": (["-o", "{}/a.csv"], "has no sign for"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(dpgen, tmp_path, case):
    words, expected = MISTAKES[case]
    schema = (
        parse_schema("{charset: latin-1, columns: {a: {type: category, values: [€, ł]}}}") if case == "letters" else PLAIN
    )
    model = released(tmp_path / "model", schema)
    (model / "b.db").touch()
    status, _, err = dpgen("sample", model, *[word.format(tmp_path) for word in words])
    assert status == 2 and expected in err and len(err.splitlines()) == 1 and "s3cr" not in err, err
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_control_character_is_no_cell(dpgen, tmp_path):
    schema = parse_schema('columns: {a: {type: category, values: ["x\\u0007", y]}}')
    model = released(tmp_path / "model", schema)
    status, _, err = dpgen("sample", model, "-o", tmp_path / "a.xlsx")
    assert status == 2 and "a text has a control character, which no workbook holds" in err


def test_the_marks_of_a_release_that_is_not_private(dpgen, tmp_path):
    schema = ImageSchema(2, 2, levels=1)
    folder = tmp_path / "model"
    folder.mkdir()
    write_model(folder, Mixture(StackedRBM(schema, 1, hidden=2, chains=2), torch.ones(1)), private=False)
    status, _, err = dpgen("sample", folder, "-n", 2, "-o", f"{tmp_path / 'out'}/")
    assert status == 0 and "the metadata of the file says so" in err
    assert Image.open(tmp_path / "out/1.png").text["private"] == "false"
