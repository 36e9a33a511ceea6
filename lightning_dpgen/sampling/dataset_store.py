"""Records that are the items of a map-style Dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_flatten
from torch.utils.data import Dataset, default_collate

from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.sampling.own_randomness import randomness_of_their_own
from lightning_dpgen.sampling.stores import Store


@dataclass(frozen=True, eq=False, repr=False)
class DatasetStore(Store):
    """The items of a user's map-style Dataset, collated as a DataLoader does it.

    Items may draw random numbers, such as those of an augmentation, from the generators of torch's CPU, numpy and Python:
    while items are fetched, these are keyed by the operating system. They are put back afterwards, since a public
    generator that moves on with each record would tell how many there were. A generator that belongs to the data set has
    to be keyed by the operating system too.

    Args:
        dataset: the data set; its items become tensors of the same types and sizes.
        none: a lot of no records.
    """

    dataset: Dataset
    none: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, positions: np.ndarray) -> Any:
        """Return the records at these positions, as every store does.

        Raises:
            BadRecords: for an item that cannot be fetched, or that differs from the first one in types or sizes.
        """
        if not len(positions):
            return self.none
        items = collated(self.dataset, positions)
        if _form(items) != _form(self.none):
            raise BadRecords(
                "an item of the data set differs from its first one in form, types or sizes: expected the same of all; "
                "pad, crop or convert in its __getitem__"
            )
        return items


def collated(dataset: Dataset, positions: np.ndarray) -> Any:
    with randomness_of_their_own():
        try:
            return default_collate([dataset[i] for i in positions.tolist()])
        except Exception as error:
            # Neither the message nor the traceback is shown: both may quote a record, or say which one it was.
            raise BadRecords(
                f"items of the data set cannot be fetched and collated ({type(error).__name__}): expected numbers, arrays "
                "or tensors of equal sizes; try default_collate on its items by hand"
            ) from None


def _form(records: Any) -> tuple:
    leaves, form = tree_flatten(records)
    return form, [(leaf.dtype, leaf.shape[1:]) if isinstance(leaf, Tensor) else type(leaf) for leaf in leaves]
