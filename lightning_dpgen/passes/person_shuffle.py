"""At most m records of a person over all blocks, exactly, by a sort that needs little memory.

Each block writes the person and the hash of each of its rows into one file (`route`). A query over all of them compares
full keys of persons and chooses the rows that take part (`bound`). The result is written back for each block (`of`). Every
file is there whole or not at all and ends with a checksum, so an interrupted run goes on with the files that are there, and
with none that is damaged.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lightning_dpgen.common.folders import make_private, sync_folder
from lightning_dpgen.data.persons import person_keys, priorities
from lightning_dpgen.passes import checksummed_file
from lightning_dpgen.passes.private_sql import add_function, insert, open_private_sql
from lightning_dpgen.privacy.errors import DamagedState
from lightning_dpgen.sampling.errors import BadRecords

STATE = "shuffle.json"
# Persons whose rows are counted at a time.
_COUNTED = 2**24
# Persons are numbered as they are met. Priorities are those of `persons.bounded`, and so is the first of equal ones.
_NUMBER = """
CREATE TABLE persons AS
SELECT person, row_number() OVER (ORDER BY min(place)) - 1 AS number,
    (sum(hash) % 18446744073709551616)::UBIGINT AS together
FROM rows GROUP BY person
"""
_CHOOSE = """
CREATE TABLE chosen AS
SELECT place, number, row_number() OVER (PARTITION BY number ORDER BY priority(hash, together), place) <= ? AS kept
FROM rows JOIN persons USING (person) ORDER BY place
"""


@dataclass(frozen=True, eq=False, repr=False)
class BlockPersons:
    """The persons of the rows of one block. Private.

    Args:
        numbers: (n,) int64, the number of each row's person: from 0, in the order in which persons are met over all blocks.
        kept: (n,) bool, the rows that take part: over all blocks at most m of a person.
    """

    numbers: np.ndarray
    kept: np.ndarray


class PersonShuffle:
    """Chooses at most m rows of each person over blocks, of which one is in memory at a time.

    The rows that are kept are those that `persons.bounded` keeps of all rows in memory: they follow from that person's
    rows alone, and not from the order of files or the division into blocks.

    Memory: one block, and what `open_private_sql` takes.

    One process at a time makes it and calls `bound`: the caller holds a lock on the folder. It can be pickled, and a copy
    in another process routes blocks into the same folder.

    Args:
        folder: a folder of its own in the run's private folder, which is made; its files are their owner's alone.
        max_rows: m, public.

    Raises:
        ValueError: for fewer rows than 1.
        OSError: if it cannot be written.

    Example:
        >>> import tempfile
        >>> rows = {"a": (pa.array([7, 7]), [1, 2]), "b": (pa.array([3, 7]), [5, 2])}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     shuffle = PersonShuffle(Path(folder) / "persons", max_rows=2)
        ...     for key, (persons, hashes) in rows.items():
        ...         shuffle.route(key, persons, np.array(hashes, np.uint64))
        ...     shuffle.bound(rows)
        ...     first, second = shuffle.of("a"), shuffle.of("b")
        >>> first.numbers, second.numbers
        (array([0, 0]), array([1, 0]))
        >>> int(first.kept.sum() + second.kept.sum()), bool(second.kept[0])
        (3, True)
    """

    def __init__(self, folder: Path, max_rows: int) -> None:
        if max_rows < 1:
            raise ValueError(f"max_rows={max_rows}: expected a whole number, 1 or more")
        self._folder, self.max_rows = folder, max_rows
        make_private(folder, STATE)
        content = checksummed_file.read(folder / STATE)
        self._state: dict[str, Any] = {} if content is None else json.loads(content)

    def is_routed(self, key: str) -> bool:
        """Tell whether the rows of a block wait on the disk, whole, from this process or one that was interrupted."""
        return checksummed_file.find(self._block(key)) is not None

    def is_done(self, keys: Iterable[str]) -> bool:
        """Tell whether the rows of exactly these blocks have been chosen, so that `of` gives them."""
        keys = list(keys)
        same = self._state.get("about") == self._about(keys)
        return same and all(checksummed_file.find(self._result(key)) is not None for key in keys)

    @property
    def persons(self) -> int:
        """The number of persons over all blocks, once the rows have been chosen. Private."""
        return self._state["persons"]

    def route(self, key: str, persons: pa.Array, hashes: np.ndarray) -> None:
        """Write the persons and hashes of the rows of a block to disk.

        Blocks may come in any order, from several processes, and again.

        Args:
            key: of the block; another one where its source is another one.
            persons: (n,) the person of each row, as `person_keys` takes them. Private.
            hashes: (n,) uint64, of each encoded row (`persons.row_hashes`). Private.

        Raises:
            BadRecords: for persons that cannot be told apart or are missing, naming the block.
            ValueError: for another number of hashes than of rows.
            OSError: if the disk is full; no file is left in part.
        """
        if hashes.shape != (len(persons),) or hashes.dtype != np.uint64:
            raise ValueError(f"hashes {hashes.shape} of {hashes.dtype}: expected uint64, one for each row")
        try:
            keys, of_row = person_keys(persons)
        except BadRecords as error:
            raise BadRecords(f"{key}: {error}") from None
        if not self.is_routed(key):
            checksummed_file.write_table(
                self._block(key), pa.table({"person": keys.take(pa.array(of_row)), "hash": hashes})
            )

    def bound(self, keys: Iterable[str]) -> None:
        """Choose the rows of each person over these blocks, each of which must have been routed.

        At the end the keys of persons are removed from the disk.

        Args:
            keys: of the blocks, in their order.

        Raises:
            ValueError: for no block, or one that has not been routed.
            DamagedState: if a file is not what was written.
            OSError: if the disk is full; the same call goes on.
        """
        keys = list(keys)
        if self.is_done(keys):
            self._remove("block-*")
            return
        if not keys:
            raise ValueError("block none: expected one or more, and route() for each before bound()")
        with open_private_sql(self._folder / "spill") as sql:
            add_function(sql, "priority", priorities, ["UBIGINT", "UBIGINT"])
            starts = [0]
            for key in keys:
                block = self._routed(key)
                insert(sql, "rows", block.append_column("place", pa.array(np.arange(len(block)) + starts[-1])))
                starts.append(starts[-1] + len(block))
            sql.execute(_NUMBER)
            sql.execute(_CHOOSE, [self.max_rows])
            persons = sql.execute("SELECT count(*) FROM persons").fetchall()[0][0]
            # Results of another choice are never taken for those of this one, wherever this is interrupted.
            (self._folder / STATE).unlink(missing_ok=True)
            self._state = {}
            self._remove("persons-*")
            for key, start, end in zip(keys, starts[:-1], starts[1:], strict=True):
                block = "SELECT number, kept FROM chosen WHERE place >= ? AND place < ? ORDER BY place"
                self._write_result(key, **sql.execute(block, [start, end]).fetchnumpy())
        check_most_rows(lambda: ((one := self.of(key)).numbers[one.kept] for key in keys), persons, self.max_rows)
        self._state = {"about": self._about(keys), "persons": persons}
        checksummed_file.write(self._folder / STATE, [json.dumps(self._state).encode()])
        self._remove("block-*")

    def of(self, key: str) -> BlockPersons:
        """Return the persons of the rows of a block, in their order, once the rows have been chosen.

        Raises:
            OSError, DamagedState: if they cannot be read.
        """
        path = self._result(key)
        if (content := checksummed_file.read(path)) is None:
            raise _damaged(path)
        numbers = np.load(io.BytesIO(content), allow_pickle=False)
        # The numbers of rows that are left out are written as their complements, which are negative.
        return BlockPersons(np.where(numbers < 0, ~numbers, numbers), numbers >= 0)

    def _routed(self, key: str) -> pa.Table:
        path = self._block(key)
        if (rows := checksummed_file.read_table(path)) is not None:
            return rows
        if path.exists():
            raise _damaged(path)
        raise ValueError(f"block {key!r}: expected one or more, and route() for each before bound()")

    def _write_result(self, key: str, number: np.ndarray, kept: np.ndarray) -> None:
        content = io.BytesIO()
        np.save(content, np.where(kept, number, ~number), allow_pickle=False)
        checksummed_file.write(self._result(key), [content.getvalue()])

    def _about(self, keys: Iterable[str]) -> str:
        """Return a digest of what the results are about."""
        return hashlib.blake2b(json.dumps([self.max_rows, *keys]).encode(), digest_size=16).hexdigest()

    def _block(self, key: str) -> Path:
        return self._folder / f"block-{_name(key)}"

    def _result(self, key: str) -> Path:
        return self._folder / f"persons-{_name(key)}.npy"

    def _remove(self, pattern: str) -> None:
        for path in self._folder.glob(pattern):
            path.unlink()
        sync_folder(self._folder)


def check_most_rows(numbers: Callable[[], Iterable[np.ndarray]], persons: int, max_rows: int) -> None:
    """Refuse persons with more records over all blocks than the plan says.

    Args:
        numbers: returns those of the persons of each block's records, (n,) int64 from 0. It is called once for each 16
            million persons, so that memory does not grow with their number.
        persons: how many numbers there are.
        max_rows: m.

    Raises:
        BadRecords: for a person with more.
        ValueError: for a number that is none of these.

    Example:
        >>> check_most_rows(lambda: [np.array([0, 1]), np.array([1])], persons=2, max_rows=1)
        Traceback (most recent call last):
        lightning_dpgen.sampling.errors.BadRecords: a person has more records over all blocks than max_rows=1
    """
    for start in range(0, max(persons, 1), _COUNTED):
        counts = np.zeros(min(_COUNTED, persons - start), np.int64)
        for of_block in numbers():
            if len(of_block) and not 0 <= of_block.min() <= of_block.max() < persons:
                raise ValueError("persons of a block: expected numbers from 0, below the number of persons of all blocks")
            np.add.at(counts, of_block[(of_block >= start) & (of_block < start + len(counts))] - start, 1)
        if len(counts) and counts.max() > max_rows:
            raise BadRecords(f"a person has more records over all blocks than max_rows={max_rows}")


def _name(key: str) -> str:
    return hashlib.blake2b(key.encode(), digest_size=12).hexdigest()


def _damaged(path: Path) -> DamagedState:
    return DamagedState(f"{path}: is not what this run has saved, or only a part of it; the block has to be routed anew")
