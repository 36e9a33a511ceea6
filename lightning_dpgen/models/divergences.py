"""Divergences of the codes of records from the prior."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class CodeEmbedding:
    """Random Fourier features of codes, of norm 1: the Gaussian kernel ``exp(-|a - b|^2 / 2 d)`` (Rahimi and Recht 2007).

    Args:
        latent: dimensions d of a code.
        features: the number of features; even, since they are pairs of a cosine and a sine.
        generator: public generator of the frequencies.

    Attributes:
        of_prior: (features,) the mean over standard normal codes.

    Example:
        >>> embedding = CodeEmbedding(2, features=10)
        >>> float(embedding(torch.randn(3, 2)).norm(dim=1).sum().round())
        3.0
    """

    def __init__(self, latent: int, features: int = 64, generator: torch.Generator | None = None) -> None:
        pairs = features // 2
        self._frequencies = torch.randn(latent, pairs, generator=generator) / math.sqrt(latent)
        means = torch.exp(-0.5 * self._frequencies.square().sum(dim=0)) / math.sqrt(pairs)
        self.of_prior = torch.cat([means, torch.zeros(pairs)])

    def __call__(self, z: Tensor) -> Tensor:
        """Map codes (B, latent) to features (B, features)."""
        phase = z @ self._frequencies.to(z)
        return torch.cat([phase.cos(), phase.sin()], dim=1) / math.sqrt(phase.shape[1])

    def to(self, device: torch.device) -> CodeEmbedding:
        """Move its numbers to a device, and return itself."""
        self._frequencies, self.of_prior = self._frequencies.to(device), self.of_prior.to(device)
        return self


def mmd(codes: Tensor, prior: Tensor, mask: Tensor) -> Tensor:
    """Compute the squared maximum mean discrepancy between the codes of each group and as many draws of the prior.

    The kernel is the inverse multiquadric ``2 d / (2 d + |a - b|^2)``, and the mean is over all pairs (a V-statistic, never
    negative; Gretton et al. 2012, equation 5).

    Args:
        codes: (m, r, d); `mask` says where there are any.
        prior: (m, r, d) draws, at the same places.
        mask: (m, r).

    Returns:
        (m,); 0 for a group without a record.

    Example:
        >>> x = torch.randn(2, 5, 3)
        >>> bool(mmd(x, x, torch.ones(2, 5, dtype=torch.bool)).abs().max() < 1e-6)
        True
    """
    sign, kernel = _kernel(torch.cat([codes, prior], dim=1), mask)
    return (sign * (kernel @ sign[:, :, None])[:, :, 0]).sum(dim=1)


def mmd_and_gradient(codes: Tensor, prior: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `mmd`, and its gradient (m, r, d) with respect to the codes."""
    both, r = torch.cat([codes, prior], dim=1), codes.shape[1]
    sign, kernel = _kernel(both, mask)
    found = (sign * (kernel @ sign[:, :, None])[:, :, 0]).sum(dim=1)
    # The kernel falls by k^2 / 2 d for a unit of squared distance, whose gradient is 2 (a - b); each pair counts twice.
    fall = kernel[:, :r].square_().mul_(sign[:, None])
    pull = codes * fall.sum(dim=2, keepdim=True) - fall @ both
    return found, pull * (sign[:, :r, None] * (-2.0 / codes.shape[2]))


def _kernel(both: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return signs (m, 2 r), +1 for a code, -1 for a draw of the prior, over their number; and the kernel (m, 2 r, 2 r)."""
    share = mask.to(both.dtype) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    squares, scale = both.square().sum(dim=2), 2.0 * both.shape[2]
    distances = torch.baddbmm(squares[:, :, None] + squares[:, None, :], both, both.mT, alpha=-2.0).clamp(min=0.0)
    return torch.cat([share, -share], dim=1), scale / (scale + distances)
