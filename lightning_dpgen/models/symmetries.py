"""Declared symmetries of pictures: public changes after which a picture still shows the same."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional

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
