"""From anyone's file to a verified release: tables, baskets, series, pictures; persons with several records; private
discovery."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from lightning_dpgen.data.tables.schema_file import read_schema

pytestmark = pytest.mark.filterwarnings("ignore")

N = 900
QUICK = ["model.steps=3", "model.hidden=8", "model.latent=2", "split.k=3", "split.iterations=2", "split.features=16",
         "privacy.epsilon=8", "rows=60", "trainer.accelerator=cpu"]  # fmt: skip
SCHEMA = """
label: smoker
columns:
  name: {type: drop}
  id: {type: fake, fake: row_number}
  visit: {type: date, low: 2019-01-01, high: 2021-12-31, bins: 12}
  age: {type: integer, low: 0, high: 110, missing: true, missing_values: ["", "NA"]}
  weight: {type: number, low: 2, high: 250, decimals: 1, transform: log}
  town: {type: category, values: [Rome, Ur, elsewhere], other: elsewhere}
  smoker: {type: boolean}
"""


def _visits(folder):
    """Write visits of patients: dates, missing values, text, and up to seven rows a person."""
    random = np.random.default_rng(0)
    person = np.repeat(np.arange(300), random.integers(1, 8, 300))[:N]
    n = len(person)
    frame = pd.DataFrame({
        "name": [f"Name {i}" for i in person],
        "id": person,
        "visit": pd.Timestamp("2019-01-01") + pd.to_timedelta(random.integers(0, 1095, n), "D"),
        "age": pd.Series(random.integers(0, 100, n)).mask(random.random(n) < 0.1).astype("Int64"),
        "weight": random.uniform(40, 120, n).round(1),
        "town": random.choice(["Rome", "Ur"], n, p=[0.7, 0.3]),
        "smoker": random.random(n) < 0.3,
    })  # fmt: skip
    frame.to_csv(folder / "visits.csv", index=False, date_format="%Y-%m-%d", na_rep="NA")
    (folder / "visits.schema.yaml").write_text(SCHEMA)
    return ["data=table", f"data.path={folder / 'visits.csv'}", f"data.schema={folder / 'visits.schema.yaml'}"]


def _release(dpgen, folder, *arguments):
    status, out, err = dpgen("train", *arguments, *QUICK, f"run_dir={folder / 'run'}")
    assert status == 0, err
    status, verdict, _ = dpgen("verify", folder / "run" / "release")
    assert status == 0, verdict
    certificate = json.loads((folder / "run" / "release" / "privacy.json").read_text())
    return certificate, pd.read_parquet(folder / "run" / "release" / "synthetic.parquet"), out


def test_a_budget_says_how_far_a_person_reaches(dpgen, tmp_path):
    """A group holds whole persons, so it moves by twice its bound; its default keeps a fifth of the records' part."""
    given = [*_visits(tmp_path), f"data.n={N}", "data.person=id", "data.max_rows=3", "model.divergence=kl"]
    for more, reach in (([], "3"), (["clipping.per_person=true"], "1")):
        status, out, err = dpgen("budget", *given, *QUICK[:6], *more)
        assert status == 0, err
        rows = [line.split() for line in out.splitlines()]
        (records,), (groups,) = ([row for row in rows if row[:1] == [name]] for name in ("records", "groups"))
        assert records[-4] == reach and groups[-4] == "2" and (records[-1], groups[-1]) == ("83%", "17%")


def test_a_table_of_persons(dpgen, tmp_path):
    table = _visits(tmp_path)
    certificate, synthetic, out = _release(dpgen, tmp_path, *table, f"data.n={N}", "data.person=id", "data.max_rows=3")
    assert certificate["unit"] == "one person with at most 3 records" and certificate["declared"]["max_rows"] == 3
    assert "records: more than max_rows of a person" in out
    assert list(synthetic) == ["id", "visit", "age", "weight", "town", "smoker"] and len(synthetic) == 60
    assert synthetic["visit"].between(pd.Timestamp("2019-01-01").date(), pd.Timestamp("2021-12-31").date()).all()
    assert synthetic["age"].dropna().between(0, 110).all() and synthetic["smoker"].dtype == bool
    assert ((synthetic["weight"] * 10).round() == synthetic["weight"] * 10).all()


