"""Wide records as the places of their ones give the same results as the records written out, to rounding."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.records import Records
from lightning_dpgen.gradients.engines import ghost_gradients
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.sampling.lots import Lot
from lightning_dpgen.sampling.multi_hot import to_dense


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(0, 9), classes=st.sampled_from([0, 3]))
def test_lots_are_those_written_out(seed, count, classes):
    random = np.random.default_rng(seed)
    schema = BasketSchema(tuple(range(400)), max_items=3, classes=tuple(range(classes)))
    sizes = random.integers(0, 3, size=count, endpoint=True)
    places = [random.choice(400, size, replace=False) for size in sizes]
    rows, items = np.repeat(np.arange(count), sizes), np.concatenate([*places, np.zeros(0, np.int64)])
    # An entry of 0 is no place.
    values = random.integers(0, 1, size=len(items), endpoint=True).astype(np.uint8)
    units = scipy.sparse.csr_array((values, (rows, items)), shape=(count, 400))
    labels = random.integers(0, classes, size=count) if classes else None
    records = Records(schema, schema.encode(units, labels))
    taken = random.permutation(count)[: count // 2 + 1]
    found = records.multi_hot().take(taken)
    assert found.shape == (len(taken), schema.layout.max_ones)
    torch.testing.assert_close(to_dense(found, schema.layout.width), records.take(taken))


@pytest.mark.parametrize("fixed_bias", [True, False])
@pytest.mark.parametrize(("k", "offsets"), [(1, (0, 9)), (3, (0, 4, 4, 9))])
@pytest.mark.parametrize("groups", [(), (3, 2)])
def test_gradients_are_those_of_the_records_written_out(groups, k, offsets, fixed_bias):
    layout, generator = Layout(units=500, levels=1, groups=groups, most=4), torch.Generator().manual_seed(k)
    network = StackedVAE(
        SimpleNamespace(layout=layout), k, hidden=5, latent=2, fixed_bias=fixed_bias, generator=generator
    ).double()
    places = torch.full((9, layout.max_ones), layout.width)
    for i in range(9):
        places[i, : i % 5] = torch.randperm(500, generator=generator)[: i % 5]
        for j, span in enumerate(layout.spans):
            places[i, 4 + j] = span.start + i % groups[j]
    noise, weights = torch.randn(9, 2, generator=generator).double(), torch.rand(9, generator=generator).double()
    silenced = torch.arange(9) == 2
    both = [
        ghost_gradients(network, network.term, Lot(x, offsets), noise)
        for x in (places, to_dense(places, layout.width, torch.float64))
    ]
    torch.testing.assert_close(*(g.norms() for g in both))
    torch.testing.assert_close(*(g.losses for g in both))
    for p in network.parameters():
        if not p.requires_grad:
            continue
        each = [g._factors[p] for g in both]
        torch.testing.assert_close(*(factors.materialise() for factors in each))
        torch.testing.assert_close(*(factors.norms() for factors in each))
        torch.testing.assert_close(*(factors.project(p.detach()) for factors in each))
        torch.testing.assert_close(each[1].project(p.detach()), each[1].materialise().flatten(1) @ p.detach().flatten())
        sums = []
        for factors in each:
            out = torch.ones_like(p)
            factors.weighted_sum(weights, silenced, out, add=True)
            factors.weighted_sum(weights, None, out, add=True)
            sums.append(out)
        torch.testing.assert_close(*sums)


def test_a_place_that_is_held_twice_is_refused():
    units = scipy.sparse.csr_array((np.ones(2, np.uint8), np.array([3, 3]), np.array([0, 2])), shape=(1, 300))
    with pytest.raises(BadRecords, match="sum_duplicates"):
        Records(BasketSchema(tuple(range(300)), max_items=3), Encoded(units, np.zeros((1, 1), np.uint8)))


@pytest.mark.parametrize("kept", [scipy.sparse.csr_array, lambda units: units], ids=["sparse", "dense"])
def test_more_ones_than_the_schema_allows_are_refused(kept):
    units = (np.arange(300) < 4).astype(np.uint8)[None]
    with pytest.raises(BadRecords, match="more units at 1 than the 3 of its schema"):
        Records(BasketSchema(tuple(range(300)), max_items=3), Encoded(kept(units), np.zeros((1, 1), np.uint8)))
