"""`data.workload`: counts with error bars in the release, held against its settings; mistakes cost nothing."""

import csv
import hashlib
import json
import math

import numpy as np
import pandas as pd
import pytest

from lightning_dpgen.release.certificate import digest
from lightning_dpgen.runs.candidates import read_candidates
from lightning_dpgen.runs.reporter import SilentReporter
from lightning_dpgen.runs.select import _make_untrained

pytestmark = pytest.mark.filterwarnings("ignore")

SCHEMA = """label: ill
columns:
  who: {type: drop}
  "=a": {type: category, values: [x, "=y", "1"]}
  age: {type: integer, low: 0, high: 99, bins: 4}
  other: {type: integer, low: 0, high: 99, relative_to: age}
  fixed: {type: category, values: [always]}
  ill: {type: boolean, missing: true}
"""
SETS = [["age", "ill"], ["=a"], ["ill", "=a", "age"]]


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    ages = random.integers(100, size=400)
    frame = pd.DataFrame({
        "who": np.arange(400) // 2, "=a": random.choice(["x", "=y", "1"], 400), "age": ages,
        "other": np.minimum(ages + random.integers(3, size=400), 99), "fixed": "always",
        "ill": np.where(ages > 50, "true", random.choice(["false", ""], 400)),
    })  # fmt: skip
    frame.to_csv("t.csv", index=False)
    (tmp_path / "t.schema.yaml").write_text(SCHEMA)
    (tmp_path / "asked.yaml").write_text(json.dumps({"workload": SETS}))
    return ["data=table", "data.path=t.csv", "data.schema=t.schema.yaml", "data.n=400", "model=measured"]


