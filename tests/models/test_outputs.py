"""From a network's numbers to records and back, for layouts of all sorts."""

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


@pytest.mark.parametrize(("layout", "units", "codes"), [
    (Layout(units=2, levels=255, groups=(300,)), np.uint8, np.int16),
    (Layout(units=2, levels=70_000), np.int32, np.uint8),
    (Layout(units=2), np.float32, np.uint8),
])
def test_types_are_the_smallest(layout, units, codes):
    found = draw(torch.rand(3, layout.width), layout, torch.Generator().manual_seed(0))
    assert (found.units.dtype, found.codes.dtype) == (units, codes)
    assert len(draw(torch.rand(0, layout.width), layout, torch.Generator())) == 0


def test_few_ones_among_many_units_are_kept_sparse():
    means = torch.rand(20, 30, generator=torch.Generator().manual_seed(2)).pow(8)
    dense, sparse = (
        draw(means, Layout(units=30, levels=1, most=most), torch.Generator().manual_seed(3)) for most in (None, 29)
    )
    assert sparse.units.format == "csr" and (sparse.units.toarray() == dense.units).all()


@given(
    most=st.integers(1, 6),
    shares=st.lists(st.sampled_from([0.0, 0.3, 0.9, 1.0]), min_size=6, max_size=6),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=25)
def test_no_record_is_drawn_with_more_ones_than_its_layout_promises(most, shares, seed):
    """Those with fewer stay as they are; of the others as many are kept, from what was drawn; again with the same seed."""
    means = torch.tensor([*shares, 0.3, 0.7]).expand(50, 8)
    full, layout = Layout(units=6, levels=1, groups=(2,)), Layout(units=6, levels=1, groups=(2,), most=most)
    drawn = draw(means, full, torch.Generator().manual_seed(seed)).units
    kept, again = (draw(means, layout, torch.Generator().manual_seed(seed)) for _ in range(2))
    units = kept.units.toarray()
    assert (units.sum(axis=1) == np.minimum(drawn.sum(axis=1), most)).all() and (units <= drawn).all()
    assert (again.units.toarray() == units).all() and (again.codes == kept.codes).all()
    Records(BasketSchema(tuple("abcdef"), most, ("x", "y")), kept)


def test_what_is_kept_of_too_many_ones_is_any_choice_of_them():
    """Each of the 10 pairs of 5 as often: a chi-squared test, a false alarm in 1 of 10^5 runs."""
    units = draw(torch.ones(20_000, 5), Layout(units=5, levels=1, most=2), torch.Generator().manual_seed(4)).units
    pairs = np.unique(units.toarray(), axis=0, return_counts=True)[1]
    assert len(pairs) == 10 and chisquare(pairs).pvalue > 1e-5
