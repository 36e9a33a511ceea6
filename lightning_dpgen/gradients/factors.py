"""In which form the gradients of R records for one parameter are held: outer products of small factors, or whole.

A layer's gradient for one record is a sum of r outer products, one a position or call. What it weighs and its weighted sum
over records follow from the factors, by one product each; only where the products are no larger than their factors
(convolutions of few channels over many positions) is it cheaper to multiply them out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

# The rounding of one addition in float32, and below what its squares may vanish.
_ROUNDING, _VANISHING = 2.0**-24, 1.1e-19
# Up to as many numbers a row, and outer products a record, sums are made in float32 where the numbers come in it.
_SHORT, _FEW = 4096, 64
# Of the sum of the lengths of many outer products, squared: the float32 products that are released err by less.
_SLACK = 1e-6


class GradientFactors(Protocol):
    """The gradients of R records with respect to one tensor. Private."""

    def norms(self) -> Tensor:
        """(R,) Euclidean norms, never rounded down; not finite where a gradient is not, or is beyond 1e19."""
        ...

    def rows(self) -> list[Tensor]:
        """One or two matrices (R, n) in float32, the product of whose row lengths is the norm; none where it is another."""
        return []

    def weighted_sum(self, weights: Tensor, silenced: Tensor | None, out: Tensor, *, add: bool) -> None:
        """Write ``sum_i weights[i] gradient_i`` into `out`, or add it to what is there.

        Args:
            weights: (R,).
            silenced: (R,) records that give exact zeros, NaN or not; None for no such record.
            out: of the parameter's shape.
            add: whether to add.
        """
        ...

    def materialise(self) -> Tensor:
        """(R, *shape), multiplied out."""
        ...

    def project(self, onto: Tensor) -> Tensor:
        """(R,) inner products with one tensor of the parameter's shape, in float64."""
        ...

    def mapped(self, change: Callable[[Tensor], Tensor]) -> GradientFactors:
        """With `change` done to each tensor that has a row a record: takes some, or adds rows of zeros."""
        ...


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
        flat = _silence(self.gradient, silenced).reshape(len(weights), out.numel()).to(out.dtype)
        target = out.view(-1)
        torch.addmv(target, flat.T, weights.to(out.dtype), beta=float(add), out=target)

    def materialise(self) -> Tensor:
        return self.gradient

    def project(self, onto: Tensor) -> Tensor:
        return self.gradient.flatten(1).double() @ onto.flatten().double()

    def mapped(self, change: Callable[[Tensor], Tensor]) -> GradientFactors:
        return Dense(change(self.gradient))


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
        """(o, n), of the parameter as a matrix."""
        return self.left.shape[1], self.right.shape[1]

    @property
    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """As those of an `OuterSum`."""
        return [(self.left[:, None], self.right[:, None])]

    def norms(self) -> Tensor:
        return lengths(self.left) * lengths(self.right)

    def rows(self) -> list[Tensor]:
        return _short([self.left, self.right])

    def weighted_sum(self, weights: Tensor, silenced: Tensor | None, out: Tensor, *, add: bool) -> None:
        # Weight 0 does not silence NaN in a product: both factors must be exact zeros.
        a, b = _silence(self.left, silenced), _silence(self.right, silenced)
        if a.shape[1] <= b.shape[1]:
            a = a * weights.to(a.dtype)[:, None]
        else:
            b = b * weights.to(b.dtype)[:, None]
        matrix = out.view(self.shape)
        torch.addmm(matrix, a.to(out.dtype).T, b.to(out.dtype), beta=float(add), out=matrix)

    def materialise(self) -> Tensor:
        return (self.left[:, :, None] * self.right.to(self.left.dtype)[:, None]).view(len(self.left), *self.view)

    def project(self, onto: Tensor) -> Tensor:
        return ((self.left @ onto.reshape(self.shape)) * self.right).sum(dim=1, dtype=torch.float64)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> GradientFactors:
        return RankOne(change(self.left), change(self.right), self.view)


