"""Feature maps of the private split: each record becomes a vector of norm 1 at most, whose sums are exact.

The last map takes the few directions in which features vary most, found from their noisy second moments.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import scipy.sparse
import torch
from torch import Tensor

from lightning_dpgen.passes.checksummed_file import BlockFiles
from lightning_dpgen.passes.store_slices import ROWS, store_slices
from lightning_dpgen.sampling.as_store import store_of
from lightning_dpgen.sampling.fixed_point import DOUBLE, SINGLE, Grid, Rows, lengths, product
from lightning_dpgen.sampling.stores import Store

# No feature vector is longer, as computed in float32.
FEATURE_NORM = 1.0 + 1e-5
KERNELS = ("rbf", "laplacian")
# A feature is a whole number of at most 13 bits times a unit, so the float32 sum of 2^11 of them is exact.
LARGEST, BLOCK = 2**13, 2**11
# Second moments are those of multiples of so many units.
COARSER = 2**5
_ROWS = 2**8
# A kernel sees records as multiples of 2^-12 up to 1024; they are encoded between 0 and 1.
_GRID = Grid(2.0**-12, bits=22)
# A sum over all columns of at most so many bits leaves 12 bits of float32 to a frequency.
_SMALL = 12
# A turn of the circle is divided into 2^16 angles, and each has its cosine here.
_TURN = 2**16
_COSINES = (LARGEST * torch.cos(torch.arange(_TURN, dtype=torch.float64) * (2.0 * math.pi / _TURN))).trunc_().float()
# Features are cut to 8 bits: a float32 sum of 2^8 products of two of them is exact.
_MOMENT_ROWS = 2**8


class Features(ABC):
    """A public map from records to vectors of norm `FEATURE_NORM` at most.

    Each number is a multiple of `unit`, cut towards 0, so that norms never grow. It is computed in whole numbers
    (`sampling/fixed_point.py`) and so from its own record alone: sums do not depend on the order of records, and another
    record changes them by its own features and not by the rounding of others.

    Attributes:
        d: the number of features.
        unit: the number that a multiple of 1 stands for.
    """

    d: int
    unit: float

    def __call__(self, records: Tensor) -> Tensor:
        """Map records (B, m) to features (B, d), in float32."""
        store = store_of(records)
        return self._multiples(store.stretch(slice(0, len(store))), store) * self.unit

    def multiples(self, store: Store, within: slice | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Go through records: give the place of each block, and its multiples (B, d) of `unit`, whole, in float32."""
        within = within or slice(0, len(store))
        # A few dense rows at a time stay in the processor's cache.
        step = _ROWS if isinstance(store.stretch(slice(0, 0)), Tensor) else BLOCK
        for rows in _cut(within):
            parts = (slice(first, min(first + step, rows.stop)) for first in range(rows.start, rows.stop, step))
            yield rows, torch.cat([self._multiples(store.stretch(part), store) for part in parts])

    @abstractmethod
    def _multiples(self, records: Rows, store: Store) -> Tensor:
        """Return the multiples (B, d) of records (B, m), a stretch of the store."""


