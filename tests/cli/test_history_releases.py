"""Releases of histories from end to end: a database in, tables that belong together out, in files of each kind."""

import sqlite3

import duckdb
import numpy as np
import pandas as pd
import pytest
import yaml

from lightning_dpgen.api import fit
from lightning_dpgen.measure import history_steps

DESCRIPTION = """
url: sqlite:///clinic.db
persons:
  query: select patient, sex, bmi from patients
  key: patient
  columns: {sex: {type: category, values: [F, M]}, bmi: {type: number, low: 10, high: 60, decimals: 1, bins: 5}}
visits:
  query: select distinct patient, day, ward from visits
  person: patient
  order: day
  start: {low: 0, high: 99}
  gap: {high: 99}
  max_rows: 3
  columns: {ward: {type: category, values: [a, b, c]}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a database of 120 persons and its description."""
    folder, random = tmp_path_factory.mktemp("clinic"), np.random.default_rng(0)
    persons = pd.DataFrame({"patient": range(120), "sex": random.choice(["F", "M"], 120), "bmi": random.normal(27, 4, 120)})
    visits = pd.DataFrame({"patient": random.integers(0, 120, 300), "day": random.integers(0, 100, 300)})
    with sqlite3.connect(folder / "clinic.db") as connection:
        persons.round(1).to_sql("patients", connection, index=False)
        visits.assign(ward=random.choice(list("abc"), 300)).to_sql("visits", connection, index=False)
    connection.close()
    (folder / "clinic.yaml").write_text(DESCRIPTION)
    return folder


@pytest.fixture(scope="module")
def run(folder):
    """Return a run whose queries are declared to be of single persons."""
    from lightning_dpgen.cli.main import main

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(history_steps, "_MADE_UP", 200)
        words = ["data=histories", f"data.path={folder / 'clinic.yaml'}", "data.n=120", "privacy.epsilon=8", "rows=20"]
        assert main(["train", *words, "data.rows_independent=true", f"run_dir={folder / 'run'}"]) == 0
    return folder / "run"


def test_what_is_declared_of_queries_is_published(run, dpgen):
    assert "one record more or less changes no row but its own" in (run / "release/privacy.json").read_text()
    assert dpgen("verify", run)[0] == 0
    # Neither where records are nor what was asked of them is published.
    for path in (run / "release").rglob("*"):
        assert path.is_dir() or not any(word in path.read_bytes() for word in (b"clinic.db", b"distinct")), path


def test_tables_are_written_together(run, dpgen, tmp_path):
    """A folder has a file of each, a database all of them, and they are the same persons by one seed."""
    draw = ("sample", run, "-n", 30, "--seed", 3)
    for name, words in {"csv": ["--format", "csv"], "parquet": []}.items():
        status, out, err = dpgen(*draw, "-o", f"{tmp_path / name}/", *words)
        assert status == 0 and f"persons.{name}, visits.{name}" in out, err
    tables = {}
    for name in ("persons", "visits"):
        tables[name] = pd.read_csv(tmp_path / f"csv/{name}.csv")
        pd.testing.assert_frame_equal(
            pd.read_parquet(tmp_path / f"parquet/{name}.parquet"), tables[name], check_dtype=False
        )
    assert tables["persons"].patient.tolist() == [*range(1, 31)] and set(tables["visits"].patient) <= {*range(1, 31)}
    assert dpgen(*draw, "-o", tmp_path / "all.duckdb")[0] == 0
    with duckdb.connect(str(tmp_path / "all.duckdb"), read_only=True) as connection:
        for name, table in tables.items():
            pd.testing.assert_frame_equal(connection.sql(f"select * from {name}").df(), table, check_dtype=False)
    assert not [path.name for path in tmp_path.iterdir() if path.name not in ("csv", "parquet", "all.duckdb")]
    # A look shows all of them.
    status, out, err = dpgen("sample", run, "-n", 3)
    assert status == 0 and "persons:\npatient,sex,bmi\n1," in out and "visits:\npatient,day,ward\n" in out
    assert "-o FOLDER/ or FILE.sqlite writes them" in err


