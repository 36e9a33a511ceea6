"""Columns of numbers in a few figures, and in bins at quantiles of records, which flatter no model.

Figures and bins of real records are private; those of synthetic records are public.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lightning_dpgen.data.conditions import quoted_name
from lightning_dpgen.data.layout import Encoded, Layout, smallest_integer
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.scales import RESOLUTIONS
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics.measure import ROWS_OF_TABLES, TABLE, Result, register

if TYPE_CHECKING:
    from lightning_dpgen.metrics.sides import TableSides

# The quantiles of a column between which its spread lies, and those that are shown, its ends among them.
_ENDS = (0.01, 0.99)
_QUANTILES = (0.0, 0.001, *_ENDS, 0.999, 1.0)
# Columns of dates whose pairs are looked at, and pairs that are told of: those whose shares differ most.
_DATES, _PAIRS = 12, 6
# A difference of shares of rows that is told in words: so large, and so many of its standard errors.
_FAR, _ERRORS = 0.02, 3.0
_DATED = ("date", "datetime")
_PERIODS = (("days", 86_400), ("hours", 3600), ("minutes", 60), ("seconds", 1))


@dataclass(frozen=True)
class Summary:
    """The mean, the deviation, and the tails of a column, of real and of synthetic values. Private.

    Special and missing values are left out. A side without any other value has no figures.

    Args:
        name: the column.
        real, synthetic: a number for each of `FIGURES`, or a text of dates; or none.
    """

    name: str
    real: tuple[float | str, ...]
    synthetic: tuple[float | str, ...]

    @property
    def sides(self) -> dict[str, tuple[str, ...]]:
        """The figures of each side as texts."""
        sides = {"real": self.real, "synthetic": self.synthetic}
        return {name: tuple(v if isinstance(v, str) else _number(v) for v in side) for name, side in sides.items()}

    def as_json(self) -> dict[str, dict[str, float | str]]:
        """Return the figures of each side by their names."""
        sides = {"real": self.real, "synthetic": self.synthetic}
        return {name: dict(zip(FIGURES, side, strict=False)) for name, side in sides.items()}


# The least and the largest value, and quantiles between them.
FIGURES = ("mean", "standard deviation", "least", "0.1 %", "1 %", "99 %", "99.9 %", "largest")


def ordinary(values: TableValues) -> np.ndarray:
    """Return the numbers of a table (N, columns of numbers), NaN where missing or special."""
    numbers = values.numbers.copy()
    for place, column in enumerate(values.of_numbers):
        numbers[np.isin(numbers[:, place], column.special_ticks), place] = np.nan
    return numbers


def spreads(real: TableValues) -> np.ndarray:
    """Return the range (columns of numbers,) in which 98 % of the real values of each column lie, positive.

    It stands in for a length that bounds would give: bounds may be far wider than the values, and would hide any error.
    Where nearly all values are equal it is their standard deviation, and where all are, the declared range.

    Example:
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> schema = parse_schema("columns: {a: {type: integer, low: 0, high: 10000, bins: 1}}")
        >>> spreads(TableValues(schema, np.arange(101.0)[:, None], np.zeros((101, 0), int))).tolist()
        [98.0]
    """
    lengths = []
    for column, numbers in zip(real.of_numbers, ordinary(real).T, strict=True):
        there = numbers[~np.isnan(numbers)]
        low, high = np.quantile(there, _ENDS) if len(there) else (0.0, 0.0)
        deviation = float(there.std()) if len(there) else 0.0
        # Equal values have a deviation of their rounding.
        noise = 1e-9 * float(np.abs(there).max(initial=0.0))
        declared = float(column.grid.high - column.grid.low) or 1.0
        lengths.append(next(length for length in (float(high - low), deviation, declared) if length > noise))
    return np.array(lengths)


def summaries(real: TableValues, synthetic: TableValues) -> dict[str, Summary]:
    """Return a summary of each column of numbers, dates as dates, by its name.

    Example:
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> schema = parse_schema("columns: {day: {type: date, low: 2020-01-01, high: 2020-12-31, bins: 1}}")
        >>> days = [TableValues(schema, 18262.0 + np.arange(n)[:, None], np.zeros((n, 0), int)) for n in (3, 1)]
        >>> summaries(*days)["day"].real
        ('2020-01-02', '0.8 days', '2020-01-01', '2020-01-01', '2020-01-01', '2020-01-03', '2020-01-03', '2020-01-03')
    """
    sides = [ordinary(side).T for side in (real, synthetic)]
    return {
        column.name: Summary(column.name, *(_figures(column, side[place]) for side in sides))
        for place, column in enumerate(real.of_numbers)
    }


def _figures(column: Numeric, numbers: np.ndarray) -> tuple[float | str, ...]:
    there = numbers[~np.isnan(numbers)]
    if not len(there):
        return ()
    mean, deviation = float(there.mean()), float(there.std())
    # A quantile is a value of the column, so a date is one that is there.
    quantiles = np.quantile(there, _QUANTILES, method="inverted_cdf").tolist()
    return _value(column, mean), _length(column, deviation), *(_value(column, tick) for tick in quantiles)


def _value(column: Numeric, tick: float) -> float | str:
    if column.type in ("integer", "number"):
        return tick / column.scale.unit
    return str(column.scale.declared(round(tick)))


def _length(column: Numeric, ticks: float) -> float | str:
    if column.type in ("integer", "number"):
        return ticks / column.scale.unit
    seconds = ticks * _seconds(column)
    period, length = next((pair for pair in _PERIODS if seconds >= 2 * pair[1]), _PERIODS[-1])
    if column.type == "date":
        period, length = _PERIODS[0]
    shown = seconds / length
    return f"{shown:,.0f} {period}" if shown >= 100 else f"{shown:.1f} {period}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:,.5g}"


def _seconds(column: Numeric) -> int:
    """Return the seconds of a tick."""
    return 86_400 if column.type == "date" else RESOLUTIONS[column.resolution]


@dataclass(frozen=True)
class Order:
    """Two columns of dates, and how often the first lies after the second. Private.

    Args:
        first, second: names; among real rows the first is seldom the later one.
        synthetic, real: the shares, in [0, 1], of the rows that have both dates.
        far: whether the shares differ by more than chance, and by much.
    """

    first: str
    second: str
    synthetic: float
    real: float
    far: bool

    @property
    def score(self) -> str:
        """The name of the score."""
        return f"rows with {self.first} after {self.second}"

    @property
    def text(self) -> str:
        """The difference in words, and what may be done about it."""
        first, second = quoted_name(self.first), quoted_name(self.second)
        real = f"{self.real:.1%}" if self.real else "none"
        text = f"{first} is after {second} in {self.synthetic:.1%} of the synthetic rows, and in {real} of the real ones"
        return text if self.real else f"{text}: if that is publicly known, declare the constraint {first} <= {second}"


def orders(real: TableValues, synthetic: TableValues) -> list[Order]:
    """Return the pairs of date columns whose orders differ most, a few at most, the largest difference first.

    Each pair is turned so that the first column is after the second one in at most half of the real rows.

    Example:
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> day = "{type: date, low: 1970-01-01, high: 1970-12-31, bins: 1}"
        >>> schema = parse_schema(f"columns: {{start: {day}, end: {day}}}")
        >>> rows = np.tile([3.0, 5.0], (40, 1)), np.tile([[3.0, 5.0], [8.0, 5.0]], (20, 1))
        >>> (found,) = orders(*(TableValues(schema, part, np.zeros((40, 0), int)) for part in rows))
        >>> found.text[:41], found.far
        ('start is after end in 50.0% of the synthe', True)
    """
    dated = [place for place, column in enumerate(real.of_numbers) if column.type in _DATED][:_DATES]
    seconds = np.array([_seconds(column) for column in real.of_numbers if column.type in _DATED][:_DATES])
    sides = [ordinary(side)[:, dated] * seconds for side in (synthetic, real)]
    names = [real.of_numbers[place].name for place in dated]
    pairs = []
    for a, b in itertools.combinations(range(len(dated)), 2):
        apart = [side[:, a] - side[:, b] for side in sides]
        apart = [lengths[~np.isnan(lengths)] for lengths in apart]
        if not all(map(len, apart)):
            continue
        first, second = a, b
        if (apart[1] > 0).mean() > 0.5:
            first, second, apart = b, a, [-lengths for lengths in apart]
        shares = [float((lengths > 0).mean()) for lengths in apart]
        # A row of either kind more keeps the error of few rows above 0.
        likely = [(share * len(of) + 1.0) / (len(of) + 2.0) for share, of in zip(shares, apart, strict=True)]
        error = math.sqrt(sum(p * (1.0 - p) / len(of) for p, of in zip(likely, apart, strict=True)))
        far = abs(shares[0] - shares[1]) > max(_FAR, _ERRORS * error)
        pairs.append(Order(names[first], names[second], *shares, far))
    return sorted(pairs, key=lambda order: -abs(order.synthetic - order.real))[:_PAIRS]


@register(TABLE, section=ROWS_OF_TABLES, place=42, better="target")
def _order_dates(sides: TableSides) -> Result:
    dates = orders(sides.learned, sides.first_synthetic)
    scores = [
        {order.score: getattr(order, side) for order in dates} for side in ("synthetic", "real")[: len(sides.compared)]
    ]
    return Result(*scores, remarks={"order of dates": [order.text for order in dates if order.far]})


# Bins of a column, but for single values that have one of their own.
BINS = 10


@dataclass(frozen=True, eq=False)
class QuantileBins:
    """Bins of one column of numbers, as private as the values that they are made of.

    A value that at least one record in `BINS` has is a bin of its own, wherever it lies. The others are cut at their
    quantiles. Missing values are the last bin.

    Args:
        single: (s,) the values that have a bin of their own, increasing.
        least: the least of the other values; NaN without any.
        starts: (b,) the least value of each bin of others after the first, increasing.

    Example:
        >>> bins = QuantileBins.of(np.array([0.0] * 80 + list(range(1, 21))), bins=4)
        >>> bins.single.tolist(), bins.starts.tolist()
        ([0.0], [6.0, 11.0, 16.0])
        >>> bins.codes(np.array([0.0, 0.5, 7.0, 99.0, np.nan])).tolist()
        [0, 1, 2, 4, 5]
    """

    single: np.ndarray
    least: float
    starts: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, bins: int = BINS) -> QuantileBins:
        """Cut values (n,), NaN where missing."""
        present = values[~np.isnan(values)]
        different, counts = np.unique(present, return_counts=True)
        often = counts * bins >= max(1, len(present))
        rest = np.sort(present[np.isin(present, different[~often])])
        places = np.arange(1, bins) * len(rest) // bins
        if not len(rest):
            return cls(different[often], np.nan, rest)
        starts = np.unique(rest[places])
        # The first bin holds the least of them.
        return cls(different[often], float(rest[0]), starts[starts > rest[0]])

    @property
    def count(self) -> int:
        """The number of bins, that of missing values included."""
        return len(self.single) + len(self.starts) + 2

    def codes(self, values: np.ndarray) -> np.ndarray:
        """Return the bin (n,) of each value: single values, then the others, then missing."""
        codes = len(self.single) + np.searchsorted(self.starts, values, "right")
        if len(self.single):
            near = np.minimum(np.searchsorted(self.single, values), len(self.single) - 1)
            codes = np.where(self.single[near] == values, near, codes)
        return np.where(np.isnan(values), self.count - 1, codes)

    def names(self, column: Numeric) -> list[str]:
        """Return the names of the bins, as the column writes its values."""
        return [write_tick(column, value) for value in self.single] + self._ranges(column) + ["missing"]

    def _ranges(self, column: Numeric) -> list[str]:
        if not len(self.starts):
            return ["others"]
        # A bin of whole numbers ends at the last one in it.
        ends = [write_tick(column, value - column.scale.whole) for value in self.starts]
        starts = [write_tick(column, value) for value in self.starts]
        between = [start if start == end else f"{start} to {end}" for start, end in zip(starts, ends[1:], strict=False)]
        return [f"up to {ends[0]}", *between, f"{starts[-1]} or more"]

    def order(self) -> np.ndarray:
        """Return the bins in the order of their values: single ones among the others, missing last."""
        return np.argsort(np.concatenate([self.single, [self.least], self.starts, [np.inf]]), kind="stable")


def write_tick(column: Numeric, tick: float) -> str:
    """Write a tick of a column as a value."""
    value = column.scale.declared(round(tick) if column.scale.whole else tick)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def quantile_bins(records: TableValues) -> dict[str, QuantileBins]:
    """Return the bins of each column of numbers."""
    return {column.name: QuantileBins.of(records.column(column.name)) for column in records.of_numbers}


def binned(values: TableValues, bins: dict[str, QuantileBins]) -> tuple[Encoded, Layout]:
    """Return the columns of a table as one group each, in the order of the schema, numbers in these bins."""
    codes, sizes = [], []
    for column in values.schema.recorded:
        found = values.column(column.name)
        known = bins.get(column.name)
        codes.append(found if known is None else known.codes(found))
        sizes.append(column.present + column.missing if known is None else known.count)
    kind = smallest_integer(max(sizes) - 1)
    encoded = Encoded(np.zeros((len(values), 0), np.float32), np.stack(codes, axis=1).astype(kind))
    return encoded, Layout(0, None, tuple(sizes))
