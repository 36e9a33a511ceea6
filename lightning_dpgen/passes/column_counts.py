"""Records in blocks as a first pass looks at them: what is found privately of each column, counted by queries."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import torch

from lightning_dpgen.data.discovery.bounds_and_keys import REAL, WHOLE, bounds_of, find_bounds_in, keys_of
from lightning_dpgen.data.discovery.counts import KeyCounts, NumberCounts, copy_hashes, name_hashes
from lightning_dpgen.data.discovery.value_grid import Leaves
from lightning_dpgen.data.discovery.value_tree import find_values_in
from lightning_dpgen.data.persons import mixed, person_keys, priorities
from lightning_dpgen.data.tables.column import shortened
from lightning_dpgen.data.tables.description import BOUNDS, KEYS
from lightning_dpgen.data.tables.search import Part
from lightning_dpgen.passes import checksummed_file
from lightning_dpgen.passes.encoded_blocks import CUTS, LockedFolder, SourceBlocks
from lightning_dpgen.passes.kept_records import DamagedBlocks
from lightning_dpgen.passes.private_sql import add_function, insert, open_private_sql
from lightning_dpgen.passes.reduce import InProcess, PartialSums, PassExecutor
from lightning_dpgen.privacy.access import OpenAccess
from lightning_dpgen.privacy.mechanisms import select_keys
from lightning_dpgen.sampling.errors import BadRecords

if TYPE_CHECKING:
    import duckdb

# The most bytes of different categories of a column, and the different values that are in memory at a time.
_MOST_KEYS, _ROWS = 2**30, 2**18
_FUNCTIONS = {
    "priority": (priorities, "UBIGINT", "UBIGINT"),
    "person_hash": (name_hashes, "BLOB"),
    "name_hash": (name_hashes, "VARCHAR"),
    "bucket_hash": (mixed, "UBIGINT"),
    "copy_hash": (copy_hashes, "DOUBLE", "UBIGINT"),
    "bucket_of_whole": (lambda numbers: WHOLE.places(numbers).astype(np.uint64), "DOUBLE"),
    "bucket_of_real": (lambda numbers: REAL.places(numbers).astype(np.uint64), "DOUBLE"),
}
# The values that count of persons: each once, or each as often as it stands there, and the hash by which some are chosen.
_ONCE = "SELECT owner, salt, value, {hash_of}(value) AS hash FROM (SELECT DISTINCT owner, salt, value FROM ({values}))"
_COPIES = """
SELECT owner, salt, value, copy_hash(value, (copy - 1)::UBIGINT) AS hash
FROM (SELECT owner, salt, value, row_number() OVER (PARTITION BY owner, value) AS copy FROM ({values}))
"""
# As `counts.held_at_most` chooses them.
_BOUNDED = """
SELECT value, count(*) AS count FROM (
    SELECT value, row_number() OVER (PARTITION BY owner ORDER BY priority(hash, salt), value) AS rank FROM ({entries})
) WHERE rank <= {most} GROUP BY value ORDER BY value
"""


class OpenBlocks(SourceBlocks, Protocol):
    """The blocks of a source of which something is found privately, as `TableBlocks` are."""

    def opened(self, key: str, names: Sequence[str]) -> tuple[dict[str, Any], list[pa.Array] | None]:
        """Return the columns of a block that are looked at, and its persons, as `read_open_rows` does."""


class ColumnCounts(LockedFolder):
    """Records in blocks as a first pass sees them: the different values of each column, and how many count. Private.

    A block is read once, as it will be, so that what cannot be read costs nothing. Its columns are kept in a file that the
    owner alone may read, which is there whole or not at all and ends with a checksum: an interrupted look reads the blocks
    that it lacks. Queries over all blocks count the values, and noise needs sums of these counts alone.

    What counts of a person is the same for any order and any division of the records, and the same as of records in memory.

    Args:
        source: the blocks as they are read.
        parts: what is to be found, by column.
        folder: where columns and counts are kept, in a private place; files of others in it are removed.
        max_rows: how many records of a person take part, where the source says whose they are.
        private: False for a run without noise and bound, in which all rows of a person count.

    Attributes:
        n: how many records take part.
        rows: how many were read and not left out.
        counted: the kinds of changes and omissions on the way, and how often each happened.
    """

    def __init__(
        self, source: OpenBlocks, parts: Mapping[str, Part], folder: Path, max_rows: int = 1, *, private: bool = True
    ) -> None:
        super().__init__(folder)
        self._source, self._parts, self._max_rows, self._private = source, dict(parts), max_rows, private
        self.n = self.rows = 0
        self.counted = Counter[str]()
        self._keys: dict[str, KeyCounts] = {}
        self._buckets: dict[str, np.ndarray] = {}
        self._numbers: dict[str, list[Path]] = {}

    def fill(self, executor: PassExecutor | None = None) -> None:
        """Read the blocks that are not kept yet, and count them all; see `hold`.

        Args:
            executor: where blocks are read; other processes need the same files in the same places. None for this process.

        Raises:
            BadRecords: for what cannot be read, and more categories than are held in memory; what was kept before stays.
            OSError: from the disk; likewise.
            filelock.Timeout: if another process uses the folder.
        """
        self.hold()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        about = json.dumps(list(self._parts))
        identities = {key: (self._source.identity(key) + about).encode() for key in self._source.keys}
        names = {key: hashlib.blake2b(identity, digest_size=12).hexdigest() for key, identity in identities.items()}
        blocks = {key: self._folder / f"look-{name}" for key, name in names.items()}
        self._remove_all_but(path.name for path in blocks.values())
        missing = [key for key, path in blocks.items() if checksummed_file.find(path) is None]
        read = functools.partial(_read_block, self._source, list(self._parts), blocks)
        for _ in (executor or InProcess()).map(read, missing):
            pass
        with open_private_sql(self._folder / "spill") as sql:
            for path in blocks.values():
                block = _read(path)
                insert(sql, "rows", block)
                listed = json.loads(block.schema.metadata[b"about"])
                self.rows += listed["records"]
                self.counted.update(listed["counted"])
            self._count(sql)
        if self._source.person is not None:
            # Names of persons are not kept.
            for path in blocks.values():
                path.unlink()

    def categories(self, name: str) -> np.ndarray:
        """Return the different categories of a column of all records; private."""
        return self._keys[name].names

    def find_bounds(self, access: OpenAccess, name: str, part: Part) -> tuple[int | float, int | float] | None:
        """Find the bounds of a column; see `bounds_and_keys.find_bounds_in`."""
        return find_bounds_in(access, bounds_of(name), self._buckets[name], most=part.most, whole=part.whole)

    def find_keys(self, access: OpenAccess, name: str, part: Part) -> list[Any]:
        """Find the categories of a column; see `mechanisms.select_keys`."""
        held = self._keys[name]
        return select_keys(access, keys_of(name), held.names, held.counts, most=part.most)[0].tolist()

    def find_values(self, access: OpenAccess, name: str, part: Part, leaves: Leaves) -> dict[str, Any]:
        """Find how a column is distributed; see `value_tree.find_values_in`."""

        def count(firsts: Sequence[int], width: int, branching: int) -> np.ndarray:
            counts = np.zeros((len(firsts), branching), np.int64)
            for path in self._numbers[name]:
                counts += NumberCounts(*_arrays(_read(path))).in_children(leaves, firsts, width, branching)
            return counts

        return find_values_in(access, name, count, leaves.grid, most=1 if self._source.person is None else part.most)

    def _remove_all_but(self, names: Iterable[str]) -> None:
        kept = (*names, CUTS)
        for path in self._folder.iterdir():
            if not path.name.startswith(kept):
                # Persons of records that were encoded by other settings have a folder.
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def _count(self, sql: duckdb.DuckDBPyConnection) -> None:
        """Count the values of each column in the rows of all blocks."""
        for name, (function, *kinds) in _FUNCTIONS.items():
            add_function(sql, name, function, kinds)
        self.n = self.rows
        if self._source.person is not None:
            sql.execute("""
                CREATE TABLE persons AS SELECT person, row_number() OVER () AS owner, person_hash(person) AS salt
                FROM (SELECT DISTINCT person FROM rows);
                CREATE TABLE owned AS SELECT * EXCLUDE person FROM rows JOIN persons USING (person)
            """)
            records = f"SELECT least(count(*), {self._max_rows}) AS n FROM rows WHERE is_record GROUP BY person"
            self.n = int(sql.sql(f"SELECT coalesce(sum(n), 0) FROM ({records})").fetchall()[0][0])
        for place, (name, part) in enumerate(self._parts.items()):
            column = f'"{place}"'
            if part.find == KEYS:
                self._keys[name] = self._count_keys(sql, name, column)
            if part.find == BOUNDS:
                self._buckets[name] = np.zeros(len(WHOLE if part.whole else REAL), np.int64)
                bucket = f"bucket_of_{'whole' if part.whole else 'real'}({column})"
                for buckets, counts in self._counted(sql, part, column, bucket, "bucket_hash"):
                    self._buckets[name][buckets] = counts
            if part.levels:
                self._numbers[name] = []
                for i, (numbers, counts) in enumerate(self._counted(sql, part, column, column)):
                    path = self._folder / f"{place}-{i}-numbers"
                    checksummed_file.write_table(path, pa.table({"value": numbers, "count": counts}))
                    self._numbers[name].append(path)

    def _count_keys(self, sql: duckdb.DuckDBPyConnection, name: str, column: str) -> KeyCounts:
        names, counts, size = [np.array([], object)], [np.array([], np.int64)], 0
        for names_of_run, counts_of_run in self._counted(sql, self._parts[name], column, column, "name_hash"):
            size += sum(map(len, names_of_run)) + counts_of_run.nbytes
            if size > _MOST_KEYS:
                raise BadRecords(
                    f"column {shortened(name)}: its different values take more than {_MOST_KEYS / 2**30:g} GiB, the most "
                    "that are counted: expected fewer categories; declare those that matter, or drop the column"
                )
            names.append(names_of_run)
            counts.append(counts_of_run)
        return KeyCounts(np.concatenate(names), np.concatenate(counts))

    def _counted(
        self, sql: duckdb.DuckDBPyConnection, part: Part, column: str, value: str, hash_of: str | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the different values in order, and how many rows or persons count for each, some at a time.

        Args:
            column, value: what is read, and what of it is counted.
            hash_of: of a value for which a person counts once; None where a person counts with each row.
        """
        there = f"WHERE {column} IS NOT NULL AND NOT is_record"
        query = f"SELECT {value} AS value, count(*) AS count FROM rows {there} GROUP BY value ORDER BY value"
        if self._source.person is not None:
            values = f"SELECT owner, salt, {value} AS value FROM owned {there}"
            entries = _ONCE.format(values=values, hash_of=hash_of) if hash_of else _COPIES.format(values=values)
            query = _BOUNDED.format(entries=entries, most=part.most if self._private else 2**62)
        yield from map(_arrays, sql.sql(query).to_arrow_reader(_ROWS))


