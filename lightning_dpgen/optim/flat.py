"""The parameters of a group as views of one tensor, so that an optimizer moves all of them at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn, optim

from lightning_dpgen.gradients.privatize import GradientBuffer

# They move each number by its own gradient and state alone, so one long tensor moves as many short ones do.
_ELEMENTWISE = {
    optim.SGD,
    optim.Adam,
    optim.AdamW,
    optim.Adadelta,
    optim.Adamax,
    optim.NAdam,
    optim.RAdam,
    optim.RMSprop,
}


class FlatGroups:
    """The trainable parameters of each group of an optimizer, as views of one tensor, which takes their place in a step.

    Outside of a step the groups hold the parameters themselves. The optimizer's state, and so its `state_dict`, is that of
    one parameter a group. With 120 small tensors a step takes a fifth of the time that fused Adam takes for one after the
    other; with a few large ones it makes no difference.

    Args:
        optimizer: an optimizer that moves each number by itself and has no state yet (`possible`).
        gradients: the buffer of all its parameters, in the same order.
    """

    def __init__(self, optimizer: optim.Optimizer, gradients: GradientBuffer) -> None:
        self._optimizer = optimizer
        self._members: list[list[nn.Parameter]] = []
        self._flats: list[nn.Parameter] = []
        start = 0
        for group in optimizer.param_groups:
            members = [p for p in group["params"] if p.requires_grad]
            size = sum(p.numel() for p in members)
            flat = nn.Parameter(gradients.flat.new_empty(size))
            flat.grad = gradients.flat[start : start + size]
            start += size
            self._members.append(members)
            self._flats.append(flat)
        self.attach()

    @staticmethod
    def possible(optimizer: optim.Optimizer) -> bool:
        """Return whether nothing but the time of a step would change."""
        groups = [[p for p in group["params"] if p.requires_grad] for group in optimizer.param_groups]
        kinds = {(p.dtype, p.device, p.layout) for group in groups for p in group}
        return type(optimizer) in _ELEMENTWISE and all(groups) and len(kinds) == 1 and not optimizer.state

    @torch.no_grad()
    def attach(self) -> None:
        """Make all parameters views of the flat tensors; one that was given other numbers (``p.data = ...``) keeps them.

        Raises:
            RuntimeError: if a parameter was moved to another device or type.
        """
        for flat, members in zip(self._flats, self._members, strict=True):
            start, width = flat.data_ptr(), flat.element_size()
            for p in members:
                if p.data_ptr() != start:
                    _move_into(p, flat, (start - flat.data_ptr()) // width)
                start += width * p.numel()

    @contextmanager
    def in_their_place(self) -> Iterator[None]:
        """Put the flat tensors into the optimizer's groups, within a ``with`` block."""
        kept = [group["params"] for group in self._optimizer.param_groups]
        try:
            for group, flat in zip(self._optimizer.param_groups, self._flats, strict=True):
                group["params"] = [flat]
            yield
        finally:
            for group, params in zip(self._optimizer.param_groups, kept, strict=True):
                group["params"] = params


def _move_into(p: Tensor, flat: Tensor, place: int) -> None:
    """Make a parameter a view of a flat tensor that begins at `place`, with the numbers that it has."""
    if p.dtype != flat.dtype or p.device != flat.device:
        raise RuntimeError(
            f"a parameter is {p.dtype} on {p.device} and was {flat.dtype} on {flat.device} when this optimizer was made: "
            "move the network first, and make optimizers after that"
        )
    view = flat[place : place + p.numel()].view(p.shape)
    p.data = view.copy_(p)
