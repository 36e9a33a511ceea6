"""Private searches: what a description leaves to be found of a column, and the description that a find completes."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.discovery.value_grid import FOUND_LEVELS, Leaves, ValueGrid
from lightning_dpgen.data.names import texts_of
from lightning_dpgen.data.reading import CLAMP
from lightning_dpgen.data.tables.arrays import Misfit, plain
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import BadSchema, Column, Modelled, is_text
from lightning_dpgen.data.tables.description import KEYS, ColumnDescription
from lightning_dpgen.data.tables.likely_rows import with_likely_keys
from lightning_dpgen.data.tables.moment_form import LAST_YEAR, MomentForm
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.scales import LARGEST, LARGEST_WHOLE, Scale

# The category of values that were not found.
OTHER = "other"
# The references from which powers of two are counted for bounds: for days, the first of 2000. And the range of days.
_REFERENCES, _DAYS = {"integer": 0, "number": 0, "date": 10_957}, (-719_162, 2_932_896)
# The smallest number that found bounds tell from 0, and the default number of bins of a column.
_SMALLEST, _BINS = 2.0**-64, 50


@dataclass(frozen=True)
class Search:
    """A column whose description is unfinished: bounds of its numbers, or the list of its categories, are to be found.

    Args:
        name: of the column.
        declared: its description, with `PRIVATE` in some places.

    Example:
        >>> from lightning_dpgen.data.tables.schema_keys import describe
        >>> search = Search("age", describe("age", {"type": "integer", "low": "private", "high": "private"}))
        >>> search.find, search.complete([0, 127]).high
        ('bounds', 127)
    """

    name: str
    declared: ColumnDescription

    @property
    def find(self) -> str:
        """`BOUNDS` or `KEYS`."""
        assert self.declared.unfinished is not None
        return self.declared.unfinished

    @property
    def scale(self) -> Scale:
        """The scale on which its values are numbers, where bounds are to be found."""
        return self.declared.scale

    @cached_property
    def widest(self) -> Modelled:
        """The column that holds whatever is found: between the widest bounds, or of the category of what is not found."""
        if self.find == KEYS:
            return Category(self.name, self.complete([]))
        bounds: tuple[float, float] = (-LARGEST, LARGEST)
        form = self.declared.form()
        if isinstance(form, MomentForm) and form.two_digits:
            ends = datetime.date(LAST_YEAR - 99, 1, 1), datetime.date(LAST_YEAR, 12, 31)
            bounds = tuple(self.scale.tick(end.isoformat()) - self._reference for end in ends)
        return Numeric(self.name, self.complete(bounds))

    @property
    def arrow(self) -> pa.DataType:
        """The type in a synthetic table."""
        return self.widest.arrow

    def complete(self, discovery: Any) -> ColumnDescription:
        """Return the finished description.

        Args:
            discovery: bounds on the scale of `raw`; ``{"bounds": bounds, "pieces": ..., "noise": ...}``, if it was also
                found how numbers between them are distributed (`find_values`); or the categories.
        """
        if self.find == KEYS:
            other = self.declared.other or OTHER
            # A key that a schema cannot hold counts as not found.
            known = [key for key in discovery if key != other and is_text(key) and key == key.strip()]
            return self.declared.with_values(values=[*known, other], other=other, outside=CLAMP)
        discovery = discovery if isinstance(discovery, Mapping) else {"bounds": discovery}
        low, high = map(self.scale.declared, self._limits(discovery["bounds"]))
        keys: dict[str, Any] = {"low": low, "high": high, "outside": CLAMP}
        if "pieces" in discovery:
            density = [[self.scale.declared(start), mass] for start, mass in discovery["pieces"]]
            keys |= {"density": density, "density_noise": discovery["noise"]}
        if self.declared.transform != "linear":
            try:
                # A logarithm's first bins are narrow far from 0: float64 may not tell them apart.
                self.declared.with_values(**keys, bins=self.declared.bins or _BINS)
            except BadSchema:
                keys["transform"] = "linear"
        return self.declared.with_values(**keys)

    def build(self, discovery: Any) -> Column:
        """Return the column of the description that `complete` returns."""
        return self.complete(discovery).build(self.name)

    def leaves_between(self, bounds: Sequence[int | float]) -> Leaves:
        """Return the leaves of a tree between bounds that were found, for numbers as `raw` gives them."""
        low, high = self._limits(bounds)
        return Leaves(ValueGrid(low, high, self.scale.whole, FOUND_LEVELS), self._reference)

    def raw(self, values: pa.Array) -> np.ndarray | pa.Array:
        """Return ticks (n,) float64 from a public reference, or texts (n,); NaN or null where one is missing.

        Raises:
            Misfit: naming the first value that cannot be read.
        """
        values = plain(values)
        absent = self.widest.absent(values)
        if self.find == KEYS:
            return pa.array(texts_of(values).to_numpy(zero_copy_only=False), pa.string(), mask=absent)
        ticks, rows = np.full(len(values), np.nan), np.flatnonzero(~absent)
        if len(rows):
            present = values.filter(pa.array(~absent))
            try:
                ticks[rows] = self.scale.ticks(present) - self._reference
            except Misfit as misfit:
                raise with_likely_keys(misfit, present, self.declared.type).moved(rows) from None
        return ticks

    @property
    def _reference(self) -> int:
        return _REFERENCES[self.declared.type]

    def _limits(self, bounds: Sequence[int | float]) -> tuple[int | float, int | float]:
        """Return ticks that a schema can declare for bounds on the scale of `raw`."""
        low, high = (self._nearest(bound + self._reference) for bound in bounds)
        if low < high:
            return low, high
        # A column of one value alone would have nothing to learn, or to scale.
        if not self.scale.whole:
            return low, low + _SMALLEST
        return (low, low + 1) if self._nearest(low + 1) > low else (low - 1, low)

    def _nearest(self, tick: int | float) -> int | float:
        """Return the nearest tick that a schema can declare."""
        if not self.scale.whole:
            return tick
        # Numbers with decimals have 15 digits.
        most = LARGEST_WHOLE if self.scale.unit == 1 else 10**15
        least, most = _DAYS if self.declared.type == "date" else (-most, most)
        return max(least, min(most, tick))


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
    column: Search | None = None

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
