"""Sums of gradients of the same parameter: over uses of it, over records, and over the terms of a loss."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lightning_dpgen.gradients.component_factors import OneComponent
from lightning_dpgen.gradients.factors import Dense, GradientFactors, OuterSum, RankOne, outer

# Gradients, the weight of each row, and the silenced rows, as for `GradientFactors.weighted_sum`.
Piece = tuple[GradientFactors, Tensor, Tensor | None]


def joined(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """Join the products of several terms that have one factor in common: ``sum_i (w_i a_i + v_i b_i) x_i^T``."""
    each = [factors for factors, _, _ in pieces]
    if len(pieces) < 2 or not all(isinstance(x, OneComponent) and isinstance(x.single, RankOne) for x in each):
        return pieces
    first = each[0].single
    if any(x.single.right is not first.right for x in each) or any(silenced is not None for *_, silenced in pieces):
        return pieces
    left = sum(x.single.left * weights[:, None] for x, weights, _ in pieces)
    ones = pieces[0][1].new_ones(len(left))
    return [(OneComponent(RankOne(left, first.right, first.view), each[0].offsets), ones, None)]


def sum_factors(each: Sequence[GradientFactors]) -> GradientFactors:
    """Return the sum of several gradients of the same records with respect to the same tensor."""
    first = each[0]
    if len(each) == 1:
        return first
    if all(isinstance(x, OneComponent) for x in each) and len({tuple(x.offsets) for x in each}) == 1:
        return OneComponent(sum_factors([x.single for x in each]), first.offsets)
    if all(isinstance(x, RankOne | OuterSum) for x in each) and len({x.shape for x in each}) == 1:
        return outer([pair for x in each for pair in x.pairs], first.shape, first.view)
    return Dense(sum((x.materialise() for x in each[1:]), start=first.materialise()))
