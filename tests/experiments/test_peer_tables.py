"""Peers get the rows that `tables` gives, and their rows are scored as real ones are; environments follow requirements."""

import csv
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from experiments.league import environments, peer_tables

# Peers that give back what they get: the perfect ones.
PROGRAMS = {
    "tables_dpmm": "import shutil, sys; shutil.copy(sys.argv[1] + '/table.csv', sys.argv[1] + '/made.csv')",
    "tables_diffprivlib": "import shutil, sys; shutil.copy(sys.argv[1] + '/test.csv', sys.argv[1] + '/made.csv')",
    "tables_smartnoise": "raise SystemExit('no mechanism today')",
    "quality_sdmetrics": "print(0.5)",
}


@pytest.fixture
def peers(made_up_adult, tmp_path, monkeypatch):
    for name, text in PROGRAMS.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(peer_tables, "installed", lambda name, folder: sys.executable)
    monkeypatch.setattr(peer_tables, "program", lambda name: tmp_path / f"{name}.py")


def test_rows_that_are_the_real_ones_have_the_scores_of_real_ones(peers, tmp_path, capsys):
    rows = ["real", "dpmm MST", "dpmm MST with its own bins", "diffprivlib naive Bayes", "smartnoise MST"]
    part = [str(tmp_path), "--data", "adult-balanced", "--epsilons", "3", "--runs", "1", "--rows", *rows]
    assert peer_tables.main(part) == 1
    assert "no mechanism today" in capsys.readouterr().err
    with (tmp_path / "peer_tables.csv").open(encoding="utf-8") as file:
        found = {(row["row"], row["score"]): row for row in csv.DictReader(file)}
    assert {name for name, _ in found} == set(rows) - {"smartnoise MST"}
    for column in (*peer_tables.IN_BINS, *peer_tables.RAW, peer_tables.QUALITY):
        for name in ("dpmm MST", "dpmm MST with its own bins"):
            # Rows in bins have other values of the same bins.
            if "raw" not in column or "own bins" in name:
                assert found[name, column]["mean"] == found["real", column]["mean"]
    naive = found["diffprivlib naive Bayes", peer_tables.OWN]
    assert float(naive["mean"]) == 1.0 and naive["runs"] == "1" and float(naive["seconds"]) >= 0.0
    # Cells that are there are not made again.
    shutil.rmtree(tmp_path / "made")
    assert peer_tables.main([*part[:-5], *rows[:4]]) == 0 and not (tmp_path / "made").exists()
    assert "| dpmm MST | 3 | " in (tmp_path / "peer_tables.md").read_text(encoding="utf-8")


def test_pairs_of_a_perfect_peer_are_at_no_distance_and_a_peer_is_stopped_at_its_limit(peers, tmp_path, capsys):
    (tmp_path / "tables_smartnoise.py").write_text("while True: pass", encoding="utf-8")
    part = [str(tmp_path), "--data", "adult", "--epsilons", "3", "--runs", "1", "--rows"]
    assert peer_tables.main([*part, "real", "dpmm MST"]) == 0

    def found():
        with (tmp_path / "peer_tables.csv").open(encoding="utf-8") as file:
            return {(row["row"], row["score"]): float(row["mean"]) for row in csv.DictReader(file)}

    assert [found()["dpmm MST", column] for column in peer_tables.DISTANCES] == [0.0, 0.0, 0.0]
    # Other rows than those learned from are at a distance.
    assert found()["real", "worst"] > 0.0 and 0.0 < found()["real", peer_tables.AUC] < 1.0
    assert peer_tables.main([*part, "smartnoise MST", "--limit", "1"]) == 0
    page = (tmp_path / "peer_tables.md").read_text(encoding="utf-8")
    assert "| smartnoise MST | 3 |  |  |  |  |  | 1 | not finished in 1 |" in page
    # A cell that was stopped is made again where it may take longer, and one that is there where it is asked for.
    (tmp_path / "tables_smartnoise.py").write_text(PROGRAMS["tables_dpmm"], encoding="utf-8")
    (tmp_path / "tables_dpmm.py").write_text("raise SystemExit('not today')", encoding="utf-8")
    assert peer_tables.main([*part, "smartnoise MST", "--limit", "9"]) == 0
    assert found()["smartnoise MST", "worst"] == 0.0
    assert peer_tables.main([*part, "dpmm MST"]) == 0 and peer_tables.main([*part, "dpmm MST", "--again"]) == 1
    assert "not today" in capsys.readouterr().err and found()["dpmm MST", "worst"] == 0.0


def test_names_of_rows_are_different_and_each_peer_has_a_program_and_requirements():
    names = [row.name for row in peer_tables.ROWS]
    assert len(set(names)) == len(names) and not any("," in name for name in names)
    for peer in {row.peer for row in peer_tables.ROWS if row.peer}:
        assert environments.program(f"tables_{peer}").is_file()
        assert environments.program(peer).with_suffix(".txt").read_text(encoding="utf-8")


def test_an_environment_is_made_once_and_again_for_other_requirements(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(environments, "_PEERS", tmp_path)
    monkeypatch.setattr(environments.venv, "create", lambda place, **_: (made.append(place), place.mkdir(exist_ok=True)))
    answer = SimpleNamespace(returncode=0, stdout="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    (tmp_path / "peer.txt").write_text("peer==1\n", encoding="utf-8")
    (tmp_path / "environments").mkdir()
    for _ in range(2):
        environments.installed("peer", tmp_path / "environments")
    assert len(made) == 1
    (tmp_path / "peer.txt").write_text("peer==2\n", encoding="utf-8")
    answer.returncode, answer.stdout = 1, "No matching distribution found for peer==2"
    with pytest.raises(RuntimeError, match=r"peer\.txt: No matching distribution"):
        environments.installed("peer", tmp_path / "environments")
    assert len(made) == 2
