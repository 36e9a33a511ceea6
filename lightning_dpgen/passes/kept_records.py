"""Records in files as a store: rows of a lot are read where they lie, and no others are in memory."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from torch import Tensor

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.persons import mixed, row_hashes
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.tables.reading import no_records
from lightning_dpgen.passes.person_shuffle import PersonShuffle
from lightning_dpgen.privacy.errors import DamagedState
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.sampling.stores import Steps, Store

# In a file of NumPy the length of its header stands here, in two bytes, and the header follows.
_HEADER = slice(8, 10)
_CHECK = np.dtype("<u4")


class DamagedBlocks(BadRecords):
    """A file of encoded records is not what was written: the records are sound, and the same command encodes them anew."""

    path: Path

    @classmethod
    def at(cls, path: Path) -> DamagedBlocks:
        """Return the error about a file."""
        said = "was damaged or removed while the run read it; the same command encodes it anew and goes on"
        error = cls(f"{path}: {said}")
        error.path = path
        return error


def row_type(encoded: Encoded) -> np.dtype:
    """Return the type of one record in a file: its codes, its units and a check of them, side by side."""
    codes, units = encoded.codes, encoded.units
    return np.dtype([("codes", codes.dtype, codes.shape[1:]), ("units", units.dtype, units.shape[1:]), ("check", _CHECK)])


def to_rows(encoded: Encoded, name: str) -> np.ndarray:
    """Return records as rows (N,) of `row_type`, whose bytes stand side by side.

    Args:
        name: of their file, which their checks cover.

    Example:
        >>> rows = to_rows(Encoded(np.zeros((2, 0), np.float32), np.array([[3, 1], [4, 0]], np.uint8)), "a.npy")
        >>> rows.itemsize, of_rows(rows).codes.tolist()
        (6, [[3, 1], [4, 0]])
        >>> places = np.arange(2)
        >>> is_whole(rows, places, "a.npy"), is_whole(rows[::-1], places, "a.npy"), is_whole(rows, places, "b.npy")
        (True, False, False)
    """
    rows = np.empty(len(encoded), row_type(encoded))
    rows["codes"], rows["units"] = encoded.codes, encoded.units
    rows["check"] = _checks(encoded, np.arange(len(encoded)), name)
    return rows


def of_rows(rows: np.ndarray) -> Encoded:
    """Return the records of rows as `to_rows` makes them."""
    # One row counts as contiguous with the strides of a file, which torch does not take; a copy has its own.
    return Encoded(rows["units"].copy(order="C"), rows["codes"].copy(order="C"))


def is_whole(rows: np.ndarray, places: np.ndarray, name: str) -> bool:
    """Tell whether rows are those that were written at these places (N,) of the file of this name."""
    return bool((rows["check"] == _checks(Encoded(rows["units"], rows["codes"]), places, name)).all())


def _checks(encoded: Encoded, places: np.ndarray, name: str) -> np.ndarray:
    # A row of another place, or of another file, is another one.
    file = np.frombuffer(hashlib.blake2b(name.encode(), digest_size=8).digest(), np.uint64)
    return (mixed(row_hashes(encoded) + places.astype(np.uint64) + file) >> np.uint64(32)).astype(_CHECK)


@dataclass(frozen=True, eq=False, repr=False)
class Part:
    """A file of rows. Private.

    Args:
        path: an array of NumPy, as `to_rows` returns one, and anything after it.
        rows: how many there are.
        shuffle: has chosen the rows that take part; None where all do.
        taking_part: how many do; None for all.
    """

    path: Path
    rows: int
    shuffle: PersonShuffle | None = None
    taking_part: int | None = None

    def __len__(self) -> int:
        return self.rows if self.taking_part is None else self.taking_part

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process says nothing of a single record, and reads again which take part.
        return {name: value for name, value in self.__dict__.items() if name != "kept"}

    @cached_property
    def kept(self) -> np.ndarray | None:
        """The rows (n,) that take part, from 0, in their order; None for all."""
        if self.shuffle is None:
            return None
        try:
            return np.flatnonzero(self.shuffle.of(self.path.stem).kept).astype(np.int32)
        except DamagedState:
            raise DamagedBlocks.at(self.path.parent) from None


@dataclass(frozen=True, eq=False, repr=False)
class KeptRecords(Store):
    """Records in files, which `take` maps into memory for as long as it gathers the rows of a lot. Private.

    Lots are the same bits as those of the same `Records` in memory. The memory is that of a lot, and 12 bytes a record
    where persons have several; the system keeps in its cache what it has room for. A copy in another process reads the same
    files.

    Args:
        schema: the public description of the records, a table's.
        parts: the files, in the order of the records.
        persons: (N,) whole numbers, the owner of each record; None where no person has several.

    Raises:
        DamagedBlocks: from `take` and `stretch`, for a row that is not what was written, or a file that is gone.
    """

    schema: Schema
    parts: Sequence[Part]
    persons: np.ndarray | None = None

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, positions: np.ndarray) -> Tensor:
        return self._records(positions).take(np.arange(len(positions)))

    @property
    def steps(self) -> Steps | None:
        return self._none.steps

    def stretch(self, rows: slice) -> Tensor | scipy.sparse.csr_array:
        return self._records(np.arange(rows.start, rows.stop)).stretch(slice(0, rows.stop - rows.start))

    def multi_hot(self) -> None:
        """Return None: records of a table are never handed over as the places of their ones."""

    def in_tasks(self) -> KeptRecords:
        return replace(self, persons=None)

    def is_there(self) -> bool:
        """Tell whether this process sees all files."""
        return all(part.path.is_file() for part in self.parts)

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum([len(part) for part in self.parts], dtype=np.int64)])

    @cached_property
    def _none(self) -> Records:
        return Records(self.schema, no_records(self.schema).encoded)

    def _records(self, positions: np.ndarray) -> Records:
        """Return the records at some positions, in memory."""
        rows = np.empty(len(positions), row_type(self._none.encoded))
        # Positions of a lot are sorted within each component alone.
        order = np.argsort(positions, kind="stable")
        ends = np.searchsorted(positions, self._starts, sorter=order)
        for number in np.flatnonzero(np.diff(ends)).tolist():
            at = order[ends[number] : ends[number + 1]]
            rows[at] = self._read(self.parts[number], positions[at] - self._starts[number])
        return Records(self.schema, of_rows(rows))

    def _read(self, part: Part, places: np.ndarray) -> np.ndarray:
        """Return the rows of a part at some places among those that take part, checked."""
        places = places if part.kept is None else part.kept[places]
        # Opened for each lot: no file stays open, and pages of no earlier lot count as memory of the process.
        try:
            with open(part.path, "rb") as file:
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (FileNotFoundError, ValueError):  # it is gone, or empty
            raise DamagedBlocks.at(part.path) from None
        if hasattr(content, "madvise") and places[-1] - places[0] > 2 * len(places):
            # Rows far from each other: what lies between is not read from the disk.
            content.madvise(mmap.MADV_RANDOM)
        kind, start = row_type(self._none.encoded), _HEADER.stop + int.from_bytes(content[_HEADER], "little")
        # A page that is not there ends the process.
        if len(content) < start + part.rows * kind.itemsize:
            raise DamagedBlocks.at(part.path)
        rows = np.frombuffer(content, kind, part.rows, start)[places]
        if not is_whole(rows, places, part.path.name):
            raise DamagedBlocks.at(part.path)
        return rows
