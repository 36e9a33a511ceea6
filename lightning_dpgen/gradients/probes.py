"""Made-up records and constant draws, with which a loss is tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

import lightning_dpgen.gradients.isolation.torch_names  # noqa: F401 (checks private names of torch)
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.sampling.lots import Lot

# Errors that code raises when it expects other records, such as words of a vocabulary.
UNSUITED = (IndexError, TypeError, AssertionError, NotImplementedError, RuntimeError)
# Whole numbers tried in turn: labels may begin at 0, or after numbers for padding and the like.
WHOLE = (0, 1, 2, 3)


def probe_lot(
    lot: Lot,
    noise: Tensor,
    count: int = 1,
    groups: Groups | None = None,
    *,
    whole: int = 0,
    varied: bool = False,
    example: Any = None,
) -> tuple[Lot, Tensor, Groups | None]:
    """Make a lot of probe records, with the noise and the groups that an engine takes beside it.

    Their numbers are uniform from 0 to 1, in the precision and on the device of `noise`. All of them belong to the first
    component, and every other one to the first group. The seed is public, like the records.

    Args:
        lot: a lot with the shapes, types and components of records; it may be empty.
        noise: (B, term.noise), as for an engine.
        whole: the value of whole numbers; all other numbers are larger by it.
        varied: whether whole numbers are larger by 1 in two of three records, so that some differ and some do not.
        example: a public record (1, ...), of which all are then copies.

    Example:
        >>> lot, noise, _ = probe_lot(Lot(torch.zeros(0, 5), (0, 0, 0)), torch.zeros(0, 2), 3)
        >>> lot.records.shape, lot.offsets, noise.shape
        (torch.Size([3, 5]), (0, 3, 3), torch.Size([3, 2]))
    """
    generator = torch.Generator().manual_seed(0)

    def of(x: Tensor) -> Tensor:
        shape = (count, *x.shape[1:])
        if x.is_floating_point():
            return (whole + torch.rand(shape, generator=generator, dtype=x.dtype)).to(noise)
        more = (torch.arange(count, device=noise.device) % 3 > 0) & varied
        return (whole + more).to(x.dtype).view(-1, *(1,) * (x.dim() - 1)).expand(shape).clone()

    if example is None:
        records = tree_map(of, lot.records)
    else:
        records = tree_map(
            lambda x: x.to(noise if x.is_floating_point() else noise.device).repeat(count, *(1,) * (x.dim() - 1)), example
        )
    probe = Lot(records, (0, *[count] * (len(lot.offsets) - 1)))
    if groups is not None:
        # The first group is larger than the others, so that a comparison of groups can tell sizes apart.
        index = torch.arange(count, device=noise.device)
        groups = Groups(torch.where(index % 2 == 0, 0, index % groups.count), groups.count, groups.places)
    return probe, noise.new_full((count, *noise.shape[1:]), 0.5), groups


# Relative tolerances for a loss and for the norm of its gradient; the second where autocast computes in half precision.
_TOLERANCE, _MIXED = 1e-3, 0.1


def _first_of(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x


def _without_dropout(function: Callable, place: int, name: str) -> Callable:
    """Return the function with its argument for dropout, by place or by name, set to 0."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) > place:
            args = (*args[:place], 0.0, *args[place + 1 :])
        elif name in kwargs:
            kwargs[name] = 0.0
        return function(*args, **kwargs)

    return call


