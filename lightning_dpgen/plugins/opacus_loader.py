"""Opacus' DPDataLoader over lots that an account has drawn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from opacus.data_loader import DPDataLoader, wrap_collate_with_empty
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.sampling.lots import PoissonLots


class AccountDataLoader(DPDataLoader):
    """Poisson lots of a data set at the plan's rate, each for one step of one optimizer.

    A batch is what `collate_fn` makes of the records of a lot; a lot of none gives a batch of the same form with no
    records. Before the optimizer's step it is told which draw the batch is (`PrivateOptimizer.expect`), and a batch that
    is left without a step ends the pass. A pass has as many batches as Opacus' loader, ``int(1 / rate)``, and no more than
    the plan has steps left.

    Args:
        loader: of which data set, `collate_fn` and workers are taken; its batch size and order are not.
        optimizer: whose account draws the lots, for the optimizer's stage.
        persons: (N,) whose each record is, as for `PoissonLots`.
        batch_first: whether records are counted by the first dimension of a batch, or by the second.

    Raises:
        ValueError: for a loader whose records cannot be drawn at the plan's rate, or without a record.
    """

    def __init__(
        self,
        loader: DataLoader,
        optimizer: PrivateOptimizer,
        *,
        persons: np.ndarray | None = None,
        batch_first: bool = True,
    ) -> None:
        rate = optimizer.account.plan.stage(optimizer.stage).access.sample_rate
        dataset = loader.dataset
        _check(loader, rate)
        # Records are told by their positions; the loader fetches them.
        lots = PoissonLots(torch.arange(len(dataset)), optimizer.account, stage=optimizer.stage, persons=persons)
        collate = wrap_collate_with_empty(collate_fn=loader.collate_fn, batch_first=batch_first)
        # The form of a batch, for lots of no record that come before any other.
        collate.first_batch = loader.collate_fn([dataset[0]])
        self.sample_rate, self.distributed = rate, False
        # That of DPDataLoader makes a sampler of its own.
        DataLoader.__init__(
            self,
            dataset,
            batch_sampler=_Lots(lots, optimizer, len(dataset), rate, ahead=loader.num_workers > 0),
            collate_fn=collate,
            num_workers=loader.num_workers,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
        )

    def __iter__(self) -> Iterator[Any]:
        batches = super().__iter__()
        return batches if not self.num_workers else _announced(batches, self.batch_sampler.newest)


class _Lots(UniformWithReplacementSampler):
    """The positions of lots; where workers do not fetch ahead, each is announced when it is drawn."""

    def __init__(self, lots: PoissonLots, optimizer: PrivateOptimizer, records: int, rate: float, *, ahead: bool) -> None:
        super().__init__(num_samples=records, sample_rate=rate)
        self._lots, self._optimizer, self._ahead = lots, optimizer, ahead

    def __iter__(self) -> Iterator[list[int]]:
        steps = min(self.steps, self._optimizer.account.remaining(self._optimizer.stage))
        self.newest = _Pass(self._lots, self._optimizer, steps, ahead=self._ahead)
        return self.newest


class _Pass:
    """One pass over the data: the positions of each lot, in the order in which batches are handed out."""

    def __init__(self, lots: PoissonLots, optimizer: PrivateOptimizer, steps: int, *, ahead: bool) -> None:
        self._lots, self._optimizer, self._left, self._ahead = lots, optimizer, steps, ahead
        self._drawn: deque = deque()

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> list[int]:
        if not self._left:
            raise StopIteration
        self._left -= 1
        lot = self._lots.draw()
        self._drawn.append(lot.draw)
        if not self._ahead:
            self.announce()
        return lot.records.tolist()

    def announce(self) -> None:
        """Tell the optimizer that its next step is of the first lot that is not announced yet."""
        self._optimizer.expect(self._drawn.popleft(), self)


def _announced(batches: Iterator[Any], of: _Pass) -> Iterator[Any]:
    for batch in batches:
        of.announce()
        yield batch


def _check(loader: DataLoader, rate: float) -> None:
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset) or not len(dataset):
        raise ValueError(
            "data_loader: expected a map-style data set (__getitem__ and __len__) of one record or more, from which "
            "records can be drawn by themselves"
        )
    if isinstance(loader, DPDataLoader):
        if loader.sample_rate != rate:
            raise ValueError(
                f"data_loader: a DPDataLoader of sample_rate={loader.sample_rate:g}, and the plan says {rate:g}: hand over "
                "an ordinary DataLoader of the data set, or make the plan with that rate"
            )
        return
    plain = loader.batch_size is not None and type(loader.sampler) in (RandomSampler, SequentialSampler)
    if not plain or getattr(loader.sampler, "replacement", False):
        raise ValueError(
            "data_loader: it chooses its records by a sampler of its own, and the plan says that each takes part with "
            f"probability {rate:g}: hand over DataLoader(dataset), whose batches are drawn here"
        )
