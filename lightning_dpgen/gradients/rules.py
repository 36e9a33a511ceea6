"""Rules of the tape: for each function of torch, what the gradients of records are with respect to its parameters.

Each rule is called as its function is, with stand-ins among the arguments, and gives NotImplemented where it is not one.
For the shapes: B records, r positions (or calls), parameters as matrices (o, n).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_dpgen.gradients.forms import Form, Outer, Segmented, Whole, outer
from lightning_dpgen.gradients.segments import segmented_conv2d, segmented_conv_transpose2d, segmented_linear
from lightning_dpgen.gradients.standins import Rule, StandIn, Tape


def _value(x):
    return x.source.detach() if isinstance(x, StandIn) else x


def _matrix(parameter: StandIn, pairs, shape: tuple[int, int]) -> tuple[Tensor, Form]:
    """The gradient with respect to a matrix, or to what it is the transpose of."""
    if parameter.turned is None:
        return parameter.source, outer(pairs, shape, parameter.source.shape)
    return parameter.turned, outer([(b, a) for a, b in pairs], shape[::-1], parameter.turned.shape)


def _rows(x: Tensor, like: Tensor) -> Tensor:
    """(B, ..., n) as (B, r, n), in the precision of the parameter."""
    return x.detach().reshape(x.shape[0], -1, x.shape[-1]).to(like.dtype)


def _summed(gradient: Tensor, shape: Sequence[int], like: Tensor) -> Whole:
    """The gradient (B, *shape) of what was broadcast, from that of the result (B, ...)."""
    shape = tuple(shape)
    gradient = gradient.to(like.dtype)
    between = gradient.dim() - 1 - len(shape)
    if between:
        gradient = gradient.sum(dim=tuple(range(1, 1 + between)))
    stretched = [i + 1 for i, n in enumerate(shape) if n == 1 and gradient.shape[i + 1] != 1]
    return Whole(gradient.sum(dim=stretched, keepdim=True) if stretched else gradient)


# Matrix products


def _linear(tape: Tape, input, weight, bias=None):
    if tape.records_at(input) != 0:
        return NotImplemented
    output = F.linear(input, _value(weight), _value(bias))

    def note(gradient):
        g = _rows(gradient, input if not isinstance(weight, StandIn) else weight.source)
        if isinstance(weight, StandIn):
            yield _matrix(weight, [(g, _rows(input, weight.source))], (g.shape[2], input.shape[-1]))
        if isinstance(bias, StandIn):
            yield bias.source, Whole(g[:, 0] if g.shape[1] == 1 else g.sum(dim=1))

    return tape.note(output, note)


def _matmul(tape: Tape, a, b, *, out=None):
    if isinstance(b, StandIn) and tape.records_at(a) == 0 and b.source.dim() <= 2 and a.dim() > 1:
        parameter = b

        def note(gradient):
            g = gradient[..., None] if parameter.source.dim() == 1 else gradient
            g, x = _rows(g, parameter.source), _rows(a, parameter.source)
            yield _matrix(parameter, [(x, g)], (x.shape[2], g.shape[2]))

        return tape.note(a @ _value(b), note)
    if isinstance(a, StandIn) and tape.records_at(b) == 0 and a.source.dim() == 2 and b.dim() > 2:
        parameter = a

        def note(gradient):
            g, x = _rows(gradient.mT, parameter.source), _rows(b.mT, parameter.source)
            yield _matrix(parameter, [(g, x)], (g.shape[2], x.shape[2]))

        return tape.note(_value(a) @ b, note)
    return NotImplemented


def _matmul_from_the_right(tape: Tape, b, a):
    return _matmul(tape, a, b)


def _addmm(tape: Tape, input, mat1, mat2, *, beta=1, alpha=1, out=None):
    if beta != 1 or alpha != 1 or tape.records_at(mat1) != 0:
        return NotImplemented
    product = _matmul(tape, mat1, mat2) if isinstance(mat2, StandIn) else mat1 @ mat2
    return product + input


def _turn(tape: Tape, matrix, *dimensions):
    """A transpose of a matrix: gradients are carried back by exchanging factors."""
    if not isinstance(matrix, StandIn) or matrix.source.dim() != 2 or matrix.turned is not None:
        return NotImplemented
    if dimensions and sorted(d % 2 for d in dimensions) != [0, 1]:
        return NotImplemented
    return StandIn.of(matrix.source.t(), tape, turned=matrix.source)


def _permute(tape: Tape, matrix, *dimensions):
    dimensions = dimensions[0] if len(dimensions) == 1 else dimensions
    return _turn(tape, matrix) if tuple(d % 2 for d in dimensions) == (1, 0) else NotImplemented


# Convolutions


def _pair(x, dimensions: int) -> list[int]:
    """One number for each dimension, where one may be given for all."""
    return [x] * dimensions if isinstance(x, int) else list(x) * (dimensions if len(x) == 1 else 1)


def _unfolded(x: Tensor, kernel, dilation, padding, stride, grid: Sequence[int]) -> Tensor:
    """(B, r, channels * kernel): what each of a grid of positions of the kernel sees, in one or two dimensions."""
    if x.dim() == 3:
        x, kernel, dilation, padding, stride = x[:, :, None], [1, *kernel], [1, *dilation], [0, *padding], [1, *stride]
        grid = [1, *grid]
    x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    for i in (0, 1):
        x = x.unfold(2 + i, dilation[i] * (kernel[i] - 1) + 1, stride[i])[..., :: dilation[i]]
    x = x[:, :, : grid[0], : grid[1]]
    # A copy of a view, which takes two thirds of what F.unfold does.
    return x.permute(0, 1, 4, 5, 2, 3).reshape(x.shape[0], x.shape[1] * kernel[0] * kernel[1], -1).transpose(1, 2)


def _padded(x: Tensor, kernel: Sequence[int], dilation: Sequence[int], padding) -> tuple[Tensor, list[int]]:
    """The input and a symmetric padding, where the padding is a word."""
    if padding == "valid":
        return x, [0] * len(kernel)
    if padding == "same":
        total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        sides = [side for t in reversed(total) for side in (t // 2, t - t // 2)]
        return F.pad(x, sides), [0] * len(kernel)
    return x, _pair(padding, len(kernel))


def _conv_factors(x: Tensor, gradient: Tensor, shape, stride, padding, dilation, groups) -> tuple[Tensor, Tensor]:
    """(B, r, o) gradients and (B, r, n) inputs of each position."""
    kernel = shape[2:]
    stride, dilation = _pair(stride, len(kernel)), _pair(dilation, len(kernel))
    x, padding = _padded(x, kernel, dilation, padding)
    seen = _unfolded(x, kernel, dilation, padding, stride, gradient.shape[2:])
    return gradient.flatten(2).transpose(1, 2), seen


def _grouped(left: Tensor, right: Tensor, groups: int, shape) -> Form:
    """A convolution in groups is as many convolutions side by side: multiplied out, since each is small."""
    a = left.unflatten(2, (groups, -1))
    b = right.unflatten(2, (groups, -1))
    return Whole(torch.einsum("brgo,brgn->bgon", a, b).reshape(len(left), *shape))


def _conv_form(x, gradient, shape, stride, padding, dilation, groups) -> Form:
    left, right = _conv_factors(x, gradient, shape, stride, padding, dilation, groups)
    if groups > 1:
        return _grouped(left, right, groups, shape)
    return outer([(left, right)], (shape[0], math.prod(shape[1:])), shape)


def _conv_transpose_form(x, gradient, shape, stride, padding, dilation, groups) -> Form:
    """A transposed convolution is a convolution with input and output exchanged; its weight is (in, out, kernel)."""
    kernel = shape[2:]
    stride, dilation, padding = (_pair(v, len(kernel)) for v in (stride, dilation, padding))
    left = x.flatten(2).transpose(1, 2)
    right = _unfolded(gradient, kernel, dilation, padding, stride, x.shape[2:])
    if groups > 1:
        return _grouped(left, right, groups, shape)
    return outer([(left, right)], (shape[0], math.prod(shape[1:])), shape)


def _conv_rule(function, form, transposed: bool) -> Rule:
    def rule(tape: Tape, input, weight, bias=None, stride=1, padding=0, *rest, **named):
        names = ("output_padding", "groups", "dilation") if transposed else ("dilation", "groups")
        options = dict(zip(names, rest, strict=False)) | named
        dilation, groups = options.get("dilation", 1), options.get("groups", 1)
        if tape.records_at(input) != 0:
            return NotImplemented
        output = function(input, _value(weight), _value(bias), stride, padding, **options)

        def note(gradient):
            if isinstance(weight, StandIn):
                like = weight.source
                x, g = input.detach().to(like.dtype), gradient.to(like.dtype)
                yield like, form(x, g, tuple(like.shape), stride, padding, dilation, groups)
            if isinstance(bias, StandIn):
                yield bias.source, Whole(gradient.flatten(2).sum(dim=2).to(bias.source.dtype))

        return tape.note(output, note)

    return rule


# Embeddings


def _check_embedding(max_norm, scale_grad_by_freq) -> None:
    if max_norm is not None:
        raise ValueError(
            "an embedding with max_norm rescales the rows that a lot looks up, without noise: leave it out"
        )
    if scale_grad_by_freq:
        raise ValueError("an embedding with scale_grad_by_freq divides by counts over the lot: leave it out")


def _looked_up(weight: StandIn, indices: Tensor, rows: Tensor, padding_idx) -> tuple[Tensor, Form]:
    """The gradient of rows (B, r, n) that were looked up at (B, r) indices."""
    entries, width = weight.source.shape
    if padding_idx is not None:
        rows = torch.where((indices == padding_idx % entries)[:, :, None], 0.0, rows)
    return weight.source, Outer([(indices, rows.to(weight.source.dtype))], (entries, width), (entries, width))


def _embedding(
    tape: Tape, input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False
):
    _check_embedding(max_norm, scale_grad_by_freq)
    if not isinstance(weight, StandIn) or tape.records_at(input) != 0:
        return NotImplemented
    indices = input.detach().reshape(len(input), -1).long()

    def note(gradient):
        yield _looked_up(weight, indices, gradient.reshape(len(input), -1, gradient.shape[-1]), padding_idx)

    return tape.note(F.embedding(input, _value(weight)), note)


def _getitem(tape: Tape, parameter, index):
    """Rows of a parameter at the indices of records: an embedding of any shape."""
    if not isinstance(parameter, StandIn) or not isinstance(index, Tensor) or index.dtype != torch.int64:
        return NotImplemented
    if tape.records_at(index) != 0:
        return NotImplemented
    shape = tuple(parameter.source.shape)
    entries, width = shape[0], math.prod(shape[1:])

    def note(gradient):
        indices = index.detach().reshape(len(index), -1) % entries
        rows = gradient.reshape(len(index), -1, width).to(parameter.source.dtype)
        yield parameter.source, Outer([(indices, rows)], (entries, width), shape)

    return tape.note(_value(parameter)[index], note)


def _embedding_bag(
    tape: Tape,
    input,
    weight,
    offsets=None,
    max_norm=None,
    norm_type=2,
    scale_grad_by_freq=False,
    mode="mean",
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=None,
):
    _check_embedding(max_norm, scale_grad_by_freq)
    if not isinstance(weight, StandIn) or mode == "max" or isinstance(per_sample_weights, StandIn):
        return NotImplemented
    if offsets is None:
        if tape.records_at(input) != 0:
            return NotImplemented
        indices, there = input.long(), torch.ones(input.shape, dtype=torch.bool, device=input.device)
        share = per_sample_weights
    else:
        ends = offsets.long() if include_last_offset else F.pad(offsets.long(), (0, 1), value=len(input))
        lengths = ends.diff()
        if len(lengths) != tape.size:
            return NotImplemented
        place = torch.arange(max(1, int(lengths.max())), device=input.device)
        there = place < lengths[:, None]
        where = (ends[:-1, None] + place).clamp(max=max(len(input) - 1, 0))
        indices = torch.where(there, input.long()[where] if len(input) else 0, 0)
        share = None if per_sample_weights is None else per_sample_weights[where]
    if padding_idx is not None:
        there = there & (indices != padding_idx % weight.source.shape[0])
    share = there.to(weight.source.dtype) if share is None else torch.where(there, share, 0.0).to(weight.source.dtype)
    if mode == "mean":
        share = share / there.sum(dim=1, keepdim=True).clamp(min=1)
    output = F.embedding_bag(
        input,
        _value(weight),
        offsets,
        mode=mode,
        per_sample_weights=per_sample_weights,
        include_last_offset=include_last_offset,
        padding_idx=padding_idx,
    )

    def note(gradient):
        rows = share.detach()[:, :, None] * gradient.to(share.dtype)[:, None, :]
        yield weight.source, Outer([(indices, rows)], tuple(weight.source.shape), tuple(weight.source.shape))

    return tape.note(output, note)


# Normalisation: each within one record


def _normalised(tape: Tape, function: Callable[[Tensor], Tensor], output: Tensor, input, weight, bias, channels: bool):
    """Scale and shift after a normalisation; over all channels of a position, or one of each over all positions."""

    def total(x: Tensor, like: Tensor) -> Whole:
        x = x.to(like.dtype)
        if channels:
            return Whole(x.flatten(2).sum(dim=2) if x.dim() > 2 else x)
        return _summed(x, like.shape, like)

    def note(gradient):
        if isinstance(weight, StandIn):
            yield weight.source, total(gradient * function(input.detach()), weight.source)
        if isinstance(bias, StandIn):
            yield bias.source, total(gradient, bias.source)

    return tape.note(output, note)


def _layer_norm(tape: Tape, input, normalized_shape, weight=None, bias=None, eps=1e-5):
    if tape.records_at(input) != 0 or input.dim() <= len(normalized_shape):
        return NotImplemented
    output = F.layer_norm(input, normalized_shape, _value(weight), _value(bias), eps)
    bare = lambda x: F.layer_norm(x, normalized_shape, None, None, eps)  # noqa: E731
    return _normalised(tape, bare, output, input, weight, bias, channels=False)


def _rms_norm(tape: Tape, input, normalized_shape, weight=None, eps=None):
    if tape.records_at(input) != 0 or input.dim() <= len(normalized_shape):
        return NotImplemented
    output = F.rms_norm(input, normalized_shape, _value(weight), eps)
    return _normalised(
        tape, lambda x: F.rms_norm(x, normalized_shape, None, eps), output, input, weight, None, channels=False
    )


def _group_norm(tape: Tape, input, num_groups, weight=None, bias=None, eps=1e-5):
    if tape.records_at(input) != 0:
        return NotImplemented
    output = F.group_norm(input, num_groups, _value(weight), _value(bias), eps)
    return _normalised(
        tape, lambda x: F.group_norm(x, num_groups, None, None, eps), output, input, weight, bias, channels=True
    )


def _instance_norm(
    tape: Tape,
    input,
    running_mean=None,
    running_var=None,
    weight=None,
    bias=None,
    use_input_stats=True,
    momentum=0.1,
    eps=1e-5,
):
    if running_mean is not None or not use_input_stats or tape.records_at(input) != 0:
        return NotImplemented
    output = F.instance_norm(input, None, None, _value(weight), _value(bias), True, momentum, eps)
    bare = lambda x: F.instance_norm(x, eps=eps)  # noqa: E731
    return _normalised(tape, bare, output, input, weight, bias, channels=True)


def _batch_norm(tape: Tape, *_, **__):
    raise ValueError("batch_norm mixes the records of a lot: use group_norm or layer_norm")


# Parameters that are plain tensors


def _elementwise(function: Callable) -> Rule:
    """A parameter that is broadcast: each record gets a copy of its own, without memory, whose gradient is the record's."""

    def rule(tape: Tape, *args, **kwargs):
        tensors = [x for x in args if isinstance(x, Tensor)]
        records = [x for x in tensors if not isinstance(x, StandIn) and tape.records_at(x) is not None]
        dims = max((x.dim() for x in tensors), default=0)
        if kwargs or not records or any(tape.records_at(x) != 0 or x.dim() != dims for x in records):
            return NotImplemented
        copies: list[tuple[StandIn, Tensor, tuple[int, ...]]] = []
        for x in args:
            if isinstance(x, StandIn):
                shape = tuple(x.source.shape)
                if len(shape) == dims and shape[0] != 1:
                    return NotImplemented
                own = shape[1:] if len(shape) == dims else shape
                expanded = _value(x).reshape(own).expand(tape.size, *(1,) * (dims - 1 - len(own)), *own)
                copies.append((x, expanded.requires_grad_(), own))
        remaining = iter(copies)
        output = function(*(next(remaining)[1] if isinstance(x, StandIn) else x for x in args))
        for parameter, copy, _ in copies:
            tape.note_copy(copy, _copied(parameter))
        return output

    return rule


