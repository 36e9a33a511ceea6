"""Ranks that are threads of one process: they exchange what several processes would, without starting any."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

from lightning_dpgen.privacy.errors import RankLost, RanksDiffer
from lightning_dpgen.privacy.ranks import Ranks


class _Meeting:
    def __init__(self, size: int) -> None:
        self.barrier, self.said = threading.Barrier(size, timeout=60), [None] * size

    def all(self, rank: int, value: Any) -> list[Any]:
        try:
            self.barrier.wait()
            self.said[rank] = value
            self.barrier.wait()
            return list(self.said)
        except threading.BrokenBarrierError:
            raise RankLost("another rank has stopped") from None


class ThreadRanks(Ranks):
    """One of several threads."""

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        super().__init__(rank, len(meeting.said))
        self._meeting = meeting

    def sum_(self, values):
        total = sum(self._meeting.all(self.rank, values.clone()))
        self.sums = getattr(self, "sums", 0) + 1
        return values.copy_(total)

    def broadcast_object(self, value=None):
        # As bytes, as between processes.
        return pickle.loads(self._meeting.all(self.rank, pickle.dumps(value) if self.leads else None)[0])

    def broadcast_(self, tensors):
        for tensor in tensors:
            tensor.copy_(self._meeting.all(self.rank, tensor.clone())[0])

    def assert_equal(self, what, value):
        values = self._meeting.all(self.rank, value)
        for rank, other in enumerate(values):
            if other != values[0]:
                raise RanksDiffer(f"rank {rank} has another {what} than rank 0")


def together(size: int, work: Callable[[Ranks], Any]) -> list[Any]:
    """Return the results of `work` in each of so many ranks; raise their first error that is not about another rank."""
    meeting, results, errors = _Meeting(size), [None] * size, []

    def one(rank: int) -> None:
        try:
            results[rank] = work(ThreadRanks(rank, meeting) if size > 1 else Ranks())
        except BaseException as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in sorted(errors, key=lambda error: isinstance(error, RankLost)):
        raise error
    return results
