"""The gradients of R records for one parameter, held as outer products of small factors, or dense.

A layer's gradient for one record is a sum of r outer products, one for each position or call. Its norm and its weighted sum
over records follow from the factors, by one product each. Multiplying out is cheaper only where the products are not much
larger than their factors (small matrices over many positions).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lightning_dpgen.gradients import kernels
from lightning_dpgen.gradients.products import (
    ROUNDING,
    WEIGHTED,
    accumulation,
    add_product,
    add_weighted,
    inner_products,
    multiply,
    summation,
)

# The size of a number below which its square may vanish in float32, and in float64.
VANISHING, _VANISHING_DOUBLE = 1.1e-19, 1.6e-162
# The length of a row, squared, is a float32 number below the first, and a float64 number below the second.
LONGEST_ROW, _LONGEST_DOUBLE = 1.8e19, 1.3e154
# Sums of up to so many numbers are made in float32, if the numbers are float32 or bfloat16.
SHORT = 4096


def slack(width: int, dtype: torch.dtype) -> tuple[float, float]:
    """Return the factor and the summand that keep a length of `width` numbers, summed in float32, from being too small.

    Additions may have rounded down, and small squares vanished: these matter beside another factor that is huge. bfloat16
    numbers are rounded once more when they are weighted.
    """
    rounding = width * ROUNDING + (WEIGHTED if dtype == torch.bfloat16 else 0.0)
    return 1.0 + rounding, math.sqrt(width) * VANISHING


def lengths(x: Tensor) -> Tensor:
    """Return Euclidean norms over the last dimension, never rounded down, whatever float32 lost when squares were added.

    Those of bfloat16 numbers are those of what they become when they are weighted.
    """
    width = x.shape[-1]
    if x.dtype not in _IN_FLOAT32:
        return torch.linalg.vector_norm(x.double(), dim=-1).add_(math.sqrt(width) * _VANISHING_DOUBLE)
    if width > SHORT:
        # All whole parts at once: on a GPU a call for each would cost more than its numbers.
        whole = width // SHORT * SHORT
        parts = lengths(x[..., :whole].unflatten(-1, (-1, SHORT)))
        if whole < width:
            parts = torch.cat([parts, lengths(x[..., whole:])[..., None]], dim=-1)
        return torch.linalg.vector_norm(parts.double(), dim=-1)
    factor, more = slack(width, x.dtype)
    return torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).mul_(factor).add_(more)


_IN_FLOAT32 = (torch.float32, torch.bfloat16)
# The most by which a product of lengths may be larger than the norm under a mask, the norm that counts as the least, and
# the largest product: the sum over a lot, of weights up to 1 or C / norm, stays within float32.
_LEFT_OUT, _LEAST_NORM, _MOST_LEFT_OUT = 1e19, 1e-10, 1e30
# Norms of sums of outer products are computed in float32 where its slack makes the square too large by no more than this,
# if all products of a record are as long and orthogonal; where they are not, it is less.
_MOST_SLACK = 0.02
# The slack of the sum of the lengths of many outer products, squared. The float32 products that are released err by less.
_SLACK = 1e-6
# Sums of products err by `accumulation`; the factor makes up for the lengths, which come from such sums.
SUMMED = 1.25
# Gradients are multiplied out where they take up to so many times the memory of their factors: beyond, inner products of
# factors are quicker (measured on one core, with 16 and 64 records of 16 to 128 products).
_LARGER = 2


class GradientFactors(Protocol):
    """The gradients of R records with respect to one tensor. Private."""

    def norms(self) -> Tensor:
        """Return the Euclidean norms (R,), never rounded down; not finite where a gradient or a factor is beyond 1e19."""
        ...

    def rows(self) -> list[Tensor]:
        """Return one or two float32 matrices (R, n) whose row lengths multiply to the norm; none where they do not."""
        return []

    def weighted_sum(self, weights: Tensor, silenced: Tensor | None, out: Tensor, *, add: bool) -> None:
        """Write ``sum_i weights[i] gradient_i`` into `out`, or add it to what is there.

        Args:
            weights: (R,).
            silenced: (R,) mask of records that give exact zeros, NaN or not; None for no such record.
            out: of the parameter's shape.
            add: add to `out` instead of overwriting it.
        """
        ...

    def materialise(self) -> Tensor:
        """Multiply out, to (R, *shape)."""
        ...

    def project(self, onto: Tensor) -> Tensor:
        """Return the inner products (R,) with one tensor of the parameter's shape, in float64."""
        return self.materialise().flatten(1).double() @ onto.flatten().double()

    def mapped(self, change: Callable[[Tensor], Tensor]) -> GradientFactors:
        """Apply `change` to each tensor that has a row a record: it takes some rows, or adds rows of zeros."""
        return Dense(change(self.materialise()))


