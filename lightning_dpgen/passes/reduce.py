"""Exact sums over all blocks: the same whole numbers for any order and any division of the records, and after a retry."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from lightning_dpgen.common import pace
from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.passes import sealed
from lightning_dpgen.passes.blocks import Blocks
from lightning_dpgen.passes.executor import InProcess, PartialSums, PassExecutor
from lightning_dpgen.privacy.noise.units import LARGEST_SUM

# Sums are held in two parts: multiples of 2^32, and the rest below that, which 2^30 blocks do not fill.
_HALF = 32
# Seconds of work that an interrupt may lose.
_UNKEPT = 20.0


class Keyed(Protocol):
    """Records in blocks as a pass reads them: `Blocks`, or the features of records.

    Attributes:
        keys: as for `Blocks`.
    """

    keys: Sequence[str]

    def __len__(self) -> int:
        """Return the number of records; private."""

    def read(self, key: str) -> Any:
        """Return the records of a block, as the function of a pass takes them."""


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
        >>> import numpy as np
        >>> from lightning_dpgen.data.records import Records
        >>> from lightning_dpgen.data.layout import Encoded
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> from lightning_dpgen.passes.blocks import Slices
        >>> class Ink:
        ...     shapes = {"ink": (2,)}
        ...     def __call__(self, records):
        ...         return {"ink": torch.from_numpy(records.encoded.units.sum(axis=0, dtype=np.int64))}
        >>> records = Records(ImageSchema(1, 2, levels=1), Encoded(np.eye(2, dtype=np.uint8), np.zeros((2, 0), np.uint8)))
        >>> reduce(Slices(records, rows=1), Ink())
        {'ink': tensor([1, 1])}
    """
    # Sums that are kept are about these blocks and these sums.
    described = json.dumps([of, list(blocks.keys), {name: list(shape) for name, shape in function.shapes.items()}])
    about = hashlib.blake2b(described.encode(), digest_size=16).hexdigest()
    total = _Total.kept(keep, about) or _Total(about, function.shapes)
    left = [key for key in blocks.keys if key not in total.counted]
    last = time.monotonic()
    with pace.stage("passing over all records", len(blocks.keys), done=len(total.counted)) as progress:
        for key, partial in (executor or InProcess()).map(functools.partial(_sum_block, blocks, function), left):
            total.add(key, partial)
            progress.done = len(total.counted)
            after_block()
            if keep is not None and time.monotonic() - last > _UNKEPT:
                total.save(keep)
                last = time.monotonic()
    if missing := [key for key in blocks.keys if key not in total.counted]:
        raise RuntimeError(f"the pass ended without the block {missing[0]!r}: expected each block once or more")
    if keep is not None and left:
        total.save(keep)
    return total.sums()


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
        found = {}
        for name, high in self._high.items():
            carried = self._low[name] >> _HALF
            high = high + carried
            # The multiples of 2^32 alone tell whether the sum fits.
            if high.numel() and not -(2**30) < int(high.min()) <= int(high.max()) < 2**30:
                raise _too_large(name)
            found[name] = (high << _HALF) + (self._low[name] - (carried << _HALF))
        return found

    def save(self, path: Path) -> None:
        content = io.BytesIO()
        torch.save({"counted": "\n".join(self.counted), "high": self._high, "low": self._low}, content)
        sealed.write(path, [content.getbuffer()], self._about.encode())

    @classmethod
    def kept(cls, path: Path | None, about: str) -> _Total | None:
        """Return the sums that were kept of this pass; None where there are none, or they are damaged."""
        # Nothing was paid for, so the pass begins anew where they are not what was saved.
        content = None if path is None else sealed.read(path, about.encode())
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
