"""A recurrent network for k components that writes a series from its first time to its last."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.gradients.isolation.isolation import HiddenOffsets
from lightning_dpgen.gradients.stacked import StackedLinear

# Waves by which a cell knows the time: of the whole length, and of its half.
_WAVES = 2


class SeriesDecoder(nn.Module):
    """k LSTMs: a code at each time, beside slow waves that tell the time, to the readings; the label by a linear layer.

    It is trained on no record, so it need not have gradients of single ones.

    Args:
        schema: series.
        inputs: width of the code.
        hidden: units of a cell.
        generator: public generator of the initial weights.

    Raises:
        ValueError: for records of another kind.

    Example:
        >>> from lightning_dpgen.data.series.schema import SeriesSchema
        >>> network = SeriesDecoder(SeriesSchema(length=3, low=0.0, high=1.0), 2, inputs=4, hidden=5)
        >>> network(torch.zeros(6, 4), (0, 2, 6)).shape
        torch.Size([6, 3])
    """

    def __init__(
        self, schema: Schema, k: int, inputs: int, hidden: int, *, generator: torch.Generator | None = None
    ) -> None:
        if schema.dimensions != 1:
            raise ValueError(
                f"records of kind {schema.kind}: network='lstm' needs series; network='dense' takes any records"
            )
        super().__init__()
        self._length, channels = schema.axes
        self.cells = nn.ModuleList(nn.LSTM(inputs + 2 * _WAVES, hidden, batch_first=True) for _ in range(k))
        with torch.no_grad():
            for parameter in self.cells.parameters():
                parameter.uniform_(-1.0 / math.sqrt(hidden), 1.0 / math.sqrt(hidden), generator=generator)
        self.readings = StackedLinear(k, hidden, channels, bias=False, generator=generator)
        labels = sum(schema.layout.groups)
        self.label = StackedLinear(k, inputs, labels, bias=False, generator=generator) if labels else None

    def forward(self, z: Tensor, offsets: Sequence[int]) -> Tensor:
        """Map (B, inputs), sorted by component, to (B, width)."""
        # A cell goes through the lot of its component, of which a private loss shows one record alone.
        return offsets.call(self._decode, z) if isinstance(offsets, HiddenOffsets) else self._decode(z, offsets)

    def _decode(self, z: Tensor, offsets: Sequence[int]) -> Tensor:
        length = self._length
        turns = torch.arange(length, device=z.device, dtype=z.dtype)[:, None] * torch.arange(1, _WAVES + 1, device=z.device)
        waves = torch.cat([torch.cos(2.0 * math.pi * turns / length), torch.sin(2.0 * math.pi * turns / length)], dim=1)
        steps = torch.cat([z[:, None].expand(-1, length, -1), waves.expand(len(z), -1, -1)], dim=2)
        segments = zip(self.cells, itertools.pairwise(offsets), strict=True)
        # A cell takes no empty batch.
        parts = [cell(steps[start:end])[0] for cell, (start, end) in segments if end > start]
        hidden = torch.cat(parts or [steps[..., : self.readings.weight.shape[2]]]).flatten(0, 1)
        readings = self.readings(hidden, [length * end for end in offsets]).unflatten(0, (len(z), length)).flatten(1)
        return readings if self.label is None else torch.cat([readings, self.label(z, offsets)], dim=1)