def _with_middle_places(function: Callable, axes: int) -> Callable:
    """Return the pool whose windows are where a draw of one half puts them."""

    def call(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        batch = len(x) if x.dim() == axes + 2 else 1
        kwargs["_random_samples"] = torch.full((batch, x.shape[-axes - 1], axes), 0.5, dtype=x.dtype, device=x.device)
        return function(x, *args, **kwargs)

    return call


_CONSTANT: dict[Callable, Callable] = {
    **dict.fromkeys((torch.rand, torch.randn), lambda *a, **k: torch.full(_size(a, k), 0.5, **_kind(k))),
    **dict.fromkeys((torch.rand_like, torch.randn_like), lambda x, **_: torch.full_like(x, 0.5)),
    torch.randint_like: lambda x, *_, **__: torch.zeros_like(x),
    torch.normal: lambda mean, std, *_, **__: mean + 0.5 * std,
    **dict.fromkeys((torch.bernoulli, Tensor.bernoulli), lambda p, *_, **__: (p > 0.5).to(p.dtype)),
    torch.binomial: lambda count, p, *_, **__: count * p.round(),
    torch._standard_gamma: _first_of,
    torch._sample_dirichlet: lambda x, *_, **__: x / x.sum(-1, keepdim=True),
    **dict.fromkeys(
        (Tensor.normal_, Tensor.uniform_, Tensor.exponential_, Tensor.cauchy_, Tensor.log_normal_),
        lambda x, *_, **__: x.fill_(0.5),
    ),
    **dict.fromkeys((Tensor.bernoulli_, Tensor.geometric_), lambda x, *_, **__: x.fill_(1.0)),
    Tensor.random_: lambda x, *_, **__: x.zero_(),
    **dict.fromkeys(
        (torch.multinomial, Tensor.multinomial),
        lambda p, n, *_, **__: torch.zeros((*p.shape[:-1], n), dtype=torch.long, device=p.device),
    ),
    torch.native_dropout: lambda x, *_, **__: (x, torch.ones_like(x, dtype=torch.bool)),
    torch.randint: lambda *a, **k: torch.zeros(_size(a if "size" in k else a[-1:], k), **{"dtype": torch.long, **_kind(k)}),
    torch.randperm: lambda n, *_, **k: torch.arange(n, **_kind(k)).flip(0),
    torch.poisson: lambda x, *_, **__: x.round(),
    F.gumbel_softmax: lambda x, tau=1.0, hard=False, eps=0.0, dim=-1: (x / tau).softmax(dim),
    **dict.fromkeys(
        (F.rrelu, F.rrelu_, torch.rrelu, torch.rrelu_),
        lambda x, lower=1 / 8, upper=1 / 3, *_, **__: F.leaky_relu(x, (lower + upper) / 2),
    ),
    **{f: _with_middle_places(f, 2) for f in (F.fractional_max_pool2d, F.fractional_max_pool2d_with_indices)},
    **{f: _with_middle_places(f, 3) for f in (F.fractional_max_pool3d, F.fractional_max_pool3d_with_indices)},
    **dict.fromkeys(
        (
            F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout,
            torch.dropout_, torch.alpha_dropout, torch.alpha_dropout_, torch.feature_dropout, torch.feature_dropout_,
            torch.feature_alpha_dropout, torch.feature_alpha_dropout_,
        ),
        _first_of,
    ),
    F.scaled_dot_product_attention: _without_dropout(F.scaled_dot_product_attention, 4, "dropout_p"),
    F.multi_head_attention_forward: _without_dropout(F.multi_head_attention_forward, 10, "dropout_p"),
    **{f: _without_dropout(f, 5, "dropout") for f in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)},
}  # fmt: skip


class ConstantDraws(TorchFunctionMode):
    """A mode in which torch's random functions return constants.

    Attributes:
        tolerance: the relative difference that results computed within it may have.
    """

    tolerance = _TOLERANCE

    def __torch_function__(self, function, types, args=(), kwargs=None):
        # The loss may turn on autocast itself.
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            self.tolerance = _MIXED
        return _CONSTANT.get(function, function)(*args, **(kwargs or {}))


def _size(args: tuple, kwargs: dict[str, Any]) -> tuple[int, ...]:
    size = kwargs.get("size", args)
    return tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)


def _kind(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: kwargs[name] for name in ("dtype", "device") if name in kwargs}
