"""`compute=ray`: the same release as by one process, and one line where there is no cluster or nothing for it to do."""

import pickle
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lightning_dpgen.cli import ray_launch
from lightning_dpgen.cli.ray_launch import End
from lightning_dpgen.specs.usage_error import UsageError

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def words(tmp_path):
    folder, random = tmp_path / "in", np.random.default_rng(0)
    folder.mkdir()
    (tmp_path / "in.schema.yaml").write_text(
        "columns: {age: {type: integer, low: 0, high: 99, bins: 5}, city: {type: category, values: [a, b, c]}}"
    )
    for i in range(3):
        age = random.integers(0, 100, 400)
        pd.DataFrame({"age": age, "city": np.where(age < 40, "a", random.choice(["b", "c"], 400))}).to_parquet(
            folder / f"{i}.parquet"
        )
    return [
        "train", "data=table", f"data.path={folder}", f"data.schema={tmp_path / 'in.schema.yaml'}", "data.n=1200",
        "model=measured", "rows=50", "debug.private_seed=3", f"run_dir={tmp_path / 'run'}", "compute=ray",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            ["data.memory_gib=1"],
            "compute=ray: trains networks, and makes passes over records in blocks, and these are read into memory",
        ),
        (["compute.cores=2"], "compute.cores=2: is for compute.address=local"),
        (["compute=dask"], "compute=dask"),
    ],
)
def test_a_cluster_that_would_have_nothing_to_do_is_refused(dpgen, words, tmp_path, more, said):
    status, _, err = dpgen(*words, *more)
    assert status == 2 and said in err and "Traceback" not in err and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["trainer.num_nodes=2"], "trainer.num_nodes=2: with compute=ray the cluster chooses machines"),
        (["trainer.devices=3", "compute.cores=2"], "trainer.devices=3: takes 3 cores, and compute.address=local has 2"),
        (["trainer.threads=2", "compute.cores=1"], "trainer.devices=1 of trainer.threads=2 each: takes 2 cores"),
        (["trainer.accelerator=tpu"], "trainer.accelerator=tpu: with compute=ray expected auto, cpu or gpu"),
    ],
)
def test_workers_that_a_cluster_cannot_have_are_refused(dpgen, tmp_path, more, said):
    local = ["compute=ray", "compute.address=local"]
    status, _, err = dpgen("train", "data=digits", "model.steps=2", *local, *more, f"run_dir={tmp_path / 'run'}")
    assert status == 2 and said in err and "Traceback" not in err and not (tmp_path / "run").exists()


def test_an_error_of_a_rank_is_a_value_and_says_no_more_to_ray():
    """Ray would write one that is raised, with all that its message tells, to a log of the cluster."""

    class Local(Exception):
        pass

    def fail(error):
        def work():
            raise error

        return ray_launch._end(work)

    end = fail(UsageError("rank 1: reads other records", 2))
    assert end.status == 2
    with pytest.raises(UsageError, match="rank 1: reads other records"):
        end.raise_error()
    with pytest.raises(RuntimeError, match="Local: of no module that another process knows"):
        fail(Local("of no module that another process knows")).raise_error()


@pytest.mark.parametrize(
    ("ends", "lost", "status", "said"),
    [
        ({1: End(75)}, [0], 75, "rank 0 of 2 was lost with its Ray worker; nothing was released"),
        ({0: End(75)}, [1], 75, "rank 1 of 2 was lost with its Ray worker; nothing was released"),
        ({}, [], 75, "compute=ray: the cluster could not start 2 workers, or was lost; nothing was released"),
        ({0: End(2, error=pickle.dumps(UsageError("data.n=3: no")))}, [0], 2, "data.n=3: no"),
        ({1: End(2, error=pickle.dumps(UsageError("rank 1: other records")))}, [1], 75, "rank 1: other records;"),
    ],
)
def test_the_command_says_which_rank_ended_the_run(ends, lost, status, said):
    error = SimpleNamespace(worker_failures=dict.fromkeys(lost)) if lost else None
    with pytest.raises(UsageError) as raised:
        ray_launch._certificate(ends, error, 2, "; nothing was released")
    assert raised.value.status == status and str(raised.value).startswith(said)


def test_without_ray_the_run_can_go_on_in_one_process(dpgen, words, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ray", None)
        status, _, err = dpgen(*words, "data.memory_gib=0")
    assert status == 2 and "compute=ray needs ray: pip install 'lightning_dpgen[ray]'" in err and "Traceback" not in err
    assert dpgen(*words[:-1], "data.memory_gib=0")[0] == 0


FOUND = [
    "data.discovery_share=0.2",
    "data.outside=clamp",
    "data.bins_share=0.1",
    "data.n=null",
    "data.n_share=0.05",
    "privacy.epsilon=4",
]


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], FOUND], ids=["declared", "found"])
def test_the_release_is_the_one_of_one_process(dpgen, words, tmp_path, more):
    ray = pytest.importorskip("ray")
    if more:
        schema = tmp_path / "in.schema.yaml"
        schema.write_text(schema.read_text().replace("low: 0, high: 99, bins: 5", "low: private, high: private"))
    words = [*words[:-2], *more, *words[-2:], "data.memory_gib=0"]
    try:
        assert dpgen(*words, "compute.address=local", "compute.cores=2")[0] == 0
    finally:
        ray.shutdown()
    assert dpgen(*(word for word in words if word != "compute=ray"), f"run_dir={tmp_path / 'one'}")[0] == 0
    found = [(folder / "release" / "model.safetensors").read_bytes() for folder in (tmp_path / "run", tmp_path / "one")]
    assert found[0] == found[1]
