"""A record put in front leaves every other record's contribution as it was, its own randomness held fixed."""

import pytest
import scipy.sparse
import torch
from contracts import laws
from contracts.laws import setting, with_front

from lightning_dpgen.clustering.directions import Directions
from lightning_dpgen.clustering.features import FourierFeatures, IdentityFeatures, KeptFeatures
from lightning_dpgen.clustering.kmeans import lloyd
from lightning_dpgen.clustering.means import clipped_sums
from lightning_dpgen.data.stores import store_of
from lightning_dpgen.gradients.engines import ENGINES
from lightning_dpgen.gradients.terms import PerRecord

EXTRA = {"ones": torch.ones(1), "zeros": torch.zeros(1), "huge": torch.tensor([1e8]), "nan": torch.tensor([torch.nan])}


@pytest.mark.parametrize("extra", EXTRA.values(), ids=EXTRA.keys())
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("engine", ENGINES)
def test_others_are_unchanged(engine, dtype, tolerance, extra):
    laws.a_record_in_front_changes_nobody_else(engine, dtype, tolerance, extra)


def test_a_record_has_no_position_in_public_numbers():
    """A loss sees a lot of one record, so that each takes the first of them; positions would give every other record new
    ones."""
    network, lot, noise = setting()

    def by_position(lot, _):
        return network.negative_elbo(lot, shared[: len(lot)])

    shared = torch.randn(8, 2, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    results = []
    for own in ((lot, noise), with_front(lot, noise, torch.ones(1))):
        results.append(ENGINES["ghost"](network, PerRecord(by_position), *own).losses)
    torch.testing.assert_close(results[1][1:], results[0])


def _dense(records):
    return store_of(records)


def _sparse(records):
    return store_of(scipy.sparse.csr_array(records.numpy()))


def _ones(records):
    return store_of(records.gt(0.5).to(torch.uint8), scale=1)


def _greys(records):
    return store_of(records.mul(255).to(torch.uint8), scale=255)


MAPS = {
    "pairs": lambda m, generator: FourierFeatures(torch.ones(m), 400, 4.0 / m, generator),
    "single": lambda m, generator: FourierFeatures(torch.ones(m), 51, 4.0 / m, generator, paired=False),
    "laplacian": lambda m, generator: FourierFeatures(torch.ones(m), 40, 1.0 / m, generator, kernel="laplacian"),
    "identity": lambda m, generator: IdentityFeatures(torch.rand(m, generator=generator), 0.3 * m**0.5),
}


@pytest.fixture(params=["highest", "medium"])
def precision(request):
    """What is asked for of products in float32, which on some processors means 8 bits."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("precision")
@pytest.mark.parametrize("kept_as", [_dense, _sparse, _ones, _greys])
@pytest.mark.parametrize("name", MAPS)
def test_what_the_split_computes_of_a_record_is_its_own(name, kept_as):
    """Bit for bit, whatever the number of records and its place among them: features, places in directions, clusters, sums.

    Copies, so that one more record could change all; a product in float32 rounds rows of 191 and of 192 differently.
    """
    m, generator = 784, torch.Generator().manual_seed(0)
    features = MAPS[name](m, generator)
    different = torch.rand(3, m, generator=generator).round() * torch.rand(3, m, generator=generator)
    sizes = (1, 2, 3, 7, 64, 191, 192, 255, 257, 700)
    found = {}
    for n in sizes:
        store = kept_as(torch.cat([different[:1].expand(n, m), different]))
        kept = KeptFeatures(features, store, 2**30)
        directions = torch.randn(17, features.d, generator=torch.Generator().manual_seed(1))
        seen = KeptFeatures(Directions(kept, directions), store, 2**30)
        z, y = (torch.cat([block for _, block in each]) for each in (kept, seen))
        # Between two centres, as near as float32 tells.
        near = z[0] * kept.unit
        aside = torch.randn(features.d, generator=torch.Generator().manual_seed(2)) / features.d**0.5
        clusters = lloyd(kept, torch.stack([near + aside, near - aside]))[0]
        sums = clipped_sums(kept_as(different[:1].expand(n, m)), 5.0, torch.zeros(n, dtype=torch.int64), 1) / n
        found[n] = (z, y, clusters, sums)
    for n in sizes:
        for part, first in zip(found[n][:3], found[1][:3], strict=True):
            assert (part[:n] == first[0]).all() and torch.equal(part[n:], first[1:])
        # Exact, but for the last product with what a multiple stands for.
        torch.testing.assert_close(found[n][3], found[1][3], rtol=4e-16 if kept_as is _greys else 0.0, atol=0.0)


def test_a_product_in_single_precision_would_be_noticed():
    """Products in float32 differ between blocks of 191 and of 192 records, where the library of this machine is such."""
    generator = torch.Generator().manual_seed(0)
    frequencies, row = torch.randn(784, 200, generator=generator), torch.rand(1, 784, generator=generator)
    products = [(row.expand(n, 784).contiguous() @ frequencies)[0] for n in range(1, 300)]
    if all(torch.equal(product, products[0]) for product in products):
        pytest.skip("here products round a row alike, however many there are")
