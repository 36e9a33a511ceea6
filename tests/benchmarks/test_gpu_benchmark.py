"""The benchmark of a GPU runs, on a processor."""

import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


def _output(*options):
    command = [sys.executable, _SCRIPT, "--device", "cpu", "--quick", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line.startswith("|")]


@pytest.mark.slow
def test_it_runs():
    head, _, *rows = _output()
    assert {len(row) for row in rows} == {len(head)}
    found = {}
    for title, name, *cells in rows:
        found.setdefault(title, {})[name] = cells
    assert {title.split(",")[0] for title in found} == {"GPT-2", "ViT", "ResNet-18", "VAE 784-200-2"}
    for title, row in found.items():
        assert list(row)[-3:] == ["private", "Opacus ghost", "Opacus hooks"]
        for name in set(row) - {"Opacus ghost", "Opacus hooks"}:
            assert float(row[name][0]) > 0, (title, name)
        assert 0 < float(row["private"][-1].split(";")[0]) < 1
    # Opacus takes no tied weights, and its error stands in place of a number.
    assert found["GPT-2, lot 4, bf16"]["Opacus ghost"][0] == "NotImplementedError"


@pytest.mark.slow
def test_late_rows_and_precisions():
    _, _, *rows = _output("--only", "ViT", "--precision", "float32", "bf16", "--seconds", "0")
    assert [row[:2] for row in rows] == [["ViT, lot 4, float32", "late"], ["ViT, lot 4, bf16", "late"]]


@pytest.mark.slow
def test_a_profile(tmp_path):
    _output("--only", "VAE 784-200-2, lot 16", "--profile", str(tmp_path / "profile"))
    text = (tmp_path / "profile").read_text()
    assert "== VAE 784-200-2, lot 16, float32, private: " in text
    assert "aten::addmm" in text