@dataclass
class OuterSum(GradientFactors):
    """Sums of outer products, ``gradient_i = sum over pairs and r of left[i, r] right[i, r]^T``.

    Args:
        pairs: of left (R, r, o), or (R, r) int64 for the one-hot rows of an embedding, and right (R, r, n).
        shape: (o, n), of the parameter as a matrix.
        view: the parameter's own shape.
        few: whether r is small, or private. What follows from it must not change with the lot: the slack of the norms
            would change with it, and with that what every other record adds.
    """

    pairs: Sequence[tuple[Tensor, Tensor]]
    shape: tuple[int, int]
    view: tuple[int, ...]
    few: bool = True

    def norms(self) -> Tensor:
        # sum_rs (left_r . left_s)(right_r . right_s) is the squared norm of a sum of outer products. Where they cancel,
        # rounding could leave too small a norm, and too large a contribution: the slack is never less than that error.
        single = self.few and sum(self.shape) <= _SHORT
        pairs = self.pairs if single else [(_double(left), right.double()) for left, right in self.pairs]
        rounded = single and pairs[0][1].dtype == torch.float32
        slack = 1.25 * (sum(self.shape) + 2) * _ROUNDING if rounded else _SLACK
        # Squares that vanished, as in the function `slack`.
        more = max(self.shape) * _VANISHING**2 if rounded else 0.0
        total, each, vanished = [], [], []
        for i, (left, right) in enumerate(pairs):
            for other_left, other_right in pairs[: i + 1]:
                lefts, rights = _gram(left, other_left), right @ other_right.transpose(1, 2)
                total.append((lefts * rights).sum(dim=(1, 2), dtype=torch.float64))
                if other_left is not left:
                    total.append(total[-1])
                    continue
                a, b = (x.diagonal(dim1=1, dim2=2).double().add_(more).sqrt_() for x in (lefts, rights))
                each.append((a * b).sum(dim=1))
                vanished.append((a + b).sum(dim=1))
        found = sum(total[1:], start=total[0]) + slack * sum(each[1:], start=each[0]).square()
        if rounded:
            found += more * sum(vanished[1:], start=vanished[0]).square()
        return found.clamp_(min=0.0).sqrt_()

    def weighted_sum(self, weights: Tensor, silenced: Tensor | None, out: Tensor, *, add: bool) -> None:
        matrix = out.view(self.shape)
        for left, right in self.pairs:
            # As in `Product`.
            b = _silence(right, silenced)
            if not left.is_floating_point():
                if not add:
                    matrix.zero_()
                matrix.index_add_(0, left.flatten(), (b * weights.to(b.dtype)[:, None, None]).flatten(0, 1).to(out.dtype))
            else:
                a = _silence(left, silenced)
                if self.shape[0] <= self.shape[1]:
                    a = a * weights.to(a.dtype)[:, None, None]
                else:
                    b = b * weights.to(b.dtype)[:, None, None]
                a, b = (x.reshape(-1, x.shape[2]).to(out.dtype) for x in (a, b))
                torch.addmm(matrix, a.T, b, beta=float(add), out=matrix)
            add = True

    def materialise(self) -> Tensor:
        total = 0.0
        for left, right in self.pairs:
            if left.is_floating_point():
                product = torch.bmm(left.transpose(1, 2), right.to(left.dtype))
            else:
                product = right.new_zeros(len(right), *self.shape)
                product.scatter_add_(1, left[:, :, None].expand_as(right), right)
            total = total + product
        return total.view(len(total), *self.view)

    def project(self, onto: Tensor) -> Tensor:
        matrix = onto.reshape(self.shape)
        total = 0.0
        for left, right in self.pairs:
            rows = left @ matrix if left.is_floating_point() else matrix[left]
            total = total + (rows * right).sum(dim=(1, 2), dtype=torch.float64)
        return total

    def mapped(self, change: Callable[[Tensor], Tensor]) -> GradientFactors:
        return OuterSum([(change(left), change(right)) for left, right in self.pairs], self.shape, self.view, self.few)


