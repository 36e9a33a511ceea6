"""Fourier features: norm 1 for every record (so nothing needs clipping), and inner products that estimate the kernel."""

import pytest
import torch

from lightning_dpgen.clustering.features import FEATURE_NORM, FourierFeatures


def _features(m, d, gamma, scale=1.0, seed=0):
    return FourierFeatures(torch.full((m,), scale), d, gamma, torch.Generator().manual_seed(seed))


RECORDS = {
    "random": torch.rand(5000, 7, generator=torch.Generator().manual_seed(1)),  # more than one chunk
    "extreme": torch.tensor([[0.0] * 7, [1.0] * 7, [1e6] * 7, [-1e6] * 7, [1e-30] * 7]),
    "none": torch.zeros(0, 7),
}


@pytest.mark.parametrize("d", [2, 100, 4098])
@pytest.mark.parametrize("records", RECORDS.values(), ids=RECORDS.keys())
def test_no_record_has_a_norm_above_the_declared_one(records, d):
    features = _features(7, d, 4.0 / 7)(records[:: 1 if d < 1000 else 50])
    assert features.shape[1] == d
    norms = features.double().norm(dim=1)
    assert (norms <= FEATURE_NORM).all() and (norms >= 2 - FEATURE_NORM).all()


@pytest.mark.parametrize("gamma", [0.1, 1.0])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_inner_products_estimate_the_kernel(gamma, scale):
    """20,000 frequencies: an inner product has a standard deviation of at most 1 / sqrt(20,000) = 0.0071; 400 pairs
    within 6 of those are a false alarm of 8e-7. A kernel of twice the width is rejected."""
    records = RECORDS["random"][:20]
    z = _features(7, 40_000, gamma, scale)(records).double()
    distances = (scale * torch.cdist(records.double(), records.double())).square()
    off = (z @ z.T - torch.exp(-gamma * distances)).abs().max()
    assert off < 6 * 0.0071
    assert (z @ z.T - torch.exp(-2 * gamma * distances)).abs().max() > 6 * 0.0071 or gamma * scale < 0.1


def test_a_column_of_scale_zero_is_not_seen():
    features = FourierFeatures(torch.tensor([1.0, 0.0]), 8, 1.0, torch.Generator().manual_seed(0))
    assert torch.equal(features(torch.tensor([[0.3, 0.0]])), features(torch.tensor([[0.3, 1.0]])))


def test_the_map_is_public_and_repeats():
    records = RECORDS["random"][:5]
    assert torch.equal(_features(7, 10, 1.0)(records), _features(7, 10, 1.0)(records))
    assert not torch.equal(_features(7, 10, 1.0)(records), _features(7, 10, 1.0, seed=1)(records))


@pytest.mark.parametrize(("d", "gamma"), [(0, 1.0), (3, 1.0), (-2, 1.0), (4, 0.0), (4, -1.0), (4, float("nan"))])
def test_impossible_settings_are_refused(d, gamma):
    with pytest.raises(ValueError, match="expected"):
        _features(7, d, gamma)
