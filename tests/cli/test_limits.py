"""Warnings reach the reader: those of public numbers stand in report and card, those of records in private/ alone."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import torch
from release.released import Page, released
from release.test_synthetic_pages import PEOPLE

from lightning_dpgen.privacy.planning.stage_spec import declared_warning
from lightning_dpgen.release import synthetic
from lightning_dpgen.release.drawing.described import Kept
from lightning_dpgen.release.pages.report import limits_of, write_pages
from lightning_dpgen.release.pages.text import sentence
from lightning_dpgen.runs.warnings import plan_limits, plan_warnings
from lightning_dpgen.specs.settings import load_complete_settings

pytestmark = pytest.mark.filterwarnings("ignore")
COLUMNS = "  {0}: {{type: category, values: [{1}]}}\n"


@pytest.fixture
def people(tmp_path):
    """Return a file of 400 visits and its schema, with tables of two columns of many cells."""
    drawn = np.random.default_rng(3)
    values = list(map(str, range(30)))
    frame = pd.DataFrame({name: drawn.choice(values, 400) for name in ("ward", "street")})
    frame["who"] = np.arange(400) // 2
    frame.to_csv(tmp_path / "people.csv", index=False)
    listed = ", ".join(f"'{value}'" for value in values)
    text = "columns:\n" + COLUMNS.format("ward", listed) + COLUMNS.format("street", listed) + "  who: {type: drop}\n"
    (tmp_path / "s.yaml").write_text(text)
    return [f"data.path={tmp_path / 'people.csv'}", f"data.schema={tmp_path / 's.yaml'}"]


def _said(folder):
    page = Page((folder / "release" / "report.html").read_text(encoding="utf-8")).text
    card = (folder / "release" / "README.md").read_text(encoding="utf-8").partition("## Limits")[2].partition("\n## ")[0]
    return page.partition("Limits")[2], card


def test_public_warnings_are_in_report_and_card_and_private_ones_are_not(dpgen, people, tmp_path):
    """Cells of noise and lost visits are public; that the file has not the declared number of records is not."""
    run = tmp_path / "run"
    words = [*people, "data.n=300", "data.person=who", "data.max_rows=2", "privacy.epsilon=1", "model=measured"]
    status, _, err = dpgen("train", "data=table", *words, f"run_dir={run}")
    assert status == 0 and "data.n=300 is far from the number of records (private" in err
    warned = re.search(r"correlations cannot be found [^;]*", err)[0]
    for said in _said(run):
        assert sentence(warned) in said and "a person had up to 2 of the real ones" in said
    kept = json.loads((run / "private" / "warnings.json").read_text())
    assert (
        kept == [declared_warning(300, 400, setting="data.n", shown=True)]
        and (run / "private" / "warnings.json").stat().st_mode & 0o777 == 0o600
    )
    published = b"".join(path.read_bytes() for path in (run / "release").iterdir())
    certificate = (run / "release" / "privacy.json").read_text()
    # A hash may hold any three digits.
    assert b"is far from the number" not in published and not re.search(r"\b400\b", certificate)
    assert dpgen("verify", run)[0] == 0
    assert dpgen("evaluate", run, "data=table", people[0], "--seconds", 1e-9)[0] == 0
    assert "Warnings of the run" in (run / "private" / "report.html").read_text(encoding="utf-8")


def _visitors(folder):
    """Write 2,000 rows and their schema; return the settings that name them, and the true share of each choice."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"age": random.integers(0, 10, 2000), "income": random.choice(["low", "high"], 2000, p=[0.7, 0.3])}
    )
    frame.to_csv(folder / "visitors.csv", index=False)
    income = "income: {type: category, values: [low, high]}"
    text = f"columns:\n  age: {{type: integer, low: 0, high: 9, bins: 10}}\n  {income}\n"
    (folder / "s.yaml").write_text(text, encoding="utf-8")
    shares = [(frame["age"] == age).mean() for age in range(10)] + [
        (frame["income"] == word).mean() for word in ("low", "high")
    ]
    words = [f"data.path={folder / 'visitors.csv'}", f"data.schema={folder / 's.yaml'}", "data.n=2000", "privacy.epsilon=5"]
    return ["data=table", *words], torch.tensor(shares)


@pytest.mark.parametrize("model", ["measured", "vae", "wgan"])
def test_noisy_shares_that_a_run_has_bought_go_with_its_model(model, dpgen, tmp_path, monkeypatch):
    """They are within 5 deviations of their noise: a false alarm in 50,000 for the twelve shares of each model."""
    words, true = _visitors(tmp_path)
    seen, look = [], synthetic.degenerate_warning
    monkeypatch.setattr(synthetic, "degenerate_warning", lambda mixture: seen.append(mixture.margins) or look(mixture))
    small = [] if model == "measured" else ["model.steps=2", "split.k=2", "model.hidden=4"]
    status, _, err = dpgen("train", *words, f"model={model}", *small, f"run_dir={tmp_path / 'run'}")
    assert status == 0 and "degenerate" not in err
    (margins,) = seen
    assert 0.0 < margins.deviation < 0.02 and (margins.shares - true).abs().max() < 5 * margins.deviation


