"""Gradients that a loss takes by itself (a gradient penalty): of each record alone, as its result is.

Under vmap torch refuses `torch.autograd.grad`, since autograd records what is done to all records at once. What a loss has
computed from its record is a row of that, and no row depends on another. So the gradient of the sum over the rows has, in
each row, the gradient of one record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import _functorch

if TYPE_CHECKING:
    from lightning_dpgen.gradients.isolation.isolation import Isolation


def _gradients(
    isolation: Isolation,
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """Compute what ``torch.autograd.grad`` would for a record alone.

    Raises:
        ValueError: for a tensor of no record, whose gradient would be a sum over all.
    """
    if is_grads_batched:
        raise ValueError("the loss calls torch.autograd.grad(is_grads_batched=True): call it for each gradient")
    of, by = _as_tuple(outputs), _as_tuple(inputs)
    values, places = _behind(isolation, of)
    variables, axes = _behind(isolation, by)
    given = _as_tuple(grad_outputs) if grad_outputs is not None else (None,) * len(of)
    with isolation.outside():
        factors = []
        for value, place, factor in zip(values, places, given, strict=True):
            if factor is None:
                if value.numel() != isolation.size:
                    raise ValueError("the loss calls torch.autograd.grad of several numbers: give grad_outputs")
                factors.append(torch.ones_like(value))
            else:
                factors.append(isolation.rows_or_copies(factor).movedim(0, place))
        results = torch.autograd.grad(
            values,
            variables,
            factors,
            retain_graph=retain_graph,
            create_graph=create_graph,
            allow_unused=allow_unused,
            materialize_grads=materialize_grads,
        )
        results = [None if x is None else x.movedim(axis, 0) for x, axis in zip(results, axes, strict=True)]
    return tuple(None if x is None else isolation.hide(x) for x in results)


def _require_gradient(isolation: Isolation, x: Tensor, requires_grad: bool = True) -> Tensor:
    (value,), _ = _behind(isolation, (x,))
    with isolation.outside():
        # A tensor that was computed from parameters has one already.
        if requires_grad and not value.requires_grad:
            value.requires_grad_()
    return x


def _as_tuple(tensors: Any) -> tuple:
    return (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)


def _behind(isolation: Isolation, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[int]]:
    """Return the tensors of all records that autograd has recorded, and where their dimension of records is."""
    values, places = [], []
    for x in tensors:
        if not isolation.is_record(x):
            raise ValueError(
                "the loss takes a gradient (torch.autograd.grad) of, or by, a tensor of no record: it would be a sum over "
                "all records. Let both be computed from the record"
            )
        value, place = _functorch._unwrap_batched(x, _functorch.maybe_current_level())
        values.append(value)
        places.append(place)
    return values, places


OWN_GRADIENTS: dict[Callable, Callable] = {
    torch.autograd.grad: _gradients,
    Tensor.requires_grad_: _require_gradient,
    getattr(Tensor.requires_grad, "__set__"): _require_gradient,  # noqa: B009 (mypy does not know it)
}
