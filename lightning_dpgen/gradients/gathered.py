"""Sharded parameters on a tape: whole while a function uses them, and gathered again where its backward pass does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lightning_dpgen.gradients.apart import NO_NUMBERS
from lightning_dpgen.gradients.hidden import Ruled
from lightning_dpgen.gradients.isolation import Isolation
from lightning_dpgen.gradients.shards import gathered
from lightning_dpgen.sampling.trees import leaves_of, map_tree

_CHANGED = (
    "the loss writes into a tensor that an earlier function has kept for its gradient (x += 1, relu_): write x = x + 1"
)


@dataclass(frozen=True)
class _Packed:
    """A view of a whole parameter that a function has kept for its backward pass."""

    parameter: nn.Parameter
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class FrozenParameter(Ruled):
    """A stand-in for a frozen sharded parameter, whose numbers are there for each function that is called with it.

    Attributes:
        gathered: the parameters of one forward pass.
        source: the stand-in as a plain tensor.
    """

    gathered: GatheredParameters
    source: Tensor

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        held = [x for x in leaves_of((args, kwargs)) if isinstance(x, FrozenParameter)]
        own = held[0].gathered

        def plain(x: Any) -> Any:
            return x.source.detach() if isinstance(x, FrozenParameter) else x

        if function in NO_NUMBERS:
            args, kwargs = map_tree(plain, (args, kwargs))
            return function(*args, **kwargs)
        with own.present([x.source for x in held]), own.packing():
            args, kwargs = map_tree(plain, (args, kwargs))
            # As the loss would call it with a plain parameter.
            return own.isolation.call(function, args, kwargs)


class GatheredParameters:
    """Stand-ins for sharded parameters, whose numbers are there while a function uses them.

    A stand-in has the shape of the whole parameter and one number in memory, NaN, so what is read outside of `present`
    is no number. Whole values of the parameters that were used last are kept until others are used. What functions keep for
    their backward pass within `packing` is gathered again there; what else they keep of a whole parameter stays in memory.

    All ranks must use the same parameters in the same order. They do, since they call the same loss as often as each other,
    and no loss can see the size of its lot.

    Args:
        isolation: the isolation that the loss is called in.
    """

    def __init__(self, isolation: Isolation) -> None:
        self.isolation = isolation
        self._stands_for: dict[int, tuple[Tensor, nn.Parameter]] = {}
        self._latest: dict[nn.Parameter, Tensor] = {}

    def stand_in(self, parameter: nn.Parameter) -> Tensor:
        """Return a tensor in the place of a sharded parameter; a leaf that requires a gradient, if that does."""
        made = torch.full((), torch.nan, dtype=parameter.dtype, device=parameter.device).expand(parameter.shape)
        made = made.detach().requires_grad_(parameter.requires_grad)
        self._stands_for[id(made)] = made, parameter
        return made

    def frozen(self, parameter: nn.Parameter) -> FrozenParameter:
        """Return what takes the place of a frozen sharded parameter in a network."""
        source = self.stand_in(parameter)
        made = source.as_subclass(FrozenParameter)
        made.gathered, made.source = self, source
        return made

    def among(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Return the stand-ins among some tensors."""
        return [x for x in tensors if id(x) in self._stands_for]

    @contextmanager
    def present(self, stand_ins: Iterable[Tensor]) -> Iterator[None]:
        """Let stand-ins have the numbers of their parameters inside this context."""
        held = [(x, self._stands_for[id(x)][1], x.data) for x in stand_ins]
        for other in [p for p in self._latest if all(p is not own for _, own, _ in held)]:
            del self._latest[other]
        try:
            for x, parameter, _ in held:
                x.data = self._whole(parameter)
            yield
        finally:
            for x, _, nothing in held:
                x.data = nothing

    def _whole(self, parameter: nn.Parameter) -> Tensor:
        if parameter not in self._latest:
            # A loss is inside of vmap, which knows no exchange between ranks, and of a guard, which refuses it.
            with torch._C._DisableFuncTorch(), torch._C.DisableTorchFunction():
                self._latest[parameter] = gathered(parameter)
        return self._latest[parameter]

    @contextmanager
    def packing(self) -> Iterator[None]:
        """Let functions keep no whole parameter for their backward passes inside this context, within `present`."""
        autograd: Any = torch._C._autograd
        # An isolation switches these hooks off for the code of a loss.
        refusal = autograd._saved_tensors_hooks_get_disabled_error_message()
        if refusal is not None:
            autograd._saved_tensors_hooks_enable()
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
                yield
        finally:
            if refusal is not None:
                autograd._saved_tensors_hooks_disable(refusal)

    def _pack(self, x: Tensor) -> _Packed | tuple[Tensor, int]:
        place = x.untyped_storage().data_ptr()
        for parameter, whole in self._latest.items():
            if whole.untyped_storage().data_ptr() == place:
                return _Packed(parameter, x.size(), x.stride(), x.storage_offset())
        # Detached, since a result that leads to its own function would be a cycle.
        return x.detach(), x._version

    def _unpack(self, packed: _Packed | tuple[Tensor, int]) -> Tensor:
        if not isinstance(packed, _Packed):
            # torch compares versions only of what it keeps without hooks.
            x, version = packed
            if x._version != version:
                raise RuntimeError(_CHANGED)
            return x
        if packed.parameter not in self._latest:
            self._latest.clear()
        return self._whole(packed.parameter).as_strided(packed.size, packed.stride, packed.offset)

    def clear(self) -> None:
        """Let go of all tensors."""
        self._stands_for.clear()
        self._latest.clear()
