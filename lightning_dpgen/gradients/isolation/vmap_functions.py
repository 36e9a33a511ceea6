"""Functions of torch for which `torch.vmap` has no rule, or a slow one, computed where each record is alone."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C import _functorch
from torch.utils._pytree import tree_map_only

from lightning_dpgen.gradients.isolation.hidden import is_hidden
from lightning_dpgen.gradients.isolation.recurrent_functions import RECURRENT, run_recurrent
from lightning_dpgen.gradients.isolation.vmap_overrides import check_embedding
from lightning_dpgen.sampling.trees import leaves_of

if TYPE_CHECKING:
    from lightning_dpgen.gradients.isolation.loss_guard import LossGuard


def any_hidden(*trees: Any) -> bool:
    """Return True if a leaf of the trees holds records of which only one is seen."""
    return any(map(is_hidden, leaves_of(trees)))


def call_by_parts(function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Call a function of hidden tensors, taken apart into simpler ones where vmap has no rule for it."""
    try:
        return function(*args, **kwargs)
    except RuntimeError as error:
        if "Batching rule not implemented" not in str(error):
            raise
    return call_decomposed(function, args, kwargs)


def call_decomposed(function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Call a function of hidden tensors inside a level of autograd, which takes composite functions apart."""
    level = _functorch._grad_increment_nesting()
    try:
        args, kwargs = tree_map_only(Tensor, lambda x: _functorch._wrap_for_grad(x, level), (args, kwargs))
        return tree_map_only(Tensor, lambda x: _functorch._unwrap_for_grad(x, level), function(*args, **kwargs))
    finally:
        _functorch._grad_decrement_nesting()


def _cross_entropy(
    guard, function, input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean",
    label_smoothing=0.0,
):  # fmt: skip
    """Compute `F.cross_entropy` of classes; vmap's rule goes through the records one by one."""
    if target.is_floating_point() or label_smoothing or not _plain(input, weight, size_average, reduce):
        return NotImplemented
    if guard.isolation.is_innermost and guard.isolation.is_record(input):
        return _of_classes(guard, function, input, target, ignore_index, reduction)
    return _nll(input.log_softmax(dim=min(1, input.dim() - 1)), target, ignore_index, reduction)


def _nll_loss(
    guard, function, input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean"
):  # fmt: skip
    """Compute `F.nll_loss`, as for `_cross_entropy`."""
    if not _plain(input, weight, size_average, reduce):
        return NotImplemented
    if guard.isolation.is_innermost and guard.isolation.is_record(input):
        return _of_classes(guard, function, input, target, ignore_index, reduction)
    return _nll(input, target, ignore_index, reduction)


def _plain(input: Tensor, *options: Any) -> bool:
    return type(input) is Tensor and all(option is None for option in options)


def _of_classes(
    guard: LossGuard, function: Callable, input: Tensor, target: Tensor, ignore_index: int, reduction: str
) -> Tensor:
    """Compute a loss of classes for all records at once, and reduce it for each of them alone."""
    dim = min(1, input.dim() - 1)
    if input.shape[:dim] + input.shape[dim + 1 :] != target.shape or reduction not in ("none", "sum", "mean"):
        raise ValueError(
            f"the loss calls {function.__name__} of {tuple(input.shape)} and targets {tuple(target.shape)} with "
            f"reduction={reduction!r}: expected one target for each place, and 'none', 'sum' or 'mean'"
        )
    with guard.isolation.outside():
        rows, targets = (guard.isolation.rows_or_copies(x) for x in (input, target))
        # One row of scores for each target.
        rows = rows.movedim(dim + 1, -1).reshape(-1, input.shape[dim])
        losses = function(rows, targets.reshape(-1), ignore_index=ignore_index, reduction="none").view(targets.shape)
        if reduction != "none":
            losses = losses.flatten(1).sum(dim=1) if losses.dim() > 1 else losses
        if reduction == "mean":
            counted = targets != ignore_index
            losses = losses / (counted.flatten(1).sum(dim=1) if targets.dim() > 1 else counted)
    return guard.isolation.hide(losses)


def _nll(log_shares: Tensor, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
    dim, counted = min(1, log_shares.dim() - 1), target != ignore_index
    found = log_shares.gather(dim, torch.where(counted, target, 0).unsqueeze(dim)).squeeze(dim)
    losses = torch.where(counted, -found, 0.0)
    if reduction == "none":
        return losses
    return losses.sum() / (counted.sum() if reduction == "mean" else 1)


def _aligned(guard: LossGuard, tensors: Sequence[Any]) -> list[Any] | None:
    """Return the records behind tensors that are broadcast together, records in front; None where there are none."""
    if not guard.isolation.is_innermost or any(isinstance(x, Tensor) and type(x) is not Tensor for x in tensors):
        return None
    if not all(guard.isolation.is_record(x) for x in tensors if is_hidden(x)):
        return None
    rows = [guard.isolation.rows(x) for x in tensors]
    if all(row is None for row in rows):
        return None
    most = max(x.dim() for x in tensors if isinstance(x, Tensor))
    return [
        x if row is None else row.reshape(len(row), *(1,) * (most - x.dim()), *x.shape)
        for x, row in zip(tensors, rows, strict=True)
    ]


def _public(arguments: Sequence[Any]) -> bool:
    """Return True for arguments of which no tensor holds a record or is a traced parameter."""
    return not any(isinstance(x, Tensor) and (type(x) not in (Tensor, nn.Parameter) or is_hidden(x)) for x in arguments)


def _pointwise(guard: LossGuard, function: Callable, *tensors: Any, **options: Any) -> Any:
    """Compute a function of single numbers for all records at once: vmap has no rule for it, or takes it apart."""
    if any(map(is_hidden, options.values())) or (rows := _aligned(guard, tensors)) is None:
        return NotImplemented
    with guard.isolation.outside():
        result = function(*rows, **options)
    return guard.isolation.hide(result)


def _losses(
    guard: LossGuard, function: Callable, input, target, *rest: Any, reduction: str = "mean", **options: Any
) -> Any:
    """Compute a loss of single numbers for all records at once."""
    plain = reduction == "none" and not rest and all(option is None for option in options.values())
    if not plain or input.shape != target.shape:
        return NotImplemented
    if (rows := _aligned(guard, (input, target))) is None:
        return NotImplemented
    with guard.isolation.outside():
        losses = function(*torch.broadcast_tensors(*rows), reduction="none")
    return guard.isolation.hide(losses)


def _attention(
    guard: LossGuard, function: Callable, query, key, value, attn_mask=None, dropout_p=0.0, *rest, **options
) -> Any:
    """Compute `F.scaled_dot_product_attention` of all records as of a larger batch; each draws a dropout of its own."""
    tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    if query.dim() != 4 or (rows := _aligned(guard, tensors)) is None:
        return _without_autocast(guard, function, query, key, value, attn_mask, dropout_p, *rest, **options)
    shape = (guard.isolation.size, len(query))
    with guard.isolation.outside():
        # Kernels are quick only in four dimensions.
        query, key, value, *mask = (x if x.dim() < 4 else x.expand(*shape, *x.shape[-3:]).flatten(0, 1) for x in rows)
        if mask and mask[0].requires_grad and not (query.requires_grad or key.requires_grad or value.requires_grad):
            # A kernel of GPUs keeps what its backward pass needs only where one of the three asks for a gradient
            # (pytorch/pytorch#148476).
            query = query.detach().requires_grad_()
        result = function(query, key, value, mask[0] if mask else None, dropout_p, *rest, **options).unflatten(0, shape)
    return guard.isolation.hide(result)


def _batch_norm(
    guard, function, input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
):  # fmt: skip
    """Compute `F.batch_norm` by public statistics of all records as of a larger batch."""
    if training:
        raise ValueError(
            "the loss calls a batch norm in train mode, which normalises by statistics of the lot: use group_norm or "
            "layer_norm, or call eval() on a layer whose running statistics are public"
        )
    statistics = running_mean, running_var, weight, bias
    if not _public(statistics) or running_mean is None or input.dim() < 2 or (rows := _aligned(guard, (input,))) is None:
        return NotImplemented
    with guard.isolation.outside():
        result = function(rows[0].flatten(0, 1), *statistics, False, momentum, eps).unflatten(0, rows[0].shape[:2])
    return guard.isolation.hide(result)


def _group_norm(guard: LossGuard, function: Callable, input, num_groups, weight=None, bias=None, eps=1e-5) -> Any:
    """Compute `F.group_norm` by public parameters of all records as of a larger batch.

    Its code asks for a layout of memory, which vmap does not know for a view with the channels last (as attention over
    pictures gives it).
    """
    if not is_hidden(input) or type(input) is not Tensor:
        return NotImplemented
    if not _public((weight, bias)) or input.dim() < 2 or (rows := _aligned(guard, (input,))) is None:
        return call_by_parts(function, (input.contiguous(), num_groups, weight, bias, eps), {})
    with guard.isolation.outside():
        result = function(rows[0].flatten(0, 1), num_groups, weight, bias, eps).unflatten(0, rows[0].shape[:2])
    return guard.isolation.hide(result)


# Torch's own code of a layer of attention, which does not hand the whole call to the guard again.
_LAYER = types.FunctionType(
    F.multi_head_attention_forward.__code__,
    {**vars(F), "has_torch_function": lambda tensors: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)


def _attention_layer(guard: LossGuard, _, *args: Any, **options: Any) -> Any:
    """Compute `F.multi_head_attention_forward` step by step, so that each step has its own rule."""

    def steps(*args: Any, **options: Any) -> Any:
        with guard:
            return _LAYER(*args, **options)

    result = _without_autocast(guard, steps, *args, **options)
    return steps(*args, **options) if result is NotImplemented else result


def _embedding_bag(
    guard, function, input, weight, offsets=None, max_norm=None, norm_type=2, scale_grad_by_freq=False, mode="mean",
    sparse=False, per_sample_weights=None, **options,
):  # fmt: skip
    """Compute `F.embedding_bag` of the bags of all records, where each is a row of indices and all share one weight."""
    check_embedding(max_norm, scale_grad_by_freq)
    if sparse:
        options |= {"mode": mode, "per_sample_weights": per_sample_weights}
        return guard.call(function, (input, weight, offsets), options)
    index = guard.isolation.rows(input) if guard.isolation.is_innermost and guard.isolation.is_record(input) else None
    if index is None or index.dim() != 3 or offsets is not None or type(weight) is not nn.Parameter:
        return NotImplemented
    weights = guard.isolation.rows(per_sample_weights)
    with guard.isolation.outside():
        own = None if weights is None else weights.flatten(0, 1)
        bags = function(index.flatten(0, 1), weight, mode=mode, per_sample_weights=own, **options)
        result = bags.unflatten(0, index.shape[:2])
    return guard.isolation.hide(result)


def _recurrent(guard: LossGuard, function: Callable, input, hidden, *rest: Any, **options: Any) -> Any:
    """Compute a recurrent network or cell of records, or of parameters that are each record's own.

    Traced parameters have rules of their own, but under autocast.
    """
    leaves = leaves_of((input, hidden, rest))
    kinds = {type(x) for x in leaves if isinstance(x, Tensor)}
    has_rule = not kinds <= {Tensor, nn.Parameter} and not torch.is_autocast_enabled(input.device.type)
    if options or has_rule or not any(map(is_hidden, leaves)):
        return NotImplemented
    return run_recurrent(function, input, hidden, *rest)


def _rrelu(guard: LossGuard, function: Callable, input, lower=1 / 8, upper=1 / 3, training=False, inplace=False) -> Any:
    """Compute `F.rrelu`, for which vmap has no rule: each record draws its own slopes."""
    if type(input) is not Tensor:
        return NotImplemented
    slope = lower + (upper - lower) * torch.rand_like(input) if training else (lower + upper) / 2
    found = torch.where(input <= 0, slope * input, input)
    return input.copy_(found) if inplace or function.__name__.endswith("_") else found


def _gumbel_softmax(guard: LossGuard, function: Callable, logits, tau=1, hard=False, eps=1e-10, dim=-1) -> Any:
    """Compute `F.gumbel_softmax` with one chosen entry; vmap's rule goes through the records one by one."""
    if not hard or type(logits) is not Tensor or not logits.dim():
        return NotImplemented
    shares = function(logits, tau, False, eps, dim)
    places = torch.arange(shares.shape[dim], device=shares.device)
    places = places.view([-1 if i == dim % shares.dim() else 1 for i in range(shares.dim())])
    chosen = (places == shares.argmax(dim=dim, keepdim=True)).to(shares.dtype)
    return chosen - shares.detach() + shares


def _as_autocast(guard: LossGuard, function: Callable, *args: Any, **options: Any) -> Any:
    """Convert arguments as autocast does: vmap takes these functions apart before autocast sees them."""
    converted = _converted(args, options)
    return NotImplemented if converted is None else call_by_parts(function, *converted)


def _of_last(guard: LossGuard, function: Callable, input, *rest: Any, **options: Any) -> Any:
    """Compute `F.linear` or `F.layer_norm` by public parameters of all records at once: vmap would take it apart."""
    if not _public((*rest, *options.values())) or input.dim() < 2 or (rows := _aligned(guard, (input,))) is None:
        return _as_autocast(guard, function, input, *rest, **options) if function is F.linear else NotImplemented
    with guard.isolation.outside():
        result = function(rows[0], *rest, **options)
    return guard.isolation.hide(result)


def _without_autocast(guard: LossGuard, function: Callable, *args: Any, **options: Any) -> Any:
    """Convert arguments as autocast does, and compute without it, as it computes attention.

    Taken apart by vmap, the softmax within would give float32 for bfloat16, for which a GPU has no backward pass.
    """
    converted = _converted(args, options)
    if converted is None:
        return NotImplemented
    kind = next(x for x in leaves_of(converted) if isinstance(x, Tensor)).device.type
    with torch.autocast(kind, enabled=False):
        return call_by_parts(function, *converted)


def _converted(args: tuple, options: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
    """Return arguments as autocast converts them; None where there is nothing to convert."""
    if not torch._C._is_any_autocast_enabled():
        return None
    tensors = [x for x in leaves_of((args, options)) if isinstance(x, Tensor)]
    # The rules of traced parameters are called outside of vmap.
    if any(type(x) not in (Tensor, nn.Parameter) for x in tensors):
        return None
    kind = tensors[0].device.type
    if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
        return None
    dtype = torch.get_autocast_dtype(kind)

    def converted(x: Tensor) -> Tensor:
        return x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x

    return tree_map_only(Tensor, converted, (args, options))


def _marked(guard: LossGuard, _, x, requires_grad=True):
    """Leave a record as it is where the loss marks it for a gradient: the graph leads to parameters alone."""
    plain = requires_grad and type(x) is Tensor and guard.isolation.is_innermost
    return x if plain and guard.isolation.is_record(x) else NotImplemented


def _apart(guard, _, x):
    """Return ``x.data``, which vmap refuses."""
    return x.detach() if is_hidden(x) and type(x) is Tensor else NotImplemented


# Functions that are computed in another way.
SPECIAL: dict[Callable, Callable] = {
    F.multi_head_attention_forward: _attention_layer,
    F.embedding_bag: _embedding_bag,
    F.batch_norm: _batch_norm,
    F.group_norm: _group_norm,
    **dict.fromkeys(RECURRENT, _recurrent),
}
# The same, but where a traced parameter is among the arguments, which has rules of its own.
OF_PLAIN: dict[Callable, Callable] = {
    **dict.fromkeys((F.logsigmoid, F.softplus, F.gelu, F.silu, F.elu, Tensor.clamp_, Tensor.clamp_min_), _pointwise),
    F.binary_cross_entropy_with_logits: _losses,
    F.binary_cross_entropy: _losses,
    F.scaled_dot_product_attention: _attention,
    F.cross_entropy: _cross_entropy,
    F.nll_loss: _nll_loss,
    Tensor.data.__get__: _apart,
    **dict.fromkeys((Tensor.requires_grad_, Tensor.requires_grad.__set__), _marked),
    **dict.fromkeys(
        (F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d, F.prelu), _as_autocast
    ),
    **dict.fromkeys((F.linear, F.layer_norm), _of_last),
    F.gumbel_softmax: _gumbel_softmax,
    **dict.fromkeys((F.rrelu, F.rrelu_, torch.rrelu, torch.rrelu_), _rrelu),
}