@dataclass
class Dense(GradientFactors):
    """Gradients held as one tensor (R, *shape)."""

    gradient: Tensor

    def norms(self) -> Tensor:
        return lengths(self._flat())

    def rows(self) -> list[Tensor]:
        return _short([self._flat()])

    def _flat(self) -> Tensor:
        return self.gradient.flatten(1) if self.gradient.dim() > 1 else self.gradient[:, None]

    def weighted_sum(self, weights: Tensor, silenced: Tensor | None, out: Tensor, *, add: bool) -> None:
        flat = _silence(self.gradient, silenced).reshape(len(weights), out.numel())
        target = out.view(-1)
        torch.addmv(target, _as(flat, out.dtype).T, _as(weights, out.dtype), beta=float(add), out=target)

    def materialise(self) -> Tensor:
        return _full(self.gradient)


@dataclass
class KernelBlocks(GradientFactors):
    """Gradients held in equal parts, such as one for each place of a kernel.

    Args:
        parts: (P, R, n).
        view: the parameter's shape, whose numbers are those of the first part, then of the second.
    """

    parts: Tensor
    view: tuple[int, ...]

    def norms(self) -> Tensor:
        return torch.linalg.vector_norm(lengths(self.parts).double(), dim=0)

    def weighted_sum(self, weights: Tensor, silenced: Tensor | None, out: Tensor, *, add: bool) -> None:
        parts = self.parts if silenced is None else torch.where(silenced[None, :, None], 0.0, self.parts)
        total = torch.matmul(weights.to(parts.dtype), parts).view(self.view)
        out.add_(total) if add else out.copy_(total)

    def materialise(self) -> Tensor:
        return self.parts.transpose(0, 1).reshape(-1, *self.view)


@dataclass
class GroupSums(Dense):
    """Gradients (R, *shape) that are sums of others, which the released sum adds up in another order.

    Args:
        longest: (R,) the sum of the lengths of what was added up.
        rounding: the part of these that weighting them may add, as of bfloat16 numbers, and adding them up again.
    """

    longest: Tensor
    rounding: float

    def norms(self) -> Tensor:
        # Where they cancel, rounding could leave too small a norm.
        longest = self.longest.double()
        norms = (super().norms().double().square() + _SLACK * longest.square()).sqrt_()
        return norms.add_(longest, alpha=self.rounding)

    def rows(self) -> list[Tensor]:
        return []


@dataclass
class RankOne(GradientFactors):
    """One outer product a record, ``gradient_i = left_i right_i^T``.

    Args:
        left: (R, o), floating point.
        right: (R, n).
        view: the parameter's own shape.
    """

    left: Tensor
    right: Tensor
    view: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """(o, n), the shape of the parameter as a matrix."""
        return self.left.shape[1], self.right.shape[1]

    @property
    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """The one pair of factors, as of an `OuterSum`."""
        return [(self.left[:, None], self.right[:, None])]

    def norms(self) -> Tensor:
        return lengths(self.left) * lengths(self.right)

    def rows(self) -> list[Tensor]:
        return _short([self.left, self.right])

    def weighted_sum(self, weights: Tensor, silenced: Tensor | None, out: Tensor, *, add: bool) -> None:
        # Weight 0 does not silence NaN in a product: both factors must be exact zeros.
        a, b = _silence(self.left, silenced), _silence(self.right, silenced)
        if torch.bfloat16 in (a.dtype, b.dtype):
            add_weighted(a[:, None], b[:, None], weights, out.view(self.shape), add=add)
            return
        if a.shape[1] <= b.shape[1]:
            a = a * _as(weights, a.dtype)[:, None]
        else:
            b = b * _as(weights, b.dtype)[:, None]
        matrix = out.view(self.shape)
        add_product(_as(a, out.dtype), _as(b, out.dtype), matrix, add=add)

    def materialise(self) -> Tensor:
        left = _full(self.left)
        return (left[:, :, None] * self.right.to(left.dtype)[:, None]).view(len(left), *self.view)

    def project(self, onto: Tensor) -> Tensor:
        return ((_full(self.left) @ onto.reshape(self.shape)) * self.right).sum(dim=1, dtype=torch.float64)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> GradientFactors:
        return RankOne(change(self.left), change(self.right), self.view)


