"""The label of a table given its other columns: softmax regression by noisy gradients, on top of any mixture."""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.special
import torch
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor

from lightning_dpgen.common import pace
from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.measure.kept_parts import KeptParts
from lightning_dpgen.measure.statistics import Statistic, check_radius
from lightning_dpgen.measure.whole_shares import SHARE_BITS, whole_shares
from lightning_dpgen.measure.workload import Measured, Workload
from lightning_dpgen.models.crossings import Crossed, Crossing
from lightning_dpgen.models.labelled import (
    LabelledNetwork,
    added_up,
    feature_count,
    feature_spans,
    log_shares,
    written_out,
)
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.sampling.fixed_point import product, unit_of, whole_product

# The stage of the accesses that correct the label.
LABELS = "labels"
# Their number, and the part of each that measures how well labels agree, where that is measured.
_ROUNDS, _AGREEMENT = 4, 0.1
# Made-up records, drawn from the mixture, that stand for real ones where that saves budget.
_MADE = 10_000
# This share of the made-up records' gradients is within the bound.
_KEPT = 0.9
# The largest weight with which labels follow their components, and its prior mean.
_CLOSEST, _EXPECTED = 8.0, 4.0
# Degrees of it are tried, and the best is searched for nearby, by about so many.
_PLACES, _SEARCHED = 19, 10
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


def check_sharpness(name: str, sharpness: object) -> None:
    """Raise ValueError, naming it, unless a factor of the logits of labels is from 0.1 to 100."""
    if not (isinstance(sharpness, numbers.Real) and 0.1 <= sharpness <= 100.0):
        raise ValueError(f"{name}={sharpness!r}: expected a number from 0.1 to 100")


def label_workload(n: int, share: float, *, agreement: bool) -> Workload:
    """Return the accesses that correct the label, for a share of what a recipe may spend.

    A plan asks for them before there is a mixture to begin with.

    Args:
        n: the declared number of records.
        share: of what the recipe may spend.
        agreement: whether labels are to follow components, for which their agreement is measured.

    Example:
        >>> spec = label_workload(5000, 0.3, agreement=False).spec(0.9)
        >>> spec.stage, spec.count, round(spec.share, 2)
        ('labels', 4, 0.27)
    """
    weights = {"gradient": 1.0 - _AGREEMENT, "agreement": _AGREEMENT} if agreement else {"gradient": 1.0}
    return Workload(LABELS, weights, n, share, _ROUNDS, units=GRADIENT_UNITS)


@dataclass(frozen=True)
class MadeUp:
    """Records that a mixture makes up, and what it says of their labels. Public.

    Args:
        records: the records.
        given: (N, labels) shares of labels that a regression on the other columns is to begin with.
        shares: (labels,) shares of labels in all records.
        design: records that features are scaled by: the same; where they have units, once more with units that are spread
            evenly, since the units of a network may be more alike than real ones.
        own: (N, labels) logarithms of the shares by which labels were drawn, if labels are to follow them besides the
            columns.
        before: the function that gives the shares of labels given the other columns, where what the mixture says of labels
            is kept as it is, and a regression adds to their logarithms; None where a regression begins with `given`.
    """

    records: Encoded
    given: Tensor
    shares: Tensor
    design: Encoded
    own: Tensor | None = None
    before: Shares | None = None


def made_up(mixture: Mixture, seed: int, *, follow: bool = False) -> MadeUp:
    """Let a mixture make up records.

    On average over all records with the same columns, the shares by which a label is drawn are those of labels given the
    columns, so a regression on them begins with what the mixture says.

    Args:
        seed: public.
        follow: whether labels are to follow the shares by which they were drawn, besides the columns.
    """
    layout, generator = mixture.network.schema.layout, torch.Generator().manual_seed(seed)
    component = torch.multinomial(mixture.weights, _MADE, replacement=True, generator=generator)
    made, records = mixture.generate_components(component, generator)
    own = log_shares(made.double(), layout)
    shares = torch.softmax(own, dim=1)
    design = records
    if layout.units:
        spread = torch.rand(_MADE, layout.units, generator=generator).numpy()
        design = Encoded.joined([records, Encoded(spread, records.codes)])
    return MadeUp(records, shares, shares.mean(dim=0), design, own if follow else None)


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
            own, place, found = squares[start : start + _FEW_AT_ONCE], np.empty_like(codes[0]), np.empty_like(codes[0])
            for group, span in self._spans:
                own += self._lengths[span][codes[group]]
            for (one, other), table in self._products.items():
                np.multiply(codes[one], self._crossed.wide.groups[other], out=place)
                place += codes[other]
                own += np.take(table, place, out=found, mode="clip")
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


