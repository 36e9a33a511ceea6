"""Mixtures of forests fitted to noisy tables of one and of two groups: post-processing."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.data.layout import Layout
from lightning_dpgen.measure.pair_tables import (
    NoisyTables,
    PairShares,
    estimate_pair,
    estimate_pairs,
    fitted_to,
    strongest_tree,
)
from lightning_dpgen.models.forests import forest_order
from lightning_dpgen.privacy import pace

# Groups hang together in a tree where both have so much mutual information, in nats: any two, and two whose choices are in
# an order, such as bins of numbers, of which components show little.
_STRONG, _STRONG_IN_ORDER = 0.1, 0.02
# The most groups of a tree, and the most cells of all pairs of its groups: these take most of the time of a step.
_MOST_GROUPS, MOST_CELLS = 14, 300_000
# Impossible pairs of choices make two groups an edge, too: the share of records that would have one, were the groups
# independent, counts so many times as much as mutual information.
_RULED = 3.0
# Two groups of a tree that are no neighbours are left to it where they have more cells: noise outweighs most of these, and
# each component has all of them.
_MOST_FAR = 5_000
# Rows of a matrix of all tables that are computed at a time, or those of one group.
_ROWS = 128
# Steps in units of which fits are made, the largest step, that of a fit that begins where another one ended, and the memory
# of squared gradients: with that of .999 three times as many steps were as near.
STEPS, _LR, _LR_AGAIN, _BETAS = 300, 0.2, 0.03, (0.9, 0.9)
# The logarithm of the factor by which a component prefers a row that it begins with, and its deviation by chance.
_BEGIN, _SPREAD = 2.0, 0.1
# Choices most of whose records would break a rule begin with components of their own, if these are more than such a share
# of all; the logarithm of the factor of all that does not go with them; so many choices are tried for a component.
_MOST_LOST, _LOST, _FORCED, _TRIED = 0.3, 1e-3, -5.0, 4
# Weights of the relative entropy that holds components to what all have in common, beside squared errors in deviations of
# the noise; and the one to begin with.
_TOGETHER, _USUAL = (3000.0, 1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0), 10.0
# One of them is chosen by trials, so many in most cases. Parts of all steps: those of a first fit, of trials, which begin
# where that ended, and of the last fit, which begins where the best trial ended.
_FIRST, _TRIAL, _LAST, _TRIALS = 0.4, 0.2, 0.6, 4
# The weight of the share of records that have a pair of choices that there is not, in records and deviations of the noise.
# At ten times as much nothing else would be fitted, at a tenth other columns would move when they are left out.
_HELD = 100.0
# Shares of the choices of a group that are less count as so much.
_LEAST = 1e-6
_LEAST_MOVED = 1e-12


@dataclass(frozen=True, eq=False)
class Forest:
    """A forest that noisy tables show, and what a fit begins with: which group follows from which, and estimates; public.

    Args:
        layout: of the records.
        shares: of the choices of each group.
        estimates: of the pairs of groups that may have to do with each other.
        strong: pairs that may be edges, the strongest first.
        leaf: a group from which no other one follows; None for none.
        broken: pairs of choices (width, width) that no record has, True there; None for none.
    """

    layout: Layout
    shares: Sequence[np.ndarray]
    estimates: Mapping[tuple[int, int], PairShares]
    strong: Sequence[tuple[int, int]]
    leaf: int | None = None
    broken: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        layout: Layout,
        tables: NoisyTables,
        seed: int,
        leaf: int | None = None,
        broken: np.ndarray | None = None,
    ) -> Forest:
        """Find the forest that noisy tables show.

        Args:
            leaf: a group from which no other one may follow; None for none.
            broken: pairs of choices (width, width) that no record has; strong ones among them are edges.
        """
        shares = tables.shares()
        estimates = estimate_pairs(tables, shares, seed)
        ruled = {} if broken is None else _ruled(layout, shares, estimates, broken)
        estimates |= {pair: own for pair, (own, _) in ruled.items()}
        strength = {pair: own.information for pair, own in estimates.items()}
        for pair, (_, more) in ruled.items():
            strength[pair] += more
        ordered = {group for group, count in enumerate(layout.ordered) if count}
        least = {pair: _STRONG_IN_ORDER if ordered.issuperset(pair) else _STRONG for pair in strength}
        strong = sorted((pair for pair in least if strength[pair] > least[pair]), key=lambda pair: (-strength[pair], pair))
        return cls(layout, shares, estimates, strong, leaf, broken)

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """For each group its parent, or -1."""
        sizes = self.layout.groups
        edges = _bounded([pair for pair in self.strong if self.leaf not in pair], sizes)
        for pair in (pair for pair in self.strong if self.leaf in pair):
            if len(joined := _bounded([*edges, pair], sizes)) > len(edges):
                edges = joined
                break
        return _rooted(edges, len(sizes), self.leaf)

    @cached_property
    def order(self) -> list[int]:
        """All groups, each after its parent."""
        return forest_order(self.parents, len(self.parents))

    @cached_property
    def trees(self) -> list[list[int]]:
        """The groups of each tree, in this order; groups alone are trees, too."""
        root: dict[int, int] = {}
        for group in self.order:
            root[group] = root.get(self.parents[group], group)
        return [[group for group in self.order if root[group] == own] for own in self.order if root[own] == own]

    def table(self, parent: int, group: int) -> np.ndarray:
        """Return the estimated shares of the choices of a group given those of another one, each row of sum 1."""
        first, second = sorted((parent, group))
        shares = self.estimates[first, second].shares
        shares = np.maximum(shares if parent == first else shares.T, 0.0) + 1e-7 * np.outer(
            self.shares[parent] + _LEAST, self.shares[group] + _LEAST
        )
        return shares / shares.sum(axis=1, keepdims=True)

    def barred(self, parent: int, group: int) -> np.ndarray:
        """Mark the choices of a group that do not go with those of another one; none of a choice that goes with none."""
        if self.broken is None:
            return np.zeros((self.layout.groups[parent], self.layout.groups[group]), bool)
        barred = self.broken[self.layout.spans[parent], self.layout.spans[group]]
        return barred & ~barred.all(axis=1, keepdims=True)

    def _along(self, group: int) -> dict[int, np.ndarray]:
        """Return the shares of the choices of other groups given one's, (choices, choices): along its tree."""
        found = {group: np.eye(self.layout.groups[group])}
        for tree in self.trees:
            waiting = [group] if group in tree else []
            for before in waiting:
                for other in tree:
                    if other not in found and (self.parents[other] == before or self.parents[before] == other):
                        found[other] = found[before] @ self.table(before, other)
                        waiting.append(other)
        return found

    def forced(self, most: int) -> list[tuple[float, np.ndarray]]:
        """Return the choices of which most records would break a rule along the trees, the most first.

        Args:
            most: so many of them at most.

        Returns:
            The share of each, and the choices (width,) of all groups that go with it and with what that leaves, True there.
        """
        if self.broken is None:
            return []
        spans, found = self.layout.spans, []
        ruled = [group for group, span in enumerate(spans) if self.broken[span].any()]
        for group in ruled:
            along, lost = self._along(group), np.zeros(self.layout.groups[group])
            for other in ruled:
                given = along.get(other, self.shares[other][None])
                lost = np.maximum(lost, (given * self.broken[spans[group], spans[other]]).sum(axis=1))
            worth = lost * self.shares[group]
            found += [(worth[choice], group, choice) for choice in np.flatnonzero((lost > _MOST_LOST) & (worth > _LOST))]
        left: dict[bytes, tuple[float, np.ndarray]] = {}
        # Choices that leave the same are one.
        for _, group, choice in sorted(found, key=lambda own: -own[0])[: _TRIED * most]:
            own = self._left_by(group, int(choice), ruled)
            if len(left) < most and own[spans[group]].any():
                left.setdefault(own.tobytes(), (float(self.shares[group][choice]), own))
        return list(left.values())

    def _left_by(self, group: int, choice: int, ruled: Sequence[int]) -> np.ndarray:
        """Return the choices (width,) that one leaves: each goes with one of every other group that is left, too."""
        assert self.broken is not None
        spans = self.layout.spans
        left, before = np.ones(self.layout.width, bool), -1
        left[spans[group]] = np.arange(self.layout.groups[group]) == choice
        while (count := int(left.sum())) != before:
            before = count
            for one, other in itertools.permutations(ruled, 2):
                left[spans[other]] &= (left[spans[one], None] & ~self.broken[spans[one], spans[other]]).any(axis=0)
        return left

    def rows(self, k: int, random: np.random.Generator) -> np.ndarray:
        """Draw rows (k, groups) from a tree of all that is certain: components begin near them."""
        information = {pair: own.information for pair, own in self.estimates.items()}
        parents = _rooted(strongest_tree(len(self.parents), information), len(self.parents))
        rows = np.zeros((k, len(parents)), np.int64)
        for group in forest_order(parents, len(parents)):
            parent = parents[group]
            shares = np.broadcast_to(self.shares[group], (k, len(self.shares[group])))
            if parent >= 0:
                shares = self.table(parent, group)[rows[:, parent]]
            sums = shares.cumsum(axis=1)
            rows[:, group] = (sums < random.random((k, 1)) * sums[:, -1:]).sum(axis=1)
        return rows


