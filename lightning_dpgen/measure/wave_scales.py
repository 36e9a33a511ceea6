"""The centre and the scale of each wave of a series, roughly, from noisy histograms in bins that grow by factors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Bins are a quarter of an octave wide, over so many octaves below the largest wave.
_OCTAVES, _PARTS = 13, 4
# A scale is near that of waves alike, within a factor of e^0.5.
_APART, _TURNS = 0.5, 3
# The share of records which one heap has to hold, deviations of doubt, and the shares that are beyond its ends.
_HELD, _CERTAIN, _BEYOND = 0.85, 3.0, 1e-3


def scale_edges(largest: float) -> Tensor:
    """Return the edges of bins of both signs that grow by factors, up to a largest wave; the last bins have no end."""
    steps = torch.arange(1, _OCTAVES * _PARTS, dtype=torch.float64)
    edges = largest * 2.0 ** (-steps / _PARTS)
    return torch.cat([-edges, edges.flip(0)])


def find_scales(sums: Tensor, deviation: float, n: float, edges: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
    """Return centre and scale (size,) of each wave: those of the normal distribution whose counts are nearest.

    Post-processing. Where a wave has several heaps, and the nearest distribution holds but one of them, the nearest by
    cumulative counts is taken, which has more noise. Among scales that noise does not tell apart, those are taken which
    fall like a power of the number of turns, which is fitted to all waves.

    Args:
        sums: (size, bins) noisy counts between the edges.
        deviation: standard deviation of the noise of each.
        n: number of records.
        edges: as of `scale_edges`.
        turns: (size,) half turns of each wave.
    """
    largest = float(edges.max()) * 2.0 ** (1.0 / _PARTS)
    centres = torch.cat([edges, torch.zeros(1, dtype=torch.float64)])
    scales = largest * 2.0 ** (-torch.arange(2.0, 2.0 * _OCTAVES, dtype=torch.float64) / 2.0)
    below = torch.special.ndtr((edges - centres[:, None, None]) / scales[:, None]).flatten(0, 1)
    shares = torch.cat([below, torch.ones(len(below), 1, dtype=torch.float64)], dim=1).diff(
        dim=1, prepend=below[:, :1] * 0.0
    )
    doubt = max(deviation, 1.0) ** 2
    misfit = (n * n * shares.square().sum(dim=1) - 2.0 * n * sums @ shares.T) / (2.0 * doubt)
    best = misfit.argmin(dim=1)
    # Noise of sums from below and of those from above is least in the mean of both.
    found = 0.5 * (sums.cumsum(dim=1)[:, :-1] + n - sums.flip(1).cumsum(dim=1).flip(1)[:, 1:])
    cumulative = (n * n * below.square().sum(dim=1) - 2.0 * n * found @ below.T) / (0.5 * doubt * len(edges))
    inside = ((below > _BEYOND)[best] & (below < 1.0 - _BEYOND)[best]).double()
    inside = torch.cat([inside, inside[:, -1:]], dim=1)
    heaps = (inside * sums).sum(dim=1) + _CERTAIN * deviation * inside.sum(dim=1).sqrt() < _HELD * n
    misfit = torch.where(heaps[:, None], cumulative, misfit)
    of_scale = scales.log().repeat(len(centres))
    best = misfit.argmin(dim=1)
    powers = torch.stack([torch.ones_like(turns), (1.0 + turns).log()], dim=1)
    for _ in range(_TURNS):
        likely = powers @ torch.linalg.lstsq(powers, of_scale[best][:, None]).solution
        best = (misfit + 0.5 * ((of_scale - likely) / _APART).square()).argmin(dim=1)
    return centres[best // len(scales)], scales[best % len(scales)]


def largest_wave(units: int, reach: float) -> float:
    """Return the length of the longest record whose values are within the reach, a bound of each wave."""
    return reach * math.sqrt(units)
