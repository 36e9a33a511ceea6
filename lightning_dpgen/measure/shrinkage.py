"""Linear Bayes estimates of counts, means and covariances from noisy sums."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def likely_counts(sums: Tensor, deviation: float, expected: Tensor | None = None) -> Tensor:
    """Shrink counts, 1 or more, to what is expected by the share of noise in their differences (the linear Bayes estimate).

    Post-processing. All sums of a component are divided by its count, and a count that is small by chance would make all
    of them large.

    Args:
        sums: (k,) noisy counts.
        deviation: standard deviation of the noise of each count.
        expected: (k,) counts that are known without these; None for the mean of all.

    Example:
        >>> likely_counts(torch.tensor([90.0, 110.0], dtype=torch.float64), deviation=50.0)
        tensor([100., 100.], dtype=torch.float64)
    """
    centre = sums.mean() if expected is None else expected
    differences = sums - centre
    spread = float(differences.square().sum()) / max(len(sums) - 1, 1)
    own = max(0.0, 1.0 - deviation**2 / spread) if spread else 0.0
    return (centre + own * differences).clamp(min=1.0)


def likely_means(sums: Tensor, counts: Tensor, deviation: float) -> tuple[Tensor, Tensor]:
    """Return means (k, d), shrunk to their common mean by the share of noise in their differences, and the noise left (k,).

    Post-processing: the linear Bayes estimate, in each direction by how much components differ in it. A component with
    hardly any records gets the common mean.

    Args:
        sums: (k, d) noisy sums.
        counts: (k,) counts, 1 or more.
        deviation: standard deviation of the noise of each number of the sums.

    Returns:
        The means, and the standard deviation of the noise of a coordinate of each, the root of its mean square.
    """
    k, means = len(sums), sums / counts[:, None]
    noise = (deviation / counts).square()[:, None].expand_as(means)
    if k == 1 or not deviation:
        return means, noise.mean(dim=1).sqrt()
    common = (means / noise).sum(dim=0) / (1.0 / noise).sum(dim=0)
    differences, weight = means - common, 1.0 / noise.square()
    spread = ((differences.square() * k / (k - 1) - noise) * weight).sum(dim=0) / weight.sum(dim=0)
    own = spread.clamp(min=0.0) / (spread.clamp(min=0.0) + noise)
    return common + own * differences, (own * noise).mean(dim=1).sqrt()


def likely_differences(sums: Tensor, counts: Tensor, deviation: float, directions: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean differences (k, d) from centres that were known, shrunk to 0, and the noise left (k,).

    Post-processing: the linear Bayes estimate, in each direction by how much all components differ in it.

    Args:
        sums: (k, d) noisy sums of differences.
        counts: (k,) counts, 1 or more.
        deviation: standard deviation of the noise of each number of the sums.
        directions: (d, d) orthonormal rows, in which components are expected to differ independently.

    Returns:
        The differences, and the standard deviation of the noise of a coordinate of each, the root of its mean square.
    """
    found = sums / counts[:, None] @ directions.T
    noise = (deviation / counts).square()[:, None].expand_as(found)
    # Components are weighted by their records: those with few tell little, and are few of the mixture.
    weight = counts[:, None] / counts.sum()
    spread = ((found.square() - noise) * weight).sum(dim=0).clamp(min=0.0)
    own = spread / (spread + noise).clamp(min=1e-300)
    return own * found @ directions, (own * noise).mean(dim=1).sqrt()