def _copied(parameter: StandIn) -> Callable[[Tensor], list[tuple[Tensor, Form]]]:
    def note(gradient):
        return [(parameter.source, Whole(gradient.reshape(len(gradient), *parameter.source.shape)))]

    return note


def _expand(tape: Tape, parameter, *sizes):
    sizes = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    if not isinstance(parameter, StandIn) or not sizes or sizes[0] != tape.size:
        return NotImplemented
    shape = tuple(parameter.source.shape)
    own = shape[1:] if len(shape) == len(sizes) and shape[0] == 1 else shape
    if len(own) >= len(sizes):
        return NotImplemented
    copy = _value(parameter).reshape(1, *(1,) * (len(sizes) - 1 - len(own)), *own).expand(sizes).requires_grad_()

    def note(gradient):
        yield parameter.source, Whole(_summed(gradient, own, parameter.source).gradient.reshape(-1, *shape))

    tape.note_copy(copy, note)
    # A view of it, so that it may be written into by whoever holds it.
    return copy.view_as(copy)


def _repeat(tape: Tape, parameter, *sizes):
    """A parameter that is repeated once for each record is expanded."""
    sizes = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    if not isinstance(parameter, StandIn) or not sizes or sizes[0] != tape.size or any(n != 1 for n in sizes[1:]):
        return NotImplemented
    shape = tuple(parameter.source.shape)
    if len(shape) == len(sizes) and shape[0] != 1:
        return NotImplemented
    own = shape[1:] if len(shape) == len(sizes) else (*(1,) * (len(sizes) - 1 - len(shape)), *shape)
    return _expand(tape, parameter, tape.size, *own)


