"""Bins of numbers at quantiles of records, for comparisons that a model's own bins would flatter.

Those of real records are private, and so is all that is compared in them. Those of synthetic records are public.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_dpgen.data.layout import Encoded, Layout, smallest_integer
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.values import TableValues

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
        found = len(self.single) + np.searchsorted(self.starts, values, "right")
        if len(self.single):
            near = np.minimum(np.searchsorted(self.single, values), len(self.single) - 1)
            found = np.where(self.single[near] == values, near, found)
        return np.where(np.isnan(values), self.count - 1, found)

    def names(self, column: Numeric) -> list[str]:
        """Return the names of the bins, as the column writes its values."""
        return [_shown(column, value) for value in self.single] + self._ranges(column) + ["missing"]

    def _ranges(self, column: Numeric) -> list[str]:
        if not len(self.starts):
            return ["others"]
        # A bin of whole numbers ends at the last one in it.
        ends = [_shown(column, value - column.scale.whole) for value in self.starts]
        starts = [_shown(column, value) for value in self.starts]
        between = [start if start == end else f"{start} to {end}" for start, end in zip(starts, ends[1:], strict=False)]
        return [f"up to {ends[0]}", *between, f"{starts[-1]} or more"]

    def order(self) -> np.ndarray:
        """Return the bins in the order of their values: single ones among the others, missing last."""
        return np.argsort(np.concatenate([self.single, [self.least], self.starts, [np.inf]]), kind="stable")


def _shown(column: Numeric, tick: float) -> str:
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
