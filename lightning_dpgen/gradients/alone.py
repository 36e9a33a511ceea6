"""Whether the loss of a record depends on that record alone, and the engine understands the network: tried first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from lightning_dpgen.data.lots import Lot
from lightning_dpgen.data.stores import randomness_of_their_own
from lightning_dpgen.gradients.ghost import ghost_gradients
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.gradients.records import RecordGradients
from lightning_dpgen.gradients.terms import PerGroup, PerRecord

_RECORDS = 3
# Records that are compared in their groups.
_IN_GROUPS = 12
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


def check_exact(
    ways: Sequence[Callable[[Lot, Tensor, Groups | None], RecordGradients]],
    network: nn.Module,
    term: PerRecord | PerGroup,
    lot: Lot,
    noise: Tensor,
    groups: Groups | None = None,
) -> bool:
    """Compare what an engine gives for the first records of a lot with each of them by itself, by plain autograd.

    What an engine takes for a dimension of records, and whether it sees each use of a parameter, follows from how a
    network is written. So one that it does not understand is found out at the first lot, before an access. Of a per-group
    term each group is compared with a lot of its records alone.

    Args:
        ways: of the engine: the book-keeping one takes two, padded to different sizes.
        network, term, lot, noise, groups: as for the engine.

    Returns:
        Whether this could tell: not from records that are all alike, or all in one group.

    Raises:
        ValueError: if they differ. It says nothing of the records.
    """
    few, noise, groups = _first(lot, noise, groups)
    count = len(few) if groups is None else groups.count
    parameters = [p for p in network.parameters() if p.requires_grad]
    # What is not held still would take public numbers, as many as there are records.
    with _Still(), randomness_of_their_own():
        # First of all the engine, which names what it refuses.
        found = [way(few, noise, groups) for way in ways]
        engine = [_rows(gradients, parameters, count) for gradients in found]
        if groups is None:
            single = torch.stack([_single(term, few, noise, i, parameters) for i in range(count)])
        else:
            single = torch.stack([_group(term, few, noise, groups, j, parameters) for j in range(count)])
    lengths = single.norm(dim=1)
    for rows in engine:
        # A record whose gradient is not finite will add zeros.
        wrong = (rows - single).norm(dim=1) > _tolerance() * lengths + 1e-9
        if bool((wrong & torch.isfinite(lengths)).any()):
            what = "record" if groups is None else "group"
            raise ValueError(
                f"the gradients of single {what}s differ from those that the engine finds in a lot: the loss of a {what} "
                "depends on others, or on their order or number (a mean over the places of groups.gather counts empty "
                "ones), on what was computed in another call, or on random numbers that are not torch's; or the network "
                "does with its parameters what the book-keeping engine does not see: engine='func' takes them one by one"
            )
    return _tell_apart(few, groups)


def _first(lot: Lot, noise: Tensor, groups: Groups | None) -> tuple[Lot, Tensor, Groups | None]:
    """The first records, or so many that groups of different sizes are among them."""
    count = min(len(lot), _RECORDS if groups is None else _IN_GROUPS)
    ends = tuple(min(end, count) for end in lot.offsets)
    few = lot.mapped(lambda x: x[:count].clone(), ends)
    return few, noise[:count], None if groups is None else Groups(groups.index[:count], groups.count)


def _tell_apart(lot: Lot, groups: Groups | None) -> bool:
    if groups is not None and len(torch.bincount(groups.index, minlength=groups.count).unique()) < 2:
        return False
    return len(lot) > 1 and any(bool((x[1:] != x[:1]).any()) for x in lot.tensors)


def _rows(gradients: RecordGradients, parameters: list[nn.Parameter], count: int) -> Tensor:
    """(count, P) the gradient of each record."""
    views, rows = {p: torch.zeros_like(p) for p in parameters}, []
    for i in range(count):
        gradients.weighted_sum(torch.eye(count, dtype=parameters[0].dtype, device=parameters[0].device)[i], views)
        rows.append(torch.cat([views[p].flatten() for p in parameters]).double())
    return torch.stack(rows)


def _single(term: PerRecord, lot: Lot, noise: Tensor, i: int, parameters: list[nn.Parameter]) -> Tensor:
    alone = Lot(tree_map(lambda x: x[i : i + 1], lot.records), tuple(int(i < end) for end in lot.offsets))
    return _plain(lambda: term.losses(alone, noise[i : i + 1]), parameters)


def _group(
    term: PerGroup, lot: Lot, noise: Tensor, groups: Groups, j: int, parameters: list[nn.Parameter]
) -> Tensor:
    members = (groups.index == j).nonzero()[:, 0]
    if not len(members):
        return torch.cat([torch.zeros_like(p).flatten() for p in parameters]).double()
    cuts = torch.searchsorted(members, torch.tensor(lot.offsets, device=members.device))
    alone = lot.mapped(lambda x: x[members], tuple(cuts.tolist()))
    return _plain(lambda: term.losses(alone, noise[members], Groups(torch.zeros_like(members), 1)), parameters)


def _plain(losses: Callable[[], Tensor], parameters: list[nn.Parameter]) -> Tensor:
    """(P,) the gradient of a sum of losses by plain autograd."""
    with torch.enable_grad():
        found = torch.autograd.grad(losses().sum(), parameters, allow_unused=True, materialize_grads=True)
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
    """Within it, torch's random functions give constants; a generator that is not torch's default is refused."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if kwargs and kwargs.get("generator") is not None:
            raise ValueError(
                f"{getattr(function, '__name__', function)}(generator=...) in the loss: numbers of a public generator go "
                "to records by their position, so that one record would change what the others draw. Leave generator "
                "out: torch's default one is private while the loss is computed"
            )
        return _CONSTANT.get(function, function)(*args, **(kwargs or {}))


def _size(args: tuple, kwargs: dict[str, Any]) -> tuple[int, ...]:
    size = kwargs.get("size", args)
    return tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)


def _kind(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: kwargs[name] for name in ("dtype", "device") if name in kwargs}
