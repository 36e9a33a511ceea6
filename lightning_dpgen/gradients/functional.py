"""Per-record gradients by `torch.func`: exact for any network, and held as one gradient a record."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from lightning_dpgen.data.lots import Lot
from lightning_dpgen.gradients.forms import Whole
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.gradients.layers import checked_layers
from lightning_dpgen.gradients.records import RecordGradients
from lightning_dpgen.gradients.terms import PerGroup, PerRecord


def functional_gradients(
    network: nn.Module, term: PerRecord | PerGroup, lot: Lot, noise: Tensor, groups: Groups | None = None
) -> RecordGradients:
    """The gradients of a term for each record, by ``vmap(grad)`` over lots of one record; or of each group, one by one.

    The oracle of the book-keeping engine, and the way for what it refuses. Needs B x P numbers.

    Args:
        network: the module whose trainable parameters are differentiated; `term.loss` must call it.
        term: a per-record or per-group loss.
        lot: B records, sorted by component.
        noise: (B, term.noise).
        groups: of the records, for a per-group loss.

    Raises:
        ValueError: for layers that mix records.
    """
    layers = checked_layers(network)
    parameters = {name: p for name, p in network.named_parameters() if p.requires_grad}
    if groups is None:
        gradients, losses = _of_records(network, parameters, term, lot, noise)
    else:
        gradients, losses = _of_groups(network, parameters, term, lot, noise, groups)
    return RecordGradients(
        {p: Whole(gradients[name]) for name, p in parameters.items()},
        layers,
        len(losses),
        lot.draw,
        offsets=lot.offsets if groups is None else None,
        groups=None if groups is None else groups.count,
        losses=lambda: losses,
    )


def _of_records(network, parameters, term: PerRecord, lot: Lot, noise: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    gradients = {name: [p.new_zeros(0, *p.shape)] for name, p in parameters.items()}
    losses = [noise.new_zeros(0)]
    for c, (start, end) in enumerate(itertools.pairwise(lot.offsets)):
        if start == end:
            continue
        alone = tuple(int(i > c) for i in range(len(lot.offsets)))

        def loss(values, record, own, alone=alone):
            with _swapped(network, values):
                result = term.losses(Lot(tree_map(lambda x: x[None], record), alone), own[None])
            return result.sum(), result.sum()

        # Each record draws numbers of its own, if the loss draws any.
        each = torch.func.vmap(torch.func.grad(loss, has_aux=True), in_dims=(None, 0, 0), randomness="different")
        part, value = each(
            {name: p.detach() for name, p in parameters.items()},
            tree_map(lambda x, start=start, end=end: x[start:end], lot.records),
            noise[start:end],
        )
        losses.append(value.detach())
        for name, gradient in part.items():
            gradients[name].append(gradient.detach())
    return {name: torch.cat(each) for name, each in gradients.items()}, torch.cat(losses)


def _of_groups(network, parameters, term: PerGroup, lot: Lot, noise: Tensor, groups: Groups):
    gradients = {name: p.new_zeros(groups.count, *p.shape) for name, p in parameters.items()}
    losses = noise.new_zeros(groups.count)
    for j in range(groups.count):
        members = (groups.index == j).nonzero()[:, 0]
        if not len(members):
            continue
        cuts = torch.searchsorted(members, torch.tensor(lot.offsets, device=members.device))
        own = lot.mapped(lambda x, members=members: x[members], tuple(cuts.tolist()))
        alone = Groups(torch.zeros_like(members), 1)

        def loss(values, own=own, alone=alone, members=members):
            with _swapped(network, values):
                return term.losses(own, noise[members], alone).sum()

        found, losses[j] = torch.func.grad_and_value(loss)({name: p.detach() for name, p in parameters.items()})
        for name, gradient in found.items():
            gradients[name][j] = gradient
    return gradients, losses


class _swapped:
    """The network with other values in place of its parameters, while `term.loss` (a closure on it) is called."""

    def __init__(self, network: nn.Module, values: dict[str, Tensor]) -> None:
        self._network, self._values = network, values

    def __enter__(self) -> None:
        values = {id(self._network.get_parameter(name)): value for name, value in self._values.items()}
        # Every place that holds a parameter, since two layers may share one.
        self._held = [
            (module, leaf, p)
            for module in self._network.modules()
            for leaf, p in module._parameters.items()
            if id(p) in values
        ]
        for module, leaf, p in self._held:
            module._parameters[leaf] = values[id(p)]

    def __exit__(self, *_) -> None:
        for module, leaf, parameter in self._held:
            module._parameters[leaf] = parameter
