"""The benchmark of memory runs."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_it_runs():
    script = Path(__file__).parents[2] / "benchmarks" / "lot_memory.py"
    done = subprocess.run([sys.executable, script, "--quick"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "lot 256 in parts of 64: MB of a fit" in done.stdout, done.stderr
