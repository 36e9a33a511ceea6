"""Rules of recurrent networks and cells: one pass through time forward and one back, for all records at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_dpgen.gradients.factors import Dense
from lightning_dpgen.gradients.isolation.hidden import is_hidden
from lightning_dpgen.gradients.tape import Rule, Tape, TracedParameter, value_of
from lightning_dpgen.gradients.tape_rules.matrices import matrix_gradient
from lightning_dpgen.gradients.tape_rules.recurrent_passes import GRU, LSTM, RELU, TANH, GateGradients, RecurrentPass


def _fits(inputs: Sequence[Any], weights: Sequence[Any]) -> bool:
    """Return True for inputs and states of records, and weights of none, of one precision."""
    tensors = [*inputs, *weights]
    if (
        not inputs[0].numel()
        or not any(map(is_hidden, inputs))
        or any(map(is_hidden, weights))
        or not all(isinstance(x, Tensor) for x in tensors)
    ):
        return False
    return len({value_of(x).dtype for x in tensors}) == 1


def _records(tape: Tape, x: Tensor) -> Tensor:
    """Return (B, ...) of an input; a parameter becomes one of each record's own. Call it inside the loss."""
    x = tape.copied(x) if isinstance(x, TracedParameter) else x
    with tape.isolation.outside():
        return tape.isolation.rows_or_copies(x)


def _by_record(x: Tensor, size: int) -> Tensor:
    """Turn (T, B q, n) of B records into (B, T q, n), laid out in that order: norms and sums both need it so."""
    return x.unflatten(1, (size, -1)).transpose(0, 1).contiguous().flatten(1, 2)


def _run(
    tape: Tape, kind: Any, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], has_biases: bool
) -> tuple[Tensor, ...]:
    """Run one layer in the direction of time; call it in `outside`.

    Args:
        x: (T, B q, n), of B records.
        states: (B q, R) and, of an LSTM, (B q, H).
        weights: those of inputs and of last outputs, two biases if there are any, a projection if there is one.

    Returns:
        The outputs (T, B q, R), and the last states.
    """
    size, inputs = tape.isolation.size, x.detach()
    weight, own_weight, *more = weights
    bias, own_bias = more[:2] if has_biases else (None, None)
    projection = (more[2 * has_biases :] or [None])[0]

    def note(gate_gradients: GateGradients):
        gates = _by_record(gate_gradients.inputs, size)
        own = gates if kind.additive else _by_record(gate_gradients.own, size)
        products = [(weight, gates, inputs), (own_weight, own, gate_gradients.before)]
        if projection is not None:
            products.append((projection, _by_record(gate_gradients.projected, size), gate_gradients.states))
        for matrix, left, right in products:
            if isinstance(matrix, TracedParameter):
                yield matrix_gradient(matrix, [(left, _by_record(right, size))], tuple(matrix.source.shape))
        vectors = [x for x in (bias, own_bias) if isinstance(x, TracedParameter)]
        total = gates.sum(dim=1) if vectors else None
        for vector in vectors:
            yield vector.source, Dense(total if vector is bias or kind.additive else own.sum(dim=1))

    plain, own = value_of(bias), value_of(own_bias)
    if kind.additive and has_biases:
        plain, own = plain + own, None
    gates = F.linear(x, value_of(weight), plain)
    seed, receive = tape.expect(note)
    return RecurrentPass.apply(kind, gates, seed, receive, value_of(own_weight), own, value_of(projection), *states)


def _network(kind: Any) -> Rule:
    def rule(tape: Tape, input, hidden, weights, *options):
        if isinstance(weights, Tensor) or len(options) != 6:
            # A packed sequence.
            return NotImplemented
        has_biases, layers, dropout, training, both_ways, batch_first = options
        first = (hidden,) if isinstance(hidden, Tensor) else tuple(hidden)
        ways = 2 if both_ways else 1
        wanted = layers * ways * (4 if has_biases else 2)
        if not _fits((input, *first), weights) or input.dim() not in (2, 3) or not input.numel() or len(weights) < wanted:
            return NotImplemented
        x, states = _records(tape, input), [_records(tape, state) for state in first]
        count = 1 if x.dim() == 3 else x.shape[1 if batch_first else 2]
        if any(s.dim() != x.dim() or s.shape[1] != layers * ways or (x.dim() == 4 and s.shape[2] != count) for s in states):
            return NotImplemented
        place, size = 2 if batch_first and x.dim() == 4 else 1, len(weights) // (layers * ways)
        last: list[Sequence[Tensor]] = []
        with tape.isolation.outside():
            # Laid out in the order of time: products of other layouts are slow.
            y = x.movedim(place, 0).flatten(1, -2).contiguous()
            states = [s.transpose(0, 1).flatten(1, -2) for s in states]
            for layer in range(layers):
                y = F.dropout(y, dropout, training) if layer else y
                outputs = []
                for way in range(ways):
                    at = layer * ways + way
                    own = weights[size * at : size * (at + 1)]
                    turned = y.flip(0) if way else y
                    found, *final = _run(tape, kind, turned, [s[at] for s in states], own, has_biases)
                    outputs.append(found.flip(0) if way else found)
                    last.append(final)
                y = outputs[0] if ways == 1 else torch.cat(outputs, dim=2)
            y = y.unflatten(1, (len(x), count)) if x.dim() == 4 else y
            y = y.movedim(0, place)
            ends = [torch.stack(each) for each in zip(*last, strict=True)]
            ends = [(e.unflatten(1, (len(x), count)) if x.dim() == 4 else e).transpose(0, 1) for e in ends]
        return tape.isolation.hide(y), *map(tape.isolation.hide, ends)

    return rule


def _cell(kind: Any) -> Rule:
    def rule(tape: Tape, input, hidden, weight, own_weight, bias=None, own_bias=None):
        first = (hidden,) if isinstance(hidden, Tensor) else tuple(hidden)
        weights = [w for w in (weight, own_weight, bias, own_bias) if w is not None]
        if len(weights) == 3 or not _fits((input, *first), weights) or input.dim() not in (1, 2):
            return NotImplemented
        x, *states = (_records(tape, each) for each in (input, *first))
        if any(s.shape[:-1] != x.shape[:-1] for s in states):
            return NotImplemented
        with tape.isolation.outside():
            shape = x.shape[:-1]
            states = [s.reshape(-1, s.shape[-1]) for s in states]
            _, *results = _run(tape, kind, x.reshape(1, -1, x.shape[-1]), states, weights, len(weights) > 2)
            results = [f.view(*shape, -1) for f in results]
        results = tuple(map(tape.isolation.hide, results))
        return results if len(results) > 1 else results[0]

    return rule


RULES: dict[Callable, Rule] = {
    torch.lstm: _network(LSTM),
    torch.gru: _network(GRU),
    torch.rnn_tanh: _network(TANH),
    torch.rnn_relu: _network(RELU),
    torch.lstm_cell: _cell(LSTM),
    torch.gru_cell: _cell(GRU),
    torch.rnn_tanh_cell: _cell(TANH),
    torch.rnn_relu_cell: _cell(RELU),
}