def _ruled(
    layout: Layout,
    shares: Sequence[np.ndarray],
    estimates: Mapping[tuple[int, int], PairShares],
    broken: np.ndarray,
) -> dict[tuple[int, int], tuple[PairShares, float]]:
    """Return estimates of groups without their impossible pairs of choices, and what these add to their strength."""
    found = {}
    for first, second in itertools.combinations(range(len(shares)), 2):
        barred = broken[layout.spans[first], layout.spans[second]]
        if not barred.any() or barred.all():
            continue
        alone = np.outer(shares[first], shares[second])
        own = estimates[first, second].shares if (first, second) in estimates else alone
        own = fitted_to(np.where(barred, 0.0, own + _LEAST * alone), shares[first], shares[second])
        found[first, second] = PairShares(own, math.inf), float(_RULED * alone[barred].sum())
    return found


def _bounded(edges: Sequence[tuple[int, int]], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return those pairs that become edges, strongest first, of trees within bounds of groups and cells (by Kruskal)."""
    tree, kept = {group: {group} for group in range(len(sizes))}, []
    for first, second in edges:
        if second in tree[first]:
            continue
        joined = tree[first] | tree[second]
        cells = sum(sizes[one] * sizes[other] for one, other in itertools.combinations(sorted(joined), 2))
        if len(joined) <= _MOST_GROUPS and cells <= MOST_CELLS:
            kept.append((first, second))
            tree |= dict.fromkeys(joined, joined)
    return kept


def _rooted(edges: Sequence[tuple[int, int]], groups: int, leaf: int | None = None) -> tuple[int, ...]:
    """Return the parent of each group; a tree hangs on the group of most neighbours, so that it is shallow."""
    beside: dict[int, list[int]] = {group: [] for group in range(groups)}
    for first, second in edges:
        beside[first].append(second)
        beside[second].append(first)
    parents = [-2] * groups
    for root in sorted(beside, key=lambda group: (group == leaf, -len(beside[group]), group)):
        if parents[root] != -2:
            continue
        parents[root], waiting = -1, [root]
        for group in waiting:
            for other in beside[group]:
                if parents[other] == -2:
                    parents[other] = group
                    waiting.append(other)
    return tuple(parents)


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

    Args:
        split: gives the tables with their noise split in two (`measure.splitting`), and the chance of a sample, too, where
            that is asked for.
        free: groups that are not held.

    Pairs of choices that no record has are none of an edge's table, and their share is held down elsewhere, so that leaving
    such records out moves little else.
    """
    held_down = None
    if forest.broken is not None:
        broken = torch.from_numpy(forest.broken).float()
        held_down = (broken + broken.T) * (_HELD * tables.total / max(tables.pair_deviation, 1.0) / 4.0)

    first, trial, last = (max(round(part * steps), 1) for part in (_FIRST, _TRIAL, _LAST))
    reached: dict[float, list[Tensor]] = {}

    def fit_to(noisy: NoisyTables, together: float) -> _Fit:
        return _Fit(forest, noisy, k, seed, together, free, held_down)

    def distances(seen: NoisyTables, held_out: NoisyTables) -> Callable[[float], float]:
        """Return how far fits to one part of the tables are from the other, by the weight of components."""

        @functools.cache
        def distance(together: float) -> float:
            progress.total = max(progress.total or 0.0, progress.done + trial + last)
            short, reached[together] = fit_to(seen, together).descended(trial, progress, begin)
            return _Fit(forest, held_out, k, seed, together, free, None).distance(short)

        return distance

    with pace.stage("fitting", 2 * first + _TRIALS * trial + last) as progress:
        parts = split(True)
        forests = [forest]
        if any(math.isfinite(forest.estimates[pair].sure) for pair in forest.strong):
            alone = _Fit(replace(forest, strong=()), parts[0], k, seed, _USUAL, free, held_down)
            needless = alone.knows_better(alone.descended(first, progress)[0], *parts, forest.strong)
            fewer = replace(forest, strong=[pair for pair in forest.strong if pair not in needless])
            forests += [fewer] if fewer.parents != forest.parents else []
        together, begin = _TOGETHER[0], []
        if _has_more(forest, tables):
            # All trials begin at the same place, or those that come later would win.
            reached_by, nearness = {}, {}
            for own in forests:
                fit, reached_by[own] = _Fit(own, parts[0], k, seed, _USUAL, free, held_down).descended(first, progress)
                nearness[own] = _Fit(own, parts[1], k, seed, _USUAL, free, None).distance(fit)
            forest = min(forests, key=nearness.__getitem__)
            begin = reached_by[forest]
            # Columns that follow from each other share their chance, which is split in each cell alone: where components
            # may be told apart more, noise alone is judged.
            together = _lowest(distances(*parts), _TOGETHER[_TOGETHER.index(_USUAL) :: -1])
        if together == _USUAL and tables.pair_deviation:
            together = _lowest(distances(*split(False)), _TOGETHER[_TOGETHER.index(_USUAL) :])
        begin = reached.get(together, begin)
        count = last if begin else steps
        progress.total = progress.done + count
        return fit_to(tables, together).descended(count, progress, begin)[0]


def _has_more(forest: Forest, tables: NoisyTables) -> bool:
    """Return whether components have anything to tell: groups that surely go together beside those of edges, or labels."""
    edges = {tuple(sorted(edge)) for edge in enumerate(forest.parents)}
    return tables.label is not None or any(pair not in edges for pair in forest.estimates)


def _lowest(distance: Callable[[float], float], weights: Sequence[float]) -> float:
    """Return the weight before the first from which the distance grows."""
    for weight, after in itertools.pairwise(weights):
        if not distance(after) < distance(weight):
            return weight
    return weights[-1]


class _Fit:
    """One fit: its targets, and what is computed in each step."""

    def __init__(
        self,
        forest: Forest,
        tables: NoisyTables,
        k: int,
        seed: int,
        together: float,
        free: Collection[int],
        held_down: Tensor | None,
    ) -> None:
        self.forest, self.k, self.seed, self.together, self.free = forest, k, seed, together, free
        layout = forest.layout
        self.spans, self.within_held = layout.spans, held_down
        width, total = layout.width, tables.total
        self.label, self.singles = tables.label, torch.zeros(tables.labels, width)
        self.target = torch.zeros(tables.labels, width, width)
        for (first, second), counts in tables.pairs.items():
            shares = torch.from_numpy(counts / total).float()
            self.target[:, self.spans[first], self.spans[second]] = shares
            self.target[:, self.spans[second], self.spans[first]] = shares.transpose(1, 2)
        for group, counts in tables.singles.items():
            self.singles[:, self.spans[group]] = torch.from_numpy(counts / total).float()
        # Without noise all tables weigh alike.
        self.of_pairs = (total / max(tables.pair_deviation, 1.0)) ** 2
        self.of_singles = (total / max(tables.single_deviation, 1.0)) ** 2
        # Tables that other counts have made more exact weigh more.
        self.finer = {
            groups: (total / max(own, 1.0)) ** 2 for groups, own in tables.deviations.items() if groups in tables.pairs
        }
        self.scale: float | Tensor = self.of_pairs
        if self.finer:
            self.scale = torch.full((width, width), self.of_pairs)
            for (first, second), weight in self.finer.items():
                self.scale[self.spans[first], self.spans[second]] = weight
                self.scale[self.spans[second], self.spans[first]] = weight
        self.scale_of_singles: float | Tensor = self.of_singles
        if exact := [groups for groups in tables.deviations if len(groups) == 1]:
            self.scale_of_singles = torch.full((width,), self.of_singles)
            for (group,) in exact:
                self.scale_of_singles[self.spans[group]] = (total / max(tables.deviation_of(group), 1.0)) ** 2
        # Tables that are no matter of components alone: those within a tree, and what was not measured.
        self.measured = set(tables.pairs)
        tree = {group: place for place, groups in enumerate(forest.trees) for group in groups}
        within = {
            (one, other)
            for one, other in itertools.product(range(len(self.spans)), repeat=2)
            if tree[one] == tree[other] or (min(one, other), max(one, other)) not in self.measured
        }
        # Within a tree components alone do not say which pairs there are.
        self.held_down = held_down
        if held_down is not None:
            self.held_down = held_down.clone()
            for one, other in within:
                self.held_down[self.spans[one], self.spans[other]] = 0.0
        # Where tables are by label, that is no group of theirs.
        self.known = torch.ones(width)
        if self.label is not None:
            within |= {pair for group in range(len(self.spans)) for pair in ((self.label, group), (group, self.label))}
            self.known[self.spans[self.label]] = 0.0
        self.parts = _Rows.of(self.spans, within)
        # The roots of trees, groups alone among them, are taken together: sums over the choices of each are one product.
        self.groups = torch.zeros(width, len(self.spans))
        for group, span in enumerate(self.spans):
            self.groups[span, group] = 1.0
        self.roots = self.groups @ torch.tensor([float(parent < 0) for parent in forest.parents])
        self.held = self.groups @ torch.tensor([float(group not in free) for group in range(len(self.spans))])
        self.held_roots = torch.tensor([
            float(parent < 0 and group not in free) for group, parent in enumerate(forest.parents)
        ])  # fmt: skip
        self.children = [group for group, parent in enumerate(forest.parents) if parent >= 0]

    def descended(self, steps: int, progress: pace.Stage, begin: Sequence[Tensor] = ()) -> tuple[ForestFit, list[Tensor]]:
        """Return the mixture after so many steps, each of which is counted, and the parameters that have been reached.

        Args:
            begin: parameters that another fit has reached; empty for those that the estimates make likely.
        """
        forest, generator = self.forest, torch.Generator().manual_seed(self.seed)
        rows = torch.from_numpy(forest.rows(self.k, np.random.default_rng((self.seed, 2))))
        tilts = _SPREAD * torch.randn(self.k, forest.layout.width, generator=generator)
        for group, span in enumerate(self.spans):
            tilts[torch.arange(self.k), span.start + rows[:, group]] += _BEGIN
        mixing = torch.zeros(self.k)
        for component, (share, left) in enumerate(() if begin else forest.forced(self.k // 4)):
            tilts[component, torch.from_numpy(~left)] = _FORCED
            mixing[component] = math.log(max(share * self.k, _LEAST))
        tilts.requires_grad_()
        alone = torch.from_numpy(np.log(np.maximum(np.concatenate(forest.shares), _LEAST))).float().requires_grad_()
        logits = {
            group: torch.from_numpy(np.log(np.maximum(forest.table(forest.parents[group], group), _LEAST))).float()
            for group in self.children
        }
        barred = {group: torch.from_numpy(forest.barred(forest.parents[group], group)) for group in self.children}

        def shared_tables() -> dict[int, Tensor]:
            return {group: torch.softmax(own.masked_fill(barred[group], -math.inf), dim=1) for group, own in logits.items()}

        parameters = [tilts, mixing.requires_grad_(), alone, *(own.requires_grad_() for own in logits.values())]
        with torch.no_grad():
            for parameter, reached in zip(parameters, begin, strict=bool(begin)):
                parameter.copy_(reached)
        rate = _LR_AGAIN if begin else _LR
        optimizer = torch.optim.Adam(parameters, lr=rate, betas=_BETAS, fused=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=rate / 50)
        for step in range(steps):
            optimizer.zero_grad()
            shared = shared_tables()
            error, divergence = self._loss(torch.softmax(mixing, dim=0), self._normed(alone.exp())[0], shared, tilts, step)
            (error + self.together * divergence).backward()
            optimizer.step()
            schedule.step()
            progress.advance()
        with torch.no_grad():
            roots, shared = self._normed(alone.exp())[0], shared_tables()
            tables = [shared[group] if group in shared else roots[None, span] for group, span in enumerate(self.spans)]
            # A factor that all choices of a group have is none.
            fit = ForestFit(forest.parents, torch.softmax(mixing, dim=0), tables, self._normed(tilts.exp())[0])
        return fit, [parameter.detach() for parameter in parameters]

    @torch.no_grad()
    def distance(self, fit: ForestFit) -> float:
        """Return the sum of squared errors of a mixture, in deviations of the noise."""
        roots = torch.zeros(len(self.known))
        for span, table in zip(self.spans, fit.tables, strict=True):
            roots[span] = table[0]
        shared = {group: fit.tables[group] for group in self.children}
        return float(self._loss(fit.weights, roots, shared, fit.tilts.log())[0])

    def knows_better(
        self, fit: ForestFit, seen: NoisyTables, held_out: NoisyTables, pairs: Sequence[tuple[int, int]]
    ) -> set[tuple[int, int]]:
        """Return the pairs whose held-out table is nearer to a mixture without edges than to what their own table tells.

        Args:
            fit: to the tables that were seen.
            pairs: among them those of which a rule is known, which are left out.
        """
        forest, better, seen, held_out = self.forest, set(), seen.of_all, held_out.of_all
        every = self._normed(torch.cat([table[0] for table in fit.tables]) * fit.tilts)[0]
        for number, (first, second) in enumerate(pairs):
            if math.isinf(forest.estimates[first, second].sure):
                continue
            (others,) = held_out.pairs[first, second]
            about, ranked = seen.about(first, second, forest.shares)
            own = seen.total * estimate_pair(*about, np.random.default_rng((self.seed, number)), ranked).shares
            made = seen.total * ((every[:, self.spans[first]].T * fit.weights) @ every[:, self.spans[second]]).numpy()
            if np.square(made - others).sum() < np.square(own - others).sum():
                better.add((first, second))
        return better

    def _normed(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return values (..., width) over their sums, and the sums (..., groups)."""
        sums = values @ self.groups
        return values / (sums @ self.groups.T), sums

    def _loss(
        self, weights: Tensor, roots: Tensor, shared: Mapping[int, Tensor], tilts: Tensor, step: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return squared errors, and how far components are from what they have in common.

        The latter is the relative entropy of the components' tables to those that they share, summed over them.

        Args:
            roots: (width,) the shared tables of groups without a parent; other places are not looked at.
            shared: those of all others.
            step: tables of groups of a tree that are no neighbours are looked at from one of them, another in each step;
                None for all of them.
        """
        factors = tilts.exp()
        every, sums = self._normed(roots * factors)
        divergence = -(sums.log() @ self.held_roots).sum()
        error = torch.zeros(())
        by_label = weights[:, None]
        if self.label is not None:
            by_label = by_label * every[:, self.spans[self.label]]
        if self.children:
            shares = dict(enumerate(every.split(self.forest.layout.groups, dim=1)))
            for tree in self.forest.trees:
                if len(tree) == 1:
                    continue
                walk = _Walk(self, tree, shared, factors, shares)
                divergence = divergence - walk.held
                sources = tree if step is None else [tree[step % len(tree)]]
                most = math.inf if step is None else _MOST_FAR
                for pair, made, weight in [*walk.neighbours(by_label), *walk.others(sources, by_label, most)]:
                    if pair in self.measured:
                        target = self.target[:, self.spans[pair[0]], self.spans[pair[1]]]
                        scale = weight * self.finer.get(pair, self.of_pairs)
                        error = error + scale * (made - target).square().sum()
                        if self.within_held is not None:
                            held_down = self.within_held[self.spans[pair[0]], self.spans[pair[1]]]
                            error = error + weight * (made * held_down).sum()
            every = torch.cat([shares[group] for group in range(len(self.spans))], dim=1)
        divergence = divergence + ((every * tilts).sum(dim=0) * self.held).sum()
        single_errors = (by_label.T @ every - self.singles) * self.known
        error = error + _weighed(single_errors, self.scale_of_singles)
        across = _Across.apply(every, by_label, self.target, self.parts, self.scale, self.held_down)
        return error + across, divergence


def _weighed(errors: Tensor, scale: float | Tensor) -> Tensor:
    """Return the sum of squared errors, by one weight or one for each."""
    return scale * errors.square().sum() if isinstance(scale, float) else (scale * errors.square()).sum()


class _Walk:
    """The tables of a tree's groups, in each component.

    A component's table of a group given its parent is ``diag(1 / N_z) T diag(u_z)``, so that of two neighbours is one
    product of matrices, and a step farther is one with the shared table.

    Attributes:
        held: the sum of the logarithms of N that records meet, which is a part of the relative entropy.
    """

    def __init__(
        self, fit: _Fit, tree: Sequence[int], shared: Mapping[int, Tensor], factors: Tensor, shares: dict[int, Tensor]
    ) -> None:
        """Walk down the tree, and note the shares (k, choices) of its groups."""
        self.tree, self.shared, self.parents = tree, shared, fit.forest.parents
        self.own = {group: factors[:, fit.spans[group]] for group in tree}
        # By group: (k, choices of the parent) the sums N, and the parent's shares over them; (k, choices) what is moved on.
        self.sums: dict[int, Tensor] = {}
        self.over: dict[int, Tensor] = {}
        self.moved: dict[int, Tensor] = {}
        self.held = torch.zeros(())
        for group in tree[1:]:
            parent = self.parents[group]
            self.sums[group] = self.own[group] @ shared[group].T
            if group not in fit.free:
                self.held = self.held + (shares[parent] * self.sums[group].log()).sum()
            self.over[group] = shares[parent] / self.sums[group]
            # A choice that no record has moves none on.
            self.moved[group] = (self.over[group] @ shared[group]).clamp(min=_LEAST_MOVED)
            shares[group] = self.moved[group] * self.own[group]

    def neighbours(self, by_label: Tensor) -> Iterator[tuple[tuple[int, int], Tensor, float]]:
        """Yield each group and its parent, lower first, their tables (labels, ...) of all components, and weight 1."""
        for group in self.tree[1:]:
            pair, table = (self.parents[group], group), self.shared[group]
            made = torch.stack([
                table * ((weights[:, None] * self.over[group]).T @ self.own[group]) for weights in by_label.T
            ])  # fmt: skip
            yield (pair, made, 1.0) if pair[0] < pair[1] else (pair[::-1], made.transpose(1, 2), 1.0)

    def others(
        self, sources: Sequence[int], by_label: Tensor, most: float
    ) -> Iterator[tuple[tuple[int, int], Tensor, float]]:
        """Yield the same of a few groups and those that are no neighbours of theirs.

        They weigh so much that on average over the sources each two groups count once.
        """
        weight = len(self.tree) / (2.0 * len(sources))
        for source in sources:
            tables: dict[int, Tensor] = {}
            waiting = [(source, source)]
            for group, before in waiting:
                beyond = [
                    other for other in self.tree
                    if other != before and (self.parents[other] == group or self.parents[group] == other)
                ]  # fmt: skip
                waiting += [(other, group) for other in beyond]
                looked_at = before != source and self.own[source].shape[1] * self.own[group].shape[1] <= most
                if group == source or not (looked_at or beyond):
                    continue
                tables[group] = self._step(tables.get(before), before, group)
                if looked_at:
                    made, pair = torch.tensordot(by_label.T, tables[group], dims=1), (source, group)
                    yield (pair, made, weight) if source < group else (pair[::-1], made.transpose(1, 2), weight)

    def _step(self, table: Tensor | None, before: int, group: int) -> Tensor:
        """Return the tables (k, choices of the source, choices) of a group from those of its neighbour.

        Args:
            table: those of the neighbour; None where that is the source itself.
        """
        if self.parents[group] == before:
            shared, over, own = self.shared[group], self.sums[group], self.own[group]
            begin = self.over[group]
        else:
            shared, over, own = self.shared[before].T, self.moved[before], self.over[before]
            begin = self.own[before]
        table = begin[:, :, None] * shared if table is None else (table * over.reciprocal()[:, None, :]) @ shared
        return table * own[:, None, :]


@dataclass(frozen=True)
class _Rows:
    """Some rows of a symmetric matrix (width, width), from their first column on: few, so that they stay in the cache.

    Args:
        rows: the places of whole groups.
        rest: the columns from the first of these places on.
        without: tables of two groups that are left out, by their places among these rows and columns.
    """

    rows: slice
    rest: slice
    without: Sequence[tuple[slice, slice]]

    @classmethod
    def of(cls, spans: Sequence[slice], without: Collection[tuple[int, int]]) -> list[_Rows]:
        """Cut a matrix into rows of whole groups, from the pairs of which some are left out (both ways)."""
        parts, start = [], 0
        for after in range(1, len(spans) + 1):
            first = spans[start].start
            if after < len(spans) and spans[after].stop - first <= _ROWS:
                continue
            places = [slice(span.start - first, span.stop - first) for span in spans]
            pairs = itertools.product(range(start, after), range(start, len(spans)))
            left_out = [(places[own], places[other]) for own, other in pairs if (own, other) in without]
            parts.append(cls(slice(first, spans[after - 1].stop), slice(first, spans[-1].stop), left_out))
            start = after
        return parts


class _Across(torch.autograd.Function):
    """Squared errors of the tables of groups of different trees, with a gradient by two products of matrices a label."""

    @staticmethod
    def forward(ctx, shares, by_label, target, parts, scale, held_down):
        error = torch.zeros(())
        of_shares, of_labels = torch.zeros_like(shares), torch.zeros_like(by_label)
        for label, weights in enumerate(by_label.T):
            weighted, moved = shares * weights[:, None], torch.zeros_like(shares)
            for part in parts:
                rows, rest, count = part.rows, part.rest, part.rows.stop - part.rows.start
                made = weighted[:, rows].T @ shares[:, rest]
                held = None if held_down is None else held_down[rows, rest]
                if held is not None:
                    error += _both_sides(made * held, count)
                made -= target[label, rows, rest]
                for one, other in part.without:
                    made[one, other] = 0.0
                gradient = made * (scale if isinstance(scale, float) else scale[rows, rest])
                # Each table is there twice, once on each side.
                error += 0.5 * _both_sides(made.mul_(gradient), count)
                if held is not None:
                    gradient += held
                moved[:, rows] += shares[:, rest] @ gradient.T
                moved[:, part.rows.stop :] += shares[:, rows] @ gradient[:, count:]
            of_labels[:, label] = (moved * shares).sum(dim=1)
            of_shares.addcmul_(moved, weights[:, None], value=2.0)
        ctx.save_for_backward(of_shares, of_labels)
        return error

    @staticmethod
    def backward(ctx, gradient):
        of_shares, of_labels = ctx.saved_tensors
        return gradient * of_shares, gradient * of_labels, None, None, None, None


def _both_sides(values: Tensor, count: int) -> Tensor:
    """Return the sum of a symmetric matrix from some of its rows, the first so many columns of which are on both sides."""
    return 2.0 * values.sum() - values[:, :count].sum()