OPEN = (
    SCHEMA.replace("low: 0, high: 110", "low: private, high: private")
    .replace("low: 2019-01-01, high: 2021-12-31", "low: private, high: private")
    .replace("values: [Rome, Ur, elsewhere], other: elsewhere", "values: private")
)


def test_bounds_categories_and_the_number_of_records_are_found(dpgen, tmp_path):
    table = _visits(tmp_path)
    (tmp_path / "visits.schema.yaml").write_text(OPEN)
    bought = ["data.n=null", "data.n_share=0.02", "data.discovery_share=0.2", "data.outside=clamp"]
    certificate, synthetic, out = _release(dpgen, tmp_path, *table, *bought)
    columns = {column["name"]: column for column in certificate["declared"]["schema"]["columns"]}
    assert set(columns["town"]["values"]) == {"Rome", "Ur", "other"} and columns["age"]["high"] in (63, 127)
    assert certificate["stages"][0]["name"] == "first pass" and "EpsilonDelta" in json.dumps(certificate["event"])
    assert certificate["epsilon"] <= 8.0 and certificate["declared"]["discovery_share"] == 0.2
    assert set(synthetic["town"]) <= {"Rome", "Ur", "other"}
    assert "found, with noise: town" in out
    # A town that few records have is not found, and no column but these is clamped.
    clamped = {name for name, column in columns.items() if column.get("outside") == "clamp"}
    assert clamped and clamped == {column.name for column in read_schema(tmp_path / "visits.schema.yaml").open}


