"""The league table is made cell by cell, can go on, and says what it holds; its files record its protocol."""

import csv
import math
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.league import league
from experiments.league import tasks as league_tasks
from experiments.league.classifiers import tables
from lightning_dpgen.cli.main import main as dpgen
from lightning_dpgen.data.tables.reading import read_table
from lightning_dpgen.data.tables.schema_file import read_schema

picture = league.picture


class Coins(league_tasks.Task):
    """A task that trains nothing: each result is a number."""

    title, columns, shown, epsilons, baseline, n = "Coins: of no use", ("one", "two"), "two", (0.5, 2.0), "tossed", 3

    def settings(self, run):
        return []

    def drawn(self, release, epsilon, run):
        return release

    def simple(self, epsilon, run):
        if epsilon == 2.0 and run == 1 and not (self.folder / "mended").exists():
            raise ValueError("a coin on its edge")
        return epsilon + run

    def kept_real(self, run):
        return 9.0

    def scores(self, made, epsilon, run):
        return [made, 2.0 * made]


@pytest.fixture
def coins(monkeypatch):
    monkeypatch.setattr(league, "TASKS", {"coins": Coins})
    made = []

    def trained(task, settings, epsilon, run):
        made.append((settings, epsilon, run))
        return 0.1 * run, {"seconds": 4.0 + run, "certified": epsilon}

    monkeypatch.setattr(league, "trained", trained)
    monkeypatch.setattr(league, "picture", lambda path, found: None)
    return made


def _table(folder):
    with (folder / "league.csv").open(encoding="utf-8") as file:
        return {(row["row"], row["epsilon"], row["score"]): row for row in csv.DictReader(file)}


def test_a_picture_has_the_means_and_spreads_of_the_table(coins, tmp_path, monkeypatch, figures, curves):
    monkeypatch.setattr(league, "picture", picture)
    league.main([str(tmp_path), "--runs", "2", "--rows", "real,tossed,measured"])
    assert (tmp_path / "league.png").is_file()
    (axes,) = figures[0].axes
    found, table = curves(axes), _table(tmp_path)
    assert set(found) == {"simple rival", "measured"} and axes.get_ylabel() == "two"
    for row, label in (("tossed", "simple rival"), ("measured", "measured")):
        x, y, ends = found[label]
        assert x == pytest.approx([0.5, 2.0], rel=0.1)
        of_table = [table[row, epsilon, "two"] for epsilon in ("0.5", "2")]
        assert y == pytest.approx([float(cell["mean"]) for cell in of_table], rel=1e-4)
        spreads = [float(cell["spread"] or 0.0) for cell in of_table]
        assert np.allclose(
            ends, [[mean - spread, mean + spread] for mean, spread in zip(y, spreads, strict=True)], atol=1e-4
        )
    levels = [line.get_ydata()[0] for line in axes.lines if line.get_label() == "real records (baskets: half)"]
    assert levels == [18.0]


def test_cells_are_made_once_and_those_that_failed_again(coins, tmp_path, capsys):
    given = [str(tmp_path), "--runs", "2"]
    assert league.main(given) == 1
    assert "a coin on its edge" in capsys.readouterr().err
    # Each model has two epsilons and two runs, each of the two twins one level and two runs.
    assert len(coins) == 4 * len(league.MODELS) + 2 * 2 and (["model=vae"], math.inf, 1) in coins
    found = _table(tmp_path)
    assert float(found["tossed", "0.5", "two"]["mean"]) == 2.0
    assert float(found["tossed", "0.5", "two"]["spread"]) == pytest.approx(math.sqrt(2.0), abs=1e-5)
    assert found["tossed", "2", "one"]["runs"] == "1" and found["tossed", "2", "one"]["spread"] == ""
    assert found["measured", "2", "one"]["seconds"] == "4.5" and found["real", "inf", "one"]["seconds"] == ""
    assert found["vae (not private)", "inf", "one"]["delta"] == "" and found["vae", "2", "one"]["delta"] == "1e-05"
    (tmp_path / "mended").touch()
    assert league.main(given) == 0
    said = capsys.readouterr().out
    assert len(coins) == 4 * len(league.MODELS) + 2 * 2 and said.count("\n") == 1 and "tossed, epsilon 2, run 1" in said
    # The table covers all that was made, even when fewer runs are asked for.
    assert league.main([*given[:-1], "1", "--rows", "tossed"]) == 0
    assert _table(tmp_path)["tossed", "2", "one"]["runs"] == "2"
    text = (tmp_path / "league.md").read_text(encoding="utf-8")
    assert "| tossed | 2 | 2.5000 (0.7071) | 5.0000 (1.4142) | 2 |" in text


