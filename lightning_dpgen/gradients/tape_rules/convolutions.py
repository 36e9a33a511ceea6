"""Rules of convolutions in one to three dimensions, and of their transposes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_dpgen.gradients import kernels
from lightning_dpgen.gradients.factors import Dense, GradientFactors, KernelBlocks, Permuted, outer
from lightning_dpgen.gradients.products import exact, multiply, wide
from lightning_dpgen.gradients.tape import (
    Rule,
    Tape,
    TracedParameter,
    factor_dtype,
    records_behind,
    sum_by_channel,
    value_of,
)

# Channels from which pictures are held with the channels behind the places.
_BEHIND = 6
# Numbers of what a kernel sees that are copied at a time: on a processor 1 MiB, which is still in its cache when it is
# multiplied; on a device each piece costs several calls.
_AT_ONCE, _AT_ONCE_ON_DEVICE = 1 << 18, 1 << 22


def _pair(x, dimensions: int) -> list[int]:
    """Return one number for each dimension, where one may be given for all."""
    return [x] * dimensions if isinstance(x, int) else list(x) * (dimensions if len(x) == 1 else 1)


def _unfolded(x: Tensor, kernel, dilation, padding, stride, grid: Sequence[int]) -> Tensor:
    """Return what the kernel sees at each of a grid of positions, (B, r, channels * kernel), in any dimensions."""
    x = F.pad(x, [side for width in reversed(padding) for side in (width, width)])
    for i, places in enumerate(grid):
        x = x.unfold(2 + i, dilation[i] * (kernel[i] - 1) + 1, stride[i])[..., :: dilation[i]].narrow(2 + i, 0, places)
    # A copy of a view takes two thirds of the time of F.unfold.
    n = len(grid)
    seen = x.permute(0, 1, *range(2 + n, 2 + 2 * n), *range(2, 2 + n))
    return seen.reshape(x.shape[0], x.shape[1] * math.prod(kernel), -1).transpose(1, 2)


def _unfolded_behind(x: Tensor, kernel, dilation, padding, stride, grid: Sequence[int]) -> Tensor:
    """Return what the kernel sees at each of a grid of positions of pictures, (B, r, kernel * channels).

    All channels of a row of the kernel are side by side in memory, so they are copied together.
    """
    (b, c, *sides), (up, left) = x.shape, padding
    y = x.new_zeros(b, sides[0] + 2 * up, sides[1] + 2 * left, c)
    y[:, up : up + sides[0], left : left + sides[1]].copy_(x.permute(0, 2, 3, 1))
    for i, places in enumerate(grid):
        y = y.unfold(1 + i, dilation[i] * (kernel[i] - 1) + 1, stride[i])[..., :: dilation[i]].narrow(1 + i, 0, places)
    return y.permute(0, 1, 2, 4, 5, 3).reshape(b, math.prod(grid), -1)


def _shifted(slid: Tensor, at: Tensor, shape, padding, dilation) -> Tensor:
    """Return gradients (*kernel, B q, out, channels) of a kernel that moves over pictures in single steps.

    In memory, what one place of the kernel sees at all positions is the padded picture from some pixel on, if each line of
    the factor is as long as a padded one. So it takes one product for each place of the kernel, and no copy of the picture.
    """
    (b, c, *sides), (up, left), (lines, width) = slid.shape, padding, at.shape[2:]
    stride = sides[1] + 2 * left
    length, beyond = (sides[0] + 2 * up) * stride, dilation[1] * (shape[3] - 1)
    pixels = slid.new_zeros(b, length + beyond, c)
    pixels[:, :length].view(b, -1, stride, c)[:, up : up + sides[0], left : left + sides[1]].copy_(slid.permute(0, 2, 3, 1))
    factor = F.pad(at, (0, stride - width)).flatten(2)
    products = _empty_products(at, *shape[2:], b, shape[0], c)
    for i, j in itertools.product(*map(range, shape[2:])):
        first = dilation[0] * i * stride + dilation[1] * j
        multiply(factor, pixels[:, first : first + lines * stride], out=products[i, j])
    return products


def _of_products(x: Tensor) -> torch.dtype:
    """Return the type of products of factors: float32 for those of bfloat16."""
    return torch.promote_types(x.dtype, torch.float32)


def _empty_products(x: Tensor, *shape: int) -> Tensor:
    return x.new_empty(shape, dtype=_of_products(x))


def _padded(x: Tensor, kernel: Sequence[int], dilation: Sequence[int], padding) -> tuple[Tensor, list[int]]:
    """Return the input and a symmetric padding, where the padding may be a word."""
    if padding == "valid":
        return x, [0] * len(kernel)
    if padding == "same":
        total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        sides = [side for t in reversed(total) for side in (t // 2, t - t // 2)]
        return F.pad(x, sides), [0] * len(kernel)
    return x, _pair(padding, len(kernel))


def _multiplied(slid: Tensor, at: Tensor, size: int, shape, stride, padding, dilation, groups: int) -> GradientFactors:
    """Return gradients that are multiplied out, by one convolution in which each picture is a group of its own."""
    n = len(shape) - 2
    slid = F.pad(slid, [side for width in reversed(padding) for side in (width, width)])
    for i, places in enumerate(at.shape[2:]):
        slid = slid.narrow(2 + i, 0, (places - 1) * stride[i] + dilation[i] * (shape[2 + i] - 1) + 1)
    pictures = len(slid)
    like = slid.new_empty(()).expand(pictures * shape[0], *shape[1:])
    of_weight = torch.ops.aten.convolution_backward(
        at.reshape(1, -1, *at.shape[2:]), slid.reshape(1, -1, *slid.shape[2:]), like, None, stride, [0] * n, dilation,
        False, [0] * n, pictures * groups, [False, True, False],
    )[1]  # fmt: skip
    return Dense(of_weight.view(size, -1, *shape).sum(dim=1, dtype=_of_products(at)))


def _of_places(products: Tensor, size: int, several: int, shape) -> GradientFactors:
    """Hold the gradients (kernel, B q, out, channels) of pictures as those of their records."""
    held = (*shape[2:], *shape[:2])
    products = products if several == 1 else products.unflatten(1, (size, several)).sum(dim=2)
    return Permuted(KernelBlocks(products.flatten(2), held), held, (2, 3, 0, 1))


def _weight_factors(slid: Tensor, at: Tensor, size: int, shape, stride, padding, dilation, groups: int) -> GradientFactors:
    """Return the gradients (B, *shape) of a kernel.

    Args:
        slid: (B q, ...), over which the kernel slides.
        at: (B q, ...), its factor at each position.
    """
    n, several = len(shape) - 2, len(slid) // size
    o, width, terms = shape[0], math.prod(shape[1:]), several * math.prod(at.shape[2:])
    dense = groups > 1 or o * width <= terms * (o + width)
    if dense and n == 3:
        return _multiplied(slid, at, size, shape, stride, padding, dilation, groups)
    if dense and n == 2 and groups == 1 and kernels.serve(slid):
        # TF32 where convolutions have it: the norm is that of what is written here.
        precision = "tf32" if torch.backends.cudnn.conv.fp32_precision == "tf32" else "ieee"
        products = kernels.conv_gradients(slid, at, shape[2:], stride, padding, dilation, precision=precision)
        return _of_places(products, size, several, shape)
    behind = n == 2 and groups == 1 and shape[1] >= _BEHIND
    kernel = (*shape[2:], shape[1]) if behind else tuple(shape[1:])
    if dense and behind and max(stride) == 1:
        return _of_places(_shifted(slid, at, shape, padding, dilation).flatten(0, 1), size, several, shape)
    left = at.flatten(2).transpose(1, 2).reshape(size, terms, -1)
    unfolded = _unfolded_behind if behind else _unfolded

    def seen(start: int, end: int) -> Tensor:
        part = slid[start * several : end * several]
        return unfolded(part, shape[2:], dilation, padding, stride, at.shape[2:]).reshape(end - start, terms, -1)

    if groups > 1:
        # It is as many convolutions side by side. They are multiplied out, since each is small.
        a, b = (x.unflatten(2, (groups, -1)).permute(0, 2, 1, 3).flatten(0, 1) for x in (left, seen(0, size)))
        return Dense(multiply(a.mT, b).view(size, *shape))
    if dense and terms > 1:
        most = _AT_ONCE if left.device.type == "cpu" else _AT_ONCE_ON_DEVICE
        products, at_once = _empty_products(left, size, o, width), max(1, most // (terms * width))
        for start in range(0, size, at_once):
            end = min(start + at_once, size)
            multiply(left[start:end].transpose(1, 2), seen(start, end), out=products[start:end])
        factors: GradientFactors = Dense(products.view(size, o, *kernel))
    else:
        factors = outer([(left, seen(0, size))], (o, width), (o, *kernel))
    return Permuted(factors, (o, *kernel), (0, n + 1, *range(1, n + 1))) if behind else factors


def conv_factors(x, gradient, size, shape, stride, padding, dilation, groups) -> GradientFactors:
    """Return the gradient of the weight (out, in, kernel) of a convolution, from the input and the output's gradient."""
    stride, dilation = _pair(stride, len(shape) - 2), _pair(dilation, len(shape) - 2)
    x, padding = _padded(x, shape[2:], dilation, padding)
    return _weight_factors(x, gradient, size, shape, stride, padding, dilation, groups)


