"""Other tensors in the place of a network's parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn


@contextmanager
def replaced_parameters(network: nn.Module, instead: Mapping[nn.Parameter, Tensor]) -> Iterator[None]:
    """Put other tensors in the place of some parameters inside this context, wherever the network holds them.

    Two layers may share a parameter.
    """
    held = [
        (module._parameters, name, p)
        for module in network.modules()
        for name, p in module._parameters.items()
        if p is not None and p in instead
    ]
    try:
        for place, name, p in held:
            place[name] = instead[p]
        yield
    finally:
        for place, name, p in held:
            place[name] = p
