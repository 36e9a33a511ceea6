"""Whether the loss of a record depends on that record alone, and the engine understands the network: tried first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from lightning_dpgen.data.lots import Lot
from lightning_dpgen.gradients.ghost import ghost_gradients
from lightning_dpgen.gradients.records import RecordGradients
from lightning_dpgen.gradients.terms import PerRecord

_RECORDS = 3
# Of a loss and of a norm of its gradient, relative.
_TOLERANCE = 1e-3


def check_alone(network: nn.Module, term: PerRecord, empty: Any) -> None:
    """See that a record put in front of others changes neither their losses nor their gradients.

    The records are made up: uniform numbers between 0 and 1, and zeros where they are whole. What the loss draws from torch
    is held still meanwhile, as each record draws numbers of its own in any case.

    Args:
        network: that is trained.
        term: its per-record loss.
        empty: records of a lot of none, for their shapes and types.

    Raises:
        ValueError: if a record in front changes another's part.
    """
    some = next(network.parameters())
    device, records = some.device, made_up(empty, some)

    def parts(start: int) -> tuple[Tensor, Tensor]:
        lot = Lot(tree_map(lambda x: x[start:], records), (0, _RECORDS + 1 - start))
        noise = torch.full((len(lot), term.noise), 0.5, device=device)
        with _Still():
            gradients = ghost_gradients(network, term, lot, noise, at_least=5 + 6 * start)
        return gradients.losses.double(), gradients.norms().double()

    for what, without, behind in zip(("loss", "gradient"), parts(1), parts(0), strict=True):
        if not torch.allclose(behind[1:], without, rtol=_TOLERANCE, atol=_TOLERANCE * float(without.abs().amax())):
            raise ValueError(
                f"the {what} of a record changes when another record is put in front of it: each record's loss may depend "
                "on that record alone (no mean or norm over the lot, no pairs of records, no position in it)"
            )


def made_up(empty: Any, like: Tensor) -> Any:
    """Records of the shapes of a lot of none: numbers between 0 and 1, in the precision of `like`; zeros where whole."""
    generator = torch.Generator().manual_seed(0)

    def of(x: Tensor) -> Tensor:
        shape = (_RECORDS + 1, *x.shape[1:])
        if x.is_floating_point():
            return torch.rand(shape, generator=generator, dtype=x.dtype).to(like)
        return torch.zeros(shape, dtype=x.dtype, device=like.device)

    return tree_map(of, empty)


def check_exact(network: nn.Module, term: PerRecord, lot: Lot, noise: Tensor) -> None:
    """Compare the book-keeping engine on the first records of a lot, padded to two sizes, with each of them by itself.

    What the engine takes for a dimension of records, and whether it sees each use of a parameter, follows from how a
    network is written. So one that it does not understand is found out at the first lot, before an access.

    Raises:
        ValueError: if they differ. It says nothing of the records.
    """
    count = min(len(lot), _RECORDS)
    ends = tuple(min(end, count) for end in lot.offsets)
    few, noise = lot.mapped(lambda x: x[:count], ends), noise[:count]
    parameters = [p for p in network.parameters() if p.requires_grad]
    with _Still():
        # First of all the engine, which names what it refuses.
        engine = [_rows(ghost_gradients(network, term, few, noise, at_least=n), parameters, count) for n in (2, 11)]
        single = torch.stack([_single(term, few, noise, i, parameters) for i in range(count)])
    lengths = single.norm(dim=1)
    for found in engine:
        # A record whose gradient is not finite will add zeros.
        wrong = (found - single).norm(dim=1) > _tolerance() * lengths + 1e-9
        if bool((wrong & torch.isfinite(lengths)).any()):
            raise ValueError(
                "the gradients of single records differ from those that the book-keeping engine finds in a lot: the loss "
                "of a record depends on others, or on their order or number, or the network does with its parameters what "
                "the engine does not see; engine='func' takes records one by one"
            )


def _rows(gradients: RecordGradients, parameters: list[nn.Parameter], count: int) -> Tensor:
    """(count, P) the gradient of each record."""
    views, rows = {p: torch.zeros_like(p) for p in parameters}, []
    for i in range(count):
        gradients.weighted_sum(torch.eye(count, dtype=parameters[0].dtype, device=parameters[0].device)[i], views)
        rows.append(torch.cat([views[p].flatten() for p in parameters]).double())
    return torch.stack(rows)


def _single(term: PerRecord, lot: Lot, noise: Tensor, i: int, parameters: list[nn.Parameter]) -> Tensor:
    alone = Lot(tree_map(lambda x: x[i : i + 1], lot.records), tuple(int(i < end) for end in lot.offsets))
    with torch.enable_grad():
        loss = term.losses(alone, noise[i : i + 1]).sum()
        found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return torch.cat([g.flatten() for g in found]).double()


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
