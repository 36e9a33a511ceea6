"""The Wasserstein distance, against the difference of means and an assignment of records to each other."""

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from lightning_dpgen.metrics import WassersteinDistance


def _distance(real, synthetic, **given):
    metric = WassersteinDistance(real.shape[1], **given)
    # In parts, as a Trainer hands them over.
    for part in real.split(7):
        metric.update(part, real=True)
    for part in synthetic.split(5):
        metric.update(part, real=False)
    return {name: float(value) for name, value in metric.compute().items()}


def test_in_one_dimension_it_is_that_of_the_best_assignment():
    random = np.random.default_rng(0)
    real, synthetic = random.standard_normal((2, 30, 1))
    cost = np.abs(real - synthetic.T)
    best = cost[linear_sum_assignment(cost)].mean()
    found = _distance(*map(torch.from_numpy, (real, synthetic)))
    assert found["sliced"] == pytest.approx(best) == found["columns_worst"]


def test_a_shift_is_its_length_in_columns_and_its_mean_projection_in_slices():
    real = torch.rand(500, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = _distance(real, real + torch.tensor([0.3, 0.0, 0.0]), directions=4000)
    assert found["columns_worst"] == pytest.approx(0.3) and found["columns_mean"] == pytest.approx(0.1)
    # A random direction in three dimensions meets a shift at half of its length on average; standard error .0014.
    assert found["sliced"] == pytest.approx(0.15, abs=0.006)
    assert _distance(real, real.flip(0))["sliced"] == pytest.approx(0.0, abs=1e-12)


BAD = {
    "width": (lambda: WassersteinDistance(0), "width=0: expected"),
    "directions": (lambda: WassersteinDistance(2, directions=1.5), "directions=1.5: expected"),
    "shape": (lambda: WassersteinDistance(2).update(torch.zeros(3), real=True), r"shape \(3,\): expected \(n, 2\)"),
    "not finite": (lambda: WassersteinDistance(1).update(torch.full((1, 1), float("nan")), real=True), "NaN"),
    "nothing": (lambda: WassersteinDistance(1).compute(), "of no records"),
}


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
@pytest.mark.parametrize(("make", "words"), BAD.values(), ids=BAD.keys())
def test_what_makes_no_sense_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