def conv_transpose_factors(x, gradient, size, shape, stride, padding, dilation, groups) -> GradientFactors:
    """Return the gradient of the weight (in, out, kernel) of a transposed convolution.

    It is a convolution with input and output exchanged.
    """
    stride, dilation, padding = (_pair(v, len(shape) - 2) for v in (stride, dilation, padding))
    return _weight_factors(gradient, x, size, shape, stride, padding, dilation, groups)


def _conv_rule(function: Callable, weight_factors: Callable[..., GradientFactors], *names: str) -> Rule:
    """Make the rule of a convolution whose arguments after the padding have these names."""

    def rule(tape: Tape, input, weight, bias=None, stride=1, padding=0, *rest, **named):
        options = dict(zip(names, rest, strict=False)) | named
        dilation, groups = options.get("dilation", 1), options.get("groups", 1)
        rows = records_behind(tape, input, weight.dim() - 1, weight, bias)
        if rows is None:
            return NotImplemented
        # A record may be several pictures, or one picture without a dimension for several.
        several = rows.dim() == weight.dim() + 1
        x = rows.flatten(0, 1) if several else rows
        size = len(rows)

        def note(gradient):
            if isinstance(weight, TracedParameter):
                like, dtype = weight.source, factor_dtype(gradient, weight)
                inputs, g = (wide(y.to(dtype)) for y in (x.detach(), gradient))
                with exact(gradient):
                    factors = weight_factors(inputs, g, size, tuple(like.shape), stride, padding, dilation, groups)
                yield like, factors
            if isinstance(bias, TracedParameter):
                yield bias.source, sum_by_channel(gradient, size, bias.source)

        return tape.note(
            lambda: function(x, value_of(weight), value_of(bias), stride, padding, **options),
            note,
            (lambda y: y.unflatten(0, (size, -1))) if several else None,
        )

    return rule


RULES: dict[Callable, Rule] = {
    **{function: _conv_rule(function, conv_factors, "dilation", "groups") for function in (F.conv1d, F.conv2d, F.conv3d)},
    **{
        function: _conv_rule(function, conv_transpose_factors, "output_padding", "groups", "dilation")
        for function in (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
    },
}
