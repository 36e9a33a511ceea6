"""Recurrent layers in one direction, with the gradients of their gates over time: one pass forward and one back.

Shapes: T times, M sequences, H numbers of a state, R of an output (H, or fewer behind a projection), G gates of H numbers
each. What the next input adds to the gates is known for all times beforehand; what the last output adds follows in a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


@dataclass
class GateGradients:
    """Gradients with respect to what a layer adds up in its gates.

    Args:
        inputs: (T, M, G H), of what the inputs add.
        own: (T, M, G H), of what the last outputs add.
        before: (T, M, R), the last outputs.
        projected: (T, M, R), of the projected outputs; None without a projection.
        states: (T, M, H), what is projected; None without a projection.
    """

    inputs: Tensor
    own: Tensor
    before: Tensor
    projected: Tensor | None = None
    states: Tensor | None = None


class RecurrentPass(Function):
    """One layer of a recurrent network, in the direction of time.

    ``apply(kind, gates, seed, receive, weight, bias, projection, *states)`` returns the outputs (T, M, R) and the last
    states.

    Args:
        kind: `LSTM`, `GRU`, `TANH` or `RELU`.
        gates: (T, M, G H), what inputs and biases add to the gates.
        seed: a tensor that requires a gradient, so that the pass back comes here.
        receive: is handed the `GateGradients` in the pass back.
        weight: (G H, R), of the last outputs.
        bias: (G H,), that of the last outputs, where it is not in `gates`; None for zeros.
        projection: (R, H) of the outputs of an LSTM, or None.
        states: (M, R) and, of an LSTM, (M, H), the first ones.

    Example:
        >>> layer, x, found = torch.nn.RNN(2, 3), torch.rand(5, 4, 2), []
        >>> gates = torch.nn.functional.linear(x, layer.weight_ih_l0, layer.bias_ih_l0 + layer.bias_hh_l0)
        >>> seed, first = torch.zeros((), requires_grad=True), torch.zeros(4, 3)
        >>> outputs, last = RecurrentPass.apply(TANH, gates, seed, found.append, layer.weight_hh_l0, None, None, first)
        >>> outputs.sum().backward()
        >>> own = layer.bias_hh_l0.grad.clone()
        >>> layer.zero_grad()
        >>> layer(x)[0].sum().backward()
        >>> torch.allclose(own, layer.bias_hh_l0.grad, atol=1e-5), found[0].own.shape
        (True, torch.Size([5, 4, 3]))
    """

    @staticmethod
    def forward(ctx, kind, gates, seed, receive, weight, bias, projection, *states):
        outputs, last, saved = kind.forward(gates, weight, bias, projection, *states)
        ctx.kind, ctx.receive = kind, receive
        ctx.save_for_backward(weight, projection, *saved)
        # A loss may write into what it is given, so that is apart from what is saved.
        return outputs.clone(), *(state.clone() for state in last)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient, *last):
        weight, projection, *saved = ctx.saved_tensors
        found, first = ctx.kind.backward(gradient, last, weight, projection, *saved)
        ctx.receive(found)
        return None, found.inputs, gradient.new_zeros(()), None, None, None, None, *first


def _with_first(first: Tensor, times: int) -> Tensor:
    """Return room for a state at all times, behind the first one."""
    states = first.new_empty(times + 1, *first.shape)
    states[0] = first
    return states


@dataclass(frozen=True)
class _Lstm:
    """An LSTM: gates for input, forgetting, new numbers and output."""

    parts: int = 4
    # True if what inputs and outputs add to a gate is only added up, so that their gradients are the same.
    additive: bool = True

    def forward(self, gates, weight, bias, projection, hidden, cell):
        size, times = cell.shape[1], len(gates)
        opened, turned = torch.empty_like(gates), weight.t()
        cells, before = _with_first(cell, times), _with_first(hidden, times)
        squashed = torch.empty_like(cells[1:])
        states = before[1:] if projection is None else torch.empty_like(squashed)
        # Views of all times at once take less time than one by one.
        views = zip(
            gates,
            opened,
            opened[:, :, : 2 * size],
            *opened.chunk(4, dim=2),
            cells,
            cells[1:],
            squashed,
            states,
            strict=False,
        )
        for t, (added, all_four, first_two, into, forget, new, out, last, cell_at, squashed_at, state) in enumerate(views):
            torch.addmm(added, before[t], turned, out=all_four)
            first_two.sigmoid_()
            new.tanh_()
            out.sigmoid_()
            torch.mul(forget, last, out=cell_at).addcmul_(into, new)
            torch.mul(out, torch.tanh(cell_at, out=squashed_at), out=state)
            if projection is not None:
                torch.mm(state, projection.t(), out=before[t + 1])
        return before[1:], (before[-1], cells[-1]), (opened, cells, before, squashed, states)

    def backward(self, gradient, last, weight, projection, opened, cells, before, squashed, states):
        into, forget, new, out = opened.chunk(4, dim=2)
        # The gradient of a state goes to the cell and the gate of the output, and that of a cell to the three other gates:
        # by y (1 - y) and 1 - y^2 of what is at hand, in as few passes over memory as there are.
        to_cell = torch.addcmul(out, states, squashed, value=-1.0)
        to_output = torch.addcmul(states, states, out, value=-1.0)
        slopes = opened.new_empty(*opened.shape[:2], 3, into.shape[2])
        product = into * new
        torch.addcmul(product, product, into, value=-1.0, out=slopes[:, :, 0])
        torch.addcmul(into, product, new, value=-1.0, out=slopes[:, :, 2])
        torch.mul(cells[:-1], forget, out=product)
        torch.addcmul(product, product, forget, value=-1.0, out=slopes[:, :, 1])
        gradients = opened.new_empty(*opened.shape[:2], 4, into.shape[2])
        projected = None if projection is None else torch.empty_like(gradient)
        hidden, cell = last
        views = zip(
            to_cell, to_output, slopes, gradients[:, :, :3], gradients[:, :, 3], gradients.flatten(2), forget, strict=True
        )
        hidden = gradient[-1] + hidden
        for t, (cell_slope, output_slope, slope, first_three, fourth, all_four, kept) in reversed(list(enumerate(views))):
            if projection is not None:
                projected[t] = hidden
                hidden = hidden @ projection
            cell = torch.addcmul(cell, hidden, cell_slope)
            torch.mul(slope, cell[:, None], out=first_three)
            torch.mul(output_slope, hidden, out=fourth)
            hidden = torch.addmm(gradient[t - 1], all_four, weight) if t else all_four @ weight
            cell = cell * kept
        gradients = gradients.flatten(2)
        return GateGradients(gradients, gradients, before[:-1], projected, states), (hidden, cell)


@dataclass(frozen=True)
class _Gru:
    """A GRU: gates for resetting and updating, and new numbers, to which the last output adds what is not reset."""

    parts: int = 3
    additive: bool = False

    def forward(self, gates, weight, bias, projection, hidden):
        size, times = hidden.shape[1], len(gates)
        own, opened, turned = torch.empty_like(gates), torch.empty_like(gates), weight.t()
        before, two = _with_first(hidden, times), 2 * size
        first_two, third = (gates[:, :, :two], own[:, :, :two], opened[:, :, :two]), (gates[:, :, two:], own[:, :, two:])
        each = zip(own, *first_two, *third, *opened.chunk(3, dim=2), before, before[1:], strict=False)
        for all_three, added, own_two, both, new_added, own_new, reset, update, new, last, output in each:
            if bias is None:
                torch.mm(last, turned, out=all_three)
            else:
                torch.addmm(bias, last, turned, out=all_three)
            torch.add(added, own_two, out=both).sigmoid_()
            torch.addcmul(new_added, reset, own_new, out=new).tanh_()
            torch.lerp(new, last, update, out=output)
        return before[1:], (before[-1],), (opened, own[:, :, two:], before)

    def backward(self, gradient, last, weight, projection, opened, own, before):
        reset, update, new = opened.chunk(3, dim=2)
        to_new = (1.0 - update) * (1.0 - new.square())
        to_update = (before[:-1] - new) * update * (1.0 - update)
        slopes = torch.stack([to_new * own * reset * (1.0 - reset), to_update, to_new * reset, to_new], dim=2)
        gradients = torch.empty_like(slopes)
        hidden = gradient[-1] + last[0]
        for t, (slope, all_four, three, kept) in reversed(
            list(enumerate(zip(slopes, gradients, gradients.flatten(2)[:, :, : 3 * reset.shape[2]], update, strict=True)))
        ):
            torch.mul(slope, hidden[:, None], out=all_four)
            hidden = torch.addmm(hidden * kept, three, weight)
            hidden = hidden + gradient[t - 1] if t else hidden
        inputs = torch.cat([gradients[:, :, :2], gradients[:, :, 3:]], dim=2).flatten(2)
        return GateGradients(inputs, gradients[:, :, :3].flatten(2), before[:-1]), (hidden,)


@dataclass(frozen=True)
class _Elman:
    """A layer whose output is a function of the sum.

    Args:
        squash: changes the sum in place.
        slope: returns the slope of that function, given its result.
    """

    squash: Callable[[Tensor], Any]
    slope: Callable[[Tensor], Tensor]
    parts: int = 1
    additive: bool = True

    def forward(self, gates, weight, bias, projection, hidden):
        before, turned = _with_first(hidden, len(gates)), weight.t()
        for added, last, output in zip(gates, before, before[1:], strict=False):
            self.squash(torch.addmm(added, last, turned, out=output))
        return before[1:], (before[-1],), (before,)

    def backward(self, gradient, last, weight, projection, before):
        gradients = self.slope(before[1:])
        (hidden,) = last
        for own, given in reversed(list(zip(gradients, gradient, strict=True))):
            own *= hidden + given
            hidden = own @ weight
        return GateGradients(gradients, gradients, before[:-1]), (hidden,)


LSTM, GRU = _Lstm(), _Gru()
TANH = _Elman(torch.tanh_, lambda y: 1.0 - y.square())
RELU = _Elman(torch.relu_, lambda y: (y > 0).to(y.dtype))
