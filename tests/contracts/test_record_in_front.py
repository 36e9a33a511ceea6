"""A record put in front leaves every other record's contribution as it was, its own randomness held fixed."""

import pytest
import torch
from contracts import laws
from contracts.laws import setting, with_front

from lightning_dpgen.clustering.features import BLOCK, FourierFeatures, KeptFeatures
from lightning_dpgen.clustering.kmeans import lloyd
from lightning_dpgen.data.stores import store_of
from lightning_dpgen.gradients.engines import ENGINES
from lightning_dpgen.gradients.terms import PerRecord

EXTRA = {"ones": torch.ones(1), "zeros": torch.zeros(1), "huge": torch.tensor([1e8]), "nan": torch.tensor([torch.nan])}


@pytest.mark.parametrize("extra", EXTRA.values(), ids=EXTRA.keys())
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("engine", ENGINES)
def test_others_are_unchanged(engine, dtype, tolerance, extra):
    laws.a_record_in_front_changes_nobody_else(engine, dtype, tolerance, extra)


def test_randomness_by_position_would_be_noticed():
    """A term that takes its normals from a public stream in order of position gives every other record new ones."""
    network, lot, noise = setting()

    def by_position(lot, _):
        return network.negative_elbo(lot, shared[: len(lot)])

    shared = torch.randn(8, 2, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    results = []
    for own in ((lot, noise), with_front(lot, noise, torch.ones(1))):
        results.append(ENGINES["ghost"](network, PerRecord(by_position), *own).losses)
    assert (results[1][1:] - results[0]).abs().max() > 1e-3


@pytest.mark.parametrize("m", [5, 784])
def test_features_and_clusters_of_the_others_are_unchanged(m):
    """Across the edge of a block, where the first record of the second chunk was the last of the first."""
    generator = torch.Generator().manual_seed(0)
    records = torch.rand(BLOCK + 4, m, generator=generator)
    features = FourierFeatures(torch.ones(m), 20, 4.0 / m, generator)
    centres = 0.3 * torch.randn(5, 20, generator=generator)
    stores = store_of(records), store_of(torch.cat([torch.ones(1, m), records]))
    before, after = (torch.cat([block for _, block in features.multiples(store)]) for store in stores)
    # A number that rounding puts on the other side of a multiple of the unit differs by one.
    assert (after[1:] - before).abs().max() <= 1 and (after[1:] != before).float().mean() < 1e-2
    scores = features.unit * before @ centres.T - 0.5 * centres.square().sum(dim=1)
    first, second = scores.topk(2).values.T
    clear = first - second > 1e-4  # a tie to the last bit has no nearest centre
    one, other = (lloyd(KeptFeatures(features, store, 0), centres)[0] for store in stores)
    assert torch.equal(other[1:][clear], one[clear])
