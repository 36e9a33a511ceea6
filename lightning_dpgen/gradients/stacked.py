"""A linear layer for k components at once: the record of component c meets the c-th matrix."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class StackedLinear(nn.Module):
    """k linear maps side by side; a batch sorted by component runs through them segment by segment, without padding.

    Args:
        k: number of components.
        inputs: n, width of a record.
        outputs: o.
        bias: whether each map has a bias.
        generator: public generator of the initial weights (uniform within 1/sqrt(n), as `nn.Linear`).
    """

    def __init__(
        self, k: int, inputs: int, outputs: int, *, bias: bool = True, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        reach = 1.0 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(k, outputs, inputs).uniform_(-reach, reach, generator=generator))
        self.bias = nn.Parameter(torch.zeros(k, outputs)) if bias else None

    def forward(self, x: Tensor, offsets: Sequence[int]) -> Tensor:
        """(B, n) sorted by component, and the k + 1 offsets of the segments; gives (B, o)."""
        return _SegmentedLinear.apply(x, self.weight, self.bias, offsets)


class _SegmentedLinear(torch.autograd.Function):
    """One node of the graph for all segments, where a loop of k linear layers and a `cat` would make 2 k."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, weight, bias, offsets):
        parts = []
        for c, start, end in _segments(offsets):
            rows, matrix = x[start:end], weight[c].T
            parts.append(rows @ matrix if bias is None else torch.addmm(bias[c], rows, matrix))
        return torch.cat(parts) if parts else x.new_empty(0, weight.shape[1])

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, bias, ctx.offsets = inputs
        ctx.save_for_backward(x, weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        x, weight, bias = ctx.saved_tensors
        segments = _segments(ctx.offsets)
        dx = dweight = dbias = None
        if ctx.needs_input_grad[0]:
            parts = [gradient[start:end] @ weight[c] for c, start, end in segments]
            dx = torch.cat(parts) if parts else torch.zeros_like(x)
        if ctx.needs_input_grad[1]:
            blocks = [torch.zeros_like(weight[0]) for _ in range(weight.shape[0])]
            for c, start, end in segments:
                blocks[c] = gradient[start:end].T @ x[start:end]
            dweight = torch.stack(blocks)
        if ctx.needs_input_grad[2]:
            rows = [torch.zeros_like(bias[0]) for _ in range(bias.shape[0])]
            for c, start, end in segments:
                rows[c] = gradient[start:end].sum(dim=0)
            dbias = torch.stack(rows)
        return dx, dweight, dbias, None


def _segments(offsets: Sequence[int]) -> list[tuple[int, int, int]]:
    """(component, start, end) of the components that have records."""
    ends = itertools.pairwise(offsets)
    return [(c, start, end) for c, (start, end) in enumerate(ends) if end > start]