class LabelRegression:
    """Softmax regression that begins with the label of a mixture, and is corrected by noisy gradients of real records.

    It begins with a regression on what the mixture says of its own records, which is smoother than that; where
    `MadeUp.before` is given, it begins with exactly what the mixture says, and weights are what is added.

    Everything but these gradients is public: the start, features in which the loss is about equally curved in all
    directions (so that a few steps suffice, and noise that is alike in all of them hurts least), and the bound follow from
    records made up by the mixture. Steps are those of Newton's method in these features, averaged; their mean is shrunk to
    the start by the share of it that noise explains (James and Stein).

    Args:
        layout: the layout of the records.
        made: records made up by the mixture.
        n: about the number of records; public.
        ridge: draws weights to 0; the less noise there is in the mixture, the smaller it may be.
        crossings: whose cells are features, too.
    """

    def __init__(self, layout: Layout, made: MadeUp, n: float, ridge: float, crossings: Sequence[Crossing] = ()) -> None:
        self._crossed = Crossed(layout, tuple(crossings))
        self._made, self._n, layout = made, n, self._crossed.wide
        self._records = self._crossed(made.records)
        rows = feature_count(layout)
        others = torch.ones(rows, dtype=torch.bool)
        others[feature_spans(layout)[layout.label]] = False
        own, x = (written_out(each, layout)[:, others.numpy()] for each in (self._records, self._crossed(made.design)))
        if made.before is None:
            weights = fit_softmax(own, made.given, ridge)
            p = torch.softmax(torch.from_numpy(x @ weights.numpy()), dim=1)
        else:
            weights = torch.zeros(x.shape[1], made.given.shape[1], dtype=torch.float64)
            p = made.before(made.design)
            p = p / p.sum(dim=1, keepdim=True)
        classes = weights.shape[1]
        # The mean curvature of the loss over directions in which weights matter.
        curvature = (1.0 - p.square().sum(dim=1)) / (classes - 1)
        curved = (x.T @ (x * curvature.numpy()[:, None])).toarray() / x.shape[0]
        # A triangular root is as good as any: noise and bounds are alike in all directions.
        root = np.linalg.cholesky(curved + ridge / 4 * np.eye(len(curved)))
        whitened = scipy.linalg.solve_triangular(root.T, np.eye(len(root)))
        self._features = torch.zeros(rows, len(root), dtype=torch.float64)
        self._features[others] = torch.from_numpy(whitened)
        self._start = torch.from_numpy(root.T @ weights.numpy())
        errors = p.clone()
        errors[torch.arange(len(p)), labels_of(made.design, layout)] -= 1.0
        few = range(0, x.shape[0], _FEW_AT_ONCE // 8)
        norms = [np.linalg.norm(x[i : i + few.step] @ whitened, axis=1) for i in few]
        lengths = torch.from_numpy(np.concatenate(norms))
        self._length = max(float(lengths.median()), 1e-3)
        lengths *= torch.linalg.vector_norm(errors, dim=1)
        self._bound = max(float(torch.quantile(lengths, _KEPT)), 1e-3)

    @cached_property
    def _choices(self) -> ChoiceFeatures | None:
        return None if self._crossed.wide.units else ChoiceFeatures(self._crossed, self._features, self._length)

    @property
    def shares(self) -> Tensor:
        """The shares (N, labels) of the labels of made-up records before any access."""
        if self._made.before is not None:
            return self._made.given
        return self._shares(self._start)

    def statistics(self, rounds: Sequence[Mapping[str, Measured]]) -> dict[str, Statistic]:
        """Return the statistics of the next access, after these rounds."""
        weights, before = self._corrected(rounds), self._made.before
        gradient = Gradient(self._crossed, self._features, weights, self._bound, self._length, before, self._choices)
        found: dict[str, Statistic] = {"gradient": gradient}
        if self._made.own is not None:
            found["agreement"] = Agreement(gradient)
        return found

    def labelled(self, mixture: Mixture, rounds: Sequence[Mapping[str, Measured]], sharpness: float = 1.0) -> Mixture:
        """Return the mixture that has made up the records, with labels drawn as these rounds say.

        The level makes labels occur as often as the mixture says. Where labels follow `MadeUp.own`, they do so just enough
        to make labels as predictable from made-up columns, which may tell less, as from real ones (`Agreement`).

        Args:
            mixture: the mixture.
            rounds: the measurements of all accesses.
            sharpness: factor of differences of logits; above 1 labels are more predictable than real ones.
        """
        weights = self._corrected(rounds)
        closeness = 0.0 if self._made.own is None else self._closeness(rounds, weights)
        network = LabelledNetwork(mixture.network, self._crossed.crossings)
        network.label_weights.copy_(sharpness * self._features @ weights)
        network.label_closeness.fill_(sharpness * closeness)
        network.label_level.copy_(self._levelled(weights, closeness, sharpness)[1])
        return Mixture(network, mixture.weights, mixture.run, mixture.init)

    def _closeness(self, rounds: Sequence[Mapping[str, Measured]], weights: Tensor) -> float:
        """Return how closely labels follow the shares by which they were drawn."""
        if self._made.before is not None:
            return 1.0
        made = self._shares(weights)
        later = range(len(rounds) // 2, len(rounds))
        gaps = [self._gap(rounds[i]["agreement"], self._corrected(rounds[:i])) for i in later]
        wanted = float(made.square().sum(dim=1).mean()) + sum(gaps) / max(len(gaps), 1)
        # Without noise a difference of a thousandth counts as none.
        doubt = sum((rounds[i]["agreement"].deviation / self._n) ** 2 for i in later) / max(len(gaps), 1) ** 2 + 1e-6

        def agreement(closeness: float) -> float:
            progress.advance()
            return float((self._levelled(weights, closeness)[0] * made).sum(dim=1).mean())

        with pace.stage("finding how closely the label follows", _PLACES + _SEARCHED) as progress:
            if agreement(0.0) >= wanted:
                return 0.0
            # Agreement grows less and less, and then falls: beyond its peak noise would tie labels to components alone.
            # Where that is depends on how plainly components tell of labels, over some orders of magnitude.
            places = np.array([0.0, *np.geomspace(_CLOSEST / 1000.0, _CLOSEST, _PLACES - 1)])
            agreed = np.array([agreement(closeness) for closeness in places])

            def doubted(closeness: float | np.ndarray, agreed: float | np.ndarray) -> float | np.ndarray:
                return (agreed - wanted) ** 2 / (2.0 * doubt) + closeness / _EXPECTED

            best = int(doubted(places, agreed)[: agreed.argmax() + 1].argmin())
            low, high = places[max(best - 1, 0)], places[min(best + 1, len(places) - 1)]
            return minimize_scalar(
                lambda closeness: doubted(closeness, agreement(closeness)),
                bounds=(low, high), method="bounded", options={"xatol": 0.02 * high},
            ).x  # fmt: skip

    def _levelled(self, weights: Tensor, closeness: float, sharpness: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return the shares (N, labels) of made-up records, and the level (labels,) that keeps those of all of them."""
        logits = self._logits(weights)
        if self._made.own is not None:
            logits = logits + closeness * self._made.own
        shares, level = torch.empty_like(logits), torch.zeros(logits.shape[1], dtype=torch.float64)
        for _ in range(25):
            shares = torch.softmax(sharpness * logits + level, dim=1)
            level = level + (self._made.shares / shares.mean(dim=0).clamp(min=1e-12)).log()
        return shares, level

    def _corrected(self, rounds: Sequence[Mapping[str, Measured]]) -> Tensor:
        """Return the weights after these rounds."""
        weights, reached = self._start, torch.zeros_like(self._start)
        for i, measured in enumerate(rounds, start=1):
            gradient = measured["gradient"].sums / self._n
            # Only differences between labels matter; the part that all have in common is noise.
            reached = reached + weights - (gradient - gradient.mean(dim=1, keepdim=True))
            moved = reached / i - self._start
            numbers = moved.shape[0] * (moved.shape[1] - 1)
            noise = numbers * (measured["gradient"].deviation / self._n) ** 2 / i
            weights = self._start + max(0.0, 1.0 - noise / max(float(moved.square().sum()), 1e-300)) * moved
        return weights

    def _shares(self, weights: Tensor) -> Tensor:
        return torch.softmax(self._logits(weights), dim=1)

    def _logits(self, weights: Tensor) -> Tensor:
        """Return what weights (d, labels) say of made-up records, (N, labels)."""
        return added_up(self._records, self._crossed.wide, self._features @ weights)

    def _gap(self, measured: Measured, weights: Tensor) -> float:
        """Return by how much real records agree with weights more than records do whose labels are drawn by them."""
        return float(measured.sums) / self._n - float(self._shares(weights).square().sum(dim=1).mean())


def labels_of(records: Encoded, layout: Layout) -> Tensor:
    """Return the label of each record, (B,) int64."""
    return torch.from_numpy(records.codes[:, layout.label].astype(np.int64))


def fit_softmax(x: np.ndarray | scipy.sparse.csr_array, shares: Tensor, ridge: float) -> Tensor:
    """Fit weights (d, labels) of softmax regression on shares of labels; the penalty is ridge / 2 times their squares.

    Args:
        x: (N, d) features, float64.
    """
    wanted, across = shares.numpy(), x.T.tocsr() if scipy.sparse.issparse(x) else x.T
    labels = wanted.sum(axis=1, keepdims=True)

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = flat.reshape(x.shape[1], -1)
        logs = scipy.special.log_softmax(x @ weights, axis=1)
        gradient = across @ ((np.exp(logs) * labels - wanted) / len(wanted)) + ridge * weights
        return float(-(wanted * logs).sum() / len(wanted) + ridge / 2 * np.square(weights).sum()), gradient.ravel()

    with pace.stage("fitting the label to made-up records"):
        # Torch's own L-BFGS would import its compiler.
        options = {"maxcor": 20, "maxiter": 200, "gtol": 1e-7, "ftol": 1e-12}
        found = minimize(loss, np.zeros(x.shape[1] * shares.shape[1]), method="L-BFGS-B", jac=True, options=options)
    return torch.from_numpy(found.x.reshape(x.shape[1], -1))
