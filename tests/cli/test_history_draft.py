"""`dpgen schema --person`: drafts of descriptions of histories, which are filled in and read, and hold no value."""

import re
import sqlite3

import numpy as np
import pandas as pd
import pytest

from lightning_dpgen.data.histories.description import read_description
from lightning_dpgen.data.histories.reading import read_histories
from lightning_dpgen.data.tables.column import BadSchema

_RANDOM = np.random.default_rng(0)
ROWS = pd.DataFrame({"patient": [f"P{i}" for i in _RANDOM.integers(0, 30, 90)]})
ROWS["born"] = ROWS.patient.str.slice(1).astype(int) + 1931
ROWS["admitted"] = [f"{day:02}.{month:02}.2024" for day, month in _RANDOM.integers(1, 12, (90, 2))]
ROWS["ward"] = _RANDOM.choice(["Zebedee", "Ottoline"], 90)
ROWS["cost"] = _RANDOM.integers(1000, 1099, 90)
PERSONS = ROWS[["patient", "born"]].drop_duplicates()
QUERY = "select patient, admitted, ward, cost from visits"
SECRETS = ["P1", "19", "2024", "Zebedee", "Ottoline", "10[0-9][0-9]"]
FILLED = {
    "max_rows": ["4"],
    "low": ["2024-01-01", "0", "0", "0"],
    "high": ["2024-12-31", "400", "2000", "2000"],
    "values": ["[Zebedee, Ottoline]"],
}


def _filled(text):
    """Return a draft with an answer in place of each ???, bounds of times first."""
    answers = {key: iter(values) for key, values in FILLED.items()}
    lines = [line if line.lstrip().startswith("#") else re.sub(r"^( *(\w+): )\?\?\?", _answer(answers), line)
             for line in text.splitlines()]  # fmt: skip
    return "\n".join(lines)


