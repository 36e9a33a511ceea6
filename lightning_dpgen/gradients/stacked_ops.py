"""Functions of k components at once: a batch sorted by component runs through them segment by segment, without padding.

The record of component c meets the c-th slice of weight and bias. Like functions of torch they may be overridden by the
types of their arguments.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from lightning_dpgen.gradients.factors import GradientFactors, lengths
from lightning_dpgen.gradients.isolation.isolation import HiddenOffsets
from lightning_dpgen.sampling.multi_hot import find_ones, to_dense

# A number for both directions of a plane, or one each.
Pair: TypeAlias = int | tuple[int, int]


def segmented_linear(x: Tensor, weight: Tensor, bias: Tensor | None, offsets: Sequence[int]) -> Tensor:
    """Multiply (B, n) by the matrices (k, o, n) and add the biases (k, o), to (B, o)."""
    given = (x, weight) if bias is None else (x, weight, bias)
    if has_torch_function(given):
        return handle_torch_function(segmented_linear, given, x, weight, bias, offsets)
    if isinstance(offsets, HiddenOffsets):
        return offsets.call(segmented_linear, x, weight, bias)
    if not torch.is_grad_enabled():
        return segmented_product(x, weight, bias, offsets)
    return _SegmentedLinear.apply(x, weight, bias, offsets)


def segmented_conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None, offsets: Sequence[int], *, stride: Pair = 1, padding: Pair = 0
) -> Tensor:
    """Convolve (B, c, h, w) with the filters (k, o, c, kernel heights, kernel widths)."""
    given = (x, weight) if bias is None else (x, weight, bias)
    options = {"stride": stride, "padding": padding}
    if has_torch_function(given):
        return handle_torch_function(segmented_conv2d, given, x, weight, bias, offsets, **options)
    if isinstance(offsets, HiddenOffsets):
        return offsets.call(segmented_conv2d, x, weight, bias, **options)
    return _each(F.conv2d, x, weight, bias, offsets, options)


def segmented_conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    offsets: Sequence[int],
    *,
    stride: Pair = 1,
    padding: Pair = 0,
    output_padding: tuple[int, int] = (0, 0),
) -> Tensor:
    """Convolve (B, c, h, w), transposed, with the filters (k, c, o, kernel heights, kernel widths)."""
    given = (x, weight) if bias is None else (x, weight, bias)
    options = {"stride": stride, "padding": padding, "output_padding": output_padding}
    if has_torch_function(given):
        return handle_torch_function(segmented_conv_transpose2d, given, x, weight, bias, offsets, **options)
    if isinstance(offsets, HiddenOffsets):
        return offsets.call(segmented_conv_transpose2d, x, weight, bias, **options)
    return _each(F.conv_transpose2d, x, weight, bias, offsets, options)


def segmented_product(x: Tensor, weight: Tensor, bias: Tensor | None, offsets: Sequence[int]) -> Tensor:
    """Compute `segmented_linear` for closed forms, without overrides and without a node in a graph."""
    if len(offsets) == 2:
        return x @ weight[0].T if bias is None else torch.addmm(bias[0], x, weight[0].T)
    parts = []
    for c, start, end in segments(offsets):
        rows, matrix = x[start:end], weight[c].T
        parts.append(rows @ matrix if bias is None else torch.addmm(bias[c], rows, matrix))
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts) if parts else x.new_empty(0, weight.shape[1])


def wide_product(x: Tensor, weight: Tensor, bias: Tensor, offsets: Sequence[int]) -> Tensor:
    """Compute `segmented_product` with each segment written to its place: for outputs that are too wide to be copied."""
    out = x.new_empty(len(x), weight.shape[1])
    for c, start, end in segments(offsets):
        torch.addmm(bias[c], x[start:end], weight[c].T, out=out[start:end])
    return out


def segments(offsets: Sequence[int]) -> list[tuple[int, int, int]]:
    """List (component, start, end) for the components that have records."""
    return [(c, start, end) for c, (start, end) in enumerate(itertools.pairwise(offsets)) if end > start]


def components(offsets: Sequence[int], device: torch.device) -> Tensor:
    """Return the component (B,) of each record, given where the components begin and end."""
    if isinstance(offsets, HiddenOffsets):
        return offsets.components(device)
    sizes = torch.tensor([end - start for start, end in itertools.pairwise(offsets)])
    return torch.repeat_interleave(sizes, output_size=offsets[-1]).to(device)


def select_component(x: Tensor, offsets: Sequence[int]) -> Tensor:
    """Return the slice of (k, ...) of each record's component, for closed forms: (B, ...), or what broadcasts to it."""
    return x[0] if len(offsets) == 2 else x[components(offsets, x.device)]


