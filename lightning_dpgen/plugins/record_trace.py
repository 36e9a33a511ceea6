"""A trace of made-up records through a training step: all that follows from them, and what is written that outlives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from lightning_dpgen.plugins.namespaces import lightning_class, pl
from lightning_dpgen.sampling.trees import leaves_of

_LIKE = {
    torch.zeros_like, torch.ones_like, torch.full_like, torch.empty_like, torch.rand_like, torch.randn_like,
    torch.randint_like, Tensor.new_zeros, Tensor.new_ones, Tensor.new_full, Tensor.new_empty, Tensor.new_tensor,
}  # fmt: skip
_AS = {Tensor.type_as, Tensor.to, Tensor.expand_as, Tensor.view_as, Tensor.reshape_as}
_SETTING = {Tensor.__setitem__, getattr(Tensor.data, "__set__")}  # noqa: B009 (mypy does not know it)
# Operators that write into the tensor in front, and functions that change none of its numbers in spite of their names.
_IN_PLACE = {
    f"__i{operator}__" for operator in ("add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
}
_ONLY_MARKING = {"requires_grad_", "detach_", "share_memory_", "rename_"}
# Results that tell no value, and functions whose numbers are those of a shape.
_NO_VALUES = (torch.Size, torch.dtype, torch.device, torch.layout, type(None))
_OF_SHAPES = {
    "__get__", "__len__", "__hash__", "size", "dim", "ndimension", "numel", "nelement", "stride", "element_size",
    "storage_offset", "is_contiguous", "is_floating_point", "is_complex", "is_signed", "get_device", "type",
}  # fmt: skip


class RecordTrace(TorchFunctionMode):
    """A mode that finds which tensors follow from the values of records; where it cannot tell, it says that they do.

    Shapes and types are public. A value that is read out of torch may be in anything from then on.

    Args:
        records: a tree of tensors.
        lasting: tensors by name.

    Example:
        >>> x, y = torch.rand(2), torch.rand(2)
        >>> with RecordTrace(x) as trace:
        ...     one, other = y.type_as(x) + 1, torch.zeros_like(y) * x
        >>> trace.follows(one), trace.follows(other)
        (False, True)
    """

    def __init__(self, records: Any, lasting: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        self._lasting = {_key(x): name for name, x in (lasting or {}).items()}
        self._written: str | None = None
        # Kept, so that no other storage takes the place of one that is freed.
        self._kept: dict[int, Any] = {}
        self._is_read = False
        for x in leaves_of(records):
            self._keep(x)

    def follows(self, values: Any) -> bool:
        """Return True if a tensor of a tree follows from a record."""
        return self._is_read or any(_key(x) in self._kept for x in leaves_of(values) if isinstance(x, Tensor))

    def end(self) -> str | None:
        """Let go of all tensors, and return the name of a lasting one that was written into, or None."""
        self._kept.clear()
        return self._written

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        written = _written_by(function, name, args, kwargs)
        for x in written:
            self._written = self._written or self._lasting.get(_key(x))
        result = function(*args, **kwargs)
        looked_at = args[1:] if function in _LIKE else args[:1] if function in _AS else args
        if self.follows((looked_at, kwargs)):
            for x in (*leaves_of(result), *written):
                if isinstance(x, Tensor):
                    self._keep(x)
                elif not isinstance(x, _NO_VALUES) and name not in _OF_SHAPES:
                    self._is_read = True
        return result

    def _keep(self, x: Any) -> None:
        if isinstance(x, Tensor):
            self._kept[_key(x)] = _storage(x)


def _written_by(function: Any, name: str, args: tuple, kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors that a function of torch writes into: those in front, or the argument `out`."""
    into: list[Any] = [kwargs.get("out")]
    is_plain = name.endswith("_") and not name.endswith("__") and name not in _ONLY_MARKING
    if is_plain or name in _IN_PLACE or function in _SETTING:
        into += args[:1]
    return [x for x in leaves_of(into) if isinstance(x, Tensor)]


def _storage(x: Tensor) -> Any:
    while _functorch.is_functorch_wrapped_tensor(x):
        x = _functorch.get_unwrapped(x)
    with torch._C.DisableTorchFunction():
        return x.untyped_storage()


def _key(x: Tensor) -> int:
    return _storage(x)._cdata


def lasting_tensors(module: pl.LightningModule) -> dict[str, Tensor]:
    """Return parameters, and the buffers of modules that are not torch's own, by name."""
    lasting: dict[str, Tensor] = dict(module.named_parameters())
    for path, part in module.named_modules():
        if not type(part).__module__.startswith("torch."):
            lasting |= {f"{path}.{name}".lstrip("."): x for name, x in part.named_buffers(recurse=False)}
    return lasting


def numbers_of(module: pl.LightningModule, optimizers: Sequence[Optimizer]) -> dict[str, Any]:
    """Return the numbers and words that a module has as attributes, and the learning rates of its optimizers, by name."""
    of_lightning = vars(lightning_class(module)()).keys()
    numbers: dict[str, Any] = {
        ".".join(filter(None, ("self", path, name))): x
        for path, part in module.named_modules()
        for name, x in vars(part).items()
        if name not in of_lightning and isinstance(x, int | float | str)
    }
    rates = {
        f"the learning rate of optimizer {i}": [float(g["lr"]) for g in o.param_groups] for i, o in enumerate(optimizers)
    }
    return numbers | rates
