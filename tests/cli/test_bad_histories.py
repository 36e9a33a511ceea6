"""Bad descriptions and files of histories: each is one line that says what is wrong and what to do, and costs nothing."""

import gzip
import io
import re
import sqlite3

import pandas as pd
import pytest

from lightning_dpgen.data.tables.schema_file import value_text

PERSONS = "patient,sex\na,F\nb,M\nc,F\n"
ROWS = "patient,day,ward\na,2020-01-01,x\na,2020-02-01,y\nb,2020-03-01,x\n"
TWO = """persons:
  file: patients.csv
  key: patient
  columns:
    sex: {type: category, values: [F, M]}
visits:
  file: visits.csv
  person: patient
  order: day
  max_rows: 4
  start: {low: 2020-01-01, high: 2020-12-31}
  gap: {high: 90}
  columns:
    ward: {type: category, values: [x, y]}
"""
ONE = "visits:\n  fixed:\n    sex: {type: category, values: [F, M]}\n" + TWO[TWO.index("visits:\n") + 8 :]
ROWS_OF_ONE = "patient,sex,day,ward\na,F,2020-01-01,x\na,F,2020-02-01,y\nb,M,2020-03-01,x\n"
QUERY = "query: select patient, day, ward from visits"
QUERIES = "url: sqlite:///clinic.db\n" + TWO.replace("file: patients.csv", "query: select * from patients").replace(
    "file: visits.csv", QUERY
)
LAST = TWO.replace("order: day", "order: day\n  keep: last")
BOUNDS, LONG = "{low: 2020-01-01, high: 2020-12-31}", "w" * 300


def _two(old, new, text=TWO):
    assert old in text
    return text.replace(old, new)


