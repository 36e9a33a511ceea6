"""Fourier features: norm 1 for every record (so nothing needs clipping), and inner products that estimate the kernel."""

import pytest
import torch

from lightning_dpgen.clustering.block_sums import feature_sums, lloyd
from lightning_dpgen.clustering.features import (
    _COSINES,
    BLOCK,
    FEATURE_NORM,
    LARGEST,
    FourierFeatures,
    IdentityFeatures,
    KeptFeatures,
)
from lightning_dpgen.sampling.as_store import store_of

# The part of a norm that is lost when numbers are cut to multiples of the unit.
CUT = 2.0**0.5 * 2.0**-13


def _features(m, d, gamma, scale=1.0, seed=0, **kind):
    return FourierFeatures(torch.full((m,), scale), d, gamma, torch.Generator().manual_seed(seed), **kind)


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
    assert (norms <= FEATURE_NORM).all() and (norms >= 1.0 - CUT).all()


@pytest.mark.parametrize("records", RECORDS.values(), ids=RECORDS.keys())
def test_other_maps_stay_within_the_declared_norm(records):
    maps = [_features(7, d, 4.0 / 7, kernel=kernel, paired=False) for d in (1, 9, 500) for kernel in ("rbf", "laplacian")]
    maps += [_features(7, 40, 4.0 / 7, kernel="laplacian")] + [IdentityFeatures(torch.ones(7), r) for r in (0.1, 2.0, 1e6)]
    for features in maps:
        norms = features(records).double().norm(dim=1)
        assert (norms <= FEATURE_NORM).all() and norms.shape == records.shape[:1]


def test_single_cosines_are_shortened_only_where_they_are_longer():
    features, records = _features(7, 2000, 4.0 / 7, paired=False), RECORDS["random"]
    norms = features(records).double().norm(dim=1)
    assert (norms > 1.0 - 2 * CUT).any() and (norms < 1.0 - 2 * CUT).any()


def test_records_themselves_are_shortened_to_the_radius():
    features, records = IdentityFeatures(torch.tensor([1.0] * 6 + [0.0]), 1.2), RECORDS["random"][:50]
    expected = torch.nn.functional.pad(records[:, :6], (0, 1))
    expected = expected * (1.2 / expected.norm(dim=1, keepdim=True)).clamp(max=1.0) / 1.2
    torch.testing.assert_close(features(records), expected, atol=2.0**-13, rtol=0)


@pytest.mark.parametrize("kind", ["rbf", "single", "identity"])
def test_sums_are_exact_and_kept_features_change_nothing(kind):
    """Sums are equal bit by bit for any order of the records, any room for the features, and every pass."""
    records, random = RECORDS["random"], torch.Generator().manual_seed(2)
    features = IdentityFeatures(torch.ones(7), 2.0) if kind == "identity" else _features(7, 30, 0.5, paired=kind == "rbf")
    centres = 0.3 * torch.randn(3, features.d, generator=random)
    size = len(records) * features.d
    found = []
    for room in (0, 2 * size, 4 * size):
        kept = KeptFeatures(features, store_of(records), room)
        found += [(feature_sums(kept), *lloyd(kept, centres)) for _ in range(2)]
    for total, clusters, sums in found[1:]:
        assert (total == found[0][0]).all() and (clusters == found[0][1]).all() and (sums == found[0][2]).all()
    multiples = torch.cat([block for _, block in features.multiples(store_of(records))]).double()
    own = torch.stack([multiples[found[0][1] == c].sum(dim=0) for c in range(3)])
    assert torch.equal(found[0][2], own.long()) and len(records) > 2 * BLOCK


def test_the_sum_of_a_full_block_is_exact_where_all_are_alike():
    """The largest possible sums are exact: 2^11 times 2^13 is the last whole number that float32 counts to."""
    kept = KeptFeatures(IdentityFeatures(torch.ones(1), 1.0), store_of(torch.ones(3 * BLOCK + 5, 1)), 0)
    sums = feature_sums(kept).item(), lloyd(kept, torch.tensor([[1.0], [0.0]]))[1][0].item()
    assert [total * kept.unit for total in sums] == 2 * [3 * BLOCK + 5]


@pytest.mark.parametrize("gamma", [0.1, 1.0])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_inner_products_estimate_the_kernel(gamma, scale):
    """20,000 frequencies: an inner product has a standard deviation of at most 1 / sqrt(20,000) = 0.0071; 400 pairs
    within 6 of those are a false alarm of 8e-7. A kernel of twice the width is rejected."""
    records = RECORDS["random"][:20]
    z = _features(7, 40_000, gamma, scale)(records).double()
    distances = (scale * torch.cdist(records.double(), records.double())).square()
    off = (z @ z.T - torch.exp(-gamma * distances)).abs().max()
    assert off < 6 * 0.0071 + 2 * CUT
    assert (z @ z.T - torch.exp(-2 * gamma * distances)).abs().max() > 6 * 0.0071 or gamma * scale < 0.1


def test_inner_products_of_cauchy_frequencies_estimate_the_laplacian_kernel():
    """The law above holds for the L1 distance, too."""
    records = RECORDS["random"][:20]
    z = _features(7, 40_000, 0.3, kernel="laplacian")(records).double()
    distances = torch.cdist(records.double(), records.double(), p=1)
    assert (z @ z.T - torch.exp(-0.3 * distances)).abs().max() < 6 * 0.0071 + 2 * CUT
    assert (z @ z.T - torch.exp(-0.3 * distances.square())).abs().max() > 6 * 0.0071


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


def test_no_angle_of_the_table_gives_a_pair_that_is_too_long():
    """All 2^16 angles, in whole numbers: so a paired feature vector is no longer than 2^13 sqrt(d / 2) units."""
    cosines = _COSINES.long()
    sines = cosines[(torch.arange(len(cosines)) - len(cosines) // 4) % len(cosines)]
    assert int((cosines.square() + sines.square()).max()) == LARGEST**2