@dataclass
class OneComponent(GradientFactors):
    """Gradients with respect to a stack of k tensors, of which each record touches one: that of its component.

    Args:
        form: with respect to that one tensor; records are sorted by component.
        offsets: k + 1 positions; the records of component c are ``offsets[c]`` to ``offsets[c + 1]``.
    """

    form: GradientFactors
    offsets: Sequence[int]

    @property
    def components(self) -> int:
        """How many tensors there are."""
        return len(self.offsets) - 1

    def norms(self) -> Tensor:
        return self.form.norms()

    def rows(self) -> list[Tensor]:
        return self.form.rows()

    def weighted_sum(self, weights: Tensor, silenced: Tensor | None, out: Tensor, *, add: bool) -> None:
        if len(self.offsets) == 2:
            self.form.weighted_sum(weights, silenced, out[0], add=add)
            return
        for c, (start, end) in enumerate(itertools.pairwise(self.offsets)):
            if start == end:
                if not add:
                    out[c].zero_()
                continue
            part = self.form.mapped(lambda x, start=start, end=end: x[start:end])
            quiet = None if silenced is None else silenced[start:end]
            part.weighted_sum(weights[start:end], quiet, out[c], add=add)

    def materialise(self) -> Tensor:
        each = self.form.materialise()
        out = each.new_zeros(len(each), len(self.offsets) - 1, *each.shape[1:])
        for c, (start, end) in enumerate(itertools.pairwise(self.offsets)):
            out[start:end, c] = each[start:end]
        return out

    def project(self, onto: Tensor) -> Tensor:
        return self.materialise().flatten(1).double() @ onto.flatten().double()

    def mapped(self, change: Callable[[Tensor], Tensor]) -> GradientFactors:
        return Dense(change(self.materialise()))


@dataclass
class OneComponentMixed(GradientFactors):
    """As `OneComponent`, where the form of each component is another.

    Args:
        forms: k, of the records of each component.
        sizes: k, how many records each has.
    """

    forms: Sequence[GradientFactors]
    sizes: Sequence[int]

    @property
    def components(self) -> int:
        """How many tensors there are."""
        return len(self.forms)

    def norms(self) -> Tensor:
        return torch.cat([form.norms() for form in self.forms])

    def weighted_sum(self, weights: Tensor, silenced: Tensor | None, out: Tensor, *, add: bool) -> None:
        quiet = [None] * len(self.sizes) if silenced is None else silenced.split(list(self.sizes))
        for c, (form, own) in enumerate(zip(self.forms, weights.split(list(self.sizes)), strict=True)):
            form.weighted_sum(own, quiet[c], out[c], add=add)

    def materialise(self) -> Tensor:
        each = [form.materialise() for form in self.forms]
        return torch.cat([F.pad(x[:, None], [0, 0] * (x.dim() - 1) + [c, len(each) - 1 - c]) for c, x in enumerate(each)])

    def project(self, onto: Tensor) -> Tensor:
        return torch.cat([form.project(onto[c]) for c, form in enumerate(self.forms)])

    def mapped(self, change: Callable[[Tensor], Tensor]) -> GradientFactors:
        return Dense(change(self.materialise()))