@dataclass
class MaskedRankOne(GradientFactors):
    """One outer product a record, times the same public constants: ``gradient_i = mask * left_i right_i^T``.

    Args:
        own: the outer product of each record.
        mask: (o, n), such as the ones and zeros of an autoregressive layer.
    """

    own: RankOne
    mask: Tensor

    def norms(self) -> Tensor:
        # In float64, where no square vanishes; the factor makes up for its rounding, and for that of weights.
        left, right, mask = (x.double().square() for x in (self.own.left, self.own.right, self.mask))
        norms = ((left @ mask) * right).sum(dim=1).sqrt_().mul_(1.0 + 1e-12 + self.weighting)
        left, right = lengths(self.own.left).double(), lengths(self.own.right).double()
        # Weighted numbers may vanish.
        each = VANISHING if self.own.left.dtype in _IN_FLOAT32 else _VANISHING_DOUBLE
        o, n = (each * math.sqrt(width) for width in self.own.shape)
        norms += o * right + n * left
        # Numbers that the mask leaves out are added up before that, and have to be finite then.
        most = (_LEFT_OUT * norms.clamp(min=_LEAST_NORM)).clamp_(max=_MOST_LEFT_OUT)
        return norms.masked_fill_(~(left * right < most), math.inf)

    @property
    def weighting(self) -> float:
        """The part of the norm that weighting may add."""
        return WEIGHTED if self.own.left.dtype == torch.bfloat16 else 0.0

    def weighted_sum(self, weights: Tensor, silenced: Tensor | None, out: Tensor, *, add: bool) -> None:
        total = torch.empty_like(out)
        self.own.weighted_sum(weights, silenced, total, add=False)
        total.mul_(self.mask.view(out.shape))
        out.add_(total) if add else out.copy_(total)

    def materialise(self) -> Tensor:
        return self.own.materialise() * self.mask.view(self.own.view)

    def project(self, onto: Tensor) -> Tensor:
        return self.own.project(onto * self.mask.view(onto.shape))

    def mapped(self, change: Callable[[Tensor], Tensor]) -> GradientFactors:
        return MaskedRankOne(RankOne(change(self.own.left), change(self.own.right), self.own.view), self.mask)


def masked(factors: GradientFactors, mask: Tensor) -> GradientFactors:
    """Return gradients times constants of the parameter's shape: as factors where they are one outer product."""
    if isinstance(factors, RankOne):
        dtype = torch.promote_types(factors.left.dtype, torch.float32)
        return MaskedRankOne(factors, mask.reshape(factors.shape).to(dtype))
    found = factors.materialise()
    return Dense(found * mask.to(found.dtype))


