"""Public bases in which a record is described."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import scipy.fft
import scipy.sparse
import torch
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
        found = product(values, first.whole)
        for limb in others:
            # Products with a power of two round nothing, so it does not matter if they are fused with the sum.
            found.add_(product(values, limb.whole), alpha=limb.unit / first.unit)
        return found.mul_(first.unit / self.steps).add_(self.offset)

    @functools.cached_property
    def _limbs(self) -> list[_Limb]:
        """The matrices (units or width, size) whose sum the matrix is.

        Each is as fine as exact products with multiples allow. The limbs round numbers by half, so products of fewer than
        2^21 numbers stay below 2^53.
        """
        found, rest, bits = [], self.matrix.T, 0
        while not found or (bits < _FINE and rest.any()):
            longest = max(rest.abs().sum(dim=0).tolist(), default=1.0)
            more = math.floor(DOUBLE - 1 - math.log2(longest * self.largest * self.steps))
            whole = (rest * 2.0**more).round_()
            rest, bits = rest * 2.0**more - whole, bits + more
            found.append(_Limb(whole, 2.0**-bits))
        return found

    def multiples(self, records: Encoded) -> Rows:
        """Return values (B, units or width), which the matrix multiplies, in whole numbers of steps, float64.

        They are sparse where units are.
        """
        units, written_out = records.units, self.vectors.shape[1] > self.layout.units
        if scipy.sparse.issparse(units):
            found = merge_entries(units).astype(np.float64)
            levels = self.layout.levels or 1
            found.data = np.rint(np.clip(np.nan_to_num(found.data), 0.0, levels) * (self.steps / levels))
            if not written_out:
                return found
            return scipy.sparse.hstack([found, (_one_hot(records, self.layout) * self.steps).numpy()], format="csr")
        found = torch.from_numpy(units.astype(np.float64))
        # Products are exact up to here.
        if self.layout.levels is None:
            found.nan_to_num_(0.0).clamp_(0.0, self.largest).mul_(self.steps).round_()
        else:
            found.clamp_(0.0, self.steps)
        return torch.cat([found, _one_hot(records, self.layout) * self.steps], dim=1) if written_out else found

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
