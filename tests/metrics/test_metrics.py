"""Metrics against direct formulas: equal data score 0, and batches add up."""

import numpy as np
import pytest
import torch

from lightning_dpgen.metrics.labels import LabelDistance, TrainOnSynthetic
from lightning_dpgen.metrics.moments import MomentDistance


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


@pytest.mark.parametrize(("labels", "distance"), [([0, 1, 2, 2], 0.0), ([0, 0, 0, 0], 0.75), ([0, 1, 1, 2], 0.25)])
def test_label_distance(labels, distance):
    metric = LabelDistance(3)
    metric.update(torch.tensor([0, 1, 2, 2]), real=True)
    metric.update(torch.tensor(labels), real=False)
    assert float(metric.compute()) == pytest.approx(distance)


def test_training_on_one_label_answers_it():
    metric = TrainOnSynthetic()
    metric.update(torch.rand(5, 2), torch.zeros(5, dtype=torch.long), test=False)
    metric.update(torch.rand(4, 2), torch.tensor([0, 0, 0, 1]), test=True)
    assert float(metric.compute()) == 0.75
