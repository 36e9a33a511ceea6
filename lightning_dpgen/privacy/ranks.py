"""The processes that make one run together, and what they say to each other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

from lightning_dpgen.privacy.errors import RankLost, RanksDiffer

T = TypeVar("T")
# Others wait for what rank 0 does alone (a split, measurements). A rank that dies is noticed at once, by its connection.
_PATIENCE = timedelta(days=7)


class Ranks:
    """One process alone, or several, of which rank 0 leads: it alone writes the ledger.

    All ranks trust each other as the devices of one machine do: what they exchange is private.

    Args:
        control: the group over which they talk; tensors on a GPU take the default group.

    Raises:
        RankLost: from any method that needs all of them, when one is gone.

    Example:
        >>> Ranks().sum_(torch.ones(2)), Ranks().leads
        (tensor([1., 1.]), True)
    """

    def __init__(self, rank: int = 0, size: int = 1, control: dist.ProcessGroup | None = None) -> None:
        self.rank, self.size, self._control = rank, size, control
        self._digest = b""

    @classmethod
    def join(cls) -> Ranks:
        """Make the ranks of torch's default process group; all of them call it."""
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return cls()
        with all_needed():
            return cls(dist.get_rank(), dist.get_world_size(), dist.new_group(backend="gloo", timeout=_PATIENCE))

    @property
    def leads(self) -> bool:
        """True if this is rank 0."""
        return self.rank == 0

    def sum_(self, values: Tensor) -> Tensor:
        """Sum values over all ranks, in place, bit for bit the same in each."""
        if self.size > 1:
            with all_needed():
                dist.all_reduce(values, group=self._control if values.device.type == "cpu" else None)
        return values

    def part_of(self, values: Tensor) -> Tensor:
        """Return the numbers of a contiguous tensor that fall to this rank, as a view: each number to one rank."""
        return values.view(-1).tensor_split(self.size)[self.rank]

    def broadcast_object(self, value: Any = None) -> Any:
        """Return the value of rank 0; that of others is not looked at, nor need they know its type."""
        if self.size == 1:
            return value
        values: list[Any] = [value]
        with all_needed():
            dist.broadcast_object_list(values, src=0, group=self._control)
        return values[0]

    def broadcast_(self, tensors: Sequence[Tensor]) -> None:
        """Put the tensors of rank 0 in the place of all ranks' own."""
        if self.size > 1:
            with all_needed():
                for tensor in tensors:
                    dist.broadcast(tensor, src=0, group=self._control if tensor.device.type == "cpu" else None)

    def assert_equal(self, what: str, value: Any) -> None:
        """Check that all ranks have an equal value.

        Raises:
            RanksDiffer: in every rank, naming one that differs from rank 0.
        """
        if self.size == 1:
            return
        values: list[Any] = [None] * self.size
        with all_needed():
            dist.all_gather_object(values, value, group=self._control)
        for rank, other in enumerate(values):
            if other != values[0]:
                raise RanksDiffer(
                    f"rank {rank} has another {what} than rank 0: start all ranks with the same command, data, software "
                    "and kind of machine"
                )

    def agree(self, *values: Any) -> None:
        """Take down values that all ranks must have alike, such as the size of a noise; `compare` checks them."""
        if self.size > 1:
            self._digest = hashlib.blake2b(self._digest + repr(values).encode(), digest_size=16).digest()

    def compare(self) -> None:
        """Check that all ranks have taken down the same.

        Raises:
            RanksDiffer: in every rank, naming one that differs from rank 0.
        """
        self.assert_equal("clipping rule, bound or divisor", self._digest)

    def leader_first(self, work: Callable[[], T]) -> T:
        """Let rank 0 do its work, and then, if that succeeded, the others theirs."""
        if self.size > 1 and not self.leads and not self.broadcast_object():
            raise RankLost("rank 0 could not do its part, and has said why")
        done = False
        try:
            result = work()
            done = True
        finally:
            if self.leads:
                self.broadcast_object(done)
        return result


@contextmanager
def all_needed() -> Iterator[None]:
    """Raise an error of torch's process groups as a `RankLost`, within the block."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            why = str(error).partition("\n")[0][:200]
            raise RankLost(f"another rank has stopped, or cannot be reached ({why})") from error
        raise