class FourierFeatures(Features):
    """``z(x) = [cos(W x), sin(W x)] / sqrt(d/2)`` with random frequencies W: norm 1 for every record.

    Their inner products estimate a kernel (Rahimi and Recht 2007): with rows of W from N(0, 2 gamma I) the Gaussian
    ``exp(-gamma |x - y|_2^2)``, from a Cauchy distribution of scale gamma the Laplacian ``exp(-gamma |x - y|_1)``. Pairing
    cosine and sine makes the norm 1 for each drawn W; DPGM's single cosines ``sqrt(2/d) cos(W x + b)`` reach sqrt(2), and
    are shortened to 1 (docs/guarantees/sums.md, "Features").

    Args:
        scale: (m,) public factor of each column before the kernel; a label may weigh more than a pixel.
        gamma: kernel width parameter.
        generator: public generator of W.
        kernel: ``rbf`` (Gaussian) or ``laplacian``.
        paired: True for cosines and sines of d/2 frequencies, False for the cosines of d.

    Raises:
        ValueError: if d is not positive (and even, for pairs), gamma is not positive, the kernel is another, or the scale
            is not finite.

    Example:
        >>> features = FourierFeatures(torch.ones(3), d=8, gamma=0.5, generator=torch.Generator().manual_seed(0))
        >>> bool((features(torch.rand(5, 3)).norm(dim=1) <= FEATURE_NORM).all())
        True
    """

    def __init__(
        self,
        scale: Tensor,
        d: int,
        gamma: float,
        generator: torch.Generator,
        *,
        kernel: str = "rbf",
        paired: bool = True,
    ) -> None:
        if paired and (d < 2 or d % 2):
            raise ValueError(f"d={d}: expected an even number, 2 or more (cosines and sines come in pairs)")
        if d < 1:
            raise ValueError(f"d={d}: expected 1 or more")
        if not gamma > 0:
            raise ValueError(f"gamma={gamma}: expected a positive number")
        if kernel not in KERNELS:
            raise ValueError(f"kernel={kernel!r}: expected {' or '.join(KERNELS)}")
        self.d, self.unit = d, math.sqrt(2.0 / d) / LARGEST
        self._paired = paired
        drawn = torch.empty(len(scale), d // 2 if paired else d, dtype=torch.float32)
        if kernel == "rbf":
            drawn.normal_(generator=generator).mul_(math.sqrt(2.0 * gamma))
        else:
            drawn.cauchy_(generator=generator).mul_(gamma)
        self._turns = drawn.double() * scale.double()[:, None] / (2.0 * math.pi)
        if not self._turns.isfinite().all():
            raise ValueError("scale: expected finite numbers, a weight for each column")
        self._whole = {_GRID: _whole_turns(self._turns, _GRID)}
        self._phases = None if paired else (_TURN * torch.rand(d, generator=generator)).long()

    def _multiples(self, records: Rows, store: Store) -> Tensor:
        grid = Grid.of(store, _GRID)
        if grid not in self._whole:
            self._whole[grid] = _whole_turns(self._turns, grid)
        frequencies, fine = self._whole[grid]
        angles = product(grid(records, frequencies.dtype), frequencies)
        angles = angles.to(torch.int32 if angles.dtype == torch.float32 else torch.int64) >> fine
        # Whole turns are cut off, also from angles below 0.
        if self._paired:
            angles = torch.cat([angles, angles - _TURN // 4], dim=1).bitwise_and_(_TURN - 1)
            return _COSINES.index_select(0, angles.view(-1)).view(angles.shape)
        cosines = _COSINES[(angles + self._phases) & (_TURN - 1)].double()
        norms = cosines.square().sum(dim=1, keepdim=True).sqrt_().mul_(self.unit)
        # A vector within norm 1 stays as it is.
        return cosines.div_(norms.clamp_(min=1.0)).trunc_().float()


def _whole_turns(frequencies: Tensor, grid: Grid) -> tuple[Tensor, int]:
    """Return frequencies as whole numbers, and by how many bits they are finer than an angle of the table.

    They are as fine as exact products with records allow: in float32, which is twice as fast, where few columns of small
    multiples leave enough bits, otherwise in float64. Records are whole multiples, so whole turns of a frequency have no
    effect.
    """
    turns = frequencies * grid.unit
    longest = float(turns.abs().sum(dim=0).max()) if len(turns) else 0.0
    room = DOUBLE - 1 - grid.bits - math.log2(_TURN) - math.log2(max(longest, 2.0**-40))
    if room < 0.0 and len(turns) > 2.0 ** (DOUBLE - grid.bits) / _TURN:
        raise ValueError(f"frequencies of {longest / grid.unit:.0e} turns: expected a smaller gamma or scale of columns")
    few = grid.bits + math.log2(max(len(turns), 1)) <= _SMALL and room >= DOUBLE - SINGLE
    fine = int(min(room - (DOUBLE - SINGLE) if few else max(room, 0.0), 24.0))
    whole = (torch.remainder(turns + 0.5, 1.0) - 0.5 if room < 0.0 else turns) * (_TURN * 2.0**fine)
    return whole.round_().to(torch.float32 if few else torch.float64), fine


class IdentityFeatures(Features):
    """The records themselves, shortened to a length and divided by it: k-means without a kernel.

    Args:
        scale: (m,) public factor of each column, 0 or more.
        radius: L2 bound that records are shortened to.

    Raises:
        ValueError: if the radius is not positive.

    Example:
        >>> IdentityFeatures(torch.ones(2), radius=2.0)(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
        tensor([[0.5000, 0.0000],
                [0.5000, 0.5000]])
    """

    def __init__(self, scale: Tensor, radius: float) -> None:
        if not radius > 0:
            raise ValueError(f"radius={radius}: expected a positive number")
        if not scale.isfinite().all():
            raise ValueError("scale: expected finite numbers, a weight for each column")
        self.d, self.unit = len(scale), 1.0 / LARGEST
        self._factors = (scale / radius).float()
        self._grid = Grid.of_squares(len(scale), max(1.0, float(self._factors.abs().max())))

    def _multiples(self, records: Rows, store: Store) -> Tensor:
        if isinstance(records, Tensor):
            unit = 1.0 if store.steps is None else store.steps.unit
            whole = self._grid(records.float() * (unit * self._factors))
            dense = whole
        else:
            whole = self._grid(records @ scipy.sparse.diags_array(self._factors.numpy(), format="csr"))
            dense = torch.from_numpy(whole.toarray())
        norms = lengths(whole).mul_(self._grid.unit).clamp_(min=1.0)
        return (dense * (LARGEST * self._grid.unit / norms)[:, None]).trunc_().float()


class KeptFeatures:
    """The features of records: kept where there is room, made anew for each pass where not.

    They are `Keyed` blocks of `FeatureBlock`. The choice changes the time that it takes, and no number: multiples of the
    unit are kept exactly. What is kept in memory stays in its process, and what is kept in files is for all processes.

    Args:
        store: the records, those of this rank where there are several. Private.
        room: bytes that may be used.
        rows: of a block, a multiple of `BLOCK`.
        files: keep them instead of memory; None for memory.

    Attributes:
        blocks: the positions of each block, by its key.
    """

    def __init__(
        self, features: Features, store: Store, room: float, rows: int = ROWS, files: BlockFiles | None = None
    ) -> None:
        self.features, self._store = features, store
        self.d, self.unit = features.d, features.unit
        self.blocks = store_slices(len(store), rows)
        numbers = len(store) * features.d
        kind = torch.float32 if 4 * numbers <= room else torch.int16 if 2 * numbers <= room else None
        self._files = None if kind is None else files
        self._kept = None if kind is None or files else torch.empty(len(store), features.d, dtype=kind)
        self._filled: set[int] = set()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": None, "_filled": set()}

    @property
    def unit_of_moments(self) -> float:
        """The number that a multiple of 1 stands for in second moments (`feature_moments`)."""
        return (COARSER * self.unit) ** 2

    @property
    def keys(self) -> list[str]:
        """The names of the blocks."""
        return list(self.blocks)

    def read(self, key: str) -> FeatureBlock:
        """Return the features of a block."""
        return FeatureBlock(self, self.blocks[key])

    def __len__(self) -> int:
        return len(self._store)

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        """Give the place of each few records, and their multiples (B, d) of the unit, not to be changed."""
        for within in self.blocks.values():
            yield from self.within(within)

    def within(self, block: slice) -> Iterator[tuple[slice, Tensor]]:
        """Give the same for the records of one block."""
        if block.start in self._filled:
            for rows in _cut(block):
                yield rows, self._kept[rows].to(torch.float32)
            return
        if self._files is not None:
            yield from self._of_file(block, self._files)
            return
        for rows, some in self.features.multiples(self._store, block):
            if self._kept is not None:
                self._kept[rows] = some
            yield rows, some
        if self._kept is not None:
            self._filled.add(block.start)

    def _of_file(self, block: slice, files: BlockFiles) -> Iterator[tuple[slice, Tensor]]:
        """Give the same, and write the file of the block where it is not there."""
        features = files.read(block.start)
        if features is None:
            parts = [some.to(torch.int16) for _, some in self.features.multiples(self._store, block)]
            features = torch.cat(parts).numpy()
            files.write(block.start, features)
        whole = torch.from_numpy(features)
        for rows in _cut(block):
            yield rows, whole[rows.start - block.start : rows.stop - block.start].to(torch.float32)


@dataclass(frozen=True, eq=False, repr=False)
class FeatureBlock:
    """The features of the records of one block, a few at a time. Private."""

    kept: KeptFeatures
    rows: slice

    @property
    def d(self) -> int:
        """The number of features."""
        return self.kept.d

    @property
    def unit(self) -> float:
        """The number that a multiple of 1 stands for."""
        return self.kept.unit

    def __len__(self) -> int:
        return self.rows.stop - self.rows.start

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        """Give the place within the block of each few records, and their multiples."""
        for rows, some in self.kept.within(self.rows):
            yield slice(rows.start - self.rows.start, rows.stop - self.rows.start), some


def _cut(within: slice) -> Iterator[slice]:
    return (slice(at, min(at + BLOCK, within.stop)) for at in range(within.start, within.stop, BLOCK))


def feature_moments(kept: KeptFeatures | FeatureBlock) -> dict[str, Tensor]:
    """Sum z and z z^T over the features z of all records, as ``sum`` (d,) and ``moments`` (d, d), int64.

    They are multiples of ``kept.unit`` and of `KeptFeatures.unit_of_moments`. For the moments, features are first cut to
    8 bits, towards 0, so that a record's part does not grow by it.
    """
    total = torch.zeros(kept.d, dtype=torch.float64)
    moments = torch.zeros(kept.d, kept.d, dtype=torch.float64)
    for _, block in kept:
        total += block.sum(dim=0)
        for rows in (block / COARSER).trunc_().split(_MOMENT_ROWS):
            moments += rows.T @ rows
    return {"sum": total.to(torch.int64), "moments": moments.to(torch.int64)}


def leading(mean: Tensor, moments: Tensor, dimensions: int) -> Tensor:
    """Return the mean, and below it orthonormal directions of the largest variance, (1 + dimensions, d) in float32.

    This is post-processing of noisy numbers: the noise of the second moments need not be symmetric.
    """
    variance = 0.5 * (moments + moments.T) - torch.outer(mean, mean)
    directions = torch.linalg.eigh(variance).eigenvectors[:, -dimensions:]
    return torch.cat([mean[None], directions.T.flip(0)]).float()


class Directions(Features):
    """The direction of a record as seen from the mean: ``y / |y|`` with ``y = V (z - mean)``, of norm 1 again.

    The part that is common to all records is gone, and so is the scale that a small gamma leaves to the kernel.

    Args:
        source: the features z of the records that `multiples` is asked for.
        directions: (1 + r, d) the mean and V, as `leading` returns them. Public.
    """

    def __init__(self, source: KeptFeatures, directions: Tensor) -> None:
        self.d, self.unit = len(directions) - 1, 1.0 / LARGEST
        self._source = source
        mean, rows = directions[0].double() / source.unit, directions[1:].double()
        # The lengths of rows make no difference, so they become the largest whole numbers whose products are exact.
        bits = min(24, DOUBLE - 15 - math.ceil(math.log2(max(source.d, 2))))
        self._rows = (rows * (2.0**bits / rows.abs().max().clamp(min=1e-300))).round_()
        self._mean = (self._rows @ mean).round_()
        # Before squares are added up, numbers are cut to so few bits that the sum is exact.
        longest = float((self._rows.norm(dim=1) / source.unit + self._mean.abs()).max())
        self._cut = 2.0 ** ((DOUBLE - 2 - math.ceil(math.log2(max(self.d, 2)))) // 2) / max(longest, 1.0)

    def multiples(self, store: Store, within: slice | None = None) -> Iterator[tuple[slice, Tensor]]:
        for rows, block in self._source if within is None else self._source.within(within):
            yield rows, self._of(block)

    def _multiples(self, records: Rows, store: Store) -> Tensor:
        return self._of(self._source.features._multiples(records, store))

    def _of(self, block: Tensor) -> Tensor:
        seen = ((product(block.double(), self._rows.T) - self._mean) * self._cut).trunc_()
        norms = seen.square().sum(dim=1, keepdim=True).sqrt_().clamp_(min=1.0)
        return (seen * (LARGEST / norms)).trunc_().float()
