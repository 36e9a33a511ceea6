"""The items of a user's data set as records, each fetched and collated by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.data import IterableDataset, Subset, default_collate

from lightning_dpgen.sampling.errors import PAD, BadRecords
from lightning_dpgen.sampling.randomness import randomness_of_their_own
from lightning_dpgen.sampling.stores import Store

# Types that torch indexes, by the names that numpy and torch share.
NUMBERS = {"float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool"}
# Types that default_collate takes; texts are refused by name afterwards.
_COLLATED = (Tensor, np.ndarray, np.generic, int, float, str, bytes)
# The number of items that are collated before a run, to tell that they have one size.
_FIRST = 8
_PUBLIC_LENGTH = (
    "a batch is made of each record by itself, so that no length follows from others: pad to one public length, as "
    "DataCollatorWithPadding(tokenizer, padding='max_length', max_length=...) does"
)


@dataclass(frozen=True, eq=False, repr=False)
class DatasetStore(Store):
    """The items of a user's map-style data set, collated as a DataLoader does it.

    Items may draw random numbers, such as those of an augmentation, from the generators of torch's CPU, numpy and Python:
    while items are fetched, these are keyed by the operating system. They are put back afterwards, since a public
    generator that moves on with each record would tell how many there were. A generator that belongs to the data set has
    to be keyed by the operating system too.

    Args:
        dataset: the data set; its items become tensors of the same types and sizes.
        none: a lot of no records.
        together: whether a lot is fetched by one call of ``__getitems__``; otherwise each item is fetched by itself.
        collate_fn: a function that makes a batch of one item; None for `default_collate`.
    """

    dataset: Any
    none: Any
    together: bool
    collate_fn: Callable[[list], Any] | None = None

    @classmethod
    def of(cls, dataset: Any, name: str, collate_fn: Callable[[list], Any] | None = None) -> DatasetStore:
        """Return the store of a data set, whose first items tell the form of all.

        Args:
            name: of the argument, for messages.

        Raises:
            BadRecords: for a data set whose items have no positions, cannot be collated or hold anything but numbers.
        """
        check_map_style(dataset, name)
        form = _Form(dataset, name)
        if collate_fn is None:
            form.check_item(item_of(dataset, 0))
        rows = list(range(min(_FIRST, len(dataset))))
        together = _is_read_alike(dataset, rows)
        first = _collate(dataset, rows, together, collate_fn)
        form.check_batch(first)
        return cls(dataset, tree_map(lambda x: x[:0].clone(), first), together, collate_fn)

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, positions: np.ndarray) -> Any:
        """Return the records at these positions, as every store does.

        Raises:
            BadRecords: for an item that cannot be fetched, or that differs from the first one in types or sizes.
        """
        if not len(positions):
            return self.none
        items = _collate(self.dataset, positions.tolist(), self.together, self.collate_fn)
        if _form(items) != _form(self.none):
            more = "pad, crop or convert in its __getitem__" if self.collate_fn is None else _PUBLIC_LENGTH
            raise BadRecords(
                "an item of the data set differs from its first one in form, types or sizes: expected the same of all; "
                f"{more}"
            )
        return items


def check_map_style(dataset: Any, name: str) -> None:
    """Refuse a data set whose items have no positions, or that has none.

    Args:
        name: of the argument, for messages.

    Raises:
        BadRecords: saying why, and what to do.
    """
    kind, of_hugging_face = type(dataset).__name__, is_of_hugging_face(dataset)
    if of_hugging_face and isinstance(dataset, dict):
        raise BadRecords(f"{name} is a {kind} of several data sets: expected one; pass {name}['train'], for example")
    if isinstance(dataset, IterableDataset) or (of_hugging_face and not hasattr(dataset, "__len__")):
        named = "" if kind == "IterableDataset" else f" ({kind})"
        raise BadRecords(
            f"{name} is an IterableDataset{named}: expected a map-style Dataset, since each record takes part in a Poisson "
            f"lot by itself and is fetched by its position; give it __getitem__ and __len__, pass list({name}) if it fits "
            "into memory, or write its records to an array and memory-map that"
        )
    try:
        has_items = len(dataset) > 0
    except (TypeError, NotImplementedError):
        raise BadRecords(f"{name} is a {kind} without __len__: expected a map-style Dataset; give it one") from None
    if not has_items:
        # Without an item the form of an empty lot is not known.
        raise BadRecords(f"{name} is a {kind} without items: expected at least one; pass tensors of no rows instead")


def is_of_hugging_face(records: Any) -> bool:
    """Return whether records are of the library ``datasets``, which need not be installed."""
    return type(records).__module__.partition(".")[0] == "datasets"


def name_of(dtype: torch.dtype | np.dtype) -> str:
    """Return the name of a type of numbers, the same for torch and numpy."""
    return str(dtype).removeprefix("torch.")


def item_of(dataset: Any, position: int) -> Any:
    """Fetch one item of a data set.

    Raises:
        BadRecords: if that fails.
    """
    return _quietly(lambda: _items(dataset, [position], together=False)[0])


@dataclass(frozen=True)
class _Form:
    """Checks of what the items of a data set hold; only types are named, since a value may be a record's."""

    dataset: Any
    name: str

    @property
    def _kind(self) -> str:
        return f"{self.name} is a {type(self.dataset).__name__} whose items hold"

    @property
    def _encode(self) -> str:
        if is_of_hugging_face(self.dataset):
            name = self.name
            return (
                f"give it a format, {name}.with_format('torch'), or encode it in {name}.with_transform(...) or collate_fn"
            )
        return "encode it in __getitem__ or collate_fn"

    def check_item(self, item: Any) -> None:
        """Refuse an item that `default_collate` does not take: what that says may quote a record."""
        odd = [type(leaf).__name__ for leaf in tree_leaves(item) if not isinstance(leaf, _COLLATED)]
        if odd:
            raise BadRecords(f"{self._kind} {odd[0]}: expected numbers, arrays or tensors; {self._encode}")

    def check_batch(self, batch: Any) -> None:
        for leaf in tree_leaves(batch):
            if not isinstance(leaf, Tensor) or name_of(leaf.dtype) not in NUMBERS:
                kind_of_item = name_of(leaf.dtype) if isinstance(leaf, Tensor) else type(leaf).__name__
                raise BadRecords(f"{self._kind} {kind_of_item}: expected numbers; {self._encode}")
        # A list is collated place by place, to as many columns as it has numbers.
        if isinstance(batch, dict) and any(isinstance(column, list) for column in batch.values()):
            raise BadRecords(f"{self._kind} lists: expected arrays or tensors; {self._encode}")


