"""The directions of the search: exact moments, the leading ones of a planted subspace, records of length 1 in them."""

import math

import pytest
import torch

from lightning_dpgen.clustering.features import (
    BLOCK,
    FEATURE_NORM,
    Directions,
    FourierFeatures,
    IdentityFeatures,
    KeptFeatures,
    feature_moments,
    leading,
)
from lightning_dpgen.clustering.kmeans import private_split
from lightning_dpgen.clustering.settings import SplitSettings
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.sampling.as_store import store_of

RECORDS = torch.rand(2 * BLOCK + 300, 7, generator=torch.Generator().manual_seed(1))


def _kept(records=RECORDS, d=30, room=2**30):
    features = FourierFeatures(torch.ones(7), d, 0.5, torch.Generator().manual_seed(0))
    return KeptFeatures(features, store_of(records), room)


EXACT = feature_moments(_kept())["moments"]


def test_moments_are_exact_sums_of_what_each_record_adds():
    """Sums are equal bit by bit, in any order; a record adds z z^T of a z no longer than its own, within an eighth bit."""
    kept = _kept()
    found = feature_moments(kept)
    z = torch.cat([block for _, block in kept]).double()
    coarse = (z / 32).trunc()
    assert torch.equal(found["moments"], (coarse.T @ coarse).long()) and kept.unit_of_moments == (32 * kept.unit) ** 2
    assert torch.equal(found["sum"], z.sum(dim=0).long())
    order = torch.randperm(len(RECORDS), generator=torch.Generator().manual_seed(2))
    again = feature_moments(_kept(RECORDS[order], room=0))
    assert all(torch.equal(found[name], again[name]) for name in found)
    assert (coarse.norm(dim=1) * 32 * kept.unit <= FEATURE_NORM).all()
    off = found["moments"] * kept.unit_of_moments - z.T @ z * kept.unit**2
    assert off.abs().max() <= len(z) * 2 * math.sqrt(2 / 30) * math.sqrt(2 / 30) / 2**8


def test_the_largest_moments_that_there_can_be_are_exact():
    kept = KeptFeatures(IdentityFeatures(torch.ones(1), 1.0), store_of(torch.ones(3 * BLOCK + 5, 1)), 0)
    assert feature_moments(kept)["moments"].item() * kept.unit_of_moments == 3 * BLOCK + 5


def test_the_leading_directions_are_those_of_the_largest_variance():
    """100 features that vary in three planted directions; noise on the moments that is not symmetric turns them little."""
    generator = torch.Generator().manual_seed(4)
    planted = torch.linalg.qr(torch.randn(100, 3, generator=generator, dtype=torch.float64)).Q
    mean = torch.randn(100, generator=generator, dtype=torch.float64)
    moments = torch.outer(mean, mean) + planted @ torch.diag(torch.tensor([9.0, 4.0, 1.0]).double()) @ planted.T
    noisy = moments + 0.01 * torch.randn(100, 100, generator=generator, dtype=torch.float64)
    found = leading(mean, noisy, 3)
    assert found.shape == (4, 100) and torch.equal(found[0], mean.float())
    alike = (found[1:].double() @ planted).abs()
    assert (alike.diagonal() > 0.98).all()
    torch.testing.assert_close(found[1:] @ found[1:].T, torch.eye(3), atol=1e-5, rtol=0)
    # The mean would be the first direction if it were not taken away.
    assert (leading(torch.zeros(100).double(), noisy, 3)[1].double() @ mean).abs() > 0.9 * mean.norm()


@pytest.mark.parametrize("extreme", [0.0, 1e6, 1e-30])
def test_no_record_is_longer_than_declared_in_any_directions(extreme):
    records = torch.cat([RECORDS[:500], torch.full((3, 7), extreme)])
    source = _kept(records)
    for rows in (torch.randn(5, 30), 1e6 * torch.randn(5, 30), torch.zeros(5, 30)):
        for _, block in KeptFeatures(Directions(source, rows), store_of(records), 2**20):
            norms = block.double().norm(dim=1) * 2.0**-13
            assert (norms <= FEATURE_NORM).all()
            assert (norms > 1 - 2.0**-12).all() or not rows.any()


def test_a_record_lies_where_it_is_seen_from_the_mean():
    source, rows = _kept(), torch.randn(4, 30, generator=torch.Generator().manual_seed(5)) / 6
    directions = Directions(source, rows)
    z = source.features(RECORDS[:50]).double()
    seen = (z - rows[0].double()) @ rows[1:].double().T
    expected = seen / seen.norm(dim=1, keepdim=True)
    torch.testing.assert_close(directions(RECORDS[:50]).double(), expected, atol=2.0**-12, rtol=0)
    blocks = torch.cat([block for _, block in directions.multiples(store_of(RECORDS))]) * directions.unit
    torch.testing.assert_close(blocks[:50], directions(RECORDS[:50]), atol=2.0**-12, rtol=0)


def test_few_dimensions_find_groups_that_all_of_them_lose_in_noise():
    """Five seeds. Four groups of 500 in 200 features: the noise of a centre is sqrt(200 / 4) times as long as in four."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(2000) % 4
    groups = torch.where(torch.arange(16)[None] // 4 == torch.arange(4)[:, None], 0.9, 0.1)
    records = (groups[labels] + 0.05 * torch.randn(2000, 16, generator=generator)).clamp(0, 1)

    def pure(dimensions, seed):
        settings = SplitSettings(k=4, iterations=6, features=200, dimensions=dimensions)
        stages = tuple(Stage(d.access(36.0), d.count, d.share) for d in settings.specs(2000))
        account = Account(Plan(stages, target_epsilon=1.0, delta=1e-5), stream=PrivateStream(seed=seed))
        split = private_split(records, torch.ones(16), settings, 2000, account, torch.Generator().manual_seed(seed))
        return sum(int(torch.bincount(labels[split.clusters == c], minlength=4).max()) for c in range(4)) / 2000

    assert sum(pure(4, seed) for seed in range(5)) / 5 > 0.9
    assert sum(pure(None, seed) for seed in range(5)) / 5 < 0.8


def test_a_split_is_exact_whatever_precision_is_asked_for():
    """Under autocast sums of products would be rounded to 8 bits, and a record be longer than its declared norm."""
    settings = SplitSettings(k=3, iterations=3, features=30, dimensions=4)

    def found():
        stages = tuple(Stage(d.access(2.0), d.count, d.share) for d in settings.specs(5000))
        account = Account(Plan(stages, target_epsilon=1.0, delta=1e-5), stream=PrivateStream(seed=0))
        return private_split(RECORDS, torch.ones(7), settings, 5000, account, torch.Generator().manual_seed(0))

    expected = found()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        split = found()
        # Outside the split, the same sums are rounded.
        assert not torch.equal(feature_moments(_kept())["moments"], EXACT)
    for name in ("clusters", "counts", "means"):
        assert torch.equal(getattr(split, name), getattr(expected, name))


def test_directions_of_more_features_than_a_matrix_can_hold_are_refused():
    with pytest.raises(ValueError, match=r"dimensions=16 of 5,000 features: expected at most 4,096"):
        SplitSettings(features=5000, dimensions=16)
    with pytest.raises(ValueError, match=r"dimensions=0: expected a whole number"):
        SplitSettings(dimensions=0)
