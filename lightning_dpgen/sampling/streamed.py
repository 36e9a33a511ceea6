"""Records of a source that is passed once, in its own order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from lightning_dpgen.sampling.as_store import empty_form
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.sampling.stores import DatasetStore, fetch_quietly


def is_streamed(records: Any) -> bool:
    """Return whether records come from a source that is iterated over, of torch or of Hugging Face's ``datasets``."""
    hugging_face = type(records).__module__.partition(".")[0] == "datasets"
    return isinstance(records, IterableDataset) or (hugging_face and not hasattr(records, "__len__"))


class StreamedStore(DatasetStore):
    """The items of an iterable source, fetched one after the other by one process, and collated as a DataLoader does it.

    The place of an item is that of its record. So each item follows from its own record alone, and none of them from how
    many there are: a source that leaves out items, or mixes their order by what it has seen, moves others.

    Args:
        source: an IterableDataset; the first item is read at once, for its form.
        n: the number of places, public; a source that ends before it is refused when that is seen.

    Raises:
        BadRecords: for a source without items, or whose first one cannot be collated.

    Example:
        >>> class Numbers(IterableDataset):
        ...     def __iter__(self):
        ...         yield from range(10)
        >>> store = StreamedStore(Numbers(), 10)
        >>> store.take(np.array([0, 1])), store.take(np.array([4]))
        (tensor([0, 1]), tensor([4]))
    """

    def __init__(self, source: Any, n: int) -> None:
        items = iter(source)
        first = fetch_quietly(lambda: list(itertools.islice(items, 1)))
        if not first:
            raise BadRecords(f"records is a {type(source).__name__} without items: expected at least one")
        super().__init__(_Reader(itertools.chain(first, items), n), empty_form(first, type(source).__name__))


class _Reader(Dataset):
    """Items of an iterator by their places, which may only rise; those that are passed over are dropped."""

    def __init__(self, items: Iterator[Any], n: int) -> None:
        self._items, self._n, self._next = items, n, 0

    def __len__(self) -> int:
        return self._n

    def __getitems__(self, places: list[int]) -> list[Any]:
        return [self[place] for place in places]

    def __getitem__(self, place: int) -> Any:
        if place < self._next:
            raise BadRecords("the stream has passed these records already, and is read once: begin a new run")
        left = place - self._next
        self._next = place + 1
        for item in itertools.islice(self._items, left, None):
            return item
        raise BadRecords("the stream has ended before its n records: n is the number of its records, exactly")
