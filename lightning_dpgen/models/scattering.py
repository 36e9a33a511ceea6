"""Public features of pictures and series: lengths of waves at a few scales, of waves in these, and averages over places."""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.models.bases import unit_values

# By the number of axes: octaves of waves, steps of an axis that they see (a longer one is averaged first), and places of
# an axis over which features are averaged, at most.
_OCTAVES, _STEPS, _PLACES = {1: 4, 2: 2}, {1: 512, 2: 32}, {1: 64, 2: 7}
# Directions of a picture's waves in half a turn; even.
_ANGLES = 8
# Features of a record at most, whose second moments are decomposed in a quarter of a minute.
_MOST = 4000
# The width of the finest wave in steps, and its turn in a step.
_WIDTH, _TURN = 0.8, 0.75 * math.pi
# Numbers of records that are described at a time: so few that they stay in a processor's cache.
_AT_ONCE = 1 << 15
# Maps are multiples of 2^-19, and weights of 2^-16: two products with a map of at most sqrt 2 stay below 2^53.
_MAP_BITS, _WEIGHT_BITS = 19, 16


class Scattering:
    """The scattering transform of two orders (Bruna and Mallat 2013) of records whose units have axes.

    Features are averages over places of x, of ``|x * psi|`` for waves psi of a few octaves (and of eight directions, of a
    picture), and of ``||x * psi| * psi'|`` for each longer psi'. Channels are described one by one. Waves are separable, so
    each is two products with small matrices; ends are reflected.

    The features are public: they depend on the axes alone. Those of a record are an exact function of that record, whatever
    stands beside it: maps and weights are whole numbers, whose products are exact in float64, and all else is single
    additions, multiplications, divisions and square roots. They are multiples of `unit`, from -2 to 2.

    Args:
        layout: the layout of the records, whose units fill `axes` in C order.
        axes: (height, width, channels) of pictures, or (length, channels) of series, as `schema.axes`.

    Attributes:
        count: the number of features of a record.
        unit: 2^-19.

    Raises:
        ValueError: for axes that are neither, or that the units do not fill.

    Example:
        >>> import numpy as np
        >>> scattering = Scattering(Layout(units=64, levels=16), (8, 8, 1))
        >>> records = Encoded(np.arange(128, dtype=np.uint8).reshape(2, 64) % 17, np.zeros((2, 0), np.uint8))
        >>> scattering.count, scattering(records).shape
        (1296, torch.Size([2, 1296]))
    """

    unit = 2.0**-_MAP_BITS

    def __init__(self, layout: Layout, axes: tuple[int, ...]) -> None:
        if len(axes) not in (2, 3) or math.prod(axes) != layout.units:
            raise ValueError(f"axes={axes}: expected one or two and the channels, of {layout.units} units")
        *lengths, self._channels = axes
        kind = len(lengths)
        # A series is a picture of one row.
        self._layout, self._shape = layout, (1, *lengths) if kind == 1 else tuple(lengths)
        self._angles, octaves = (1 if kind == 1 else _ANGLES), _OCTAVES[kind]
        self._pairs = [(i, j) for j in range(octaves) for i in range(j)]
        maps = self._channels * (1 + octaves * self._angles + len(self._pairs) * self._angles**2)
        places = max(1, min(_PLACES[kind], int((_MOST / maps) ** (1 / kind))))
        seen = [min(length, _STEPS[kind]) for length in self._shape]
        self._places = tuple(min(places, -(-length // 2)) for length in seen)
        # The steps of the axes on which waves of an octave are written down.
        self._sizes = [tuple(map(max, self._places, (-(-length // 2**j) for length in seen))) for j in range(octaves)]
        self.count = maps * math.prod(self._places)

    def __call__(self, records: Encoded) -> Tensor:
        """Return the features (B, count) of records, in float64."""
        found = torch.empty(len(records), self.count, dtype=torch.float64)
        step = max(1, _AT_ONCE // self._layout.units)
        for start in range(0, len(records), step):
            rows = slice(start, min(start + step, len(records)))
            units = unit_values(records[rows], self._layout)
            # Each channel of a record is a picture of its own.
            pictures = units.view(len(units), -1, self._channels).transpose(1, 2).reshape(-1, *self._shape)
            found[rows] = self._described((pictures * 2.0**_MAP_BITS).round_()).reshape(len(units), -1)
        return found.mul_(self.unit)

    def _described(self, pictures: Tensor) -> Tensor:
        """Return the features (N, count / channels) of pictures (N, height, width), both in whole numbers."""
        if self._shape != self._sizes[0]:
            pictures = F.adaptive_avg_pool2d(pictures[:, None], self._sizes[0])[:, 0].round_()
        first = [_lengths(pictures, size, 2.0**j, self._angles) for j, size in enumerate(self._sizes)]
        found = [pictures[:, None], *first]
        for i, j in self._pairs:
            second = _lengths(first[i].flatten(0, 1), self._sizes[j], 2.0 ** (j - i), self._angles)
            found.append(second.view(len(pictures), -1, *self._sizes[j]))
        return torch.cat([self._averages(maps) for maps in found], dim=1).flatten(1)

    def _averages(self, maps: Tensor) -> Tensor:
        """Average maps (N, m, height, width) over places: (N, m, places)."""
        steps = zip(maps.shape[2:], self._places, strict=True)
        down, across = (_bump(length, places, 0.4 * length / places) for length, places in steps)
        return ((maps @ across).transpose(2, 3) @ down).mul_(4.0**-_WEIGHT_BITS).round_().flatten(2)


def _lengths(maps: Tensor, size: tuple[int, ...], scale: float, angles: int) -> Tensor:
    """Return ``|x * psi|`` (N, angles, *size) of maps x (N, height, width), for waves psi of a scale in all directions.

    Maps are whole numbers, before and after.
    """
    (height, width), (down, across), sigma, turn = maps.shape[1:], size, _WIDTH * scale, _TURN / scale
    # A wave less a bump has no mean, so that it does not see how bright a picture is.
    mean = math.exp(-((sigma * turn) ** 2) / 2)
    # Both products are of whole numbers, and what follows is one rounding of each number.
    bumps = mean * ((maps @ _bump(width, across, sigma)).transpose(1, 2) @ _bump(height, down, sigma))
    found: list[Tensor] = [bumps] * angles
    for angle in range(angles // 2 + 1):
        cosine, sine = math.cos(math.pi * angle / angles), math.sin(math.pi * angle / angles)
        rows = (maps @ _wave(width, across, sigma, turn * cosine)).transpose(1, 2)
        both = (rows @ _wave(height, down, sigma, turn * sine)).view(-1, 2, across, 2, down)
        (cc, cs), (sc, ss) = both[:, 0].unbind(2), both[:, 1].unbind(2)
        found[angle] = ((cc - ss - bumps).square() + (cs + sc).square()).sqrt()
        if 0 < angle < angles - angle:
            found[angles - angle] = ((cc + ss - bumps).square() + (sc - cs).square()).sqrt()
    return torch.stack(found, dim=1).mul_(4.0**-_WEIGHT_BITS).round_().transpose(2, 3)


def _bump(length: int, places: int, sigma: float) -> Tensor:
    """Return (length, places) whole weights of a Gaussian average about each of evenly spaced places."""
    return _windows(length, places, sigma, 0.0)[:, :places]


def _wave(length: int, places: int, sigma: float, turn: float) -> Tensor:
    """Return (length, 2 places) whole weights: the cosines of a wave within a Gaussian about each place, then its sines."""
    return _windows(length, places, sigma, turn)


@functools.lru_cache(maxsize=256)
def _windows(length: int, places: int, sigma: float, turn: float) -> Tensor:
    reach = math.ceil(4.0 * sigma)
    centres = (torch.arange(places, dtype=torch.float64) + 0.5) * (length / places) - 0.5
    steps = torch.arange(-reach - 1, length + reach + 1)
    away = steps - centres[:, None]
    weights = torch.exp(-away.square() / (2.0 * sigma**2)) * (away.abs() <= reach + 0.5)
    weights = weights / weights.sum(dim=1, keepdim=True)
    # Beyond its ends a record goes on as its mirror image.
    at = steps % (2 * length)
    at = torch.where(at < length, at, 2 * length - 1 - at)
    both = torch.cat([weights * torch.cos(turn * away), weights * torch.sin(turn * away)])
    whole = torch.zeros(2 * places, length, dtype=torch.float64).index_add_(1, at, both).mul_(2.0**_WEIGHT_BITS).round_()
    return whole.T.contiguous()