def _read_block(source: OpenBlocks, names: Sequence[str], blocks: Mapping[str, Path], key: str) -> PartialSums:
    """Write the columns of a block to a file, with the person of each row, and of each record that was not left out."""
    columns, persons = source.opened(key, names)
    counted, records, owners = Counter[str](), 0, list[pa.Array]()
    for part in source.encoded(key, counted):
        records += len(part.encoded)
        owners += [] if persons is None else [part.owners]
    values = {
        str(i): one if isinstance(one := columns[name], pa.ChunkedArray) else pa.array(one, pa.float64(), from_pandas=True)
        for i, name in enumerate(names)
    }
    rows = pa.table(values)
    of_rows = pa.nulls(len(rows), pa.large_binary()) if persons is None else _keys_of(persons)
    tables = [rows.append_column("person", of_rows), pa.table({"person": _keys_of(owners)})]
    tables = [one.append_column("is_record", pa.repeat(i == 1, len(one))) for i, one in enumerate(tables)]
    table = pa.concat_tables(tables, promote_options="default")
    about = json.dumps({"records": records, "counted": counted})
    checksummed_file.write_table(blocks[key], table.replace_schema_metadata({"about": about}))
    return {"records": torch.tensor(records)}


def _keys_of(persons: Iterable[pa.Array]) -> pa.Array:
    """Return the full key of the person of each row (n,)."""
    keys = [(found := person_keys(part))[0].take(pa.array(found[1])) for part in persons]
    return pa.concat_arrays([pa.array([], pa.large_binary()), *keys])


def _arrays(run: pa.Table | pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
    values, counts = (run.column(i).to_numpy(zero_copy_only=False) for i in range(2))
    return values, counts


def _read(path: Path) -> pa.Table:
    """Return the table in a file.

    Raises:
        DamagedBlocks: if it was damaged or removed.
    """
    if (rows := checksummed_file.read_table(path)) is None:
        raise DamagedBlocks.at(path)
    return rows