def test_counts_are_released_and_a_release_that_states_others_is_refused(dpgen, table, tmp_path):
    persons = ["data.person=who", "data.max_rows=2"]
    words = [*table, *persons, "data.workload=asked.yaml", "model.components=2", "rows=20", "model.label_share=0"]
    planned = dpgen("budget", *words)[1].partition("the fit to")[0]
    status, out, err = dpgen("train", *words, "run_dir=run")
    assert (status, planned in out) == (0, True), err
    folder = tmp_path / "run" / "release"
    with open(folder / "answers.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12 + 3 + 36 and "'=a" in {row["column_1"] for row in rows}
    certificate = json.loads((folder / "privacy.json").read_text())
    assert certificate["declared"]["workload"] == SETS and "asked.yaml" not in json.dumps(certificate)
    entry = next(own for own in certificate["noise"]["sums"] if "workload" in own["names"])
    error = entry["multiplier"] * math.sqrt(3) * 2
    assert (
        all(float(row["standard_error"]) == pytest.approx(error, abs=1e-3) for row in rows) and f"{error:,.1f}" in planned
    )
    assert all("answers.csv" in (folder / page).read_text(encoding="utf-8") for page in ("README.md", "report.html"))
    status, out, _ = dpgen("verify", "run")
    assert status == 0 and "answers.csv holds the counts that are asked for" in out

    whole = {path.name: path.read_bytes() for path in folder.iterdir()}

    def verified(change_certificate=lambda own: None, change_answers=lambda text: text):
        """Verify the release with changes that its hashes and its digest know of."""
        text = change_answers(whole["answers.csv"].decode())
        (folder / "answers.csv").write_text(text, newline="")
        own = json.loads(whole["privacy.json"])
        own["files"]["answers.csv"] = hashlib.sha256(text.encode()).hexdigest()
        change_certificate(own)
        (folder / "privacy.json").write_text(json.dumps(own | {"digest": digest(own)}))
        return dpgen("verify", "run")[:2]

    def wider(text):
        lines = [line.split(",") for line in text.splitlines()]
        for line in lines[1:]:
            error = 1.2 * float(line[-3])
            line[-3:] = (
                f"{error:.3f}",
                str(max(float(line[-4]) - 1.96 * error, 0)),
                str(max(float(line[-4]) + 1.96 * error, 0)),
            )
        return "".join(",".join(line) + "\n" for line in lines)

    assert verified()[0] == 0
    answers = {
        "a cell less": lambda text: text[: text.rindex("\n", 0, -1) + 1],
        "a cell more": lambda text: text + text.splitlines()[-1] + "\n",
        "another value": lambda text: text.replace("true", "false", 1),
        "another count": lambda text: text.replace(rows[0]["count"] + ",", "9999,", 1),
        "no number": lambda text: text.replace(rows[0]["count"] + ",", "nan,", 1),
        "another error": wider,
        "no columns": lambda text: "",
        "no rows": lambda text: text[: text.index("\n") + 1],
        "another column": lambda text: "".join(f"{line},mark\n" for line in text.splitlines()),
        "a cell too many in a row": lambda text: text[:-1] + ",1\n",
        "a row without numbers": lambda text: text[: text.rindex(",")] + "\n",
        "no errors": lambda text: text.replace(f",{rows[0]['standard_error']},", ",0,"),
        "words": lambda text: text.replace(rows[0]["count"] + ",", "many,", 1),
        "a field without an end": lambda text: text[: text.index("\n") + 1] + '"' + "x" * 200_000,
        "a byte of 0": lambda text: text.replace("true", "\0", 1),
        "columns twice": lambda text: text.replace("column_1", "query", 1),
        "thousands of columns": lambda text: "a," * 100_000 + text,
    }
    for name, change in answers.items():
        status, out = verified(change_answers=change)
        assert status != 0 and "answers.csv: " in out and max(map(len, out.splitlines())) < 700, name
    declared = {
        "a set less": lambda own: own["declared"]["workload"].pop(),
        "a set more": lambda own: own["declared"]["workload"].append(["age"]),
        "another set": lambda own: own["declared"]["workload"][1].append("age"),
        "no set": lambda own: own["declared"].update(workload=[]),
        "a file": lambda own: own["declared"].update(workload="asked.yaml"),
        "none": lambda own: own["declared"].pop("workload"),
    }
    for name, change in declared.items():
        assert verified(change)[0] != 0, name


MISTAKES = {
    "[[agee]]": "there is no column 'agee': expected some of =a, age, fixed, ill; did you mean age?",
    f"[[{'b' * 3000}]]": f"there is no column '{'b' * 57}...': expected some of =a, age",
    "[[age,age]]": "names a column twice",
    "[[age,ill],[ill,age]]": "is there twice",
    "[[who]]": "is not learned (type: drop or fake)",
    "[[other]]": "is learned by its distance from another column",
    "[[fixed]]": "has one value only",
    "[[age,ill,who,other,fixed]]": "has 5 columns: expected 1 to 4",
    "[]": "expected lists of 1 to 4 names",
    "[age]": "expected a list",
    "none.yaml": "no such file",
    "list.yaml": "expected a file of YAML or JSON as in workload: [[age, sex], [region]]",
    "empty.yaml": "expected keys and values, of which one is workload",
    "t.csv": "expected keys and values, of which one is workload",
}


@pytest.mark.parametrize("asked", MISTAKES)
def test_a_mistake_is_told_in_one_line_and_costs_nothing(dpgen, table, tmp_path, asked):
    (tmp_path / "list.yaml").write_text("- [age, ill]\n")
    (tmp_path / "empty.yaml").write_text("")
    status, _, err = dpgen("train", *table, f"data.workload={asked}", "run_dir=run")
    assert status == 2 and MISTAKES[asked] in err and err.count("\n") == 1 and "data.workload" in err
    assert not (tmp_path / "run").exists() and err.count(str(tmp_path)) <= 1


def test_other_models_and_records_refuse_it(dpgen, table):
    for words, told in (
        ([*table[:-1], "model=vae"], "model=vae measures no tables of counts; take model=measured"),
        (["data=digits", "model=measured"], "there is no setting 'data.workload' of data=digits"),
    ):
        status, _, err = dpgen("budget", *words, "data.workload=[[age]]")
        assert status == 2 and told in err
    status, out, _ = dpgen("budget", *table[:-1], "data.workload=[[age]]")
    assert status == 0 and "standard error of a count" in out


def test_a_selection_without_a_trial_releases_a_network_that_has_counted_nothing(table):
    words = [*table, "data.workload=asked.yaml", "model.components=2,3", "model.label_share=0",
             "privacy.selection=geometric", "privacy.selection_mean=2", "privacy.fidelity_share=0.1",
             "privacy.selection_score=fidelity"]  # fmt: skip
    candidates = read_candidates(words, SilentReporter())
    assert [settings.spec.data.asked_sets for settings in candidates.settings] == [SETS, SETS]
    content, settings = _make_untrained(candidates)
    assert "answers.csv" not in content.released and "workload" not in settings.dump_public()


def test_tables_that_are_too_large_or_mostly_noise_are_told_with_their_numbers(dpgen, table, tmp_path):
    (tmp_path / "t.schema.yaml").write_text(SCHEMA.replace("bins: 4", "bins: 100"))
    status, _, err = dpgen("budget", *table, "privacy.epsilon=0.5", "data.workload=[[age,ill],[ill]]")
    assert status == 0 and "1 of 2 tables asked for would be mostly noise: that of age, ill has 300 cells" in err
    wide = "  w: {type: integer, low: 0, high: 999, bins: 1000}\n"
    (tmp_path / "t.schema.yaml").write_text(SCHEMA.replace("bins: 4", "bins: 100") + wide)
    status, _, err = dpgen("budget", *table, "data.workload=[[age,w,ill]]")
    assert status == 2 and "has 300,000, with 0.0013 records in a cell on average and noise of standard deviation" in err
