"""Three convolutions of 4 by 4 that each halve a picture, for k components at once, and the way back (PriVAE, section 5.1).

Networks of Mathieu et al. (2019), without batch normalisation, in which the records of a lot would meet.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.gradients.stacked import StackedConv2d, StackedConvTranspose2d, StackedLinear
from lightning_dpgen.models.networks import as_planes, as_record

# Kernel, stride and padding of a convolution that halves a picture, and the multiple that three of them need.
_HALVING = {"kernel": 4, "stride": 2, "padding": 1}
_MULTIPLE = 8


class DeepConvEncoder(nn.Module):
    """k networks of three convolutions with f, 2 f and 4 f channels, and a linear layer, which sees the label too.

    Pictures are padded with zeros on all sides to the next multiple of 8: 28 by 28 to 32 by 32.

    Args:
        schema: pictures.
        outputs: o.
        filters: f.
        generator: public generator of the initial weights.

    Raises:
        ValueError: for other records.

    Example:
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> network = DeepConvEncoder(ImageSchema(6, 6, levels=1), 2, outputs=3, filters=2)
        >>> network(torch.zeros(5, 36), (0, 2, 5)).shape
        torch.Size([5, 3])
    """

    def __init__(
        self, schema: Schema, k: int, outputs: int, *, filters: int = 32, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self._schema = _pictures(schema)
        self._padding, eighth = _padded(self._schema)
        channels = (self._schema.channels, filters, 2 * filters, 4 * filters)
        self.convolutions = nn.ModuleList(
            StackedConv2d(k, n, o, **_HALVING, generator=generator) for n, o in itertools.pairwise(channels)
        )
        width = channels[-1] * eighth[0] * eighth[1] + sum(self._schema.layout.groups)
        self.last = StackedLinear(k, width, outputs, generator=generator)

    def forward(self, x: Tensor, offsets: Sequence[int]) -> Tensor:
        """Map records (B, width), sorted by component, to (B, o)."""
        units = self._schema.layout.units
        planes, label = F.pad(as_planes(x[:, :units], self._schema), self._padding), x[:, units:]
        for convolution in self.convolutions:
            planes = F.relu(convolution(planes, offsets))
        return self.last(torch.cat([planes.flatten(1), label], dim=1), offsets)


class DeepConvDecoder(nn.Module):
    """k networks of a linear layer and three transposed convolutions, f channels at last; the label by a linear layer.

    Args:
        schema, k, filters, generator: as for `DeepConvEncoder`.
        inputs: width of the code.
    """

    def __init__(
        self, schema: Schema, k: int, inputs: int, *, filters: int = 32, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self._schema = _pictures(schema)
        self._padding, eighth = _padded(self._schema)
        channels = (4 * filters, 2 * filters, filters, self._schema.channels)
        self._shape = (channels[0], *eighth)
        self.inner = StackedLinear(k, inputs, channels[0] * eighth[0] * eighth[1], generator=generator)
        labels = sum(self._schema.layout.groups)
        self.label = StackedLinear(k, inputs, labels, generator=generator) if labels else None
        self.convolutions = nn.ModuleList(
            StackedConvTranspose2d(k, n, o, **_HALVING, generator=generator) for n, o in itertools.pairwise(channels)
        )

    def forward(self, z: Tensor, offsets: Sequence[int]) -> Tensor:
        """Map (B, inputs), sorted by component, to (B, width)."""
        planes = self.inner(z, offsets).unflatten(1, self._shape)
        for convolution in self.convolutions:
            planes = convolution(F.relu(planes), offsets)
        left, right, top, bottom = self._padding
        kept = planes[:, :, top : planes.shape[2] - bottom, left : planes.shape[3] - right]
        picture = as_record(kept, self._schema)
        return picture if self.label is None else torch.cat([picture, self.label(z, offsets)], dim=1)


def _pictures(schema: Schema) -> Schema:
    if schema.dimensions != 2:
        raise ValueError(f"records of kind {schema.kind}: network='deep_conv' needs pictures; 'dense' takes any")
    return schema


def _padded(schema: Schema) -> tuple[tuple[int, int, int, int], tuple[int, int]]:
    """Return how many zeros stand left, right, above and below a picture, and an eighth of its height and width then."""
    padding: list[int] = []
    eighths = []
    for size in (schema.width, schema.height):
        missing = -size % _MULTIPLE
        padding += [missing // 2, missing - missing // 2]
        eighths.append((size + missing) // _MULTIPLE)
    left, right, top, bottom = padding
    return (left, right, top, bottom), (eighths[1], eighths[0])
