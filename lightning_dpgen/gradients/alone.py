"""Whether the loss of a record depends on that record alone: shown on made-up records before a real one is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from lightning_dpgen.data.lots import Lot
from lightning_dpgen.gradients.ghost import ghost_gradients
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
    generator = torch.Generator().manual_seed(0)
    device = next(network.parameters()).device

    def make_up(x: Tensor) -> Tensor:
        shape = (_RECORDS + 1, *x.shape[1:])
        if x.is_floating_point():
            return torch.rand(shape, generator=generator, dtype=x.dtype).to(device)
        return torch.zeros(shape, dtype=x.dtype, device=device)

    records = tree_map(make_up, empty)

    def parts(start: int) -> tuple[Tensor, Tensor]:
        lot = Lot(tree_map(lambda x: x[start:], records), (0, _RECORDS + 1 - start))
        noise = torch.full((len(lot), term.noise), 0.5, device=device)
        with _Still():
            gradients = ghost_gradients(network, term, lot, noise)
        return gradients.losses.double(), gradients.norms().double()

    for what, without, behind in zip(("loss", "gradient"), parts(1), parts(0), strict=True):
        if not torch.allclose(behind[1:], without, rtol=_TOLERANCE, atol=_TOLERANCE * float(without.abs().amax())):
            raise ValueError(
                f"the {what} of a record changes when another record is put in front of it: each record's loss may depend "
                "on that record alone (no mean or norm over the lot, no pairs of records, no position in it)"
            )


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
