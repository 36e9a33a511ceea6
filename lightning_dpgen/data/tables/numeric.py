"""Columns of numbers, dates and times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.discovery.value_grid import ValueGrid
from lightning_dpgen.data.tables.arrays import Misfit, quote_cell
from lightning_dpgen.data.tables.bins import Bins, Density
from lightning_dpgen.data.tables.column import BadSchema, Beyond, Key, Modelled
from lightning_dpgen.data.tables.likely_rows import with_likely_keys
from lightning_dpgen.data.tables.scales import Scale

# The keys that a column which is learned by its distance declares of the distance.
OF_DISTANCE = ("bins", "edges", "transform", "encoding", "density", "density_noise")
# The words for values beyond the bounds.
BELOW, ABOVE = "below low", "above high"
# A unit is a multiple of 1 / 2^24, which float32 holds exactly.
_GRID = 2**24


@dataclass(frozen=True)
class Numeric(Modelled):
    """Numbers, dates or times between two bounds: a choice among bins, or one unit.

    Whole values (integers, dates, numbers of so many decimals, times of a resolution) are cut at whole values, and have a
    choice each where there are no more of them than bins. Values of a bin are told apart at random, by the density where
    there is one. A scaled column is exact for up to 2^24 + 1 whole values, else on a grid of as many.

    Example:
        >>> from lightning_dpgen.data.tables.schema_keys import column_of
        >>> age = column_of("age", {"type": "integer", "low": 17, "high": 90, "bins": 4})
        >>> codes, _ = age.encode(pa.array(["17", "90", "40"]), False, Counter())
        >>> codes.tolist(), age.choices
        ([0, 3, 1], 4)
        >>> age.decode(codes, None, np.random.default_rng(0))[0].as_py() < 36
        True
    """

    type, low, high, special, decimals, resolution = (Key() for _ in range(6))
    bins, edges, transform, encoding, density, density_noise = (Key() for _ in OF_DISTANCE)

    @cached_property
    def scale(self) -> Scale:
        """The scale on which its values are numbers."""
        return self.declared.scale

    @property
    def undecided(self) -> bool:
        """True where it is cut into bins whose number is not declared."""
        return self.declared.undecided

    def takes(self, text: pa.Array) -> bool:
        return not self._outside(self.scale.ticks(text))

    @property
    def scaled(self) -> bool:
        return self.encoding == "scaled"

    @property
    def most_choices(self) -> int:
        """A bound of `present` from above, without working it out."""
        return 2 if self.scaled else max(self.bins or 0, len(self.edges) + 1) + len(self.special) + 1

    @property
    def present(self) -> int:
        return 1 if self.scaled else self._bins.count

    @property
    def arrow(self) -> pa.DataType:
        return self.scale.arrow

    @property
    def grid(self) -> ValueGrid:
        """The tree between its bounds by which its distribution is found."""
        return ValueGrid(self._low, self._high, self.scale.whole)

    def ticks(self, values: pa.Array) -> np.ndarray:
        """Return the places (n,) float64 of values on `grid`, moved to the bounds; NaN where missing or special.

        Raises:
            Misfit: naming the first value that cannot be read.
        """
        numbers, absent = self.numbers(values, True, Counter())
        return np.where(absent | np.isin(numbers, self.special_ticks), np.nan, numbers)

    def with_density(self, pieces: Sequence[Sequence[float]], noise: float) -> Numeric:
        """Return the same with the density that `find_values` has found on `grid`."""
        density = tuple((self.scale.declared(start), mass) for start, mass in pieces)
        return self.with_values(density=density, density_noise=noise)

    def with_bins(self, bins: int) -> Numeric:
        # As many as its density asks for, where there is one.
        if not self.undecided:
            return self
        density = self._density
        # Few whole numbers have a bin each.
        if density is None or (self.scale.whole and self._width < bins):
            return self.with_values(bins=bins)
        starts = density.cut(bins, self.density_noise)[1:].tolist()
        edges = tuple(self.scale.declared(tick) for tick in starts)
        return self.with_values(transform="linear", **({"edges": edges} if edges else {"bins": 1}))

    @property
    def present_names(self) -> list[str]:
        if self.scaled:
            return ["a number"]
        ranges = [f"{self._shown(a)} to {self._shown(b)}" if a < b else self._shown(a) for a, b in self._bins.ranges]
        return ranges + [self._shown(tick) for tick in self.special_ticks.tolist()]

    @property
    def ordered(self) -> int:
        return 0 if self.scaled else len(self._bins.starts)

    @property
    def noisy_shares(self) -> tuple[np.ndarray, float] | None:
        if self.scaled or self._density is None or not self.ordered:
            return None
        masses = self._density.between(self._bins.starts, np.append(self._bins.starts[1:], self._density.ends[-1]))
        return (masses / masses.sum(), self.density_noise / float(masses.sum())) if masses.sum() > 0.0 else None

    def alone(self, code: int) -> bool:
        return not self.scaled and self._bins.alone(code)

    def places(self, values: pa.Array, clamp: bool, counted: Counter[str]) -> np.ndarray:
        return self._within(values, clamp, counted)

    def restored(self, numbers: np.ndarray, absent: np.ndarray) -> pa.Array:
        return self.scale.column(numbers, absent)

    @property
    def ranges(self) -> list[tuple[int | float, int | float]]:
        if self.scaled:
            return [self.limits]
        return [*self._bins.ranges, *((tick, tick) for tick in self.special_ticks.tolist())]

    def range_text(self, code: int) -> str:
        low, high = (self.scale.declared(tick) for tick in self.ranges[code])
        return str(low) if low == high else f"{low}..{high}"

    @property
    def limits(self) -> tuple[int | float, int | float]:
        """The bounds as ticks."""
        return self._low, self._high

    def encode_present(self, values: pa.Array, clamp: bool, counted: Counter[str]) -> tuple[np.ndarray, np.ndarray | None]:
        ticks = self._within(values, clamp, counted)
        if not self.scaled:
            return self._bins.encode(ticks), None
        steps = np.rint((ticks - self._low) / self._width * self._steps)
        return np.zeros(len(ticks), np.int64), (steps / self._steps).astype(np.float32)

    def decode(self, codes: np.ndarray, units: np.ndarray | None, random: np.random.Generator) -> pa.Array:
        absent = codes >= self.present if self.missing else np.zeros(len(codes), bool)
        if not self.scaled:
            ticks = np.full(len(codes), self._low)
            ticks[~absent] = self._bins.decode(codes[~absent], random)
            return self.scale.column(ticks, absent)
        steps = np.rint(np.clip(units.astype(np.float64), 0.0, 1.0) * self._steps)
        ticks = self._low + steps * (self._width / self._steps)
        if self.scale.whole:
            ticks = np.rint(ticks).astype(np.int64)
        return self.scale.column(np.minimum(ticks, self._high), absent)

    def shares(self, intervals: Sequence[tuple[int | float, int | float]]) -> np.ndarray:
        """Return for each choice but a missing one the share of its ticks, as they are drawn, within closed intervals.

        It is of a column that is cut into bins.
        """
        return self._bins.shares(intervals)

    def beyond(self, values: pa.Array) -> list[Beyond]:
        bounds = {BELOW: self.low, ABOVE: self.high}
        return [Beyond(what, rows, str(bounds[what])) for what, rows in self._outside(self._ticks(values)).items()]

    def _within(self, values: pa.Array, clamp: bool, counted: Counter[str]) -> np.ndarray:
        """Return ticks (n,), all within the bounds, or special."""
        ticks = self._ticks(values)
        outside = self._outside(ticks)
        if outside and not clamp:
            row = int(np.logical_or.reduce(list(outside.values())).argmax())
            below = BELOW in outside and outside[BELOW][row]
            bound = f"below low, {self.low}" if below else f"above high, {self.high}"
            raise Misfit(
                row,
                f"{quote_cell(values, row)} is {bound}",
                "correct it, change the bound in the schema, or let outside=clamp move it there",
            )
        for what, rows in outside.items():
            counted[f"{self.name}: {what}"] += int(rows.sum())
            ticks = np.where(rows, self._low if what == BELOW else self._high, ticks)
        return ticks.astype(np.int64) if self.scale.whole else ticks

    def _ticks(self, values: pa.Array) -> np.ndarray:
        try:
            return self.scale.ticks(values)
        except Misfit as misfit:
            raise with_likely_keys(misfit, values, self.type) from None

    def _outside(self, ticks: np.ndarray) -> dict[str, np.ndarray]:
        """Return the ticks (n,) that lie below and above the bounds, where there are any, and are not special."""
        bare = ~np.isin(ticks, self.special_ticks) if self.special else np.ones(len(ticks), bool)
        found = {BELOW: (ticks < self._low) & bare, ABOVE: (ticks > self._high) & bare}
        return {what: rows for what, rows in found.items() if rows.any()}

    @cached_property
    def _low(self) -> int | float:
        return self.scale.tick(self.low)

    @cached_property
    def _high(self) -> int | float:
        return self.scale.tick(self.high)

    @cached_property
    def special_ticks(self) -> np.ndarray:
        """The special values as ticks (special,), increasing."""
        return np.array(sorted(map(self.scale.tick, self.special)), np.int64 if self.scale.whole else np.float64)

    @property
    def _width(self) -> int | float:
        return self._high - self._low

    @property
    def _steps(self) -> int:
        return min(self._width, _GRID) if self.scale.whole else _GRID

    @cached_property
    def _bins(self) -> Bins:
        if self.undecided:
            raise BadSchema("expected how many, or a schema completed by TableSchema.with_bins", self.name, "bins")
        return replace(self.declared.cut(), density=self._density)

    @cached_property
    def _density(self) -> Density | None:
        if not self.density:
            return None
        kind = np.int64 if self.scale.whole else np.float64
        starts = np.array([self.scale.tick(value) for value, _ in self.density], kind)
        masses = np.array([mass for _, mass in self.density], np.float64)
        return Density(starts, masses, self._high, self.scale.whole)

    def _shown(self, tick: int | float) -> str:
        value = self.scale.declared(tick)
        return f"{value:.6g}" if isinstance(value, float) else str(value)
