"""Each way to compute the gradients of a kernel gives those of single pictures, whatever sizes choose it."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from lightning_dpgen.gradients.component_factors import sum_factors
from lightning_dpgen.gradients.factors import OuterSum, Permuted
from lightning_dpgen.gradients.tape_rules import convolutions

# Input and output channels, kernel, stride, padding, dilation, and the side of a picture.
SIZES = {
    "products, channels in front": (2, 3, (3, 2), 2, 1, 1, 8),
    "products, channels behind": (6, 8, (3, 2), 2, (1, 0), 1, 9),
    "shifted and dilated": (7, 4, 3, 1, 2, 2, 9),
    "held apart": (16, 24, 3, 1, 1, 1, 3),
    "one position": (8, 4, 3, 1, 0, 1, 3),
    "shifted": (16, 16, 3, 1, 1, 1, 24),
}


def _found(name, pictures, several):
    i, o, kernel, stride, padding, dilation, side = SIZES[name]
    x = torch.randn(pictures * several, i, side, side)
    weight = torch.randn(o, i, *(kernel if isinstance(kernel, tuple) else (kernel, kernel)), requires_grad=True)
    y = F.conv2d(x, weight, None, stride, padding, dilation)
    g = torch.randn_like(y)
    factors = convolutions.conv_factors(x, g, pictures, tuple(weight.shape), stride, padding, dilation, 1)
    each = (y * g).unflatten(0, (pictures, several)).flatten(1).sum(dim=1)
    expected = torch.stack([torch.autograd.grad(loss, weight, retain_graph=True)[0] for loss in each])
    return factors, expected


@pytest.mark.parametrize(("name", "several"), itertools.product(SIZES, (1, 2)))
def test_gradients_are_those_of_single_pictures(name, several, monkeypatch):
    # The views of few pictures are held at a time, so that there are several parts.
    monkeypatch.setattr(convolutions, "_AT_ONCE", 10_000)
    torch.manual_seed(0)
    factors, expected = _found(name, 5, several)
    weights, onto = torch.rand(5), torch.randn(expected.shape[1:])
    torch.testing.assert_close(factors.materialise(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(factors.norms().float(), expected.flatten(1).norm(dim=1), rtol=1e-3, atol=1e-3)
    assert (factors.norms().double() >= expected.double().flatten(1).norm(dim=1) * (1 - 1e-6)).all()
    torch.testing.assert_close(factors.project(onto).float(), (expected * onto).flatten(1).sum(dim=1), rtol=1e-3, atol=1e-2)
    for add in (False, True):
        out = torch.ones_like(onto)
        factors.weighted_sum(weights, None, out, add=add)
        torch.testing.assert_close(out, torch.einsum("b,b...->...", weights, expected) + add, rtol=1e-3, atol=1e-3)
    both = sum_factors([factors, factors])
    torch.testing.assert_close(both.materialise(), 2 * expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(factors.mapped(lambda x: x[1:3]).materialise(), expected[1:3], rtol=1e-4, atol=1e-4)


def test_sizes_choose_between_the_ways():
    kinds = {}
    for name in SIZES:
        i, o, kernel, stride, padding, dilation, side = SIZES[name]
        kernel = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        x, y = (
            torch.zeros(2, i, side, side),
            F.conv2d(torch.zeros(2, i, side, side), torch.zeros(o, i, *kernel), None, stride, padding, dilation),
        )
        factors = convolutions.conv_factors(x, y, 2, (o, i, *kernel), stride, padding, dilation, 1)
        inner = factors.inner if isinstance(factors, Permuted) else factors
        kinds[name] = type(factors).__name__, type(inner).__name__
    assert kinds["shifted"] == kinds["shifted and dilated"] == ("Permuted", "KernelBlocks")
    assert kinds["products, channels in front"] == ("Dense", "Dense")
    assert kinds["products, channels behind"] == ("Permuted", "Dense")
    assert kinds["held apart"] == ("Permuted", OuterSum.__name__)
    assert kinds["one position"] == ("Permuted", "RankOne")
