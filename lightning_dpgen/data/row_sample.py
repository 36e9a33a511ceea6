"""A sample of the rows of a source that may be larger than memory, by a public seed, while it is read once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from lightning_dpgen.data.files.blocks import Block, RowSource
from lightning_dpgen.data.persons import mixed
from lightning_dpgen.data.tables.arrays import Misfit, plain

# The kind of what a reader counts where a sample was taken.
SAMPLED = "rows there are, of which a sample was read"
_EVERY = np.uint64(2**64 - 1)


@dataclass(frozen=True)
class RowSample:
    """A sample without replacement, in which a person has all of their rows or none.

    Args:
        most: the number of rows, at most, of a source that has more; 1 or more.
        seed: public, 0 or more.

    Raises:
        ValueError: for any other number.
    """

    most: int
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, least in (("most", self.most, 1), ("seed", self.seed, 0)):
            if type(value) is not int or not least <= value < 2**63:
                raise ValueError(f"{name}={value!r}: expected a whole number of rows or a seed, {least} or more")


@dataclass(frozen=True, eq=False)
class _Kept:
    """Rows of a block, with the hash and the place of each."""

    rows: pa.RecordBatch
    hashes: np.ndarray
    at: np.ndarray
    place: Callable[[int], str]

    def below(self, limit: np.uint64) -> _Kept:
        chosen = np.flatnonzero(self.hashes < limit)
        return _Kept(self.rows.take(pa.array(chosen)), self.hashes[chosen], self.at[chosen], self.place)


class SampledRows(RowSource):
    """Those rows of a source whose hashes are least: of their places, or of the persons that they belong to.

    No more than a block and twice the sample is held.

    Args:
        rows: the source.
        sample: how many are drawn, and by which seed.
        person: the column of the owners of records, if a person has several.

    Attributes:
        seen: the number of rows of the source, once they are read.
        is_part: whether any was left out.

    Example:
        >>> from lightning_dpgen.data.files.rows import rows_of
        >>> sampled = SampledRows(rows_of(pa.table({"a": list(range(100))})), RowSample(3, seed=1))
        >>> sum(block.rows.num_rows for block in sampled.blocks()), sampled.seen, sampled.is_part
        (3, 100, True)
    """

    def __init__(self, rows: RowSource, sample: RowSample, person: str | None = None) -> None:
        super().__init__(rows.where, rows.columns)
        self._rows, self._most, self._person = rows, sample.most, person
        self._key = mixed(np.array([sample.seed], np.uint64))[0]
        self.seen, self.is_part = 0, False

    def batches(self, columns: list[str]) -> Generator[pa.RecordBatch]:
        for block in self.blocks(columns):
            yield block.rows

    def blocks(self, columns: Sequence[str] | None = None) -> Generator[Block]:
        self.seen, limit, kept = 0, _EVERY, []
        with closing(self._rows.blocks(columns)) as blocks:
            for block in blocks:
                count = block.rows.num_rows
                kept.append(_Kept(block.rows, self._hashes(block), np.arange(count), block.place).below(limit))
                self.seen += count
                if sum(len(rows.at) for rows in kept) > 2 * self._most:
                    limit = self._limit(kept)
                    kept = [rows.below(limit) for rows in kept]
        limit = self._limit(kept) if sum(len(rows.at) for rows in kept) > self._most else limit
        self.is_part = bool(limit < _EVERY)
        for rows in kept:
            chosen = rows.below(limit)
            if len(chosen.at):
                yield Block(chosen.rows, lambda i, chosen=chosen: chosen.place(int(chosen.at[i])))

    def _hashes(self, block: Block) -> np.ndarray:
        """Return a hash (n,) of each row of a block."""
        if self._person is None:
            return mixed(mixed(np.arange(self.seen, self.seen + block.rows.num_rows, dtype=np.uint64)) ^ self._key)
        owners = block.column(self._person)
        try:
            # A missing one is found where the sample is read.
            named = plain(owners).cast(pa.string()).fill_null("")
        except (Misfit, pa.ArrowException):
            # So is what names no person.
            named = pa.array([""] * len(owners))
        return mixed(pd.util.hash_array(named.to_numpy(zero_copy_only=False)) ^ self._key)

    def _limit(self, kept: Sequence[_Kept]) -> np.uint64:
        """Return the hash below which no more than the sample's rows lie, but for a person of more."""
        hashes = np.concatenate([own.hashes for own in kept])
        return max(np.partition(hashes, self._most)[self._most], hashes.min() + np.uint64(1))
