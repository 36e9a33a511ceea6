"""A membership attack: right about what it can know, and no better than chance where it cannot."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from lightning_dpgen.metrics import MembershipInference


def _found(members, others, **given):
    metric = MembershipInference(**given)
    for part in torch.from_numpy(members).split(33):
        metric.update(part, member=True)
    metric.update(torch.from_numpy(others), member=False)
    return {name: float(value) for name, value in metric.compute().items()}, metric


@pytest.mark.slow
def test_of_scores_that_tell_nothing_the_interval_covers_a_half():
    """Exact at 95 %: of 400 trials more than 32 miss with a chance of 1e-2; of accuracies that were tuned, most do."""
    random = np.random.default_rng(0)
    missed = 0
    for _ in range(400):
        found, _ = _found(*random.standard_normal((2, 60)))
        missed += not found["low"] <= 0.5 <= found["high"]
    assert missed <= 32


def test_it_finds_the_accuracy_that_two_normals_allow():
    members, others = np.random.default_rng(1).standard_normal((2, 40_000))
    found, metric = _found(members + 0.5, others)
    assert found["low"] < norm.cdf(0.25) < found["high"] and found["high"] - found["low"] < 0.011
    assert found["auc"] == pytest.approx(norm.cdf(0.5 / np.sqrt(2)), abs=0.008)
    false, true = metric.roc()
    assert np.interp(0.1, false, true) == pytest.approx(norm.sf(norm.isf(0.1) - 0.5), abs=0.02)


def test_kinds_are_taken_in_equal_numbers():
    random = np.random.default_rng(2)
    found, _ = _found(random.standard_normal(100), random.standard_normal(3000))
    assert found["tested"] == 100 and abs(found["accuracy"] - 0.5) < 0.2


BAD = {
    "confidence": (lambda: MembershipInference(confidence=1.0), "confidence=1.0: expected"),
    "shape": (lambda: MembershipInference().update(torch.zeros(2, 1), member=True), r"shape \(2, 1\): expected \(n,\)"),
    "NaN": (lambda: MembershipInference().update(torch.tensor([float("nan")]), member=True), "scores hold NaN"),
    "few": (lambda: _found(np.zeros(3), np.zeros(9)), "3 members and 9 others: expected 4 or more of each"),
}


@pytest.mark.parametrize(("make", "words"), BAD.values(), ids=BAD.keys())
def test_what_makes_no_sense_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
