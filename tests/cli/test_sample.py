"""`dpgen sample`: repeatable, to the terminal, Parquet or CSV, from the folder alone."""

import csv
import io
import json
import math

import pandas as pd
import pytest
import safetensors.torch
import torch

from lightning_dpgen.data.baskets.form import BasketForm
from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema_file import read_schema
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.rbm import StackedRBM
from lightning_dpgen.release.drawing.model_files import write_model


def test_repeatable_and_equal_in_both_formats(dpgen, release, tmp_path):
    for name in ("a.parquet", "b.parquet", "c.csv"):
        assert dpgen("sample", release, "-n", 30, "--seed", 3, "-o", tmp_path / name)[0] == 0
    a, b = (pd.read_parquet(tmp_path / f"{name}.parquet") for name in "ab")
    c = pd.read_csv(tmp_path / "c.csv")
    assert a.equals(b) and (a.to_numpy() == c.to_numpy()).all() and list(a.columns) == list(c.columns)
    assert dpgen("sample", release, "-n", 30, "--seed", 4, "-o", tmp_path / "d.csv")[0] == 0
    assert not pd.read_csv(tmp_path / "d.csv").equals(c)


def test_needs_the_model_alone_and_streams(dpgen, release, tmp_path):
    for path in release.iterdir():
        if not path.name.startswith("model."):
            path.unlink()
    assert dpgen("sample", release, "-n", 20_001, "-o", tmp_path / "a.parquet")[0] == 0
    assert len(pd.read_parquet(tmp_path / "a.parquet")) == 20_001
    assert dpgen("sample", release, "-n", 0, "-o", tmp_path / "none.csv")[0] == 0
    assert len(pd.read_csv(tmp_path / "none.csv")) == 0


