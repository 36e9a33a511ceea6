"""Columns that are drawn one after the other, each by a small network of what is before it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Waves by which a network sees choices in an order.
_WAVES = 8


def waves_of(ordered: int) -> Tensor:
    """Return what a network sees of each of so many choices in an order, (ordered, waves): slow cosine waves.

    Each is as much smaller as it is faster: neighbours are alike to begin with, and a person's gradient is not spent on
    what is fast. Two choices have no order.

    Example:
        >>> waves_of(20).shape, waves_of(2).shape
        (torch.Size([20, 8]), torch.Size([0, 0]))
    """
    ordered = ordered if ordered > 2 else 0
    at, numbers = (np.arange(ordered) + 0.5) / max(ordered, 1), np.arange(min(ordered, _WAVES))
    waves = np.cos(math.pi * at[:, None] * numbers) * np.where(numbers, math.sqrt(2.0) / np.maximum(numbers, 1), 1.0)
    return torch.from_numpy(waves.astype(np.float32))


def width_of(size: int, ordered: int) -> int:
    """Return how many numbers are seen of a column of so many choices, some of which are in an order.

    Example:
        >>> width_of(21, 20), width_of(3, 0)
        (9, 3)
    """
    first, waves = waves_of(ordered).shape
    return waves + size - first


class ColumnNetworks(nn.Module):
    """Columns that are drawn one after the other: each by a small network of a context and of the columns before it.

    Args:
        sizes, ordered: the numbers of choices of each column, and how many of the first are in an order.
        context: numbers of the context.
        hidden: units of each network.
        fixed_bias: keep the bias of each choice out of training.
        generator: public generator of the initial weights.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        ordered: Sequence[int],
        context: int,
        hidden: int,
        fixed_bias: bool,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self.sizes, self.widths = list(sizes), [width_of(*own) for own in zip(sizes, ordered, strict=True)]
        self.inner, self.inner_bias, self.outer = (nn.ParameterList() for _ in range(3))
        for j, (size, most, width) in enumerate(zip(sizes, ordered, self.widths, strict=True)):
            inputs = context + sum(self.widths[:j])
            self.inner.append(nn.Parameter(torch.randn(hidden, inputs, generator=generator) / math.sqrt(inputs)))
            self.inner_bias.append(nn.Parameter(torch.zeros(hidden)))
            self.outer.append(nn.Parameter(torch.randn(width, hidden, generator=generator) / math.sqrt(hidden)))
            self.register_buffer(f"waves_{j}", waves_of(most))
            bias = torch.zeros(size)
            self.register_buffer(f"bias_{j}", bias) if fixed_bias else setattr(self, f"bias_{j}", nn.Parameter(bias))

    @property
    def biases(self) -> list[Tensor]:
        return [getattr(self, f"bias_{j}") for j in range(len(self.sizes))]

    def seen(self, j: int, choices: Tensor) -> Tensor:
        """Return what is seen of choices of a column (..., size), one-hot: waves of those in order, others as they are."""
        waves = self.get_buffer(f"waves_{j}")
        ordered = len(waves)
        return torch.cat([choices[..., :ordered] @ waves, choices[..., ordered:]], dim=-1) if ordered else choices

    def seen_of(self, j: int, codes: Tensor) -> Tensor:
        """Return what is seen of choices by their numbers (n,)."""
        return self.seen(j, F.one_hot(codes, self.sizes[j]).to(self.inner_bias[j]))

    def logits(self, j: int, inputs: Sequence[Tensor]) -> Tensor:
        """Return the logits (..., size) of a column, from a context and what is seen of the columns before it."""
        units = torch.tanh(F.linear(torch.cat(list(inputs), dim=-1), self.inner[j], self.inner_bias[j]))
        out, waves = F.linear(units, self.outer[j]), self.get_buffer(f"waves_{j}")
        count = waves.shape[1]
        if count:
            out = torch.cat([out[..., :count] @ waves.mT, out[..., count:]], dim=-1)
        return out + getattr(self, f"bias_{j}")
