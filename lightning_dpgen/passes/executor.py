"""The interface of what computes partial sums: one process, or many that may fail and be asked again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

from torch import Tensor

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
