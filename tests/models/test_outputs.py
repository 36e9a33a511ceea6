"""Records from a network's numbers and back, for layouts of all sorts."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.layout import Layout
from lightning_dpgen.data.records import Records
from lightning_dpgen.models.outputs import cross_entropy, cross_entropy_gradient, draw, logits, means

LAYOUTS = {
    "pictures": Layout(units=5, levels=255),
    "pictures with a label": Layout(units=5, levels=1, groups=(3,), label=0),
    "a table": Layout(units=0, groups=(2, 5, 1, 3)),
    "a table with real numbers": Layout(units=2, groups=(2, 300)),
}


@pytest.fixture(params=LAYOUTS.values(), ids=LAYOUTS.keys())
def layout(request):
    return request.param


def _logits(layout, count=4):
    return torch.randn(count, layout.width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_means_are_bernoulli_and_shares_add_up(layout):
    found = means(_logits(layout), layout)
    torch.testing.assert_close(found[:, : layout.units], torch.sigmoid(_logits(layout)[:, : layout.units]))
    for span in layout.spans:
        torch.testing.assert_close(found[:, span].sum(dim=1), torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(means(logits(found, layout, least=1e-12), layout), found)


def test_the_gradient_is_autograds(layout):
    own = _logits(layout).requires_grad_()
    x = draw(means(_logits(layout, 4).flip(0), layout), layout, torch.Generator().manual_seed(1))
    rows = [torch.tensor(x.units / (layout.levels or 1), dtype=torch.float64)]
    rows += [F.one_hot(torch.tensor(x.codes[:, i], dtype=torch.int64), w) for i, w in enumerate(layout.groups)]
    target = torch.cat(rows, dim=1).to(torch.float64)
    expected = torch.autograd.grad(cross_entropy(own, target, layout).sum(), own)[0]
    torch.testing.assert_close(cross_entropy_gradient(own.detach(), target, layout), expected)


def test_draws_have_their_shares():
    """Each share within 5 standard deviations: a false alarm once in 10^5 runs. A choice of share 0 is never drawn."""
    layout, n = Layout(units=1, levels=1, groups=(4,)), 100_000
    shares = torch.tensor([0.3, 0.0, 0.2, 0.5, 0.3])
    found = draw(shares.expand(n, 5), layout, torch.Generator().manual_seed(3))
    counts = np.array([found.units.sum(), *np.bincount(found.codes[:, 0], minlength=4)])
    expected = shares.double().numpy()
    assert (np.abs(counts - n * expected) <= 5 * np.sqrt(n * expected * (1 - expected))).all()
    assert counts[1] == 0


@pytest.mark.parametrize(
    ("layout", "units", "codes"),
    [
        (Layout(units=2, levels=255, groups=(300,)), np.uint8, np.int16),
        (Layout(units=2, levels=70_000), np.int32, np.uint8),
        (Layout(units=2), np.float32, np.uint8),
    ],
)
def test_types_are_the_smallest(layout, units, codes):
    found = draw(torch.rand(3, layout.width), layout, torch.Generator().manual_seed(0))
    assert (found.units.dtype, found.codes.dtype) == (units, codes)
    assert len(draw(torch.rand(0, layout.width), layout, torch.Generator())) == 0


SIZED = BasketSchema(tuple(range(40)), max_items=25)


@given(n=st.integers(0, 30), seed=st.integers(0, 2**31), certain=st.booleans())
@settings(max_examples=20)
def test_as_many_units_are_ones_as_their_group_says(n, seed, certain):
    """Units may also be 0 or 1 for certain; draws are records of the schema, and the same with the same seed."""
    layout, generator = SIZED.layout, torch.Generator().manual_seed(seed)
    given_means = torch.rand(n, layout.width, generator=generator)
    given_means = given_means.round() if certain else given_means
    drawn, again = (draw(given_means, layout, torch.Generator().manual_seed(seed)) for _ in range(2))
    encoded = SIZED.encode(drawn.units)
    assert drawn.units.format == "csr" and (encoded.codes == drawn.codes).all() and (drawn.units.data == 1).all()
    assert (again.units != drawn.units).nnz == 0
    Records(SIZED, drawn)


def test_sizes_and_units_have_their_shares():
    """Chi-squared of the bins of sizes, and of the first unit of baskets of one, whose chances are its rate's share.

    Two tests, each a false alarm in 1 of 10^5 runs; uniform chances are rejected.
    """
    layout, n = SIZED.layout, 40_000
    shares = torch.full((len(SIZED.sizes),), 0.5 / (len(SIZED.sizes) - 1))
    shares[1] = 0.5
    chances = torch.linspace(0.02, 0.6, 40)
    drawn = draw(torch.cat([chances, shares]).expand(n, layout.width), layout, torch.Generator().manual_seed(5))
    bins = np.bincount(drawn.codes[:, 0], minlength=len(SIZED.sizes))
    assert chisquare(bins, n * shares.double().numpy() / float(shares.double().sum())).pvalue > 1e-5
    ones = drawn.units[np.flatnonzero(drawn.codes[:, 0] == 1)]
    rates = -torch.log1p(-chances).double().numpy()
    found = np.asarray(ones.sum(axis=0)).reshape(-1)
    assert chisquare(found, found.sum() * rates / rates.sum()).pvalue > 1e-5
    assert chisquare(found).pvalue < 1e-5
