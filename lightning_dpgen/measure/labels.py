"""The label of a table given its other columns: softmax regression by noisy gradients, on top of any mixture."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from lightning_dpgen.measure.label_gradients import (
    _FEW_AT_ONCE,
    GRADIENT_UNITS,
    Agreement,
    ChoiceFeatures,
    Gradient,
    Shares,
    labels_of,
    mixed_shares,
    whole_shares,
)
from lightning_dpgen.measure.recipe import Recipe
from lightning_dpgen.measure.statistics import Statistic
from lightning_dpgen.measure.workload import Measured, State, Workload
from lightning_dpgen.models.labelled import (
    LEAST,
    Crossed,
    Crossing,
    LabelledNetwork,
    added_up,
    feature_count,
    feature_spans,
    log_shares,
    written_out,
)
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.networks import check_seed
from lightning_dpgen.privacy.plan import LABELS, Plan

# The number of accesses that correct the label, and the part of each that measures how well labels agree, if that is
# measured.
_ROUNDS, _AGREEMENT = 4, 0.1
# Made-up records, drawn from the mixture, that stand for real ones where that saves budget.
_MADE = 10_000
# This share of the made-up records' gradients is within the bound.
_KEPT = 0.9
# The largest weight with which labels follow their components, and its prior mean.
_CLOSEST, _EXPECTED = 8.0, 4.0
# Degrees of it are tried, and the best is searched for nearby, by about so many.
_PLACES, _SEARCHED = 19, 10


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
    log_share = log_shares(made.double(), layout)
    shares = torch.softmax(log_share, dim=1)
    design = records
    if layout.units:
        spread = torch.rand(_MADE, layout.units, generator=generator).numpy()
        design = Encoded.joined([records, Encoded(spread, records.codes)])
    return MadeUp(records, shares, shares.mean(dim=0), design, log_share if follow else None)


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

    def __init__(self, layout: Layout, samples: MadeUp, n: float, ridge: float, crossings: Sequence[Crossing] = ()) -> None:
        self._crossed = Crossed(layout, tuple(crossings))
        self._made, self._n, layout = samples, n, self._crossed.wide
        self._records = self._crossed(samples.records)
        rows = feature_count(layout)
        others = torch.ones(rows, dtype=torch.bool)
        others[feature_spans(layout)[layout.label]] = False
        own, x = (written_out(each, layout)[:, others.numpy()] for each in (self._records, self._crossed(samples.design)))
        if samples.before is None:
            weights = fit_softmax(own, samples.given, ridge)
            p = torch.softmax(torch.from_numpy(x @ weights.numpy()), dim=1)
        else:
            weights = torch.zeros(x.shape[1], samples.given.shape[1], dtype=torch.float64)
            p = samples.before(samples.design)
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
        errors[torch.arange(len(p)), labels_of(samples.design, layout)] -= 1.0
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
        statistics: dict[str, Statistic] = {"gradient": gradient}
        if self._made.own is not None:
            statistics["agreement"] = Agreement(gradient)
        return statistics

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
        return Mixture(network, mixture.weights, mixture.run, mixture.init, mixture.margins)

    def _closeness(self, rounds: Sequence[Mapping[str, Measured]], weights: Tensor) -> float:
        """Return how closely labels follow the shares by which they were drawn."""
        if self._made.before is not None:
            return 1.0
        shares = self._shares(weights)
        later = range(len(rounds) // 2, len(rounds))
        # By how much real records agree with weights more than records do whose labels are drawn by them.
        drawn = [float(self._shares(self._corrected(rounds[:i])).square().sum(dim=1).mean()) for i in later]
        gaps = [float(rounds[i]["agreement"].sums) / self._n - share for i, share in zip(later, drawn, strict=True)]
        wanted = float(shares.square().sum(dim=1).mean()) + sum(gaps) / max(len(gaps), 1)
        # Without noise a difference of a thousandth counts as none.
        doubt = sum((rounds[i]["agreement"].deviation / self._n) ** 2 for i in later) / max(len(gaps), 1) ** 2 + 1e-6

        def agreement(closeness: float) -> float:
            progress.advance()
            return float((self._levelled(weights, closeness)[0] * shares).sum(dim=1).mean())

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


# The ridge of the regression, for 10,000 records that the mixture makes up: from 0.0002 to 0.005 scores are level.
_RIDGE = 1e-3


@dataclass(frozen=True)
class LabelRecipe(Recipe):
    """A few accesses, after which the label of a mixture is drawn given all other columns (`LabelRegression`).

    Nothing besides the columns counts. Components of a network are clusters, which labels help to make, so a label that
    followed its component would be told twice: by the columns, and by what made them.

    Args:
        mixture: the mixture, of any network whose records take a label (`models.labelled.takes_label`); public.
        n: the declared number of records.
        sharpness: factor of the differences of logits; above 1 labels are more predictable than real ones.
        seed: seed of the records that the mixture makes up; public.

    Guarantee:
        See `Recipe.measure`: a record's part of the gradient is shortened to a bound that follows from records that the
        mixture makes up.

    Raises:
        ValueError: for a mixture of other records, an n below 1, or a sharpness outside 0.1 to 100; Diverged for a mixture
            that is not finite.

    Example:
        >>> from lightning_dpgen.data.tables.schema_file import schema_of
        >>> from lightning_dpgen.models.forests import StackedProducts
        >>> schema = schema_of({"label": "ill", "columns": {"smoker": {"type": "boolean"}, "ill": {"type": "boolean"}}})
        >>> recipe = LabelRecipe(Mixture(StackedProducts(schema, 2), torch.ones(2)), n=1000)
        >>> [(spec.stage, spec.count, spec.share) for spec in recipe.specs(0.3)]
        [('labels', 4, 0.3)]
    """

    mixture: Mixture
    n: int
    sharpness: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sharpness("sharpness", self.sharpness)
        check_seed(self.seed)
        # Records that take no label are refused here.
        LabelledNetwork(self.mixture.network)
        self.mixture.check_finite()

    @property
    def k(self) -> int:
        """The number of components."""
        return self.mixture.network.k

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """The accesses of the label."""
        return (label_workload(self.n, 1.0, agreement=False),)

    def statistics(self, stage: str, state: State) -> Mapping[str, Statistic]:
        """Return `gradient`, at the weights that have been reached."""
        return self._regression.statistics(state.get(stage, ()))

    def warnings(self, plan: Plan) -> list[str]:
        """Return none: a gradient that is nothing but noise is shrunk to what the mixture says."""
        return []

    def fit(self, state: State) -> Mixture:
        """Draw the label of the mixture as these measurements say; see `Recipe.fit`.

        The run that has paid for the label is that of the result if it has paid for the network, too; else it is not known.
        """
        fit = super().fit(state)
        run = fit.run if fit.run == self.mixture.run else ""
        return Mixture(fit.network, fit.weights, run, self.mixture.init, fit.margins)

    def _mixture(self, state: State) -> Mixture:
        return self._regression.labelled(self.mixture, state[LABELS], self.sharpness)

    @cached_property
    def _regression(self) -> LabelRegression:
        return LabelRegression(self.mixture.network.schema.layout, made_up(self.mixture, self.seed), self.n, _RIDGE)


# Columns determine the label where they leave so little of the doubt about it, as the mixture says.
_DOUBT = 0.1


def made_up_by_forests(mixture: Mixture, seed: int) -> MadeUp:
    """Let a mixture of forests make up records, whose labels follow components besides their columns.

    The shares of labels given the other columns are known, and so are those of all records. Where the columns determine
    the label, what the mixture says of it is kept: a regression could not say it.
    """
    layout, network = mixture.network.schema.layout, mixture.network
    samples = made_up(mixture, seed, follow=True)
    level, parent = mixture.weights.double().clamp(min=1e-30).log(), network.parents[layout.label]
    before = _OfColumns(layout, network.log_evidence, level, network.label_table, parent)
    label_shares = before.shares(samples.records)
    shares = label_shares.mean(dim=0).clamp(min=LEAST)
    determined = _doubt(label_shares) <= _DOUBT * _doubt(shares[None])
    return replace(samples, given=label_shares, shares=shares, before=before if determined else None)


@dataclass(frozen=True, eq=False)
class _OfColumns:
    """The shares of labels that a mixture gives to records by their other columns; it goes to other processes.

    Args:
        layout: the records' layout.
        rows: (features, k) how probable components make each choice (`StackedForests.log_evidence`).
        level: (k,) logarithms of the components' weights.
        labels: (choices of the parent, k, labels) the shares of labels in components (`StackedForests.label_table`).
        parent: the group from which the label follows, or -1.
    """

    layout: Layout
    rows: Tensor
    level: Tensor
    labels: Tensor
    parent: int

    def shares(self, records: Encoded) -> Tensor:
        """Return the shares (B, labels) of records."""
        probable = whole_shares(added_up(records, self.layout, self.rows) + self.level)
        shares = torch.zeros(len(records), self.labels.shape[2], dtype=torch.float64)
        for row, labels in enumerate(self.labels):
            own = torch.from_numpy(records.codes[:, self.parent] == row) if self.parent >= 0 else slice(None)
            shares[own] = mixed_shares(probable[own], labels)
        return shares

    def __call__(self, records: Encoded) -> Tensor:
        """Return the same, none of them 0."""
        return self.shares(records).clamp(min=LEAST)


def _doubt(shares: Tensor) -> float:
    """Return how often two draws from the same shares (N, labels) differ."""
    return 1.0 - float(shares.square().sum(dim=1).mean())