def factors_of(sums: Tensor, counts: Tensor, deviation: float) -> Tensor:
    """Return factors F (k, r, d) estimated from noisy second moments: a component's covariance is ``F^T F``.

    Post-processing. A component has its own moments in the directions in which they exceed what noise makes
    (`beyond_noise`), and the covariance of `_in_common` in all others; the less components differ beyond their noise, the
    nearer it is to the latter in all directions.

    Args:
        sums: (k, d, d) noisy sums of outer products.
        counts: (k,) noisy counts, 1 or more.
        deviation: standard deviation of the noise of each number of the sums.
    """
    moments = 0.5 * (sums + sums.transpose(1, 2))
    # A number beside the diagonal is the mean of two draws.
    noise = deviation / math.sqrt(2.0)
    covariances, differ = _in_common(moments, counts, noise)
    for c, count in enumerate(counts.tolist()):
        variances, directions = beyond_noise(moments[c] / count, noise / count)
        others = torch.eye(sums.shape[1], dtype=sums.dtype) - directions @ directions.T
        own = (directions * variances) @ directions.T + others @ covariances[c] @ others
        covariances[c] += differ[c] * (own - covariances[c])
    values, directions = torch.linalg.eigh(covariances)
    # Directions that only rounding makes are left out.
    kept = (values > 1e-12 * values.max()).any(dim=0)
    if not kept.any():
        return torch.zeros(len(sums), 1, sums.shape[1], dtype=sums.dtype)
    return values[:, kept, None].clamp(min=0.0).sqrt() * directions.transpose(1, 2)[:, kept]


def beyond_noise(moments: Tensor, noise: float, least: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return variances v (r,) and directions (d, r) of symmetric (d, d) moments with noise of deviation s off the diagonal.

    These are the directions whose variance l is beyond what noise alone makes, ``2 s sqrt(d)`` (the edge of Wigner's
    semicircle). What noise adds to a true variance is taken off: ``l = v + d s^2 / v``.

    Args:
        least: directions count from so many times that edge.
    """
    edge = 2.0 * noise * math.sqrt(len(moments))
    found, directions = torch.linalg.eigh(moments)
    kept = found > max(least * edge, 1e-12)
    found = found[kept]
    return 0.5 * (found + (found.square() - edge**2).sqrt()), directions[:, kept]


def _in_common(moments: Tensor, counts: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Return covariances (k, d, d) in the common directions of all components, and (k,) how much components differ.

    All components together have the least noise. The difference is from 0, where it is noise alone, to 1. In these
    directions, each in units of its own deviation, a component's moments differ from 1 by its own shape and its noise, and
    are shrunk to 1 by the share of noise in both (the linear Bayes estimate). Each variance is lowered by one deviation of
    the noise that is left: records that are too much alike do less harm than those of other components.
    """
    total = float(counts.sum())
    variances, directions = beyond_noise(moments.sum(dim=0) / total, noise * math.sqrt(len(counts)) / total)
    if not len(variances):
        return torch.zeros_like(moments), torch.zeros_like(counts)
    scale = variances.sqrt()
    whitened = directions / scale
    one = torch.eye(len(scale), dtype=moments.dtype)
    differences = whitened.T @ (moments / counts[:, None, None]) @ whitened - one
    doubt = (noise / counts[:, None, None] / torch.outer(scale, scale)).square() * (1.0 + one)
    own = _own_shares(differences, doubt, one.bool())
    shapes = one + own * differences
    likely = 1.0 - ((own * doubt).sqrt() / shapes.clamp(min=1e-12)).diagonal(dim1=1, dim2=2)
    likely = likely.clamp(min=0.0).sqrt()
    values, turned = torch.linalg.eigh(likely[:, :, None] * shapes * likely[:, None, :])
    factors = (values.clamp(min=0.0).sqrt()[:, :, None] * turned.transpose(1, 2)) @ (scale[:, None] * directions.T)
    return factors.transpose(1, 2) @ factors, own.diagonal(dim1=1, dim2=2) @ variances / variances.sum()


def _own_shares(differences: Tensor, doubt: Tensor, diagonal: Tensor) -> Tensor:
    """Return the share of the variance of differences, on and off the diagonal, that is not noise (`doubt`)."""
    shares = torch.zeros_like(differences)
    for part in (diagonal, ~diagonal):
        own, noise = differences[:, part], doubt[:, part]
        if not own.numel():
            continue
        # Weights are by inverse squared noise; without noise all are equal.
        weight = 1.0 / (noise + noise.mean() * 1e-9 + 1e-30).square()
        spread = float(((own.square() - noise) * weight).sum() / weight.sum())
        shares[:, part] = max(spread, 0.0) / (max(spread, 0.0) + noise).clamp(min=1e-30)
    return shares
