"""Groups of the records of a lot: a partition into a fixed number of them, each record assigned at random by itself.

Cutting an ordered lot into slices would let one more record change every group (docs/PRIVACY.md, "Groups").
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lightning_dpgen.gradients.forms import Form, Outer, Segmented, Stack, Whole, outer


@dataclass(frozen=True)
class Groups:
    """Which group each record is in. Private.

    Args:
        index: (B,) int64, from 0 to count - 1; a larger one is in no group.
        count: m, how many groups; a constant.

    Example:
        >>> groups = Groups(torch.tensor([1, 0, 1]), count=3)
        >>> groups.gather(torch.tensor([1.0, 2.0, 3.0]))
        tensor([[2., 0.],
                [1., 3.],
                [0., 0.]])
        >>> groups.mask.sum(dim=1)
        tensor([1, 2, 0])
    """

    index: Tensor
    count: int

    @cached_property
    def _slots(self) -> tuple[Tensor, Tensor, Tensor, int]:
        """Which records are in a group, their groups, their places there, and the size of the largest group."""
        order = torch.argsort(self.index, stable=True)
        order = order[self.index[order] < self.count]
        group = self.index[order]
        sizes = torch.bincount(group, minlength=self.count)
        place = torch.arange(len(order), device=order.device) - (sizes.cumsum(0) - sizes)[group]
        return order, group, place, max(1, int(sizes.max()))

    def gather(self, x: Tensor) -> Tensor:
        """(B, ...) as (m, r, ...): the records of each group, zeros behind them; r is the largest group's size, or 1."""
        order, group, place, largest = self._slots
        out = x.new_zeros(self.count, largest, *x.shape[1:])
        return out.index_put((group, place), x[order])

    @cached_property
    def mask(self) -> Tensor:
        """(m, r) where `gather` has put a record."""
        return self.gather(torch.ones_like(self.index, dtype=torch.bool))

    def of(self, form: Form) -> Form:
        """The gradient of each group, from those that flow through each of its records."""
        if isinstance(form, Outer):
            pairs = [(self.gather(left).flatten(1, 2), self.gather(right).flatten(1, 2)) for left, right in form.pairs]
            return outer(pairs, form.shape, form.view)
        if isinstance(form, Segmented):
            if len(form.offsets) == 2:
                return Stack([self.of(form.form)])
            cuts = zip(form.offsets[:-1], form.offsets[1:], strict=True)
            parts = [
                Groups(self.index[start:end], self.count).of(form.form.mapped(lambda x, s=start, e=end: x[s:e]))
                for start, end in cuts
            ]
            return Stack(parts)
        order, group, _, _ = self._slots
        each = form.whole()
        return Whole(each.new_zeros(self.count, *each.shape[1:]).index_add_(0, group, each[order]))
