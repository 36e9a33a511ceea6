"""Clipping rules: how the bound of a lot is chosen, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lightning_dpgen.privacy.account import OpenAccess
from lightning_dpgen.privacy.mechanisms import noisy_histogram

# Norms and weights carry float32 rounding of about 1e-6; shaving the bound keeps a clipped norm truly below it.
_SHAVE = 1.0 - 1e-5
# Their quotient stays a normal float32 number, whose rounding the shave covers. A larger norm counts as not finite.
_SMALLEST_BOUND, _LARGEST_NORM = 1e-7, 1e30


class ClippingRule(Protocol):
    """Chooses the bound of a lot.

    `weights` names the extra noises that it draws in each access and the share of the access's inverse squared noise
    that each may use; the gradient gets the rest.
    """

    @property
    def weights(self) -> Mapping[str, float]: ...

    def bound(self, access: OpenAccess, norms: Tensor) -> float:
        """The public bound C of this lot from the private norms (B,)."""
        ...


@dataclass(frozen=True)
class Fixed:
    """One bound for the whole run.

    Args:
        c: the bound C, positive.

    Example:
        >>> Fixed(1.0).weights
        {}
    """

    c: float

    def __post_init__(self) -> None:
        _check_bound("c", self.c)

    @property
    def weights(self) -> Mapping[str, float]:
        return {}

    def bound(self, access: OpenAccess, norms: Tensor) -> float:
        return self.c


@dataclass(frozen=True)
class DPNorm:
    """The noisy mode of a histogram of the lot's norms (DPGM, TKDE, Algorithm 3).

    ``(0, c_max]`` is cut into `bins` equal intervals; the bound is the upper end of the fullest one after noise.
    Norms above `c_max` count in the last bin and a norm of 0 in the first, so each finite record counts exactly once:
    sensitivity 1 under add-or-remove-one. The bound is never below ``c_max / bins``.

    Args:
        c_max: the largest bound.
        bins: number of intervals w.
        share: share of the lot's inverse squared noise that the histogram uses; the gradient gets the rest, and both
            are one merged Gaussian of the lot.

    Example:
        >>> DPNorm(c_max=10.0, bins=100, share=0.05).weights
        {'norms': 0.05}
    """

    c_max: float
    bins: int = 20
    share: float = 0.05

    def __post_init__(self) -> None:
        _check_bound("c_max", self.c_max)
        if self.bins < 2:
            raise ValueError(f"bins={self.bins}: expected 2 or more")
        _check_bound(f"c_max={self.c_max:g} over bins={self.bins}", self.c_max / self.bins)
        if not 0.0 < self.share < 1.0:
            raise ValueError(f"share={self.share}: expected a number between 0 and 1")

    @property
    def weights(self) -> Mapping[str, float]:
        return {"norms": self.share}

    def bound(self, access: OpenAccess, norms: Tensor) -> float:
        width = self.c_max / self.bins
        finite = norms[torch.isfinite(norms)]
        places = (torch.ceil(finite / width) - 1).clamp(0, self.bins - 1).long()
        return (int(noisy_histogram(access, "norms", places, self.bins).argmax()) + 1) * width


def clip_weights(norms: Tensor, bound: float) -> Tensor:
    """The factor of each record: ``min(1, C / norm)``, shaved by 1e-5; exactly 0 where the norm is not finite
    (or above 1e30 under a finite bound).

    An infinite bound clips nothing.
    """
    weights = (_SHAVE * bound / norms).clamp(max=1.0)
    largest = _LARGEST_NORM if math.isfinite(bound) else math.inf
    return torch.where(norms < largest, weights, 0.0)


def _check_bound(name: str, value: float) -> None:
    if not _SMALLEST_BOUND <= value < _LARGEST_NORM:
        raise ValueError(f"{name}={value:g}: expected a number from {_SMALLEST_BOUND:g} to {_LARGEST_NORM:g}")