@dataclass
class OuterSum(GradientFactors):
    """Sums of outer products, ``gradient_i = sum over pairs and r of left[i, r] right[i, r]^T``.

    Args:
        pairs: left (R, r, o), or (R, r) int64 for the one-hot rows of an embedding, and right (R, r, n).
        shape: (o, n), the shape of the parameter as a matrix.
        view: the parameter's own shape.
        few: whether r is small, or private. It must not change with the lot: the slack of the norms would change with it,
            and so would what every other record adds.
        products: a number that r is not above, where r is private; None for r itself.
    """

    pairs: Sequence[tuple[Tensor, Tensor]]
    shape: tuple[int, int]
    view: tuple[int, ...]
    few: bool = True
    products: int | None = None

    def norms(self, grams: GramCache | None = None) -> Tensor:
        # sum_rs (left_r . left_s)(right_r . right_s) is the squared norm of a sum of outer products. Where they cancel,
        # rounding could leave too small a norm, and too large a contribution: the slack is never less than that error.
        pairs = self.pairs if self.few else [(_double(left), right.double()) for left, right in self.pairs]
        rounded = any(right.dtype in _IN_FLOAT32 for _, right in self.pairs)
        slack = _slack_of_products(self.shape, pairs[0][1].device) if rounded and self.few else _SLACK
        # Room for numbers that vanish, as in `slack`: in squares, and in what is weighted.
        more = max(self.shape) * VANISHING**2 if rounded else 0.0
        total: Tensor | float = 0.0
        longest: Tensor | float = 0.0
        vanished: Tensor | float = 0.0
        for i, (left, right) in enumerate(pairs):
            for other_left, other_right in pairs[:i]:
                lefts, rights = _gram(left, other_left), _gram(right, other_right)
                total = total + 2.0 * (lefts * rights).sum(dim=(1, 2), dtype=torch.float64)
            if left.dtype == right.dtype == torch.bfloat16 and kernels.serve(right):
                squares, products, sums = kernels.gram_norms(left, right, more)
            else:
                squares, products, sums = _gram_norms(left, right, more, grams if self.few else None)
            total, longest, vanished = total + squares, longest + products, vanished + sums
        squares = _at_least_zero(total + slack * longest**2 + more * vanished**2)
        # The products of a record are added up once more, in the released sum.
        products = self.products or sum(right.shape[1] for _, right in pairs)
        rounding = weighting(self.pairs) + summing(products, self.pairs[0][1], narrow=min(self.shape) == 1)
        norms = squares.sqrt_().add_(longest, alpha=rounding)
        if not rounded:
            both = sum(torch.cat([_row_lengths(left), lengths(right)], dim=1).sum(dim=1) for left, right in pairs)
            norms.add_(both, alpha=math.sqrt(max(self.shape)) * _VANISHING_DOUBLE)
            return norms.masked_fill_(~(both < _LONGEST_DOUBLE), math.inf)
        for left, right in pairs:
            if rounded and not left.is_floating_point():
                # The rows of a word are added up one after the other; each is counted at each of its places.
                words = left.sort(dim=1).values
                alike = torch.searchsorted(words, left, right=True) - torch.searchsorted(words, left)
                norms += ROUNDING * (alike * torch.linalg.vector_norm(right.double(), dim=2)).sum(dim=1)
        # Beside longer rows, what vanishes where it is weighted would count.
        return norms.masked_fill_(~(vanished < LONGEST_ROW), math.inf)

    def weighted_sum(self, weights: Tensor, silenced: Tensor | None, out: Tensor, *, add: bool) -> None:
        matrix = out.view(self.shape)
        for left, right in self.pairs:
            # Both factors are silenced, as in `RankOne`.
            b = _silence(right, silenced)
            if not left.is_floating_point():
                if not add:
                    matrix.zero_()
                rows = b * weights.to(torch.promote_types(b.dtype, torch.float32))[:, None, None]
                matrix.index_add_(0, left.flatten(), rows.flatten(0, 1).to(out.dtype))
            else:
                add_weighted(_silence(left, silenced), b, weights, matrix, add=add)
            add = True

    def materialise(self) -> Tensor:
        total: Tensor | None = None
        for left, right in self.pairs:
            if left.is_floating_point():
                product = multiply(left.transpose(1, 2), right.to(left.dtype))
            else:
                right = _full(right)
                product = right.new_zeros(len(right), *self.shape)
                product.scatter_add_(1, left[:, :, None].expand_as(right), right)
            # A sum with a first 0 would be another pass over all numbers, in memory of its own.
            total = product if total is None else total + product
        assert total is not None, "there is at least one pair"
        return total.view(len(total), *self.view)

    def project(self, onto: Tensor) -> Tensor:
        matrix = onto.reshape(self.shape)
        total = 0.0
        for left, right in self.pairs:
            rows = _full(left) @ matrix if left.is_floating_point() else matrix[left]
            total = total + (rows * right).sum(dim=(1, 2), dtype=torch.float64)
        return total

    def mapped(self, change: Callable[[Tensor], Tensor]) -> GradientFactors:
        pairs = [(change(left), change(right)) for left, right in self.pairs]
        return OuterSum(pairs, self.shape, self.view, self.few, self.products)


class GramCache:
    """The inner products of the rows of factors: those of a factor that several gradients share are computed once.

    Query, key and value of attention have their inputs in common.

    Args:
        each: all gradients whose norms are asked for.
    """

    def __init__(self, each: Iterable[GradientFactors]) -> None:
        self._uses = Counter(
            self._key(x) for factors in each if isinstance(factors, OuterSum) for pair in factors.pairs for x in pair
        )
        self._held: dict[tuple, Tensor] = {}

    @staticmethod
    def _key(x: Tensor) -> tuple:
        return x.data_ptr(), x.dtype, x.shape, x.stride()

    def of(self, x: Tensor) -> Tensor:
        """Return the inner products (R, r, r) of the rows of a factor, and hold them until its last use."""
        key = self._key(x)
        self._uses[key] -= 1
        gram = self._held.pop(key, None)
        gram = _gram(x, x) if gram is None else gram
        if self._uses[key] > 0:
            self._held[key] = gram
        return gram


