"""Likelihoods of units: the distribution of a number in [0, 1] about the mean that a network gives it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_dpgen.gradients.component_factors import OneComponent
from lightning_dpgen.gradients.factors import Dense, GradientFactors
from lightning_dpgen.gradients.stacked_ops import components

LIKELIHOODS = ("bernoulli", "gaussian", "laplace")
# A learned scale begins here: below the deviation of uniform numbers, .29.
_START = 0.2
# The change of the logarithm of a scale for a change of its parameter by 1. The steps of Adam are of one length for all
# parameters, and a scale has further to go than a weight.
_GAIN = 4.0


class UnitLikelihood(nn.Module):
    """The likelihood of each unit, whose mean is the logistic function of a logit.

    A scale is the standard deviation of a Gaussian, or the scale of a Laplace distribution; draws beyond [0, 1] are moved
    to its ends. A Bernoulli has none: a unit between 0 and 1 counts as a probability, and is generated as its mean.

    Args:
        k, units: the numbers of components and units.
        kind: one of `LIKELIHOODS`.
        scale: fixed and public; None learns one for each component and unit.
        floor: the least scale. Without one a unit that is always the same has an unbounded likelihood.

    Raises:
        ValueError: for another kind, a scale for a Bernoulli, or one that is not from the floor to 1.

    Example:
        >>> likelihood = UnitLikelihood(1, 2, "gaussian", scale=0.5)
        >>> likelihood.loss(torch.zeros(1, 2), torch.tensor([[0.5, 1.0]]), (0, 1))
        tensor([0.9516])
    """

    def __init__(
        self, k: int, units: int, kind: str = "bernoulli", *, scale: float | None = None, floor: float = 0.01
    ) -> None:
        super().__init__()
        if kind not in LIKELIHOODS:
            raise ValueError(f"likelihood={kind!r}: expected one of {', '.join(LIKELIHOODS)}")
        if not isinstance(floor, float) or not 1e-4 <= floor <= 1.0:
            raise ValueError(f"floor={floor!r}: expected a number from 0.0001 to 1")
        if scale is not None and kind == "bernoulli":
            raise ValueError(f"scale={scale!r} with likelihood='bernoulli': expected None, since it has no scale")
        if scale is not None and not (isinstance(scale, float) and floor <= scale <= 1.0):
            raise ValueError(f"scale={scale!r}: expected a number from the floor, {floor:g}, to 1")
        self.kind, self.scale, self.floor = kind, scale, floor
        self.log_scale: nn.Parameter | None = None
        if kind != "bernoulli" and scale is None:
            self.log_scale = nn.Parameter(torch.full((k, units), math.log(max(_START - floor, 0.1 * floor)) / _GAIN))

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments by which a release says how units are drawn; none for a Bernoulli."""
        return {} if self.kind == "bernoulli" else {"likelihood": self.kind, "scale": self.scale, "floor": self.floor}

    def _scales(self, offsets: Sequence[int], device: torch.device) -> Tensor | float:
        """Return the scale of each unit of each record, (B, units), or the fixed one."""
        if self.log_scale is None:
            return 1.0 if self.scale is None else self.scale
        return self.floor + torch.exp(_GAIN * self.log_scale[components(offsets, device)])

    def loss(self, logits: Tensor, x: Tensor, offsets: Sequence[int]) -> Tensor:
        """Return the negative log likelihood (B,) of units x (B, units), in nats."""
        if self.kind == "bernoulli":
            return F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(dim=1)
        scale = torch.as_tensor(self._scales(offsets, x.device), dtype=x.dtype, device=x.device)
        off = (x - torch.sigmoid(logits)) / scale
        if self.kind == "gaussian":
            each = 0.5 * off.square() + torch.log(scale) + 0.5 * math.log(2.0 * math.pi)
        else:
            each = off.abs() + torch.log(2.0 * scale)
        return each.sum(dim=1)

    @torch.no_grad()
    def gradient(
        self, logits: Tensor, x: Tensor, offsets: Sequence[int]
    ) -> tuple[Tensor, dict[nn.Parameter, GradientFactors]]:
        """Return the gradients of `loss` with respect to the logits (B, units) and, by record, to a learned scale."""
        mean = torch.sigmoid(logits)
        if self.kind == "bernoulli":
            return mean - x, {}
        scale = self._scales(offsets, x.device)
        off = (x - mean) / scale
        if self.kind == "gaussian":
            in_logits, in_log = -off / scale, 1.0 - off.square()
        else:
            in_logits, in_log = -off.sign() / scale, 1.0 - off.abs()
        in_logits = in_logits * mean * (1.0 - mean)
        if self.log_scale is None:
            return in_logits, {}
        in_log = in_log * (scale - self.floor) / scale * _GAIN
        return in_logits, {self.log_scale: OneComponent(Dense(in_log), offsets)}

    @torch.no_grad()
    def draw(self, means: Tensor, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """Draw units (n, units) about their means, on the CPU; those of a Bernoulli are left to `outputs.draw`."""
        if self.kind == "bernoulli":
            return means
        scale = self._scales(offsets, means.device)
        if self.kind == "gaussian":
            off = torch.randn(means.shape, generator=generator)
        else:
            uniform = torch.rand(means.shape, generator=generator) - 0.5
            off = -uniform.sign() * torch.log1p(-2.0 * uniform.abs())
        return (means + scale * off).clamp_(0.0, 1.0)
