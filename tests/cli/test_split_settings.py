"""Settings of the split on the command line: kernels, starts, and warnings of more clusters than the budget carries."""

import json

import numpy as np
import pytest

from .conftest import QUICK

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    "asked",
    [
        ["split.kernel=identity", "split.start=random"],
        pytest.param(["split.kernel=laplacian", "split.paired=false", "split.memory_gib=0"], marks=pytest.mark.slow),
    ],
    ids=["identity", "laplacian"],
)
def test_other_kernels_and_starts_train_and_verify(dpgen, tmp_path, asked):
    assert dpgen("train", *QUICK, *asked, f"run_dir={tmp_path / 'run'}")[0] == 0
    assert dpgen("verify", tmp_path / "run/release")[0] == 0


def test_centres_may_start_at_public_records(dpgen, tmp_path):
    path = tmp_path / "public.npy"
    np.save(path, np.random.default_rng(0).random((3, 74)))
    assert dpgen("train", *QUICK, f"split.start={path}", f"run_dir={tmp_path / 'run'}")[0] == 0
    certificate = json.loads((tmp_path / "run/release/privacy.json").read_text())
    assert certificate["declared"]["split"]["start"] == "public"
    assert "feature moments" not in [stage["name"] for stage in certificate["stages"]]


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (np.zeros((3, 74)), "has shape (3, 74)"),
        (np.full((10, 74), 2.0), "above 1"),
        (np.full((10, 74), np.nan), "NaN"),
        (np.full((10, 74), "a"), "does not hold numbers"),
        (None, "not a numpy array"),
    ],
    ids=["shape", "range", "nan", "text", "no array"],
)
def test_public_centres_that_do_not_fit_cost_nothing(dpgen, tmp_path, held, words):
    path = tmp_path / "public.npy"
    path.write_text("nothing") if held is None else np.save(path, held)
    status, _, err = dpgen("train", "data=digits", f"split.start={path}", f"run_dir={tmp_path / 'run'}")
    assert status == 2 and words in err and len(err.splitlines()) == 1 and not (tmp_path / "run").exists()


def test_more_clusters_than_the_budget_carries_are_warned_of(dpgen):
    status, _, err = dpgen("budget", "data=digits", "privacy.epsilon=0.5", "split.k=40", "model.steps=5")
    assert status == 0 and "split.k=40: the noise of a centre is about" in err
