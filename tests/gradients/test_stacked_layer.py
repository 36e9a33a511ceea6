"""A stacked layer is k linear layers side by side, also where a component has no record."""

import pytest
import torch
import torch.nn.functional as F

from lightning_dpgen.gradients.stacked import StackedLinear

OFFSETS = [(0, 2, 5, 6), (0, 0, 4, 4), (0, 1, 1, 1), (0, 0, 0, 0)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("offsets", OFFSETS)
def test_values_and_gradients_equal_a_loop(offsets, bias):
    generator = torch.Generator().manual_seed(0)
    layer = StackedLinear(3, 4, 2, bias=bias, generator=generator).double()
    x = torch.randn(offsets[-1], 4, generator=generator, dtype=torch.float64, requires_grad=True)
    inputs = [x, *layer.parameters()]
    slope = torch.randn(offsets[-1], 2, generator=generator, dtype=torch.float64)

    parts = [F.linear(x[offsets[c] : offsets[c + 1]], layer.weight[c], layer.bias[c] if bias else None) for c in range(3)]
    expected = torch.cat(parts)
    found = layer(x, offsets)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for a, b in zip(
        torch.autograd.grad((found * slope).sum(), inputs),
        torch.autograd.grad((expected * slope).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_starts_like_a_linear_layer_from_its_public_generator():
    one, again = (StackedLinear(2, 16, 8, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one.weight, again.weight)
    assert one.weight.abs().max() <= 0.25 and (one.bias == 0).all()
    assert not torch.equal(one.weight[0], one.weight[1])


def test_components_do_not_mix():
    layer = StackedLinear(2, 3, 3, generator=torch.Generator().manual_seed(0))
    layer(torch.rand(4, 3), (0, 4, 4)).sum().backward()
    assert (layer.weight.grad[1] == 0).all() and (layer.bias.grad[1] == 0).all()
    assert (layer.weight.grad[0] != 0).any()
