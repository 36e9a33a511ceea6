"""Records of any kind as numbers: all that networks, splits and metrics need to know of them."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse

# Where fewer than one number in this many is 1, the places of ones cost less than all numbers written out.
_SPARSE_ABOVE = 64


@dataclass(frozen=True)
class Layout:
    """A record as numbers: `units` in [0, 1], then one choice for each of `groups`, written as one-hot.

    Pixels, readings and bought items are units; categories, bins of numbers and labels are groups.

    Args:
        units: how many.
        levels: of the units, which are the whole numbers 0 to this, divided by it; at 1 they are drawn, not averaged. None
            for real numbers.
        groups: the number of choices of each group.
        label: the group that is the record's label; None without one.
        norm: the L2 bound of a record's numbers within which most records lie: the default bound of clipping.
        most: the largest number of units of a record that are 1, where all others are 0; None where they are not few.
        sizes: where they are few, the last group holds their number: from each of these to the next, or to `most`.
        ordered: for each group, how many of its first choices are in an order, such as bins of numbers; empty for none.

    Example:
        >>> layout = Layout(units=2, levels=1, groups=(3, 2), label=1)
        >>> layout.width, layout.spans
        (7, [slice(2, 5, None), slice(5, 7, None)])
    """

    units: int
    levels: int | None = None
    groups: tuple[int, ...] = ()
    label: int | None = None
    norm: float | None = None
    most: int | None = None
    sizes: tuple[int, ...] = ()
    ordered: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """The length of a record."""
        return self.units + sum(self.groups)

    @property
    def default_radius(self) -> float:
        """The L2 bound that records are clipped to for means, where none is given.

        Where a record is one choice of each group, its length is known. Other records without a known norm, such as
        pictures, are kept whole if at most a fifth of their numbers are 1.

        Example:
            >>> Layout(units=0, groups=(3, 40, 2, 9)).default_radius, Layout(units=100).default_radius
            (2.0, 5.5)
        """
        if self.norm is not None:
            return self.norm
        return 0.45 * math.sqrt(self.width) + 1.0 if self.units else math.sqrt(len(self.groups))

    @property
    def max_ones(self) -> int | None:
        """The largest number of ones in a record, where these are few and all else is 0; None where they are not."""
        if self.most is None or _SPARSE_ABOVE * (self.most + len(self.groups)) > self.width:
            return None
        return self.most + len(self.groups)

    @property
    def spans(self) -> list[slice]:
        """The place of each group."""
        ends = itertools.accumulate(self.groups, initial=self.units)
        return [slice(start, end) for start, end in itertools.pairwise(ends)]

    @property
    def labels(self) -> slice:
        """The place of the label; an empty slice without one."""
        return slice(self.width, self.width) if self.label is None else self.spans[self.label]


@dataclass(frozen=True, eq=False, repr=False)
class Encoded:
    """Records as a layout says, before they are written out as one-hot. Private, where the records are.

    Args:
        units: (N, units) whole numbers 0 to `levels` as uint8 or int32; float32 in [0, 1] where there are no levels; a CSR
            matrix of 0 and 1 where few of them are 1.
        codes: (N, groups) whole numbers from 0, the choice of each group, in the smallest of uint8, int16 and int32.
    """

    units: np.ndarray | scipy.sparse.csr_array
    codes: np.ndarray

    def __len__(self) -> int:
        return self.codes.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> Encoded:
        return Encoded(self.units[rows], self.codes[rows])

    @classmethod
    def joined(cls, parts: list[Encoded]) -> Encoded:
        """Join parts, at least one, in their order."""
        first = parts[0].units
        stacked = scipy.sparse.vstack if scipy.sparse.issparse(first) else np.concatenate
        return cls(
            stacked([part.units for part in parts]) if len(parts) > 1 else first,
            np.concatenate([part.codes for part in parts]),
        )


def smallest_integer(most: int) -> np.dtype:
    """Return the smallest type of uint8, int16 and int32 that holds 0 to `most`.

    Example:
        >>> smallest_integer(255), smallest_integer(256)
        (dtype('uint8'), dtype('int16'))
    """
    return np.dtype(np.uint8 if most < 2**8 else np.int16 if most < 2**15 else np.int32)
