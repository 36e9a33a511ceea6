"""Blocks that are encoded once and kept in files, from which all passes read them."""

from __future__ import annotations

import functools
import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import filelock
import numpy as np
import pyarrow as pa
import torch

from lightning_dpgen.common import pace
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.persons import MORE_ROWS, row_hashes
from lightning_dpgen.data.reading import Reading
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.passes import checksummed_file
from lightning_dpgen.passes.kept_records import DamagedBlocks, KeptRecords, Part, of_rows, to_rows
from lightning_dpgen.passes.person_shuffle import BlockPersons, PersonShuffle, check_most_rows
from lightning_dpgen.passes.reduce import InProcess, PartialSums, PassExecutor
from lightning_dpgen.privacy.chain import hold
from lightning_dpgen.privacy.errors import DamagedState

# Names in the folder besides those of blocks: of the sums so far of a pass over them, of the folder of their persons, and
# of the places where files of text are cut.
SUMS, PERSONS, CUTS = "sums", "persons", "cuts"
# The records of a block that is kept, of which a few are in memory at a time.
_ROWS = 1 << 18


class LockedFolder:
    """The base of what keeps files of blocks in a folder. The lock lies beside the folder, so that it outlasts it.

    Args:
        folder: the place of the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: filelock.FileLock | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process reads for the one that holds the folder.
        return self.__dict__ | {"_lock": None}

    def hold(self) -> None:
        """Keep other processes from the folder until `close`, or until this process ends.

        Raises:
            filelock.Timeout: if another one uses it.
        """
        if self._lock is None:
            lock = hold(self._folder)
            lock.acquire()
            self._lock = lock

    def close(self) -> None:
        """Leave the folder to others."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


class SourceBlocks(Protocol):
    """The blocks of a source, as `TableBlocks` are: what `EncodedBlockStore` reads once."""

    schema: Schema
    values: bool
    person: str | None

    @property
    def keys(self) -> list[str]:
        """The names of the blocks."""

    def identity(self, key: str) -> str:
        """Return a text that changes with what is read."""

    def encoded(self, key: str, counted: Counter[str]) -> Any:
        """Yield the records of a block as `Reading`, some at a time, with their owners where there is a person."""


