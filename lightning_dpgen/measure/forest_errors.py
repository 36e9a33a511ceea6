"""Errors of a mixture of forests, beside noisy tables of one and of two groups, with gradients."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.measure.forest_edges import Forest
from lightning_dpgen.measure.pair_tables import NoisyTables, PairShares

# Two groups of a tree that are no neighbours are left to it where they have more cells: noise outweighs most of these, and
# each component has all of them.
_MOST_FAR = 5_000
# Tables of three groups or more are left out where they have more cells.
MOST_IN_SET = 20_000
# Rows of a matrix of all tables that are computed at a time.
_ROWS = 128
# The weight of the share of records that have a pair of choices that there is not, in records and deviations of the noise.
# At ten times as much nothing else would be fitted, at a tenth other columns would move when they are left out.
_IMPOSSIBLE = 100.0
# Shares of the choices of a group that are less count as so much.
_LEAST_MOVED = 1e-12


class MixtureErrors:
    """Distances of a mixture of forests from noisy tables, and of its components from what they have in common.

    Args:
        forest: the edges, and pairs of choices that no record has.
        tables: the noisy ones.
        free: groups whose components may differ at will.
        penalties: whether records with impossible pairs of choices add to the error.
        aims: by two groups, the estimate that replaces their measured table as a target.

    Attributes:
        children: groups that follow from another one.
    """

    def __init__(
        self,
        forest: Forest,
        tables: NoisyTables,
        free: Collection[int] = (),
        *,
        penalties: bool = True,
        aims: Mapping[tuple[int, int], PairShares] | None = None,
    ) -> None:
        layout, total = forest.layout, tables.total
        width, spans = layout.width, layout.spans
        self.forest, self.spans, self.free, self.label = forest, spans, free, tables.label
        self.children = [group for group, parent in enumerate(forest.parents) if parent >= 0]
        # Sums over the choices of each group are one product.
        self.groups = torch.zeros(width, len(spans))
        for group, span in enumerate(spans):
            self.groups[span, group] = 1.0
        regularized = torch.tensor([float(group not in free) for group in range(len(spans))])
        self.regularized, self.regularized_roots = self.groups @ regularized, regularized.clone()
        self.regularized_roots[self.children] = 0.0
        self._aim_at(tables, aims or {})

        # Tables that are no matter of components alone: those within a tree, and what was not measured.
        self.measured = set(tables.pairs)
        tree = {group: place for place, groups in enumerate(forest.trees) for group in groups}
        apart = {
            (one, other)
            for one, other in itertools.product(range(len(spans)), repeat=2)
            if tree[one] == tree[other] or (min(one, other), max(one, other)) not in self.measured
        }
        self.penalties = across = None
        if penalties and forest.broken is not None:
            broken = torch.from_numpy(forest.broken).float()
            self.penalties = (broken + broken.T) * (_IMPOSSIBLE * total / max(tables.pair_deviation, 1.0) / 4.0)
            # Within a tree components alone do not say which pairs there are.
            across = self.penalties.clone()
            for one, other in apart:
                across[spans[one], spans[other]] = 0.0
        # Where tables are by label, that is no group of theirs.
        self.known = torch.ones(width)
        if self.label is not None:
            apart |= {pair for group in range(len(spans)) for pair in ((self.label, group), (group, self.label))}
            self.known[spans[self.label]] = 0.0
        self.moments = None if tables.moments is None else _Moments.of(forest, tables, apart)
        self.parts = _Rows.of(spans, apart, self.target, self.pair_weights, across)
        self.sets = [
            made for groups, counts in tables.sets.items()
            if (made := _Set.of(forest, groups, counts / total, _weight_of(tables.set_deviation, total)))
        ]  # fmt: skip
        # By whether tables of many cells are left out, and by tree.
        self.paths = [[_Path.of(forest, tree, most) for tree in forest.trees] for most in (math.inf, _MOST_FAR)]

    def _aim_at(self, tables: NoisyTables, aims: Mapping[tuple[int, int], PairShares]) -> None:
        """Take the targets from the tables, and weights of their squared errors from the deviations of noise."""
        spans, width, total = self.spans, self.forest.layout.width, tables.total

        self.singles, self.target = torch.zeros(tables.labels, width), torch.zeros(tables.labels, width, width)
        for (first, second), counts in tables.pairs.items():
            shares = counts / total
            if (first, second) in aims:
                # Tables by label add up to the estimate.
                shares = shares + (aims[first, second].shares - shares.sum(axis=0)) / len(shares)
            aim = torch.from_numpy(shares).float()
            self.target[:, spans[first], spans[second]] = aim
            self.target[:, spans[second], spans[first]] = aim.transpose(1, 2)
        for group, counts in tables.singles.items():
            self.singles[:, spans[group]] = torch.from_numpy(counts / total).float()
        # Tables that other counts have made more exact, and estimates, weigh more.
        finer = {groups: _weight_of(deviation, total) for groups, deviation in tables.deviations.items()}
        finer |= {
            pair: aim.precision * _weight_of(tables.deviation_of(*pair), total)
            for pair, aim in aims.items()
            if aim.precision > 1.0
        }
        self.weight_of_pairs = _weight_of(tables.pair_deviation, total)
        self.finer = {groups: weight for groups, weight in finer.items() if groups in tables.pairs}
        self.pair_weights: float | Tensor = self.weight_of_pairs
        if self.finer:
            self.pair_weights = torch.full((width, width), self.weight_of_pairs)
            for (first, second), weight in self.finer.items():
                self.pair_weights[spans[first], spans[second]] = weight
                self.pair_weights[spans[second], spans[first]] = weight
        self.single_weights = torch.full((width,), _weight_of(tables.single_deviation, total))
        for (group,) in (groups for groups in finer if len(groups) == 1):
            self.single_weights[spans[group]] = finer[group,]

    def normed(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return values (..., width) over their sums, and the sums (..., groups)."""
        sums = values @ self.groups
        return values / (sums @ self.groups.T), sums

    def __call__(
        self, weights: Tensor, roots: Tensor, shared: Mapping[int, Tensor], tilts: Tensor, step: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return squared errors in deviations of the noise, and how far components are from what they have in common.

        The latter is the relative entropy of the components' tables to those that they share, summed over them.

        Args:
            weights: (k,) of the components.
            roots: (width,) the shared tables of groups without a parent; other places are not looked at.
            shared: those of all others, (choices of the parent, choices).
            tilts: (k, width) logarithms of the components' factors.
            step: tables of groups of a tree that are no neighbours are looked at from one of them, another in each step;
                None for all of them.
        """
        factors = tilts.exp()
        every, sums = self.normed(roots * factors)
        divergence = -(sums.log() @ self.regularized_roots).sum()
        error = torch.zeros(())
        walks: dict[int, _Walk] = {}
        by_label = weights[:, None]
        if self.label is not None:
            by_label = by_label * every[:, self.spans[self.label]]
        if self.children:
            shares = dict(enumerate(every.split(self.forest.layout.groups, dim=1)))
            for number, tree in enumerate(self.forest.trees):
                if len(tree) == 1:
                    continue
                walk = _Walk(self, tree, shared, factors, shares)
                walks[number] = walk
                divergence = divergence - walk.log_sums
                paths, weight = self.paths[step is not None][number], 1.0
                if step is not None and paths:
                    # On average over the steps each two groups count once.
                    paths, weight = [paths[step % len(paths)]], float(len(paths))
                made = itertools.chain(walk.neighbours(by_label), *(walk.others(path, by_label, weight) for path in paths))
                for pair, table, often in made:
                    if pair in self.measured:
                        places = (self.spans[pair[0]], self.spans[pair[1]])
                        errors = (table - self.target[:, *places]).square().sum()
                        error = error + often * self.finer.get(pair, self.weight_of_pairs) * errors
                        if self.moments is not None:
                            error = error + often * self.moments.of_pair(pair, table.sum(dim=0))
                        if self.penalties is not None:
                            error = error + often * (table * self.penalties[places]).sum()
            every = torch.cat([shares[group] for group in range(len(self.spans))], dim=1)
        divergence = divergence + ((every * tilts).sum(dim=0) * self.regularized).sum()
        single_errors = (by_label.T @ every - self.singles) * self.known
        error = error + (self.single_weights * single_errors.square()).sum()
        for own in self.sets:
            errors = own.made(weights, every, self.spans, walks) - own.target
            error = error + own.weight * errors.square().sum()
        if self.moments is not None:
            error = error + self.moments.across(weights, every)
        return error + _Across.apply(every, by_label, self.parts), divergence


def _weight_of(deviation: float, total: float) -> float:
    """Return the weight of squared errors of shares whose counts have noise of a deviation."""
    # Without noise all tables weigh alike.
    return (total / max(deviation, 1.0)) ** 2


class _Walk:
    """The tables of a tree's groups, in each component.

    A component's table of a group given its parent is ``diag(1 / N_z) T diag(u_z)``, so that of two neighbours is one
    product of matrices, and a step farther is one with the shared table.

    Attributes:
        log_sums: the sum of the logarithms of N that records meet, which is a part of the relative entropy.
    """

    def __init__(
        self,
        errors: MixtureErrors,
        tree: Sequence[int],
        shared: Mapping[int, Tensor],
        factors: Tensor,
        shares: dict[int, Tensor],
    ) -> None:
        """Walk down the tree, and note the shares (k, choices) of its groups."""
        self.tree, self.shared, self.parents = tree, shared, errors.forest.parents
        self.own = {group: factors[:, errors.spans[group]] for group in tree}
        # By group: (k, choices of the parent) the sums N, and the parent's shares over them; (k, choices) what is moved on.
        self.sums: dict[int, Tensor] = {}
        self.over: dict[int, Tensor] = {}
        self.moved: dict[int, Tensor] = {}
        self.log_sums = torch.zeros(())
        for group in tree[1:]:
            parent = self.parents[group]
            self.sums[group] = self.own[group] @ shared[group].T
            if group not in errors.free:
                self.log_sums = self.log_sums + (shares[parent] * self.sums[group].log()).sum()
            self.over[group] = shares[parent] / self.sums[group]
            # A choice that no record has moves none on.
            self.moved[group] = (self.over[group] @ shared[group]).clamp(min=_LEAST_MOVED)
            shares[group] = self.moved[group] * self.own[group]

    def neighbours(self, by_label: Tensor) -> Iterator[tuple[tuple[int, int], Tensor, float]]:
        """Yield each group and its parent, lower first, their tables (labels, ...) of all components, and weight 1."""
        for group in self.tree[1:]:
            pair, table = (self.parents[group], group), self.shared[group]
            tables = torch.stack([
                table * ((weights[:, None] * self.over[group]).T @ self.own[group]) for weights in by_label.T
            ])  # fmt: skip
            yield (pair, tables, 1.0) if pair[0] < pair[1] else (pair[::-1], tables.transpose(1, 2), 1.0)

    def others(self, path: _Path, by_label: Tensor, weight: float) -> Iterator[tuple[tuple[int, int], Tensor, float]]:
        """Yield the same of the groups at both ends of a path, and a weight."""
        tables: dict[int, Tensor] = {}
        for group, before, is_end in path.steps:
            tables[group] = self._step(tables.get(before), before, group)
            if is_end:
                made, pair = torch.tensordot(by_label.T, tables[group], dims=1), (path.source, group)
                yield (pair, made, weight) if pair[0] < pair[1] else (pair[::-1], made.transpose(1, 2), weight)

    def pair(self, parent: int, group: int) -> Tensor:
        """Return the tables (k, choices of the parent, choices) of a group and its parent."""
        return self._step(None, parent, group)

    def _step(self, table: Tensor | None, before: int, group: int) -> Tensor:
        """Return the tables (k, choices of the source, choices) of a group from those of its neighbour.

        Args:
            table: those of the neighbour; None where that is the source itself.
        """
        if self.parents[group] == before:
            shared, over, moved_on = self.shared[group], self.sums[group], self.own[group]
            begin = self.over[group]
        else:
            shared, over, moved_on = self.shared[before].T, self.moved[before], self.over[before]
            begin = self.own[before]
        table = begin[:, :, None] * shared if table is None else (table * over.reciprocal()[:, None, :]) @ shared
        return table * moved_on[:, None, :]


@dataclass(frozen=True)
class _Path:
    """The way from a group of a tree to others that are no neighbours of it.

    Args:
        source: where it begins.
        steps: groups, each with its neighbour on the way there, and whether the table of both ends is looked at.
    """

    source: int
    steps: Sequence[tuple[int, int, bool]]

    @classmethod
    def of(cls, forest: Forest, tree: Sequence[int], most: float) -> list[_Path]:
        """Return ways within a tree on which each two groups are both ends once, those of more cells left out.

        They begin at the group of fewer choices, since the tables along them have as many rows.
        """
        sizes, parents, paths = forest.layout.groups, forest.parents, []
        for source in tree:
            before, order = {source: source}, [source]
            for group in order:
                for other in tree:
                    if other not in before and (parents[other] == group or parents[group] == other):
                        before[other] = group
                        order.append(other)
            ends = {
                group for group in order
                if source not in (group, before[group]) and (sizes[source], source) < (sizes[group], group)
                and sizes[source] * sizes[group] <= most
            }  # fmt: skip
            # All on the way to an end are stepped through.
            through = set(ends)
            for group in reversed(order):
                if group in through:
                    through.add(before[group])
            if steps := [(group, before[group], group in ends) for group in order[1:] if group in through]:
                paths.append(cls(source, steps))
        return paths


@dataclass(frozen=True)
class _Set:
    """A table of three groups or more, of trees in which components are independent.

    Args:
        parts: for each tree with any of them its number, and a group of it, or a parent and a child.
        target: (choices of the first part, those of all others together).
        weight: of squared errors.
    """

    parts: Sequence[tuple[int, tuple[int, ...]]]
    target: Tensor
    weight: float

    @classmethod
    def of(cls, forest: Forest, groups: Sequence[int], shares: np.ndarray, weight: float) -> _Set | None:
        """Return the table of some groups; None for one of many cells, or where a tree has others of them."""
        parts = []
        for number, tree in enumerate(forest.trees):
            inside = tuple(group for group in tree if group in groups)
            if len(inside) > 2 or (len(inside) == 2 and forest.parents[inside[1]] != inside[0]):
                return None
            if inside:
                parts.append((number, inside))
        if shares.size > MOST_IN_SET:
            return None
        axes = [groups.index(group) for _, inside in parts for group in inside]
        rows = math.prod(forest.layout.groups[group] for group in parts[0][1])
        return cls(parts, torch.from_numpy(shares.transpose(axes).reshape(rows, -1)).float(), weight)

    def made(self, weights: Tensor, every: Tensor, spans: Sequence[slice], walks: Mapping[int, _Walk]) -> Tensor:
        """Return the table of all components, of the shape of the target.

        Args:
            weights: (k,) of the components.
            every: (k, width) their shares of choices.
        """
        first, *others = (
            every[:, spans[inside[0]]] if len(inside) == 1 else walks[number].pair(*inside).flatten(1)
            for number, inside in self.parts
        )
        rest = functools.reduce(lambda one, other: (one[:, :, None] * other[:, None]).flatten(1), others)
        return (weights[:, None] * first).T @ rest


@dataclass(frozen=True)
class _Moments:
    """Moments of contrasts of two groups each.

    Args:
        contrasts: (width, d) of the choices of all groups.
        spans: for each group its choices, and its contrasts.
        target: (d, d) what is aimed at, in shares.
        weights: (d, d) of squared errors; 0 for those that were not measured.
        apart: (d, d) the same, 0 within a tree.
    """

    contrasts: Tensor
    spans: Sequence[tuple[slice, slice]]
    target: Tensor
    weights: Tensor
    apart: Tensor

    @classmethod
    def of(cls, forest: Forest, tables: NoisyTables, within: Collection[tuple[int, int]]) -> _Moments:
        """Return the moments of noisy tables.

        Args:
            within: pairs of groups, both ways, of which components alone do not tell.
        """
        moments, spans = tables.moments, forest.layout.spans
        assert moments is not None
        contrasts = np.zeros((forest.layout.width, len(moments.sums)))
        for span, own, table in zip(spans, moments.spans, moments.contrasts, strict=True):
            contrasts[span, own] = table
        there = contrasts.any(axis=0)
        weights = _weight_of(moments.deviation, tables.total) * np.outer(there, there)
        for own in moments.spans:
            weights[own, own] = 0.0
        apart = weights.copy()
        for one, other in within:
            apart[moments.spans[one], moments.spans[other]] = 0.0
        target = moments.sums / tables.total
        parts = (torch.from_numpy(part).float() for part in (contrasts, target, weights, apart))
        return cls(next(parts), list(zip(spans, moments.spans, strict=True)), *parts)

    def across(self, weights: Tensor, every: Tensor) -> Tensor:
        """Return the squared errors of groups of different trees, from weights (k,) and shares (k, width) of components."""
        made = every @ self.contrasts
        errors = made.T @ (weights[:, None] * made) - self.target
        # Each pair is there twice.
        return 0.5 * (self.apart * errors.square()).sum()

    def of_pair(self, pair: tuple[int, int], table: Tensor) -> Tensor:
        """Return those of two groups of a tree, from their table (choices, choices)."""
        (one, rows), (other, columns) = (self.spans[group] for group in pair)
        errors = self.contrasts[one, rows].T @ table @ self.contrasts[other, columns] - self.target[rows, columns]
        return (self.weights[rows, columns] * errors.square()).sum()


@dataclass(frozen=True)
class _Rows:
    """Some rows of a symmetric matrix (width, width), from their first column on: few, so that they stay in the cache.

    Args:
        rows: their places.
        rest: the columns from the first of these places on.
        without: tables of two groups that are left out, by their places among these rows and columns.
        target: (labels, rows, columns) what is aimed at.
        weights: of squared errors, (rows, columns), or the one that all have.
        penalties: (rows, columns) by which shares add to the error; None for nothing.
    """

    rows: slice
    rest: slice
    without: Sequence[tuple[slice, slice]]
    target: Tensor
    weights: Tensor | float
    penalties: Tensor | None

    @classmethod
    def of(
        cls,
        spans: Sequence[slice],
        without: Collection[tuple[int, int]],
        target: Tensor,
        weights: Tensor | float,
        penalties: Tensor | None,
    ) -> list[_Rows]:
        """Cut matrices into rows, of which the tables of some pairs of groups are left out (both ways)."""
        parts, width = [], spans[-1].stop
        for first in range(0, width, _ROWS):
            rows, rest = slice(first, min(first + _ROWS, width)), slice(first, width)
            inside = [slice(max(span.start, first) - first, span.stop - first) for span in spans]
            above = [slice(part.start, min(part.stop, _ROWS)) for part in inside]
            left_out = [
                (above[part], inside[other]) for part, other in without
                if above[part].start < above[part].stop and inside[other].start < inside[other].stop
            ]  # fmt: skip
            cut = [
                part[..., rows, rest].contiguous() if isinstance(part, Tensor) else part
                for part in (target, weights, penalties)
            ]
            parts.append(cls(rows, rest, left_out, *cut))
        return parts


class _Across(torch.autograd.Function):
    """Squared errors of the tables of groups of different trees, with a gradient by two products of matrices a label."""

    @staticmethod
    def forward(ctx, shares, by_label, parts):
        error = torch.zeros(())
        of_shares, of_labels = torch.zeros_like(shares), torch.zeros_like(by_label)
        for label, by_component in enumerate(by_label.T):
            weighted, moved = shares * by_component[:, None], torch.zeros_like(shares)
            for part in parts:
                count = part.rows.stop - part.rows.start
                tables = weighted[:, part.rows].T @ shares[:, part.rest]
                if part.penalties is not None:
                    error += _both_sides(tables, part.penalties, count)
                tables -= part.target[label]
                for places in part.without:
                    tables[places] = 0.0
                gradient = tables * part.weights
                # Each table is there twice, once on each side.
                error += 0.5 * _both_sides(tables, gradient, count)
                if part.penalties is not None:
                    gradient += part.penalties
                moved[:, part.rows] += shares[:, part.rest] @ gradient.T
                moved[:, part.rows.stop :] += shares[:, part.rows] @ gradient[:, count:]
            of_labels[:, label] = (moved * shares).sum(dim=1)
            of_shares.addcmul_(moved, by_component[:, None], value=2.0)
        ctx.save_for_backward(of_shares, of_labels)
        return error

    @staticmethod
    def backward(ctx, gradient):
        of_shares, of_labels = ctx.saved_tensors
        return gradient * of_shares, gradient * of_labels, None


def _both_sides(values: Tensor, others: Tensor, count: int) -> Tensor:
    """Return the sum of products of two symmetric matrices from their rows, whose first columns are on both sides."""
    return 2.0 * torch.dot(values.view(-1), others.view(-1)) - (values[:, :count] * others[:, :count]).sum()