# The text of a description, and the message.
DESCRIPTIONS = {
    **{f"max_rows {m}": (_two("max_rows: 4", f"max_rows: {m}"), "max_rows: .*expected a whole number from 1 to 1,000")
       for m in ("0", "-1", "1.5", "1000000000", "yes", "[3]")},
    "a gap of high below low": (_two("{high: 90}", "{low: 9, high: 3}"), "visits: gap: column 'day': high: 3: expected"),
    "a gap below 0": (_two("{high: 90}", "{low: -3, high: 3}"), "gap: expected whole numbers, 0 or more"),
    "a start of high below low": (_two("high: 2020-12-31", "high: 2019-12-31"), "visits: start: column 'day': high: "),
    "a private start": (_two(BOUNDS, "{low: private, high: private}"), "start: private: expected bounds"),
    "a start of one word": (_two("low: 2020-01-01", "low: private"), "start: private: expected bounds"),
    "a start of categories": (_two(BOUNDS, "{type: category, values: [a]}"), "start: expected whole numbers or dates"),
    "a start of two lists": (_two(BOUNDS, "[2020-01-01]"), "start: .*expected bounds, as in start: {low: "),
    "an unknown key": (_two("  order", "  zebra: 3\n  order"), "zebra: unknown here: expected one of file, query, person"),
    "a misspelt key": (_two("key:", "kee:"), "kee: unknown here: did you mean 'key'"),
    "a list": ("- a\n- b\n", "expected keys and values"),
    "a text": ("hello", "expected keys and values"),
    "nothing": ("", "expected keys and values"),
    "no table": ("visits:\n", "visits: None: expected keys and values"),
    "a file that is a number": (_two("visits.csv", "3"), "visits: file: 3: expected a name"),
    "no file": (_two("  file: visits.csv\n", ""), "visits: file: missing"),
    "a person as a column": (_two("ward:", "patient:"), "'patient': is the column of persons, too"),
    "a person as the order": (_two("order: day", "order: patient"), "'patient': is the column of persons, too"),
    "a column twice": (_two("ward:", "day:"), "'day': appears twice"),
    "what is open": (_two("values: [x, y]", "values: ???"), r"\?\?\? or TODO is still to be filled in, on line 14"),
    "a query of nothing": (_two("file: visits.csv", QUERY), "visits: query: is of no database: expected one above"),
    "a file and a query": (_two("  query: select * from patients", "  query: select\n  file: p.csv", QUERIES),
                           "persons: query: expected a file or a query, not both"),
    "a database of no query": ("url: sqlite:///clinic.db\n" + TWO, "url: no table has a query: expected one, or no url"),
    "a password": (_two("sqlite:///clinic.db", "mysql://ann:hush@host/db", QUERIES),
                   "url: mysql://ann:[*]{3}@host/db: expected a URL without its password"),
    "a word for a URL": (_two("sqlite:///clinic.db", "clinic", QUERIES), "url: clinic: expected the URL of a database"),
    "a single value": (_two("[x, y]", "[x]"), "visits: columns: every modelled column has one value only"),
    "a single value of persons": (_two("[F, M]", "[F]"), "persons: columns: every modelled column has one value only"),
    "a private column": (_two("values: [x, y]", "values: private"), "'ward': is to be found privately"),
}  # fmt: skip
# The description, patients.csv, visits.csv, and the message.
FILES = {
    "a row without a person": (TWO, PERSONS, f"{ROWS},2020-04-01,x\n", "visits.csv, line 5: column 'patient': .*missing"),
    "a person without a key": (TWO, f"{PERSONS},F\n", ROWS, "patients.csv, line 5: column 'patient': a value is missing"),
    "a person twice": (TWO, f"{PERSONS}a,F\n", ROWS, "'patient' twice, 'a': expected one row for each person"),
    "keys of two spellings": (TWO, "patient,sex\n01,F\n", "patient,day,ward\n1,2020-01-01,x\n", "'1' .str., that the"),
    "a time before the start": (TWO, PERSONS, f"{ROWS}a,2019-04-01,x\n", "'2019-04-01' is below low, 2020-01-01; correct"),
    "a time in another form": (TWO, PERSONS, f"{ROWS}a,01/04/2020,x\n", "'01/04/2020': expected a date as YYYY-MM-DD"),
    "no time": (TWO, PERSONS, f"{ROWS}a,,x\n", "line 5: column 'day': a time is missing: expected one in each"),
    "a late last row": (LAST, PERSONS, f"{ROWS}a,2021-02-01,x\n", "line 5: column 'day', the distance .*366 is above high"),
    "a long distance": (TWO, PERSONS, f"{ROWS}b,2020-12-01,x\n",
                        "visits.csv, line 5: column 'day', the distance .*275 is above high, 90; correct it, change the"),
    "a start that does not count": (_two("rows: 4", "rows: 1", LAST), PERSONS, f"{ROWS}c,2019-05-01,x\n",
                                    "visits.csv, line 5: column 'day', the first time .*2019-05-01 is below low"),
    "a query that joins persons": (_two(QUERY, f"{QUERY} limit 3", QUERIES), PERSONS, ROWS,
                                   "visits: the query of .*has LIMIT .*or declare data.rows_independent=true"),
    "a query of a column too few": (_two("day, ward from", "day from", QUERIES), PERSONS, ROWS, "the query .*lacks ward"),
    "a query of no table": (_two("from visits", "from visit", QUERIES), PERSONS, ROWS, "has no table 'visit': it has"),
    "no database": (_two("clinic.db", "none.db", QUERIES), PERSONS, ROWS, "none.db: expected sqlite:///FILE"),
    "a value of a query": (QUERIES, PERSONS, f"{ROWS}b,2020-03-02,q\n", "row 3 .from 0.: column 'ward': 'q': expected"),
    "no column": (TWO, PERSONS, "patient,day\na,2020-01-01\n", "visits.csv lacks ward"),
    "no column of persons": (TWO, PERSONS, ROWS.replace("patient", "pat"), "no column person='patient': it has pat, day"),
    "no key": (TWO, PERSONS.replace("patient", "pat"), ROWS, "no column key='patient': it has pat, sex"),
    "another column": (TWO, PERSONS, "patient,day,ward,z\na,2020-01-01,x,3\n", "has z, not in the schema"),
    "a time before all": (TWO, PERSONS, f"{ROWS}a,0000-00-00,x\n", "line 5: column 'day': '0000-00-00': expected a date"),
    "an attribute that changes": (ONE, None, f"{ROWS_OF_ONE}a,M,2020-02-02,x\n", "line 5: column 'sex' changes from row"),
    "no persons at all": (TWO, "patient,sex\n", ROWS, "that the table of persons lacks"),
    "nobody": (TWO, "patient,sex\n", "patient,day,ward\n", "there are no persons: expected at least one"),
    "an empty file": (TWO, PERSONS, "", "visits.csv is empty: expected a header line"),
    "a description of itself": (_two("visits.csv", "h.yaml"), PERSONS, ROWS, "h.yaml: expected a name that ends in"),
    "a folder": (_two("visits.csv", "folder"), PERSONS, ROWS, "folder is a folder without .parquet files"),
    "no such file": (_two("visits.csv", "vists.csv"), PERSONS, ROWS, "no file .*vists.csv, which the description"),
    "lists in Parquet": (_two("visits.csv", "lists.parquet"), PERSONS, ROWS, "column 'ward': holds list"),
    "UTF-16": (_two("visits.csv", "wide.csv"), PERSONS, ROWS, "it looks like UTF-16"),
    "a long name": (_two("ward", LONG), PERSONS, ROWS, "lacks 'w+[.]{3} and has ward"),
    "a value that is not listed": (TWO, PERSONS, f"{ROWS}b,2020-03-02,q\n", "'ward': 'q': expected one of 'x', 'y'"),
}  # fmt: skip
# Files that are read, by a stated rule, and how many lines of changes are told.
READ = {
    "rows of one time": (TWO, PERSONS, f"{ROWS}a,2020-02-01,x\n", "rows: of a time that the person has already: 1"),
    "more than max_rows": (_two("rows: 4", "rows: 1"), PERSONS, ROWS, r"persons: more than max_rows rows, .*: 1 \(33.3%\)"),
    "thousands of rows of one person": (
        TWO,
        PERSONS,
        ROWS + "a,2020-02-01,x\n" * 5000,
        r"already: 5,000\n.*more than max_rows rows, .*: 1 \(33.3%\)",
    ),
    "rows in no order": (TWO, PERSONS, "patient,day,ward\n" + "".join(reversed(ROWS.splitlines(True)[1:])), "3 persons"),
    "no rows": (TWO, PERSONS, "patient,day,ward\n", "tables of rows: empty, so that no history is learned: 1"),
    "queries": (QUERIES, PERSONS, ROWS, "3 persons"),
    "rows before the start": (_two("rows: 4", "rows: 1", LAST), PERSONS, f"{ROWS}a,2010-02-01,x\n", "3 persons"),
    "a compressed file": (_two("visits.csv", "visits.csv.gz"), PERSONS, ROWS, "3 persons"),
    "a mark of byte order": (_two("visits.csv", "marked.csv"), PERSONS, ROWS, "3 persons"),
    "odd names": (_two("ward", value_text('a\n"b", c')), PERSONS, _two("ward", '"a\n""b"", c"', ROWS), "3 persons"),
}


