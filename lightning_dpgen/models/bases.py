"""Public bases and public features in which a record is described."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import scipy.fft
import scipy.sparse
import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.sampling.csr import merge_entries
from lightning_dpgen.sampling.fixed_point import DOUBLE, Rows, product

# Values without levels are seen as multiples of 2^-22, which float32 holds, and leave 25 bits to the numbers of a wave of
# 336 readings.
STEPS = 2.0**22
# Vectors are rounded to multiples of 2^-24, or finer ones.
_FINE = 24


@dataclass(frozen=True)
class _Limb:
    """A matrix of whole multiples of a unit, a power of two."""

    whole: Tensor
    unit: float


class Basis:
    """Orthonormal vectors in the space of a record's numbers: its coordinates are no longer than the record.

    Args:
        vectors: (size, units); or (size, width), of units and of choices as one-hot.

    Attributes:
        steps: the steps between 0 and 1 in which values are seen.
        largest: no value is larger in size.

    Raises:
        ValueError: for vectors of another length, or vectors that are not orthonormal.

    Example:
        >>> layout = Layout(units=4, levels=2)
        >>> halves = Basis(layout, torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]) / 2**0.5)
        >>> halves.coordinates(Encoded(np.array([[2, 2, 0, 1]], np.uint8), np.zeros((1, 0), np.uint8)))
        tensor([[1.4142, 0.3536]], dtype=torch.float64)
        >>> table = Layout(units=0, groups=(2, 3))
        >>> Basis(table, torch.eye(5)).coordinates(Encoded(np.zeros((1, 0), np.uint8), np.array([[1, 0]])))
        tensor([[0., 1., 1., 0., 0.]], dtype=torch.float64)
    """

    def __init__(self, layout: Layout, vectors: Tensor) -> None:
        vectors = torch.as_tensor(vectors, dtype=torch.float64)
        if vectors.dim() != 2 or vectors.shape[1] not in (layout.units, layout.width):
            raise ValueError(
                f"a basis of shape {tuple(vectors.shape)}: expected (size, {layout.units}), all units, or (size, "
                f"{layout.width}), units and choices as one-hot"
            )
        if len(vectors) and not (vectors @ vectors.T - torch.eye(len(vectors), dtype=torch.float64)).abs().max() <= 1e-6:
            raise ValueError("a basis whose vectors are not orthonormal: expected length 1 and right angles")
        self.vectors, self.size, self.layout = vectors, len(vectors), layout
        self.steps, self.largest = float(layout.levels or STEPS), 1.0

    @property
    def matrix(self) -> Tensor:
        """The matrix (size, units or width) by which coordinates follow from values."""
        return self.vectors

    @property
    def offset(self) -> Tensor:
        """The coordinates (size,) of values that are all 0."""
        return torch.zeros(self.size, dtype=torch.float64)

    def coordinates(self, records: Encoded) -> Tensor:
        """Return the coordinates (B, size) of records, in float64, with units as numbers from 0 to 1.

        Values are whole numbers on the way. So is the matrix, and where that would be coarser than 2^-24 it is a sum of
        several, its limbs. Products of these are exact, and are added up number by number. So each record's coordinates
        are a function of it alone, bit for bit.
        """
        values, (first, *others) = self.multiples(records), self._limbs
        coordinates = product(values, first.whole)
        for limb in others:
            # Products with a power of two round nothing, so it does not matter if they are fused with the sum.
            coordinates.add_(product(values, limb.whole), alpha=limb.unit / first.unit)
        return coordinates.mul_(first.unit / self.steps).add_(self.offset)

    @functools.cached_property
    def _limbs(self) -> list[_Limb]:
        """The matrices (units or width, size) whose sum the matrix is.

        Each is as fine as exact products with multiples allow. The limbs round numbers by half, so products of fewer than
        2^21 numbers stay below 2^53.
        """
        limbs, rest, bits = [], self.matrix.T, 0
        while not limbs or (bits < _FINE and rest.any()):
            longest = max(rest.abs().sum(dim=0).tolist(), default=1.0)
            more = math.floor(DOUBLE - 1 - math.log2(longest * self.largest * self.steps))
            whole = (rest * 2.0**more).round_()
            rest, bits = rest * 2.0**more - whole, bits + more
            limbs.append(_Limb(whole, 2.0**-bits))
        return limbs

    def multiples(self, records: Encoded) -> Rows:
        """Return values (B, units or width), which the matrix multiplies, in whole numbers of steps, float64.

        They are sparse where units are.
        """
        units, written_out = records.units, self.vectors.shape[1] > self.layout.units
        if scipy.sparse.issparse(units):
            values = merge_entries(units).astype(np.float64)
            levels = self.layout.levels or 1
            values.data = np.rint(np.clip(np.nan_to_num(values.data), 0.0, levels) * (self.steps / levels))
            if not written_out:
                return values
            return scipy.sparse.hstack([values, (_one_hot(records, self.layout) * self.steps).numpy()], format="csr")
        values = torch.from_numpy(units.astype(np.float64))
        # Products are exact up to here.
        if self.layout.levels is None:
            values.nan_to_num_(0.0).clamp_(0.0, self.largest).mul_(self.steps).round_()
        else:
            values.clamp_(0.0, self.steps)
        return torch.cat([values, _one_hot(records, self.layout) * self.steps], dim=1) if written_out else values

    def values(self, records: Encoded) -> Tensor:
        """Return values (B, units or width), from 0 to 1, in float64."""
        found = self.multiples(records)
        return (found if isinstance(found, Tensor) else torch.from_numpy(found.toarray())).div(self.steps)


def unit_values(records: Encoded, layout: Layout) -> Tensor:
    """Return units (B, units) as float64 numbers from 0 to 1, where those beyond count as 0 or 1, and NaN as 0."""
    units = records.units
    dense = units.toarray() if scipy.sparse.issparse(units) else units
    return torch.from_numpy(dense.astype(np.float64)).div_(layout.levels or 1).nan_to_num_(0.0).clamp_(0.0, 1.0)


def _one_hot(records: Encoded, layout: Layout) -> Tensor:
    """Return choices as one-hot (B, width - units), in float64."""
    found = torch.zeros(len(records), layout.width - layout.units, dtype=torch.float64)
    places = records.codes.astype(np.int64) + np.array([span.start - layout.units for span in layout.spans], dtype=np.int64)
    return found.scatter_(1, torch.from_numpy(places), 1.0)


def cosines(layout: Layout, shape: tuple[int, ...], size: int) -> Basis:
    """Return the `size` slowest waves of a picture or a series (the discrete cosine transform, type II).

    Args:
        layout: the layout of the records, whose units fill `shape` in C order.
        shape: lengths of the axes along which values are smooth, and last a number of channels, which are kept apart.
        size: the number of waves, of all channels together; at most the units.

    Example:
        >>> cosines(Layout(units=6), (6, 1), 2).vectors[0].mul(6**0.5).round(decimals=6)
        tensor([1., 1., 1., 1., 1., 1.], dtype=torch.float64)
    """
    return _cosines(layout, tuple(shape), size)


@functools.lru_cache(maxsize=8)  # asked for again by each part of a sample
def _cosines(layout: Layout, shape: tuple[int, ...], size: int) -> Basis:
    *axes, channels = shape
    if not 1 <= size <= layout.units:
        raise ValueError(f"size={size}: expected a whole number from 1 to {layout.units}, the units of a record")
    # Half turns of each wave in a step along the axes; slow waves first.
    turns = np.meshgrid(*[np.arange(length) / length for length in axes], indexing="ij")
    turns = np.stack(turns, axis=-1).reshape(-1, len(axes))
    slow = np.argsort(np.square(turns).sum(axis=1).round(9), kind="stable")[: -(-size // channels)]
    waves = np.zeros((len(slow), *axes))
    waves.reshape(len(slow), -1)[np.arange(len(slow)), slow] = 1.0
    waves = scipy.fft.idctn(waves, type=2, norm="ortho", axes=tuple(range(1, len(axes) + 1))).reshape(len(slow), -1)
    vectors = np.einsum("su,cd->scud", waves, np.eye(channels)).reshape(len(slow) * channels, layout.units)[:size]
    return Basis(layout, torch.from_numpy(vectors))


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
        features = torch.empty(len(records), self.count, dtype=torch.float64)
        step = max(1, _AT_ONCE // self._layout.units)
        for start in range(0, len(records), step):
            rows = slice(start, min(start + step, len(records)))
            units = unit_values(records[rows], self._layout)
            # Each channel of a record is a picture of its own.
            pictures = units.view(len(units), -1, self._channels).transpose(1, 2).reshape(-1, *self._shape)
            features[rows] = self._described((pictures * 2.0**_MAP_BITS).round_()).reshape(len(units), -1)
        return features.mul_(self.unit)

    def _described(self, pictures: Tensor) -> Tensor:
        """Return the features (N, count / channels) of pictures (N, height, width), both in whole numbers."""
        if self._shape != self._sizes[0]:
            pictures = F.adaptive_avg_pool2d(pictures[:, None], self._sizes[0])[:, 0].round_()
        first = [_lengths(pictures, size, 2.0**j, self._angles) for j, size in enumerate(self._sizes)]
        orders = [pictures[:, None], *first]
        for i, j in self._pairs:
            second = _lengths(first[i].flatten(0, 1), self._sizes[j], 2.0 ** (j - i), self._angles)
            orders.append(second.view(len(pictures), -1, *self._sizes[j]))
        return torch.cat([self._averages(maps) for maps in orders], dim=1).flatten(1)

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
    maps_by_angle: list[Tensor] = [bumps] * angles
    for angle in range(angles // 2 + 1):
        cosine, sine = math.cos(math.pi * angle / angles), math.sin(math.pi * angle / angles)
        rows = (maps @ _wave(width, across, sigma, turn * cosine)).transpose(1, 2)
        both = (rows @ _wave(height, down, sigma, turn * sine)).view(-1, 2, across, 2, down)
        (cc, cs), (sc, ss) = both[:, 0].unbind(2), both[:, 1].unbind(2)
        maps_by_angle[angle] = ((cc - ss - bumps).square() + (cs + sc).square()).sqrt()
        if 0 < angle < angles - angle:
            maps_by_angle[angles - angle] = ((cc + ss - bumps).square() + (sc - cs).square()).sqrt()
    return torch.stack(maps_by_angle, dim=1).mul_(4.0**-_WEIGHT_BITS).round_().transpose(2, 3)


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
