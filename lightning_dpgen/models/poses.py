"""The pose of a picture: how its ink slants, and where it lies, in whole pixels. It can be taken away and put back.

The ground is the median of the pixels at the edges, in each channel, and ink is what differs from it. All of it is a
function of each picture alone: the same to the last bit beside any other pictures, since sums are of multiples of a power
of two, in float64, which are exact in any order, and all that follows is rounded number by number.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

# The numbers of a pose: its slant, and the rows down and columns right of the middle where its ink lies.
POSE = 3
# The steepest slant, the smallest height of ink (its variance, in rows) that a slant is divided by, and how far from the
# middle ink lies at most, as a part of the side.
STEEPEST, _FLAT, _FARTHEST = 1.0, 0.5, 0.25
# Bits of whole numbers that float64 adds up exactly.
_EXACT = 52


def upright(pictures: Tensor) -> Tensor:
    """Shear each picture so that its ink leans neither way: rows are shifted until columns and rows of ink, about their
    centre, are uncorrelated.

    The result is a continuous function of each picture: a little rounding changes it by as little. A picture without ink,
    of one value or of one row stays as it is. From beyond an edge comes the ground.

    Args:
        pictures: (n, height, width, channels), from 0 to 1.

    Example:
        >>> upright(torch.eye(3, dtype=torch.float64)[None, ..., None])[0, ..., 0].round(decimals=9)
        tensor([[0., 1., 0.],
                [0., 1., 0.],
                [0., 1., 0.]], dtype=torch.float64)
    """
    slant, down, _ = _ink(pictures)
    rows = torch.arange(pictures.shape[1])
    return _read_rows(pictures, rows.expand(len(pictures), -1), slant * (rows - down))


def find_poses(pictures: Tensor) -> Tensor:
    """Return the pose (n, 3) of each picture: slant, in columns a row, and the whole rows and columns from the middle.

    Args:
        pictures: as of `upright`.

    Example:
        >>> picture = torch.zeros(1, 8, 8, 1, dtype=torch.float64)
        >>> picture[0, 1:4, 5] = 1.0
        >>> find_poses(picture)
        tensor([[ 0., -2.,  2.]], dtype=torch.float64)
    """
    height, width = pictures.shape[1:3]
    slant, down, across = _ink(pictures)
    middle = torch.cat([down - (height - 1) / 2, across - (width - 1) / 2], dim=1)
    return _within(torch.cat([slant, middle], dim=1), height, width)


def longest_pose(height: int, width: int) -> tuple[float, float, float]:
    """Return the largest numbers of a pose."""
    return STEEPEST, float(round(_FARTHEST * height)), float(round(_FARTHEST * width))


def remove_poses(pictures: Tensor, poses: Tensor) -> Tensor:
    """Move each picture's ink to the middle and take its slant away. From beyond an edge comes the ground.

    Args:
        pictures: (n, height, width, channels).
        poses: (n, 3) as of `find_poses`; other numbers are brought into their range.
    """
    height, width = pictures.shape[1:3]
    slant, down, right = _within(poses, height, width).split(1, dim=1)
    rows = torch.arange(height)
    return _read_rows(pictures, rows + down.long(), right + slant * (rows - (height - 1) / 2))


def apply_poses(pictures: Tensor, poses: Tensor) -> Tensor:
    """Slant each picture, and move it to its place: the inverse of `remove_poses`, but for what edges and interpolation
    lose.

    Args:
        pictures: (n, height, width, channels).
        poses: (n, 3) as of `find_poses`; other numbers are brought into their range.

    Example:
        >>> picture = torch.eye(9, dtype=torch.float64)[None, ..., None]
        >>> pose = find_poses(picture)
        >>> apply_poses(remove_poses(picture, pose), pose).equal(picture)
        True
    """
    height, width = pictures.shape[1:3]
    slant, down, right = _within(poses, height, width).split(1, dim=1)
    rows = torch.arange(height) - down
    return _read_rows(pictures, rows.long(), -right - slant * (rows - (height - 1) / 2))


def _ink(pictures: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the slant (n, 1) of each picture's ink, and the row and the column (n, 1) of its centre, which without ink is
    the middle."""
    _, height, width, channels = pictures.shape
    # Rows and columns from the middle, in halves.
    y, x = (torch.arange(1 - length, length, 2, dtype=torch.float64) for length in (height, width))
    y, x = y[:, None].expand(height, width), x.expand(height, width)
    # Sums come before any division: of multiples of a power of two they are exact, in whatever order they are taken.
    bits = _EXACT - math.ceil(math.log2(channels * height * width * max(height, width) ** 2))
    ink = (pictures - _ground(pictures)).abs_().sum(dim=3, dtype=torch.float64).mul_(2.0**bits).round_().flatten(1)
    moments = torch.stack([torch.ones_like(y), y, x, y * x, y * y], dim=2)
    total, down, across, both, square = (ink @ moments.flatten(0, 1)).split(1, dim=1)
    total = total.clamp(min=1.0)
    down, across = down / total, across / total
    together, tall = both / total - down * across, square / total - down * down
    slant = (together / tall.clamp(min=4.0 * _FLAT)).clamp(-STEEPEST, STEEPEST)
    found = slant, (down + (height - 1)) / 2.0, (across + (width - 1)) / 2.0
    return tuple(own.to(pictures.dtype) for own in found)


