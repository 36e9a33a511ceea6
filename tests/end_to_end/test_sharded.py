"""Lightning's ModelParallelStrategy with `fully_shard`: a module is fitted, saved, gone on with, and released whole."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import safetensors.torch
import torch
from kill import _listed

from lightning_dpgen.verification.verify import verify

SCRIPT = Path(__file__).parent / "sharded.py"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
pytestmark = pytest.mark.slow


def _fit(folder, *part):
    command = [sys.executable, str(SCRIPT), str(folder), *part]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{(part or ('all',))[0]}{rank}.json").read_text()) for rank in range(2)]


def _released(folder, ranks):
    """Check the release: one line a step, the certificate of rank 0 in both, and weights made of all shards."""
    assert _listed(folder / "ledger.jsonl") == Counter(training=12) and verify(folder / "release").good
    certificate = json.loads((folder / "release/privacy.json").read_text())
    assert ranks[0]["shown"] == ranks[1]["shown"] and ranks[0]["shown"].keys() == {"public/loss_error"}
    assert [rank["epsilon"] for rank in ranks] == [certificate["epsilon"]] * 2 and certificate["epsilon"] <= 8.0
    assert json.loads((folder / "release/model.json").read_text())["architecture"].endswith(".Plain")
    whole = safetensors.torch.load_file(folder / "release/model.safetensors")
    assert list(whole) and {name: tuple(x.shape) for name, x in whole.items()} == {
        "net.0.weight": (9, 8), "net.0.bias": (9,), "net.1.weight": (9,), "net.1.bias": (9,), "net.2.weight": (1, 9),
        "net.2.bias": (1,),
    }  # fmt: skip
    shards = zip(*(rank["end"]["shards"] for rank in ranks), strict=True)
    by_name = [f"net.{layer}.{name}" for layer in range(3) for name in ("weight", "bias")]
    for name, parts in zip(by_name, shards, strict=True):
        assert torch.equal(whole[name].flatten(), torch.tensor([x for part in parts for x in part])), name


def test_a_fit_at_once(tmp_path):
    ranks = _fit(tmp_path)
    _released(tmp_path, ranks)
    assert ranks[0]["end"]["digest"] == ranks[1]["end"]["digest"] != ranks[0]["start"]["digest"]
    assert [sum(map(len, rank["end"]["shards"])) for rank in ranks] == [65, 44], "each rank has its shards alone"


def test_a_fit_that_goes_on_from_a_checkpoint(tmp_path):
    before = _fit(tmp_path, "begin")
    assert _listed(tmp_path / "ledger.jsonl") == Counter(training=6)
    after = _fit(tmp_path, "go-on")
    _released(tmp_path, after)
    # The shards, Adam's means and number of steps, and the bounds that DPNorm goes on from.
    for first, second in zip(before, after, strict=True):
        assert first["end"] == second["start"] != second["end"] and first["end"]["bounds"]
