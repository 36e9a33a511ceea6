"""Mixtures of forests fitted to noisy tables of one and of two groups: post-processing."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.optim.adam import adam

from lightning_dpgen.common import pace
from lightning_dpgen.measure.forest_edges import LEAST_SHARE, Forest
from lightning_dpgen.measure.forest_errors import MixtureErrors
from lightning_dpgen.measure.pair_estimates import NoisyPair
from lightning_dpgen.measure.pair_tables import NoisyTables, PairShares

# Steps in units of which fits are made, the largest step, that of a fit that begins where another one ended, the part of
# either that the last step is, and the memory of gradients and of squared ones: with that of .999 three times as many steps
# were as near.
STEPS, _LR, _LR_AGAIN, _SMALLEST, _BETAS = 300, 0.2, 0.03, 0.02, (0.9, 0.9)
# The logarithm of the factor by which a component prefers a row that it begins with, and its deviation by chance; and of
# the factor of all that does not go with a choice that has a component of its own.
_BEGIN, _SPREAD, _FORCED = 2.0, 0.1, -5.0
# The mutual information of two groups, in nats, from which on they are an edge, and not tried as one.
_CLEAR = 0.1
# Weights of the relative entropy that holds components to what all have in common, beside squared errors in deviations of
# the noise; and the one to begin with.
_TOGETHER, _USUAL = (3000.0, 1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0), 10.0
# One of them is chosen by trials, so many in most cases. Parts of all steps: those of a first fit, of trials, which begin
# where that ended, and of the last fit, which begins where the best trial ended.
_FIRST, _TRIAL, _LAST, _TRIALS = 0.4, 0.2, 0.6, 4


@dataclass(frozen=True, eq=False)
class ForestFit:
    """A mixture of forests.

    Args:
        parents: for each group its parent, or -1.
        weights: (k,) of the components.
        tables: for each group (choices of the parent, choices), each row of sum 1; one row without a parent.
        tilts: (k, width) the factors of the components.
    """

    parents: tuple[int, ...]
    weights: Tensor
    tables: Sequence[Tensor]
    tilts: Tensor


def fit_forest(
    forest: Forest,
    tables: NoisyTables,
    split: Callable[[bool], tuple[NoisyTables, NoisyTables]],
    k: int,
    seed: int,
    *,
    steps: int = STEPS,
    free: Collection[int] = (),
) -> ForestFit:
    """Fit the mixture whose tables are nearest to noisy ones. Post-processing.

    Least squares over all cells, in deviations of their noise, by Adam, from components near rows that the estimates make
    likely. Tables of pairs within a tree are sums along it, those of all others one product of matrices. How closely
    components are held together is chosen by short fits to a part of noise and chance, judged by the rest; and so is which
    pairs are edges, but those of which a rule is known: where records are of hidden kinds, a mixture without an edge knows
    each pair from all tables, and edges would tie what is independent in each kind.

    Pairs of choices that no record has are none of an edge's table, and their share is held down elsewhere, so that leaving
    such records out moves little else.

    Args:
        split: gives the tables with their noise split in two (`workload.split_noise`), and the chance of a sample, too,
            where that is asked for.
        steps: as many as are made where there is nothing to choose.
        free: groups whose components may differ at will.
    """
    first, trial, last = (max(round(part * steps), 1) for part in (_FIRST, _TRIAL, _LAST))
    reached: dict[float, _Logarithms] = {}

    def distances(seen: NoisyTables, held_out: NoisyTables) -> Callable[[float], float]:
        """Return how far fits to one part of the tables are from the other, by the weight of components."""
        errors, others = MixtureErrors(forest, seen, free), MixtureErrors(forest, held_out, free, penalties=False)

        @functools.cache
        def distance(together: float) -> float:
            progress.total = max(progress.total or 0.0, progress.done + trial + last)
            reached[together] = _descend(errors, begin, together, trial, _LR_AGAIN, progress)
            return _distance(others, reached[together].fit(forest))

        return distance

    with pace.stage("fitting", 2 * first + _TRIALS * trial + last) as progress:

        def fitted_first(candidate: Forest) -> _Logarithms:
            return _descend(
                MixtureErrors(candidate, seen, free), _Logarithms.near(candidate, k, seed), _USUAL, first, _LR, progress
            )

        def far(candidate: Forest) -> float:
            return _distance(
                MixtureErrors(candidate, held_out, free, penalties=False), first_fits[candidate].fit(candidate)
            )

        seen, held_out = split(True)
        # Weaker edges help where noise leaves components little to tell of, and cost them where it leaves them much.
        clear = replace(forest, strong=[pair for pair in forest.strong if _is_clear(forest.estimates[pair])])
        forests = [clear] if clear.edges == forest.edges else [clear, forest]
        forest = clear
        edges = [pair for pair in forest.strong if pair in forest.edges and math.isfinite(forest.estimates[pair].sure)]
        if edges:
            alone = replace(forest, strong=())
            without = fitted_first(alone).fit(alone)
            needless = _needless(forest, edges, without, seen, held_out, seed)
            # Records are of hidden kinds where that is so of most edges; a single one may be a matter of chance.
            if len(needless) > len(edges) / 2:
                others = [pair for pair in forest.strong if pair not in edges]
                needless |= _needless(forest, others, without, seen, held_out, seed)
                forests.append(replace(forest, strong=[pair for pair in forest.strong if pair not in needless]))
        # Components have something to tell: groups that surely go together beside those of edges, or labels.
        more = tables.label is not None or tables.sets or any(pair not in forest.edges for pair in forest.estimates)
        if not more:
            # With few records the weight that holds components together outweighs all errors, and a fit would stay where
            # components have begun. Groups of which none is tied to another have the shares that the tables say.
            count = steps if forest.edges or forest.broken is not None else 0
            begin, together, rate = _Logarithms.near(forest, k, seed, apart=False), _TOGETHER[0], _LR
        else:
            first_fits = {candidate: fitted_first(candidate) for candidate in forests}
            if len(forests) > 1:
                forest = min(forests, key=lambda candidate: far(candidate) - _doubt(candidate, clear, tables.labels))
            # All trials begin at the same place, or those that come later would win.
            begin = first_fits[forest]
            # Columns that follow from each other share their chance, which is split in each cell alone: where components
            # may be told apart more, noise alone is judged.
            together = _lowest(distances(seen, held_out), _TOGETHER[_TOGETHER.index(_USUAL) :: -1])
            if together == _USUAL and tables.pair_deviation:
                together = _lowest(distances(*split(False)), _TOGETHER[_TOGETHER.index(_USUAL) :])
            begin, count, rate = reached[together], last, _LR_AGAIN
        progress.total = progress.done + count
        # Estimates of few numbers are nearer than counts. The table of an edge has a parameter a cell, and would follow the
        # noise of each.
        aims = {
            pair: estimate for pair, estimate in forest.estimates.items()
            if tables.label not in pair and (estimate.precision > 1.0 or (tables.labels == 1 and pair in forest.edges))
        }  # fmt: skip
        errors = MixtureErrors(forest, tables, free, aims=aims)
        return _descend(errors, begin, together, count, rate, progress).fit(forest)


def _is_clear(estimate: PairShares) -> bool:
    """Return whether two groups are an edge wherever the forest has room: they surely go together, or a rule binds them."""
    return estimate.information > _CLEAR or math.isinf(estimate.sure)


def _doubt(forest: Forest, clear: Forest, labels: int) -> float:
    """Return how much farther a forest may be than one of clear edges by chance alone, since its edges surely are there.

    Tables of edges follow the noise that they are fitted to, and distances vary by the root of twice the cells or more.
    """
    sizes = [len(shares) for shares in forest.shares]
    return 2.0 * math.sqrt(labels * sum(sizes[one] * sizes[other] for one, other in set(forest.edges) - set(clear.edges)))


def _lowest(distance: Callable[[float], float], weights: Sequence[float]) -> float:
    """Return the weight before the first from which the distance grows."""
    for weight, after in itertools.pairwise(weights):
        if not distance(after) < distance(weight):
            return weight
    return weights[-1]


def _needless(
    forest: Forest, pairs: Sequence[tuple[int, int]], alone: ForestFit, seen: NoisyTables, held_out: NoisyTables, seed: int
) -> set[tuple[int, int]]:
    """Return those pairs of which a mixture without edges knows more than their own table tells.

    Pairs of which a rule is known are none of them.

    Args:
        pairs: among the strong ones of the forest.
        alone: the mixture without edges, fitted to the tables that were seen.
        held_out: tables with noise that is independent of theirs, by which both are judged.
    """
    spans, needless, seen, held_out = forest.layout.spans, set(), seen.of_all, held_out.of_all
    every = torch.cat([table[0] for table in alone.tables]) * alone.tilts
    for first, second in pairs:
        if math.isinf(forest.estimates[first, second].sure):
            continue
        (others,) = held_out.pairs[first, second]
        pair = NoisyPair.of(seen, first, second, forest.shares)
        estimated = seen.total * pair.estimate(np.random.default_rng((seed, first, second))).shares
        one, other = (every[:, spans[group]] / every[:, spans[group]].sum(dim=1, keepdim=True) for group in (first, second))
        independent = seen.total * ((one.T * alone.weights) @ other).numpy()
        if np.square(independent - others).sum() < np.square(estimated - others).sum():
            needless.add((first, second))
    return needless


@dataclass(frozen=True, eq=False)
class _Logarithms:
    """The parameters of a fit.

    Args:
        tilts: (k, width) logarithms of the components' factors.
        weights: (k,) of the components' weights, up to a constant.
        roots: (width,) of the tables of groups without a parent, up to a constant each.
        tables: those of all others, by their group; (choices of the parent, choices), up to a constant a row.
    """

    tilts: Tensor
    weights: Tensor
    roots: Tensor
    tables: dict[int, Tensor]

    @classmethod
    def near(cls, forest: Forest, k: int, seed: int, *, apart: bool = True) -> _Logarithms:
        """Return those of components near rows that the estimates make likely; or of components that are all alike.

        Args:
            apart: whether components are near rows.
        """
        tilts = torch.zeros(k, forest.layout.width)
        if apart:
            generator = torch.Generator().manual_seed(seed)
            rows = torch.from_numpy(forest.rows(k, np.random.default_rng((seed, 2))))
            tilts = _SPREAD * torch.randn(k, forest.layout.width, generator=generator)
            for group, span in enumerate(forest.layout.spans):
                tilts[torch.arange(k), span.start + rows[:, group]] += _BEGIN
        weights = torch.zeros(k)
        for component, (share, left) in enumerate(forest.forced(k // 4)):
            tilts[component, torch.from_numpy(~left)] = _FORCED
            weights[component] = math.log(max(share * k, LEAST_SHARE))

        def logarithm(shares: np.ndarray) -> Tensor:
            return torch.from_numpy(np.log(np.maximum(shares, LEAST_SHARE))).float()

        # Impossible choices stay so.
        tables = {
            group: logarithm(forest.table(parent, group)).masked_fill(
                torch.from_numpy(forest.barred(parent, group)), -math.inf
            )
            for group, parent in enumerate(forest.parents)
            if parent >= 0
        }
        return cls(tilts, weights, logarithm(np.concatenate(forest.shares)), tables)

    @property
    def all(self) -> list[Tensor]:
        """Return the parameters in the order of the arguments."""
        return [self.tilts, self.weights, self.roots, *self.tables.values()]

    def copied(self) -> _Logarithms:
        """Return new ones of the same values, for which gradients are computed."""
        tilts, weights, roots, *tables = (own.clone().requires_grad_() for own in self.all)
        return _Logarithms(tilts, weights, roots, dict(zip(self.tables, tables, strict=True)))

    def shared(self) -> dict[int, Tensor]:
        """Return the tables that all components share: (choices of the parent, choices) by their group."""
        return {group: torch.softmax(own, dim=1) for group, own in self.tables.items()}

    @torch.no_grad()
    def fit(self, forest: Forest) -> ForestFit:
        """Return the mixture that they are."""
        spans, shared = forest.layout.spans, self.shared()
        tables = [
            shared[group] if group in shared else torch.softmax(self.roots[span], dim=0)[None]
            for group, span in enumerate(spans)
        ]
        # A factor that all choices of a group have is none.
        tilts = torch.cat([torch.softmax(self.tilts[:, span], dim=1) for span in spans], dim=1)
        return ForestFit(forest.parents, torch.softmax(self.weights, dim=0), tables, tilts)


def _descend(
    errors: MixtureErrors, begin: _Logarithms, together: float, steps: int, rate: float, progress: pace.Stage
) -> _Logarithms:
    """Return what is reached after so many steps of Adam, each of which is counted.

    Args:
        together: how closely components are held to what they have in common.
        rate: the largest step; steps become smaller along a cosine.
    """
    reached = begin.copied()
    parameters = reached.all
    means, squares = ([torch.zeros_like(parameter) for parameter in parameters] for _ in range(2))
    counts = [torch.zeros(()) for _ in parameters]
    beta1, beta2 = _BETAS
    for step in range(steps):
        roots = errors.normed(reached.roots.exp())[0]
        error, divergence = errors(torch.softmax(reached.weights, dim=0), roots, reached.shared(), reached.tilts, step)
        gradients = torch.autograd.grad(error + together * divergence, parameters)
        now = rate * (_SMALLEST + (1.0 - _SMALLEST) * (1.0 + math.cos(math.pi * step / steps)) / 2.0)
        # The function and not the optimizer, which would import torch's compiler.
        with torch.no_grad():
            adam(
                parameters, list(gradients), means, squares, [], counts, fused=True,
                amsgrad=False, beta1=beta1, beta2=beta2, lr=now, weight_decay=0.0, eps=1e-8, maximize=False,
            )  # fmt: skip
        progress.advance()
    return reached


@torch.no_grad()
def _distance(errors: MixtureErrors, fit: ForestFit) -> float:
    """Return the sum of squared errors of a mixture, in deviations of the noise."""
    roots = torch.cat([table[0] for table in fit.tables])
    shared = {group: fit.tables[group] for group in errors.children}
    return float(errors(fit.weights, roots, shared, fit.tilts.log())[0])
