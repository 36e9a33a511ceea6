"""Gaussians whose moments are matched after values at the ends of a range have become one score."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_dpgen.measure.reading_scores import ReadingScores

# Draws and turns of the fit, and the part of what is missing that each turn makes up for.
_DRAWS, _ROUNDS, _PART = 4000, 15, 0.7
_LEAST = 1e-4


def through_scores(means: Tensor, covariance: Tensor, vectors: Tensor, scores: ReadingScores) -> tuple[Tensor, Tensor]:
    """Return means (k, d), and a root (d, d) of one covariance, whose values have these moments once they are scores.

    Post-processing. Readings at an end of their range all have one score, so moments of scores are smaller than those of
    the values behind them. By turns values are drawn, become scores, and most of what is missing is added, as long as
    that brings the second moments nearer.

    Args:
        means: (k, d) of the waves of scores, of each label.
        covariance: (d, d) within all labels.
        vectors: (d, units), orthonormal rows.
        scores: the scores.
    """
    d = len(covariance)
    z = torch.randn(max(_DRAWS, 20 * d), d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = torch.linalg.qr(z - z.mean(dim=0))[0] * len(z) ** 0.5
    common = means.mean(dim=0)
    centre, moments, best = common.clone(), covariance.clone(), (math.inf, common, covariance)
    for _ in range(_ROUNDS):
        values, directions = torch.linalg.eigh(moments)
        root = values.clamp(min=_LEAST).sqrt()[:, None] * directions.T
        made = scores.censored((centre + z @ root) @ vectors) @ vectors.T
        mean = made.mean(dim=0)
        missing = covariance - (made - mean).T @ (made - mean) / len(z)
        far = float(missing.square().sum())
        if far < best[0]:
            best = (far, centre.clone(), root)
        centre, moments = centre + _PART * (common - mean), root.T @ root + _PART * missing
    _, centre, root = best
    centres = centre + means - common
    for _ in range(_ROUNDS if len(means) > 1 else 0):
        made = torch.stack([scores.censored((own + z @ root) @ vectors).mean(dim=0) for own in centres]) @ vectors.T
        centres = centres + _PART * (means - made)
    return centres, root
