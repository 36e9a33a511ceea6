"""Every family of models trains, releases and verifies; a setting that a family lacks is refused in one clear line."""

import json

import numpy as np
import pytest
from marks import only

from lightning_dpgen import load_release

# Quick settings for any family, with one plan for all, since calibration takes most of the time.
SHORT = [
    "model.steps=6", "model.rate=0.05", "split.iterations=2", "split.features=16", "split.k=3", "rows=30",
    "trainer.accelerator=cpu",
]  # fmt: skip
FAMILIES = {
    "rbm": ["model=rbm", "model.hidden=8", "model.chains=4"],
    "wgan": ["model=wgan", "model.hidden=8"],
    "two layers, with a trunk": ["model.hidden=8", "model.layers=2", "model.trunk=True"],
    "convolutional vae": ["model.network=conv"],
    "convolutional wgan": ["model=wgan", "model.network=conv", "clipping=dpnorm"],
    "convolutional critics": ["model=wgan", "model.hidden=8", "model.critic=conv"],
    "groups": ["model.hidden=8", "model.divergence=kl", "model.groups=4"],
    "embedding": ["model.hidden=8", "model.divergence=mmd", "model.features=8"],
    "convolutional groups": ["model.network=conv", "model.divergence=tc", "model.bias=zero"],
}


@pytest.mark.parametrize("settings", only(FAMILIES, "rbm", "wgan", "convolutional vae"))
def test_trains_releases_and_verifies(dpgen, tmp_path, settings):
    run = tmp_path / "run"
    assert dpgen("train", *SHORT, *settings, f"run_dir={run}")[0] == 0
    assert dpgen("verify", run / "release")[0] == 0
    release = load_release(run / "release")
    pictures = release.sample(5, seed=1)
    assert pictures.shape == (5, 8, 8) and (pictures == release.sample(5, seed=1)).all()
    assert 0 <= pictures.min() <= pictures.max() <= 16 and np.ptp(pictures) > 0
    declared = json.loads((run / "release" / "privacy.json").read_text())["declared"]["model"]
    asked = dict(s.removeprefix("model.").split("=") for s in settings if s.startswith("model."))
    assert {name: str(declared[name]) for name in asked} == asked


@pytest.mark.parametrize("settings", only({name: FAMILIES[name] for name in ("rbm", "wgan", "groups")}, "groups"))
def test_without_privacy_too(dpgen, tmp_path, settings):
    assert dpgen("train", *SHORT, *settings, "privacy=off", f"run_dir={tmp_path / 'run'}")[0] == 0
    assert dpgen("verify", tmp_path / "run" / "release")[0] == 2


def test_a_wgan_clips_by_a_bound_that_decays_unless_told_otherwise(dpgen):
    for more, expected in (([], "gradient"), (["clipping=dpnorm"], "norms")):
        status, out, _ = dpgen("budget", *SHORT, "model=wgan", *more)
        assert status == 0 and expected in out
        assert ("norms" in out) == bool(more)


BAD = {
    "no such model": (["model=gan"], "model"),
    "a setting of another family": (["model=rbm", "model.latent=3"], "no setting 'model.latent'"),
    "a network of another family": (["model=rbm", "model.network=conv"], "no setting 'model.network'"),
    "layers of convolutions": (["model.network=conv", "model.layers=2"], "model.network=conv with model.layers=2"),
    "a width of convolutions": (["model.network=conv", "model.hidden=9"], "model.hidden=9 with model.network=conv"),
    "no layers": (["model.layers=0"], "model.layers=0"),
    "no such network": (["model.network=deep"], "model.network=deep: expected one of dense, waves, conv"),
    "pictures of another size": (
        ["data=images", "data.path=x.npz", "data.n=5000", "data.height=6", "data.width=6", "model.network=conv"],
        "multiples of 4",
    ),
    "no such divergence": (["model.divergence=js"], "model.divergence=js: expected"),
    "a kernel of no divergence": (["model.kernel_width=2"], "model.kernel_width=2"),
    "groups of no divergence": (["model.groups=3"], "model.groups=3"),
    "one dimension": (["model.divergence=tc", "model.latent=1"], "model.divergence=tc with model.latent=1"),
    "more groups than the default's lots": (
        ["model.divergence=kl", "model.rate=0.005"],
        "model.groups=16, the default: expected 7 or fewer",
    ),
    "no lists of centres": (
        ["model.prior=mixture", "model.prior_centres=[1,0]"],
        "model.prior_centres[0]=1: expected a list, as in [a,b]",
    ),
    "no group": (["model.divergence=kl", "model.groups=0"], "model.groups=0"),
    "a group bound of nothing": (["model.divergence=kl", "model.group_c=0"], "model.group_c=0"),
    "nothing left for the gradient": (
        ["model.divergence=mmd", "model.divergence_share=0.95"],
        "divergence_share=0.95",
    ),
    "no chain": (["model=rbm", "model.chains=0"], "model.chains=0"),
    "no penalty": (["model=wgan", "model.penalty=0"], "model.penalty=0"),
    "no step of the critics": (["model=wgan", "model.critic_steps=0"], "model.critic_steps=0"),
}


@pytest.mark.parametrize("settings, message", BAD.values(), ids=BAD.keys())
def test_a_bad_setting_is_one_line(dpgen, settings, message):
    status, _, err = dpgen("budget", *settings)
    assert status == 2 and message in err and len(err.splitlines()) == 1, err
