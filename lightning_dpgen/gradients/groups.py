"""Groups of the records of a lot: a partition into a fixed number of them, each record assigned at random by itself.

Cutting an ordered lot into slices would let one more record change every group (docs/guarantees/records.md, "Groups").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lightning_dpgen.gradients.component_factors import AllComponents, OneComponent
from lightning_dpgen.gradients.factors import (
    GradientFactors,
    GroupSums,
    MaskedRankOne,
    OuterSum,
    Permuted,
    RankOne,
    lengths,
    summing,
    weighting,
)

# Gradients of groups of so many records cost as much multiplied out as by the inner products of their factors.
_MULTIPLIED = 16
# The most records of a group for which rounding has room, where no smaller number is public.
_MOST_RECORDS = 2**15


@dataclass(frozen=True)
class Groups:
    """A partition of the records of a lot into groups. Private.

    Args:
        index: (B,) int64, the group of each record, from 0 to count - 1; a record with a larger one is in no group.
        count: m, the number of groups; a constant.
        places: the number of records that a group has room for, a constant; further ones are in no group. None for as many
            as the largest group has, which is private: for code of this package alone.
        of_unit: True if all records of a person are in one group, so that a person changes one.
        most: the number of records that a group has at most, a constant, for the rounding of their sum.

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
    places: int | None = None
    of_unit: bool = False
    most: int = _MOST_RECORDS

    def __post_init__(self) -> None:
        if self.places is not None:
            order, _, place, sizes = self._slots
            if (sizes > self.places).any():
                index = self.index.index_fill(0, order[place >= self.places], self.count)
                object.__setattr__(self, "index", index)
                self.__dict__.pop("_slots")

    @property
    def _most_records(self) -> int:
        return self.most if self.places is None else min(self.most, self.places)

    @cached_property
    def _slots(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The records that are in a group, their groups, their places there, and the sizes (m,) of the groups."""
        order = torch.argsort(self.index, stable=True)
        order = order[self.index[order] < self.count]
        group = self.index[order]
        sizes = torch.bincount(group, minlength=self.count)
        return order, group, torch.arange(len(order), device=order.device) - (sizes.cumsum(0) - sizes)[group], sizes

    @cached_property
    def _padded(self) -> tuple[Tensor, Tensor, Tensor]:
        """The record (m r,) at each place, a mask (m, r) of the empty places, and the groups without a record.

        An empty place holds the first record of its group, so that a record that is not finite stays in its own group.
        """
        order, group, place, sizes = self._slots
        slots = self.index.new_zeros(self.count, self.places or max(1, int(sizes.max())))
        slots[group, place] = order
        empty = torch.arange(slots.shape[1], device=slots.device) >= sizes[:, None]
        return torch.where(empty, slots[:, :1], slots).flatten(), empty, (sizes == 0).nonzero()[:, 0]

    @cached_property
    def _empty_places(self) -> Tensor:
        """The empty places among those of all groups, one behind the other."""
        return self._padded[1].flatten().nonzero()[:, 0]

    def repeated(self, x: Tensor) -> Tensor:
        """Gather records with copies of a group's first one behind them; zeros where a group has none."""
        slots, empty, none = self._padded
        if not len(x):
            return x.new_zeros(*empty.shape, *x.shape[1:])
        rows = x.index_select(0, slots).unflatten(0, empty.shape)
        return rows.index_fill_(0, none, 0) if len(none) else rows

    def gather(self, x: Tensor) -> Tensor:
        """Gather (B, ...) to (m, r, ...), the records of each group and zeros behind them; r is `places`, or the most."""
        gathered = self.repeated(x)
        gathered.flatten(0, 1).index_fill_(0, self._empty_places, 0)
        return gathered

    def scatter(self, rows: Tensor) -> Tensor:
        """Invert `gather`: scatter (m, r, ...) to (B, ...), zeros for a record of no group."""
        order, group, place, _ = self._slots
        out = rows.new_zeros(len(self.index), *rows.shape[2:])
        out[order] = rows[group, place]
        return out

    @property
    def mask(self) -> Tensor:
        """(m, r) mask of the places where `gather` has put a record."""
        return ~self._padded[1]

    def of(self, factors: GradientFactors) -> GradientFactors:
        """Return the gradient of each group, from the gradients that flow through each of its records."""
        if isinstance(factors, RankOne | OuterSum):
            # One factor of zeros is enough for a product. An embedding's left factor holds indices, of which 0 is one.
            pairs = [
                (self.gather(left), self.repeated(right) if left.is_floating_point() else self.gather(right))
                for left, right in factors.pairs
            ]
            pairs = [(left.flatten(1, 2), right.flatten(1, 2)) for left, right in pairs]
            products = self._most_records * sum(right.shape[1] for _, right in factors.pairs)
            narrow = min(factors.shape) == 1
            # The number of products of a group is private, so only kinds and shapes may decide how its norm is computed.
            sums = OuterSum(pairs, factors.shape, factors.view, products=products)
            several = isinstance(factors, OuterSum) or math.prod(factors.shape) <= _MULTIPLIED * sum(factors.shape)
            if not several or any(not left.is_floating_point() for left, _ in pairs):
                return sums
            longest = sum((lengths(a) * lengths(b)).sum(dim=1) for a, b in pairs)
            # In float64, so that the sum behind the norm drops nothing.
            exact = OuterSum([(a.double(), b.double()) for a, b in pairs], factors.shape, factors.view).materialise()
            rounding = weighting(pairs) + summing(products, pairs[0][1], narrow=narrow)
            return GroupSums(exact, longest, rounding)
        if isinstance(factors, Permuted):
            return Permuted(self.of(factors.inner), factors.shape, factors.order)
        if isinstance(factors, OneComponent):
            if len(factors.offsets) == 2:
                return AllComponents([self.of(factors.single)])
            cuts = zip(factors.offsets[:-1], factors.offsets[1:], strict=True)
            parts = []
            for start, end in cuts:
                own = Groups(self.index[start:end], self.count, most=self._most_records)
                parts.append(own.of(factors.single.mapped(lambda x, s=start, e=end: x[s:e])))
            return AllComponents(parts)
        order, group, *_ = self._slots
        dense = factors.materialise()
        dense, own = dense[order], factors.norms()[order]
        longest = own.new_zeros(self.count).index_add_(0, group, own)
        sums = dense.new_zeros(self.count, *dense.shape[1:], dtype=torch.float64).index_add_(0, group, dense.double())
        of_weights = factors.weighting if isinstance(factors, MaskedRankOne) else 0.0
        return GroupSums(sums, longest, of_weights + summing(self._most_records, dense, narrow=True))

    def shared(self, weights: Tensor) -> Tensor:
        """Give each record (B,) the weight (m,) of its group; 0 where it is in none."""
        return torch.cat([weights, weights.new_zeros(1)])[self.index.clamp(max=self.count)]