@dataclass
class AllComponents(GradientFactors):
    """Gradients with respect to a stack of k tensors, of which a row may touch any.

    Args:
        forms: k, with respect to each of them.
    """

    forms: Sequence[GradientFactors]

    def norms(self) -> Tensor:
        if len(self.forms) == 1:
            return self.forms[0].norms()
        return torch.stack([form.norms().double() for form in self.forms]).square_().sum(dim=0).sqrt_()

    def rows(self) -> list[Tensor]:
        return self.forms[0].rows() if len(self.forms) == 1 else []

    def weighted_sum(self, weights: Tensor, silenced: Tensor | None, out: Tensor, *, add: bool) -> None:
        for c, form in enumerate(self.forms):
            form.weighted_sum(weights, silenced, out[c], add=add)

    def materialise(self) -> Tensor:
        return torch.stack([form.materialise() for form in self.forms], dim=1)

    def project(self, onto: Tensor) -> Tensor:
        return sum(form.project(onto[c]) for c, form in enumerate(self.forms))

    def mapped(self, change: Callable[[Tensor], Tensor]) -> GradientFactors:
        return AllComponents([form.mapped(change) for form in self.forms])


@dataclass
class CentredRankOne(GradientFactors):
    """One outer product a record, less the same sum of outer products for all: ``gradient_i = form_i - left^T right``.

    An RBM's data phase less the mean negative phase of its chains is of this kind.

    Args:
        form: what differs by record.
        left: (m, o); no function of the lot, as `right`.
        right: (m, n).
    """

    form: RankOne
    left: Tensor
    right: Tensor

    def norms(self) -> Tensor:
        lefts, rights = self.form.left @ self.left.T, self.form.right @ self.right.T
        cross = (lefts * rights).sum(dim=1, dtype=torch.float64)
        own = ((self.left @ self.left.T) * (self.right @ self.right.T)).sum(dtype=torch.float64)
        lengths_of_form, longest = self.form.norms().double(), (lengths(self.left) * lengths(self.right)).double().sum()
        # Never rounded down, also where the two nearly cancel: twice what the products may have lost.
        slack = (sum(self.form.shape) + 2) * torch.finfo(self.left.dtype).eps
        total = lengths_of_form.square() - 2.0 * cross + own + slack * (lengths_of_form + longest).square()
        if self.left.dtype == torch.float32:
            o, n = (width * _VANISHING**2 for width in self.form.shape)
            of_left = lengths(self.form.left).double() + lengths(self.left).double().sum()
            of_right = lengths(self.form.right).double() + lengths(self.right).double().sum()
            total += o * of_right.square() + n * of_left.square()
        return total.clamp_(min=0.0).sqrt_()

    def weighted_sum(self, weights: Tensor, silenced: Tensor | None, out: Tensor, *, add: bool) -> None:
        self.form.weighted_sum(weights, silenced, out, add=add)
        if silenced is not None:
            weights = torch.where(silenced, 0.0, weights)
        matrix = out.view(self.form.shape)
        torch.addmm(matrix, self.left.T, self.right, alpha=-float(weights.sum()), out=matrix)

    def materialise(self) -> Tensor:
        return self.form.materialise() - self._shared()

    def project(self, onto: Tensor) -> Tensor:
        return self.form.project(onto) - (self._shared().double() * onto.double()).sum()

    def mapped(self, change: Callable[[Tensor], Tensor]) -> GradientFactors:
        return Dense(change(self.materialise()))

    def _shared(self) -> Tensor:
        return (self.left.T @ self.right).view(self.form.view)


def outer(pairs: Sequence[tuple[Tensor, Tensor]], shape: Sequence[int], view: Sequence[int]) -> GradientFactors:
    """The cheaper form of a sum of outer products; see `OuterSum`.

    With r products of length o + n each, Gram matrices cost r^2 (o + n), and multiplying out costs r o n. r must be public.
    """
    pairs, shape = _joined(pairs), tuple(shape)
    terms = sum(right.shape[1] for _, right in pairs)
    if terms == 1 and pairs[0][0].is_floating_point():
        return RankOne(pairs[0][0][:, 0], pairs[0][1][:, 0], tuple(view))
    form = OuterSum(pairs, shape, tuple(view), few=terms <= _FEW)
    multiplied = terms > 1 and math.prod(shape) <= terms * sum(shape)
    return Dense(form.materialise()) if multiplied else form


