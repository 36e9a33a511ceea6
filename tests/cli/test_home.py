"""A path that a person gives may begin with ~, everywhere with the same meaning; other software never reads it again."""

import os
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lightning_dpgen import fit, load_release, verify

WORDS = ["data=table", "data.n=400", "privacy.epsilon=8", "model.steps=6", "model.hidden=8", "split.k=1", "rows=20"]
SCHEMA = {"columns": {"a": {"type": "category", "values": ["x", "y"]}}}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Return a home that is not the working directory, with a table and its schema in it."""
    (home := tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(home))
    frame = pd.DataFrame({"a": np.random.default_rng(0).choice(["x", "y"], 400)})
    frame.to_parquet(home / "v.parquet")
    (home / "v.yaml").write_text("columns: {a: {type: category, values: [x, y]}}")
    return home


def test_a_run_below_home(home, dpgen):
    paths = ['data.path="~/v.parquet"', 'data.schema="~/v.yaml"', 'run_dir="~/a run"', 'privacy.study_folder="~/studies"']
    paths += ["privacy.study=s", "privacy.study_epsilon=9", "privacy.study_delta=1e-4"]
    status, out, err = dpgen("train", *WORDS, *paths)
    assert status == 0, err
    told = [shlex.split(line) for line in out.splitlines() if line.startswith("  dpgen ")]
    assert [words[2] for words in told] == [str(home / "a run" / "release")] * 2
    assert dpgen("verify", "~/a run")[0] == 0 and dpgen("sample", "~/a run", "-o", "~/more.parquet")[0] == 0
    assert dpgen("evaluate", "~/a run", "data=table", "data.path='~/v.parquet'", "--rows", "9", "--seconds", "0.01")[0] == 0
    assert dpgen("schema", "~/v.parquet", "-o", "~/draft.yaml")[0] == 0
    assert verify("~/a run/release").good and len(load_release("~/a run/release").sample(3)) == 3
    assert {p.name for p in home.iterdir()} == {"v.parquet", "v.yaml", "a run", "studies", "more.parquet", "draft.yaml"}
    assert not list(Path.cwd().iterdir())


def test_a_fit_below_home(home):
    fitted = fit(
        "~/v.parquet", "~/v.yaml", epsilon=8.0, n=400, run_dir="~/x", progress=False,
        overrides=["model.steps=6", "model.hidden=8", "split.k=1", "rows=20"],
    )  # fmt: skip
    assert fitted.folder == home / "x" and not list(Path.cwd().iterdir())


def test_a_folder_named_like_a_home_is_a_folder(home, dpgen):
    """No library reads it again."""
    os.mkdir("~")
    status, _, err = dpgen(
        "train", *WORDS, f'data.path="{home}/v.parquet"', f'data.schema="{home}/v.yaml"', "run_dir='./~/x'"
    )
    assert status == 0, err
    assert {p.name for p in home.iterdir()} == {"v.parquet", "v.yaml"} and (Path("~") / "x" / "release").is_dir()


def test_a_folder_named_like_a_variable_is_a_folder(home, dpgen):
    """Logs of a private run stay in its own folder."""
    paths = [f"data.path={home}/v.parquet", f"data.schema={home}/v.yaml", 'run_dir="it is $HOME"']
    status, _, err = dpgen("train", *WORDS, *paths)
    assert status == 0, err
    assert [p.name for p in Path.cwd().iterdir()] == ["it is $HOME"]
    assert list((Path("it is $HOME") / "private" / "tensorboard").iterdir())
