"""Metrics against direct formulas: equal data score 0, and batches add up."""

import numpy as np
import pytest
import torch

from lightning_dpgen.metrics.membership import NearestNeighbourDistance
from lightning_dpgen.metrics.series_and_pictures import MomentDistance


def test_moments_equal_numpy_and_batches_add_up():
    generator = torch.Generator().manual_seed(0)
    real, other = torch.rand(50, 4, generator=generator), torch.rand(80, 4, generator=generator)
    metric = MomentDistance(4)
    for part in real.split(20):
        metric.update(part, real=True)
    metric.update(other, real=False)
    values = metric.compute()
    means = np.sqrt(np.mean((real.numpy().mean(0) - other.numpy().mean(0)) ** 2))
    covariances = np.cov(real.numpy().T, bias=True) - np.cov(other.numpy().T, bias=True)
    assert float(values["means"]) == pytest.approx(means, rel=1e-5)
    assert float(values["covariances"]) == pytest.approx(np.sqrt(np.mean(covariances**2)), rel=1e-4)


def test_moments_of_equal_data_are_zero():
    metric = MomentDistance(3)
    rows = torch.rand(10, 3, generator=torch.Generator().manual_seed(0))
    metric.update(rows, real=True)
    metric.update(rows, real=False)
    assert all(float(value) == 0.0 for value in metric.compute().values())


def test_nearest_neighbours_are_the_nearest():
    """Also far from the origin, where squares of lengths cancel: a copy is at distance 0."""
    generator = torch.Generator().manual_seed(0)
    real, synthetic = 100.0 + torch.rand(300, 5, generator=generator), 100.0 + torch.rand(80, 5, generator=generator)
    synthetic[:20] = real[50:70]
    metric = NearestNeighbourDistance(5)
    for part in real.split(130):
        metric.update(part, real=True)
    metric.update(synthetic, real=False)
    expected = torch.cdist(synthetic.double(), real.double()).min(dim=1).values
    torch.testing.assert_close(metric.distances().double(), expected, atol=1e-4, rtol=1e-4)
    assert float(metric.compute()["copies"]) == 0.25


@pytest.mark.parametrize("spread", [1e-2, 1e-4, 1e-6])
def test_copies_are_seen_however_near_the_others_lie(spread):
    real = 0.5 + spread * torch.rand(2000, 48, generator=torch.Generator().manual_seed(1))
    metric = NearestNeighbourDistance(48)
    metric.update(real, real=True)
    metric.update(real[::5], real=False)
    assert float(metric.compute()["copies"]) == 1.0


def test_no_neighbours_are_an_error():
    metric = NearestNeighbourDistance(2)
    metric.update(torch.zeros(0, 2), real=True)
    metric.update(torch.zeros(3, 2), real=False)
    with pytest.raises(ValueError, match="expected at least one"):
        metric.compute()
    with pytest.raises(ValueError, match=r"expected \(n, 2\)"):
        metric.update(torch.zeros(3, 5), real=True)
