"""`compute=ray`: the same release as by one process, and one line where there is no cluster or nothing for it to do."""

import sys

import numpy as np
import pandas as pd
import pytest

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
        (["data.memory_gib=1"], "compute=ray: makes passes over records in blocks, and these are read into memory"),
        (["compute.cores=2"], "compute.cores=2: is for compute.address=local"),
        (["compute=dask"], "compute=dask"),
    ],
)
def test_a_cluster_that_would_have_nothing_to_do_is_refused(dpgen, words, tmp_path, more, said):
    status, _, err = dpgen(*words, *more)
    assert status == 2 and said in err and "Traceback" not in err and not (tmp_path / "run").exists()


def test_without_ray_the_run_can_go_on_in_one_process(dpgen, words, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ray", None)
        status, _, err = dpgen(*words, "data.memory_gib=0")
    assert status == 2 and "compute=ray needs ray: pip install 'lightning_dpgen[ray]'" in err and "Traceback" not in err
    assert dpgen(*words[:-1], "data.memory_gib=0")[0] == 0


@pytest.mark.slow
def test_the_release_is_the_one_of_one_process(dpgen, words, tmp_path):
    ray = pytest.importorskip("ray")
    try:
        assert dpgen(*words, "compute.address=local", "compute.cores=2", "data.memory_gib=0")[0] == 0
    finally:
        ray.shutdown()
    assert dpgen(*words[:-2], "data.memory_gib=0", f"run_dir={tmp_path / 'one'}")[0] == 0
    found = [(folder / "release" / "model.safetensors").read_bytes() for folder in (tmp_path / "run", tmp_path / "one")]
    assert found[0] == found[1]