def _written(folder, description, persons=None, rows=None):
    """Write the files, and return the words that name them."""
    folder.mkdir(exist_ok=True)
    (folder / "h.yaml").write_text(description)
    for name, text in (("patients.csv", persons), ("visits.csv", rows)):
        if text is not None:
            (folder / name).write_text(text)
    with sqlite3.connect(folder / "clinic.db") as connection:
        for name, text in (("patients", persons), ("visits", rows)):
            if text:
                pd.read_csv(io.StringIO(text), dtype=str).to_sql(name, connection, index=False)
    connection.close()
    (folder / "folder").mkdir()
    (folder / "visits.csv.gz").write_bytes(gzip.compress(ROWS.encode()))
    (folder / "wide.csv").write_text(ROWS, encoding="utf-16")
    (folder / "marked.csv").write_text(ROWS, encoding="utf-8-sig")
    pd.DataFrame({"patient": ["a"], "day": ["2020-01-01"], "ward": [["x"]]}).to_parquet(folder / "lists.parquet")
    return ["data=histories", f"data.path={folder / 'h.yaml'}"]


def _refuses(dpgen, folder, words, expected):
    """Check that a command says one line and leaves nothing behind."""
    before = sorted(folder.rglob("*"))
    status, out, err = dpgen(*words)
    assert status == 2 and not out and err.count("\n") == 1 and len(err) < 700 and re.search(expected, err), err
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_bad_description_is_refused_before_a_budget_is_planned(dpgen, tmp_path, name):
    text, expected = DESCRIPTIONS[name]
    words = _written(tmp_path, text)
    _refuses(
        dpgen, tmp_path, ["budget", *words, "data.n=300", "privacy.epsilon=8"], f"h.yaml(, line .)?: {expected}|{expected}"
    )


@pytest.mark.parametrize("name", FILES)
def test_bad_files_are_refused(dpgen, tmp_path, name):
    *files, expected = FILES[name]
    _refuses(dpgen, tmp_path, ["check", *_written(tmp_path, *files)], expected)


@pytest.mark.parametrize("name", READ)
def test_what_a_rule_decides_is_read_and_told(dpgen, tmp_path, name):
    *files, expected = READ[name]
    status, out, err = dpgen("check", *_written(tmp_path, *files))
    assert status == 0 and not err and re.search(expected, out), err


def test_a_run_refuses_bad_files_before_it_spends(dpgen, tmp_path):
    *files, expected = FILES["a person twice"]
    words = [*_written(tmp_path, *files), "data.n=300", "privacy.epsilon=8"]
    status, _, err = dpgen("train", *words, f"run_dir={tmp_path / 'run'}")
    assert status == 2 and re.search(expected, err.splitlines()[-1]) and not (tmp_path / "run").exists()


def test_other_columns_are_refused_before_a_record_is_read(dpgen, tmp_path):
    """No warning of the plan comes before, and the rows of the table of persons are not looked at."""
    words = [*_written(tmp_path, TWO, f"{PERSONS}a,F\n", "patient,day\na,2020-01-01\n"), "data.n=300", "privacy.epsilon=8"]
    _refuses(dpgen, tmp_path, ["train", *words, f"run_dir={tmp_path / 'run'}"], "visits: .*visits.csv lacks ward")
    words = [*_written(tmp_path / "x", TWO, PERSONS, ROWS), "data.rows_independent=true"]
    _refuses(dpgen, tmp_path, ["check", *words], "data.rows_independent: declares something of queries")


def test_a_table_is_no_description(dpgen, tmp_path):
    (tmp_path / "v.csv").write_text(ROWS)
    _refuses(
        dpgen, tmp_path, ["check", "data=histories", f"data.path={tmp_path / 'v.csv'}"], "dpgen schema --person COLUMN"
    )
