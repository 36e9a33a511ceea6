"""Probe records: public, made-up records that a loss is called with where a lot, or a component, has no record.

Without them a loss that counts its calls would learn where records are missing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.sampling.lots import Lot

# Errors that code raises when it expects other records, such as words of a vocabulary.
UNSUITED = (IndexError, TypeError, AssertionError, NotImplementedError, RuntimeError)
# Whole numbers tried in turn: labels may begin at 0, or after numbers for padding and the like.
WHOLE = (0, 1, 2, 3)


def probe_lot(
    lot: Lot,
    noise: Tensor,
    count: int = 1,
    groups: Groups | None = None,
    *,
    whole: int = 0,
    varied: bool = False,
    example: Any = None,
) -> tuple[Lot, Tensor, Groups | None]:
    """Make a lot of probe records, with the noise and the groups that an engine takes beside it.

    Their numbers are uniform from 0 to 1, in the precision and on the device of `noise`. All of them belong to the first
    component, and every other one to the first group. The seed is public, like the records.

    Args:
        lot: a lot with the shapes, types and components of records; it may be empty.
        noise: (B, term.noise), as for an engine.
        whole: the value of whole numbers; all other numbers are larger by it.
        varied: whether whole numbers are larger by 1 in two of three records, so that some differ and some do not.
        example: a public record (1, ...), of which all are then copies.

    Example:
        >>> lot, noise, _ = probe_lot(Lot(torch.zeros(0, 5), (0, 0, 0)), torch.zeros(0, 2), 3)
        >>> lot.records.shape, lot.offsets, noise.shape
        (torch.Size([3, 5]), (0, 3, 3), torch.Size([3, 2]))
    """
    generator = torch.Generator().manual_seed(0)

    def of(x: Tensor) -> Tensor:
        shape = (count, *x.shape[1:])
        if x.is_floating_point():
            return (whole + torch.rand(shape, generator=generator, dtype=x.dtype)).to(noise)
        more = (torch.arange(count, device=noise.device) % 3 > 0) & varied
        return (whole + more).to(x.dtype).view(-1, *(1,) * (x.dim() - 1)).expand(shape).clone()

    if example is None:
        records = tree_map(of, lot.records)
    else:
        records = tree_map(
            lambda x: x.to(noise if x.is_floating_point() else noise.device).repeat(count, *(1,) * (x.dim() - 1)), example
        )
    made = Lot(records, (0, *[count] * (len(lot.offsets) - 1)))
    if groups is not None:
        # The first group is larger than the others, so that a comparison of groups can tell sizes apart.
        index = torch.arange(count, device=noise.device)
        groups = Groups(torch.where(index % 2 == 0, 0, index % groups.count), groups.count, groups.places)
    return made, noise.new_full((count, *noise.shape[1:]), 0.5), groups
