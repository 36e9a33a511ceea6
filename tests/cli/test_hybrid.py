"""A network that learns from a measured model besides: one plan, one release, and going on after either."""

import json

import numpy as np
import pytest
import torch

from lightning_dpgen import load_release
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.gaussian_cost import gaussian_mu

pytestmark = pytest.mark.filterwarnings("ignore")

HYBRID = ["model.measured_share=0.5", "model.measured_steps=40", "model.steps=4", "rows=60"]


def certificate(run):
    return json.loads((run / "release" / "privacy.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("model", ["vae", "rbm", pytest.param("wgan", marks=pytest.mark.slow)])
def test_each_network_is_measured_for_and_trained(dpgen, tmp_path, model):
    run = tmp_path / "run"
    status, _, err = dpgen("train", f"model={model}", *HYBRID, f"run_dir={run}")
    assert status == 0, err
    own = certificate(run)
    assert own["epsilon"] <= 4.0 and dpgen("verify", run)[0] == 0
    assert own["declared"]["model"]["measured_share"] == 0.5 and own["declared"]["model"]["waves"] >= 1
    # The measurements have their share of the whole mu^2, whatever else there is; multipliers are scaled by one factor.
    inverse = {
        stage["name"]: stage["event"]["noise_multiplier"] ** -2
        for stage in own["stages"]
        if stage["name"] in ("means", "squares")
    }
    assert set(inverse) == {"means", "squares"}
    assert sum(inverse.values()) == pytest.approx(0.5 * gaussian_mu(4.0, own["delta"]) ** 2, rel=0.15)


def test_it_begins_at_what_the_measured_model_makes(dpgen, tmp_path):
    """With hardly any private step, labels have their own pictures all the same; without measurements they have not."""
    means = {}
    for name, more in {
        "measured": ["model=measured"],
        "hybrid": ["model.measured_share=0.9", "model.measured_steps=300", "model.steps=1"],
        "alone": ["model.steps=1"],
    }.items():
        run = tmp_path / name
        assert dpgen("train", "privacy=off", "split.k=1", "rows=10", *more, f"run_dir={run}")[0] == 0
        drawn = load_release(run / "release").encoded(3000, 0)
        own = drawn.units.astype(float)
        means[name] = np.stack([own[drawn.codes[:, 0] == label].mean(axis=0) for label in range(10)])
    spread = {name: own - own.mean(axis=0) for name, own in means.items()}
    alike = {name: np.corrcoef(own.ravel(), spread["measured"].ravel())[0, 1] for name, own in spread.items()}
    assert alike["hybrid"] > 0.9 and alike["alone"] < 0.5


def test_a_run_goes_on_after_what_was_measured(dpgen, tmp_path, interrupted_when_kept):
    run = tmp_path / "run"
    with interrupted_when_kept(1):
        assert dpgen("train", *HYBRID, f"run_dir={run}")[0] == 130
    kept = durable.load(run / "private" / "measured.pt", "made")["made"]
    assert set(kept) == {"means"}
    status, out, err = dpgen("train", *HYBRID, f"run_dir={run}")
    assert status == 0 and "going on" in out, err
    again = durable.load(run / "private" / "measured.pt", "made")["made"]
    assert torch.equal(again["means"][0]["means"][0], kept["means"][0]["means"][0]) and "squares" in again
    assert certificate(run)["epsilon"] <= 4.0 and dpgen("verify", run)[0] == 0


BAD = {
    "no share": (["model.measured_share=1.0"], "model.measured_share=1: expected the share of the budget"),
    "steps without a share": (["model.measured_steps=5"], "without model.measured_share has no such setting"),
    "a weight": (["model.measured_share=0.5", "model.measured_weight=-1"], "model.measured_weight=-1: expected"),
    "of measured": (["model=measured", "model.measured_share=0.5"], "there is no setting 'model.measured_share'"),
    "clusters of a table": (["data=mushroom", "model.measured_share=0.5", "split.k=3"], "does not split tables"),
}


@pytest.mark.parametrize(("settings", "says"), BAD.values(), ids=BAD.keys())
def test_what_makes_no_sense_is_one_line(dpgen, settings, says):
    status, _, err = dpgen("budget", *settings)
    assert status == 2 and says in err and "Traceback" not in err
