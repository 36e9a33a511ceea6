"""At most m records of a person over all blocks, exactly, with the persons of one bucket in memory and no more.

Each block writes its persons, sorted into buckets by a keyed hash, into one file (`route`). A bucket then holds all rows
of its persons, from all blocks, and the full key says which rows are one person's (`bound`). The result is written back
for each block (`of`). Every file is there whole or not at all, and ends with a checksum under the key of the hash, so an
interrupted run goes on with the files that are there, and with none that is damaged or was sorted under another key.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.common.folders import make_private, sync_folder
from lightning_dpgen.data.person_keys import person_keys
from lightning_dpgen.data.persons import priorities
from lightning_dpgen.passes import sealed
from lightning_dpgen.privacy.errors import DamagedState
from lightning_dpgen.sampling.errors import BadRecords

STATE = "shuffle.json"
# A bucket for so many bytes of the source: its persons are a few million at most.
_BUCKET_BYTES = 2**26
_MOST_BUCKETS = 4096
# Rows that wait before they are compared with those that are kept so far.
_WAITING = 2**18
# Persons whose rows are counted at a time.
_COUNTED = 2**24
# For each person of a block and bucket: rows, sum of their hashes, bytes of the key.
_PAIR_BYTES = 4 + 8 + 4


def buckets_for(source_bytes: int) -> int:
    """Return a number of buckets for files of so many bytes.

    Example:
        >>> buckets_for(10**6), buckets_for(4 * 10**9)
        (1, 60)
    """
    return min(_MOST_BUCKETS, max(1, -(-source_bytes // _BUCKET_BYTES)))


@dataclass(frozen=True, eq=False, repr=False)
class BlockPersons:
    """The persons of the rows of one block. Private.

    Args:
        numbers: (n,) int64, the number of each row's person: one number a person over all blocks, from 0.
        kept: (n,) bool, the rows that take part: over all blocks at most m of a person.
    """

    numbers: np.ndarray
    kept: np.ndarray


class PersonShuffle:
    """Chooses at most m rows of each person over blocks, of which one is in memory at a time.

    The rows that are kept are those that `persons.bounded` keeps of all rows in memory: they follow from that person's
    rows alone, and not from the order of files or the division into blocks.

    Memory: one block, or the different persons of one bucket in each block, and at most m rows of each. One person with
    many rows takes no more than a byte for each.

    One process at a time makes it and calls `bound`: the caller holds a lock on the folder. It can be pickled, and a copy
    in another process routes blocks into the same folder.

    Args:
        folder: a folder of its own in the run's private folder, which is made; its files are their owner's alone.
        max_rows: m, public.
        buckets: the number of buckets, where this begins anew; see `buckets_for`.

    Raises:
        ValueError: for fewer than 1 bucket or row.
        OSError: if it cannot be written.

    Example:
        >>> import tempfile
        >>> rows = {"a": (pa.array([7, 7]), [1, 2]), "b": (pa.array([3, 7]), [5, 2])}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     shuffle = PersonShuffle(Path(folder) / "persons", max_rows=2, buckets=2)
        ...     for key, (persons, hashes) in rows.items():
        ...         shuffle.route(key, persons, np.array(hashes, np.uint64))
        ...     shuffle.bound(rows)
        ...     first, second = shuffle.of("a"), shuffle.of("b")
        >>> first.numbers[0] == first.numbers[1] == second.numbers[1] != second.numbers[0]
        np.True_
        >>> int(first.kept.sum() + second.kept.sum()), bool(second.kept[0])
        (3, True)
    """

    def __init__(self, folder: Path, max_rows: int, buckets: int = 64) -> None:
        if max_rows < 1:
            raise ValueError(f"max_rows={max_rows}: expected a whole number, 1 or more")
        if not 1 <= buckets <= _MOST_BUCKETS:
            raise ValueError(f"buckets={buckets}: expected a whole number from 1 to {_MOST_BUCKETS}")
        self._folder, self.max_rows = folder, max_rows
        make_private(folder, STATE)
        self._state = self._read_state()
        if not self._state:
            # The hash is keyed, so that no one can make persons that all fall into one bucket. A run that goes on needs
            # the same one.
            self._write_state({"secret": secrets.token_urlsafe(12), "buckets": buckets})

    def is_routed(self, key: str) -> bool:
        """Tell whether the rows of a block wait in the buckets, whole, from this process or one that was interrupted."""
        return self._is_whole(self._block(key))

    def is_done(self, keys: Iterable[str]) -> bool:
        """Tell whether the rows of exactly these blocks have been chosen, so that `of` gives them."""
        keys = list(keys)
        same = "persons" in self._state and self._state.get("about") == self._about(keys)
        return same and all(self._is_whole(self._result(key)) for key in keys)

    @property
    def persons(self) -> int:
        """The number of persons over all blocks, once the rows have been chosen. Private."""
        return self._state["persons"]

    def route(self, key: str, persons: pa.Array, hashes: np.ndarray) -> None:
        """Sort the rows of a block into buckets, on disk.

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
            self._write(self._block(key), self._routed(keys, of_row, hashes))

    def _routed(self, keys: pa.Array, of_row: np.ndarray, hashes: np.ndarray) -> Iterator[memoryview | bytes]:
        """Yield the content of a block's file: a table of sizes, what each bucket holds, and the order of rows."""
        buckets = self._state["buckets"]
        # SipHash of the full key. Two persons of one hash are in one bucket, where their keys tell them apart.
        siphash = pd.util.hash_array(keys.to_numpy(zero_copy_only=False), hash_key=self._state["secret"], categorize=False)
        bucket = (siphash % np.uint64(buckets)).astype(np.int64)
        by_bucket = np.argsort(bucket, kind="stable")
        place = np.empty_like(by_bucket)
        place[by_bucket] = np.arange(len(by_bucket))
        order = np.argsort(place[of_row], kind="stable")
        rows = np.bincount(of_row, minlength=len(keys))[by_bucket]
        ends, sorted_hashes = rows.cumsum(), hashes[order]
        sums = np.add.reduceat(sorted_hashes, ends - rows) if len(rows) else sorted_hashes
        # An array that was just made holds nothing but its own texts, from their beginning.
        keys = keys.take(pa.array(by_bucket))
        lengths, content = pc.binary_length(keys).to_numpy(), memoryview(keys.buffers()[2] or b"")
        pair_starts = np.concatenate([[0], np.bincount(bucket, minlength=buckets).cumsum()])
        row_starts, byte_starts = (np.concatenate([[0], x.cumsum()])[pair_starts] for x in (rows, lengths))
        yield np.stack([np.diff(x) for x in (pair_starts, row_starts, byte_starts)], axis=1).astype(np.int64).tobytes()
        rows, lengths = rows.astype(np.uint32), lengths.astype(np.uint32)
        pieces = zip(pairwise(pair_starts), pairwise(row_starts), pairwise(byte_starts), strict=True)
        for (first, last), (first_row, last_row), (first_byte, last_byte) in pieces:
            yield rows[first:last].tobytes() + sums[first:last].tobytes() + lengths[first:last].tobytes()
            yield content[first_byte:last_byte]
            yield sorted_hashes[first_row:last_row].tobytes()
        yield order.astype(np.uint32).tobytes()

    def bound(self, keys: Iterable[str]) -> None:
        """Choose the rows of each person over these blocks, each of which must have been routed.

        A run that was interrupted goes on with the buckets that are left. At the end the keys of persons are removed from
        the disk.

        Args:
            keys: of the blocks, in their order.

        Raises:
            ValueError: for no block, or one that has not been routed.
            DamagedState: if a file is not what was written.
            OSError: if the disk is full; the same call goes on.
        """
        keys = list(keys)
        if self.is_done(keys):
            self._remove("block-*", "bucket-*")
            return
        if not keys or (missing := [key for key in keys if not self.is_routed(key)]):
            if keys and (path := self._block(missing[0])).exists():
                raise _damaged(path)
            which = repr(missing[0]) if keys else "none"
            raise ValueError(f"block {which}: expected one or more, and route() for each before bound()")
        if self._state.get("about") != self._about(keys):
            # Files of other blocks are never taken for those of these, wherever this is interrupted.
            self._write_state({name: self._state[name] for name in ("secret", "buckets")})
            self._remove("bucket-*", "persons-*")
            self._write_state(self._state | {"about": self._about(keys)})
        blocks = [self._block(key) for key in keys]
        sizes = np.stack([self._sizes(block) for block in blocks])
        for bucket in range(self._buckets):
            if not self._is_whole(self._bucket(bucket)):
                self._write(self._bucket(bucket), self._bounded(blocks, bucket, sizes))
        counts = [int(np.fromfile(self._bucket(bucket), np.int64, 1)[0]) for bucket in range(self._buckets)]
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        for place, key in enumerate(keys):
            if not self._is_whole(self._result(key)):
                self._write(self._result(key), self._written_back(blocks[place], place, sizes, starts))
        kept = functools.partial(map, lambda key: (one := self.of(key)).numbers[one.kept], keys)
        check_most_rows(kept, int(starts[-1]), self.max_rows)
        self._write_state(self._state | {"persons": int(starts[-1])})
        self._remove("block-*", "bucket-*")

    def of(self, key: str) -> BlockPersons:
        """Return the persons of the rows of a block, in their order, once the rows have been chosen.

        Raises:
            OSError, DamagedState: if they cannot be read.
        """
        path = self._result(key)
        if (content := sealed.read(path, self._key)) is None:
            raise _damaged(path)
        numbers = np.load(io.BytesIO(content), allow_pickle=False)
        # The numbers of rows that are left out are written as their complements, which are negative.
        return BlockPersons(np.where(numbers < 0, ~numbers, numbers), numbers >= 0)

    @property
    def _buckets(self) -> int:
        return self._state["buckets"]

    @property
    def _key(self) -> bytes:
        """The key of checksums: files that were sorted by another hash, or into other buckets, are not taken for these."""
        return f"{self._state['secret']} {self._buckets}".encode()

    def _is_whole(self, path: Path) -> bool:
        return sealed.find(path, self._key) is not None

    def _bounded(self, blocks: list[Path], bucket: int, sizes: np.ndarray) -> Iterator[bytes]:
        """Yield the content of a bucket's file: how many persons, the number of each pair's, and whether a row is kept.

        A pair is a person and a block that holds rows of theirs.
        """
        segments = [_read_pairs(block, bucket, own) for block, own in zip(blocks, sizes, strict=True)]
        rows, sums, lengths = (np.concatenate(parts) for parts in list(zip(*segments, strict=True))[:3])
        offsets = np.concatenate([[0], lengths.astype(np.int64).cumsum()])
        content = pa.py_buffer(b"".join(segment.keys for segment in segments))
        keys = pa.Array.from_buffers(pa.large_binary(), len(rows), [None, pa.py_buffer(offsets), content])
        encoded = keys.dictionary_encode()
        person, persons = encoded.indices.to_numpy(), len(encoded.dictionary)
        del segments, keys, content, encoded
        yield np.array([persons], np.int64).tobytes()
        yield person.astype(np.uint32).tobytes()
        total, together = np.zeros(persons, np.int64), np.zeros(persons, np.uint64)
        np.add.at(total, person, rows.astype(np.int64))
        np.add.at(together, person, sums)
        over = total > self.max_rows
        kept = np.ones(int(rows.sum()), bool)
        if over.any():
            self._leave_out(blocks, bucket, sizes, kept, (person, rows, over, together))
        yield kept.tobytes()

    def _leave_out(
        self, blocks: list[Path], bucket: int, sizes: np.ndarray, kept: np.ndarray, pairs: tuple[np.ndarray, ...]
    ) -> None:
        """Mark as left out what persons with more than m rows have beyond the m of the lowest priorities."""
        person, rows, over, together = pairs
        lowest, first, first_row = _Lowest(self.max_rows), 0, 0
        for block, own in zip(blocks, sizes, strict=True):
            last, last_row = first + own[bucket, 0], first_row + own[bucket, 1]
            if over[person[first:last]].any():
                of_row = np.repeat(person[first:last], rows[first:last])
                at = np.flatnonzero(over[of_row])
                whose = of_row[at]
                lowest.add(whose, priorities(_read_hashes(block, bucket, own)[at], together[whose]), first_row + at)
                kept[first_row + at] = False
            first, first_row = last, last_row
        kept[lowest.positions()] = True

    def _written_back(self, block: Path, place: int, sizes: np.ndarray, starts: np.ndarray) -> Iterator[bytes]:
        """Yield the content of a block's result: an array of NumPy."""
        before = sizes[:place].sum(axis=0)
        all_pairs = sizes[:, :, 0].sum(axis=0)
        pairs, rows = sizes[place, :, 0], sizes[place, :, 1]
        of_row, kept = [np.zeros(0, np.int64)], [np.zeros(0, bool)]
        for bucket in np.flatnonzero(pairs).tolist():
            with open(self._bucket(bucket), "rb") as file:
                file.seek(8 + 4 * int(before[bucket, 0]))
                number = np.fromfile(file, np.uint32, int(pairs[bucket])).astype(np.int64) + starts[bucket]
                file.seek(8 + 4 * int(all_pairs[bucket]) + int(before[bucket, 1]))
                kept.append(np.fromfile(file, bool, int(rows[bucket])))
            of_row.append(np.repeat(number, _read_pairs(block, bucket, sizes[place]).rows))
        sorted_numbers, sorted_kept = np.concatenate(of_row), np.concatenate(kept)
        order = _read_order(block, sizes[place])
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.where(sorted_kept, sorted_numbers, ~sorted_numbers)
        content = io.BytesIO()
        np.save(content, numbers, allow_pickle=False)
        yield content.getvalue()

    def _sizes(self, path: Path) -> np.ndarray:
        """Return for each bucket (P, 3) how many persons, rows and bytes of keys a block holds."""
        sizes = np.fromfile(path, np.int64, 3 * self._buckets)
        whole = sizes.size == 3 * self._buckets and (sizes >= 0).all()
        sizes = sizes.reshape(-1, 3) if whole else np.zeros((self._buckets, 3), np.int64)
        content = sizes.nbytes + _segment_bytes(sizes).sum() + 4 * sizes[:, 1].sum()
        if not whole or path.stat().st_size != content + sealed.LENGTH:
            raise _damaged(path)
        return sizes

    def _about(self, keys: Iterable[str]) -> str:
        """Return a digest of what the results are about."""
        return hashlib.blake2b(json.dumps([self.max_rows, *keys]).encode(), digest_size=16).hexdigest()

    def _block(self, key: str) -> Path:
        return self._folder / f"block-{_name(key)}"

    def _bucket(self, bucket: int) -> Path:
        return self._folder / f"bucket-{bucket:04}"

    def _result(self, key: str) -> Path:
        return self._folder / f"persons-{_name(key)}.npy"

    def _write(self, path: Path, parts: Iterable[bytes | memoryview]) -> None:
        sealed.write(path, parts, self._key)

    def _read_state(self) -> dict[str, Any]:
        # Without it the blocks are sorted anew, under another key.
        content = sealed.read(self._folder / STATE)
        return {} if content is None else json.loads(content)

    def _write_state(self, state: dict[str, Any]) -> None:
        sealed.write(self._folder / STATE, [json.dumps(state).encode()])
        self._state = state

    def _remove(self, *patterns: str) -> None:
        for pattern in patterns:
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


