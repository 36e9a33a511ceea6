"""Tensors that hold all records of a lot while a loss sees one, and those that have outlived its call."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch._C import _functorch

import lightning_dpgen.gradients.isolation.torch_names  # noqa: F401 (checks private names of torch)

_MOVES = (Tensor.cpu, Tensor.cuda, Tensor.to)


def is_hidden(x: Any) -> bool:
    """Return True for a tensor that holds records of which only one is seen."""
    return isinstance(x, Tensor) and _functorch.is_functorch_wrapped_tensor(x)


class SelfRuledTensor(Tensor):
    """A tensor whose own `__torch_function__` computes, or refuses, every function that receives it."""


class EscapedTensor(SelfRuledTensor):
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