class EncodedBlockStore(LockedFolder):
    """Records as `Blocks`, in files that the owner alone may read. Private.

    A block of the source is read, checked and encoded once, and is kept in parts of so many records that a few of them
    take little memory. A part is there whole or not at all, and so is the list of the parts of a block, so an interrupted
    pass goes on with the blocks that it lacks. A block is known again by the size and the time of its file, and by all that
    decides how it is read. Each file ends with a checksum of its name and content: what is damaged or missing is encoded
    anew.

    One process at a time uses the folder, from `hold` or `fill` until `close`.

    Where the source says whose the records are, those of a person over all blocks that take part are chosen by
    `PersonShuffle`, and the others are left out when a part is read.

    Args:
        source: the blocks as they are read.
        folder: where they are kept, in a private place.
        max_rows: how many records of a person take part, where the source says whose they are.
        by_rows: whether the numbers of a record lie side by side, for `store`; else those of a column do, for passes.
    """

    def __init__(self, source: SourceBlocks, folder: Path, max_rows: int = 1, *, by_rows: bool = False) -> None:
        super().__init__(folder)
        self.schema, self._source, self._by_rows = source.schema, source, by_rows
        self._values = source.values
        self._parts: dict[str, Path] = {}
        self.counted: dict[str, int] = {}
        self._rows: dict[str, int] = {}
        self._max_rows = max_rows
        self._shuffle: PersonShuffle | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process reads what is encoded; a copy of the source would open all its files.
        return super().__getstate__() | {"_source": None}

    @property
    def keys(self) -> list[str]:
        """The names of the parts, in the order of the source."""
        return list(self._parts)

    def __len__(self) -> int:
        """Return the number of records that take part; private."""
        return sum(self._rows.values())

    def check_persons(self, max_rows: int) -> None:
        """Refuse a person with more records over all blocks, or unknown persons where one may have several."""
        if self._shuffle is None:
            if max_rows > 1:
                raise ValueError(
                    f"records in blocks: the plan protects a person with up to max_rows={max_rows} records, and these "
                    "records name no persons: name the column of persons, or make the plan with max_rows=1"
                )
        elif self._max_rows > max_rows:
            check_most_rows(lambda: (self.read(key).persons for key in self._parts), self._shuffle.persons, max_rows)

    def fill(self, executor: PassExecutor | None = None) -> None:
        """Read and encode the blocks that are not kept yet, or whose files are not what was written; see `hold`.

        Args:
            executor: where this is done; other processes need the same files in the same places. None for this process.

        Raises:
            BadRecords: for what cannot be read; blocks that were kept before stay.
            OSError: from the disk; likewise.
            filelock.Timeout: if another process uses the folder.
        """
        self.hold()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        names = {key: _name(self._source.identity(key), self._by_rows) for key in self._source.keys}
        for path in self._folder.iterdir():
            if path.name.partition("-")[0].partition(".")[0] not in {*names.values(), SUMS, PERSONS, CUTS}:
                path.unlink()
        if self._source.person is not None:
            self._shuffle = PersonShuffle(self._folder / PERSONS, self._max_rows)
        missing = [key for key, name in names.items() if not self._is_whole(name)]
        if self._shuffle is not None:
            if missing and self._are_chosen(names):
                # The rows that take part were chosen, and stay so: a block is what it was.
                self._encode(missing, names, None, executor)
                missing = []
            if missing or not self._are_chosen(names):
                # The persons of a block are removed once the rows have been chosen, and this is another choice.
                missing = [
                    key
                    for key, name in names.items()
                    if key in missing or not all(map(self._shuffle.is_routed, self._stems([name])))
                ]
        self._encode(missing, names, self._shuffle, executor)
        self._list_parts(names)

    def _are_chosen(self, names: Mapping[str, str]) -> bool:
        """Tell whether the rows that take part have been chosen among just the parts that the lists of the blocks name."""
        assert self._shuffle is not None
        return all(map(self._listed, names.values())) and self._shuffle.is_done(self._stems(names.values()))

    def _encode(
        self, keys: list[str], names: Mapping[str, str], shuffle: PersonShuffle | None, executor: PassExecutor | None
    ) -> None:
        if keys:
            # Sums that were kept of other records are of no use.
            (self._folder / f"{SUMS}.pt").unlink(missing_ok=True)
        keep = functools.partial(_keep, self._source, self._folder, names, shuffle, self._by_rows)
        with pace.stage("reading the records into blocks", len(keys)) as progress:
            for _ in (executor or InProcess()).map(keep, keys):
                progress.advance()

    def read(self, key: str) -> Records:
        """Return the records of a part.

        Raises:
            DamagedBlocks: if its file was damaged or removed since.
        """
        path = self._parts[key]
        content = checksummed_file.read(path)
        if content is None:
            raise DamagedBlocks.at(path)
        file = io.BytesIO(content)
        arrays = [np.load(file, allow_pickle=False) for _ in range(1 if self._by_rows else 2)]
        encoded = of_rows(arrays[0]) if self._by_rows else Encoded(arrays[1], arrays[0])
        values = [np.load(file, allow_pickle=False) for _ in range(2 if self._values else 0)]
        by_values = TableValues(self.schema, *values) if values else None
        if self._shuffle is None:
            return Records(self.schema, encoded, values=by_values)
        persons = self._persons(path)
        encoded = Encoded(encoded.units[persons.kept], np.asfortranarray(encoded.codes[persons.kept]))
        by_values = None if by_values is None else by_values[persons.kept]
        return Records(self.schema, encoded, persons.numbers[persons.kept], by_values)

    def store(self) -> KeptRecords:
        """Return the records that take part as a store, from which lots are drawn; see `by_rows`.

        Records have the positions, and persons the numbers, that they have in memory, so lots by a seed are the same.

        Raises:
            ValueError: for blocks that are kept by columns.
            DamagedBlocks: if a file was damaged or removed since.
        """
        if not self._by_rows:
            raise ValueError("by_rows=False: expected True for a store, whose lots are rows from all over the blocks")
        if self._shuffle is None:
            return KeptRecords(self.schema, [Part(path, self._rows[key]) for key, path in self._parts.items()])
        parts, persons = list[Part](), list[np.ndarray]()
        for path in self._parts.values():
            found = self._persons(path)
            parts.append(Part(path, len(found.kept), self._shuffle, int(found.kept.sum())))
            persons.append(found.numbers[found.kept])
        return KeptRecords(self.schema, parts, np.concatenate(persons))

    def _persons(self, path: Path) -> BlockPersons:
        assert self._shuffle is not None
        try:
            return self._shuffle.of(path.stem)
        except DamagedState:
            raise DamagedBlocks.at(self._folder / PERSONS) from None

    def _listed(self, name: str) -> dict[str, Any]:
        """Return what the list of a block says; nothing where it is missing or damaged."""
        content = checksummed_file.read(self._folder / f"{name}.json")
        return {} if content is None else json.loads(content)

    def _is_whole(self, name: str) -> bool:
        """Tell whether the parts of a block are those of its list."""
        found = self._listed(name)
        parts = enumerate(found.get("seals", ()))
        return bool(found) and all(checksummed_file.find(_part(self._folder, name, i)) == seal for i, seal in parts)

    def _stems(self, names: Iterable[str]) -> list[str]:
        """Return the names of the files of the parts of these blocks."""
        return [_part(self._folder, name, i).stem for name in names for i in range(len(self._listed(name)["rows"]))]

    def _list_parts(self, names: Mapping[str, str]) -> None:
        """Find the parts of all blocks, and choose the records of each person over all of them."""
        counted = Counter[str]()
        for key, name in names.items():
            listing = self._listed(name)
            counted.update(listing["counted"])
            for i, rows in enumerate(listing["rows"]):
                part = key if len(listing["rows"]) == 1 else f"{key}, part {i}"
                self._parts[part], self._rows[part] = _part(self._folder, name, i), rows
        if self._shuffle is not None and self._parts:
            before = len(self)
            self._shuffle.bound(path.stem for path in self._parts.values())
            self._rows = {part: int(self._shuffle.of(path.stem).kept.sum()) for part, path in self._parts.items()}
            counted.update({MORE_ROWS: before - len(self)} if before > len(self) else {})
        self.counted = dict(counted)


