"""Tensors that hold all records of a lot, while a loss sees one; those that outlive its call lose their values."""

from __future__ import annotations

import contextlib
import gc
import itertools
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch

import lightning_dpgen.gradients.isolation.torch_names  # noqa: F401 (checks private names of torch)

# With more objects than this in the youngest generation it is collected first; the threshold of Python's collector is 700.
_YOUNG = 2_000


_MOVES = (Tensor.cpu, Tensor.cuda, Tensor.to)


def is_hidden(x: Any) -> bool:
    """Return True for a tensor that holds records of which only one is seen."""
    return isinstance(x, Tensor) and _functorch.is_functorch_wrapped_tensor(x)


class Ruled(Tensor):
    """A tensor whose own `__torch_function__` computes, or refuses, every function that receives it."""


class EscapedTensor(Ruled):
    """A tensor that was computed from a record and outlived the call of the loss: it has no value any more."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in _MOVES and isinstance(args[0], cls):
            # A Trainer that ends moves what a module has, and would hide the error that has ended it.
            return args[0]
        raise ValueError(
            f"{getattr(function, '__name__', 'a function')} receives a value computed from a record in an earlier call of "
            "the loss. Records of another lot are private: compute the value anew in each call, keep only what follows "
            "from parameters, or release it with noise of its own (EmbeddingGradients releases the mean of a lot)"
        )


class invalidate_escaped_tensors:
    """A context in which tensors may hide records; any that outlives it loses its value."""

    _collecting: bool
    _mark: _Mark

    def __enter__(self) -> None:
        self._collecting = gc.isenabled()
        # Without collections all new objects stay in the youngest generation, which alone is searched.
        gc.disable()
        # A program that has switched collections off has all of its objects there.
        if gc.get_count()[0] > _YOUNG:
            gc.collect(0)
        self._mark = _Mark()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        tensors = _tensors_and_marks(gc.get_objects(0))
        if id(self._mark) not in map(id, tensors):
            # The loss has run a collection.
            tensors = _tensors_and_marks(gc.get_objects())
        for x in tensors:
            if isinstance(x, Tensor) and _functorch.is_functorch_wrapped_tensor(x):
                x.__class__ = EscapedTensor
                # The swap fails where torch itself holds the tensor; its new class still refuses every use.
                with torch._C.DisableTorchFunctionSubclass(), contextlib.suppress(RuntimeError):
                    torch._C._swap_tensor_impl(x, torch.empty(0))
        if self._collecting:
            gc.enable()


class _Mark(list):
    """An object that the collector knows, and that shows which generation it is in."""


def _tensors_and_marks(objects: list) -> list:
    sought = (Tensor, _Mark)
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, sought)}
    # Thousands of objects are looked at in each step, so the search is one without code of Python.
    return list(itertools.compress(objects, map(kinds.__contains__, map(type, objects))))