def test_parts_are_made_alone_and_settings_are_part_of_a_cell(coins, tmp_path, monkeypatch):
    part = [str(tmp_path), "--tasks", "coins", "--rows", "measured,vae (not private)", "--epsilons", "2", "--runs", "1"]
    assert league.main(part) == 0
    assert [(epsilon, run) for _, epsilon, run in coins] == [(2.0, 0), (math.inf, 0)]
    changed = [("measured", ["model=measured", "model.components=7"]), *league.MODELS[1:]]
    monkeypatch.setattr(league, "MODELS", changed)
    assert league.main(part) == 0 and coins[2:] == [(changed[0][1], 2.0, 0)]


def test_what_is_stopped_is_written(coins, tmp_path, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(league, "trained", stopped)
    with pytest.raises(KeyboardInterrupt):
        league.main([str(tmp_path), "--runs", "1", "--epsilons", "0.5"])
    assert set(_table(tmp_path)) == {(row, epsilon, score) for row, epsilon in (("real", "inf"), ("tossed", "0.5"))
                                     for score in ("one", "two")}  # fmt: skip


@pytest.mark.parametrize(
    "wrong, said",
    [
        (["--tasks", "coins,dice"], "'dice': expected some of coins"),
        (["--rows", "gan"], "'gan': expected some of real, tossed, measured"),
        (["--epsilons", "0.5,3"], "--epsilons 3: expected some of 0.5, 2"),
        (["--runs", "0"], "argument --runs: '0': expected a whole number of 1 or more"),
    ],
)
def test_mistakes_get_one_line(coins, tmp_path, capsys, wrong, said):
    with pytest.raises(SystemExit):
        league.main([str(tmp_path), *wrong])
    assert said in capsys.readouterr().err


def test_rows_have_names_of_their_own_without_commas():
    for task in league.TASKS.values():
        names = [row.name for row in league.rows_of(task)]
        assert len(set(names)) == len(names) and not any("," in name for name in names)
        assert task.shown in task.columns and list(task.epsilons) == sorted(task.epsilons)


@pytest.fixture
def adult(made_up_adult, tmp_path):
    return league_tasks.AdultBalanced(tmp_path)


def test_the_file_of_balanced_adult_holds_the_records_of_the_protocol(adult):
    for run in (0, 3):
        table, schema = adult.files(run)
        train, _ = tables("adult-balanced", 1.0, run)
        bins = train.schema.layout.groups[0]
        encoded = read_table(table, read_schema(schema).with_bins(bins)).encoded
        assert np.array_equal(encoded.codes, train.encoded.codes)
        labels = encoded.codes[:, train.schema.layout.label]
        assert 2 * labels.sum() == len(labels) > 60


def test_a_cell_is_what_dpgen_train_gives(adult, monkeypatch):
    monkeypatch.setattr(league_tasks.AdultBalanced, "n", 100)
    asked = []

    def run(command, **_):
        assert command[0] == sys.executable and command[2] == "lightning_dpgen"
        asked.append(command[3:])
        return SimpleNamespace(returncode=dpgen(command[3:]), stdout="")

    monkeypatch.setattr(league.subprocess, "run", run)
    made, took = league.trained(adult, ["model=vae", "model.steps=3", "model.hidden=4", "split.k=1"], 3.0, 0)
    assert took["seconds"] > 0.0 and 2.9 < took["certified"] <= 3.0
    assert {"privacy.epsilon=3", "privacy.delta=1e-05", "seed=0"} <= set(asked[0])
    scores = adult.scores(made, 3.0, 0)
    assert len(made) == 100 and len(scores) == 2 and all(0.0 <= score <= 1.0 for score in scores)
    assert not [path for path in adult.folder.iterdir() if path.suffix == ".run"]
    # Records that all have one label are scored, too.
    made.codes[:, tables("adult-balanced", 3.0, 0)[1].schema.layout.label] = 1
    assert adult.scores(made, 3.0, 0) == [0.5, 0.5]
    with pytest.raises(RuntimeError, match="exit status 2"):
        league.trained(adult, ["model.components=many"], 3.0, 0)


@pytest.mark.skipif(not os.environ.get("DPGEN_DATA"), reason="needs the files under DPGEN_DATA")
def test_all_visits_to_the_web_shop_are_scored(tmp_path):
    task = league_tasks.WebView(tmp_path)
    assert task.real_baskets.baskets.shape == (task.n, 497)
    assert f"data.n={task.n}" in task.settings(0) and (tmp_path / "BMS1.items.txt").is_file()
    scores = task.scores(task.kept_real(0), math.inf, 0)
    assert len(scores) == 3 and 0.0 < max(scores) < 0.1
