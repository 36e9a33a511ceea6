"""What an engine hands to the private step: the gradient of every record, in whatever form it is held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn


class RecordGradients(Protocol):
    """The gradients of B records with respect to some parameters. Private."""

    def norms(self) -> Tensor:
        """(B,) Euclidean norms over all parameters together, float32 or wider; not finite where a gradient is not."""
        ...

    def weighted_sum(self, weights: Tensor, out: Mapping[nn.Parameter, Tensor]) -> None:
        """Write ``sum_i weights[i] * gradient_i`` into `out`; a record of weight 0 adds exact zeros, NaN or not."""
        ...


@dataclass(frozen=True)
class Materialised:
    """Gradients held as one tensor (B, *parameter) a parameter: what Opacus puts in ``p.grad_sample``."""

    gradients: Mapping[nn.Parameter, Tensor]

    def norms(self) -> Tensor:
        return torch.stack([g.flatten(1).float().norm(dim=1) for g in self.gradients.values()]).norm(dim=0)

    def weighted_sum(self, weights: Tensor, out: Mapping[nn.Parameter, Tensor]) -> None:
        for parameter, gradient in self.gradients.items():
            shape = (-1,) + (1,) * (gradient.dim() - 1)
            kept = torch.where((weights != 0).view(shape), gradient, 0.0)
            out[parameter].copy_(torch.einsum("i,i...->...", weights.to(kept.dtype), kept))
