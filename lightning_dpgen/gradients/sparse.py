"""A first layer for records given as the places of their ones: its product, and the gradient of its weight by record.

Both touch only the columns of the weight at these places, so the cost of a lot grows with its ones and not with its width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_dpgen.gradients.factors import GradientFactors, lengths
from lightning_dpgen.gradients.segments import components, select_component
from lightning_dpgen.sampling.multi_hot import find_ones, to_dense


def multi_hot_product(x: Tensor, weight: Tensor, bias: Tensor, offsets: Sequence[int]) -> Tensor:
    """Compute the `segmented_product` (B, o) of the written-out records with (k, o, n) and (k, o).

    Args:
        x: (B, ones) the places of each record's ones, sorted by component; n where there are fewer.
    """
    records, places = find_ones(x, weight.shape[2])
    columns = weight.mT
    rows = columns[0][places] if len(offsets) == 2 else columns[components(offsets, x.device)[records], places]
    return select_component(bias, offsets).expand(len(x), -1).clone().index_add_(0, records, rows)


@dataclass
class MultiHotRankOne(GradientFactors):
    """One outer product a record with a row of 0 and 1, ``gradient_i = left_i x_i^T``.

    Args:
        left: (R, o), floating point.
        places: (R, ones) the places of the ones of x_i, all different; n where there are fewer.
        view: (o, n), the parameter's shape.
    """

    left: Tensor
    places: Tensor
    view: tuple[int, int]

    def norms(self) -> Tensor:
        # The number of ones is exact, and only its root is rounded, in float64.
        count = (self.places < self.view[1]).sum(dim=1, dtype=torch.float64)
        return lengths(self.left).double() * count.sqrt_()

    def weighted_sum(self, weights: Tensor, silenced: Tensor | None, out: Tensor, *, add: bool) -> None:
        left = self.left if silenced is None else torch.where(silenced[:, None], 0.0, self.left)
        left = (left * weights.to(left.dtype)[:, None]).to(out.dtype)
        records, places = find_ones(self.places, self.view[1])
        if not add:
            out.zero_()
        out.view(self.view).T.index_add_(0, places, left[records])

    def materialise(self) -> Tensor:
        return self.left[:, :, None] * to_dense(self.places, self.view[1], self.left.dtype)[:, None]

    def project(self, onto: Tensor) -> Tensor:
        records, places = find_ones(self.places, self.view[1])
        each = (self.left[records] * onto.reshape(self.view).T[places]).sum(dim=1, dtype=torch.float64)
        return each.new_zeros(len(self.left)).index_add_(0, records, each)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> GradientFactors:
        return MultiHotRankOne(change(self.left), change(self.places), self.view)
