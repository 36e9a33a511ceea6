"""Records in blocks: named columns of Arrow, and for messages the place of a row, and of a value that cannot be cast."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.files.text import WHOLE, TextRange
from lightning_dpgen.data.names import quote
from lightning_dpgen.sampling.errors import BadRecords


@dataclass(frozen=True, eq=False, repr=False)
class Block:
    """Some rows of a source.

    Args:
        rows: their columns.
        place: where the i-th of them stands, for an error: ``a.csv, line 7``.
    """

    rows: pa.RecordBatch
    place: Callable[[int], str]

    def column(self, name: str) -> pa.Array:
        return self.rows.column(self.rows.schema.get_field_index(name))

    def full_column(self, name: str) -> pa.Array:
        """Return a column in which each row has a value; raise BadRecords if one has none."""
        values = self.column(name)
        missing = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
        if len(missing):
            place = self.place(int(missing[0]))
            raise BadRecords(f"{place}: nothing in the column {quote(name)}: expected a value in each row")
        return values


class RowSource(ABC):
    """A file of rows, or a table in memory. A file may be larger than memory: only one block of it is held.

    Args:
        where: the name of it in an error.
        columns: the names of its columns.
        hint: further advice where a name stands twice.

    Attributes:
        unnamed: the columns without a name, which are left out: by what stands for each its place, from 1.
        ragged: how many rows have been left out so far, since they have another number of fields.

    Raises:
        BadRecords: if a name stands twice.
    """

    ragged = 0
    unnamed: Mapping[str, int] = MappingProxyType({})

    def __init__(self, where: str, columns: Sequence[str], hint: str = "") -> None:
        self.where, self.columns = where, list(columns)
        for name, times in Counter(self.columns).items():
            if times > 1:
                raise BadRecords(f"{where}: two columns are named {quote(name)}: expected each name once; rename one{hint}")

    @abstractmethod
    def batches(self, columns: list[str]) -> Generator[pa.RecordBatch]:
        """Yield the rows in their order, with these columns, at least one; raise BadRecords for what cannot be read."""

    def commented(self) -> int:
        """Return how many lines the last reading has left out, since they begin as a comment."""
        return 0

    def ranges(self, columns: Sequence[str]) -> list[TextRange]:
        """Return ranges that make up the file: what `within` reads of these columns in each is what all rows are read as.

        A large file of text is read once for it. One range for a file that is small, or read as a whole alone.

        Raises:
            OSError: from the disk.
        """
        return [WHOLE]

    def within(self, part: TextRange) -> RowSource:
        """Return the rows in a range of the file; lines are numbered as in the whole."""
        if part != WHOLE:
            raise ValueError(f"{self.where}: {part}: expected one of `ranges`")
        return self

    def place(self, row: int) -> str:
        """Return the place of a row, counted from 0, within the source."""
        return f"row {row} (from 0)"

    def advice_on(self, names: Collection[str]) -> str:
        """Return where columns of these names may stand that are not there, and what to do; "" where nothing is known."""
        return ""

    def blocks(self, columns: Sequence[str] | None = None) -> Generator[Block]:
        """Yield the rows in their order, with these columns, or all."""
        done = 0
        with closing(self.batches(self.columns if columns is None else list(columns))) as batches:
            for batch in batches:
                yield Block(batch, lambda i, start=done: f"{self.where}, {self.place(start + i)}")
                done += batch.num_rows

    def check_has(self, names: Collection[str]) -> None:
        """Raise BadRecords if one of these columns is not there."""
        there = set(self.columns)
        for name in names:
            if name not in there:
                near = suggest(name, self.columns)
                raise BadRecords(f"{self.where} has no column {quote(name)}: it has {listed(self.columns)}{near}")

    def others(self, besides: Collection[str]) -> list[str]:
        """Return the columns but these, and but those in which pandas keeps the numbers of rows."""
        return [name for name in self.columns if name not in besides and not name.startswith("__index_level_")]


class WrappedRows(RowSource):
    """Rows of another source, which `batches` hands on in another way; arguments are as of `RowSource`."""

    def __init__(self, rows: RowSource, columns: Sequence[str], hint: str = "") -> None:
        super().__init__(rows.where, columns, hint)
        self._rows, self.unnamed = rows, rows.unnamed

    def commented(self) -> int:
        return self._rows.commented()

    def place(self, row: int) -> str:
        return self._rows.place(row)

    def advice_on(self, names: Collection[str]) -> str:
        return self._rows.advice_on(names)


def first_misfit(values: pa.Array, kind: pa.DataType) -> int | None:
    """Return the place of the first value that cannot be cast to this type; None if all can be.

    Example:
        >>> first_misfit(pa.array(["1", "x", "3", "y"]), pa.int64())
        1
    """
    # The first `good` can be cast, the first `bad` cannot.
    good, bad = 0, len(values) + 1
    while bad - good > 1:
        middle = len(values) if bad > len(values) else (good + bad) // 2
        try:
            values.slice(good, middle - good).cast(kind)
            good = middle
        except pa.ArrowInvalid:
            bad = middle
    return None if good == len(values) else good