@dataclass
class CentredRankOne(GradientFactors):
    """One outer product a record, less the same sum of outer products for all: ``gradient_i = own_i - left^T right``.

    An RBM's data phase less the mean negative phase of its chains is of this kind.

    Args:
        own: the outer product of each record.
        left: (m, o); like `right`, it must not depend on the lot.
        right: (m, n).
    """

    own: RankOne
    left: Tensor
    right: Tensor

    def __post_init__(self) -> None:
        # (o, n), the part that is taken from each gradient: the norms and the sum have one product in common.
        self.shared = self.left.T @ self.right

    def norms(self) -> Tensor:
        lefts, rights = self.own.left @ self.left.T, self.own.right @ self.right.T
        cross = (lefts.double() * rights).sum(dim=1)
        # The lengths of all rows of a side in one tensor: its own ones, and behind them the shared ones.
        left, right = (
            torch.cat([lengths(x) for x in pair]).double()
            for pair in ((self.own.left, self.left), (self.own.right, self.right))
        )
        count = len(self.own.left)
        products = left * right
        own_norms, longest = products[:count], products[count:].sum()
        # Twice what the products may have lost, so that nothing is rounded down where the two nearly cancel.
        slack = (sum(self.own.shape) + len(self.left) + 2) * torch.finfo(self.left.dtype).eps
        total = own_norms.square().sub_(cross, alpha=2.0).add_(lengths(self.shared).double().square_().sum())
        total.add_((own_norms + longest).square_(), alpha=slack)
        each = VANISHING if self.left.dtype == torch.float32 else _VANISHING_DOUBLE
        o, n = (math.sqrt(width) * each for width in self.own.shape)
        left_lengths, right_lengths = (x[:count] + x[count:].sum() for x in (left, right))
        return _at_least_zero(total).sqrt_().add_(right_lengths, alpha=o).add_(left_lengths, alpha=n)

    def weighted_sum(self, weights: Tensor, silenced: Tensor | None, out: Tensor, *, add: bool) -> None:
        self.own.weighted_sum(weights, silenced, out, add=add)
        if silenced is not None:
            weights = torch.where(silenced, 0.0, weights)
        out.view(self.own.shape).addcmul_(self.shared, weights.sum().to(out.dtype), value=-1.0)

    def materialise(self) -> Tensor:
        return self.own.materialise() - self.shared.view(self.own.view)

    def project(self, onto: Tensor) -> Tensor:
        return self.own.project(onto) - (self.shared.double().flatten() @ onto.double().flatten())


@dataclass
class Permuted(GradientFactors):
    """Gradients that are held with the dimensions of the parameter in another order.

    Args:
        inner: the gradients, in the order in which they are held.
        shape: their shape.
        order: the place of each of the parameter's dimensions in it.
    """

    inner: GradientFactors
    shape: tuple[int, ...]
    order: tuple[int, ...]

    def norms(self) -> Tensor:
        return self.inner.norms()

    def rows(self) -> list[Tensor]:
        return self.inner.rows()

    def weighted_sum(self, weights: Tensor, silenced: Tensor | None, out: Tensor, *, add: bool) -> None:
        total = out.new_empty(self.shape)
        self.inner.weighted_sum(weights, silenced, total, add=False)
        in_order = total.permute(self.order)
        out.add_(in_order) if add else out.copy_(in_order)

    def materialise(self) -> Tensor:
        return self.inner.materialise().permute(0, *(1 + place for place in self.order))

    def project(self, onto: Tensor) -> Tensor:
        back = [self.order.index(i) for i in range(len(self.order))]
        return self.inner.project(onto.permute(back).contiguous())

    def mapped(self, change: Callable[[Tensor], Tensor]) -> GradientFactors:
        return Permuted(self.inner.mapped(change), self.shape, self.order)


def _numbers(pairs: Sequence[tuple[Tensor, Tensor]]) -> int:
    """Return how many numbers the factors of one record have; a one-hot row is one."""
    return sum(math.prod(x.shape[1:]) for pair in pairs for x in pair)


