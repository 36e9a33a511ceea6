"""Bounded statistics of a record, whose sums over all records are measured once, with noise."""

from __future__ import annotations

import itertools
import math
import numbers
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.common import pace
from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.records import Records
from lightning_dpgen.models.bases import Basis, unit_values
from lightning_dpgen.models.networks import check_sizes
from lightning_dpgen.sampling.fixed_point import DOUBLE, ROW_BITS, Grid, product, round_rows, unit_of


class KeptParts:
    """Tensors that follow from parts of records (`Records.parts`). They are gone with the records, and are never pickled.

    Args:
        most: the bytes that are kept; what does not fit is computed each time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: weakref.WeakKeyDictionary[Encoded, Tensor] = weakref.WeakKeyDictionary()

    def __reduce__(self) -> tuple[type[KeptParts], tuple[int]]:
        return type(self), (self._most,)

    def get(self, records: Encoded, compute: Callable[[], Tensor]) -> Tensor:
        """Return what was kept for these very records, or compute it."""
        tensor = self._found.get(records)
        if tensor is None:
            tensor = compute()
            if tensor.nbytes + sum(own.nbytes for own in self._found.values()) <= self._most:
                self._found[records] = tensor
        return tensor


# Numbers that are written out at a time.
_AT_ONCE = 1 << 20
# The length, in units, of the longest rows of which squares and outer products are summed: those of 2^30 rows, a thousand
# million, add up within int64.
SQUARE_LENGTH = 2**16
# The most units of the bounds of `Means`, and of sums of outer products, by the names that recipes give them.
UNITS = {"means": 2.0 ** (ROW_BITS + 1), "squares": float(SQUARE_LENGTH**2), "moments": float(SQUARE_LENGTH**2)}


class Statistic(ABC):
    """A vector of numbers of a record, of L2 norm `bound` at most; its sums over records are released with noise.

    The vector of a record is a row of whole multiples of a public unit, and an exact function of that record alone: other
    records, or more of them, change no bit of it. So sums are exact, whatever the order or division of the records.

    Attributes:
        shape: shape of the sums.
        bound: the largest change of the sums in L2 when one record is added or removed; public.
        unit: the number that a multiple of 1 stands for; public.
        layout: the layout of the records for which the bound holds; None if it holds for any.
        k: number of components that it tells apart; None if it does not look at them.
        at_once: records that are taken at a time; None for as many as have a million columns.
        released: shape of what is released; None for that of the sums.
    """

    shape: tuple[int, ...]
    bound: float
    unit: float = 1.0
    layout: Layout | None = None
    k: int | None = None
    at_once: int | None = None
    released: tuple[int, ...] | None = None

    def scores(self, sums: Tensor) -> Tensor:
        """Return what is released with noise, of shape `released`, as multiples of the unit, in int64: the sums.

        Scores of another kind are a function of the sums of all records, and one record added or removed moves them by the
        bound, too.
        """
        return sums

    @abstractmethod
    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        """Return the sums over these records, of `shape`, as multiples of the unit, in int64.

        Args:
            records: as they are encoded.
            component: (B,) the component of each, int64 from 0 to k - 1. Private.
        """

    def of_all(self, records: Records, component: Tensor) -> Tensor:
        """Sum over all records, a few at a time."""
        total = torch.zeros(self.shape, dtype=torch.int64)
        step = self.at_once or max(1, _AT_ONCE // max(1, records.schema.layout.width))
        for rows, encoded in records.parts(step):
            part = self.sums(encoded, component[rows])
            if (part.shape, part.dtype) != (total.shape, total.dtype):
                raise ValueError(
                    f"sums of shape {tuple(part.shape)} and {part.dtype}: expected {tuple(total.shape)}, that of the "
                    "statistic, and torch.int64"
                )
            total += part
        return total


class Counts(Statistic):
    """The number of records of each component: one number of a record is 1.

    Example:
        >>> Counts(3).sums(Encoded(np.zeros((2, 0)), np.zeros((2, 0), np.uint8)), torch.tensor([2, 2]))
        tensor([0, 0, 2])
    """

    bound = 1.0

    def __init__(self, k: int) -> None:
        check_sizes(k=k)
        self.k, self.shape = k, (k,)

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        return torch.bincount(component, minlength=self.shape[0])


class Histogram(Statistic):
    """A histogram of the values of units: for each channel, the shares of a record's units in the bins.

    Bins are 0 itself, bins of equal width between 0 and 1, and 1 itself. A record's shares of a channel add up to 1, so
    their norm is at most 1, and that of all channels at most the root of their number, which is the bound. The unit is the
    share of one unit, so sums are counts.

    Args:
        channels: number of channels, to which units belong in turn.
        bins: number of bins between 0 and 1.
        of: the basis whose values are told apart; None for the units as they are.

    Raises:
        ValueError: for a number of channels that does not divide the units, or no bin.

    Example:
        >>> spread = Histogram(Layout(units=4, levels=4), channels=1, bins=2)
        >>> spread.sums(Encoded(np.array([[0, 0, 1, 4]]), np.zeros((1, 0), np.uint8)), torch.tensor([0])), spread.unit
        (tensor([[2, 1, 0, 1]]), 0.25)
    """

    def __init__(self, layout: Layout, channels: int, bins: int, of: Basis | None = None) -> None:
        check_sizes(channels=channels, bins=bins)
        if layout.units < 1 or layout.units % channels:
            raise ValueError(f"channels={channels}: expected a number that divides the {layout.units} units of a record")
        self.layout, self._channels, self._bins, self._of = layout, channels, bins, of
        self.shape, self.bound, self.unit = (channels, bins + 2), math.sqrt(channels), channels / layout.units

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        values = unit_values(records, self.layout) if self._of is None else self._of.values(records)
        return self.of_values(values[:, : self.layout.units])

    def of_values(self, units: Tensor) -> Tensor:
        """Count values (n, units), numbers of any size: those below 0 count as 0, those above 1 as 1."""
        place = (units * self._bins).clamp_(0, self._bins - 1).floor_().add_(1.0)
        place = place.masked_fill_(units <= 0.0, 0.0).masked_fill_(units >= 1.0, self._bins + 1).long()
        place += (self._bins + 2) * torch.arange(self._channels).repeat(self.layout.units // self._channels)
        return torch.bincount(place.flatten(), minlength=math.prod(self.shape)).view(self.shape)


class Marginals(Statistic):
    """Tables of counts, one for each set of groups: a record is in one cell of each, so the bound is their number's root.

    Args:
        tables: for each table, the groups that it crosses.

    Raises:
        ValueError: for no table, one of other groups than the layout has, or one twice, be it in another order.

    Example:
        >>> pairs = Marginals(Layout(0, groups=(2, 3)), [(0,), (0, 1)])
        >>> [table.tolist() for table in pairs.tables_of(pairs.sums(
        ...     Encoded(np.zeros((2, 0)), np.array([[1, 0], [1, 2]])), torch.zeros(2, dtype=torch.int64)))]
        [[0, 2], [[0, 0, 0], [1, 0, 1]]]
    """

    def __init__(self, layout: Layout, tables: Sequence[tuple[int, ...]]) -> None:
        for table in tables:
            if not table or len(set(table)) < len(table) or not set(table) <= set(range(len(layout.groups))):
                raise ValueError(f"table {table}: expected distinct groups from 0 to {len(layout.groups) - 1}")
        if not tables or len({frozenset(table) for table in tables}) < len(tables):
            raise ValueError("tables: expected at least one, and none twice, even with its groups in another order")
        self.layout, self.tables = layout, [tuple(table) for table in tables]
        self.sizes = [tuple(layout.groups[group] for group in table) for table in self.tables]
        self._starts = [0, *itertools.accumulate(math.prod(size) for size in self.sizes)]
        self.shape, self.bound = (self._starts[-1],), math.sqrt(len(self.tables))

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        # Each column is written out once, in the type that `bincount` would otherwise make of the cells of every table.
        columns = np.ascontiguousarray(records.codes.T, np.intp)
        cells, parts = np.empty(len(records), np.intp), []
        for (first, *others), size in pace.counted("counting", [*zip(self.tables, self.sizes, strict=True)]):
            place = columns[first]
            for group, choices in zip(others, size[1:], strict=True):
                place = np.multiply(place, choices, out=cells)
                place += columns[group]
            parts.append(np.bincount(place, minlength=math.prod(size)))
        return torch.from_numpy(np.concatenate(parts))

    def tables_of(self, sums: Tensor) -> list[Tensor]:
        """Return the sums as tables, each of the sizes of its groups."""
        cut = zip(itertools.pairwise(self._starts), self.sizes, strict=True)
        return [sums[start:end].view(size) for (start, end), size in cut]


class Means(Statistic):
    """Sums of the units of records in a basis, by component, each shortened to a radius, which is the bound.

    Args:
        radius: the length to which a record's coordinates, or their differences from a centre, are shortened.
        centres: (k, basis.size), public, from which records are measured; None for 0.
    """

    def __init__(self, basis: Basis, k: int, radius: float, centres: Tensor | None = None) -> None:
        check_sizes(k=k)
        check_radius(radius)
        if centres is not None:
            _check_centres(centres, k, basis)
        self.basis, self.layout, self.k, self.shape = basis, basis.layout, k, (k, basis.size)
        self.bound, self.unit = radius, unit_of(radius)
        self._centres = None if centres is None else centres.double()

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        rows = self.basis.coordinates(records)
        rows = rows if self._centres is None else rows - self._centres[component]
        within = round_rows(rows, self.bound, self.unit)
        return add_by_place(within, component, self.shape[0])


class Squares(Statistic):
    """Sums of r r^T by component, where r is a record in a basis less a released centre, shortened to a radius.

    The bound is the squared radius, the Frobenius norm of the longest outer product.

    Args:
        centres: (k, basis.size), public.
        radius: the length to which differences are shortened.
        of: (k,) for each component, the sum to which its records add, counted from 0; None for one each.
    """

    def __init__(self, basis: Basis, centres: Tensor, radius: float, of: Tensor | None = None) -> None:
        _check_centres(centres, len(centres), basis)
        check_radius(radius)
        self._of = torch.arange(len(centres)) if of is None else of
        if self._of.shape != (len(centres),) or self._of.dtype != torch.int64 or self._of.min() < 0:
            raise ValueError(f"of={of!r}: expected a whole number from 0, int64, for each of {len(centres)} components")
        self.basis, self.layout, self._centres, self._radius = basis, basis.layout, centres.double(), radius
        self.bound, self.k, self.shape = radius**2, len(centres), (int(self._of.max()) + 1, basis.size, basis.size)
        self.unit = (radius / SQUARE_LENGTH) ** 2

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        rest = self.basis.coordinates(records) - self._centres[component]
        rest = round_rows(rest, self._radius, self._radius / SQUARE_LENGTH)
        sums, place = torch.zeros(self.shape, dtype=torch.int64), self._of[component]
        for c in place.unique().tolist():
            sums[c] = outer_products(rest[place == c])
        return sums


def _check_centres(centres: Tensor, k: int, basis: Basis) -> None:
    if centres.shape != (k, basis.size) or not centres.isfinite().all():
        raise ValueError(f"centres of shape {tuple(centres.shape)}: expected ({k}, {basis.size}) finite numbers")


def check_radius(radius: float, name: str = "radius") -> None:
    """Raise ValueError, naming it, for a radius far from the lengths of records: a fit to such sums would overflow."""
    if not (isinstance(radius, numbers.Real) and 1e-6 <= radius <= 1e6):
        raise ValueError(f"{name}={radius!r}: expected a number from 1e-06 to 1e+06")


def outer_products(rows: Tensor) -> Tensor:
    """Return the exact sum (d, d), int64, of outer products of whole rows (B, d), float64, of `SQUARE_LENGTH` at most."""
    parts = [part.T @ part for part in rows.split(2 ** (DOUBLE - 1) // SQUARE_LENGTH**2)]
    return torch.stack(parts).to(torch.int64).sum(dim=0)


def add_by_place(rows: Tensor, place: Tensor, k: int) -> Tensor:
    """Return the sums (k, d), int64, of whole rows (B, d) with the same place, each row below 2^30, in float64; exact."""
    total, step = torch.zeros(k, rows.shape[1], dtype=torch.int64), 1 << DOUBLE - 1 - 30
    for part, own in zip(rows.split(step), place.split(step), strict=True):
        # float64 takes a fifth of the time of int64.
        total += torch.zeros(k, rows.shape[1], dtype=torch.float64).index_add_(0, own, part).to(torch.int64)
    return total


# Numbers of a part of the records that are written out at a time.
_NUMBERS_AT_ONCE = 1 << 18
# Differences of coordinates, and the coordinates in directions of which cosines are taken.
_SEEN, _PLACES = Grid(2.0**-13, bits=23), Grid(2.0**-14, bits=20)
# Angles of a turn, the most turns that a coordinate of 1 may stand for, and the cosine of each angle as a whole number.
_TURN, _MOST_TURNS, _LONGEST = 2**16, 2.0**8, 2.0**20
_COSINES = (_LONGEST * torch.cos(torch.arange(_TURN, dtype=torch.float64) * (2.0 * math.pi / _TURN))).trunc_()


class CoordinateHistograms(Statistic):
    """A histogram of each coordinate of a record: it is in one bin of each, so the bound is the root of their number.

    A bin is decided by the coordinate as it is computed, so that has to follow from the record alone, bit for bit.

    Args:
        coordinates: coordinates (n, size) of records: numbers as they stand, or in whole numbers, such as `SeriesWaves`.
        size: the number of coordinates.
        edges: (bins - 1,) the upper end of each bin but the last, increasing; an end belongs to the bin below it.

    Example:
        >>> of_units = lambda records: torch.from_numpy(records.units)
        >>> found = CoordinateHistograms(Layout(units=2), of_units, 2, torch.tensor([0.0, 0.5]).double())
        >>> found.sums(Encoded(np.array([[0.0, 0.6], [0.5, 0.7]]), np.zeros((2, 0), np.uint8)), None)
        tensor([[1, 1, 0],
                [0, 0, 2]])
    """

    def __init__(self, layout: Layout, coordinates: Callable[[Encoded], Tensor], size: int, edges: Tensor) -> None:
        check_sizes(size=size)
        self.layout, self._coordinates, self._edges = layout, coordinates, edges
        self.shape, self.bound = (size, len(edges) + 1), math.sqrt(size)

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        size, bins = self.shape
        places = torch.bucketize(self._coordinates(records), self._edges) + bins * torch.arange(size)
        return torch.bincount(places.flatten(), minlength=size * bins).view(size, bins)


class SecondMoments(Statistic):
    """Sums of r r^T over all components, where r is a record in a basis, shortened to a radius.

    The bound is the squared radius, the Frobenius norm of the longest outer product.
    """

    def __init__(self, basis: Basis, radius: float) -> None:
        check_radius(radius)
        self.basis, self.layout, self._radius = basis, basis.layout, radius
        self.bound, self.shape, self.unit = radius**2, (basis.size, basis.size), (radius / SQUARE_LENGTH) ** 2

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        return outer_products(round_rows(self.basis.coordinates(records), self._radius, self._radius / SQUARE_LENGTH))


class CharacteristicFunctions(Statistic):
    """Sums of ``[cos(W y), sin(W y)] / sqrt(m)`` by component, for m frequencies W and coordinates y of a record.

    Over counts they are the empirical characteristic function at these frequencies (the sketch of Keriven et al. 2018, from
    which a mixture of Gaussians is found). Each pair of cosine and sine has length 1, so a record's vector has length 1,
    which is the bound, whatever its coordinates are.

    Coordinates are seen as multiples of 2^-14 up to 64 in each direction, and a turn has 2^16 angles. The cosine of each
    is a whole number of 20 bits, cut towards 0, so no pair is longer than 1.

    Args:
        basis: the basis in which records are seen.
        centres: (k, basis.size) what is taken off these coordinates, for each component; public.
        directions: (d, basis.size) the directions whose coordinates y are; public.
        frequencies: (m, d), public.
    """

    bound = 1.0

    def __init__(self, basis: Basis, centres: Tensor, directions: Tensor, frequencies: Tensor) -> None:
        directions, turns = directions.double(), frequencies.double() / (2.0 * math.pi)
        fits = directions.shape[1:] == centres.shape[1:] == (basis.size,) and turns.shape[1:] == directions.shape[:1]
        if not fits or not all(part.isfinite().all() for part in (directions, turns, centres)):
            raise ValueError(f"directions {tuple(directions.shape)}: expected (d, {basis.size}) finite numbers")
        if turns.abs().sum(dim=1).max() > _MOST_TURNS:
            raise ValueError(f"frequencies: expected at most {_MOST_TURNS:.0f} turns for coordinates of 1")
        self.basis, self.layout, self._centres = basis, basis.layout, centres.double()
        self._directions, self._turns = _whole(directions, _SEEN), _whole(turns, _PLACES)
        self.k, self.shape = len(centres), (len(centres), 2, len(turns))
        self.unit = 1.0 / (_LONGEST * math.sqrt(len(turns)))

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        # So many whole numbers add up exactly in float64.
        sums = torch.zeros(self.shape, dtype=torch.float64)
        (directions, scale), (turns, turn) = self._directions, self._turns
        differences = self.basis.coordinates(records) - self._centres[component]
        places = _PLACES(product(_SEEN(differences), directions).mul_(scale))
        step = max(1, _NUMBERS_AT_ONCE // self.shape[2])
        for part, of_part in zip(places.split(step), component.split(step), strict=True):
            angles = product(part, turns).mul_(turn * _TURN).round_().to(torch.int32)
            for i, angle in enumerate((angles, angles - _TURN // 4)):
                values = _COSINES.index_select(0, angle.bitwise_and_(_TURN - 1).view(-1)).view(angle.shape)
                sums[:, i].index_add_(0, of_part, values)
        return sums.to(torch.int64)


def _whole(matrix: Tensor, grid: Grid) -> tuple[Tensor, float]:
    """Return a matrix (d, m), transposed, in whole numbers, and what a product of 1 with a grid's multiples stands for.

    It is as fine as exact products allow.
    """
    longest = max(matrix.abs().sum(dim=1).tolist(), default=1.0)
    bits = math.floor(DOUBLE - 1 - grid.bits - math.log2(max(longest, 1e-100)))
    return (matrix.T * 2.0**bits).round_(), grid.unit * 2.0**-bits
