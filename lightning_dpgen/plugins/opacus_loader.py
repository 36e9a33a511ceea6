"""Opacus' DPDataLoader over lots that an account has drawn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from opacus.data_loader import DPDataLoader, wrap_collate_with_empty
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.privacy.planning.stage_spec import warn_of_declared
from lightning_dpgen.sampling.as_store import store_of
from lightning_dpgen.sampling.dataset_store import check_map_style, choices_of, item_of
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.sampling.lots import PoissonLots


class AccountDataLoader(DPDataLoader):
    """Poisson lots of a data set at the plan's rate, each for one step of one optimizer.

    `collate_fn` makes a batch of the records of a lot; an empty lot gives a batch of the same form with no records. The
    optimizer is told the draw of each batch before its step (`PrivateOptimizer.expect`), and a batch without a step ends
    the pass. A pass has as many batches as Opacus' loader, ``int(1 / rate)``, and no more than the plan has steps left.

    Args:
        loader: the source of data set, `collate_fn` and workers; its batch size and order are not used.
        optimizer: the optimizer whose account draws the lots, for its stage.
        persons: (N,) the person of each record, as for `PoissonLots`.
        batch_first: True if records are counted by the first dimension of a batch, False if by the second.

    Raises:
        ValueError: for a loader whose records cannot be drawn at the plan's rate, or that has none.
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
        dataset = dataset_of(loader, rate, "data_loader")
        # At the line that calls `AccountEngine.make_private`.
        warn_of_declared(optimizer.account.plan.n, len(dataset), stacklevel=4)
        choices, _ = choices_of(dataset)
        ranks = optimizer.account.ranks
        ranks.assert_equal("choice of records (a split without a seed)", [[*map(int, places)] for places in choices])
        # A lot holds positions; the loader fetches the records.
        places = store_of(torch.arange(len(dataset)))
        lots = PoissonLots(places, optimizer.account, stage=optimizer.stage, persons=persons)
        collate = wrap_collate_with_empty(collate_fn=loader.collate_fn, batch_first=batch_first)
        # The form of a batch, for an empty lot that comes before any other.
        collate.first_batch = _first_batch(loader)
        self.sample_rate, self.distributed = rate, False
        # The __init__ of DPDataLoader makes a sampler of its own.
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
    """The positions of lots; each is announced when it is drawn, unless workers fetch ahead."""

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
        self._lots, self._optimizer, self._remaining, self._ahead = lots, optimizer, steps, ahead
        self._drawn: deque = deque()

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> list[int]:
        if not self._remaining:
            raise StopIteration
        self._remaining -= 1
        lot = self._lots.draw(ahead=len(self._drawn))
        self._drawn.append(lot.draw)
        if not self._ahead:
            self.announce()
        return lot.records.tolist()

    def announce(self) -> None:
        """Tell the optimizer that its next step is for the first lot that is not announced yet."""
        self._optimizer.expect(self._drawn.popleft(), self)


def _first_batch(loader: DataLoader) -> Any:
    item = item_of(loader.dataset, 0)
    try:
        return loader.collate_fn([item])
    except Exception as error:
        # Its message may quote a record.
        raise BadRecords(
            f"data_loader: its collate_fn makes no batch of an item ({type(error).__name__}): expected items of numbers, "
            "arrays or tensors, or a collate_fn that takes them; try it by hand"
        ) from None


def _announced(batches: Iterator[Any], of: _Pass) -> Iterator[Any]:
    """Yield batches, each announced just before."""
    for batch in batches:
        of.announce()
        yield batch


def dataset_of(loader: Any, rate: float, name: str) -> Any:
    """Return the data set of a loader, from which lots can be drawn in the place of its batches.

    Args:
        rate: the plan's.
        name: of the loader, for messages.

    Raises:
        ValueError: for what is no DataLoader, or chooses its records by a sampler of its own.
        BadRecords: for a data set whose items have no positions.
    """
    if not isinstance(loader, DataLoader):
        raise ValueError(
            f"{name} is a {type(loader).__name__}: expected a DataLoader, whose data set, collate_fn and workers are "
            "taken; make one, DataLoader(records)"
        )
    dataset: Any = loader.dataset
    check_map_style(dataset, f"{name}.dataset")
    if isinstance(loader, DPDataLoader):
        if loader.sample_rate != rate:
            raise ValueError(
                f"{name}: a DPDataLoader of sample_rate={loader.sample_rate:g}, and the plan says {rate:g}: pass an "
                "ordinary DataLoader of the data set, or make the plan with that rate"
            )
        return dataset
    plain = loader.batch_size is not None and type(loader.sampler) in (RandomSampler, SequentialSampler)
    if not plain or getattr(loader.sampler, "replacement", False):
        raise ValueError(
            f"{name}: it chooses its records by a sampler of its own, and the plan says that each takes part with "
            f"probability {rate:g}: pass DataLoader(dataset), whose batches are drawn here"
        )
    return dataset
