"""The torch optimizers that mixtures step with, by name."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

OPTIMIZERS = ("adam", "sgd")


def make_optimizer(
    name: str,
    parameters: Iterable[nn.Parameter],
    *,
    lr: float,
    momentum: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
) -> torch.optim.Optimizer:
    """Return a torch optimizer.

    Adam divides a gradient by a mean of its size, so the bound of clipping leaves the length of a step as it is; the step
    of SGD is in proportion to the bound.

    Args:
        name: one of `OPTIMIZERS`.
        momentum: of SGD, from 0, below 1.
        betas: of Adam.

    Raises:
        ValueError: for another name, or a momentum of Adam.

    Example:
        >>> make_optimizer("sgd", [nn.Parameter(torch.zeros(2))], lr=0.1, momentum=0.9).defaults["momentum"]
        0.9
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer={name!r}: expected one of {', '.join(OPTIMIZERS)}")
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=momentum)
    if momentum:
        raise ValueError(f"momentum={momentum!r} with optimizer='adam': expected 0, since it is of SGD")
    return torch.optim.Adam(parameters, lr=lr, betas=betas, fused=True)
