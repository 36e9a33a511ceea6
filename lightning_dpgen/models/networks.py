"""Networks for k components at once, of which the models are built: fully connected ones, and ones for pictures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_dpgen.gradients.factors import GradientFactors
from lightning_dpgen.gradients.stacked import StackedConv2d, StackedConvTranspose2d, StackedLinear, layer_factors
from lightning_dpgen.gradients.stacked_ops import multi_hot_product, segmented_product, segments, wide_product

if TYPE_CHECKING:
    from lightning_dpgen.data.schema import Schema

# Channels of the two convolutions of a network for pictures.
_CHANNELS = (16, 32)
# Hidden layers on one side: `dpgen train` takes eight, and without shortcuts beside them nothing is learned through more.
# A reader of a release builds as many layers as it says, so a network with more is never made.
MOST_LAYERS = 64


def check_sizes(**sizes: int) -> None:
    """Raise ValueError, naming it, for a size that is no whole number from 1."""
    for name, size in sizes.items():
        if type(size) is not int or not 1 <= size < 1 << 62:
            raise ValueError(f"{name}={size!r}: expected a whole number, 1 or more")


def check_layers(layers: int) -> None:
    """Raise ValueError for more layers than `MOST_LAYERS`, before one of them is built."""
    if layers > MOST_LAYERS:
        raise ValueError(f"layers={layers}: expected at most {MOST_LAYERS}")


def check_seed(seed: int) -> None:
    """Raise ValueError for an invalid seed, before anything is spent on a fit that needs one."""
    if type(seed) is not int or not 0 <= seed < 1 << 62:
        raise ValueError(f"seed={seed!r}: expected a whole number, 0 or more")


class StackedMLP(nn.Module):
    """k fully connected networks with rectifiers between their layers.

    Args:
        widths: widths of the input, the hidden layers and the output.
        slope: slope of the rectifiers below 0.
        last_bias: whether the last layer has a bias.
        shared: for each layer, whether all components share it; None for no layer.
        generator: public generator of the initial weights.
    """

    def __init__(
        self,
        k: int,
        widths: Sequence[int],
        *,
        slope: float = 0.0,
        last_bias: bool = True,
        shared: Sequence[bool] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        last = len(widths) - 2
        self.slope, self.shared = slope, tuple(shared or (False,) * (last + 1))
        self.layers = nn.ModuleList(
            StackedLinear(1 if common else k, n, o, bias=i < last or last_bias, generator=generator)
            for i, ((n, o), common) in enumerate(zip(itertools.pairwise(widths), self.shared, strict=True))
        )

    def _offsets(self, offsets: Sequence[int]) -> list[Sequence[int]]:
        """Return the offsets for each layer: a shared one has a single segment."""
        return [(0, offsets[-1]) if common else offsets for common in self.shared]

    def forward(self, x: Tensor, offsets: Sequence[int]) -> Tensor:
        """Map (B, n), sorted by component, to (B, o)."""
        *inner, last = zip(self.layers, self._offsets(offsets), strict=True)
        for layer, own in inner:
            x = F.leaky_relu(layer(x, own), self.slope) if self.slope else F.relu(layer(x, own))
        return last[0](x, last[1])

    def slope_of(self, x: Tensor, offsets: Sequence[int]) -> Tensor:
        """Compute the gradient (B, n) of a single output with respect to the input, as a function of the parameters.

        No layer may be shared.
        """
        kept = []
        for layer in self.layers[:-1]:
            x = layer(x, offsets)
            kept.append(signs(x.detach(), self.slope))
            x = x * kept[-1]
        v = self.layers[-1].back(x.new_ones(len(x), 1), offsets)
        for layer, sign in zip(reversed(self.layers[:-1]), reversed(kept), strict=True):
            v = layer.back(v * sign, offsets)
        return v

    def run(self, x: Tensor, offsets: Sequence[int], bias: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        """Compute `forward` outside any graph, for rectifiers without a slope; and the inputs of each layer, for `back`.

        Args:
            x: (B, n); for networks of two layers or more also (B, ones) int64, the places of a record's ones.
            bias: (k, o) the bias of the last layer, where it has none of its own.
        """
        inputs, layer_offsets = [x], self._offsets(offsets)
        for layer, where in zip(self.layers[:-1], layer_offsets, strict=False):
            product = segmented_product if inputs[-1].is_floating_point() else multi_hot_product
            inputs.append(product(inputs[-1], layer.weight, layer.bias, where).relu_())
        last = self.layers[-1]
        if bias is None:
            return segmented_product(inputs[-1], last.weight, last.bias, layer_offsets[-1]), inputs
        if not self.shared[-1]:
            return wide_product(inputs[-1], last.weight, bias, offsets), inputs
        out = segmented_product(inputs[-1], last.weight, None, layer_offsets[-1])
        for c, start, end in segments(offsets):
            out[start:end] += bias[c]
        return out, inputs

    def back(
        self, gradient: Tensor, inputs: list[Tensor], offsets: Sequence[int], *, to_input: bool, draws: int = 1
    ) -> tuple[dict[nn.Parameter, GradientFactors], Tensor | None]:
        """Turn the gradient of the outputs of `run` into those of parameters by record, and of the input if asked for.

        Args:
            draws: the number of rows of each record, one below the other; its gradient is their sum.
        """
        factors: dict[nn.Parameter, GradientFactors] = {}
        for i, layer_offsets in reversed(list(enumerate(self._offsets(offsets)))):
            layer, left, right = self.layers[i], gradient, inputs[i]
            if draws > 1:
                left, right = left.unflatten(0, (-1, draws)), right.unflatten(0, (-1, draws))
            factors |= layer_factors(layer, left, right, [offset // draws for offset in layer_offsets])
            if i:
                gradient = segmented_product(gradient, layer.weight.mT, None, layer_offsets)
                # A product with a mask would take eight times as long.
                torch.ops.aten.threshold_backward.grad_input(gradient, inputs[i], 0, grad_input=gradient)
            elif to_input:
                gradient = segmented_product(gradient, layer.weight.mT, None, layer_offsets)
        return factors, gradient if to_input else None


class ConvEncoder(nn.Module):
    """k networks of two convolutions, each halving a picture or a series, and a linear layer, which sees the label too.

    A series is convolved along time, with all of its channels.

    Args:
        schema: series, or pictures whose height and width are multiples of 4.
        outputs: o.
        slope: slope of the rectifiers below 0.
        generator: public generator of the initial weights.

    Raises:
        ValueError: for other records, or pictures of another size.

    Example:
        >>> from lightning_dpgen.data.series.schema import SeriesSchema
        >>> network = ConvEncoder(SeriesSchema(length=9, low=0.0, high=1.0), 2, outputs=3)
        >>> network(torch.zeros(6, 9), (0, 2, 6)).shape
        torch.Size([6, 3])
    """

    def __init__(
        self, schema: Schema, k: int, outputs: int, *, slope: float = 0.0, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        if schema.dimensions == 1:
            last, kernel, stride, padding = (-(-schema.axes[0] // 4), 1), (5, 1), (2, 1), (2, 0)
        else:
            last, kernel, stride, padding = _quarters(schema), (3, 3), (2, 2), (1, 1)
        self._schema, self.slope = schema, slope
        layout, (first, second) = schema.layout, _CHANNELS
        filters = {"kernel": kernel, "stride": stride, "padding": padding, "generator": generator}
        self.first = StackedConv2d(k, schema.axes[-1], first, **filters)
        self.second = StackedConv2d(k, first, second, **filters)
        self.last = StackedLinear(k, second * math.prod(last) + sum(layout.groups), outputs, generator=generator)

    def forward(self, x: Tensor, offsets: Sequence[int]) -> Tensor:
        """Map records (B, width), sorted by component, to (B, o)."""
        units = self._schema.layout.units
        x, label = as_planes(x[:, :units], self._schema), x[:, units:]
        x = F.leaky_relu(self.first(x, offsets), self.slope)
        x = F.leaky_relu(self.second(x, offsets), self.slope)
        return self.last(torch.cat([x.flatten(1), label], dim=1), offsets)

    def slope_of(self, x: Tensor, offsets: Sequence[int]) -> Tensor:
        """Compute the gradient (B, width) of a single output with respect to the record, as a function of parameters."""
        schema = self._schema
        planes = as_planes(x[:, : schema.layout.units], schema)
        first = self.first(planes, offsets)
        second = self.second(F.leaky_relu(first, self.slope), offsets)
        v = self.last.back(x.new_ones(len(x), 1), offsets)
        inner = v.shape[1] - sum(schema.layout.groups)
        label, v = v[:, inner:], v[:, :inner].unflatten(1, second.shape[1:]) * signs(second.detach(), self.slope)
        v = self.second.back(v, offsets, first.shape[2:]) * signs(first.detach(), self.slope)
        return torch.cat([as_record(self.first.back(v, offsets, planes.shape[2:]), schema), label], dim=1)


class PictureDecoder(nn.Module):
    """k networks of a linear layer and two transposed convolutions, each doubling the picture; the label by a linear layer.

    Args:
        schema, k, slope, generator: as for `ConvEncoder`.
        inputs: width of the code.
    """

    def __init__(
        self, schema: Schema, k: int, inputs: int, *, slope: float = 0.0, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self._schema, self.slope = schema, slope
        self._shape = (_CHANNELS[1], *_quarters(schema))
        first, second = _CHANNELS
        self.inner = StackedLinear(k, inputs, second * self._shape[1] * self._shape[2], generator=generator)
        labels = sum(schema.layout.groups)
        self.label = StackedLinear(k, inputs, labels, generator=generator) if labels else None
        self.second = StackedConvTranspose2d(k, second, first, 4, stride=2, padding=1, generator=generator)
        self.first = StackedConvTranspose2d(k, first, schema.axes[-1], 4, stride=2, padding=1, generator=generator)

    def forward(self, z: Tensor, offsets: Sequence[int]) -> Tensor:
        """Map (B, inputs), sorted by component, to (B, width)."""
        x = F.leaky_relu(self.inner(z, offsets), self.slope).unflatten(1, self._shape)
        x = F.leaky_relu(self.second(x, offsets), self.slope)
        picture = as_record(self.first(x, offsets), self._schema)
        return picture if self.label is None else torch.cat([picture, self.label(z, offsets)], dim=1)


def signs(x: Tensor, slope: float) -> Tensor:
    """Return the slope of a leaky rectifier at each number: 1 above 0."""
    return x.sign().clamp_(min=slope)


def as_planes(units: Tensor, schema: Schema) -> Tensor:
    """Reshape (B, units), the channels of a pixel or a time side by side, to (B, channels, height, width).

    A series is a picture as high as it is long.
    """
    if schema.dimensions == 1:
        return units.unflatten(1, schema.axes).mT[..., None]
    height, width, channels = schema.axes
    if channels == 1:
        return units.unflatten(1, (1, height, width))
    return units.unflatten(1, schema.axes).permute(0, 3, 1, 2)


def as_record(planes: Tensor, schema: Schema) -> Tensor:
    """Invert `as_planes`."""
    if schema.dimensions == 1:
        return planes[..., 0].mT.flatten(1)
    return planes.flatten(1) if planes.shape[1] == 1 else planes.permute(0, 2, 3, 1).flatten(1)


def _quarters(schema: Schema) -> tuple[int, int]:
    if schema.dimensions != 2:
        raise ValueError(
            f"records of kind {schema.kind}: network='conv' needs pictures, a critic's also series; network='dense' takes "
            "any records"
        )
    height, width, _ = schema.axes
    if height % 4 or width % 4:
        raise ValueError(
            f"pictures of {height} by {width}: network='conv' needs multiples of 4; network='dense' takes any size"
        )
    return height // 4, width // 4


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
        self._schema, (self._padding, eighth) = schema, _padded(schema)
        channels = (schema.channels, filters, 2 * filters, 4 * filters)
        self.convolutions = nn.ModuleList(
            StackedConv2d(k, n, o, **_HALVING, generator=generator) for n, o in itertools.pairwise(channels)
        )
        width = channels[-1] * eighth[0] * eighth[1] + sum(schema.layout.groups)
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
        self._schema, (self._padding, eighth) = schema, _padded(schema)
        channels = (4 * filters, 2 * filters, filters, schema.channels)
        self._shape = (channels[0], *eighth)
        self.inner = StackedLinear(k, inputs, channels[0] * eighth[0] * eighth[1], generator=generator)
        labels = sum(schema.layout.groups)
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


def _padded(schema: Schema) -> tuple[tuple[int, int, int, int], tuple[int, int]]:
    """Return how many zeros stand left, right, above and below a picture, and an eighth of its height and width then."""
    if schema.dimensions != 2:
        raise ValueError(f"records of kind {schema.kind}: network='deep_conv' needs pictures; 'dense' takes any")
    across, down = -schema.width % _MULTIPLE, -schema.height % _MULTIPLE
    eighth = (schema.height + down) // _MULTIPLE, (schema.width + across) // _MULTIPLE
    return (across // 2, across - across // 2, down // 2, down - down // 2), eighth