def test_a_release_of_collapsed_rows_is_warned_of_before_it_is_published(dpgen, tmp_path):
    """A generator whose steps are far too long makes one value of each column; the pages of the release say so."""
    words, _ = _visitors(tmp_path)
    words += ["model=wgan", "split.k=1", "model.bias=learned", "model.steps=20", "model.generator_lr=100"]
    status, _, err = dpgen("train", *words, f"run_dir={tmp_path / 'run'}")
    (line,) = [line for line in err.splitlines() if "degenerate" in line]
    assert status == 0 and "age is " in line and "income is " in line and "do not publish them" in line
    for said in _said(tmp_path / "run"):
        assert "the rows are degenerate" in said.lower()


def test_a_projection_that_estimates_nothing_says_so(dpgen, tmp_path):
    for epsilon, nothing in (("1", True), ("1000", False)):
        run = tmp_path / epsilon
        words = ["project.radius=20", "data.d=20", "data.n=500", "project.k=20", f"privacy.epsilon={epsilon}"]
        status, _, err = dpgen("project", *words, f"run_dir={run}")
        assert status == 0
        told = ["these rows estimate nothing" in err, *("hese rows estimate nothing" in said for said in _said(run))]
        assert nothing is all(told) is any(told)


@pytest.mark.parametrize(("found", "warned"), [(1100, False), (1101, True), (910, False), (909, True), (0, True)])
def test_a_declared_number_may_be_a_tenth_off(found, warned):
    assert (declared_warning(1000, found) is not None) == warned


def test_limits_of_a_plan_follow_from_public_numbers_alone():
    """Each is one of the warnings, and none is there with a budget that is large."""
    words = ["data=adult", "model=measured"]
    for epsilon, count in ((0.05, 2), (100.0, 0)):
        settings = load_complete_settings([*words, f"privacy.epsilon={epsilon}"])
        plan = settings.plan()
        found = plan_limits(settings, plan)
        assert len(found) == count
        assert {*found} <= {sentence(text) for text in plan_warnings(settings, plan) if text}


def test_names_of_columns_cannot_write_into_a_page(tmp_path):
    """A warning may name columns, which are the curator's; in page and card they stay text."""
    hostile = '<script>alert("x")</script>*a*|b'
    certificate = released(tmp_path / "r", PEOPLE)
    page = {"kind": "table", "what": "rows", "parts": [], "left_out": 0, "rows": 1, "components": 1, "picture": None}
    page |= {"shown": type("S", (), {"figures": [], "rows": [], "columns": []}), "where": None, "figure": None}
    page |= {"classified": None, "measured": True, "answers": None}
    page["kept"] = Kept([hostile], [hostile], 0, "99.0%")
    write_pages(tmp_path / "r", certificate, "synthetic", [sentence(hostile)], size="n<1K", tasks=[], **page)
    text = (tmp_path / "r" / "report.html").read_text()
    assert "<script" not in text and "&lt;script&gt;" in text
    assert "*a*" not in (tmp_path / "r" / "README.md").read_text()


@pytest.mark.parametrize("most", [None, 1, 2])
def test_lost_visits_are_told_of_where_persons_had_several(most):
    certificate = {"private": True, "epsilon": 1.0, "delta": 1e-9, "relation": "add_or_remove_one"}
    declared = {"n": 100} | ({} if most is None else {"max_rows": most})
    found = limits_of(certificate | {"declared": declared, "released": ["synthetic.parquet"]})
    assert bool(found) == (most == 2)
    assert not limits_of(certificate | {"declared": declared, "released": ["model.safetensors"]})


@pytest.mark.parametrize(("of_persons", "told"), [(["data.person=id", "data.max_rows=3"], True), ([], False),
                                                  (["data.person=id", "data.max_rows=1"], False)])  # fmt: skip
def test_lost_histories_are_told_of_before_a_run(dpgen, tmp_path, of_persons, told):
    (tmp_path / "s.yaml").write_text("columns: {id: {type: drop}, sick: {type: boolean}}")
    words = ["data=table", f"data.path={tmp_path / 's.csv'}", f"data.schema={tmp_path / 's.yaml'}", "data.n=100"]
    (tmp_path / "s.csv").write_text("id,sick\n1,true\n1,false\n")
    status, _, told_of = dpgen("budget", *words, "privacy.epsilon=1", *of_persons)
    said = "data=histories learns both, and dpgen schema --person id FILE drafts"
    assert status == 0 and (said in told_of) == told


def test_lost_histories_are_told_of_before_a_first_pass(dpgen, tmp_path):
    """The table is empty, so the run stops where it reads it, and nothing is spent."""
    (tmp_path / "s.yaml").write_text("columns: {id: {type: drop}, age: {type: integer, low: private, high: private}}")
    (tmp_path / "s.csv").write_text("id,age\n")
    words = ["data=table", f"data.path={tmp_path / 's.csv'}", f"data.schema={tmp_path / 's.yaml'}", "data.n=100"]
    words += ["data.person=id", "data.max_rows=3", "data.discovery_share=0.1", "data.outside=clamp", "privacy.epsilon=1"]
    status, _, err = dpgen("train", *words, f"run_dir={tmp_path / 'run'}")
    assert status == 2 and err.count("data=histories learns both, and dpgen schema --person id FILE drafts") == 1, err
    assert not (tmp_path / "run").exists()
