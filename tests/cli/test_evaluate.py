"""`dpgen evaluate`: it needs only the real records, and its results stay beside the release and say what they are."""

import json
import re
import shutil
import sys

import numpy as np
import pandas as pd
import pytest

from lightning_dpgen import BadRecords, evaluate, fit
from lightning_dpgen.common import pace
from lightning_dpgen.data.files.text import MissingData

from .test_fit import OFF, QUICK, SCHEMA, frame_of

pytestmark = pytest.mark.filterwarnings("ignore")

BRIEF = ["--seconds", "0.02"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Return a run on a table whose rows belong to persons, and the table's file."""
    folder = tmp_path_factory.mktemp("evaluate")
    frame = frame_of().assign(who=np.arange(300) // 3)
    frame.to_csv(folder / "f.csv", index=False)
    fit(folder / "f.csv", SCHEMA, run_dir=folder / "run", person="who", max_rows=2, **QUICK | OFF)
    return folder


def test_it_writes_beside_the_release_and_says_so(dpgen, trained, monkeypatch):
    monkeypatch.delenv("TQDM_DISABLE")
    for seconds in ("_FIRST", "_LINE", "_LOOK"):
        monkeypatch.setattr(pace, seconds, 0.001)
    before = sorted((trained / "release").iterdir())
    status, out, err = dpgen("evaluate", trained / "release", "data=digits", *BRIEF, "--rows", 40)
    assert status == 0 and out.startswith("PRIVATE") and "evaluating: " in err and ", pictures\n" in err
    told = json.loads((trained / "private" / "evaluation.json").read_text())
    assert told["warning"].startswith("PRIVATE") and told["kind"] == "images" and told["epsilon"] <= 4
    assert told["rows"] == {"real": [1500, 1500], "synthetic": [40, 40], "held out": [297, 297]}
    assert 0 <= told["scores"]["pictures"]["labels, total variation"] <= 1
    assert "skipped" in told["notes"]["telling them apart"]
    page = (trained / "private" / "report.html").read_text()
    assert "PRIVATE" in page.upper() and "digits" in page and "<script" not in page
    assert sorted((trained / "release").iterdir()) == before and dpgen("verify", trained / "release")[0] == 0


def test_a_table_is_read_as_it_was_for_the_training(dpgen, table):
    """Neither the schema, nor n, nor the bound on a person's rows has to be given again."""
    status, out, err = dpgen("evaluate", table / "run/release", "data=table", f"data.path={table / 'f.csv'}", *BRIEF)
    assert status == 0, err
    assert "more than max_rows of a person: 100" in out and "columns: one column, mean" in out
    told = json.loads((table / "run/private/evaluation.json").read_text())
    assert told["rows"]["real"] == [200, 200] and "no record was given as not learned from" in told["held_out"]
    page = (table / "run/private/report.html").read_text()
    assert "job" in page and "age" in page and "Reading: records: more than max_rows of a person: 100." in page
    assert told["reading"] == {"records: more than max_rows of a person": 100}


def test_held_out_records_in_a_file_are_read_as_the_others(dpgen, table, tmp_path):
    frame_of(60, seed=5).assign(who=np.arange(60) // 3).to_csv(tmp_path / "g.csv", index=False)
    words = ["data=table", f"data.path={table / 'f.csv'}", "--held-out", tmp_path / "g.csv"]
    status, out, err = dpgen("evaluate", table / "run/release", *words)
    assert status == 0, err
    assert "reading: held-out records: records: more than max_rows of a person: 20" in out and "nearest record: AUC" in out
    told = json.loads((table / "run/private/evaluation.json").read_text())
    assert told["rows"]["held out"] == [40, 40] and "given as not learned from" in told["held_out"]
    line = next(line for line in out.splitlines() if "nearest record: accuracy" in line)
    assert re.search(r"nearest record: accuracy, 40 tested +0\.\d{4} \(0\.\d{4} to 0\.\d{4}\)$", line)
    assert told["intervals"]["membership inference"]["nearest record: accuracy"]["tested"] == 40
    worst = told["listings"]["pairs of columns that differ most, and where"][0]
    row = f"{worst['column']} +{worst['value']} +{worst['other column']} .* {worst['share, synthetic']:.4f} "
    assert re.search(row, out.partition("pairs of columns that differ most, and where:")[2])
    # The page begins with what the terminal prints.
    (verdict,) = re.findall(r"(?m)^publish\?: (.+)$", out)
    page = (table / "run/private/report.html").read_text()
    assert verdict == told["judgement"]["publish?"] and f"<b>{verdict[0].upper()}{verdict[1:]}.</b>" in page
    assert page.index("Should this be published?") < page.index("At a glance") and "<b>Mind:</b> this says" in page
    assert "Calibration of a classifier</h2>" in page and "Histograms and quantiles of numbers</h2>" in page
    assert set(told["numbers"]["age"]["real"]) >= {"least", "0.1 %", "99.9 %", "largest"} and "99.9 %" in out
    assert "Pairs of columns that differ most, and where</h2>" in (table / "run/private/report.html").read_text()
    assert "Membership inference</h2>" in (table / "run/private/report.html").read_text()


NOT_HELD_OUT = {
    "the same file": (lambda folder, path: path.symlink_to(folder / "f.csv"), "learned from"),
    "a copy of it": (lambda folder, path: shutil.copy(folder / "f.csv", path), "learned from"),
    "the synthetic records": (
        lambda folder, path: shutil.copy(folder / "run/release/synthetic.parquet", path),
        "the file of synthetic records",
    ),
    "none": (lambda folder, path: None, "no such file"),
    "no path": (lambda folder, path: None, "no such file"),
    "a folder": (lambda folder, path: path.mkdir(), "is a folder"),
    "nothing": (lambda folder, path: path.touch(), "is empty"),
    "no record": (lambda folder, path: frame_of(0).assign(who=0).to_csv(path, index=False), "no records"),
    "other columns": (lambda folder, path: frame_of(9).rename(columns={"age": "years"}).to_csv(path), "lacks"),
    "other values": (lambda folder, path: frame_of(9).assign(who=1, sex="?").to_csv(path, index=False), "line 2"),
}


@pytest.mark.parametrize("case", NOT_HELD_OUT)
def test_bad_held_out_files_get_one_line_that_names_the_argument(dpgen, table, tmp_path, case):
    write, said = NOT_HELD_OUT[case]
    path = tmp_path / ("g.parquet" if "synthetic" in case else "g.csv")
    write(table, path)
    held_out = "" if case == "no path" else path
    words = ["data=table", f"data.path={table / 'f.csv'}", "--held-out", held_out, *BRIEF]
    status, out, err = dpgen("evaluate", table / "run/release", *words)
    assert status == 2 and said in err and "--held-out" in err and len(err.splitlines()) == 1 and not out, err
    assert "data.path" not in err or "learned from" in err


def test_one_held_out_record_is_compared_and_copies_are_counted(dpgen, table, tmp_path):
    """By their values most records have no twin, so held-out ones that have one are called copies."""
    frame, path = frame_of().assign(who=np.arange(300) // 3), tmp_path / "g.csv"
    words = ["data=table", f"data.path={table / 'f.csv'}", f"data.held_out={path}"]
    frame[:1].to_csv(path, index=False)
    status, out, err = dpgen("evaluate", table / "run/release", *words)
    assert status == 0 and "membership inference: it needs 4 records" in out, err
    frame[100:][::-1].to_csv(path, index=False)
    status, out, err = dpgen("evaluate", table / "run/release", *words)
    line = "133 of 134 held-out ones (99 %) are identical to one that was learned from; of those learned from 30 %"
    assert status == 0 and f"by their values, {line}" in out and "WARNING: these look like copies" in out, err
    page = (table / "run/private/report.html").read_text()
    assert line in page.partition("<h2>Membership inference</h2>")[2].partition("</section>")[0]
    limits = page.partition("<h2>What copies and attacks cannot show</h2>")[2].partition("</section>")[0]
    assert "no evidence of privacy" in limits and "The DCR" in limits


def test_held_out_records_are_named_once(dpgen, table, tmp_path):
    words = ["data=table", f"data.path={table / 'f.csv'}", "data.held_out=g.csv", "--held-out", "h.csv"]
    status, out, err = dpgen("evaluate", table / "run/release", *words)
    assert status == 2 and "data.held_out=g.csv: expected one file" in err and len(err.splitlines()) == 1 and not out


def test_groups_and_the_report_of_sdmetrics_are_of_tables(dpgen, table, trained, monkeypatch):
    words = ["data=table", f"data.path={table / 'f.csv'}"]
    status, out, err = dpgen("evaluate", table / "run/release", *words, "--by", "sex", *BRIEF[:1], 60)
    assert status == 0 and "groups: sex F: one column, mean" in out, err
    for more, said in (
        (["--by", "nosuch"], "--by nosuch: expected a column of the table: sex, age, job"),
        (["--sdmetrics"], "--sdmetrics: SDMetrics cannot be imported"),
    ):
        monkeypatch.setitem(sys.modules, "sdmetrics", None)
        status, out, err = dpgen("evaluate", table / "run/release", *words, *more)
        assert status == 2 and said in err and len(err.splitlines()) == 1 and not out
        status, out, err = dpgen("evaluate", trained / "release", "data=digits", *more)
        assert status == 2 and f"{more[0]}: is only for tables" in err and len(err.splitlines()) == 1 and not out


def test_in_python_the_argument_is_named(table, tmp_path):
    for held_out, error in (
        (tmp_path / "none.csv", MissingData),
        (frame_of(9).assign(sex="?"), BadRecords),
        ([], BadRecords),
    ):
        with pytest.raises(error, match=r"^held_out: "):
            evaluate(table / "run", frame_of(9), held_out=held_out, rows=5)


def test_public_sets_have_held_out_records_of_their_own(dpgen, trained, tmp_path):
    status, _, err = dpgen("evaluate", trained / "release", "data=digits", "--held-out", tmp_path, *BRIEF)
    assert status == 2 and "--held-out" in err and "of its own" in err and len(err.splitlines()) == 1


def test_values_outside_are_treated_as_they_were_for_the_training(dpgen, tmp_path):
    """A schema with something to be found needs no share of a budget here: none is spent."""
    frame_of().assign(age=lambda frame: frame["age"] + 90).to_csv(tmp_path / "f.csv", index=False)
    moved = {"overrides": [*OFF["overrides"], "data.max_moved=1"]}
    fit(tmp_path / "f.csv", SCHEMA, run_dir=tmp_path / "run", outside="clamp", **QUICK | OFF | moved)
    (tmp_path / "s.yaml").write_text("columns: {sex: {type: category, values: private}}")
    words = [tmp_path / "run/release", "data=table", f"data.path={tmp_path / 'f.csv'}", *BRIEF]
    for more in ([], [f"data.schema={tmp_path / 's.yaml'}"]):
        status, out, err = dpgen("evaluate", *words, *more)
        assert status == 0 and "reading: age" in out, err
    status, _, err = dpgen("evaluate", *words, "data.outside=refuse")
    assert status == 2 and "above high" in err


def test_repeatable_by_its_seed_and_without_a_certificate(dpgen, table, tmp_path):
    release = shutil.copytree(table / "run/release", tmp_path / "release")
    (release / "privacy.json").unlink()
    frame = frame_of(100, seed=1)
    frame.assign(age=200).to_csv(tmp_path / "g.csv", index=False)
    words = [release, "data=table", f"data.path={tmp_path / 'g.csv'}", *BRIEF]
    assert "above high" in dpgen("evaluate", *words)[2] and not (tmp_path / "private").exists()
    found = []
    for seed in (1, 1):
        assert dpgen("evaluate", *words, "data.outside=clamp", "--seed", seed)[0] == 0
        found.append(json.loads((tmp_path / "private/evaluation.json").read_text())["scores"])
    # The number of sections that there was time for depends on the machine.
    both = found[0].keys() & found[1].keys()
    assert "columns" in both and all(found[0][section] == found[1][section] for section in both)


BAD = {
    "nothing": ([], "data"),
    "no path": (["data=table"], "data.path"),
    "no file": (["data=table", "data.path=nowhere.csv"], "nowhere.csv"),
    "other data": (["data=digits"], "the release is of kind table"),
    "another setting": (["data=table", "privacy.epsilon=3"], "of the data alone"),
    "an unknown setting": (["data=table", "data.nosuch=3"], "nosuch"),
    "unknown data": (["data=nosuch"], "nosuch"),
    "rows of a projection": (["data=blobs"], "dpgen project"),
    "a setting of others": (["data=table", "data.path=x.csv", "data.height=3"], "data.height"),
    "memory": (["data=table", "data.memory=x"], "memory"),
    "no number": (["data=table", "--rows", "few"], "few"),
    "no rows": (["data=table", "--rows", "0"], "--rows 0"),
    "no time": (["data=table", "--seconds", "0"], "seconds"),
    "a seed": (["data=table", "--seed", 2**40], "2^32"),
    "no held-out file": (["data=table", "data.path=release/model.json", "--held-out", "nowhere.csv"], "nowhere.csv"),
    "an option": (["--nosuch"], "nosuch"),
}


@pytest.mark.parametrize(("words", "said"), BAD.values(), ids=BAD.keys())
def test_mistakes(dpgen, table, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    release = shutil.copytree(table / "run/release", tmp_path / "release")
    status, out, err = dpgen("evaluate", release, *words)
    assert status == 2 and len(err.splitlines()) == 1 and err.startswith("dpgen: "), err
    assert said in err, err
    assert not out and [path.name for path in tmp_path.iterdir()] == ["release"]


def test_no_record_at_all(dpgen, table, tmp_path):
    pd.read_csv(table / "f.csv")[:0].to_csv(tmp_path / "none.csv", index=False)
    status, _, err = dpgen("evaluate", table / "run/release", "data=table", f"data.path={tmp_path / 'none.csv'}")
    assert status == 2 and "no record" in err and len(err.splitlines()) == 1


def test_a_large_table_is_compared_by_a_sample(dpgen, table, tmp_path):
    """Real and synthetic records alike are, and output, page and JSON say so."""
    words = ["evaluate", table / "run/release", "data=table", f"data.path={table / 'f.csv'}", *BRIEF]
    assert dpgen("sample", table / "run/release", "-n", 500, "--seed", 1, "-o", f"{tmp_path}/rows/")[0] == 0
    status, out, err = dpgen(*words, "--real-rows", 90, "--synthetic", tmp_path / "rows", "--rows", 40, "--seed", 5)
    assert status == 0, err
    for said in ("rows there are, of which a sample was read: 300", "rows of the sample, by the public seed 5: "):
        assert f"reading: {said}" in out and said.partition(":")[0] in (table / "run/private/report.html").read_text()
    told = json.loads((table / "run/private/evaluation.json").read_text())
    assert told["rows"]["synthetic"][0] == 40 and told["rows"]["real"][0] <= 90
    found = evaluate(table / "run/release", table / "f.csv", person="who", max_rows=2, real_rows=90, seed=5, seconds=1e-6)
    assert found.notes["real records"].startswith("a sample of ") and found.notes["real records"].endswith("of 300 rows")
    for more, said in (
        (["--synthetic", tmp_path / "no"], "no: there is no such file"),
        (["--synthetic", table / "f.csv"], "synthetic: "),
        (["--real-rows", 0], "--real-rows 0: expected 1 or more"),
        (["--rows", 10**7], "--rows 10000000: expected 1 to 1,000,000"),
    ):
        status, _, err = dpgen(*words, *more)
        assert status == 2 and said in err and len(err.splitlines()) == 1, err
