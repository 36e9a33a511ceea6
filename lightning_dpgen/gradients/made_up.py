"""Records that nobody has, of the shapes of those that are there: a loss is called with them where a lot holds none.

A loss that counts its calls would otherwise know of lots, or components of them, without a record.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from lightning_dpgen.data.lots import Lot
from lightning_dpgen.gradients.groups import Groups

# What code raises that wants other records, such as words of a vocabulary.
UNSUITED = (IndexError, TypeError, AssertionError, NotImplementedError)

def made_up(
    lot: Lot, noise: Tensor, count: int = 1, groups: Groups | None = None
) -> tuple[Lot, Tensor, Groups | None]:
    """A lot of made-up records, and what an engine takes beside it.

    Their numbers are uniform from 0 to 1, in the precision and on the device of `noise`; zeros where they are whole. They
    are the first component's, and take the groups in turn.

    Args:
        lot: a lot, of no records maybe, with the shapes, types and components that are wanted.
        noise: (B, term.noise), as for an engine.
        count: how many.
        groups: as for an engine.

    Example:
        >>> lot, noise, _ = made_up(Lot(torch.zeros(0, 5), (0, 0, 0)), torch.zeros(0, 2), 3)
        >>> lot.records.shape, lot.offsets, noise.shape
        (torch.Size([3, 5]), (0, 3, 3), torch.Size([3, 2]))
    """
    generator = torch.Generator().manual_seed(0)

    def of(x: Tensor) -> Tensor:
        shape = (count, *x.shape[1:])
        if x.is_floating_point():
            return torch.rand(shape, generator=generator, dtype=x.dtype).to(noise)
        return torch.zeros(shape, dtype=x.dtype, device=noise.device)

    records = Lot(tree_map(of, lot.records), (0, *[count] * (len(lot.offsets) - 1)))
    if groups is not None:
        # Groups of other sizes, where there are some: half of the records are in the first.
        index = torch.arange(count, device=noise.device)
        groups = Groups(torch.where(index % 2 == 0, 0, index % groups.count), groups.count, groups.places)
    return records, noise.new_full((count, *noise.shape[1:]), 0.5), groups
