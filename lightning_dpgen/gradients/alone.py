"""Whether an engine understands a loss: its gradients, compared with those of single records, before anything is spent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from lightning_dpgen.data.lots import Lot
from lightning_dpgen.data.stores import randomness_of_their_own
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.gradients.isolation import Isolation, OneGroup
from lightning_dpgen.gradients.made_up import UNSUITED, made_up
from lightning_dpgen.gradients.records import RecordGradients
from lightning_dpgen.gradients.terms import PerGroup, PerRecord

# The number of records that are compared. Groups need more, so that some differ in size.
_RECORDS, _IN_GROUPS = 3, 12
# Of a loss and of a norm of its gradient, relative.
_TOLERANCE = 1e-3


def check_exact(
    engine: Callable[[nn.Module, PerRecord | PerGroup, Lot, Tensor, Groups | None], RecordGradients],
    network: nn.Module,
    term: PerRecord | PerGroup,
    lot: Lot,
    noise: Tensor,
    groups: Groups | None = None,
) -> None:
    """Compare the gradients that an engine finds for the first records of a lot with those of plain autograd for one record
    at a time, and the losses of these records with those that they have beside another one.

    The first is a test of the engine, and finds parameters whose use it does not see. The second finds losses that are
    meant to compare records: each record is alone here, so they would learn something else. Privacy rests on neither.
    Made-up records take their place where there are too few or all are alike. So the number of calls of the loss is public.

    Args:
        engine: as `ghost_gradients`.
        network, term, lot, noise, groups: as for the engine.

    Raises:
        ValueError: if they differ. It says nothing of the records.
    """
    if groups is not None and len(lot.offsets) > 2:
        # For the groups of a mixture there is no second opinion.
        return
    count = _RECORDS if groups is None else _IN_GROUPS
    few = _first(lot, noise, groups, count)
    if len(lot) >= count and _tell_apart(few[0], few[2]):
        _check(engine, network, term, *few)
    else:
        with suppress(*UNSUITED):
            _check(engine, network, term, *made_up(lot, noise, count, groups))


def _check(
    engine: Callable, network: nn.Module, term: PerRecord | PerGroup, few: Lot, noise: Tensor, groups: Groups | None
) -> None:
    parameters = [p for p in network.parameters() if p.requires_grad]
    # What is not held still would take public numbers, as many as there are records.
    with _Still(), randomness_of_their_own():
        with _Unchanged(network):
            found = engine(network, term, few, noise, groups)
        _compare(found, _one_by_one(network, term, few, noise, groups, parameters), parameters)
        if groups is None and len(few.offsets) == 2:
            with _Unchanged(network):
                _compare_pairs(network, term, few, noise, found.losses)


def _one_by_one(
    network: nn.Module,
    term: PerRecord | PerGroup,
    lot: Lot,
    noise: Tensor,
    groups: Groups | None,
    parameters: list[nn.Parameter],
) -> Tensor:
    """(rows, P) the gradient of each record, or group, by plain autograd of a lot of its own."""
    if groups is None:
        rows = [(tree_map(lambda x, i=i: x[i : i + 1, None], lot.records), noise[i : i + 1, None]) for i in range(len(lot))]
    else:
        held = tree_map(groups.repeated, lot.records), groups.repeated(noise), groups.mask
        rows = [tree_map(lambda x, j=j: x[j : j + 1], held) for j in range(groups.count)]
    found = []
    for i, own in enumerate(rows):
        offsets = tuple(int(i < end) for end in lot.offsets)

        def loss(records: Any, noise: Tensor, *there: Tensor, offsets: tuple[int, ...] = offsets) -> Tensor:
            if there:
                return term.losses(Lot(records, (0, len(there[0]))), noise, OneGroup(there[0]))
            return term.losses(Lot(records, offsets), noise)

        alone = Isolation(1)
        with _Unchanged(network), torch.enable_grad():
            losses = alone.run(loss, *own)
            with alone.backward():
                each = torch.autograd.grad(losses.sum(), parameters, allow_unused=True, materialize_grads=True)
        gradient = torch.cat([g.flatten() for g in each]).double()
        # The loss of a group without a record may be anything.
        found.append(gradient if groups is None or bool(groups.mask[i].any()) else torch.zeros_like(gradient))
    return torch.stack(found)


def _compare(found: RecordGradients, single: Tensor, parameters: list[nn.Parameter]) -> None:
    lengths = single.norm(dim=1)
    # A record whose gradient is not finite will add zeros.
    wrong = (_rows(found, parameters) - single).norm(dim=1) > _tolerance() * lengths + 1e-9
    if bool((wrong & torch.isfinite(lengths)).any()):
        raise ValueError(
            "the gradients of single records differ from those that the engine finds in a lot: the network does with its "
            "parameters what the book-keeping engine does not see, or the loss depends on random numbers that are not "
            "torch's, or gives other values when it is called again. With engine='func', which hands the loss a copy of "
            "each parameter for each record, only the latter can be the reason"
        )


class _Unchanged:
    """Puts a network's counters, buffers and frozen parameters back afterwards: a loss that is tried takes no step."""

    def __init__(self, network: nn.Module) -> None:
        frozen = [p for p in network.parameters() if not p.requires_grad]
        trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
        # Far more than what is trained is a pretrained network, which nothing updates and a copy of which might not fit.
        if sum(p.numel() for p in frozen) > 4 * trained:
            frozen = []
        self._numbers = [
            (module, {name: x for name, x in vars(module).items() if isinstance(x, int | float)})
            for module in network.modules()
        ]
        self._tensors = [(x, x.detach().clone()) for x in (*network.buffers(), *frozen)]

    def __enter__(self) -> None: ...

    def __exit__(self, *_) -> None:
        for module, numbers in self._numbers:
            vars(module).update(numbers)
        with torch.no_grad():
            for x, before in self._tensors:
                x.copy_(before)


