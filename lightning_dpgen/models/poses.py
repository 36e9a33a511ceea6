"""Poses of pictures, which can be taken away and put back, and symmetries, after which a picture still shows the same.

A pose is how ink slants, and where it lies, in whole pixels. The ground is the median of the pixels at the edges, in each
channel, and ink is what differs from it. All of it is a function of each picture alone: the same to the last bit beside any
other pictures, since sums are of multiples of a power of two, in float64, which are exact in any order, and all that
follows is rounded number by number.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

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


# Ranges beyond which nothing of a picture is left, or nothing has changed.
_RANGES = {
    "turn": (0.0, 180.0), "shear": (0.0, 1.0), "scale": (0.0, 1.0), "shift": (0.0, 1.0), "elastic": (0.0, 1.0),
    "smooth": (0.02, 1.0),
}  # fmt: skip
# Waves of a smooth field with less than this part of the largest variance are left out.
_LEFT_OUT = 1e-3


@dataclass(frozen=True)
class Symmetries:
    """Small changes after which a picture still shows the same: knowledge of the kind of pictures, never read off records.

    Turn, shear, scale, shift and elastic field of each picture that is generated are drawn anew, from normal distributions
    of these standard deviations. With `upright`, records are measured without their slant, and the shear puts it back.

    Args:
        upright: whether records are measured without their slant; for pictures of writing, ink on a background of 0.
        turn: degrees of the turn.
        shear: sideways shift for each row of height, in pixels.
        scale: the logarithm of the change of height, and of that of width.
        shift: shift along each axis, as a part of the longer side.
        elastic: shift of a pixel along each axis, as a part of the longer side.
        smooth: the distance over which pixels move alike, as a part of the longer side.

    Raises:
        ValueError: for anything but finite numbers in range.

    Example:
        >>> pictures = torch.rand(3, 8, 8, 1, generator=torch.Generator().manual_seed(0))
        >>> changed = Symmetries(turn=10.0, elastic=0.02).applied(pictures, torch.Generator().manual_seed(1))
        >>> changed.shape, bool((changed >= 0).all() and (changed <= 1).all())
        (torch.Size([3, 8, 8, 1]), True)
    """

    upright: bool = False
    turn: float = 0.0
    shear: float = 0.0
    scale: float = 0.0
    shift: float = 0.0
    elastic: float = 0.0
    smooth: float = 0.15

    def __post_init__(self) -> None:
        if type(self.upright) is not bool:
            raise ValueError(f"upright={self.upright!r}: expected true or false")
        for field in fields(self)[1:]:
            value, (least, most) = getattr(self, field.name), _RANGES[field.name]
            if type(value) not in (int, float) or not least <= value <= most:
                raise ValueError(f"{field.name}={value!r}: expected a number from {least:g} to {most:g}")

    def applied(self, pictures: Tensor, generator: torch.Generator) -> Tensor:
        """Change each picture in its own way. From beyond an edge comes the value at the edge.

        Args:
            pictures: (n, height, width, channels) from 0 to 1, as units fill them.
            generator: generator of the changes; every picture takes the same number of draws.
        """
        n, height, width, _ = pictures.shape
        side = max(height, width)
        turn, shear, *scales, down, right = torch.randn(6, n, 1, 1, generator=generator).unbind()
        turn, (tall, wide) = math.radians(self.turn) * turn, [torch.exp(self.scale * scale) for scale in scales]
        # Each pixel's value comes from a place of the old picture, measured from its middle.
        y = torch.arange(height).sub((height - 1) / 2)[:, None]
        x = torch.arange(width).sub((width - 1) / 2)
        rows = tall * (turn.cos() * y - turn.sin() * x) + self.shift * side * down
        columns = wide * (turn.cos() * x + turn.sin() * y) + self.shear * shear * rows + self.shift * side * right
        if self.elastic:
            rows += self.elastic * side * _smooth_fields(n, height, width, self.smooth * side, generator)
            columns += self.elastic * side * _smooth_fields(n, height, width, self.smooth * side, generator)
        return _taken_from(pictures, rows + (height - 1) / 2, columns + (width - 1) / 2)


# Shipped sets, by name: for handwriting, and for most other pictures.
SETS = {
    "handwriting": Symmetries(True, turn=6.0, shear=0.2, scale=0.1, shift=0.025, elastic=0.036, smooth=0.14),
    "small": Symmetries(turn=4.0, shear=0.05, scale=0.05, shift=0.02, elastic=0.02, smooth=0.14),
}


def _taken_from(pictures: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Read each pixel, between four pixels, at a place (n, height, width) of the old picture."""
    height, width = pictures.shape[1:3]
    places = torch.stack([(2.0 * columns + 1.0) / width - 1.0, (2.0 * rows + 1.0) / height - 1.0], dim=-1)
    channels_first = pictures.permute(0, 3, 1, 2)
    found = functional.grid_sample(channels_first, places, padding_mode="border", align_corners=False)
    return found.permute(0, 2, 3, 1)


def _smooth_fields(n: int, height: int, width: int, smooth: float, generator: torch.Generator) -> Tensor:
    """Draw fields (n, height, width) of variance 1, with a correlation exp(-r^2 / (2 smooth^2)) over a distance r."""
    tall, wide = _slow_waves(height, smooth), _slow_waves(width, smooth)
    return tall @ torch.randn(n, tall.shape[1], wide.shape[1], generator=generator) @ wide.T


@functools.lru_cache(maxsize=8)  # asked for again by each part of a sample
def _slow_waves(length: int, smooth: float) -> Tensor:
    """Return a factor (length, r) of that correlation along an axis: its product with its transpose."""
    places = torch.arange(length, dtype=torch.float64)
    values, waves = torch.linalg.eigh(torch.exp(-(places[:, None] - places).square() / (2.0 * smooth**2)))
    kept = values > _LEFT_OUT * values.max()
    waves = waves[:, kept] * values[kept].sqrt()
    return (waves / torch.linalg.vector_norm(waves, dim=1, keepdim=True)).float()
