"""Columns that tell of the label together: their choices, crossed, are one more choice of a record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lightning_dpgen.data.layout import Encoded, Layout, smallest_integer

# Crossings of a network, and cells of one: a release that names more asks for memory alone.
MOST_CROSSINGS, MOST_CELLS = 64, 4096


@dataclass(frozen=True)
class Crossing:
    """A few groups, whose choices are joined to parts and crossed.

    Args:
        groups: two or more, in their order.
        parts: for each of them the part, from 0, to which each of its choices belongs.

    Example:
        >>> both = Crossing((0, 2), ((0, 1), (0, 0, 1)))
        >>> both.cells, both.cells_of(np.array([[1, 5, 0], [1, 5, 2]])).tolist()
        (4, [1, 3])
    """

    groups: tuple[int, ...]
    parts: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of parts of each group."""
        return tuple(max(own) + 1 for own in self.parts)

    @property
    def cells(self) -> int:
        """The number of all combinations of parts."""
        return math.prod(self.sizes)

    def cells_of(self, codes: np.ndarray) -> np.ndarray:
        """Return the cell (B,) of each record, by its codes (B, groups); the parts of the first group come first."""
        place, step = np.zeros(len(codes), np.intp), 1
        for group, own, size in zip(self.groups, self.parts, self.sizes, strict=True):
            place += step * np.asarray(own)[codes[:, group]]
            step *= size
        return place


@dataclass(frozen=True)
class Crossed:
    """Adds the cells of crossings to records, each as one more group.

    Args:
        layout: the records' layout.
        crossings: of its groups, but for the label.

    Raises:
        ValueError: for a crossing of other groups, of other choices than these have, of too many cells, or that is there
            twice; and for too many.
    """

    layout: Layout
    crossings: tuple[Crossing, ...] = ()

    def __post_init__(self) -> None:
        groups = self.layout.groups
        if len(self.crossings) > MOST_CROSSINGS:
            raise ValueError(f"{len(self.crossings):,} crossings: expected {MOST_CROSSINGS} or fewer")
        if len({crossing.groups for crossing in self.crossings}) < len(self.crossings):
            raise ValueError("crossings: the same groups are crossed twice")
        for crossing in self.crossings:
            own = crossing.groups
            if len(own) < 2 or list(own) != sorted({*own} & {*range(len(groups))} - {self.layout.label}):
                raise ValueError(f"crossing of groups {own}: expected two or more in their order, and not the label")
            if [len(parts) for parts in crossing.parts] != [groups[group] for group in own]:
                raise ValueError(f"crossing of groups {own}: expected a part for each of their choices")
            if any({*parts} != {*range(len({*parts}))} for parts in crossing.parts):
                raise ValueError(f"crossing of groups {own}: expected parts from 0 on, none of them empty")
            if crossing.cells > MOST_CELLS:
                raise ValueError(f"crossing of groups {own}: {crossing.cells:,} cells, expected {MOST_CELLS:,} or fewer")

    @cached_property
    def wide(self) -> Layout:
        """The layout of records with their cells."""
        return replace(self.layout, groups=(*self.layout.groups, *(crossing.cells for crossing in self.crossings)))

    def __call__(self, records: Encoded) -> Encoded:
        """Return records with their cells."""
        if not self.crossings:
            return records
        cells = [crossing.cells_of(records.codes) for crossing in self.crossings]
        codes = np.column_stack([records.codes, *cells]).astype(smallest_integer(max(self.wide.groups)))
        return Encoded(records.units, codes)


def described_crossings(crossings: Sequence[Crossing]) -> list[dict[str, list[object]]]:
    """Return crossings as a release describes them."""
    return [{"groups": list(one.groups), "parts": [list(parts) for parts in one.parts]} for one in crossings]


def read_crossings(described: object) -> tuple[Crossing, ...]:
    """Read what `described_crossings` returns.

    Raises:
        ValueError: for anything else.
    """
    expected = ValueError("crossings: expected a list of groups and the parts of their choices")
    if not isinstance(described, list):
        raise expected
    found = []
    for one in described:
        if not isinstance(one, dict) or set(one) != {"groups", "parts"}:
            raise expected
        rows = [one["groups"], *one["parts"]] if isinstance(one["parts"], list) else [None]
        if not all(isinstance(row, list) and row and all(type(x) is int and x >= 0 for x in row) for row in rows):
            raise expected
        found.append(Crossing(tuple(one["groups"]), tuple(map(tuple, one["parts"]))))
    return tuple(found)