def _gram_norms(left: Tensor, right: Tensor, more: float, grams: GramCache | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `kernels.gram_norms` does, by torch's own products; the left factor may be one-hot."""
    lefts, rights = (_gram(x, x) if grams is None else grams.of(x) for x in (left, right))
    # Not in place: in float64 it would be written into inner products that other gradients share.
    a, b = ((x.diagonal(dim1=1, dim2=2).double() + more).sqrt_() for x in (lefts, rights))
    squares = (lefts * rights).sum(dim=(1, 2), dtype=torch.float64)
    return squares, (a * b).sum(dim=1), (a + b).sum(dim=1)


def summing(products: int, like: Tensor, *, narrow: bool) -> float:
    """Return the part of the lengths of so many outer products, of such numbers, by which their sum may err.

    Args:
        narrow: whether the products are vectors, or single numbers, which libraries add one after the other.
    """
    if like.dtype not in _IN_FLOAT32:
        return 0.0
    return products * ROUNDING if narrow else SUMMED * summation(products, like.device)


def _row_lengths(x: Tensor) -> Tensor:
    """Return the lengths (R, r) of the rows of a factor, those of one-hot ones 1."""
    return lengths(x) if x.is_floating_point() else torch.ones_like(x, dtype=torch.float64)


def _at_least_zero(squares: Tensor) -> Tensor:
    """Return squares in place, rounded up to 0; a product beyond float32, which makes them -inf, counts as infinite."""
    return squares.masked_fill_(squares == -math.inf, math.inf).clamp_(min=0.0)


def weighting(pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
    """Return the part of the lengths of outer products that weighting them may add to their sum."""
    return WEIGHTED if any(right.dtype == torch.bfloat16 for _, right in pairs) else 0.0


def outer(pairs: Sequence[tuple[Tensor, Tensor]], shape: Sequence[int], view: Sequence[int]) -> GradientFactors:
    """Return the cheapest factors of a sum of outer products; see `OuterSum`.

    With r products of length o + n each, Gram matrices cost r^2 (o + n), and the weighted sum r o n; multiplied out, both
    cost r o n together. r must be public.
    """
    pairs, shape = _joined(pairs), tuple(shape)
    terms = sum(right.shape[1] for _, right in pairs)
    if terms == 1 and pairs[0][0].is_floating_point():
        return RankOne(pairs[0][0][:, 0], pairs[0][1][:, 0], tuple(view))
    few = terms * _slack_of_products(shape, pairs[0][1].device) <= _MOST_SLACK
    factors = OuterSum(pairs, shape, tuple(view), few)
    multiplied = terms > 1 and math.prod(shape) <= _LARGER * _numbers(pairs)
    return Dense(factors.materialise()) if multiplied else factors


def _slack_of_products(shape: tuple[int, ...], device: torch.device) -> float:
    """Return the greatest error of a squared norm, as a part of the squared sum of the lengths of the outer products.

    Inner products of both sides err, and so does their product; kernels add 64 of these up in float32. The factor makes up
    for the lengths, which come from these.
    """
    products = 2.0 if device.type == "cpu" else 66.0
    return SUMMED * (sum(accumulation(width, device) for width in shape) + products * ROUNDING)


def _short(rows: list[Tensor]) -> list[Tensor]:
    return rows if all(x.dtype in _IN_FLOAT32 and x.shape[1] <= SHORT for x in rows) else []


def _joined(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Join pairs of one kind to one pair of more products: one matrix product serves them all."""
    kinds: dict[bool, list[tuple[Tensor, Tensor]]] = {}
    for pair in pairs:
        kinds.setdefault(pair[0].is_floating_point(), []).append(pair)
    return [
        same[0] if len(same) == 1 else tuple(torch.cat(x, dim=1) for x in zip(*same, strict=True))
        for same in kinds.values()
    ]


def _gram(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner products (R, r, s) of the rows of two factors, either of which may be one-hot."""
    if a.is_floating_point() and b.is_floating_point():
        return inner_products(a, b)
    if a.is_floating_point():
        return a.gather(2, b[:, None, :].expand(-1, a.shape[1], -1))
    if b.is_floating_point():
        return _gram(b, a).transpose(1, 2)
    return (a[:, :, None] == b[:, None, :]).double()


def _as(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a tensor; even where there is nothing to convert, ``to`` takes as long as an addition of a few numbers."""
    return x if x.dtype == dtype else x.to(dtype)


def _full(x: Tensor) -> Tensor:
    """Return bfloat16 numbers as float32, others as they are."""
    return x.float() if x.dtype == torch.bfloat16 else x


def _double(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def _silence(x: Tensor, silenced: Tensor | None) -> Tensor:
    if silenced is None or not x.is_floating_point():
        return x
    return torch.where(silenced.view(-1, *(1,) * (x.dim() - 1)), 0.0, x)
