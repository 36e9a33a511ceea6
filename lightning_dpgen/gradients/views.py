"""Views of a record: several augmented copies of it, whose mean loss is the one loss of the record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.sampling.lots import Lot


@dataclass(frozen=True)
class Views:
    """Augmentation multiplicity (De et al. 2022, "Unlocking high-accuracy differentially private image classification").

    A record's gradient is the mean over its views, and is clipped after that: views cost no privacy, and their number is
    public. They are made where the record is alone (`gradients/isolation.py`), with randomness of its own.

    Args:
        augment: takes a batch of copies of one record, and returns as many views of it: a tensor (count, ...), or a tree of
            such. torch's random functions give each view its own numbers where they are asked for one a row
            (``torch.rand(len(x))``). An augmentation that mixes rows (mixup) is refused.
        count: the number of views of a record.

    Raises:
        ValueError: for something that is no function, or a number below 1.

    Example:
        >>> import torch
        >>> views = Views(lambda x: x * torch.tensor([[1.0], [3.0]]), 2)
        >>> views.losses(lambda x: x.sum(dim=1), torch.ones(1, 4))
        tensor([8.])
    """

    augment: Callable[[Any], Any]
    count: int

    def __post_init__(self) -> None:
        if not callable(self.augment):
            raise ValueError(f"augment={self.augment!r}: expected a function of a batch that returns as many views")
        if type(self.count) is not int or self.count < 1:
            raise ValueError(f"multiplicity={self.count!r}: expected a whole number of views (int), 1 or more")

    def losses(self, loss: Callable[[Any], Any], records: Any) -> Tensor:
        """Return the mean (B,) over the views of each record.

        Args:
            loss: takes a batch of V views and returns their losses (V,); one that returns a scalar is called with each
                view alone, which takes longer.
            records: B records, a tree of tensors (B, ...).

        Raises:
            ValueError: for views or losses of another number.
        """
        views = self.augment(self.repeated(records))
        rows = self.count * len(tree_leaves(records)[0])
        sizes = {len(x) if isinstance(x, Tensor) and x.dim() else None for x in tree_leaves(views)}
        if sizes != {rows}:
            raise ValueError(f"augment returned batches of {_told(sizes)}: expected {rows} views, one for each row it got")
        found = loss(views)
        if isinstance(found, Tensor) and found.dim() == 0:
            # A mean over the views, or their sum: each alone has the same loss under both.
            alone = [loss(tree_map(lambda x, i=i: x[i : i + 1], views)) for i in range(rows)]
            found = torch.stack([x.reshape(()) for x in alone])
        if not isinstance(found, Tensor) or found.shape != (rows,):
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"the loss of {rows} views is {shape}: expected their mean, or one value for each view, a tensor of as many"
            )
        return found.unflatten(0, (-1, self.count)).mean(dim=1)

    def repeated(self, records: Any) -> Any:
        """Return each row of a tree of tensors (B, ...) so many times, one after the other."""
        return tree_map(lambda x: x.unsqueeze(1).expand(-1, self.count, *x.shape[1:]).flatten(0, 1), records)


def _told(sizes: set) -> str:
    return " and ".join("no tensor" if size is None else str(size) for size in sorted(sizes, key=str)) or "nothing"


def of_views(term: PerRecord, views: Views) -> PerRecord:
    """Return a term whose loss of a record is the mean loss of its views; each view has noise of its own.

    Args:
        term: a loss of records of a single component, in code (without `forms`).

    Raises:
        ValueError: for a term in closed form; from the loss, for records of several components.

    Example:
        >>> import torch
        >>> term = PerRecord(lambda lot, noise: (lot.records + noise).sum(dim=1), noise=4)
        >>> more = of_views(term, Views(lambda x: x, 8))
        >>> more.noise, more.losses(Lot(torch.ones(1, 4), (0, 1)), torch.ones(1, 32))
        (32, tensor([8.]))
    """
    if term.forms is not None:
        raise ValueError("term.forms: gradients in closed form are those of records as they are: give a term without")

    def loss(lot: Lot, noise: Tensor) -> Tensor:
        if len(lot.offsets) > 2:
            raise ValueError("views of a mixture: expected records of a single component")
        own = noise.unflatten(1, (views.count, term.noise)).flatten(0, 1)
        return views.losses(lambda records: term.loss(Lot(records, (0, len(own))), own), lot.records)

    return replace(term, loss=loss, noise=term.noise * views.count)
