"""Lengths of rows that are never rounded down, though they are summed in float32."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# The relative rounding of one addition in float32, and the size of a number below which its square may vanish.
ROUNDING, VANISHING = 2.0**-24, 1.1e-19
# Sums of up to so many numbers are made in float32, if the numbers are float32.
SHORT = 4096


def slack(width: int) -> tuple[float, float]:
    """Return the factor and the summand that keep a length of `width` numbers, summed in float32, from being too small.

    Additions may have rounded down, and small squares vanished: these matter beside another factor that is huge.
    """
    return 1.0 + width * ROUNDING, math.sqrt(width) * VANISHING


def lengths(x: Tensor) -> Tensor:
    """Return Euclidean norms over the last dimension, never rounded down, whatever float32 lost when squares were added."""
    width = x.shape[-1]
    if x.dtype != torch.float32:
        return torch.linalg.vector_norm(x.double(), dim=-1)
    if width > SHORT:
        return torch.linalg.vector_norm(torch.stack([lengths(part) for part in x.split(SHORT, dim=-1)]).double(), dim=0)
    factor, more = slack(width)
    return torch.linalg.vector_norm(x, dim=-1).mul_(factor).add_(more)