REFUSED = {
    "a file of one table": (["-o", "x.csv"], "x.csv: holds one table, and these records have persons, visits: -o FOLDER/"),
    "a workbook": (["-o", "x.xlsx"], "x.xlsx: holds one table"),
    "processes": (["-o", "x/", "--processes", 2], "--processes 2: one process writes persons, visits"),
    "a folder that is there": (["-o", "there/"], "there: exists already"),
    "a value within a bin": (
        ["--where", "bmi>33"],
        "expected bmi>=X, bmi<X or both, where X begins a bin: 20.0, 30.0, 40.1, 50.1",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_file_can_hold_is_refused(run, dpgen, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    words, said = REFUSED[name]
    status, out, err = dpgen("sample", run, *words)
    assert status == 2 and not out and err.count("\n") == 1 and said in err, err
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_condition_at_an_edge_is_kept(run, dpgen, tmp_path):
    status, _, err = dpgen("sample", run, "-n", 20, "--where", "bmi<40.1", "-o", tmp_path / "x.csv", "--form", "persons")
    assert status == 0 and pd.read_csv(tmp_path / "x.csv").bmi.max() <= 40, err


@pytest.fixture(scope="module")
def frames(folder):
    with sqlite3.connect(folder / "clinic.db") as connection:
        persons, visits = (pd.read_sql(f"select * from {name}", connection) for name in ("patients", "visits"))
    connection.close()
    return {"persons": persons, "visits": visits.drop_duplicates()}


@pytest.mark.filterwarnings("ignore:of the tables of two columns")
def test_fit_takes_the_tables_of_a_description(folder, frames, tmp_path, monkeypatch):
    """Frames take the place of what the description names; what is drawn is a frame of each table."""
    monkeypatch.setattr(history_steps, "_MADE_UP", 200)
    given = {"epsilon": 8.0, "n": 120, "progress": False, "overrides": ["rows=20"]}
    fitted = fit(frames, folder / "clinic.yaml", run_dir=tmp_path / "run", **given)
    drawn = fitted.sample(30, seed=3)
    assert list(drawn) == ["persons", "visits"] and list(drawn["visits"]) == ["patient", "day", "ward"]
    assert drawn["persons"].patient.tolist() == [*range(1, 31)] and set(drawn["visits"].patient) <= {*range(1, 31)}
    evaluation = fitted.evaluate(frames, seconds=1.0)
    assert "rows" in evaluation.scores and "one person" in fitted.report.read_text()
    # A dict says the same as the file, and rows in another order are the same records.
    described = yaml.safe_load(DESCRIPTION)
    shuffled = {name: frame.sample(frac=1.0, random_state=1) for name, frame in frames.items()}
    assert fit(shuffled, described, run_dir=tmp_path / "other", **given).certificate["epsilon"] <= 8.0


WRONG = {
    "a table too few": (lambda frames: {"persons": frames["persons"]}, {}, "persons, visits, and the tables are persons"),
    "a person": (dict, {"person": "patient"}, "person=patient: leave it out where frame is a dict"),
    "no table": (lambda frames: {"visits": 3} | {"persons": 4}, {}, "or a dict of them, the tables of histories"),
    "a person twice": (
        lambda frames: frames | {"persons": pd.concat([frames["persons"]] * 2)}, {}, "has a 'patient' twice",
    ),
    "another column": (
        lambda frames: frames | {"visits": frames["visits"].drop(columns="ward")}, {}, "visits: the table lacks ward",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:of the tables of two columns")
@pytest.mark.parametrize("name", WRONG)
def test_fit_refuses_other_tables(folder, frames, tmp_path, name):
    change, more, said = WRONG[name]
    with pytest.raises(ValueError, match=said):
        fit(change(frames), folder / "clinic.yaml", epsilon=8.0, n=120, run_dir=tmp_path / "run", progress=False, **more)
    assert not (tmp_path / "run").exists()


def test_a_declared_number_that_is_far_off_is_told(folder, dpgen, tmp_path, monkeypatch):
    monkeypatch.setattr(history_steps, "_MADE_UP", 200)
    words = [
        "data=histories",
        f"data.path={folder / 'clinic.yaml'}",
        "data.n=1000",
        "data.rows_independent=true",
        "rows=20",
    ]
    status, out, err = dpgen("train", *words, "privacy.epsilon=8", f"run_dir={tmp_path / 'run'}")
    assert (
        status == 0
        and "120 persons take part; data.n=1,000" in out
        and "data.n=1,000 is far from the number of persons" in err
    )


@pytest.mark.parametrize(
    "given, told",
    [
        ((None, "no.yaml"), "schema=no.yaml: no such file"),
        ((None, None), "schema=None: expected the path of a description"),
        (("persons", yaml.safe_load(DESCRIPTION)), "expected to be a dict of their tables"),
        (("visits alone", yaml.safe_load(DESCRIPTION)), "describes persons, visits, and the tables are persons"),
    ],
)
def test_what_does_not_go_together_is_told(frames, tmp_path, given, told):
    """A description and tables that do not fit are one line, before a run has a folder."""
    which, schema = given
    tables = {None: frames, "persons": frames["persons"], "visits alone": {"persons": frames["persons"]}}[which]
    with pytest.raises(ValueError, match=told):
        fit(tables, schema, epsilon=1.0, n=120, run_dir=tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "release").exists()
