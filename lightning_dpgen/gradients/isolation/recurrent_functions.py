"""Recurrent networks and cells written out in functions that `torch.vmap` has rules for, on any device.

The kernels behind `torch.lstm` and its like have no rule: on a CPU vmap can take them apart, on a GPU it cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# The states (...) of one layer: of an LSTM its output and its cell, of any other its output alone.
States = tuple[Tensor, ...]


def _lstm(x: Tensor, own: Tensor, states: States, projection: Tensor | None) -> States:
    into, forget, new, out = (x + own).chunk(4, dim=-1)
    cell = torch.sigmoid(forget) * states[1] + torch.sigmoid(into) * torch.tanh(new)
    output = torch.sigmoid(out) * torch.tanh(cell)
    return output if projection is None else F.linear(output, projection), cell


def _gru(x: Tensor, own: Tensor, states: States, projection: Tensor | None) -> States:
    (reset, update, new), (own_reset, own_update, own_new) = x.chunk(3, dim=-1), own.chunk(3, dim=-1)
    new = torch.tanh(new + torch.sigmoid(reset + own_reset) * own_new)
    return (new + torch.sigmoid(update + own_update) * (states[0] - new),)


def _tanh(x: Tensor, own: Tensor, states: States, projection: Tensor | None) -> States:
    return (torch.tanh(x + own),)


def _relu(x: Tensor, own: Tensor, states: States, projection: Tensor | None) -> States:
    return (torch.relu(x + own),)


# From the parts of the next input and of the last output in the gates, and the last states, to the next ones.
_STEPS = {torch.lstm: _lstm, torch.gru: _gru, torch.rnn_tanh: _tanh, torch.rnn_relu: _relu}
_CELLS = {torch.lstm_cell: _lstm, torch.gru_cell: _gru, torch.rnn_tanh_cell: _tanh, torch.rnn_relu_cell: _relu}
RECURRENT = (*_STEPS, *_CELLS)


def run_recurrent(function: Callable, input: Tensor, hidden: Any, *rest: Any) -> Any:
    """Compute one of `RECURRENT`, with its arguments; NotImplemented for packed sequences.

    Example:
        >>> layer, x, state = torch.nn.GRU(2, 3), torch.rand(5, 4, 2), torch.zeros(1, 4, 3)
        >>> outputs, last = run_recurrent(torch.gru, x, state, list(layer.parameters()), True, 1, 0.0, True, False, False)
        >>> torch.allclose(outputs, layer(x)[0], atol=1e-6)
        True
    """
    states = (hidden,) if isinstance(hidden, Tensor) else tuple(hidden)
    if function in _CELLS:
        weight, own_weight, bias, own_bias = (*rest, None, None)[:4]
        own = F.linear(states[0], own_weight, own_bias)
        found = _CELLS[function](F.linear(input, weight, bias), own, states, None)
        return found if len(states) > 1 else found[0]
    weights, *options = rest
    if isinstance(weights, Tensor) or len(options) != 6:
        return NotImplemented
    return _run_layers(_STEPS[function], input, states, weights, *options)


def _run_layers(
    step: Callable,
    x: Tensor,
    states: States,
    weights: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    directions, time = 1 + bidirectional, x.dim() - 2 if batch_first else 0
    size = len(weights) // (layers * directions)
    last: list[States] = []
    for layer in range(layers):
        if layer:
            x = F.dropout(x, dropout, training)
        ways = []
        for way in range(directions):
            place = layer * directions + way
            own = weights[size * place : size * (place + 1)]
            outputs, final = _run_way(step, x, tuple(s[place] for s in states), own, has_biases, time, backwards=way == 1)
            ways.append(outputs)
            last.append(final)
        x = ways[0] if len(ways) == 1 else torch.cat(ways, dim=-1)
    return x, *(torch.stack(list(each)) for each in zip(*last, strict=True))


def _run_way(
    step: Callable, x: Tensor, states: States, weights: Sequence[Tensor], has_biases: bool, time: int, *, backwards: bool
) -> tuple[Tensor, States]:
    """Run one layer over the times of its input, in one direction; a fifth weight, or a third, projects outputs."""
    weight, own_weight, *more = weights
    bias, own_bias = more[:2] if has_biases else (None, None)
    projection = (more[2 * has_biases :] or [None])[0]
    steps = F.linear(x, weight, bias).unbind(time)
    outputs = []
    for each in reversed(steps) if backwards else steps:
        states = step(each, F.linear(states[0], own_weight, own_bias), states, projection)
        outputs.append(states[0])
    return torch.stack(outputs[::-1] if backwards else outputs, dim=time), states
