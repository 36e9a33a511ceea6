"""A mixture of Gaussians that is fitted to noisy characteristic functions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Lengths of frequencies, in units of the inverse deviation of a direction; and the shares of directions that one sees.
_SHORTEST, _LONGEST, _SEEN = 0.3, 4.0, (1.0, 0.5, 0.25)
# Steps of a fit, its first step size, how far components begin apart, and how wide; and the number of beginnings.
_STEPS, _RATE, _BEGIN, _BEGINNINGS = 400, 0.06, 0.7, 3


@dataclass(frozen=True)
class Fitted:
    """A mixture whose components each have a share of each label.

    Args:
        weights: (components, labels) probabilities, which add up to 1.
        means: (components, d).
        factors: (components, d, d) F of each covariance ``F^T F``.
    """

    weights: Tensor
    means: Tensor
    factors: Tensor


def draw_frequencies(m: int, d: int, generator: torch.Generator) -> Tensor:
    """Draw frequencies (m, d): many of few directions each, of uniform length."""
    drawn = torch.randn(m, d, generator=generator)
    seen = torch.tensor(_SEEN)[torch.randint(len(_SEEN), (m, 1), generator=generator)]
    kept = torch.rand(m, d, generator=generator) < seen
    kept[:, 0] |= ~kept.any(dim=1)
    drawn = torch.nn.functional.normalize(drawn * kept, dim=1)
    return drawn * (_SHORTEST + (_LONGEST - _SHORTEST) * torch.rand(m, 1, generator=generator))


def fit_mixture(found: Tensor, shares: Tensor, frequencies: Tensor, components: int, generator: torch.Generator) -> Fitted:
    """Fit a mixture, by least squares, to characteristic functions of each label.

    Post-processing. The function of a Gaussian is known in closed form, and the noise of each number is the same. A fit
    ends in one of many places near each other, so it begins in a few, and the mixture holds the components of all.

    Args:
        found: (labels, 2, m) noisy real and imaginary parts, which are at most the share of the label.
        shares: (labels,) shares of the labels, where the fit begins.
        frequencies: (m, d).
        components: number of components of one fit.
        generator: public generator of the beginnings.
    """
    fits = [_fit(found, shares, frequencies, components, generator) for _ in range(_BEGINNINGS)]
    weights = torch.cat([fit.weights for fit in fits]) / len(fits)
    return Fitted(weights, torch.cat([fit.means for fit in fits]), torch.cat([fit.factors for fit in fits]))


def _fit(found: Tensor, shares: Tensor, frequencies: Tensor, components: int, generator: torch.Generator) -> Fitted:
    """Fit once."""
    d, real, imaginary = frequencies.shape[1], *found.float().unbind(dim=1)
    means = torch.randn(components, d, generator=generator).mul_(_BEGIN).requires_grad_()
    factors = torch.eye(d).mul(_BEGIN).repeat(components, 1, 1).requires_grad_()
    logits = shares.float().clamp(min=1e-6).log().repeat(components, 1).requires_grad_()
    optimizer = torch.optim.Adam([means, factors, logits], lr=_RATE)
    slower = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _STEPS)
    with torch.enable_grad():
        for _ in range(_STEPS):
            weights = logits.flatten().softmax(dim=0).view(components, -1)
            angles = means @ frequencies.T
            size = (factors @ frequencies.T).square().sum(dim=1).mul(-0.5).exp()
            misfit = weights.T @ (size * angles.cos()) - real, weights.T @ (size * angles.sin()) - imaginary
            loss = sum(part.square().sum() for part in misfit)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            slower.step()
    return Fitted(weights.detach().double(), means.detach().double(), factors.detach().double())