def _ground(pictures: Tensor) -> Tensor:
    """Return the median (n, 1, 1, channels) of the pixels at the edges."""
    n, _, _, channels = pictures.shape
    edges = [pictures[:, [0, -1]].reshape(n, -1, channels), pictures[:, :, [0, -1]].reshape(n, -1, channels)]
    # NumPy finds it in a third of torch's time.
    found = torch.cat(edges, dim=1).transpose(1, 2).contiguous()
    middle = (found.shape[2] - 1) // 2
    return torch.from_numpy(np.partition(found.numpy(), middle, axis=2)[..., middle])[:, None, None]


def _within(poses: Tensor, height: int, width: int) -> Tensor:
    slant, *place = poses.unbind(1)
    most, *far = longest_pose(height, width)
    moved = [at.clamp(-farthest, farthest).round() for at, farthest in zip(place, far, strict=True)]
    return torch.stack([slant.clamp(-most, most), *moved], dim=1)


def _read_rows(pictures: Tensor, rows: Tensor, shifts: Tensor) -> Tensor:
    """Read each row, between two pixels, from a row of the old picture, so many columns to the right; beyond is the ground.

    Args:
        pictures: (n, height, width, channels).
        rows: (n, height) the old row of each.
        shifts: (n, height) columns.
    """
    n, height, width, channels = pictures.shape
    whole = shifts.floor()
    part = (shifts - whole).to(pictures.dtype)[..., None]
    ground = _ground(pictures)
    # A row without ink lies below the others, and beside each there is room for whatever it is shifted by.
    wide = torch.zeros(n, height + 1, 3 * width + 2, channels, dtype=pictures.dtype)
    torch.sub(pictures, ground, out=wide[:, :height, width + 1 : 2 * width + 1])
    rows = rows.where((rows >= 0) & (rows < height), height)
    first = (torch.arange(n)[:, None] * (height + 1) + rows) * wide.shape[2]
    first = (first + whole.long().clamp(-width - 1, width) + width + 1) * channels
    # All pieces of as many numbers as a row has and one pixel: a view, of which only those are read.
    pieces = wide.view(-1).unfold(0, (width + 1) * channels, 1)
    read = pieces.index_select(0, first.view(-1)).view(n, height, -1)
    # Two products and a sum, each rounded by itself: `lerp` may round a number by its place in memory.
    between = (read[..., :-channels] * (1.0 - part)).add_(read[..., channels:].mul_(part))
    return between.view(n, height, width, channels).add_(ground).clamp_(0.0, 1.0)
