"""Blocks that are encoded once and kept in files, from which all passes read them."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.reading import Reading
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.passes.executor import InProcess, PartialSums, PassExecutor
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.chain import hold
from lightning_dpgen.sampling.errors import BadRecords

# Names in the folder besides those of blocks: of its lock, and of the sums so far of a pass over the blocks.
LOCK, SUMS = "in-use", "sums"
# The records of a block that is kept, of which a few are in memory at a time.
_ROWS = 1 << 18


class SourceBlocks(Protocol):
    """The blocks of a source, as `TableBlocks` are: what `KeptBlocks` reads once."""

    schema: TableSchema
    values: bool

    @property
    def keys(self) -> list[str]:
        """The names of the blocks."""

    def identity(self, key: str) -> str:
        """Return a text that changes with what is read."""

    def encoded(self, key: str, counted: Counter[str]) -> Any:
        """Yield the records of a block as `Reading`, some at a time."""


class KeptBlocks:
    """Records as `Blocks`, in files that the owner alone may read. Private.

    A block of the source is read, checked and encoded once, and is kept in parts of so many records that a few of them
    take little memory. A part is there whole or not at all, and so is the list of the parts of a block, so an interrupted
    pass goes on with the blocks that it lacks. A block is known again by the size and the time of its file, and by all that
    decides how it is read.

    Args:
        source: the blocks as they are read.
        folder: where they are kept, in a private place.
    """

    def __init__(self, source: SourceBlocks, folder: Path) -> None:
        self.schema, self._source, self._folder = source.schema, source, folder
        self._parts: dict[str, Path] = {}
        self.counted: dict[str, int] = {}
        self._rows: dict[str, int] = {}

    @property
    def keys(self) -> list[str]:
        """The names of the parts, in the order of the source."""
        return list(self._parts)

    def __len__(self) -> int:
        """Return the number of records; private."""
        return sum(self._rows.values())

    def fill(self, executor: PassExecutor | None = None) -> None:
        """Read and encode the blocks that are not kept yet.

        Args:
            executor: where this is done; other processes need the same files in the same places. None for this process.

        Raises:
            BadRecords: for what cannot be read; blocks that were kept before stay.
            OSError: from the disk; likewise.
            filelock.Timeout: if another process fills the folder.
        """
        self._folder.mkdir(mode=0o700, exist_ok=True)
        with hold(self._folder / LOCK):
            names = {key: _name(self._source.identity(key)) for key in self._source.keys}
            for path in self._folder.iterdir():
                if path.name.partition("-")[0].partition(".")[0] not in {*names.values(), LOCK, SUMS}:
                    path.unlink()
            left = [key for key, name in names.items() if not self._list(name).is_file()]
            for _ in (executor or InProcess()).map(functools.partial(_keep, self._source, self._folder, names), left):
                pass
        counted = Counter[str]()
        for key, name in names.items():
            found = json.loads(self._list(name).read_text())
            counted.update(found["counted"])
            for i, rows in enumerate(found["rows"]):
                part = key if len(found["rows"]) == 1 else f"{key}, part {i}"
                self._parts[part], self._rows[part] = _part(self._folder, name, i), rows
        self.counted = dict(counted)

    def read(self, key: str) -> Records:
        """Return the records of a part.

        Raises:
            BadRecords: if its file was damaged since.
        """
        path = self._parts[key]
        try:
            with open(path, "rb") as file:
                arrays = [np.load(file, allow_pickle=False) for _ in range(4 if self._source.values else 2)]
        except (ValueError, EOFError) as error:
            raise BadRecords(f"{path}: is damaged ({error}): remove the file and its list {path.stem}; go on") from None
        codes, units, *values = arrays
        by_values = TableValues(self.schema, *values) if values else None
        return Records(self.schema, Encoded(units, codes), values=by_values)

    def remove(self) -> None:
        """Remove all that is kept."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _list(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def _name(identity: str) -> str:
    return hashlib.blake2b(identity.encode(), digest_size=12).hexdigest()


def _part(folder: Path, name: str, i: int) -> Path:
    return folder / f"{name}-{i}.npy"


def _keep(source: SourceBlocks, folder: Path, names: dict[str, str], key: str) -> PartialSums:
    """Encode one block into files, and return the number of its records."""
    counted, rows, waiting = Counter[str](), list[int](), list[Reading]()

    def flush() -> None:
        if waiting:
            _write(_part(folder, names[key], len(rows)), _bytes(waiting))
            rows.append(sum(len(part.encoded) for part in waiting))
            waiting.clear()

    for part in source.encoded(key, counted):
        if sum(len(one.encoded) for one in waiting) + len(part.encoded) > _ROWS:
            flush()
        if len(part.encoded):
            waiting.append(part)
    flush()
    _write(folder / f"{names[key]}.json", json.dumps({"rows": rows, "counted": dict(counted)}).encode())
    return {"records": torch.tensor(sum(rows))}


def _bytes(parts: list[Reading]) -> memoryview:
    """Return records as arrays one after the other, those of codes by column, which tables of counts read one by one."""
    encoded, content = Encoded.joined([part.encoded for part in parts]), io.BytesIO()
    np.save(content, np.asfortranarray(encoded.codes))
    np.save(content, encoded.units)
    if parts[0].values is not None:
        values = TableValues.joined([part.values for part in parts])
        np.save(content, np.asfortranarray(values.numbers))
        np.save(content, np.asfortranarray(values.codes))
    return content.getbuffer()


def _write(path: Path, content: bytes | memoryview) -> None:
    try:
        durable.write(path, content)
    except OSError:
        # Half a file takes room on a disk that may be full.
        durable.partial_path(path).unlink(missing_ok=True)
        raise
