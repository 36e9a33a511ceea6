"""Tensors that hold all records of a lot, while a loss sees only one of them."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch._C import _functorch


def is_hidden(x: Any) -> bool:
    """Return True for a tensor that holds records of which only one is seen."""
    return isinstance(x, Tensor) and _functorch.is_functorch_wrapped_tensor(x)
