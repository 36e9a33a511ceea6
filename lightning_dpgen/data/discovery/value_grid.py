"""The numbers between two public bounds as the leaves of a tree, and the names of the noises of its levels."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

# The most children of a node, and the levels of real numbers.
_BRANCHING, _REAL_LEVELS = 32, 5
# The least width of a leaf of real numbers, in steps of float64.
_STEPS = 4
# The levels between bounds that are found themselves, which are planned before it is known how far apart these are.
FOUND_LEVELS = 4
# The names of the noises of a column's tree begin so.
VALUES_OF = "values of "


def values_of(column: str, level: int) -> str:
    """Return the name of the noise of one level of a column's tree, from 1."""
    return f"{VALUES_OF}{column}, level {level}"


def without_level(noise: str) -> str:
    """Return the name of a noise of `values_of` without its level, and any other name as it is.

    Example:
        >>> without_level(values_of("age", 2)), without_level("bounds of age")
        ('values of age', 'bounds of age')
    """
    return re.sub(rf"^({VALUES_OF}.*), level \d+$", r"\1", noise, flags=re.DOTALL)


@dataclass(frozen=True)
class ValueGrid:
    """The numbers between two public bounds, as the leaves of a tree whose nodes all have as many children.

    Whole numbers are a leaf each; real numbers share 32^5 leaves of equal width, or as many as float64 tells apart.

    Args:
        low, high: the bounds, both included.
        whole: whether numbers are whole.
        depth: the levels of the tree; None for as many as the bounds ask for.

    Example:
        >>> grid = ValueGrid(17, 90, True)
        >>> grid.levels, grid.branching, grid.leaves(np.array([17, 90]))
        (2, 9, array([ 0, 73]))
    """

    low: int | float
    high: int | float
    whole: bool
    depth: int | None = None

    @property
    def span(self) -> int:
        """The number of leaves that numbers may be in."""
        if self.low == self.high:
            return 1
        if self.whole:
            return int(self.high) - int(self.low) + 1
        steps = (self.high - self.low) / np.spacing(max(abs(self.low), abs(self.high)))
        return int(min(_BRANCHING**_REAL_LEVELS, max(1.0, steps / _STEPS)))

    @property
    def levels(self) -> int:
        if self.depth is not None:
            return self.depth
        levels = 1
        while _BRANCHING**levels < self.span:
            levels += 1
        return levels

    @property
    def branching(self) -> int:
        """The number of children of a node: the fewest with which the leaves suffice."""
        children = max(2, round(self.span ** (1.0 / self.levels)) - 1)
        while children**self.levels < self.span:
            children += 1
        return children

    def leaves(self, numbers: np.ndarray) -> np.ndarray:
        """Return the leaf (n,) of each number between the bounds."""
        if self.whole:
            return np.asarray(numbers).astype(np.int64) - int(self.low)
        if self.span == 1:
            return np.zeros(len(numbers), np.int64)
        share = (numbers - self.low) / (self.high - self.low)
        return np.minimum((share * self.span).astype(np.int64), self.span - 1)

    def number(self, leaf: int) -> int | float:
        """Return the least number of a leaf."""
        return int(self.low) + leaf if self.whole else self.low + leaf / self.span * (self.high - self.low)


@dataclass(frozen=True)
class Leaves:
    """The leaf of each number that was read, also of one beyond the bounds.

    Args:
        grid: the leaves.
        reference: added to the numbers, which are read from it.
    """

    grid: ValueGrid
    reference: int = 0

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        """Return the leaf (n,) int64 of each number (n,); it never falls where numbers rise.

        Example:
            >>> Leaves(ValueGrid(17, 90, True))(np.array([-np.inf, 17.0, 18.0, 99.0]))
            array([ 0,  0,  1, 73])
        """
        return self.grid.leaves(np.clip(numbers + self.reference, self.grid.low, self.grid.high))
