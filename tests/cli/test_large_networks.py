"""A network learns the same from a table in blocks as in memory, and a damaged block costs no step twice."""

import json

import numpy as np
import pandas as pd
import pytest
from marks import only

from lightning_dpgen.passes.kept_records import KeptRecords
from lightning_dpgen.runs import select as selection

pytestmark = pytest.mark.filterwarnings("ignore")

SCHEMA = (
    "{label: city, columns: {age: {type: integer, low: 0, high: 99, bins: 5}, sex: {type: category, values: [F, M]}, "
    "pay: {type: number, low: 0, high: 9, encoding: scaled}, city: {type: category, values: [a, b, c]}}}"
)
# The person of a row is in every file.
PERSONS = ["data.person=who", "data.max_rows=2"]
FAMILIES = {
    "vae": [
        "model=vae",
        "model.latent=2",
        "split.k=2",
        "split.iterations=1",
        "split.features=16",
        "trainer.micro_batch=20",
    ],
    "rbm": ["model=rbm", "split.k=1", "model.label_share=0.3"],
    "wgan": ["model=wgan", "split.k=1"],
}


@pytest.fixture
def words(tmp_path):
    """Return the settings of a run on two files of 200 rows."""
    folder, random = tmp_path / "in", np.random.default_rng(0)
    folder.mkdir()
    (tmp_path / "in.schema.yaml").write_text(SCHEMA)
    for i in range(2):
        columns = {"age": random.integers(0, 100, 200), "sex": random.choice(["F", "M"], 200), "pay": random.random(200)}
        columns |= {"city": random.choice(list("abc"), 200), "who": random.integers(0, 150, 200)}
        pd.DataFrame(columns).to_parquet(folder / f"{i}.parquet", row_group_size=120)
    return [
        "train", "data=table", f"data.path={folder}", f"data.schema={tmp_path / 'in.schema.yaml'}", "data.n=300", *PERSONS,
        "model.hidden=4", "model.steps=6", "rows=20", "debug.private_seed=3", "data.memory_gib=0",
        "trainer.previews_every=0",
    ]  # fmt: skip


def _weights(run):
    return (run / "release" / "model.safetensors").read_bytes()


def _accesses(run):
    return [line for line in (run / "private" / "ledger.jsonl").read_text().splitlines() if '"id"' in line]


@pytest.mark.parametrize("family", only(list(FAMILIES), "vae"))
def test_the_release_by_a_seed_is_the_one_of_records_in_memory(dpgen, words, tmp_path, monkeypatch, family):
    lots, take = [], KeptRecords.take
    monkeypatch.setattr(KeptRecords, "take", lambda kept, positions: lots.append(len(positions)) or take(kept, positions))
    for name, gib in (("blocks", 0), ("memory", 1)):
        status, _, err = dpgen(*words, *FAMILIES[family], f"data.memory_gib={gib}", f"run_dir={tmp_path / name}")
        assert status == 0, err
        assert sum(map(bool, lots)) >= 6
    blocks, memory = tmp_path / "blocks", tmp_path / "memory"
    assert _weights(blocks) == _weights(memory) and not (blocks / "private" / "blocks").exists()
    declared = [json.loads((run / "release" / "privacy.json").read_text())["declared"] for run in (blocks, memory)]
    assert declared[0] == declared[1] and "memory_gib" not in json.dumps(declared)


@pytest.fixture
def damaged_in(monkeypatch):
    """Return a function that lets a block be damaged when so many lots have been read."""

    def after(lots):
        take, left = KeptRecords.take, [lots]

        def damaging(kept, positions):
            left[0] -= len(positions) > 0
            if left[0] == 0 and len(positions):
                path = kept.parts[-1].path
                content = np.frombuffer(path.read_bytes(), np.uint8).copy()
                content[200:] ^= 1
                path.write_bytes(content)
            return take(kept, positions)

        monkeypatch.setattr(KeptRecords, "take", damaging)

    return after


def _line(err):
    lines = [line for line in err.splitlines() if line.startswith("dpgen:") and "warning" not in line]
    assert len(lines) == 1 and "Traceback" not in err, err
    return lines[0]


@pytest.mark.parametrize("family", [["model=vae", "model.latent=2"], ["model=rbm"]], ids=["vae", "rbm"])
def test_a_block_that_is_damaged_in_a_training_costs_no_step_twice(dpgen, words, tmp_path, damaged_in, family):
    run = tmp_path / "run"
    words = [*words, *family, "split.k=1", "trainer.checkpoint_every=1000", f"run_dir={run}"]
    # The first read is the split's.
    damaged_in(5)
    status, _, err = dpgen(*words)
    assert status == 2 and "was damaged or removed while the run read it; the same command encodes it anew" in _line(err)
    before = len(_accesses(run))
    assert 1 < before < 7 and not (run / "release").exists()
    status, out, err = dpgen(*words)
    assert status == 0 and f"after {before - 1} step" in out, err
    assert len(_accesses(run)) == 7 and not (run / "private" / "blocks").exists()


def by_size(release):
    return sum(tensor.numel() for tensor in release._mixture.network.state_dict().values())


def _selecting(words, run):
    chosen = ["model=rbm", "split.k=1", "model.lr=0.01,0.02", "privacy.selection=logarithmic", "privacy.selection_mean=3"]
    return [*words, *chosen, f"privacy.selection_score={__name__}.by_size", f"run_dir={run}"]


@pytest.mark.slow
def test_trials_of_a_selection_read_one_set_of_blocks(dpgen, words, tmp_path, monkeypatch, damaged_in):
    def three(access, name):
        access.consume(name, "logarithmic")
        return 3

    monkeypatch.setattr(selection, "number_of_trials", three)
    memory, run = tmp_path / "memory", tmp_path / "run"
    assert dpgen(*_selecting(words, memory), "data.memory_gib=1")[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(KeptRecords, "take", KeptRecords.take)
        # In the second trial; the machine is at fault, and not the trial.
        damaged_in(9)
        status, _, err = dpgen(*_selecting(words, run))
        assert status == 2 and "was damaged or removed" in _line(err) and (run / "private" / "trials" / "1").is_dir()
    status, _, err = dpgen(*_selecting(words, run))
    assert status == 0, err
    chosen = [json.loads((folder / "release" / "privacy.json").read_text())["selection"] for folder in (memory, run)]
    assert chosen[0]["space"] == chosen[1]["space"] and chosen[1]["chosen"]
    kept = ["blocks.lock", "ledger.jsonl", "ledger.jsonl.heads", "ledger.jsonl.lock", "warnings.json"]
    assert [name for name in sorted(path.name for path in (run / "private").iterdir()) if name not in kept] == []
    times = {path.stat().st_mtime_ns for path in ((run / "private"), *(run / "private").iterdir())}
    assert len(times) == 1
