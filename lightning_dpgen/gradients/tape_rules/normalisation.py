"""Rules of normalisation within one record."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_dpgen.gradients import kernels
from lightning_dpgen.gradients.factors import Dense
from lightning_dpgen.gradients.isolation.hidden import is_hidden
from lightning_dpgen.gradients.tape import Rule, Tape, TracedParameter, records_behind, sum_by_channel, value_of


def _summed(gradient: Tensor, shape: Sequence[int], like: Tensor) -> Dense:
    """Return the gradient (B, *shape) of a tensor that was broadcast, from that of the result (B, ...)."""
    shape = tuple(shape)
    between = gradient.dim() - 1 - len(shape)
    if between:
        gradient = gradient.sum(dim=tuple(range(1, 1 + between)), dtype=like.dtype)
    gradient = gradient.to(like.dtype)
    stretched = [i + 1 for i, n in enumerate(shape) if n == 1 and gradient.shape[i + 1] != 1]
    return Dense(gradient.sum(dim=stretched, keepdim=True) if stretched else gradient)


# The rows (R, T, C) of what is normalised and of the gradient, the mean of each row or group, and one over its deviation.
_Rows = tuple[Tensor, Tensor, Tensor, Tensor]


def _normalised(
    tape: Tape,
    input,
    function: Callable[..., Tensor],
    weight,
    bias,
    channels: bool,
    least: int = 2,
    rows_of: Callable[[Tensor, Tensor], _Rows] | None = None,
):
    """Scale and shift after a normalisation.

    Args:
        function: normalises records, and scales and shifts them by a weight and a bias, or None.
        least: the fewest dimensions of a record.
        channels: True for one scale and shift for each channel (B, several, channels, ...), at all positions; False for one
            for each number of a position.
        rows_of: returns what `kernels.scale_shift_gradients` takes, of records and a gradient; None where it serves none.
    """
    rows = records_behind(tape, input, least, weight, bias)
    if rows is None:
        return NotImplemented
    x, size = rows.flatten(0, 1) if channels else rows, len(rows)

    def total(g: Tensor, like: Tensor) -> Dense:
        return sum_by_channel(g, size, like) if channels else _summed(g, like.shape, like)

    def note(gradient):
        if rows_of is not None and kernels.serve(gradient) and len(x) == size:
            gradients = kernels.scale_shift_gradients(*rows_of(x.detach(), gradient))
            for parameter, found in zip((weight, bias), gradients, strict=True):
                if isinstance(parameter, TracedParameter):
                    yield parameter.source, Dense(found.view(size, *parameter.source.shape))
            return
        if isinstance(weight, TracedParameter):
            yield weight.source, total(gradient * function(x.detach(), None, None), weight.source)
        if isinstance(bias, TracedParameter):
            yield bias.source, total(gradient, bias.source)

    seen = (lambda y: y.unflatten(0, rows.shape[:2])) if channels else None
    return tape.note(lambda: function(x, value_of(weight), value_of(bias)), note, seen)


def _layer_norm(tape: Tape, input, normalized_shape, weight=None, bias=None, eps=1e-5):
    def function(x, w, b):
        return F.layer_norm(x, normalized_shape, w, b, eps)

    def rows_of(x, gradient):
        _, *statistics = torch.native_layer_norm(x, normalized_shape, None, None, eps)
        numbers = math.prod(normalized_shape)
        rows, gradients, mean, deviation = (
            y.reshape(len(x), -1, width)
            for y, width in zip((x, gradient, *statistics), (numbers, numbers, 1, 1), strict=True)
        )
        return rows, gradients, mean.float(), deviation.float()

    return _normalised(tape, input, function, weight, bias, False, len(normalized_shape), rows_of)


def _rms_norm(tape: Tape, input, normalized_shape, weight=None, eps=None):
    def function(x, w, _):
        return F.rms_norm(x, normalized_shape, w, eps)

    return _normalised(tape, input, function, weight, None, False, len(normalized_shape))


def _group_norm(tape: Tape, input, num_groups, weight=None, bias=None, eps=1e-5):
    def rows_of(x, gradient):
        shape = len(x), x.shape[1], x[0, 0].numel()
        _, *statistics = torch.native_group_norm(x.contiguous(), None, None, *shape, num_groups, eps)
        rows, gradients = (y.reshape(shape).transpose(1, 2) for y in (x, gradient))
        return rows, gradients, *(y[:, None].float() for y in statistics)

    def function(x, w, b):
        return F.group_norm(x, num_groups, w, b, eps)

    return _normalised(tape, input, function, weight, bias, True, rows_of=rows_of)


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


def _batch_norm(
    tape: Tape, input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
):
    """Scale and shift by public statistics, as a batch norm in eval mode does."""
    statistics = running_mean, running_var
    if training or any(x is None or is_hidden(x) or isinstance(x, TracedParameter) for x in statistics):
        return NotImplemented

    def function(x, w, b):
        return F.batch_norm(x, *statistics, w, b, False, momentum, eps)

    return _normalised(tape, input, function, weight, bias, True)


RULES: dict[Callable, Rule] = {
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.group_norm: _group_norm,
    F.instance_norm: _instance_norm,
    F.batch_norm: _batch_norm,
}
