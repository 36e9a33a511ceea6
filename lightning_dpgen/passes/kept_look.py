"""Records in blocks as a first pass looks at them: what is found privately of each column, counted and kept in files."""

from __future__ import annotations

import functools
import hashlib
import json
import secrets
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from lightning_dpgen.data.discovery import REAL, WHOLE, bounds_of, count_buckets, find_bounds_in, keys_of
from lightning_dpgen.data.key_owners import KeyCounts, KeyOwners
from lightning_dpgen.data.number_counts import NumberCounts
from lightning_dpgen.data.person_keys import key_hashes, person_keys
from lightning_dpgen.data.tables.column import shortened
from lightning_dpgen.data.tables.description import BOUNDS, KEYS
from lightning_dpgen.data.tables.search import Part
from lightning_dpgen.data.value_grid import Leaves
from lightning_dpgen.data.value_tree import find_values_in
from lightning_dpgen.passes import sealed
from lightning_dpgen.passes.executor import InProcess, PartialSums, PassExecutor
from lightning_dpgen.passes.held_folder import HeldFolder
from lightning_dpgen.passes.kept_blocks import CUTS
from lightning_dpgen.passes.kept_records import DamagedBlocks
from lightning_dpgen.passes.person_shuffle import buckets_for
from lightning_dpgen.passes.reduce import reduce
from lightning_dpgen.privacy.access import OpenAccess
from lightning_dpgen.privacy.mechanisms import select_keys
from lightning_dpgen.sampling.errors import BadRecords

# The beginning of the names of all files, and the one of the key by which persons are routed.
LOOK = "look"
_STATE = f"{LOOK}.json"
# The most bytes of different categories of a column, and those that wait before they are counted together.
_MOST_KEYS, _WAITING = 2**30, 2**26
_PERSON, _COUNTED = "person", "counted"
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")


class OpenBlocks(Protocol):
    """The blocks of a source of which something is found privately, as `TableBlocks` are."""

    person: str | None
    source_bytes: int

    @property
    def keys(self) -> list[str]:
        """The names of the blocks."""

    def identity(self, key: str) -> str:
        """Return a text that changes with what is read."""

    def encoded(self, key: str, counted: Counter[str]) -> Any:
        """Yield the records of a block as `Reading`, with anything in the place of what is to be found."""

    def opened(self, key: str, names: Sequence[str]) -> tuple[dict[str, Any], list[pa.Array] | None]:
        """Return the columns of a block that are looked at, and its persons, as `read_open_rows` does."""


