"""The benchmark of a GPU runs, on a processor."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_it_runs():
    script = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
    command = [sys.executable, script, "--device", "cpu", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    rows = [line.split("|")[1:3] for line in done.stdout.splitlines() if line.startswith("| ResNet-18")]
    assert [name.strip() for _, name in rows] == ["plain", "private", "Opacus ghost", "Opacus hooks"], done.stderr[-2000:]