@pytest.mark.slow
def test_an_interrupted_discovery_is_not_paid_for_twice(dpgen, tmp_path, monkeypatch):
    from lightning_dpgen.runs import run as train

    table = _visits(tmp_path)
    (tmp_path / "visits.schema.yaml").write_text(OPEN)
    arguments = [*table, f"data.n={N}", "data.discovery_share=0.2", "data.outside=clamp", *QUICK, f"run_dir={tmp_path}/run"]
    with monkeypatch.context() as patch:
        patch.setattr(train._Run, "_plan", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert dpgen("train", *arguments)[0] == 130
    status, _, err = dpgen("train", *arguments)
    assert status == 0, err
    lines = map(json.loads, (tmp_path / "run/private/ledger.jsonl").read_text().splitlines())
    assert sum("id" in line and line["stage"] == "first pass" for line in lines) == 1
    assert dpgen("verify", tmp_path / "run/release")[0] == 0


def test_a_public_figure_is_bought_and_survives_an_interrupt(dpgen, tmp_path, monkeypatch):
    from lightning_dpgen.runs import run as train

    table, run = _visits(tmp_path), tmp_path / "run"
    arguments = [*table, f"data.n={N}", "privacy.fidelity_share=0.05", "trainer.checkpoint_every=1", *QUICK]
    with monkeypatch.context() as patch:
        patch.setattr(train, "write_release", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        assert dpgen("train", *arguments, f"run_dir={run}")[0] == 130
    before = (run / "private" / "fidelity.pt").read_bytes()
    certificate, _, _ = _release(dpgen, tmp_path, *arguments)
    assert (run / "private" / "fidelity.pt").read_bytes() == before
    figure = json.loads((run / "release" / "fidelity.json").read_text())
    assert 0.0 <= figure["distance of a column, mean"] <= 1.0
    assert 0.0 <= figure["accuracy on real records, trained on synthetic"] <= 1.0
    assert certificate["stages"][-1]["name"] == "fidelity" and certificate["epsilon"] <= 8.0
    assert "fidelity.json" in certificate["released"] and certificate["declared"]["fidelity_share"] == 0.05
    for page in ("report.html", "README.md"):
        assert "accuracy on real records" in (run / "release" / page).read_text()


def test_a_figure_that_was_lost_costs_nothing_but_itself(dpgen, tmp_path, monkeypatch):
    """The access was made, and its answer not saved: the run is released without it, at the planned epsilon."""
    from lightning_dpgen.runs import learn as learned

    arguments = [*_visits(tmp_path), f"data.n={N}", "privacy.fidelity_share=0.05", "trainer.checkpoint_every=1", *QUICK]
    measure = learned.measure_table_fidelity
    with monkeypatch.context() as patch:
        patch.setattr(learned, "measure_table_fidelity", lambda *a, **k: _interrupt_after(measure, *a, **k))
        assert dpgen("train", *arguments, f"run_dir={tmp_path / 'run'}")[0] == 130
    certificate, _, _ = _release(dpgen, tmp_path, *arguments)
    assert certificate["epsilon"] <= 8.0 and certificate["stages"][-1]["name"] == "fidelity"
    assert not (tmp_path / "run/release/fidelity.json").exists()


def _interrupt_after(work, *arguments, **keywords):
    work(*arguments, **keywords)
    raise KeyboardInterrupt


@pytest.mark.parametrize("found", [[], ["data.discovery_share=0.2", "data.outside=clamp"]], ids=["counted", "found"])
def test_a_person_more_changes_a_bought_number_by_max_rows_at_most(tmp_path, found):
    """One with nine records, of whom three take part, with and without bounds to be found in the same look."""
    from lightning_dpgen.runs import discover as first_pass
    from lightning_dpgen.specs.run import load_settings
    from lightning_dpgen.specs.source import source_of

    table, seen = _visits(tmp_path), []
    if found:
        (tmp_path / "visits.schema.yaml").write_text(OPEN)
    bought = [*table, "data.n=null", "data.n_share=0.1", "data.person=id", "data.max_rows=3", *found]
    text = (tmp_path / "visits.csv").read_text()
    line = text.splitlines()[1].split(",")
    for more in ("", "".join(",".join(["x", "9999", *line[2:]]) + "\n" for _ in range(9))):
        (tmp_path / "visits.csv").write_text(text + more)
        spec = load_settings(bought)
        seen.append(first_pass.open_first_pass(spec, source_of(spec.data)).n)
    assert seen[1] - seen[0] == 3


def test_baskets(dpgen, tmp_path):
    random = np.random.default_rng(1)
    lines = [" ".join(map(str, random.choice(30, size=random.integers(0, 9), replace=False) + 1)) for _ in range(N)]
    (tmp_path / "b.dat").write_text("\n".join(lines) + "\n")
    certificate, synthetic, _ = _release(
        dpgen, tmp_path, "data=baskets", f"data.path={tmp_path / 'b.dat'}", "data.items=1..30", "data.max_items=6",
        f"data.n={N}",
    )  # fmt: skip
    assert certificate["declared"]["schema"]["items"] == {"first": 1, "last": 30}
    assert all(set(items) <= set(range(1, 31)) and len(items) <= 6 for items in synthetic["items"])


def test_a_universe_is_never_read_off_the_baskets(dpgen, tmp_path):
    """The message says what to do instead, in settings that exist."""
    (tmp_path / "b.dat").write_text("tea milk\n")
    words = ["data=baskets", f"data.path={tmp_path / 'b.dat'}", "data.max_items=2", f"data.n={N}"]
    status, _, err = dpgen("train", *words, *QUICK, f"run_dir={tmp_path / 'run'}")
    assert status == 2 and err.startswith("dpgen: data.items: baskets need the list")
    *_, advised = re.findall(r"\(([^()]*)\)", err)
    status, out, err = dpgen("budget", *words, *advised.split(), *QUICK)
    assert status == 0 and "first pass" in out, err


def test_items_are_found(dpgen, tmp_path):
    (tmp_path / "b.dat").write_text("tea milk\n" * 400 + "tea\n" * 400 + "secret\n")
    certificate, synthetic, _ = _release(
        dpgen, tmp_path, "data=baskets", f"data.path={tmp_path / 'b.dat'}", "data.items=private", "data.max_items=3",
        "data.n=801", "data.discovery_share=0.2", "data.outside=clamp",
    )  # fmt: skip
    assert certificate["declared"]["schema"]["items"] == ["milk", "tea"]
    assert all(set(items) <= {"milk", "tea"} for items in synthetic["items"])


def test_series(dpgen, tmp_path):
    random = np.random.default_rng(2)
    rows = pd.DataFrame(random.uniform(0, 5, (N, 6)), columns=[f"h{i}" for i in range(6)])
    rows.insert(0, "label", random.choice(["warm", "cold"], N))
    rows.to_csv(tmp_path / "s.csv", index=False)
    _, synthetic, _ = _release(
        dpgen, tmp_path, "data=series", f"data.path={tmp_path / 's.csv'}", "data.length=6", "data.low=0", "data.high=5",
        "data.classes=[warm,cold]", "data.decimals=2", f"data.n={N}",
    )  # fmt: skip
    assert list(synthetic) == [f"t_{i}" for i in range(6)] + ["label"] and set(synthetic["label"]) <= {"warm", "cold"}
    assert synthetic.iloc[:, :6].stack().between(0, 5).all()
    status, out, _ = dpgen("sample", tmp_path / "run", "-n", 1, "--seed", 1)
    assert status == 0 and out.startswith("h0,h1,h2,h3,h4,h5,label\n")
    status, _, err = dpgen(
        "budget", "data=baskets", "data.path=none.csv", "data.form=lynes", "data.items=1..3", "data.n=99"
    )
    assert status == 2 and err.startswith("dpgen: data.form=lynes: expected one of lines, rows, matrix"), err


def test_series_most_of_which_are_left_out_cost_nothing(dpgen, tmp_path):
    rows = pd.DataFrame({"id": np.repeat(range(9), range(1, 10)), "value": 1.0})
    rows.to_csv(tmp_path / "s.csv", index=False)
    words = ["data=series", f"data.path={tmp_path / 's.csv'}", "data.form=long", "data.by=id", "data.low=0", "data.high=5"]
    words += ["data.length=4", f"data.n={N}", f"run_dir={tmp_path / 'run'}", *QUICK]
    for outside, told in (("clamp", "data.length"), ("refuse", "data.outside=clamp")):
        status, _, err = dpgen("train", *words, f"data.outside={outside}")
        assert status == 2 and "8 of 9 series" in err and "1 of length 1, 1 of length 2" in err and told in err, err
        assert not (tmp_path / "run").exists()


def test_a_folder_of_colour_pictures(dpgen, tmp_path):
    random = np.random.default_rng(3)
    for name in ("cats", "dogs"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(40):
            size = (int(random.integers(5, 20)), int(random.integers(5, 20)), 3)
            Image.fromarray(random.integers(0, 256, size).astype(np.uint8)).save(tmp_path / "pictures" / name / f"{i}.png")
    _, synthetic, _ = _release(
        dpgen, tmp_path, "data=images", f"data.path={tmp_path / 'pictures'}", "data.height=8", "data.width=8",
        "data.channels=3", "data.classes=[cats,dogs]", "data.n=80", "privacy.delta=1e-3",
    )  # fmt: skip
    assert synthetic.shape == (60, 8 * 8 * 3 + 1) and set(synthetic["label"]) <= {"cats", "dogs"}
    assert Image.open(tmp_path / "run/release/samples.png").mode == "RGB"


MISTAKES = {
    "a person without a bound": (["data.person=id"], "data.max_rows=None"),
    "a bound without a person": (["data.max_rows=3"], "data.person=None"),
    "no such person": (["data.person=who", "data.max_rows=3"], "no column data.person='who'"),
    "no rows of a person": (["data.person=id", "data.max_rows=0"], "data.max_rows=0"),
    "a strange rule": (["data.outside=drop"], "data.outside=drop"),
    "nothing to be found": (["data.discovery_share=0.1"], "nothing here"),
    "half of the budget for a figure": (["privacy.fidelity_share=0.5"], "privacy.fidelity_share=0.5"),
    "no bins": (["data.bins=0"], "data.bins=0"),
    "convolutions": (["model.network=conv"], "model.network=conv"),
    "a setting of pictures": (["data.height=3"], "data.height"),
}


@pytest.mark.parametrize(("wrong", "words"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_cost_nothing(dpgen, tmp_path, wrong, words):
    status, _, err = dpgen("train", *_visits(tmp_path), f"data.n={N}", *wrong, f"run_dir={tmp_path / 'run'}")
    assert status == 2 and words in err and "Traceback" not in err, err
    assert not (tmp_path / "run").exists()


def test_what_is_found_is_paid_for(dpgen, tmp_path):
    table = _visits(tmp_path)
    (tmp_path / "visits.schema.yaml").write_text(OPEN)
    status, _, err = dpgen("train", *table, f"data.n={N}", f"run_dir={tmp_path / 'run'}")
    assert status == 2 and "data.discovery_share=None" in err and not (tmp_path / "run").exists(), err


def test_a_value_outside_is_refused_or_counted(dpgen, tmp_path):
    table = _visits(tmp_path)
    text = (tmp_path / "visits.csv").read_text().replace(",Ur,", ",Babylon,", 1)
    (tmp_path / "visits.csv").write_text(text)
    status, _, err = dpgen("train", *table, f"data.n={N}", *QUICK, f"run_dir={tmp_path / 'run'}")
    assert status == 2 and "column 'town'" in err and "Babylon" in err and "line" in err
    assert not (tmp_path / "run").exists()
    _, _, out = _release(dpgen, tmp_path, *table, f"data.n={N}", "data.outside=clamp")
    assert "reading (private, stays here): town" in out


def test_every_source_has_its_file():
    from lightning_dpgen.specs.config_files import conf_dir
    from lightning_dpgen.specs.groups import ProjectSpec
    from lightning_dpgen.specs.run import RunSpec
    from lightning_dpgen.specs.spec import variants

    sources = {*variants(RunSpec, "data"), *variants(ProjectSpec, "data")}
    assert {path.stem for path in (conf_dir() / "data").glob("*.yaml")} == sources


WRITTEN = {
    "days of a wide file": (["data.day=time"], "form=long"),
    "persons in windows": (["data.form=long", "data.person=who", "data.max_rows=2"], "neither by nor day"),
    "persons in windows, counted": (
        ["data.form=long", "data.person=who", "data.max_rows=2", "data.n=null", "data.n_share=0.1"], "neither by nor day",
    ),
    "an unknown form": (["data.form=square"], "data.form=square: expected one of wide, long"),
    "times that are not declared": (["data.form=long", "data.by=who", "data.time=t_0"], "data.time=t_0: expected steps"),
    "other times than the length says": (["data.steps=1987..1980"], "data.steps='1987..1980': expected 2 times"),
    "a column that is not there": (["data.columns=[t_0,t_9]"], "no column 't_9'"),
    "columns of long series": (["data.by=place"], "data.by='place' data.day=null: apply only to long files"),
    "a separator of two": (["data.separator=ab"], "separator='ab'"),
    "weekdays without days": (["data.form=long", "data.weekdays=each", "data.by=a"], "data.weekdays='each' data.day=null"),
    "weekdays and another label": (
        ["data.form=long", "data.weekdays=each", "data.day=time", "data.label=kind"],
        "leave out data.label and data.classes",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("wrong", "words"), WRITTEN.values(), ids=WRITTEN.keys())
def test_how_a_file_is_written_is_said_wrong(dpgen, tmp_path, wrong, words):
    (tmp_path / "s.csv").write_text("t_0,t_1,who\n1,2,a\n")
    declared = ["data.length=2", "data.low=0", "data.high=9", *([] if "data.n=null" in wrong else [f"data.n={N}"])]
    status, _, err = dpgen(
        "train", "data=series", f"data.path={tmp_path / 's.csv'}", *declared, *wrong, *QUICK, f"run_dir={tmp_path / 'run'}"
    )
    assert status == 2 and words in err and err.count("\n") == 1, err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_book_shows_a_table_as_it_is_trained(dpgen, tmp_path, monkeypatch):
    """The schema and the command of the page go together."""
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs/how_to/describe_a_table.md").read_text()
    command = re.search(r"^dpgen train (data=table(?:.*\\\n)*.*)", page, re.MULTILINE)[1]
    (tmp_path / "visits.schema.yaml").write_text(re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1])
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    assert "data.path=visits.csv" in words
    status, out, err = dpgen("budget", *words)
    assert status == 0 and "model=auto took measured" in out and "first pass" in out, err
    random = np.random.default_rng(0)
    pd.DataFrame({
        "patient": np.arange(N) // 3, "visit": "2022-03-01", "age": random.integers(0, 99, N), "weight": 70.5,
        "cost": random.integers(1, 999, N), "department": random.choice(["er", "icu"], N), "readmitted": "no",
    }).to_csv("visits.csv", index=False)  # fmt: skip
    status, _, err = dpgen("train", *words, "rows=200", f"run_dir={tmp_path / 'run'}")
    assert status == 0, err
    assert dpgen("verify", tmp_path / "run")[0] == 0