def _name(identity: str, by_rows: bool) -> str:
    identity += " by rows" if by_rows else ""
    return hashlib.blake2b(identity.encode(), digest_size=12).hexdigest()


def _part(folder: Path, name: str, i: int) -> Path:
    return folder / f"{name}-{i}.npy"


def _keep(
    source: SourceBlocks, folder: Path, names: Mapping[str, str], shuffle: PersonShuffle | None, by_rows: bool, key: str
) -> PartialSums:
    """Encode one block into files, and return the number of its records."""
    counted, rows, seals, waiting = Counter[str](), list[int](), list[str](), list[Reading]()

    def flush() -> None:
        if waiting:
            if shuffle is not None:
                owners = pa.concat_arrays([part.owners for part in waiting])
                hashes = np.concatenate([row_hashes(part.encoded) for part in waiting])
                shuffle.route(_part(folder, names[key], len(rows)).stem, owners, hashes)
            path = _part(folder, names[key], len(rows))
            seals.append(checksummed_file.write(path, [_bytes(source.schema, waiting, path.name if by_rows else None)]))
            rows.append(sum(len(part.encoded) for part in waiting))
            waiting.clear()

    for part in source.encoded(key, counted):
        if sum(len(one.encoded) for one in waiting) + len(part.encoded) > _ROWS:
            flush()
        if len(part.encoded):
            waiting.append(part)
    flush()
    listed = {"rows": rows, "seals": seals, "counted": dict(counted)}
    checksummed_file.write(folder / f"{names[key]}.json", [json.dumps(listed).encode()])
    return {"records": torch.tensor(sum(rows))}


def _bytes(schema: Schema, parts: list[Reading], by_rows_in: str | None) -> memoryview:
    """Return records as arrays one after the other: by column, which tables of counts read one by one, or by row.

    Args:
        by_rows_in: the name of their file, for rows; None for columns.
    """
    encoded, content = Encoded.joined([part.encoded for part in parts]), io.BytesIO()
    if by_rows_in is not None:
        # Numbers out of range are found here, before lots are drawn.
        np.save(content, to_rows(Records(schema, encoded).encoded, by_rows_in))
    else:
        np.save(content, np.asfortranarray(encoded.codes))
        np.save(content, encoded.units)
    if parts[0].values is not None:
        values = TableValues.joined([part.values for part in parts])
        np.save(content, np.asfortranarray(values.numbers))
        np.save(content, np.asfortranarray(values.codes))
    return content.getbuffer()