class _Pairs(NamedTuple):
    """The persons of a block and bucket: how many rows each has, the sum of their hashes, and the key."""

    rows: np.ndarray
    sums: np.ndarray
    lengths: np.ndarray
    keys: bytes


class _Lowest:
    """The positions of the m rows of lowest priority of each person, of rows that come a block at a time."""

    def __init__(self, most: int) -> None:
        self._most, self._kept = most, (np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.int64))
        self._waiting: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._rows = 0

    def add(self, person: np.ndarray, priority: np.ndarray, position: np.ndarray) -> None:
        self._waiting.append((person.astype(np.int64), priority, position.astype(np.int64)))
        self._rows += len(person)
        # Those that are kept are sorted again only with as many new ones, so that each row is sorted a few times in all.
        if self._rows > max(_WAITING, len(self._kept[0])):
            self._sort()

    def positions(self) -> np.ndarray:
        self._sort()
        return self._kept[2]

    def _sort(self) -> None:
        person, priority, position = (np.concatenate(parts) for parts in zip(self._kept, *self._waiting, strict=True))
        # The first position of equal priorities is taken, as in `persons.bounded`.
        order = np.lexsort((priority, person))
        counts = np.bincount(person) if len(person) else person
        rank = np.arange(len(order)) - np.repeat(counts.cumsum() - counts, counts)
        chosen = order[rank < self._most]
        self._kept, self._waiting, self._rows = (person[chosen], priority[chosen], position[chosen]), [], 0


