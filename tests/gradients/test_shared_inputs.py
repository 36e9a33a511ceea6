"""Layers that share their inputs, and normalised pictures with the channels last, have the gradients of single records."""

import pytest
import torch
from torch import nn

from lightning_dpgen.gradients import factors
from lightning_dpgen.gradients.engines import ENGINES
from lightning_dpgen.gradients.factors import Dense, GramCache, OuterSum, outer
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.sampling.lots import Lot


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_inner_products_of_a_shared_input_are_computed_once(dtype, monkeypatch):
    torch.manual_seed(0)
    x, parameters = torch.randn(4, 3, 30).to(dtype), [nn.Parameter(torch.zeros(20, 30)) for _ in range(3)]
    lefts = [torch.randn(4, 3, 20).to(dtype) for _ in parameters]
    held = {p: outer([(left, x)], p.shape, p.shape) for p, left in zip(parameters, lefts, strict=True)}
    assert all(isinstance(each, OuterSum) for each in held.values())
    alone = torch.stack([each.norms() for each in held.values()]).norm(dim=0)
    calls, gram = [], factors._gram
    monkeypatch.setattr(factors, "_gram", lambda a, b: calls.append(a) or gram(a, b))
    norms = PerSampleGradients(held, [parameters], 4).norms()
    assert len(calls) == 4 and sum(a is x for a in calls) == 1
    torch.testing.assert_close(norms, alone, rtol=1e-12, atol=0.0)
    exact = torch.stack([left.double().mT @ x.double() for left in lefts]).square().sum(dim=(0, 2, 3)).sqrt()
    assert ((norms >= exact) & (norms <= 1.001 * exact)).all()


def test_no_inner_products_are_held_after_their_last_use():
    x = torch.randn(2, 3, 5)
    grams = GramCache([OuterSum([(x, x)], (5, 5), (5, 5)), Dense(torch.ones(2, 5))])
    assert grams.of(x) is grams.of(x) and not grams._held


@pytest.mark.parametrize(("positions", "width"), [(2, 1000), (65, 900), (300, 400)])
def test_norms_of_many_products_are_no_more_than_a_hundredth_too_large(positions, width):
    torch.manual_seed(0)
    left, right = torch.randn(3, positions, width), torch.randn(3, positions, width)
    found = outer([(left, right)], (width, width), (width, width)).norms()
    exact = (left.double().mT @ right.double()).flatten(1).norm(dim=1)
    assert (found >= exact).all() and (found <= 1.01 * exact).all()


class Attending(nn.Module):
    """Attention over the places of a picture, whose result has the channels last in memory, and a normalisation."""

    def __init__(self, trained: bool) -> None:
        super().__init__()
        self.mix, self.norm = nn.Linear(4, 4), nn.GroupNorm(2, 4).requires_grad_(trained)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.mix(x.flatten(2).transpose(1, 2)).tanh()
        return self.norm(seen.transpose(1, 2).reshape(x.shape)).square().flatten(1).sum(dim=1)


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("engine", ENGINES)
def test_normalised_pictures_with_channels_last(engine, trained):
    torch.manual_seed(0)
    network, x = Attending(trained), torch.randn(3, 4, 2, 3)
    nn.init.normal_(network.norm.weight)
    gradients = ENGINES[engine](network, PerRecord(lambda lot, _: network(lot.records)), Lot(x, (0, 3)), x.new_zeros(3, 0))
    parameters = [p for p in network.parameters() if p.requires_grad]
    for i, weights in enumerate(torch.eye(3)):
        out = {p: torch.zeros_like(p) for p in parameters}
        gradients.weighted_sum(weights, out)
        expected = torch.autograd.grad(network(x[i : i + 1]).sum(), parameters)
        torch.testing.assert_close(list(out.values()), list(expected), rtol=1e-4, atol=1e-4)


def test_a_tied_weight_is_multiplied_out_by_the_memory_of_its_factors():
    """One-hot rows are one number each: as many products of two dense factors would be multiplied out."""
    torch.manual_seed(0)
    words, rows = torch.randint(300, (3, 8)), torch.randn(3, 8, 50)
    left, right = torch.randn(3, 8, 300), torch.randn(3, 8, 50)
    tied = outer([(words, rows), (left, right)], (300, 50), (300, 50))
    assert isinstance(tied, OuterSum) and isinstance(
        outer([(left, right)] * 2 + [(left, right)], (300, 50), (300, 50)), Dense
    )
    exact = tied.materialise().double().flatten(1).norm(dim=1)
    assert ((tied.norms() >= exact) & (tied.norms() <= 1.001 * exact)).all()
