"""Rules of the tape: for each function of torch, what the gradients of records are with respect to its parameters.

Each rule is called as its function is, with stand-ins among the arguments, and gives NotImplemented where it is not one.
What the loss sees of a record has the records in front here (`Tape.rows`). For the shapes: B records, r positions (or
calls), parameters as matrices (o, n).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_dpgen.gradients.factors import Dense, GradientFactors, OneComponent, OuterSum, outer
from lightning_dpgen.gradients.hidden import is_hidden
from lightning_dpgen.gradients.isolation import HiddenOffsets
from lightning_dpgen.gradients.segments import segmented_conv2d, segmented_conv_transpose2d, segmented_linear
from lightning_dpgen.gradients.tape import Rule, Tape, TracedParameter


def _value(x):
    return x.source.detach() if isinstance(x, TracedParameter) else x


def _matrix(parameter: TracedParameter, pairs, shape: tuple[int, int]) -> tuple[Tensor, GradientFactors]:
    """The gradient with respect to a matrix, or to what it is the transpose of."""
    if parameter.turned is None:
        return parameter.source, outer(pairs, shape, parameter.source.shape)
    return parameter.turned, outer([(b, a) for a, b in pairs], shape[::-1], parameter.turned.shape)


def _rows(x: Tensor, like: Tensor) -> Tensor:
    """(B, ..., n) as (B, r, n), in the precision of the parameter."""
    return x.detach().reshape(x.shape[0], -1, x.shape[-1]).to(like.dtype)


def _summed(gradient: Tensor, shape: Sequence[int], like: Tensor) -> Dense:
    """The gradient (B, *shape) of what was broadcast, from that of the result (B, ...)."""
    shape = tuple(shape)
    gradient = gradient.to(like.dtype)
    between = gradient.dim() - 1 - len(shape)
    if between:
        gradient = gradient.sum(dim=tuple(range(1, 1 + between)))
    stretched = [i + 1 for i, n in enumerate(shape) if n == 1 and gradient.shape[i + 1] != 1]
    return Dense(gradient.sum(dim=stretched, keepdim=True) if stretched else gradient)


def _by_channel(gradient: Tensor, size: int, like: Tensor) -> Dense:
    """The gradient (B, channels) of what is one for each channel, from that of the result (B q, channels, ...)."""
    return Dense(gradient.reshape(size, -1, *gradient.shape[1:2], gradient[0, 0].numel()).sum(dim=(1, 3)).to(like.dtype))


def _records(tape: Tape, x, least: int, *parameters) -> Tensor | None:
    """The records (B, ...) behind an input, or None where no rule is right.

    Args:
        tape, x: as of a rule.
        least: how many dimensions a record has at least; with fewer, that of the lot would be taken for one of them.
        parameters: what the function takes besides, of which a rule knows stand-ins and public tensors alone.
    """
    rows = tape.rows(x)
    return None if rows is None or rows.dim() <= least or any(map(is_hidden, parameters)) else rows


# Matrix products


def _linear(tape: Tape, input, weight, bias=None):
    x = _records(tape, input, 1, weight, bias)
    if x is None:
        return NotImplemented

    def note(gradient):
        g = _rows(gradient, x if not isinstance(weight, TracedParameter) else weight.source)
        if isinstance(weight, TracedParameter):
            yield _matrix(weight, [(g, _rows(x, weight.source))], (g.shape[2], x.shape[-1]))
        if isinstance(bias, TracedParameter):
            yield bias.source, Dense(g[:, 0] if g.shape[1] == 1 else g.sum(dim=1))

    return tape.note(lambda: F.linear(x, _value(weight), _value(bias)), note)


def _matmul(tape: Tape, a, b, *, out=None):
    if out is not None:
        return NotImplemented
    if isinstance(b, TracedParameter) and b.source.dim() <= 2 and (x := _records(tape, a, 1)) is not None:

        def note(gradient):
            g = gradient[..., None] if b.source.dim() == 1 else gradient
            g, inputs = _rows(g, b.source), _rows(x, b.source)
            yield _matrix(b, [(inputs, g)], (inputs.shape[2], g.shape[2]))

        return tape.note(lambda: x @ _value(b), note)
    if isinstance(a, TracedParameter) and a.source.dim() == 2 and (x := _records(tape, b, 1)) is not None:
        vector = x.dim() == 2

        def note(gradient):
            g = _rows(gradient if vector else gradient.mT, a.source)
            inputs = _rows(x if vector else x.mT, a.source)
            yield _matrix(a, [(g, inputs)], (g.shape[2], inputs.shape[2]))

        return tape.note(lambda: F.linear(x, _value(a)) if vector else _value(a) @ x, note)
    return NotImplemented


def _matmul_from_the_right(tape: Tape, b, a):
    return _matmul(tape, a, b)


def _addmm(tape: Tape, input, mat1, mat2, *, beta=1, alpha=1, out=None):
    if beta != 1 or alpha != 1 or out is not None or not is_hidden(mat1):
        return NotImplemented
    product = _matmul(tape, mat1, mat2) if isinstance(mat2, TracedParameter) else mat1 @ mat2
    return product + input


def _turn(tape: Tape, matrix, *dimensions):
    """A transpose of a matrix: gradients are carried back by exchanging factors."""
    if not isinstance(matrix, TracedParameter) or matrix.source.dim() != 2 or matrix.turned is not None:
        return NotImplemented
    if dimensions and sorted(d % 2 for d in dimensions) != [0, 1]:
        return NotImplemented
    with tape.isolation.outside():
        return TracedParameter.of(matrix.source.t(), tape, turned=matrix.source)


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


def _positions(left: Tensor, right: Tensor, size: int, groups: int, shape) -> GradientFactors:
    """The form of B records of q pictures, from factors (B q, r, ...).

    A convolution in groups is as many convolutions side by side. It is multiplied out, since each is small.
    """
    left, right = left.reshape(size, -1, left.shape[2]), right.reshape(size, -1, right.shape[2])
    if groups > 1:
        a, b = left.unflatten(2, (groups, -1)), right.unflatten(2, (groups, -1))
        return Dense(torch.einsum("brgo,brgn->bgon", a, b).reshape(size, *shape))
    return outer([(left, right)], (shape[0], math.prod(shape[1:])), shape)


def _conv_form(x, gradient, size, shape, stride, padding, dilation, groups) -> GradientFactors:
    return _positions(*_conv_factors(x, gradient, shape, stride, padding, dilation, groups), size, groups, shape)


def _conv_transpose_form(x, gradient, size, shape, stride, padding, dilation, groups) -> GradientFactors:
    """A transposed convolution is a convolution with input and output exchanged; its weight is (in, out, kernel)."""
    kernel = shape[2:]
    stride, dilation, padding = (_pair(v, len(kernel)) for v in (stride, dilation, padding))
    left = x.flatten(2).transpose(1, 2)
    right = _unfolded(gradient, kernel, dilation, padding, stride, x.shape[2:])
    return _positions(left, right, size, groups, shape)


def _conv_rule(function, form, transposed: bool) -> Rule:
    names = ("output_padding", "groups", "dilation") if transposed else ("dilation", "groups")

    def rule(tape: Tape, input, weight, bias=None, stride=1, padding=0, *rest, **named):
        options = dict(zip(names, rest, strict=False)) | named
        dilation, groups = options.get("dilation", 1), options.get("groups", 1)
        rows = _records(tape, input, weight.dim() - 1, weight, bias)
        if rows is None:
            return NotImplemented
        # A record may be several pictures, or one without a dimension for several.
        several = rows.dim() == weight.dim() + 1
        x = rows.flatten(0, 1) if several else rows
        size = len(rows)

        def note(gradient):
            if isinstance(weight, TracedParameter):
                like = weight.source
                inputs, g = x.detach().to(like.dtype), gradient.to(like.dtype)
                yield like, form(inputs, g, size, tuple(like.shape), stride, padding, dilation, groups)
            if isinstance(bias, TracedParameter):
                yield bias.source, _by_channel(gradient, size, bias.source)

        return tape.note(
            lambda: function(x, _value(weight), _value(bias), stride, padding, **options),
            note,
            (lambda y: y.unflatten(0, (size, -1))) if several else None,
        )

    return rule


# Embeddings


def _looked_up(weight: TracedParameter, indices: Tensor, rows: Tensor, padding_idx) -> tuple[Tensor, GradientFactors]:
    """The gradient of rows (B, r, n) that were looked up at (B, r) indices."""
    entries, width = weight.source.shape
    if padding_idx is not None:
        rows = torch.where((indices == padding_idx % entries)[:, :, None], 0.0, rows)
    return weight.source, OuterSum([(indices, rows.to(weight.source.dtype))], (entries, width), (entries, width))


def _embedding(
    tape: Tape, input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False
):
    index = tape.rows(input)
    if not isinstance(weight, TracedParameter) or index is None:
        return NotImplemented

    def note(gradient):
        indices = index.reshape(len(index), -1).long()
        yield _looked_up(weight, indices, gradient.reshape(*indices.shape, -1), padding_idx)

    return tape.note(lambda: F.embedding(index, _value(weight)), note)


def _getitem(tape: Tape, parameter, index):
    """Rows of a parameter at the indices of records: an embedding of any shape."""
    if not isinstance(parameter, TracedParameter) or not isinstance(index, Tensor) or index.dtype != torch.int64:
        return NotImplemented
    where = tape.rows(index)
    if where is None:
        return NotImplemented
    shape = tuple(parameter.source.shape)
    entries, width = shape[0], math.prod(shape[1:])

    def note(gradient):
        indices = where.reshape(len(where), -1) % entries
        rows = gradient.reshape(*indices.shape, width).to(parameter.source.dtype)
        yield parameter.source, OuterSum([(indices, rows)], (entries, width), shape)

    return tape.note(lambda: _value(parameter)[where], note)


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
    index = tape.rows(input)
    if not isinstance(weight, TracedParameter) or isinstance(per_sample_weights, TracedParameter) or index is None:
        return NotImplemented
    if offsets is not None or mode == "max" or index.dim() != 3:
        raise ValueError(
            "an EmbeddingBag takes the bag of a record as a row of indices, padded to a fixed length (padding_idx), in the "
            "modes sum and mean: offsets would say how long the bags of records are"
        )
    share = tape.rows(per_sample_weights)
    bags, there = index.flatten(0, 1).long(), torch.ones((), dtype=torch.bool, device=index.device)
    if padding_idx is not None:
        there = bags != padding_idx % weight.source.shape[0]
    there = there.expand(bags.shape)

    def compute():
        own = None if share is None else share.flatten(0, 1)
        options = {"mode": mode, "per_sample_weights": own, "padding_idx": padding_idx}
        return F.embedding_bag(bags, _value(weight), **options)

    def note(gradient):
        weights = there.to(weight.source.dtype)
        if share is not None:
            weights = torch.where(there, share.detach().flatten(0, 1), 0.0).to(weight.source.dtype)
        if mode == "mean":
            weights = weights / there.sum(dim=1, keepdim=True).clamp(min=1)
        rows = weights[:, :, None] * gradient.to(weights.dtype)[:, None, :]
        shape, size = tuple(weight.source.shape), len(index)
        yield weight.source, OuterSum([(bags.reshape(size, -1), rows.reshape(size, -1, rows.shape[2]))], shape, shape)

    return tape.note(compute, note, lambda y: y.unflatten(0, (len(index), -1)))


# Normalisation: each within one record


def _normalised(tape: Tape, input, function: Callable[..., Tensor], weight, bias, channels: bool, least: int = 2):
    """Scale and shift after a normalisation.

    Args:
        tape, input, weight, bias: as of the function.
        function: normalises records, and scales and shifts them by a weight and a bias, or None.
        least: how many dimensions a record has at least.
        channels: whether each channel (B, several, channels, ...) has one of each for all positions, or each number of a
            position.
    """
    rows = _records(tape, input, least, weight, bias)
    if rows is None:
        return NotImplemented
    x, size = rows.flatten(0, 1) if channels else rows, len(rows)

    def total(g: Tensor, like: Tensor) -> Dense:
        return _by_channel(g, size, like) if channels else _summed(g, like.shape, like)

    def note(gradient):
        if isinstance(weight, TracedParameter):
            yield weight.source, total(gradient * function(x.detach(), None, None), weight.source)
        if isinstance(bias, TracedParameter):
            yield bias.source, total(gradient, bias.source)

    seen = (lambda y: y.unflatten(0, rows.shape[:2])) if channels else None
    return tape.note(lambda: function(x, _value(weight), _value(bias)), note, seen)


def _layer_norm(tape: Tape, input, normalized_shape, weight=None, bias=None, eps=1e-5):
    def function(x, w, b):
        return F.layer_norm(x, normalized_shape, w, b, eps)

    return _normalised(tape, input, function, weight, bias, False, len(normalized_shape))


def _rms_norm(tape: Tape, input, normalized_shape, weight=None, eps=None):
    def function(x, w, _):
        return F.rms_norm(x, normalized_shape, w, eps)

    return _normalised(tape, input, function, weight, None, False, len(normalized_shape))


def _group_norm(tape: Tape, input, num_groups, weight=None, bias=None, eps=1e-5):
    return _normalised(tape, input, lambda x, w, b: F.group_norm(x, num_groups, w, b, eps), weight, bias, True)


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
    if running_mean is not None or not use_input_stats:
        return NotImplemented

    def function(x, w, b):
        return F.instance_norm(x, None, None, w, b, True, momentum, eps)

    return _normalised(tape, input, function, weight, bias, True)


def _batch_norm(tape: Tape, *_, **__):
    raise ValueError("batch_norm mixes the records of a lot: use group_norm or layer_norm")


# Stacks of k components


def _segmented(function, form_of) -> Rule:
    def rule(tape: Tape, x, weight, bias, offsets, **options):
        rows, isolation = tape.rows(x), tape.isolation
        if isinstance(offsets, HiddenOffsets):
            own = isolation.offsets
        elif rows is not None:
            own = (0, isolation.size)
        else:
            return NotImplemented
        if rows is not None and (rows.shape[1] != 1 or len(own) != len(weight) + 1):
            raise ValueError(
                f"a stack of {len(weight)} components takes (1, ...) for one record of a lot, with the lot's offsets; "
                f"found {tuple(x.shape)} and {len(own) - 1} components"
            )
        with isolation.outside():
            inputs = (x.expand(isolation.size, *x.shape) if rows is None else rows).squeeze(1)

        def note(gradient):
            if isinstance(weight, TracedParameter):
                form = form_of(inputs.detach(), gradient, weight.source.shape[1:], **options)
                yield weight.source, OneComponent(form, own)
            if isinstance(bias, TracedParameter):
                total = gradient if gradient.dim() == 2 else gradient.flatten(2).sum(dim=2)
                yield bias.source, OneComponent(Dense(total), own)

        return tape.note(
            lambda: function(inputs, _value(weight), _value(bias), own, **options), note, lambda y: y.unsqueeze(1)
        )

    return rule


def _linear_form(x: Tensor, gradient: Tensor, shape) -> GradientFactors:
    return outer([(gradient[:, None], x[:, None])], shape, shape)


def _segmented_conv_form(x, gradient, shape, stride, padding) -> GradientFactors:
    return _conv_form(x, gradient, len(x), tuple(shape), stride, padding, 1, 1)


def _segmented_conv_transpose_form(x, gradient, shape, stride, padding, output_padding) -> GradientFactors:
    return _conv_transpose_form(x, gradient, len(x), tuple(shape), stride, padding, 1, 1)


# Functions that are as quick with a copy of a parameter for each record as they would be with a rule.
_COPIED = (
    "add", "sub", "mul", "div", "true_divide", "pow", "maximum", "minimum", "rsub", "where", "lerp", "addcmul", "addcdiv",
    "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__", "__mul__", "__rmul__", "__imul__", "__truediv__",
    "__rtruediv__", "__itruediv__", "__pow__", "__rpow__", "add_", "sub_", "mul_", "div_", "expand_as", "cat", "concat",
    "concatenate", "stack", "hstack", "vstack",
)  # fmt: skip


def _rules() -> dict[Callable, Rule | None]:
    rules: dict[Callable, Rule | None] = {
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
    for holder, name in itertools.product((torch, Tensor), _COPIED):
        if hasattr(holder, name):
            rules[getattr(holder, name)] = None
    return rules


RULES = _rules()