def _is_read_alike(dataset: Any, rows: list[int]) -> bool:
    """Return whether items that are fetched together are those that are fetched one by one.

    A function that Hugging Face's ``with_transform`` sets is handed all of them, and might mix them beyond the first ones.
    """
    if not hasattr(dataset, "__getitems__"):
        return False
    _, inner = choices_of(dataset)
    if is_of_hugging_face(inner) and getattr(inner, "format", {}).get("type") == "custom":
        return False
    many, alone = (_quietly(lambda x=x: _items(dataset, rows, together=x)) for x in (True, False))
    return len(many) == len(alone) and all(_is_same(*pair) for pair in zip(many, alone, strict=True))


def choices_of(dataset: Any) -> tuple[list[Sequence[int]], Any]:
    """Return the places that each of nested subsets chose, from the outermost one, and the whole data set."""
    chosen = []
    while isinstance(dataset, Subset):
        chosen.append(dataset.indices)
        dataset = dataset.dataset
    return chosen, dataset


def _is_same(one: Any, other: Any) -> bool:
    (leaves, form), (others, form_of_other) = tree_flatten(one), tree_flatten(other)
    if form != form_of_other:
        return False
    for x, y in zip(leaves, others, strict=True):
        if type(x) is not type(y):
            return False
        if isinstance(x, Tensor):
            # Bits, so that NaN is itself.
            x, y = x.detach().cpu().numpy(), y.detach().cpu().numpy()
        if isinstance(x, np.ndarray):
            if x.dtype != y.dtype or x.shape != y.shape or x.tobytes() != y.tobytes():
                return False
        elif not isinstance(x, int | float | str | bytes | np.generic | None) or x != y:
            return False
    return True


def _items(dataset: Any, rows: Sequence[int], *, together: bool) -> list:
    many = getattr(dataset, "__getitems__", None)
    if many is None:
        return [dataset[i] for i in rows]
    return list(many(rows)) if together else [many([i])[0] for i in rows]


def _collate(dataset: Any, rows: list[int], together: bool, collate_fn: Callable[[list], Any] | None) -> Any:
    """Fetch the items at some positions, and collate them."""
    if collate_fn is None:
        return _quietly(lambda: default_collate(_items(dataset, rows, together=together)))
    batches = _quietly(lambda: [_batch_of_one(collate_fn([item])) for item in _items(dataset, rows, together=together)])
    forms = {str(_form(batch)) for batch in batches}
    if len(forms) > 1:
        raise BadRecords(f"batches that collate_fn makes of a record differ in form, types or sizes: {_PUBLIC_LENGTH}")
    _, form = tree_flatten(batches[0])
    columns = zip(*(tree_leaves(batch) for batch in batches), strict=True)
    return tree_unflatten([torch.cat(column) if isinstance(column[0], Tensor) else column[0] for column in columns], form)


def _batch_of_one(batch: Any) -> Any:
    """Return a batch as tensors in tuples, lists and dicts.

    Raises:
        BadRecords: for a tensor with another number of rows than one.
    """
    if isinstance(batch, Mapping):
        return {name: _batch_of_one(value) for name, value in batch.items()}
    if isinstance(batch, np.ndarray) and name_of(batch.dtype) in NUMBERS:
        batch = torch.from_numpy(batch)
    if isinstance(batch, Tensor) and (not batch.dim() or len(batch) != 1):
        # Its shape may be private.
        raise BadRecords("collate_fn gives another tensor than (1, ...) for a list of one item: expected a batch of one")
    return batch


def _quietly(fetch: Callable[[], Any]) -> Any:
    """Return what a function fetches of a data set; its randomness is its own, and its errors tell nothing of records.

    Raises:
        BadRecords: if it fails.
    """
    with randomness_of_their_own():
        try:
            return fetch()
        except BadRecords:
            raise
        except Exception as error:
            # Neither the message nor the traceback is shown: both may quote a record, or say which one it was.
            raise BadRecords(
                f"items of the data set cannot be fetched and collated ({type(error).__name__}): expected numbers, arrays "
                "or tensors of equal sizes; try default_collate on its items by hand, or collate_fn on a list of one item "
                f"({PAD}; collate_fn=... makes the batch of one record)"
            ) from None


def _form(records: Any) -> tuple:
    leaves, form = tree_flatten(records)
    return form, [(leaf.dtype, leaf.shape[1:]) if isinstance(leaf, Tensor) else type(leaf) for leaf in leaves]