def _answer(answers):
    return lambda found: found[1] + next(answers[found[2]])


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Write tables of histories into a folder, and stand in it."""
    monkeypatch.chdir(tmp_path)
    ROWS.to_csv("panel.csv", index=False, sep=";")
    ROWS.drop(columns="born").to_csv("visits.csv.gz", index=False)
    PERSONS.to_csv("people.csv", index=False)
    days = pd.to_datetime(ROWS.admitted, dayfirst=True)
    ROWS.assign(admitted=days).to_parquet("panel.parquet")
    ROWS.assign(admitted=days.dt.strftime("%Y-%m-%d")).to_parquet("texts.parquet")
    with sqlite3.connect("clinic.db") as connection:
        PERSONS.to_sql("people", connection, index=False)
        ROWS.assign(admitted=days.dt.strftime("%Y-%m-%d")).to_sql("visits", connection, index=False)
    connection.close()
    return tmp_path


def test_drafts_of_one_panel_are_filled_in_and_read_alike(dpgen, files):
    """One file, two files in any order, and Parquet: the same persons; nothing of the records stands in a draft."""
    read = {}
    forms = {
        "one": ["panel.csv"],
        "two": ["visits.csv.gz", "people.csv"],
        "moments": ["panel.parquet"],
        "texts": ["texts.parquet"],
        "table": ["clinic.db", "--table", "visits"],
        "queries": ["sqlite:///clinic.db", "--query", QUERY, "--query", "select * from people"],
    }
    for name, paths in forms.items():
        status, out, err = dpgen("schema", "--person", "patient", *paths, "--order", "admitted", "-o", f"{name}.yaml")
        assert status == 0 and not err and "lines to fill in" in out
        text = (files / f"{name}.yaml").read_text()
        assert not re.search("|".join(SECRETS), re.sub(r"docs/.*|such as 10", "", text))
        with pytest.raises(BadSchema, match=r"\?\?\? or TODO is still to be filled in, on lines"):
            read_description(files / f"{name}.yaml", 8)
        # The table of persons comes first where there is one, and its bounds then do.
        swapped = text if "persons:" not in text else text[text.index("visits:") :] + "\n" + text[: text.index("visits:")]
        (files / f"{name}.yaml").write_text(_filled(swapped))
        described = read_description(files / f"{name}.yaml", 8)
        assert list(described.schema.persons.choices) == ["born"]
        codes = read_histories(described.files, described.schema).encoded.codes
        read[name] = sorted(map(tuple, codes.tolist()))
    assert all(codes == read["one"] for codes in read.values())


def test_a_draft_of_queries_names_the_database_from_its_folder(dpgen, files):
    (files / "drafts").mkdir()
    words = ["schema", "--person", "patient", "--order", "admitted", "sqlite:///clinic.db"]
    status, out, _ = dpgen(*words, "--query", f"{QUERY} limit 50", "--rows-independent", "-o", "drafts/all.yaml")
    assert status == 0 and "data.rows_independent=true" in out
    text = (files / "drafts/all.yaml").read_text()
    assert "url: 'sqlite:///../clinic.db'\n" in text and f"  query: '{QUERY} limit 50'\n" in text
    assert "(and high) has them found" not in text and "transform: log, or edges" in text and "edges: [7, 30, 90]" in text
    dpgen(*words, "--query", QUERY)
    assert re.findall(r"^(\w+):$", (files / "visits.histories.yaml").read_text(), re.MULTILINE) == ["visits"]


def test_what_changes_in_one_row_alone_is_not_fixed(dpgen, files):
    """It is told from all rows, wherever the rows of a person stand."""
    rows = pd.concat([ROWS, ROWS[:1].assign(born=1)])
    rows.to_csv("late.csv", index=False)
    assert dpgen("schema", "--person", "patient", "late.csv")[0] == 0
    text = (files / "late.histories.yaml").read_text()
    assert "fixed:" not in text and "# order: ???" in text and "born:" in text


def test_several_tables_have_a_part_each(dpgen, files):
    """The order of each is the first one that it has; what persons have already is left out of rows."""
    ROWS.rename(columns={"admitted": "given", "cost": "dose"}).to_csv("drugs.csv", index=False)
    words = ["--person", "patient", "--order", "given", "--order", "admitted"]
    assert dpgen("schema", *words, "visits.csv.gz", "drugs.csv", "people.csv", "-o", "all.yaml")[0] == 0
    text = (files / "all.yaml").read_text()
    assert re.findall(r"^(\w+):$", text, re.MULTILINE) == ["persons", "visits", "drugs"]
    assert re.findall(r"^  order: (\w+)", text, re.MULTILINE) == ["admitted", "given"]
    assert re.search(r"born:\n.*\n +type: drop   # the table of persons has it, too", text) and "fixed:" not in text


MISTAKES = {
    "no column of persons": (["--person", "patent", "panel.csv"], "no column --person 'patent'.*did you mean patient"),
    "no table of rows": (["--person", "patient", "people.csv"], "people.csv has one row for each 'patient'"),
    "two of persons": (["--person", "patient", "people.csv", "more.csv"], "people.csv, more.csv: each has one row"),
    "no such order": (
        ["--person", "patient", "--order", "admited", "panel.csv"],
        "--order 'admited'.*did you mean admitted",
    ),
    "an order that is no time": (["--person", "patient", "--order", "ward", "panel.csv"], "is of type category: expected"),
    "an empty file": (["--person", "patient", "none.csv"], "none.csv has no rows"),
    "a row without a person": (["--person", "patient", "gap.csv"], "line 3: column 'patient': a value is missing"),
    "nothing that changes": (["--person", "patient", "same.csv"], "no column in which the rows of a 'patient' differ"),
    "an order without persons": (["--order", "admitted", "panel.csv"], "--order admitted: orders the rows of a person"),
    "two files without persons": (["panel.csv", "people.csv"], "2 files: expected one; .*--person"),
    "a file twice": (["--person", "patient", "panel.csv", "panel.csv"], "stands twice"),
    "several tables of a file": (
        ["--person", "patient", "clinic.db"],
        'clinic.db has 2 tables: .*or draft several, a query each, by .* --query "select',
    ),
    "a query that joins": (
        ["--person", "patient", "sqlite:///clinic.db", "--query", f"{QUERY} limit 3"],
        "has LIMIT .*declare --rows-independent",
    ),
    "a URL without a query": (
        ["--person", "patient", "sqlite:///clinic.db"],
        "expected the URL of a database with --query",
    ),
    "a query of a file": (["--person", "patient", "panel.csv", "--query", QUERY], "panel.csv: expected the URL"),
    "two queries of a schema": (
        ["sqlite:///clinic.db", "--query", QUERY, "--query", QUERY],
        "stands a second time: expected one, or --person",
    ),
    "a description": (["panel.yaml"], "describes histories, which dpgen budget data=histories checks"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_of_drafts(dpgen, files, name):
    words, expected = MISTAKES[name]
    PERSONS.to_csv("more.csv", index=False)
    for file, text in {"none.csv": "patient,a\n", "gap.csv": "patient,a\nx,1\n,2\n", "same.csv": "patient,a\nx,1\nx,1\n",
                       "panel.yaml": "visits: {file: panel.csv, person: patient}"}.items():  # fmt: skip
        (files / file).write_text(text)
    before = sorted(files.iterdir())
    status, out, err = dpgen("schema", *words)
    assert status == 2 and not out and err.count("\n") == 1 and re.search(expected, err), err
    assert sorted(files.iterdir()) == before
