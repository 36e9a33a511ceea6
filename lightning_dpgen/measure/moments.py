"""Counts, means and covariances from noisy sums: linear Bayes estimates, and moments matched after units are cut."""

from __future__ import annotations

import functools
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
    kept_part = max(0.0, 1.0 - deviation**2 / spread) if spread else 0.0
    return (centre + kept_part * differences).clamp(min=1.0)


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
    kept_part = spread.clamp(min=0.0) / (spread.clamp(min=0.0) + noise)
    return common + kept_part * differences, (kept_part * noise).mean(dim=1).sqrt()


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
    differences = sums / counts[:, None] @ directions.T
    noise = (deviation / counts).square()[:, None].expand_as(differences)
    # Components are weighted by their records: those with few tell little, and are few of the mixture.
    weight = counts[:, None] / counts.sum()
    spread = ((differences.square() - noise) * weight).sum(dim=0).clamp(min=0.0)
    kept_part = spread / (spread + noise).clamp(min=1e-300)
    return kept_part * differences @ directions, (kept_part * noise).mean(dim=1).sqrt()


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
    values, directions = torch.linalg.eigh(moments)
    kept = values > max(least * edge, 1e-12)
    values = values[kept]
    return 0.5 * (values + (values.square() - edge**2).sqrt()), directions[:, kept]


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
    kept_part = _own_shares(differences, doubt, one.bool())
    shapes = one + kept_part * differences
    likely = 1.0 - ((kept_part * doubt).sqrt() / shapes.clamp(min=1e-12)).diagonal(dim1=1, dim2=2)
    likely = likely.clamp(min=0.0).sqrt()
    values, turned = torch.linalg.eigh(likely[:, :, None] * shapes * likely[:, None, :])
    factors = (values.clamp(min=0.0).sqrt()[:, :, None] * turned.transpose(1, 2)) @ (scale[:, None] * directions.T)
    return factors.transpose(1, 2) @ factors, kept_part.diagonal(dim1=1, dim2=2) @ variances / variances.sum()


def _own_shares(differences: Tensor, doubt: Tensor, diagonal: Tensor) -> Tensor:
    """Return the share of the variance of differences, on and off the diagonal, that is not noise (`doubt`)."""
    shares = torch.zeros_like(differences)
    for part in (diagonal, ~diagonal):
        part_differences, noise = differences[:, part], doubt[:, part]
        if not part_differences.numel():
            continue
        # Weights are by inverse squared noise; without noise all are equal.
        weight = 1.0 / (noise + noise.mean() * 1e-9 + 1e-30).square()
        spread = float(((part_differences.square() - noise) * weight).sum() / weight.sum())
        shares[:, part] = max(spread, 0.0) / (max(spread, 0.0) + noise).clamp(min=1e-30)
    return shares


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
    mean_at, root, covariance = centre.clone(), torch.diag(lengths), torch.diag(lengths.square())
    best = (math.inf, mean_at, root)
    # float32 takes half of the time, and so few draws do not show the difference.
    waves, units, along = len(vectors), vectors.float(), directions.float()
    to_units = along[:, :waves] @ units
    for turn in range(_ROUNDS):
        parts = z @ root.float()
        values = (mean_at[:waves].float() @ units).addmm(parts, to_units)
        if not turn:
            uncut = torch.eye(len(centre), dtype=torch.float64)
            uncut[:waves, :waves] = units * ((values > 0.0) & (values < 1.0)).float().mean(dim=0) @ units.T
        values.clamp_(0.0, 1.0)
        middle = values.mean(dim=0)
        mean = torch.cat([(middle @ units.T).double(), mean_at[waves:]])
        around = (values - middle) @ to_units.T
        if waves < len(centre):
            around += parts @ (along[:, waves:] @ along[:, waves:].T)
        seen = (around.T @ around).double() / len(z)
        if not turn:
            lost = _lost(uncut, directions)
            asked = (
                mean + _beyond(centre - mean, noise_of_mean**2 * lost[0]),
                seen + _beyond(covariance - seen, noise_of_moments**2 * lost[1]),
            )
        missing = asked[0] - mean, asked[1] - seen
        far = float(missing[0].square().sum() / lengths.square().sum() + missing[1].square().sum() / lengths.pow(4).sum())
        # Noisy moments may be out of reach; adding more then only does harm.
        if not far < best[0]:
            break
        best = (far, mean_at, root)
        # A variance that would become negative (cutting wide directions adds to narrow ones) becomes 0.
        variances, turned = torch.linalg.eigh(covariance + _PART * missing[1])
        variances = variances.clamp(min=0.0)
        covariance, root = (turned * variances) @ turned.T, (turned * variances.sqrt()) @ turned.T
        mean_at = mean_at + _PART * missing[0]
    _, mean_at, root = best
    out = torch.zeros_like(factor)
    out[: len(lengths)] = root @ directions
    return mean_at, out


@functools.lru_cache(maxsize=2)  # the same for all Gaussians of a mixture
def _draws(n: int, rank: int) -> Tensor:
    """Return fixed draws (n, rank) of mean 0, uncorrelated and of variance 1."""
    z = torch.randn(n, rank, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (torch.linalg.qr(z - z.mean(dim=0))[0] * n**0.5).float()


def _lost(uncut: Tensor, directions: Tensor) -> tuple[float, float]:
    """Return the expected squared length of what cutting takes from white noise of variance 1 on mean and moments.

    Args:
        uncut: (d, d) J: cutting turns a small change e of the mean into J e, and one E of the covariance into about
            ``J E J``.
        directions: (r, d) the directions of the covariance.
    """
    of_mean = torch.eye(len(uncut), dtype=uncut.dtype) - uncut
    uncut = directions @ uncut @ directions.T
    of_moments = len(uncut) ** 2 - 2.0 * uncut.trace().square() + uncut.square().sum().square()
    return float(of_mean.square().sum()), float(of_moments)


def _beyond(missing: Tensor, noise: float) -> Tensor:
    """Shorten numbers by the share of noise, given as its expected squared length, in their own squared length (James and
    Stein 1961, positive part)."""
    length = float(missing.square().sum())
    return missing * max(0.0, 1.0 - noise / length) if length else missing
