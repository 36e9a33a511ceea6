"""Softmax in whole numbers: shares that are an exact function of one row of logits and of no other."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_dpgen.sampling.fixed_point import product

# Shares are multiples of 2^-26: two of them, squared and added up over labels, stay below 2^53.
SHARE_BITS = 26
# Powers of e are read from a table in steps of 2^-8, and count as 0 below e^-40.
_STEP, _LAST = 2.0**-8, 40 * 2**8
_POWERS = torch.tensor([math.exp(-place * _STEP) for place in range(_LAST)] + [0.0], dtype=torch.float64)
# Powers are added up as multiples of 2^-44, of which int64 has room for 2^18.
_POWER_BITS = 44


def whole_shares(logits: Tensor, before: Tensor | None = None) -> Tensor:
    """Return the softmax (B, k) of logits as whole multiples of 2^-26, int64; a row that is not finite becomes 0.

    The exponential function of torch rounds a number by its place in memory, and a sum of floats by how many there are. So
    powers come from a table, by single additions and multiplications of float64, which are the same everywhere, and are
    added up in whole numbers. They are right to 10^-11.

    Args:
        logits: float64. Only differences count; minus infinity gives 0.
        before: (B, k) shares, above 0, by which powers are multiplied; None for 1.

    Example:
        >>> whole_shares(torch.tensor([[0.0, 0.0], [0.0, -torch.inf]], dtype=torch.float64)) * 2.0**-SHARE_BITS
        tensor([[0.5000, 0.5000],
                [1.0000, 0.0000]])
    """
    away = logits.amax(dim=1, keepdim=True) - logits
    known = ~away.isnan().any(dim=1, keepdim=True)
    away = away.nan_to_num(nan=0.0, posinf=_LAST * _STEP).clamp_(max=_LAST * _STEP)
    places = (away * (1.0 / _STEP)).floor_()
    rest = away - places * _STEP
    # Four terms of the series; each operation is one of float64, rounded by itself.
    series = 1.0 - rest * (1.0 - rest * 0.5 * (1.0 - rest * (1.0 / 3.0)))
    powers = _POWERS[places.to(torch.int64)] * series
    powers = powers if before is None else powers * before
    whole = (powers * 2.0**_POWER_BITS).round_().to(torch.int64)
    total = whole.sum(dim=1, keepdim=True).clamp(min=1)
    shares = (whole.double() / total.double() * 2.0**SHARE_BITS).round_().to(torch.int64)
    return shares.where(known, 0)


def mixed_shares(shares: Tensor, rows: Tensor) -> Tensor:
    """Return the averages (B, d) of public rows (k, d), each from 0 to 1, by whole shares (B, k): exact, in float64."""
    return product(shares.double(), (rows.double() * 2.0**SHARE_BITS).round_()) * 2.0 ** (-2 * SHARE_BITS)