def _expand_as(tape: Tape, parameter, other):
    return _expand(tape, parameter, *other.shape)


# Stacks of k components


def _segmented(function, form_of) -> Rule:
    def rule(tape: Tape, x, weight, bias, offsets, **options):
        if tape.records_at(x) != 0:
            return NotImplemented
        output = function(x, _value(weight), _value(bias), offsets, **options)

        def note(gradient):
            if isinstance(weight, StandIn):
                yield weight.source, Segmented(form_of(x.detach(), gradient, weight.source.shape[1:], **options), offsets)
            if isinstance(bias, StandIn):
                total = gradient if gradient.dim() == 2 else gradient.flatten(2).sum(dim=2)
                yield bias.source, Segmented(Whole(total), offsets)

        return tape.note(output, note)

    return rule


def _linear_form(x: Tensor, gradient: Tensor, shape) -> Form:
    return outer([(gradient[:, None], x[:, None])], shape, shape)


def _segmented_conv_form(x, gradient, shape, stride, padding) -> Form:
    return _conv_form(x, gradient, tuple(shape), stride, padding, 1, 1)


def _segmented_conv_transpose_form(x, gradient, shape, stride, padding, output_padding) -> Form:
    return _conv_transpose_form(x, gradient, tuple(shape), stride, padding, 1, 1)


