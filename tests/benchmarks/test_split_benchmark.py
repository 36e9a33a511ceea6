"""The benchmark of the split runs, and says what it measured."""

import sys

import split
import torch


def test_it_runs(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["split.py", "--quick"])
    try:
        split.main()
    finally:
        torch.set_flush_denormal(False)
    shown = capsys.readouterr().out
    assert "split in 16 directions of 200, seconds" in shown and "scikit-learn" in shown
