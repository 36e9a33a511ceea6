"""Per-record gradients by `torch.func`: exact for any network, and held as one gradient a record."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_dpgen.data.lots import Lot
from lightning_dpgen.gradients.layers import check_layers
from lightning_dpgen.gradients.records import Materialised
from lightning_dpgen.gradients.terms import PerRecord


def functional_gradients(
    network: nn.Module, term: PerRecord, lot: Lot, noise: Tensor
) -> tuple[Materialised, Tensor]:
    """The per-record gradients of a term, by ``vmap(grad)`` over lots of one record.

    The oracle of the book-keeping engine, and the way for layers that it does not know. Needs B x P numbers.

    Args:
        network: the module whose trainable parameters are differentiated; `term.loss` must call it.
        term: a per-record loss.
        lot: B records, sorted by component.
        noise: (B, term.noise).

    Returns:
        The gradients, and the private losses (B,).

    Raises:
        ValueError: for layers that mix records.
    """
    check_layers(network)
    parameters = {name: p for name, p in network.named_parameters() if p.requires_grad}
    gradients = {name: [p.new_zeros(0, *p.shape)] for name, p in parameters.items()}
    losses = [lot.records.new_zeros(0)]
    for c, (start, end) in enumerate(zip(lot.offsets[:-1], lot.offsets[1:], strict=True)):
        if start == end:
            continue
        alone = tuple(int(i > c) for i in range(len(lot.offsets)))

        def loss(values, record, own, alone=alone):
            with _swapped(network, values):
                result = term.loss(Lot(record[None], alone), own[None])
            return result.sum(), result.sum()

        each = torch.func.vmap(torch.func.grad(loss, has_aux=True), in_dims=(None, 0, 0))
        part, value = each(
            {name: p.detach() for name, p in parameters.items()}, lot.records[start:end], noise[start:end]
        )
        losses.append(value.detach())
        for name, gradient in part.items():
            gradients[name].append(gradient.detach())
    return Materialised({p: torch.cat(gradients[n]) for n, p in parameters.items()}, lot.draw), torch.cat(losses)


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
