"""A record put in front leaves every other record's contribution as it was, its own randomness held fixed."""

import pytest
import torch

from lightning_dpgen.clustering.features import FourierFeatures
from lightning_dpgen.clustering.kmeans import _assign
from lightning_dpgen.data.lots import Lot
from lightning_dpgen.data.schema import ImageSchema
from lightning_dpgen.gradients.engines import ENGINES
from lightning_dpgen.gradients.privatize import GradientBuffer
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.models.vae import StackedVAE


def _setting(dtype):
    generator = torch.Generator().manual_seed(0)
    network = StackedVAE(ImageSchema(3, 3, levels=1), 3, hidden=6, latent=2, generator=generator).to(dtype)
    records = torch.rand(7, 9, generator=generator, dtype=dtype)
    noise = torch.randn(7, 2, generator=generator, dtype=dtype)
    return network, Lot(records, (0, 3, 3, 7)), noise


def _with_front(lot, noise, extra):
    records = torch.cat([extra.expand(1, lot.records.shape[1]).to(lot.records.dtype), lot.records])
    return Lot(records, (0, *(o + 1 for o in lot.offsets[1:]))), torch.cat([noise[:1] * 3, noise])


def _contributions(engine, network, term, lot, noise):
    """Losses, norms and the single gradient of each record, as the weighted sum that picks it out."""
    gradients, losses = engine(network, term, lot, noise)
    each = []
    for i in range(len(lot)):
        buffer = GradientBuffer(network.parameters())
        gradients.weighted_sum(torch.eye(len(lot), dtype=buffer.flat.dtype)[i], buffer.views)
        each.append(buffer.flat)
    return losses, gradients.norms(), torch.stack(each)


EXTRA = {"ones": torch.ones(1), "zeros": torch.zeros(1), "huge": torch.tensor([1e8]), "nan": torch.tensor([torch.nan])}


@pytest.mark.parametrize("extra", EXTRA.values(), ids=EXTRA.keys())
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
def test_others_are_unchanged(engine, dtype, tolerance, extra):
    """Not bit for bit: matrix products choose their blocks by the number of rows, so a row's last bits may depend on
    how many others there are. Norms are float32 whatever the network is."""
    network, lot, noise = _setting(dtype)
    before = _contributions(engine, network, network.term, lot, noise)
    after = _contributions(engine, network, network.term, *_with_front(lot, noise, extra))
    for a, b, close in zip(before, after, (tolerance, 1e-5, tolerance), strict=True):
        torch.testing.assert_close(b[1:], a, rtol=close, atol=close)


def test_randomness_by_position_would_be_noticed():
    """A term that takes its normals from a public stream in order of position gives every other record new ones."""
    network, lot, noise = _setting(torch.float64)

    def by_position(lot, _):
        return network.negative_elbo(lot, shared[: len(lot)])

    shared = torch.randn(8, 2, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    results = []
    for own in ((lot, noise), _with_front(lot, noise, torch.ones(1))):
        results.append(ENGINES["ghost"](network, PerRecord(by_position), *own)[1])
    assert (results[1][1:] - results[0]).abs().max() > 1e-3


@pytest.mark.parametrize("m", [5, 784])
def test_features_and_clusters_of_the_others_are_unchanged(m):
    """Across the edge of a chunk (4096), where the first record of the second chunk was the last of the first."""
    generator = torch.Generator().manual_seed(0)
    records = torch.rand(4100, m, generator=generator)
    features = FourierFeatures(torch.ones(m), 20, 4.0 / m, generator)
    centres = 0.3 * torch.randn(5, 20, generator=generator)
    before, after = features(records), features(torch.cat([torch.ones(1, m), records]))
    torch.testing.assert_close(after[1:], before, rtol=0, atol=1e-5)
    scores = before @ centres.T - 0.5 * centres.square().sum(dim=1)
    first, second = scores.topk(2).values.T
    clear = first - second > 1e-4  # a tie to the last bit has no nearest centre
    assert torch.equal(_assign(after, centres)[1:][clear], _assign(before, centres)[clear])