def test_without_a_file_a_few_are_printed(dpgen, release, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    status, out, err = dpgen("sample", release, "--seed", 3)
    assert status == 0 and len(pd.read_csv(io.StringIO(out))) == 10 and "-o FILE.parquet" in err
    assert sorted(tmp_path.rglob("*")) == before
    status, out, _ = dpgen("sample", release, "-n", 30, "--seed", 3)
    assert status == 0
    assert dpgen("sample", release, "-n", 30, "--seed", 3, "-o", tmp_path / "a.csv")[0] == 0
    assert (tmp_path / "a.csv").read_text() == out


def test_baskets_go_to_both_formats(dpgen, tmp_path):
    form = BasketForm("lines", label=True)
    schema = BasketSchema(("tea, green", 'b"read', "milk"), 3, classes=("day", "night"), written=form)
    write_model(tmp_path, Mixture(StackedRBM(schema, 2, hidden=2, chains=2), torch.ones(2)))
    for name in ("a.parquet", "a.csv"):
        status, _, err = dpgen("sample", tmp_path, "-n", 40, "--seed", 3, "-o", tmp_path / name)
        assert status == 0, err
    with open(tmp_path / "a.csv", newline="") as file:
        labels, *written = zip(*[(row[0], row[1:]) for row in csv.reader(file)], strict=True)
    typed = pd.read_parquet(tmp_path / "a.parquet")
    assert list(written[0]) == [list(items) for items in typed["items"]] and list(labels) == typed["label"].tolist()
    assert dpgen("sample", tmp_path, "-n", 40, "--seed", 3, "-o", tmp_path / "a.dat")[0] == 0
    # A wrong word is told before anything is read, and the release knows the form.
    for word, file, status in (
        ("data.form=lynes", "none.csv", 2),
        ("data.form=lines", "a.csv", 0),
        ("data.outside=refuse", "a.csv", 0),
    ):
        words = ["data=baskets", f"data.path={tmp_path / file}", word, "--seconds", "0.02"]
        found, _, err = dpgen("evaluate", tmp_path, *words)
        assert found == status and (not status or "did you mean data.form=lines?" in err), err


def test_files_of_baskets_hold_no_other_records(dpgen, release, tmp_path):
    status, _, err = dpgen("sample", release, "-o", tmp_path / "a.dat")
    assert status == 2 and "are of baskets, and this release is of kind" in err and not (tmp_path / "a.dat").exists()


def test_bad_input(dpgen, release, tmp_path):
    (tmp_path / "there.csv").write_text("mine")
    (tmp_path / "empty").mkdir()
    cases = [
        [release, "-o", tmp_path / "a.txt"],
        [release, "-o", tmp_path / "there.csv"],
        [release, "-o", tmp_path / "nowhere" / "a.csv"],
        [release, "-n", "-3"],
        [release, "-n", "many"],
        [release, "--seed", 2**64, "-o", tmp_path / "a.csv"],
        [release, "--foreign"],
        [tmp_path / "nowhere"],
        [tmp_path / "empty"],
        [],
    ]
    before = sorted(tmp_path.rglob("*"))
    for case in cases:
        status, _, err = dpgen("sample", *case)
        assert status == 2 and err.startswith("dpgen: ") and len(err.splitlines()) == 1, (case, err)
    assert sorted(tmp_path.rglob("*")) == before and (tmp_path / "there.csv").read_text() == "mine"


SPOILT = {
    "foreign model": {"model": "other"},
    "weights": {"mixture_weights": [-1.0] * 10},
    "no weight": {"mixture_weights": [0.0] * 10},
    "sizes": {"hidden": 3},
    "sizes beyond memory": {"hidden": 10**9},
    "half a component": {"k": 1.5},
    "schema": {"schema": {"kind": "tables"}},
    "a huge schema": {"schema": {"kind": "images", "height": 10**9, "width": 8, "levels": 16}},
}


@pytest.mark.parametrize("spoil", ["truncated", "empty", "no json", "not a number", *SPOILT])
def test_broken_models(dpgen, release, tmp_path, spoil):
    model, weights = release / "model.json", release / "model.safetensors"
    fields = json.loads(model.read_text())
    if spoil in ("truncated", "empty"):
        weights.write_bytes(weights.read_bytes()[: 500 if spoil == "truncated" else 0])
    elif spoil == "not a number":
        tensors = safetensors.torch.load_file(weights)
        safetensors.torch.save_file({name: tensor * math.nan for name, tensor in tensors.items()}, weights)
    else:
        fields |= SPOILT.get(spoil, {})
        model.write_text("{" if spoil == "no json" else json.dumps(fields))
    status, _, err = dpgen("sample", release, "-o", tmp_path / "a.csv")
    assert status == 2 and err.startswith("dpgen: ") and len(err.splitlines()) == 1


def test_one_component(dpgen, release):
    one = dpgen("sample", release, "-n", "4", "--seed", "1", "--component", "2")
    assert one[0] == 0 and one[1] == dpgen("sample", release, "-n", "4", "--seed", "1", "--component", "2")[1]
    assert one[1] != dpgen("sample", release, "-n", "4", "--seed", "1", "--component", "1")[1]
    status, _, err = dpgen("sample", release, "--component", "3")
    assert status == 2 and "--component 3: expected a whole number from 0 to 2" in err


def test_formulas_are_escaped_unless_asked_for(dpgen, tmp_path):
    """A table of values that a spreadsheet would run is trained on, sampled to CSV, and read back."""
    (tmp_path / "t.schema.yaml").write_text('columns: {city: {type: category, values: ["=1+1", "@x", Rome]}}')
    rows = ["=1+1", "@x", "Rome"] * 30
    (tmp_path / "t.csv").write_text("city\n" + "\n".join(rows) + "\n")
    table = ["data=table", f"data.schema={tmp_path / 't.schema.yaml'}"]
    run = tmp_path / "run"
    words = [*table, f"data.path={tmp_path / 't.csv'}", "data.n=90", "privacy.epsilon=8", "privacy.delta=1e-3"]
    assert dpgen("train", *words, "model=vae", "model.steps=2", "model.hidden=4", "split.k=1", f"run_dir={run}")[0] == 0
    for name, more in (("escaped", ()), ("plain", ("--no-escape",))):
        path = tmp_path / f"{name}.csv"
        assert dpgen("sample", run, "-n", 60, "--seed", 3, "-o", path, *more)[0] == 0
        formulas = [line for line in path.read_text().splitlines() if line.startswith(("=", "@"))]
        assert bool(formulas) == (name == "plain")
        assert dpgen("sample", run, "-n", 5, *more)[0] == 0
    found = [read_table(tmp_path / f"{name}.csv", read_schema(tmp_path / "t.schema.yaml")).encoded.codes
             for name in ("escaped", "plain")]  # fmt: skip
    assert (found[0] == found[1]).all() and len(set(found[0].ravel().tolist())) == 3
    status, _, err = dpgen("evaluate", run, *table, f"data.path={tmp_path / 'escaped.csv'}", "--seconds", "1")
    assert status == 0, err


def test_the_number_of_records_has_an_end_that_is_named(dpgen, trained):
    status, _, err = dpgen("sample", trained, "-n", "9" * 20)
    assert status == 2 and "-n 99999999999999999999: expected a number of records up to 1,000,000,000" in err


def test_a_file_is_not_written_through_a_link(dpgen, trained, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".x.part.csv").symlink_to(victim)
    (tmp_path / "link.csv").symlink_to(tmp_path / "nowhere")
    assert dpgen("sample", trained, "-o", tmp_path / "x.csv")[0] == 0
    assert victim.read_text() == "mine" and (tmp_path / ".x.part.csv").is_symlink()
    status, _, err = dpgen("sample", trained, "-o", tmp_path / "link.csv")
    assert status == 2 and "exists already" in err