def sum_factors(forms: Sequence[GradientFactors]) -> GradientFactors:
    """The form of the sum of several gradients of the same records with respect to the same tensor."""
    if len(forms) == 1:
        return forms[0]
    if all(isinstance(form, OneComponent) for form in forms) and len({tuple(form.offsets) for form in forms}) == 1:
        return OneComponent(sum_factors([form.form for form in forms]), forms[0].offsets)
    if all(isinstance(form, RankOne | OuterSum) for form in forms) and len({form.shape for form in forms}) == 1:
        return outer([pair for form in forms for pair in form.pairs], forms[0].shape, forms[0].view)
    return Dense(sum((form.materialise() for form in forms[1:]), start=forms[0].materialise()))


# A form, the weight of each of its rows, and which of these are silenced, as for `Form.weighted_sum`.
Piece = tuple[GradientFactors, Tensor, Tensor | None]


def joined(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """The same sum; products of several terms with one factor in common as one: ``sum_i (w_i a_i + v_i b_i) x_i^T``."""
    forms = [form for form, _, _ in pieces]
    if len(pieces) < 2 or not all(isinstance(form, OneComponent) and isinstance(form.form, RankOne) for form in forms):
        return pieces
    first = forms[0].form
    if any(form.form.right is not first.right for form in forms) or any(silenced is not None for *_, silenced in pieces):
        return pieces
    left = sum(form.form.left * weights[:, None] for form, weights, _ in pieces)
    ones = pieces[0][1].new_ones(len(left))
    return [(OneComponent(RankOne(left, first.right, first.view), forms[0].offsets), ones, None)]


def slack(width: int) -> tuple[float, float]:
    """By what a length that was summed in float32 is multiplied, and what is added, so that it is not too small.

    Additions may have rounded down, and small squares vanished: these matter beside another factor that is huge.
    """
    return 1.0 + width * _ROUNDING, math.sqrt(width) * _VANISHING


def lengths(x: Tensor) -> Tensor:
    """Euclidean norms over the last dimension, never rounded down, whatever was lost when squares were added in float32."""
    width = x.shape[-1]
    if x.dtype != torch.float32:
        return torch.linalg.vector_norm(x.double(), dim=-1)
    if width > _SHORT:
        return torch.linalg.vector_norm(torch.stack([lengths(part) for part in x.split(_SHORT, dim=-1)]).double(), dim=0)
    factor, more = slack(width)
    return torch.linalg.vector_norm(x, dim=-1).mul_(factor).add_(more)


def _short(rows: list[Tensor]) -> list[Tensor]:
    return rows if all(x.dtype == torch.float32 and x.shape[1] <= _SHORT for x in rows) else []


def _joined(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Pairs of one kind as one pair of more products: one matrix product serves them all."""
    kinds: dict[bool, list[tuple[Tensor, Tensor]]] = {}
    for pair in pairs:
        kinds.setdefault(pair[0].is_floating_point(), []).append(pair)
    return [
        same[0] if len(same) == 1 else tuple(torch.cat(x, dim=1) for x in zip(*same, strict=True))
        for same in kinds.values()
    ]


def _gram(a: Tensor, b: Tensor) -> Tensor:
    """(R, r, s) inner products of the rows of two factors, either of which may be one-hot."""
    if a.is_floating_point() and b.is_floating_point():
        return a @ b.transpose(1, 2)
    if a.is_floating_point():
        return a.gather(2, b[:, None, :].expand(-1, a.shape[1], -1))
    if b.is_floating_point():
        return _gram(b, a).transpose(1, 2)
    return (a[:, :, None] == b[:, None, :]).double()


def _double(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def _silence(x: Tensor, silenced: Tensor | None) -> Tensor:
    if silenced is None or not x.is_floating_point():
        return x
    return torch.where(silenced.view(-1, *(1,) * (x.dim() - 1)), 0.0, x)
