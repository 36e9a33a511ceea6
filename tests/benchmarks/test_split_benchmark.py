"""The benchmark of the split runs, and prints its measurements."""

import sys

import split


def test_it_runs(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["split.py", "--quick"])
    split.main()
    shown = capsys.readouterr().out
    assert "split in 16 directions of 200, seconds" in shown and "scikit-learn" in shown
