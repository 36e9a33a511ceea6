"""Records of lots that are fetched by other processes, before they are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.sampling.stores import Store


class _Fetching(Dataset):
    """The records of lots, each asked for by its positions."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getitem__(self, positions: np.ndarray) -> Any:
        try:
            return self._store.take(positions)
        except BadRecords as error:
            # torch would add a traceback to its message.
            return error


def fetch_ahead(store: Store, positions: Iterable[np.ndarray], workers: int) -> Iterator[Any]:
    """Yield the records at some positions after the other, in that order.

    Random numbers of items are keyed by the operating system in each process, as in this one (`DatasetStore`).

    Args:
        store: is copied to each process.
        positions: is iterated over in this process, ahead of what was yielded.
        workers: the number of processes, 1 or more.

    Raises:
        BadRecords: as `Store.take`.

    Example:
        >>> from lightning_dpgen.sampling.as_store import store_of
        >>> lots = fetch_ahead(store_of(np.arange(4)), [np.array([2]), np.array([0, 3])], workers=1)
        >>> [records.tolist() for records in lots]
        [[2], [0, 3]]
    """
    for records in DataLoader(_Fetching(store), sampler=positions, batch_size=None, num_workers=workers):
        if isinstance(records, BadRecords):
            raise records
        yield records
