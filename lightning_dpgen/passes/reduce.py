"""Exact sums over all blocks: the same whole numbers for any order and any division of the records, and after a retry."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from lightning_dpgen.common import pace
from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.passes import checksummed_file
from lightning_dpgen.privacy.noise.units import LARGEST_SUM, check_multiples
from lightning_dpgen.privacy.ranks import Ranks

# Sums are held in two parts: multiples of 2^32, and the rest below that, which 2^30 blocks do not fill.
_HALF = 32
# Seconds of work that an interrupt may lose.
_UNKEPT = 20.0


# Sums over the records of one block by name, int64. Private.
PartialSums: TypeAlias = Mapping[str, Tensor]


class PassExecutor(Protocol):
    """Where a pass is computed. It sees records and partial sums, and never noise or a ledger."""

    def map(self, task: Callable[[str], PartialSums], keys: Sequence[str]) -> Iterator[tuple[str, PartialSums]]:
        """Yield each key with what the task returns for it, in any order.

        A task is a function of its key alone, and can be pickled with all that it holds. A key may be computed more than
        once, and come more than once: the results are equal, and a pass counts one of them. An implementation hands out
        tasks only as fast as their results are taken, so that few results wait in memory. It writes results to no place
        that others may read.

        Raises:
            BadRecords, ValueError: as the task raises them, in any process.
            OSError: if no process is left, or from the disk.
        """


class InProcess:
    """This process computes one block after the other.

    Example:
        >>> import torch
        >>> [key for key, _ in InProcess().map(lambda key: {"size": torch.tensor([len(key)])}, ["a", "b"])]
        ['a', 'b']
    """

    def map(self, task: Callable[[str], PartialSums], keys: Sequence[str]) -> Iterator[tuple[str, PartialSums]]:
        """Yield each key with what the task returns for it, in their order."""
        for key in keys:
            yield key, task(key)


class Keyed(Protocol):
    """Records in blocks as a pass reads them: `Blocks`, or the features of records.

    A pass may read blocks in any order, in several processes and more than once. An implementation can be pickled, and a
    copy of it in another process reads the same records.

    Attributes:
        keys: the names of the blocks, each once. A key says where a block begins in its source (a file and a row group, or
            a file and a place in bytes). It never tells a number of records.
    """

    keys: Sequence[str]

    def __len__(self) -> int:
        """Return the number of records; private."""

    def read(self, key: str) -> Any:
        """Return the records of a block, as the function of a pass takes them."""


class Blocks(Keyed, Protocol):
    """Records of one schema, divided into blocks of which only a few are in memory.

    Attributes:
        schema: the public description of the records.
    """

    schema: Schema

    def check_persons(self, max_rows: int) -> None:
        """Refuse blocks that do not say whose the records are, where a person may have several, or one with more.

        Raises:
            ValueError, BadRecords: as `sampling.lots.persons_of`.
        """

    def read(self, key: str) -> Records:
        """Return the records of a block, which are the same each time.

        Raises:
            BadRecords: for a block that cannot be read, naming it.
            OSError: from the disk.
        """


class BlockSums(Protocol):
    """A function from the records of a block to sums over them, which can be pickled with all that it holds.

    A record adds the same numbers whatever else is in its block, so the sums do not depend on the division.

    Attributes:
        shapes: those of the sums, by name; public.
    """

    shapes: Mapping[str, tuple[int, ...]]

    def __call__(self, records: Any) -> PartialSums:
        """Return the sums over these records, int64, each below 2^62 in size."""


def reduce(
    blocks: Keyed,
    function: BlockSums,
    executor: PassExecutor | None = None,
    *,
    keep: Path | None = None,
    of: str = "",
    after_block: Callable[[], None] = lambda: None,
) -> dict[str, Tensor]:
    """Return exact sums over all blocks.

    Args:
        blocks: the records. Private.
        function: the sums over the records of one block.
        executor: where they are computed; None for this process.
        keep: the file in which the sums so far are kept now and then, so that an interrupted pass goes on from there; its
            owner alone may read it, and the caller removes it once the sums are used. None to keep none. Private.
        of: what the pass is about; sums that were kept of another pass, or of other blocks, are not used.
        after_block: called after each block; it may raise to end the pass.

    Returns:
        dict: the sums by name, int64. Private.

    Guarantee:
        The sums are the same to the last bit for any order of the blocks, any division of the records into blocks, and
        however often a block was computed or the pass interrupted.

    Raises:
        ValueError: for a sum of 2^62 or more in size, which is never wrapped; for partial sums of other names, shapes or
            types than the function says.
        BadRecords: for a block that cannot be read.
        OSError: from the disk; what was kept stays.

    Example:
        >>> class Halves:
        ...     keys = ["first", "second"]
        ...     def __len__(self):
        ...         return 3
        ...     def read(self, key):
        ...         return torch.tensor({"first": [1, 2], "second": [3]}[key])
        >>> class Total:
        ...     shapes = {"total": ()}
        ...     def __call__(self, records):
        ...         return {"total": records.sum()}
        >>> reduce(Halves(), Total())
        {'total': tensor(6)}
    """
    # Sums that are kept are about these blocks and these sums.
    described = json.dumps([of, list(blocks.keys), {name: list(shape) for name, shape in function.shapes.items()}])
    about = hashlib.blake2b(described.encode(), digest_size=16).hexdigest()
    total = _Total.kept(keep, about) or _Total(about, function.shapes)
    rest = [key for key in blocks.keys if key not in total.counted]
    last = time.monotonic()
    with pace.stage("passing over all records", len(blocks.keys), done=len(total.counted)) as progress:
        for key, partial in (executor or InProcess()).map(functools.partial(_sum_block, blocks, function), rest):
            total.add(key, partial)
            progress.done = len(total.counted)
            after_block()
            if keep is not None and time.monotonic() - last > _UNKEPT:
                total.save(keep)
                last = time.monotonic()
    if missing := [key for key in blocks.keys if key not in total.counted]:
        raise RuntimeError(f"the pass ended without the block {missing[0]!r}: expected each block once or more")
    if keep is not None and rest:
        total.save(keep)
    return total.sums()


def reduce_over_ranks(
    ranks: Ranks, blocks: Keyed, function: BlockSums, executor: PassExecutor | None = None, *, records: int
) -> dict[str, Tensor]:
    """Return exact sums over the records of all ranks, in each of them; all of them call it.

    Whole numbers are added up, so the sums are those of one process to the last bit. They travel in one tensor, with the
    number of records that each rank has gone through.

    Args:
        ranks: who takes part; one alone sends nothing.
        blocks: the records of this rank; there may be none.
        function, executor: as for `reduce`.
        records: the number of records of all ranks. Private.

    Raises:
        ValueError: as `reduce`, or for sums that leave no room for those of the other ranks.
        RuntimeError: if the ranks together have gone through another number of records.
        RankLost: if a rank is gone; nothing was spent.

    Example:
        >>> class Halves:
        ...     keys = ["first", "second"]
        ...     def __len__(self):
        ...         return 3
        ...     def read(self, key):
        ...         return torch.tensor({"first": [1, 2], "second": [3]}[key])
        >>> class Total:
        ...     shapes = {"total": ()}
        ...     def __call__(self, records):
        ...         return {"total": records.sum()}
        >>> reduce_over_ranks(Ranks(), Halves(), Total(), records=3)
        {'total': tensor(6)}
    """
    own_sums = reduce(blocks, function, executor)
    flat = torch.cat([torch.tensor([len(blocks)]), *(sums.reshape(-1) for sums in own_sums.values())])
    for name, sums in own_sums.items():
        check_multiples(name, sums, ranks.size)
    ranks.sum_(flat)
    if int(flat[0]) != records:
        raise RuntimeError("a pass over the records of all ranks left some out, or took some twice: expected each once")
    parts = flat[1:].split([sums.numel() for sums in own_sums.values()])
    return {name: part.view(sums.shape).clone() for (name, sums), part in zip(own_sums.items(), parts, strict=True)}


@dataclass(frozen=True, eq=False, repr=False)
class InBlocks:
    """Records in blocks, and how each full pass over them is made. Private.

    Args:
        blocks: the records.
        executor, keep, after_block: as for `reduce`.
        close: leaves the place of the blocks to others.
    """

    blocks: Blocks
    executor: PassExecutor | None = None
    keep: Path | None = None
    after_block: Callable[[], None] = lambda: None
    close: Callable[[], None] = lambda: None

    @property
    def schema(self) -> Schema:
        """The public description of the records."""
        return self.blocks.schema

    def __len__(self) -> int:
        """Return the number of records; private."""
        return len(self.blocks)

    def reduce(self, function: BlockSums, of: str = "") -> dict[str, Tensor]:
        """Return exact sums over all records; see `reduce`."""
        return reduce(self.blocks, function, self.executor, keep=self.keep, of=of, after_block=self.after_block)


def _sum_block(blocks: Keyed, function: BlockSums, key: str) -> PartialSums:
    """Return the partial sums of one block; a function of its key, which is computed wherever the block is read."""
    return {name: sums.contiguous() for name, sums in function(blocks.read(key)).items()}


class _Total:
    """Sums so far, and the keys of the blocks that are in them: a block that comes again adds nothing."""

    def __init__(self, about: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._about, self.counted = about, dict[str, None]()
        self._high = {name: torch.zeros(shape, dtype=torch.int64) for name, shape in shapes.items()}
        self._low = {name: torch.zeros(shape, dtype=torch.int64) for name, shape in shapes.items()}

    def add(self, key: str, partial: PartialSums) -> None:
        if key in self.counted:
            return
        if set(partial) != set(self._high):
            raise ValueError(f"partial sums {listed(sorted(partial))}: expected {listed(sorted(self._high))}")
        for name, sums in partial.items():
            shape = tuple(self._high[name].shape)
            if (tuple(sums.shape), sums.dtype) != (shape, torch.int64):
                raise ValueError(
                    f"partial sums {name!r} of shape {tuple(sums.shape)} and {sums.dtype}: expected {shape} and torch.int64"
                )
            _check_size(name, sums)
        for name, sums in partial.items():
            high = sums >> _HALF
            self._high[name] += high
            self._low[name] += sums - (high << _HALF)
        self.counted[key] = None

    def sums(self) -> dict[str, Tensor]:
        totals = {}
        for name, high in self._high.items():
            carried = self._low[name] >> _HALF
            high = high + carried
            # The multiples of 2^32 alone tell whether the sum fits.
            if high.numel() and not -(2**30) < int(high.min()) <= int(high.max()) < 2**30:
                raise _too_large(name)
            totals[name] = (high << _HALF) + (self._low[name] - (carried << _HALF))
        return totals

    def save(self, path: Path) -> None:
        content = io.BytesIO()
        torch.save({"counted": "\n".join(self.counted), "high": self._high, "low": self._low}, content)
        checksummed_file.write(path, [content.getbuffer()], self._about.encode())

    @classmethod
    def kept(cls, path: Path | None, about: str) -> _Total | None:
        """Return the sums that were kept of this pass; None where there are none, or they are damaged."""
        # Nothing was paid for, so the pass begins anew where they are not what was saved.
        content = None if path is None else checksummed_file.read(path, about.encode())
        if content is None:
            return None
        kept = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        total = cls(about, {})
        total._high, total._low = kept["high"], kept["low"]
        total.counted = dict.fromkeys(kept["counted"].split("\n"))
        return total


def _check_size(name: str, sums: Tensor) -> None:
    if sums.numel() and not -LARGEST_SUM < int(sums.min()) <= int(sums.max()) < LARGEST_SUM:
        raise _too_large(name)


def _too_large(name: str) -> ValueError:
    return ValueError(f"sums {name!r} reach 2^62: expected fewer records, or a larger unit")