def _read_pairs(block: Path, bucket: int, sizes: np.ndarray) -> _Pairs:
    persons, _, content = map(int, sizes[bucket])
    with open(block, "rb") as file:
        file.seek(sizes.nbytes + int(_segment_bytes(sizes[:bucket]).sum()))
        rows, sums, lengths = (np.fromfile(file, kind, persons) for kind in (np.uint32, np.uint64, np.uint32))
        return _Pairs(rows, sums, lengths, file.read(content))


def _read_hashes(block: Path, bucket: int, sizes: np.ndarray) -> np.ndarray:
    with open(block, "rb") as file:
        end = sizes.nbytes + int(_segment_bytes(sizes[: bucket + 1]).sum())
        file.seek(end - 8 * int(sizes[bucket, 1]))
        return np.fromfile(file, np.uint64, int(sizes[bucket, 1]))


def _read_order(block: Path, sizes: np.ndarray) -> np.ndarray:
    with open(block, "rb") as file:
        file.seek(sizes.nbytes + int(_segment_bytes(sizes).sum()))
        return np.fromfile(file, np.uint32, int(sizes[:, 1].sum()))


def _name(key: str) -> str:
    return hashlib.blake2b(key.encode(), digest_size=12).hexdigest()


def _segment_bytes(sizes: np.ndarray) -> np.ndarray:
    """Return the bytes of what each bucket of a block holds, from its persons, rows and bytes of keys (..., 3)."""
    return _PAIR_BYTES * sizes[..., 0] + 8 * sizes[..., 1] + sizes[..., 2]


def _damaged(path: Path) -> DamagedState:
    return DamagedState(f"{path}: is not what this run has saved, or only a part of it; the block has to be routed anew")
