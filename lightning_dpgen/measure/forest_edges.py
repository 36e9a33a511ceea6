"""Forests that noisy tables of pairs show: which group follows from which. Post-processing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lightning_dpgen.data.layout import Layout
from lightning_dpgen.measure.pair_estimates import estimate_pairs
from lightning_dpgen.measure.pair_tables import (
    NoisyTables,
    PairShares,
    fitted_to,
    mutual_information,
    nearest_shares,
    strongest_tree,
)
from lightning_dpgen.models.forests import forest_order

# Groups hang together in a tree where both have so much mutual information, in nats, beside what the label tells.
_STRONG = 0.05
# The most groups of a tree, and the most cells of all pairs of its groups: these take most of the time of a step.
_MOST_GROUPS, MOST_CELLS = 14, 300_000
# Impossible pairs of choices make two groups an edge, too: the share of records that would have one, were the groups
# independent, counts so many times as much as mutual information.
_RULED = 3.0
# Choices most of whose records would break a rule begin with components of their own, if these are more than such a share
# of all; so many choices are tried for a component.
_MOST_LOST, _LOST, _TRIED = 0.3, 1e-3, 4
# Shares of the choices of a group that are less count as so much.
LEAST_SHARE = 1e-6


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
        cls, layout: Layout, tables: NoisyTables, seed: int, leaf: int | None = None, broken: np.ndarray | None = None
    ) -> Forest:
        """Find the forest that noisy tables show.

        Args:
            leaf: a group from which no other one may follow; None for none.
            broken: pairs of choices (width, width) that no record has; strong ones among them are edges.
        """
        shares = tables.shares()
        estimates = estimate_pairs(tables, shares, seed)
        ruled = {} if broken is None else _ruled(layout, shares, estimates, broken)
        estimates |= {pair: estimate for pair, (estimate, _) in ruled.items()}
        strength = {pair: one.information - _told_by_label(tables, *pair) for pair, one in estimates.items()}
        for pair, (_, more) in ruled.items():
            strength[pair] += more
        strong = sorted((pair for pair, one in strength.items() if one > _STRONG), key=lambda pair: (-strength[pair], pair))
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
    def edges(self) -> set[tuple[int, int]]:
        """Each group and its parent, the lower one first."""
        return {(min(edge), max(edge)) for edge in enumerate(self.parents) if edge[1] >= 0}

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
            self.shares[parent] + LEAST_SHARE, self.shares[group] + LEAST_SHARE
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
        shares_of = {group: np.eye(self.layout.groups[group])}
        for tree in self.trees:
            waiting = [group] if group in tree else []
            for before in waiting:
                for other in tree:
                    if other not in shares_of and (self.parents[other] == before or self.parents[before] == other):
                        shares_of[other] = shares_of[before] @ self.table(before, other)
                        waiting.append(other)
        return shares_of

    def forced(self, most: int) -> list[tuple[float, np.ndarray]]:
        """Return the choices of which most records would break a rule along the trees, the most first.

        Args:
            most: so many of them at most.

        Returns:
            The share of each, and the choices (width,) of all groups that go with it and with what that leaves, True there.
        """
        if self.broken is None:
            return []
        spans, candidates = self.layout.spans, []
        ruled = [group for group, span in enumerate(spans) if self.broken[span].any()]
        for group in ruled:
            along, lost = self._along(group), np.zeros(self.layout.groups[group])
            for other in ruled:
                given = along.get(other, self.shares[other][None])
                lost = np.maximum(lost, (given * self.broken[spans[group], spans[other]]).sum(axis=1))
            worth = lost * self.shares[group]
            candidates += [
                (worth[choice], group, choice) for choice in np.flatnonzero((lost > _MOST_LOST) & (worth > _LOST))
            ]
        by_content: dict[bytes, tuple[float, np.ndarray]] = {}
        # Choices that leave the same are one.
        for _, group, choice in sorted(candidates, key=lambda entry: -entry[0])[: _TRIED * most]:
            remaining = self._left_by(group, int(choice), ruled)
            if len(by_content) < most and remaining[spans[group]].any():
                by_content.setdefault(remaining.tobytes(), (float(self.shares[group][choice]), remaining))
        return list(by_content.values())

    def _left_by(self, group: int, choice: int, ruled: Sequence[int]) -> np.ndarray:
        """Return the choices (width,) that one leaves: each goes with one of every other group that is left, too."""
        assert self.broken is not None
        spans = self.layout.spans
        allowed, before = np.ones(self.layout.width, bool), -1
        allowed[spans[group]] = np.arange(self.layout.groups[group]) == choice
        while (count := int(allowed.sum())) != before:
            before = count
            for one, other in itertools.permutations(ruled, 2):
                allowed[spans[other]] &= (allowed[spans[one], None] & ~self.broken[spans[one], spans[other]]).any(axis=0)
        return allowed

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


def _told_by_label(tables: NoisyTables, first: int, second: int) -> float:
    """Return the mutual information, in nats, of groups that are independent for each label.

    An edge would tie them for each label alike, and tables by label tell it already. It is 0 for tables of all records, and
    for the label itself, which has no table by label: a rule may bind it.
    """
    if tables.label is None or tables.label in (first, second):
        return 0.0
    one, other = (nearest_shares(tables.singles[group] / tables.total) for group in (first, second))
    weights = np.sqrt(one.sum(axis=1) * other.sum(axis=1))
    one, other = (own / np.maximum(own.sum(axis=1, keepdims=True), LEAST_SHARE) for own in (one, other))
    shares = (one.T * weights) @ other
    return mutual_information(shares / shares.sum())


def _ruled(
    layout: Layout, shares: Sequence[np.ndarray], estimates: Mapping[tuple[int, int], PairShares], broken: np.ndarray
) -> dict[tuple[int, int], tuple[PairShares, float]]:
    """Return estimates of groups without their impossible pairs of choices, and what these add to their strength."""
    estimates_of = {}
    for first, second in itertools.combinations(range(len(shares)), 2):
        barred = broken[layout.spans[first], layout.spans[second]]
        if not barred.any() or barred.all():
            continue
        alone = np.outer(shares[first], shares[second])
        own = estimates[first, second].shares if (first, second) in estimates else alone
        own = fitted_to(np.where(barred, 0.0, own + LEAST_SHARE * alone), shares[first], shares[second])
        estimates_of[first, second] = PairShares(own, math.inf), float(_RULED * alone[barred].sum())
    return estimates_of


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
