"""Declared symmetries of pictures: by what public changes a picture stays what it shows."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional

# Beyond them nothing of a picture is left, or is as it was.
_RANGES = {
    "turn": (0.0, 180.0), "shear": (0.0, 1.0), "scale": (0.0, 1.0), "shift": (0.0, 1.0), "elastic": (0.0, 1.0),
    "smooth": (0.02, 1.0),
}  # fmt: skip
# The steepest slant that is taken away, and a height of ink (its variance, in rows) below which there is hardly any.
_STEEPEST, _FLAT = 1.0, 0.5
# Of the variance of a smooth field, what is left out of its slow waves.
_LEFT_OUT = 1e-3


@dataclass(frozen=True)
class Symmetries:
    """Small changes that leave a picture what it is: knowledge about the kind of pictures, never read off the records.

    Turn, shear, scale, shift and elastic field of each picture that is generated are drawn anew, from normal distributions
    of these standard deviations. With `upright` records are measured without their slant, and the shear puts it back.

    Args:
        upright: whether records are looked at without their slant; for pictures of writing, ink on a background of 0.
        turn: in degrees.
        shear: sideways, a row for each row of height.
        scale: of height and of width, each: of the logarithm.
        shift: along each axis, as a part of the longer side.
        elastic: how far a pixel moves along each axis, as a part of the longer side.
        smooth: over which distance pixels move alike, as a part of the longer side.

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
        """The pictures, each changed in its own way. What comes in from beyond an edge is what is there.

        Args:
            pictures: (n, height, width, channels) from 0 to 1, as units fill them.
            generator: of the changes; of each picture as many numbers.
        """
        n, height, width, _ = pictures.shape
        side = max(height, width)
        turn, shear, *scales, down, right = torch.randn(6, n, 1, 1, generator=generator).unbind()
        turn, (tall, wide) = math.radians(self.turn) * turn, [torch.exp(self.scale * scale) for scale in scales]
        # For each pixel, from where its value comes: by how much off the middle.
        y = torch.arange(height).sub((height - 1) / 2)[:, None]
        x = torch.arange(width).sub((width - 1) / 2)
        rows = tall * (turn.cos() * y - turn.sin() * x) + self.shift * side * down
        columns = wide * (turn.cos() * x + turn.sin() * y) + self.shear * shear * rows + self.shift * side * right
        if self.elastic:
            rows += self.elastic * side * _smooth_fields(n, height, width, self.smooth * side, generator)
            columns += self.elastic * side * _smooth_fields(n, height, width, self.smooth * side, generator)
        return _taken_from(pictures, rows + (height - 1) / 2, columns + (width - 1) / 2, "border")


# Sets that are shipped, by name: what is known of handwriting, and of most pictures.
SETS = {
    "handwriting": Symmetries(True, turn=6.0, shear=0.2, scale=0.1, shift=0.025, elastic=0.036, smooth=0.14),
    "small": Symmetries(turn=4.0, shear=0.05, scale=0.05, shift=0.02, elastic=0.02, smooth=0.14),
}


def upright(pictures: Tensor) -> Tensor:
    """Each picture sheared so that its ink leans neither way: its rows shifted so that columns and rows of ink, about their
    centre, are uncorrelated.

    A function of each picture alone, and continuous: a little rounding changes what comes out by as little. A picture
    without ink, of one value or of one row stays as it is. From beyond an edge comes 0.

    Args:
        pictures: (n, height, width, channels), 0 or more, 0 where there is no ink.

    Example:
        >>> upright(torch.eye(3, dtype=torch.float64)[None, ..., None])[0, ..., 0].round(decimals=9)
        tensor([[0., 1., 0.],
                [0., 1., 0.],
                [0., 1., 0.]], dtype=torch.float64)
    """
    ink = pictures.sum(dim=3)
    ink = ink / ink.sum(dim=(1, 2), keepdim=True).clamp(min=torch.finfo(ink.dtype).tiny)
    y = torch.arange(ink.shape[1], dtype=ink.dtype)[:, None]
    x = torch.arange(ink.shape[2], dtype=ink.dtype)
    y = y - (ink * y).sum(dim=(1, 2), keepdim=True)
    about_x = x - (ink * x).sum(dim=(1, 2), keepdim=True)
    together, height = ((ink * y * other).sum(dim=(1, 2), keepdim=True) for other in (about_x, y))
    slant = (together / height.clamp(min=_FLAT)).clamp(-_STEEPEST, _STEEPEST)
    rows = torch.arange(ink.shape[1], dtype=ink.dtype)[:, None].expand_as(ink)
    return _taken_from(pictures, rows, x + slant * y, "zeros")


def _taken_from(pictures: Tensor, rows: Tensor, columns: Tensor, beyond: str) -> Tensor:
    """Each pixel as found, between four pixels, at (n, height, width) places of the old picture."""
    height, width = pictures.shape[1:3]
    places = torch.stack([(2.0 * columns + 1.0) / width - 1.0, (2.0 * rows + 1.0) / height - 1.0], dim=-1)
    channels_first = pictures.permute(0, 3, 1, 2)
    found = functional.grid_sample(channels_first, places, padding_mode=beyond, align_corners=False)
    return found.permute(0, 2, 3, 1)


def _smooth_fields(n: int, height: int, width: int, smooth: float, generator: torch.Generator) -> Tensor:
    """(n, height, width) of variance 1, whose correlation over a distance r is exp(-r^2 / (2 smooth^2))."""
    tall, wide = _slow_waves(height, smooth), _slow_waves(width, smooth)
    return tall @ torch.randn(n, tall.shape[1], wide.shape[1], generator=generator) @ wide.T


@functools.lru_cache(maxsize=8)  # asked for again by each part of a sample
def _slow_waves(length: int, smooth: float) -> Tensor:
    """(length, r), of which the outer product is that correlation along an axis."""
    places = torch.arange(length, dtype=torch.float64)
    values, waves = torch.linalg.eigh(torch.exp(-(places[:, None] - places).square() / (2.0 * smooth**2)))
    kept = values > _LEFT_OUT * values.max()
    waves = waves[:, kept] * values[kept].sqrt()
    return (waves / torch.linalg.vector_norm(waves, dim=1, keepdim=True)).float()
