"""Answers with error bars: the noisy counts of sets of columns that were asked for, as a file of the release."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from torch import Tensor

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.release.publishing.mark import NOT_PRIVATE
from lightning_dpgen.release.rows.tables import write_table

# Standard deviations on each side of a normal number, between which lie 95 % of them.
SIDE = 1.959964
COUNT, ERROR, LOW, HIGH = "count", "standard_error", "low", "high"
# Decimals of the numbers that are no whole ones.
DECIMALS = 3


@dataclass(frozen=True)
class Answers:
    """Noisy tables of counts. Public.

    Counts are as they were measured: independent of each other, right on average, and some below 0. So the variance of a
    sum of several is the sum of theirs. An interval holds the count without noise 95 times in 100; it is cut at 0, below
    which no count is.

    Args:
        schema: of the records.
        sets: the names of the columns of each table.
        tables: the noisy counts, an axis for each column.
        deviation: the standard deviation of the noise of each.
    """

    schema: Schema
    sets: Sequence[Sequence[str]]
    tables: Sequence[Tensor]
    deviation: float

    def as_table(self) -> pa.RecordBatch:
        """Return a row for each cell: the number of its set from 1, its columns and values, its count and error."""
        counts = np.concatenate([table.numpy().ravel() for table in self.tables])
        low, high = interval(counts, self.deviation)
        numbers = {COUNT: counts, ERROR: np.full(len(counts), self.deviation), LOW: low, HIGH: high}
        columns = list(zip(*cells_of(self.schema, self.sets), strict=True))
        named = dict(zip(header_of(self.sets), map(pa.array, columns), strict=True))
        return pa.record_batch(named | {name: pa.array(own.round(DECIMALS)) for name, own in numbers.items()})

    def write(self, path: Path, *, private: bool) -> None:
        """Write the table as CSV; that of a run that is not private says so in each row."""
        table = self.as_table()
        if not private:
            table = table.append_column("mark", pa.array([NOT_PRIVATE] * len(table)))
        write_table(path, [table], table.schema)


def interval(counts: np.ndarray, deviation: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and the upper limits that hold a count without noise 95 times in 100.

    Example:
        >>> low, high = interval(np.array([50.0, 3.0]), 10.0)
        >>> low.round(1), high.round(1)
        (array([30.4,  0. ]), array([69.6, 22.6]))
    """
    return np.maximum(counts - SIDE * deviation, 0.0), np.maximum(counts + SIDE * deviation, 0.0)


def header_of(sets: Sequence[Sequence[str]]) -> list[str]:
    """Return the names of the columns before the counts.

    Example:
        >>> header_of([["age", "sex"], ["region"]])
        ['query', 'column_1', 'value_1', 'column_2', 'value_2']
    """
    return ["query", *(f"{of}_{place + 1}" for place in range(max(map(len, sets))) for of in ("column", "value"))]


def cells_of(schema: Schema, sets: Sequence[Sequence[str]]) -> Iterator[tuple[int | str | None, ...]]:
    """Yield what stands before the counts: the number of the set, and its columns and values in words, then nothing."""
    choices, most = schema.choices, max(map(len, sets))
    for number, names in enumerate(sets, 1):
        for values in itertools.product(*(choices[name] for name in names)):
            said = itertools.chain.from_iterable(zip(names, values, strict=True))
            yield (number, *said, *[None] * (2 * (most - len(names))))
