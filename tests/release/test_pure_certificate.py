"""A release at delta = 0: epsilon is the sum of the inverse multipliers, and nothing is said at other deltas."""

import json
import math

import pytest
import torch

from lightning_dpgen.privacy import mechanisms
from lightning_dpgen.privacy.access import LAPLACE, PURE
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
from lightning_dpgen.release.certificate import digest, make_certificate
from lightning_dpgen.verification.verify import verify


@pytest.fixture
def release(tmp_path):
    specs = [
        StageSpec("counts", {"n": 1.0}, 1, max_noise=1e3, share=0.25, kinds={"n": LAPLACE}),
        StageSpec("choice", {"best": 1.0}, 3, max_noise=1e3, kinds={"best": PURE}),
    ]
    account = Account(make_plan(specs, epsilon=2.0, delta=0.0))
    with account.open("counts") as access:
        mechanisms.rounded_laplace(access, "n", torch.zeros(4, dtype=torch.int64), sensitivity=1.0)
    for _ in range(3):
        with account.open("choice") as access:
            mechanisms.report_noisy_max(access, "best", torch.arange(4), sensitivity=1.0)
    account.verify_complete()
    (tmp_path / "numbers.txt").write_text("1 2 3")
    certificate = make_certificate(account, unit="one row", declared={"n": 90}, released=["numbers.txt"], folder=tmp_path)
    (tmp_path / "privacy.json").write_text(json.dumps(certificate))
    return tmp_path, certificate


def test_it_is_consistent(release):
    folder, certificate = release
    assert verify(folder).problems == []
    assert certificate["epsilon"] == 2.0 and certificate["delta"] == 0.0
    assert certificate["also"] == {"replace_one_epsilon": 4.0, "gaussian_mu": None, "curve": []}
    assert "except for a part" not in certificate["statement"]
    assert math.fsum(stage["epsilon"] for stage in certificate["stages"]) == pytest.approx(2.0)


@pytest.mark.parametrize(
    "forge",
    [
        lambda c: c.update(epsilon=1.0, target_epsilon=1.0),
        lambda c: c["also"].update(replace_one_epsilon=2.0),
        lambda c: c.update(event={"type": "GaussianDpEvent", "noise_multiplier": 9.0}, stages=[
            {"name": "a", "event": {"type": "GaussianDpEvent", "noise_multiplier": 9.0}, "epsilon": 2.0}]),
        lambda c: c.update(delta=1e-6),
    ],
    ids=["cheaper", "cheaper replacement", "a Gaussian", "a delta"],
)  # fmt: skip
def test_forgeries_with_a_new_digest_are_refused(release, forge):
    folder, certificate = release
    forge(certificate)
    (folder / "privacy.json").write_text(json.dumps(certificate | {"digest": digest(certificate)}))
    assert verify(folder).problems
