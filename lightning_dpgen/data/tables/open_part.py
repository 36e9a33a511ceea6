"""A part of a description that is found privately: what is looked for, and how much of it a record holds."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_dpgen.data.tables.open_columns import Open
from lightning_dpgen.data.value_grid import FOUND_LEVELS, ValueGrid


@dataclass(frozen=True)
class Part:
    """A part of a description that is found privately.

    Args:
        find: bounds, keys or values.
        most: how many of them a unit (a record, or a person with all of theirs) has a part in; of values, how many rows.
        whole: whether bounds are whole numbers.
        grid: between whose bounds values lie.
        column: the one whose bounds are found, if it is then looked at how it is distributed between them.
    """

    find: str
    most: int
    whole: bool = False
    grid: ValueGrid | None = None
    column: Open | None = None

    @property
    def counted(self) -> bool:
        """True for categories, each of whose counts is looked at."""
        return self.grid is not None and self.grid.depth == 1

    @property
    def levels(self) -> int:
        """The levels of the tree by which a distribution is found; 0 without one."""
        if self.column is not None:
            return FOUND_LEVELS
        return 0 if self.grid is None else self.grid.levels
