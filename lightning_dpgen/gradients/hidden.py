"""Tensors that hold all records of a lot, while a loss sees one; those that outlive its call lose their values."""

from __future__ import annotations

import contextlib
import functools
import gc
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch


def is_hidden(x: Any) -> bool:
    """Return True for a tensor that holds records of which only one is seen."""
    return isinstance(x, Tensor) and _functorch.is_functorch_wrapped_tensor(x)


class Kept(Tensor):
    """A tensor that was computed from a record and outlived the call of the loss: it has no value any more."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise ValueError(
            f"{getattr(function, '__name__', 'a function')} is handed a value computed from a record in an earlier call of "
            "the loss. Records of another lot are private: compute the value anew in each call, keep only what follows "
            "from parameters, or release it with noise of its own (EmbeddingGradients releases the mean of a lot)"
        )


@contextmanager
def burying() -> Iterator[None]:
    """Let tensors hide records inside this context; any that outlives it loses its value."""
    collecting = gc.isenabled()
    # Without collections all new objects stay in the youngest generation, which alone is searched.
    gc.disable()
    first: list = []
    try:
        yield
    finally:
        objects = gc.get_objects(0)
        if not any(map(functools.partial(operator.is_, first), objects)):
            # The loss has run a collection or frozen its objects. Frozen objects are in no list.
            gc.unfreeze()
            objects = gc.get_objects()
        _bury(objects)
        if collecting:
            gc.enable()


def _bury(objects: list) -> None:
    for x in objects:
        if _is_tensor(type(x)) and _functorch.is_functorch_wrapped_tensor(x):
            x.__class__ = Kept
            # The swap fails where torch itself holds the tensor; its new class still refuses every use.
            with torch._C.DisableTorchFunctionSubclass(), contextlib.suppress(RuntimeError):
                torch._C._swap_tensor_impl(x, torch.empty(0))


@functools.cache
def _is_tensor(kind: type) -> bool:
    return issubclass(kind, Tensor)
