"""The benchmarks of steps run, in their shortest form, and print the numbers that they are asked for."""

import re

import pytest
import steps

SLOW = pytest.param("linear probe", marks=pytest.mark.slow)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("only", ["VAE, lot 100", "critic", "RBM", "group term", SLOW, "memory"])
def test_steps(monkeypatch, capsys, only):
    monkeypatch.setattr("sys.argv", ["steps.py", "--quick", "--only", only])
    steps.main()
    out = capsys.readouterr().out
    assert re.search(rf"{only}.* \d\.\d+", out) and "nan" not in out
