"""Gradients with respect to a stack of k tensors, one a component, and sums in which such gradients stay factors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_dpgen.gradients.factors import Dense, GradientFactors, OuterSum, Permuted, RankOne, outer


@dataclass
class OneComponent(GradientFactors):
    """Gradients with respect to a stack of k tensors, of which each record touches one: that of its component.

    Args:
        single: the gradients with respect to that one tensor; records are sorted by component.
        offsets: k + 1 positions; the records of component c are ``offsets[c]`` to ``offsets[c + 1]``.
    """

    single: GradientFactors
    offsets: Sequence[int]

    @property
    def components(self) -> int:
        """The number of tensors, k."""
        return len(self.offsets) - 1

    def norms(self) -> Tensor:
        return self.single.norms()

    def rows(self) -> list[Tensor]:
        return self.single.rows()

    def weighted_sum(self, weights: Tensor, silenced: Tensor | None, out: Tensor, *, add: bool) -> None:
        if len(self.offsets) == 2:
            self.single.weighted_sum(weights, silenced, out[0], add=add)
            return
        for c, (start, end) in enumerate(itertools.pairwise(self.offsets)):
            if start == end:
                if not add:
                    out[c].zero_()
                continue
            part = self.single.mapped(lambda x, start=start, end=end: x[start:end])
            quiet = None if silenced is None else silenced[start:end]
            part.weighted_sum(weights[start:end], quiet, out[c], add=add)

    def materialise(self) -> Tensor:
        dense = self.single.materialise()
        out = dense.new_zeros(len(dense), len(self.offsets) - 1, *dense.shape[1:])
        for c, (start, end) in enumerate(itertools.pairwise(self.offsets)):
            out[start:end, c] = dense[start:end]
        return out

    def project(self, onto: Tensor) -> Tensor:
        cuts = enumerate(itertools.pairwise(self.offsets))
        return torch.cat([self.single.mapped(lambda x, s=s, e=e: x[s:e]).project(onto[c]) for c, (s, e) in cuts])


@dataclass
class OneComponentMixed(GradientFactors):
    """Gradients as of `OneComponent`, with factors of its own kind for each component.

    Args:
        parts: k, the gradients of the records of each component.
        sizes: k, the number of records of each component.
    """

    parts: Sequence[GradientFactors]
    sizes: Sequence[int]

    @property
    def components(self) -> int:
        """The number of tensors, k."""
        return len(self.parts)

    def norms(self) -> Tensor:
        return torch.cat([factors.norms() for factors in self.parts])

    def weighted_sum(self, weights: Tensor, silenced: Tensor | None, out: Tensor, *, add: bool) -> None:
        quiet = [None] * len(self.sizes) if silenced is None else silenced.split(list(self.sizes))
        for c, (factors, own) in enumerate(zip(self.parts, weights.split(list(self.sizes)), strict=True)):
            factors.weighted_sum(own, quiet[c], out[c], add=add)

    def materialise(self) -> Tensor:
        rows = [factors.materialise() for factors in self.parts]
        return torch.cat([F.pad(x[:, None], [0, 0] * (x.dim() - 1) + [c, len(rows) - 1 - c]) for c, x in enumerate(rows)])

    def project(self, onto: Tensor) -> Tensor:
        return torch.cat([factors.project(onto[c]) for c, factors in enumerate(self.parts)])


@dataclass
class AllComponents(GradientFactors):
    """Gradients with respect to a stack of k tensors, any of which a row may touch.

    Args:
        parts: k, the gradients with respect to each tensor.
    """

    parts: Sequence[GradientFactors]

    def norms(self) -> Tensor:
        if len(self.parts) == 1:
            return self.parts[0].norms()
        return torch.stack([factors.norms().double() for factors in self.parts]).square_().sum(dim=0).sqrt_()

    def rows(self) -> list[Tensor]:
        return self.parts[0].rows() if len(self.parts) == 1 else []

    def weighted_sum(self, weights: Tensor, silenced: Tensor | None, out: Tensor, *, add: bool) -> None:
        for c, factors in enumerate(self.parts):
            factors.weighted_sum(weights, silenced, out[c], add=add)

    def materialise(self) -> Tensor:
        return torch.stack([factors.materialise() for factors in self.parts], dim=1)

    def project(self, onto: Tensor) -> Tensor:
        return sum(factors.project(onto[c]) for c, factors in enumerate(self.parts))

    def mapped(self, change: Callable[[Tensor], Tensor]) -> GradientFactors:
        return AllComponents([factors.mapped(change) for factors in self.parts])


# Gradients, the weight of each row, and the silenced rows, as for `GradientFactors.weighted_sum`.
Piece = tuple[GradientFactors, Tensor, Tensor | None]


def joined(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """Join the products of several terms that have one factor in common: ``sum_i (w_i a_i + v_i b_i) x_i^T``."""
    factors_of_terms = [factors for factors, _, _ in pieces]
    if len(pieces) < 2 or not all(isinstance(x, OneComponent) and isinstance(x.single, RankOne) for x in factors_of_terms):
        return pieces
    first = factors_of_terms[0].single
    if any(x.single.right is not first.right for x in factors_of_terms) or any(
        silenced is not None for *_, silenced in pieces
    ):
        return pieces
    weighted = [x.single.left * weights[:, None] for x, weights, _ in pieces]
    left = sum(weighted[1:], start=weighted[0])
    ones = pieces[0][1].new_ones(len(left))
    return [(OneComponent(RankOne(left, first.right, first.view), factors_of_terms[0].offsets), ones, None)]


def sum_factors(summands: Sequence[GradientFactors]) -> GradientFactors:
    """Return the sum of several gradients of the same records with respect to the same tensor."""
    first = summands[0]
    if len(summands) == 1:
        return first
    if all(isinstance(x, OneComponent) for x in summands) and len({tuple(x.offsets) for x in summands}) == 1:
        return OneComponent(sum_factors([x.single for x in summands]), first.offsets)
    if all(isinstance(x, Permuted) for x in summands) and len({(x.shape, x.order) for x in summands}) == 1:
        return Permuted(sum_factors([x.inner for x in summands]), first.shape, first.order)
    if all(isinstance(x, RankOne | OuterSum) for x in summands) and len({x.shape for x in summands}) == 1:
        return outer([pair for x in summands for pair in x.pairs], first.shape, first.view)
    return Dense(sum((x.materialise() for x in summands[1:]), start=first.materialise()))