def _compare_pairs(network: nn.Module, term: PerRecord, lot: Lot, noise: Tensor, alone: Tensor) -> None:
    """Call the loss with lots of two records each: every record of a lot and the next one."""

    def paired(x: Tensor) -> Tensor:
        return torch.stack([x, x.roll(-1, dims=0)], dim=1)

    def of_two(records: Any, own: Tensor) -> Tensor:
        return term.losses(Lot(records, (0, 2)), own)

    with torch.no_grad():
        pairs = Isolation(len(lot)).run(of_two, tree_map(paired, lot.records), paired(noise))
    beside = torch.stack([pairs[:, 0], pairs[:, 1].roll(1, dims=0)]).double()
    alone = alone.double()
    differs = (beside - alone).abs() > _tolerance() * (alone.abs().amax() + 1e-9)
    if bool((differs & torch.isfinite(alone)).any()):
        raise ValueError(
            "the loss of a record is another when a second record is beside it (a mean or norm over the lot, pairs of "
            "records, batch statistics, a position in the lot). Under privacy each record is alone, so that its gradient "
            "is its own: write the loss of one record. A PerGroup term may compare the records of a group"
        )


def _first(lot: Lot, noise: Tensor, groups: Groups | None, count: int) -> tuple[Lot, Tensor, Groups | None]:
    """Cut a lot to its first records."""
    few = lot.mapped(lambda x: x[:count].clone(), tuple(min(end, count) for end in lot.offsets))
    return few, noise[:count], None if groups is None else Groups(groups.index[:count], groups.count, groups.places)


def _tell_apart(lot: Lot, groups: Groups | None) -> bool:
    """Return False for records that are all alike, or groups of one size, which would hide a difference."""
    if groups is not None and len(torch.bincount(groups.index, minlength=groups.count).unique()) < 2:
        return False
    return any(bool((x[1:] != x[:1]).any()) for x in lot.tensors)


def _rows(gradients: RecordGradients, parameters: list[nn.Parameter]) -> Tensor:
    """(rows, P) the gradient of each record, or group."""
    views, rows = {p: torch.zeros_like(p) for p in parameters}, []
    for weights in torch.eye(len(gradients), dtype=parameters[0].dtype, device=parameters[0].device):
        gradients.weighted_sum(weights, views)
        rows.append(torch.cat([views[p].flatten() for p in parameters]).double())
    return torch.stack(rows)


def _tolerance() -> float:
    return 0.1 if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda") else _TOLERANCE


_CONSTANT: dict[Callable, Callable] = {
    torch.rand: lambda *a, **k: torch.full(_size(a, k), 0.5, **_kind(k)),
    torch.randn: lambda *a, **k: torch.full(_size(a, k), 0.5, **_kind(k)),
    torch.rand_like: lambda x, **_: torch.full_like(x, 0.5),
    torch.randn_like: lambda x, **_: torch.full_like(x, 0.5),
    torch.normal: lambda mean, std, *_, **__: mean + 0.5 * std,
    torch.bernoulli: lambda p, *_, **__: (p > 0.5).to(p.dtype),
    Tensor.normal_: lambda x, *_, **__: x.fill_(0.5),
    Tensor.uniform_: lambda x, *_, **__: x.fill_(0.5),
    Tensor.bernoulli_: lambda x, *_, **__: x.fill_(1.0),
    torch.multinomial: lambda p, n, *_, **__: torch.zeros((*p.shape[:-1], n), dtype=torch.long, device=p.device),
    torch.randint: lambda *a, **k: torch.zeros(_size(a[-1:] if "size" not in k else a, k), dtype=torch.long),
    torch.randperm: lambda n, *_, **k: torch.arange(n, **_kind(k)).flip(0),
    torch.poisson: lambda x, *_, **__: x.round(),
    Tensor.exponential_: lambda x, *_, **__: x.fill_(0.5),
    torch.nn.functional.alpha_dropout: lambda x, *_, **__: x,
    torch.nn.functional.feature_alpha_dropout: lambda x, *_, **__: x,
    torch.nn.functional.dropout: lambda x, *_, **__: x,
    torch.nn.functional.dropout1d: lambda x, *_, **__: x,
    torch.nn.functional.dropout2d: lambda x, *_, **__: x,
    torch.nn.functional.dropout3d: lambda x, *_, **__: x,
}


class _Still(TorchFunctionMode):
    """Within it, torch's random functions give constants."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return _CONSTANT.get(function, function)(*args, **(kwargs or {}))


def _size(args: tuple, kwargs: dict[str, Any]) -> tuple[int, ...]:
    size = kwargs.get("size", args)
    return tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)


def _kind(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: kwargs[name] for name in ("dtype", "device") if name in kwargs}
