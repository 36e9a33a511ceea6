"""Layers for k components at once: the record of component c meets the c-th slice of weight and bias.

A batch is sorted by component, and its offsets are the k + 1 positions of the segments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from lightning_dpgen.gradients.component_factors import OneComponent
from lightning_dpgen.gradients.factors import Dense, GradientFactors, RankOne, outer
from lightning_dpgen.gradients.stacked_ops import (
    MultiHotRankOne,
    Pair,
    segmented_conv2d,
    segmented_conv_transpose2d,
    segmented_linear,
)


class StackedLinear(nn.Module):
    """k linear maps side by side.

    Args:
        inputs: n, width of a record.
        outputs: o.
        generator: public generator of the initial weights (uniform within 1/sqrt(n), as `nn.Linear`).
    """

    def __init__(
        self, k: int, inputs: int, outputs: int, *, bias: bool = True, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.weight = _uniform((k, outputs, inputs), inputs, generator)
        self.bias = nn.Parameter(torch.zeros(k, outputs)) if bias else None

    def forward(self, x: Tensor, offsets: Sequence[int]) -> Tensor:
        """Map (B, n) to (B, o)."""
        return segmented_linear(x, self.weight, self.bias, offsets)

    def back(self, v: Tensor, offsets: Sequence[int]) -> Tensor:
        """Map (B, o) to (B, n) by the transposed maps: the gradient of ``v . forward(x)`` with respect to x."""
        return segmented_linear(v, self.weight.mT, None, offsets)


def layer_factors(
    layer: StackedLinear, gradient: Tensor, inputs: Tensor, offsets: Sequence[int]
) -> dict[nn.Parameter, GradientFactors]:
    """Return the gradients of a layer that was called once, from those of its outputs (B, o) and its inputs (B, n).

    With (B, r, o) and (B, r, n) they are sums of r outer products. Inputs may be the places of ones, (B, ones) int64.
    """
    shape, single = tuple(layer.weight.shape[1:]), gradient.dim() == 2
    factors: dict[nn.Parameter, GradientFactors] = {}
    if layer.weight.requires_grad:
        if not inputs.is_floating_point():
            weight_factors = MultiHotRankOne(gradient, inputs, shape)
        else:
            weight_factors = RankOne(gradient, inputs, shape) if single else outer([(gradient, inputs)], shape, shape)
        factors[layer.weight] = OneComponent(weight_factors, offsets)
    if layer.bias is not None and layer.bias.requires_grad:
        factors[layer.bias] = OneComponent(Dense(gradient if single else gradient.sum(dim=1)), offsets)
    return factors


class _Stacked2d(nn.Module):
    """Filters of k components, in the order of channels that the function of each layer expects."""

    transposed: ClassVar[bool]

    def __init__(
        self,
        k: int,
        inputs: int,
        outputs: int,
        kernel: Pair,
        *,
        stride: Pair = 1,
        padding: Pair = 0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        kernel, self.stride, self.padding = map(_pair, (kernel, stride, padding))
        first, second = (inputs, outputs) if self.transposed else (outputs, inputs)
        self.weight = _uniform((k, first, second, *kernel), second * math.prod(kernel), generator)
        self.bias = nn.Parameter(torch.zeros(k, outputs))


class StackedConv2d(_Stacked2d):
    """k convolutions side by side.

    Args:
        inputs, outputs: channels.
        kernel, stride, padding: as for `nn.Conv2d`, one number for both directions or a pair.
        generator: public generator of the initial weights, as `nn.Conv2d`.
    """

    transposed = False

    def forward(self, x: Tensor, offsets: Sequence[int]) -> Tensor:
        """Map (B, inputs, h, w) to (B, outputs, h', w')."""
        return segmented_conv2d(x, self.weight, self.bias, offsets, stride=self.stride, padding=self.padding)

    def back(self, v: Tensor, offsets: Sequence[int], size: Sequence[int]) -> Tensor:
        """Map (B, outputs, h', w') to (B, inputs, h, w): the gradient of ``v . forward(x)`` with respect to x.

        Args:
            size: h and w, which h' and w' do not determine.
        """
        sizes = zip(size, v.shape[2:], self.weight.shape[3:], self.stride, self.padding, strict=True)
        extra = tuple(n - ((m - 1) * stride - 2 * padding + kernel) for n, m, kernel, stride, padding in sizes)
        return segmented_conv_transpose2d(
            v, self.weight, None, offsets, stride=self.stride, padding=self.padding, output_padding=extra
        )


class StackedConvTranspose2d(_Stacked2d):
    """k transposed convolutions side by side; arguments as for `StackedConv2d`."""

    transposed = True

    def forward(self, x: Tensor, offsets: Sequence[int]) -> Tensor:
        """Map (B, inputs, h, w) to (B, outputs, h', w')."""
        return segmented_conv_transpose2d(x, self.weight, self.bias, offsets, stride=self.stride, padding=self.padding)


def _pair(value: Pair) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


def _uniform(shape: tuple[int, ...], fan_in: int, generator: torch.Generator | None) -> nn.Parameter:
    reach = 1.0 / math.sqrt(fan_in)
    return nn.Parameter(torch.empty(shape).uniform_(-reach, reach, generator=generator))
