"""Per-record gradients by a copy of each parameter for each record: exact for any network, and held record by record."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from lightning_dpgen.gradients.factors import Dense
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.gradients.isolation import Isolation, OneGroup
from lightning_dpgen.gradients.layers import checked_layers, replaced_parameters
from lightning_dpgen.gradients.probe_records import probe_lot
from lightning_dpgen.gradients.records import RecordGradients
from lightning_dpgen.gradients.terms import PerGroup, PerRecord
from lightning_dpgen.sampling.lots import Lot


def functional_gradients(
    network: nn.Module, term: PerRecord | PerGroup, lot: Lot, noise: Tensor, groups: Groups | None = None
) -> RecordGradients:
    """Compute the gradients of a term for each record, or group of records, by `torch.vmap` over records and parameters.

    It is the oracle of the book-keeping engine, and takes what that refuses. It needs B x P numbers.

    Args:
        network: the module whose trainable parameters are differentiated; `term.loss` must call it.
        term: a per-record or per-group loss.
        lot: B records, sorted by component.
        noise: (B, term.noise).
        groups: the groups of the records, for a per-group loss, with a public number of places.

    Raises:
        ValueError: for layers that mix records, groups of a mixture, or a loss that would need to see more than its own
            record.
    """
    layers = checked_layers(network)
    gradients, losses = (
        _of_records(network, term, lot, noise) if groups is None else _of_groups(network, term, lot, noise, groups)
    )
    return RecordGradients(
        {p: Dense(gradient) for p, gradient in gradients.items()},
        layers,
        len(losses),
        lot.draw,
        offsets=lot.offsets if groups is None else None,
        groups=None if groups is None else groups.count,
        persons=lot.persons if groups is None else None,
        of_unit=groups is not None and groups.of_unit,
        losses=lambda: losses,
    )


def _of_records(network: nn.Module, term: PerRecord, lot: Lot, noise: Tensor) -> tuple[dict[nn.Parameter, Tensor], Tensor]:
    parts = []
    for c, (start, end) in enumerate(itertools.pairwise(lot.offsets)):
        offsets = tuple(int(i > c) for i in range(len(lot.offsets)))

        def of_one(records: Any, own: Tensor, offsets: tuple[int, ...] = offsets) -> Tensor:
            return term.losses(Lot(records, offsets), own)

        if not len(lot):
            continue
        part, own = lot.mapped(lambda x, s=start, e=end: x[s:e], (0, end - start)), noise[start:end]
        if start == end:
            # A loss that counts its calls must not learn that a component is empty.
            part, own, _ = probe_lot(part, own, example=term.example)
        found = _each(network, of_one, tree_map(lambda x: x.unsqueeze(1), part.records), own.unsqueeze(1))
        if start < end:
            parts.append(found)
    nothing = {p: p.new_zeros(0, *p.shape) for p in _trained(network)}
    gradients = {p: torch.cat([part[p] for part, _ in [(nothing, None), *parts]]) for p in nothing}
    return gradients, torch.cat([noise.new_zeros(0), *(losses for _, losses in parts)])


def _of_groups(
    network: nn.Module, term: PerGroup, lot: Lot, noise: Tensor, groups: Groups
) -> tuple[dict[nn.Parameter, Tensor], Tensor]:
    if not len(lot):
        return {p: p.new_zeros(groups.count, *p.shape) for p in _trained(network)}, noise.new_zeros(groups.count)
    if len(lot.offsets) > 2:
        raise ValueError("engine='func' takes the groups of a single component: use engine='ghost' for a mixture")

    def of_one(records: Any, own: Tensor, there: Tensor) -> Tensor:
        return term.losses(Lot(records, (0, len(there))), own, OneGroup(there))

    records = tree_map(groups.repeated, lot.records)
    gradients, losses = _each(network, of_one, records, groups.repeated(noise), groups.mask)
    # A group without a record has neither gradient nor loss: the loss of its zeros may be anything.
    there = groups.mask.any(dim=1)
    kept = {p: torch.where(there.view(-1, *(1,) * p.dim()), gradient, 0.0) for p, gradient in gradients.items()}
    return kept, torch.where(there, losses, 0.0)


def _each(
    network: nn.Module, loss: Callable[..., Tensor], records: Any, *rest: Tensor
) -> tuple[dict[nn.Parameter, Tensor], Tensor]:
    """Compute the gradients (B, ...) of each parameter, and the losses (B,), of a loss (1,) of the rows of B records."""
    size = len(rest[0])
    copies = {p: p.detach().expand(size, *p.shape).requires_grad_() for p in _trained(network)}

    def of_one(values: list[Tensor], *rows: Any) -> Tensor:
        with replaced_parameters(network, dict(zip(copies, values, strict=True))):
            return loss(*rows).squeeze(0)

    isolation = Isolation(size)
    with torch.enable_grad():
        losses = isolation.run(of_one, [copy.view_as(copy) for copy in copies.values()], records, *rest)
        if not losses.requires_grad:
            raise ValueError(
                "this loss does not depend on the parameters of the network, or detaches them (detach, no_grad)"
            )
        with isolation.backward():
            found = torch.autograd.grad(losses.sum(), list(copies.values()), allow_unused=True, materialize_grads=True)
    # The zeros of a parameter that is not used ask for a gradient in torch 2.9.
    return {p: gradient.detach() for p, gradient in zip(copies, found, strict=True)}, losses.detach()


def _trained(network: nn.Module) -> list[nn.Parameter]:
    return [p for p in network.parameters() if p.requires_grad]
