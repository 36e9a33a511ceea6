"""Each program of `examples/` runs as it stands, and prints the epsilon that it has spent."""

import re
import runpy
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.book

# Packages of extras, without which an example is left out.
NEEDS = {"flow": "zuko"}
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path, tmp_path, monkeypatch, capsys):
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem])
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    runpy.run_path(str(path), run_name="__main__")
    found = re.search(r"^epsilon ([\d.]+)$", capsys.readouterr().out, re.MULTILINE)
    assert found and 0 < float(found[1]) <= 4.0
    assert not list(tmp_path.iterdir()), "an example leaves nothing where it is run"


def test_examples_are_short():
    assert {path.stem for path in EXAMPLES} >= {"char_lstm", "ddpm", "flow", "gan", "gpt2", "linear_probe", "lora"}
    for path in EXAMPLES:
        lines = path.read_text(encoding="utf-8").splitlines()
        code = [line for line in lines if line.strip() and not line.startswith(('"""', "import", "from"))]
        assert len(code) < 40, path.name
