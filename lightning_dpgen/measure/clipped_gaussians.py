"""Gaussians whose moments are matched after their units have been cut to [0, 1]."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

# Draws for all Gaussians of a mixture together, turns of the fit, and how much of what is missing each turn adds, since
# cutting takes a part of it away again.
_DRAWS, _ROUNDS, _PART = 20_000, 12, 1.5


def through_clipping(
    centre: Tensor,
    factor: Tensor,
    vectors: Tensor,
    noise_of_mean: float = 0.0,
    noise_of_moments: float = 0.0,
    several: int = 10,
) -> tuple[Tensor, Tensor]:
    """Return centre and factor of a Gaussian that has these moments once its units are cut to [0, 1].

    Post-processing. Most pixels of a picture are at one of the two ends, where a Gaussian is cut, loses variance and moves
    its mean. The measured moments are those of records, so the generated ones are brought there by turns: generate from
    fixed draws, cut, and add what is missing, and half as much again, to mean and covariance, as long as that brings
    them nearer. Cutting also takes away noise, which is not to be put back: only what is missing beyond it is added.

    Args:
        centre: (d,) coordinates of the mean.
        factor: (r, d) F of the covariance ``F^T F``.
        vectors: (waves, units), orthonormal rows, from which units follow; coordinates beyond the waves are not cut.
        noise_of_mean, noise_of_moments: standard deviation of the noise of a coordinate, and of a second moment.
        several: number of Gaussians of the mixture; the more there are, the less of each is seen, and the fewer draws it
            takes to fit it.

    Example:
        >>> vectors, factor = torch.eye(1, dtype=torch.float64), torch.tensor([[0.5]], dtype=torch.float64)
        >>> centre, wider = through_clipping(torch.tensor([0.5], dtype=torch.float64), factor, vectors)
        >>> bool(wider.abs() > 1.0)
        True
    """
    # Directions of variance 0 are left out.
    lengths, directions = torch.linalg.svd(factor, full_matrices=False)[1:]
    varies = lengths > 1e-6 * lengths.max().clamp(min=1e-12)
    if not varies.any():
        return centre, factor
    lengths, directions = lengths[varies], directions[varies]
    z = _draws(max(_DRAWS // several, 4 * len(factor)), len(factor))[:, varies]
    own, root, covariance = centre.clone(), torch.diag(lengths), torch.diag(lengths.square())
    best = (math.inf, own, root)
    # float32 takes half of the time, and so few draws do not show the difference.
    waves, units, along = len(vectors), vectors.float(), directions.float()
    to_units = along[:, :waves] @ units
    for turn in range(_ROUNDS):
        parts = z @ root.float()
        values = (own[:waves].float() @ units).addmm(parts, to_units)
        if not turn:
            left = torch.eye(len(centre), dtype=torch.float64)
            left[:waves, :waves] = units * ((values > 0.0) & (values < 1.0)).float().mean(dim=0) @ units.T
        values.clamp_(0.0, 1.0)
        middle = values.mean(dim=0)
        mean = torch.cat([(middle @ units.T).double(), own[waves:]])
        around = (values - middle) @ to_units.T
        if waves < len(centre):
            around += parts @ (along[:, waves:] @ along[:, waves:].T)
        found = (around.T @ around).double() / len(z)
        if not turn:
            lost = _lost(left, directions)
            asked = (
                mean + _beyond(centre - mean, noise_of_mean**2 * lost[0]),
                found + _beyond(covariance - found, noise_of_moments**2 * lost[1]),
            )
        missing = asked[0] - mean, asked[1] - found
        far = float(missing[0].square().sum() / lengths.square().sum() + missing[1].square().sum() / lengths.pow(4).sum())
        # Noisy moments may be out of reach; adding more then only does harm.
        if not far < best[0]:
            break
        best = (far, own, root)
        # A variance that would become negative (cutting wide directions adds to narrow ones) becomes 0.
        variances, turned = torch.linalg.eigh(covariance + _PART * missing[1])
        variances = variances.clamp(min=0.0)
        covariance, root = (turned * variances) @ turned.T, (turned * variances.sqrt()) @ turned.T
        own = own + _PART * missing[0]
    _, own, root = best
    out = torch.zeros_like(factor)
    out[: len(lengths)] = root @ directions
    return own, out


@functools.lru_cache(maxsize=2)  # the same for all Gaussians of a mixture
def _draws(n: int, rank: int) -> Tensor:
    """Return fixed draws (n, rank) of mean 0, uncorrelated and of variance 1."""
    z = torch.randn(n, rank, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (torch.linalg.qr(z - z.mean(dim=0))[0] * n**0.5).float()


def _lost(left: Tensor, directions: Tensor) -> tuple[float, float]:
    """Return the expected squared length of what cutting takes from white noise of variance 1 on mean and moments.

    Args:
        left: (d, d) J: cutting turns a small change e of the mean into J e, and one E of the covariance into about
            ``J E J``.
        directions: (r, d) the directions of the covariance.
    """
    of_mean = torch.eye(len(left), dtype=left.dtype) - left
    left = directions @ left @ directions.T
    of_moments = len(left) ** 2 - 2.0 * left.trace().square() + left.square().sum().square()
    return float(of_mean.square().sum()), float(of_moments)


def _beyond(missing: Tensor, noise: float) -> Tensor:
    """Shorten numbers by the share of noise, given as its expected squared length, in their own squared length (James and
    Stein 1961, positive part)."""
    length = float(missing.square().sum())
    return missing * max(0.0, 1.0 - noise / length) if length else missing
