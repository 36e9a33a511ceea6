"""Gradients of softmax regression on the label of a record, in whole numbers: each follows from its record alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.measure.statistics import KeptParts, Statistic, check_radius
from lightning_dpgen.models.labelled import Crossed, added_up, feature_spans
from lightning_dpgen.sampling.fixed_point import product, unit_of, whole_product

# Shares are multiples of 2^-26: two of them, squared and added up over labels, stay below 2^53.
SHARE_BITS = 26
# Powers of e are read from a table in steps of 2^-8, and count as 0 below e^-40.
_STEP, _LAST = 2.0**-8, 40 * 2**8
_POWERS = torch.tensor([math.exp(-place * _STEP) for place in range(_LAST)] + [0.0], dtype=torch.float64)
# Powers are added up as multiples of 2^-44, of which int64 has room for 2^18.
_POWER_BITS = 44
# Bits of the bound of a gradient, and of the length of usual features, so that both factors of a gradient have about as
# many; features are shorter than 2^30 units.
_GRADIENT_BITS, _FEATURE_BITS, _LONGEST = 30, 15, 2.0**29
GRADIENT_UNITS = {"gradient": 2.0 ** (_GRADIENT_BITS + 1)}
# Records whose gradients, of fewer than 2^31 units, are added up exactly in float64.
_AT_ONCE = 1 << 20
# Records whose squared lengths are looked up together.
_FEW_AT_ONCE = 1 << 14
# Records without units that are added up together: rows are multiplied once for all of them.
_MANY_AT_ONCE = 1 << 17
# Bytes of shares of labels that are kept from one statistic of an access to the other.
_MOST_KEPT = 1 << 28
# Gives the shares (B, labels), each `LEAST` or more, of the labels of records, of each by itself.
Shares = Callable[[Encoded], Tensor]


def whole_shares(logits: Tensor, before: Tensor | None = None) -> Tensor:
    """Return the softmax (B, k) of logits as whole multiples of 2^-26, int64; a row that is not finite becomes 0.

    The exponential function of torch rounds a number by its place in memory, and a sum of floats by how many there are. So
    powers come from a table, by single additions and multiplications of float64, which are the same everywhere, and are
    added up in whole numbers. They are right to 10^-11.

    Args:
        logits: float64. Only differences count; minus infinity gives 0.
        before: (B, k) shares, above 0, by which powers are multiplied; None for 1.

    Example:
        >>> whole_shares(torch.tensor([[0.0, 0.0], [0.0, -torch.inf]], dtype=torch.float64)) * 2.0**-SHARE_BITS
        tensor([[0.5000, 0.5000],
                [1.0000, 0.0000]])
    """
    away = logits.amax(dim=1, keepdim=True) - logits
    known = ~away.isnan().any(dim=1, keepdim=True)
    away = away.nan_to_num(nan=0.0, posinf=_LAST * _STEP).clamp_(max=_LAST * _STEP)
    places = (away * (1.0 / _STEP)).floor_()
    rest = away - places * _STEP
    # Four terms of the series; each operation is one of float64, rounded by itself.
    series = 1.0 - rest * (1.0 - rest * 0.5 * (1.0 - rest * (1.0 / 3.0)))
    powers = _POWERS[places.to(torch.int64)] * series
    powers = powers if before is None else powers * before
    whole = (powers * 2.0**_POWER_BITS).round_().to(torch.int64)
    total = whole.sum(dim=1, keepdim=True).clamp(min=1)
    shares = (whole.double() / total.double() * 2.0**SHARE_BITS).round_().to(torch.int64)
    return shares.where(known, 0)


def mixed_shares(shares: Tensor, rows: Tensor) -> Tensor:
    """Return the averages (B, d) of public rows (k, d), each from 0 to 1, by whole shares (B, k): exact, in float64."""
    return product(shares.double(), (rows.double() * 2.0**SHARE_BITS).round_()) * 2.0 ** (-2 * SHARE_BITS)


class Gradient(Statistic):
    """Sums of gradients of the softmax regression loss at public weights, each shortened to a bound.

    A record's is ``u (p - y)^T``: u are its features, p the shares that weights give to labels, y is its label as one-hot.
    Both factors are whole numbers (`summed_gradients`).

    Args:
        crossed: the records' layout, with a label, and the cells that are features besides its choices. Public.
        features: (features, d) the rows that are added up to those of a record (`added_up`). Public.
        weights: (d, labels), public.
        bound: the length to which gradients are shortened.
        length: about that of the features of a record; public.
        before: the function that gives the shares (B, labels) of records, an exact function of each alone, to whose
            logarithms weights add; public. None for equal shares.
        choices: the same features, prepared for many gradients; None prepares them where they are needed.
    """

    def __init__(
        self,
        crossed: Crossed,
        features: Tensor,
        weights: Tensor,
        bound: float,
        length: float,
        before: Shares | None = None,
        choices: ChoiceFeatures | None = None,
    ) -> None:
        check_radius(bound, "bound")
        check_radius(length, "length")
        self.layout, self._crossed = crossed.layout, crossed
        self._features, self._length, self._before = features, length, before
        # The logits of a record are a sum of public numbers, and no product that rounds rows by how many there are.
        self._logits = features @ weights
        self.shape, self.bound, self.unit = tuple(weights.shape), bound, gradient_unit(bound)
        self._shares = KeptParts(_MOST_KEPT)
        if not self.layout.units:
            self._choices = choices or ChoiceFeatures(crossed, features, length)
            self.at_once = _MANY_AT_ONCE

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        shares, labels = self.shares(records), labels_of(records, self.layout)
        if not self.layout.units:
            return self._choices.summed(records, shares, labels, self.bound)
        u = whole_features(added_up(self._crossed(records), self._crossed.wide, self._features), self._length)
        return summed_gradients(u, shares, labels, self.bound, self._length)

    def shares(self, records: Encoded) -> Tensor:
        """Return what weights give to the labels of records, (B, labels), as whole multiples (`whole_shares`).

        Those of records that are asked for again are kept.
        """

        def computed() -> Tensor:
            logits = added_up(self._crossed(records), self._crossed.wide, self._logits)
            return whole_shares(logits, self._before and self._before(records))

        return self._shares.get(records, computed)


class Agreement(Statistic):
    """Sums of the shares that weights give to the records' own labels: a share is at most 1, so the bound is 1.

    Args:
        gradient: that at the same weights, which computes the shares, too.
    """

    shape, bound, unit = (1,), 1.0, 2.0**-SHARE_BITS

    def __init__(self, gradient: Gradient) -> None:
        self.layout, self.at_once, self._gradient = gradient.layout, gradient.at_once, gradient

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        return self._gradient.shares(records).gather(1, labels_of(records, self.layout)[:, None]).sum(dim=0)


def gradient_unit(bound: float) -> float:
    """Return the unit of which gradients within a bound are multiples: the sums of 2^31 records stay within int64."""
    return unit_of(bound, _GRADIENT_BITS)


def feature_unit(length: float) -> float:
    """Return the unit of which features are multiples that are usually about so long."""
    return unit_of(length, _FEATURE_BITS)


def whole_features(u: Tensor, length: float, added: int = 1) -> Tensor:
    """Round features (B, d), in float64, to multiples of `feature_unit`, int32; NaN counts as 0.

    Args:
        added: how many of them are added up; a sum is no longer than 2^30.
    """
    most = _LONGEST / math.sqrt(max(u.shape[1], 1)) / added
    return (u * (1.0 / feature_unit(length))).nan_to_num_(nan=0.0).clamp_(-most, most).round_().to(torch.int32)


def summed_gradients(u: Tensor, shares: Tensor, labels: Tensor, bound: float, length: float) -> Tensor:
    """Sum the gradients (d, labels) of the softmax regression loss, each shortened to a bound: whole multiples, int64.

    A gradient is an outer product of two rows of whole numbers, whose squared length is the product of theirs: that is
    computed in whole numbers, and a gradient that is too long nevertheless becomes 0. A sum of such products is exact.

    Args:
        u: (B, d) features of records (`whole_features`), int32.
        shares: (B, labels) what weights give to labels (`whole_shares`).
        labels: (B,) the records' own labels, int64.
        bound: the length to which each gradient is shortened.
        length: that of usual features, by which they were rounded; public.

    Returns:
        multiples of `gradient_unit`.

    Example:
        >>> u, half = whole_features(torch.ones(1, 1).double(), 1.0), whole_shares(torch.zeros(1, 2).double())
        >>> summed_gradients(u, half, torch.tensor([0]), 1.0, 1.0) * gradient_unit(1.0)
        tensor([[-0.5000,  0.5000]])
    """
    total = torch.zeros(u.shape[1], shares.shape[1], dtype=torch.int64)
    for start in range(0, len(u), _AT_ONCE):
        rows = slice(start, start + _AT_ONCE)
        part = u[rows].to(torch.float64)
        squares = u[rows].to(torch.int64).square_().sum(dim=1, keepdim=True)
        errors = _whole_errors(shares[rows], labels[rows], squares, bound, length)
        total += product(part.T, errors.to(torch.float64)).to(torch.int64)
    return total


class ChoiceFeatures:
    """Features of records that are choices alone: sums of a few rows of a table.

    Rows are whole numbers, and so are features. The squared length of a sum of rows is a sum of their products, which are
    tabulated. All records with a choice meet the same row, so errors are added up by choices first, and are multiplied by
    rows once. Integers that wrap around are right in the end: the sum is below 2^63, as it is of gradients that are short.

    Args:
        crossed: the records' layout, without units, and the cells that are features besides its choices.
        features: (features, d) the rows.
        length: as for `summed_gradients`.
    """

    def __init__(self, crossed: Crossed, features: Tensor, length: float) -> None:
        self._crossed, self._length, layout = crossed, length, crossed.wide
        self._spans = [(g, span) for g, span in enumerate(feature_spans(layout)) if g != layout.label]
        self._rows = whole_features(features, length, max(len(self._spans), 1)).to(torch.int64)
        products = whole_product(self._rows, self._rows.T).numpy()
        self._lengths = np.diagonal(products).copy()
        # A small table of each two groups: by how much two choices lengthen the square.
        self._products = {
            (one, other): 2 * products[first, second].ravel()
            for (one, first), (other, second) in itertools.combinations(self._spans, 2)
        }

    def summed(self, records: Encoded, shares: Tensor, labels: Tensor, bound: float) -> Tensor:
        """Sum the gradients (d, labels) of records, as `summed_gradients` does with their features."""
        wide = self._crossed(records)
        errors = _whole_errors(shares, labels, self._squared_lengths(wide)[:, None], bound, self._length)
        by_choice = torch.zeros(len(self._rows), shares.shape[1], dtype=torch.int64)
        for group, span in self._spans:
            by_choice[span].index_add_(0, torch.from_numpy(wide.codes[:, group].astype(np.int64)), errors)
        return whole_product(self._rows.T, by_choice)

    def _squared_lengths(self, wide: Encoded) -> Tensor:
        """Return those of the features of records with their cells, (B,)."""
        squares = np.zeros(len(wide), np.int64)
        for start in range(0, len(wide), _FEW_AT_ONCE):
            codes = np.ascontiguousarray(wide.codes[start : start + _FEW_AT_ONCE].T, np.intp)
            part, place, products = squares[start : start + _FEW_AT_ONCE], np.empty_like(codes[0]), np.empty_like(codes[0])
            for group, span in self._spans:
                part += self._lengths[span][codes[group]]
            for (one, other), table in self._products.items():
                np.multiply(codes[one], self._crossed.wide.groups[other], out=place)
                place += codes[other]
                part += np.take(table, place, out=products, mode="clip")
        return torch.from_numpy(squares)


def _whole_errors(shares: Tensor, labels: Tensor, squares: Tensor, bound: float, length: float) -> Tensor:
    """Return p - y (B, labels) as whole numbers, short enough for features of these squared lengths (B, 1)."""
    errors = shares.scatter_add(1, labels[:, None], torch.full_like(labels, -(2**SHARE_BITS))[:, None])
    largest = math.floor(bound / gradient_unit(bound))
    # In units of the errors: those of the gradients over those of the features.
    in_shares = gradient_unit(bound) / feature_unit(length) * 2.0**SHARE_BITS
    longest = largest * (1.0 - 2.0**-40) / squares.clamp(min=1).double().sqrt() - 0.51 * math.sqrt(errors.shape[1])
    lengths = errors.square().sum(dim=1, keepdim=True).clamp(min=1).double().sqrt()
    factors = (longest.clamp(min=0.0) * in_shares / lengths).clamp(max=1.0)
    whole = (errors.double() * factors * (1.0 / in_shares)).round_().to(torch.int64)
    room = torch.div(torch.full_like(squares, largest**2), squares.clamp(min=1), rounding_mode="floor")
    return whole.where(whole.square().sum(dim=1, keepdim=True) <= room, 0)


def labels_of(records: Encoded, layout: Layout) -> Tensor:
    """Return the label of each record, (B,) int64."""
    return torch.from_numpy(records.codes[:, layout.label].astype(np.int64))