_ELEMENTWISE = (
    "add", "sub", "mul", "div", "true_divide", "pow", "maximum", "minimum", "rsub", "where", "lerp", "addcmul", "addcdiv",
    "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__", "__mul__", "__rmul__", "__imul__", "__truediv__",
    "__rtruediv__", "__itruediv__", "__pow__", "__rpow__", "add_", "sub_", "mul_", "div_",
)  # fmt: skip


def _rules() -> dict[Callable, Rule]:
    rules: dict[Callable, Rule] = {
        F.linear: _linear,
        torch.addmm: _addmm,
        Tensor.addmm: _addmm,
        Tensor.__rmatmul__: _matmul_from_the_right,
        Tensor.T.__get__: _turn,
        Tensor.mT.__get__: _turn,
        Tensor.permute: _permute,
        torch.permute: _permute,
        F.embedding: _embedding,
        Tensor.__getitem__: _getitem,
        F.embedding_bag: _embedding_bag,
        F.layer_norm: _layer_norm,
        F.rms_norm: _rms_norm,
        F.group_norm: _group_norm,
        F.instance_norm: _instance_norm,
        F.batch_norm: _batch_norm,
        Tensor.expand: _expand,
        Tensor.broadcast_to: _expand,
        torch.broadcast_to: _expand,
        Tensor.expand_as: _expand_as,
        Tensor.repeat: _repeat,
        Tensor.tile: _repeat,
        segmented_linear: _segmented(segmented_linear, _linear_form),
        segmented_conv2d: _segmented(segmented_conv2d, _segmented_conv_form),
        segmented_conv_transpose2d: _segmented(segmented_conv_transpose2d, _segmented_conv_transpose_form),
    }
    for function in (torch.matmul, torch.mm, torch.mv, Tensor.matmul, Tensor.mm, Tensor.mv, Tensor.__matmul__):
        rules[function] = _matmul
    for function in (torch.t, Tensor.t, torch.transpose, Tensor.transpose, torch.swapaxes, Tensor.swapaxes):
        rules[function] = _turn
    for function in (F.conv1d, F.conv2d):
        rules[function] = _conv_rule(function, _conv_form, transposed=False)
    for function in (F.conv_transpose1d, F.conv_transpose2d):
        rules[function] = _conv_rule(function, _conv_transpose_form, transposed=True)
    for holder, name in itertools.product((torch, Tensor), _ELEMENTWISE):
        function = getattr(holder, name, None)
        if function is not None:
            rules[function] = _elementwise(function)
    return rules


RULES = _rules()