def _each(function: Callable, x: Tensor, weight: Tensor, bias: Tensor | None, offsets, options: dict) -> Tensor:
    # A lot without a record still has a shape, and a place in the graph.
    cuts = segments(offsets) or [(0, 0, 0)]
    parts = [function(x[start:end], weight[c], None if bias is None else bias[c], **options) for c, start, end in cuts]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class _SegmentedLinear(torch.autograd.Function):
    """One node of the graph for all segments, where a loop over k linear layers and a `cat` would make 2 k."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, weight, bias, offsets):
        return segmented_product(x, weight, bias, offsets)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, bias, ctx.offsets = inputs
        ctx.save_for_backward(x, weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        x, weight, bias = ctx.saved_tensors
        cuts = segments(ctx.offsets)
        dx = dweight = dbias = None
        # Under autocast results have less precision than parameters.
        gradient, x, kind = gradient.to(weight.dtype), x.to(weight.dtype), x.dtype
        if ctx.needs_input_grad[0]:
            dx = segmented_product(gradient, weight.mT, None, ctx.offsets).to(kind)
        if ctx.needs_input_grad[1]:
            blocks = [torch.zeros_like(weight[0]) for _ in range(weight.shape[0])]
            for c, start, end in cuts:
                blocks[c] = gradient[start:end].T @ x[start:end]
            dweight = torch.stack(blocks)
        if ctx.needs_input_grad[2]:
            rows = [torch.zeros_like(bias[0]) for _ in range(bias.shape[0])]
            for c, start, end in cuts:
                rows[c] = gradient[start:end].sum(dim=0)
            dbias = torch.stack(rows)
        return dx, dweight, dbias, None


def multi_hot_product(x: Tensor, weight: Tensor, bias: Tensor, offsets: Sequence[int]) -> Tensor:
    """Compute the `segmented_product` (B, o) of the written-out records with (k, o, n) and (k, o).

    Args:
        x: (B, ones) the places of each record's ones, sorted by component; n where there are fewer.
    """
    records, places = find_ones(x, weight.shape[2])
    columns = weight.mT
    rows = columns[0][places] if len(offsets) == 2 else columns[components(offsets, x.device)[records], places]
    return select_component(bias, offsets).expand(len(x), -1).clone().index_add_(0, records, rows)


@dataclass
class MultiHotRankOne(GradientFactors):
    """One outer product a record with a row of 0 and 1, ``gradient_i = left_i x_i^T``.

    Args:
        left: (R, o), floating point.
        places: (R, ones) the places of the ones of x_i, all different; n where there are fewer.
        view: (o, n), the parameter's shape.
    """

    left: Tensor
    places: Tensor
    view: tuple[int, int]

    def norms(self) -> Tensor:
        # The number of ones is exact, and only its root is rounded, in float64.
        count = (self.places < self.view[1]).sum(dim=1, dtype=torch.float64)
        return lengths(self.left).double() * count.sqrt_()

    def weighted_sum(self, weights: Tensor, silenced: Tensor | None, out: Tensor, *, add: bool) -> None:
        left = self.left if silenced is None else torch.where(silenced[:, None], 0.0, self.left)
        left = (left * weights.to(left.dtype)[:, None]).to(out.dtype)
        records, places = find_ones(self.places, self.view[1])
        if not add:
            out.zero_()
        out.view(self.view).T.index_add_(0, places, left[records])

    def materialise(self) -> Tensor:
        return self.left[:, :, None] * to_dense(self.places, self.view[1], self.left.dtype)[:, None]

    def project(self, onto: Tensor) -> Tensor:
        records, places = find_ones(self.places, self.view[1])
        each = (self.left[records] * onto.reshape(self.view).T[places]).sum(dim=1, dtype=torch.float64)
        return each.new_zeros(len(self.left)).index_add_(0, records, each)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> GradientFactors:
        return MultiHotRankOne(change(self.left), change(self.places), self.view)