class KeptLook(HeldFolder):
    """Records in blocks as a first pass sees them: counts, in files that the owner alone may read. Private.

    A block is read once, as it will be, so that what cannot be read costs nothing. Of each column the different values of
    the block are kept in order, each with its count: as many numbers as the block has rows, or fewer. Noise needs sums of
    these alone: a histogram, the counts of categories, and for each level of a tree the counts of its nodes.

    Where the source says whose the records are, rows are routed into buckets by a keyed hash of the person, and the persons
    of one bucket are in memory at a time, with all their rows. So what counts of a person is the same for any order and any
    division of the records, and the same as of records in memory.

    Every file is there whole or not at all and ends with its checksum. An interrupted look makes those that it lacks.

    Args:
        source: the blocks as they are read.
        parts: what is to be found, by column.
        folder: where the counts are kept, in a private place; files of others in it are removed.
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
        self._blocks: list[str] = []
        self._units: list[str] = []
        self.n = self.rows = 0
        self.counted = Counter[str]()
        self._keys: dict[str, KeyCounts] = {}
        self._buckets: dict[str, np.ndarray] = {}

    def fill(self, executor: PassExecutor | None = None) -> None:
        """Read and count the blocks that are not kept yet; see `hold`.

        Args:
            executor: where this is done; other processes need the same files in the same places. None for this process.

        Raises:
            BadRecords: for what cannot be read, and more categories than are held in memory; what was kept before stays.
            OSError: from the disk; likewise.
            filelock.Timeout: if another process uses the folder.
        """
        executor = executor or InProcess()
        self.hold()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        about = json.dumps([[[name, *_about(part)] for name, part in self._parts.items()], self._max_rows, self._private])
        blocks = {key: _name(f"{self._source.identity(key)} {about}") for key in self._source.keys}
        writer = _Writer(self._source, self._parts, self._folder, self._max_rows, self._private)
        if self._source.person is None:
            self._remove_all_but(blocks.values())
            left = [key for key, name in blocks.items() if not writer.is_whole(name)]
            _map(executor, functools.partial(writer.count_block, blocks), left)
            self._units = self._blocks = list(blocks.values())
        else:
            self._units = self._count_persons(writer, blocks, executor)
        self.rows, self.counted = writer.counted(self._blocks)
        listed = [writer.listed(name) for name in self._units]
        self.n = sum(one["n"] for one in listed)
        # All but the numbers of trees is read before anything is spent, and these are checked.
        self._keys = {name: self._all_keys(name) for name, part in self._parts.items() if part.find == KEYS}
        self._buckets = {name: self._all_buckets(name) for name, part in self._parts.items() if part.find == BOUNDS}
        for place, part in enumerate(self._parts.values()):
            for unit in self._units if part.grid is not None or part.column is not None else ():
                if sealed.find(path := _file(self._folder, unit, place, "numbers")) is None:
                    raise DamagedBlocks.at(path)

    def held(self, name: str) -> np.ndarray:
        """Return the different categories of a column of all records; private."""
        return self._keys[name].names

    def find_bounds(self, access: OpenAccess, name: str, part: Part) -> tuple[int | float, int | float] | None:
        """Find the bounds of a column; see `discovery.find_bounds_in`."""
        return find_bounds_in(access, bounds_of(name), self._buckets[name], most=part.most, whole=part.whole)

    def find_keys(self, access: OpenAccess, name: str, part: Part) -> list[Any]:
        """Find the categories of a column; see `mechanisms.select_keys`."""
        held = self._keys[name]
        return select_keys(access, keys_of(name), held.names, held.counts, most=part.most)[0].tolist()

    def find_values(self, access: OpenAccess, name: str, part: Part, leaves: Leaves) -> dict[str, Any]:
        """Find how a column is distributed; see `value_tree.find_values_in`.

        This process alone reads the numbers, since a cluster may be lost within the access.
        """
        runs = _Runs({unit: _file(self._folder, unit, list(self._parts).index(name), "numbers") for unit in self._units})

        def count(firsts: Sequence[int], width: int, branching: int) -> np.ndarray:
            return reduce(runs, _InChildren(leaves, tuple(firsts), width, branching))["counts"].numpy()

        most = 1 if self._source.person is None else part.most
        return find_values_in(access, name, count, leaves.grid, most=most)

    def _count_persons(self, writer: _Writer, blocks: Mapping[str, str], executor: PassExecutor) -> list[str]:
        """Return the names of buckets, each of which holds what counts of its persons."""
        state = self._read_state()
        routed = {key: f"{name}-{_name(state['secret'])}" for key, name in blocks.items()}
        self._blocks = list(routed.values())
        # Another division of the source has other buckets.
        about = json.dumps([sorted(routed.values()), state["buckets"]])
        units = {f"bucket {i}": _name(f"{about} {i}") for i in range(state["buckets"])}
        self._remove_all_but([*routed.values(), *units.values()])
        if left := [key for key, name in units.items() if not writer.is_whole(name)]:
            route = functools.partial(writer.route, routed, state)
            _map(executor, route, [key for key, name in routed.items() if not writer.is_routed(name)])
            _map(executor, functools.partial(writer.count_bucket, list(routed.values()), units), left)
        # Names of persons are not kept.
        self._remove_all_but([*units.values(), *(f"{name}-{_COUNTED}" for name in routed.values())])
        return list(units.values())

    def _read_state(self) -> dict[str, Any]:
        """Return the key of the hash that routes persons, and the number of buckets, which a run keeps."""
        path = self._folder / _STATE
        content = sealed.read(path)
        if content is not None:
            return json.loads(content)
        state = {"secret": secrets.token_urlsafe(12), "buckets": buckets_for(self._source.source_bytes)}
        sealed.write(path, [json.dumps(state).encode()])
        return state

    def _remove_all_but(self, names: Iterable[str]) -> None:
        kept = tuple(f"{LOOK}-{name}" for name in names)
        for path in self._folder.iterdir():
            if path.name.startswith((*kept, _STATE, CUTS)):
                continue
            # Persons of records that were encoded by other settings have a folder.
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def _all_buckets(self, name: str) -> np.ndarray:
        """Return the counts of the buckets of a column over all units."""
        place, counts = list(self._parts).index(name), np.zeros(len(WHOLE if self._parts[name].whole else REAL), np.int64)
        for unit in self._units:
            counts = counts + _read(_file(self._folder, unit, place, "buckets")).column("count").to_numpy()
        return counts

    def _all_keys(self, name: str) -> KeyCounts:
        """Return the counts of the categories of a column over all units.

        Raises:
            BadRecords: for more different ones than are held in memory.
        """
        together = pa.table({"value": pa.array([], pa.large_string()), "count": pa.array([], pa.int64())})
        waiting: list[pa.Table] = []
        for i, unit in enumerate(self._units):
            waiting.append(_read(_file(self._folder, unit, list(self._parts).index(name), "keys")))
            if i + 1 < len(self._units) and sum(part.nbytes for part in waiting) < max(_WAITING, together.nbytes):
                continue
            counted = pa.concat_tables([together, *waiting]).group_by("value").aggregate([("count", "sum")])
            together, waiting = counted.select(["value", "count_sum"]).rename_columns(["value", "count"]), []
            if together.nbytes > _MOST_KEYS:
                raise BadRecords(
                    f"column {shortened(name)}: its different values take more than {_MOST_KEYS / 2**30:g} GiB, the most "
                    "that are counted: expected fewer categories; declare those that matter, or drop the column"
                )
        together = together.sort_by("value")
        return KeyCounts(np.array(together["value"].to_pylist(), dtype=object), together["count"].to_numpy())


@dataclass(frozen=True)
class _Writer:
    """The tasks that read and count blocks and buckets, which run in any process."""

    source: OpenBlocks
    parts: Mapping[str, Part]
    folder: Path
    max_rows: int
    private: bool

    def count_block(self, names: Mapping[str, str], key: str) -> PartialSums:
        """Count a block of records without persons."""
        raw, _ = self.source.opened(key, list(self.parts))
        counted = Counter[str]()
        n = sum(len(part.encoded) for part in self.source.encoded(key, counted))
        self._keep_counted(names[key], n, counted)
        return self._keep(names[key], raw, None, None, n)

    def route(self, names: Mapping[str, str], state: Mapping[str, Any], key: str) -> PartialSums:
        """Sort the rows of a block into buckets of persons, and those of its records that take part."""
        raw, persons = self.source.opened(key, list(self.parts))
        columns = {str(i): raw[name] for i, name in enumerate(self.parts)}
        rows = pa.table({_PERSON: _keys_of(persons or []), **columns})
        counted = Counter[str]()
        recorded = _keys_of([part.owners for part in self.source.encoded(key, counted)])
        self._keep_counted(names[key], len(recorded), counted)
        for kind, table in (("rows", rows), ("recorded", pa.table({_PERSON: recorded}))):
            sealed.write(_routed(self.folder, names[key], kind), [_by_bucket(table, state)])
        return {"rows": torch.tensor(len(rows))}

    def is_routed(self, name: str) -> bool:
        """Tell whether the rows of a block are in buckets, whole."""
        return all(sealed.find(_routed(self.folder, name, kind)) is not None for kind in ("rows", "recorded"))

    def count_bucket(self, routed: Sequence[str], names: Mapping[str, str], key: str) -> PartialSums:
        """Count what the persons of a bucket hold in all blocks."""
        place = int(key.removeprefix("bucket "))
        rows, recorded = (
            pa.Table.from_batches([_read_batch(_routed(self.folder, name, kind), place) for name in routed])
            for kind in ("rows", "recorded")
        )
        persons = rows[_PERSON].combine_chunks().dictionary_encode()
        owners, salts = persons.indices.to_numpy(), key_hashes(persons.dictionary)
        raw = {name: rows[str(i)] for i, name in enumerate(self.parts)}
        raw = {name: one if pa.types.is_string(one.type) else one.to_numpy() for name, one in raw.items()}
        of_each = recorded[_PERSON].value_counts().field("counts").to_numpy()
        n = int(np.minimum(of_each, self.max_rows).sum())
        return self._keep(names[key], raw, owners, salts[owners], n)

    def _keep_counted(self, name: str, n: int, counted: Counter[str]) -> None:
        """Keep the number of records that were read of a block, and of those that were changed or left out on the way."""
        sealed.write(_routed(self.folder, name, _COUNTED), [json.dumps([n, counted]).encode()])

    def counted(self, names: Iterable[str]) -> tuple[int, Counter[str]]:
        """Return what was kept so of all blocks."""
        kept = [content for name in names if (content := sealed.read(_routed(self.folder, name, _COUNTED))) is not None]
        read = [json.loads(content) for content in kept]
        return sum(n for n, _ in read), sum((Counter(counted) for _, counted in read), Counter())

    def is_whole(self, name: str) -> bool:
        """Tell whether all that is counted of a block or a bucket is there, and what was written."""
        found = self.listed(name)
        return bool(found) and all(sealed.find(self.folder / file) == seal for file, seal in found["seals"].items())

    def listed(self, name: str) -> dict[str, Any]:
        """Return the number of records of a block or a bucket and the checksums of its files, or nothing."""
        content = sealed.read(self._list(name))
        return {} if content is None else json.loads(content)

    def _list(self, name: str) -> Path:
        return self.folder / f"{LOOK}-{name}.json"

    def _keep(
        self, unit: str, raw: Mapping[str, Any], owners: np.ndarray | None, salts: np.ndarray | None, n: int
    ) -> PartialSums:
        seals = {}
        for i, (name, part) in enumerate(self.parts.items()):
            for kind, table in self._counted(part, raw[name], owners, salts):
                path = _file(self.folder, unit, i, kind)
                seals[path.name] = sealed.write(path, [_as_stream(table)])
        sealed.write(self._list(unit), [json.dumps({"n": n, "seals": seals}).encode()])
        return {"records": torch.tensor(n)}

    def _counted(
        self, part: Part, raw: Any, owners: np.ndarray | None, salts: np.ndarray | None
    ) -> Iterable[tuple[str, pa.Table]]:
        """Yield what is counted of a column, by its kind."""
        most = part.most if self.private else None
        if part.find == KEYS:
            counted = KeyCounts.of(KeyOwners.of_column(raw, owners, salts), most)
            yield "keys", pa.table({"value": pa.array(counted.names, pa.large_string()), "count": counted.counts})
            return
        if part.find == BOUNDS:
            yield "buckets", pa.table({"count": count_buckets(raw, WHOLE if part.whole else REAL, owners, most, salts)})
        if part.levels:
            numbers = NumberCounts.of(raw, owners, most, salts)
            yield "numbers", pa.table({"value": numbers.numbers, "count": numbers.counts})


@dataclass(frozen=True)
class _Runs:
    """The numbers of a column, as counted by block or bucket, for a pass over them."""

    files: Mapping[str, Path]

    @property
    def keys(self) -> list[str]:
        return list(self.files)

    def __len__(self) -> int:
        return sum(int(self.read(key).counts.sum()) for key in self.files)

    def read(self, key: str) -> NumberCounts:
        found = _read(self.files[key])
        return NumberCounts(found["value"].to_numpy(), found["count"].to_numpy())


@dataclass(frozen=True)
class _InChildren:
    """The counts of the children of some nodes of a tree, as sums over blocks."""

    leaves: Leaves
    firsts: tuple[int, ...]
    width: int
    branching: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"counts": (len(self.firsts), self.branching)}

    def __call__(self, records: NumberCounts) -> PartialSums:
        return {"counts": torch.from_numpy(records.in_children(self.leaves, self.firsts, self.width, self.branching))}


def _about(part: Part) -> list[Any]:
    return [part.find, part.most, part.whole, part.levels]


def _map(executor: PassExecutor, task: Any, keys: Sequence[str]) -> None:
    for _ in executor.map(task, keys):
        pass


def _name(about: str) -> str:
    return hashlib.blake2b(about.encode(), digest_size=12).hexdigest()


def _file(folder: Path, unit: str, place: int, kind: str) -> Path:
    return folder / f"{LOOK}-{unit}-{place}-{kind}"


def _routed(folder: Path, name: str, kind: str) -> Path:
    return folder / f"{LOOK}-{name}-{kind}"


def _read(path: Path) -> pa.Table:
    """Return the table in a file.

    Raises:
        DamagedBlocks: if it was damaged or removed.
    """
    content = sealed.read(path)
    if content is None:
        raise DamagedBlocks.at(path)
    return pa.ipc.open_stream(content).read_all().combine_chunks()


def _as_stream(table: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_LZ4) as stream:
        stream.write_table(table)
    return memoryview(sink.getvalue())


def _keys_of(persons: Iterable[pa.Array]) -> pa.Array:
    """Return the full key of the person of each row (n,)."""
    keys = [(found := person_keys(part))[0].take(pa.array(found[1])) for part in persons]
    return pa.concat_arrays([pa.array([], pa.large_binary()), *keys])


def _by_bucket(table: pa.Table, state: Mapping[str, Any]) -> memoryview:
    """Return rows as a file of Arrow that holds those of each bucket as one batch."""
    persons = table[_PERSON].combine_chunks().dictionary_encode()
    # The hash is keyed, so that no one can make persons that all fall into one bucket.
    keys = persons.dictionary.to_numpy(zero_copy_only=False)
    hashes = pd.util.hash_array(keys, hash_key=state["secret"], categorize=False)
    bucket = (hashes % np.uint64(state["buckets"])).astype(np.int64)[persons.indices.to_numpy()]
    rows = table.take(pa.array(np.argsort(bucket, kind="stable"))).combine_chunks()
    sizes, sink, first = np.bincount(bucket, minlength=state["buckets"]), pa.BufferOutputStream(), 0
    with pa.ipc.new_file(sink, rows.schema, options=_LZ4) as file:
        for size in sizes.tolist():
            arrays = [column.combine_chunks() for column in rows.slice(first, size).columns]
            file.write_batch(pa.record_batch(arrays, schema=rows.schema))
            first += size
    return memoryview(sink.getvalue())


def _read_batch(path: Path, place: int) -> pa.RecordBatch:
    """Return the rows of a bucket; raise DamagedBlocks if the file was cut since its checksum was read."""
    try:
        with pa.memory_map(str(path)) as mapped:
            content = mapped.read_buffer().slice(0, mapped.size() - sealed.LENGTH)
            return pa.ipc.open_file(content).get_batch(place)
    except (pa.ArrowException, IndexError):
        raise DamagedBlocks.at(path) from None
