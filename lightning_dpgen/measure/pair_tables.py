"""Noisy tables of the choices of one group and of two, and shares that are estimated from them: post-processing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

# The most rounds of iterative proportional fitting, which ends where sums are so near to what they should be.
_ROUNDS, _NEAR = 30, 1e-9
# Shares that are at most so large are none.
LEAST = 1e-30


@dataclass(frozen=True)
class NoisyTables:
    """Noisy counts of the choices of each group, and of each two, perhaps by the label.

    Args:
        singles: by group, (labels, choices).
        pairs: by two groups, the lower first; (labels, choices, choices).
        single_deviation, pair_deviation: standard deviation of the noise of a number of each.
        total: the number of records, as it is estimated.
        label: the group by whose choices counts are told apart; None where there is one table of each, of all records.
        deviations: standard deviations of tables that other counts have made more exact, by their groups (`sharpened`).
        ordered: for each group, how many of its first choices are in an order (`Layout.ordered`); empty for none.
        sets: counts of three groups or more, an axis for each; of all records, whatever their label.
        set_deviation: standard deviation of the noise of a number of those.
    """

    singles: Mapping[int, np.ndarray]
    pairs: Mapping[tuple[int, int], np.ndarray]
    single_deviation: float
    pair_deviation: float
    total: float
    label: int | None = None
    deviations: Mapping[tuple[int, ...], float] = field(default_factory=dict)
    ordered: Sequence[int] = ()
    sets: Mapping[tuple[int, ...], np.ndarray] = field(default_factory=dict)
    set_deviation: float = 0.0

    @property
    def labels(self) -> int:
        """The number of tables of each group."""
        return len(next(iter(self.singles.values())))

    @cached_property
    def of_all(self) -> NoisyTables:
        """The tables of all records, whatever their label, which has one of its own then."""
        if self.label is None:
            return self
        singles = {group: counts.sum(axis=0)[None] for group, counts in self.singles.items()}
        # The counts of labels are those of each table, which trust them the less the more choices it has.
        weights = {group: 1.0 / counts.shape[1] for group, counts in self.singles.items()}
        of_labels = sum(weights[group] * counts.sum(axis=1) for group, counts in self.singles.items())
        singles[self.label] = of_labels[None] / sum(weights.values())
        pairs = {pair: counts.sum(axis=0)[None] for pair, counts in self.pairs.items()}
        root = math.sqrt(self.labels)
        finer = {groups: root * own for groups, own in self.deviations.items()}
        deviation, of_pairs = root * self.single_deviation, root * self.pair_deviation
        return NoisyTables(singles, pairs, deviation, of_pairs, self.total, deviations=finer, ordered=self.ordered)

    def deviation_of(self, *groups: int) -> float:
        """Return the standard deviation of the noise of a number in the table of one group, or of two."""
        return self.deviations.get(groups, self.single_deviation if len(groups) == 1 else self.pair_deviation)

    def sharpened(self, groups: tuple[int, ...], counts: np.ndarray, deviation: float) -> NoisyTables:
        """Return the tables with what other counts of the same records say, which have noise of their own.

        Each table of these groups moves to the estimate of least variance of its cells and its sums, in which the other
        counts say the same: those of more groups are added up. A deviation is never below the true one.

        Args:
            groups: any of them, in the order of the axes.
            counts: an axis for each group.
            deviation: the standard deviation of the noise of each number.

        Example:
            >>> before = NoisyTables({0: np.array([[6.0, 2.0]])}, {}, 2.0, 2.0, total=8.0)
            >>> after = before.sharpened((0,), np.array([4.0, 4.0]), 2.0)
            >>> after.singles[0], round(after.deviation_of(0), 3)
            (array([[5., 3.]]), 1.414)
        """
        singles, pairs, deviations = dict(self.singles), dict(self.pairs), dict(self.deviations)
        for own, table in [*(((group,), table) for group, table in singles.items()), *pairs.items()]:
            if not set(own) <= set(groups):
                continue
            # The first axis is that of the label, or there is one table.
            axes = (-1 if self.label is None else self.label, *own)
            added = tuple(axis for axis, group in enumerate(groups) if group not in axes)
            kept = [group for group in groups if group in axes]
            summed = tuple(axis for axis, group in enumerate(axes) if group not in groups)
            other = counts.sum(axis=added).transpose([kept.index(group) for group in axes if group in groups])
            number = math.prod(table.shape[axis] for axis in summed)
            # Without noise all counts say the same.
            variance = max(self.deviation_of(*own), 1e-9) ** 2
            noise = max(deviation, 1e-9) ** 2 * math.prod(counts.shape[axis] for axis in added)
            gain = variance / (number * variance + noise)
            moved = table + gain * (np.expand_dims(other, summed) - table.sum(axis=summed, keepdims=True))
            (singles if len(own) == 1 else pairs)[own[0] if len(own) == 1 else own] = moved
            if self.deviation_of(*own):
                deviations[own] = math.sqrt(variance * (1.0 - gain))
        return replace(self, singles=singles, pairs=pairs, deviations=deviations)

    def shares(self) -> list[np.ndarray]:
        """Return the shares of each group's choices: its own counts and those of its pairs, by their inverse variance."""
        tables = self.of_all
        trust = {group: 1.0 / max(tables.deviation_of(group), 1.0) ** 2 for group in tables.singles}
        sums = {group: trust[group] * counts[0] for group, counts in tables.singles.items()}
        for pair, (counts,) in tables.pairs.items():
            for group, axis in zip(pair, (1, 0), strict=True):
                variance = max(tables.deviation_of(*pair), 1.0) ** 2 * counts.shape[axis]
                sums[group] = sums[group] + counts.sum(axis=axis) / variance
                trust[group] += 1.0 / variance
        return [nearest_shares(sums[group] / trust[group] / tables.total) for group in sorted(sums)]


@dataclass(frozen=True)
class PairShares:
    """The shares of the choices of two groups, as they are estimated.

    Args:
        shares: (choices, choices).
        sure: by how many deviations of the noise this is better than that the groups have nothing to do with each other.
        precision: the inverse variance of a cell, in units of that of its noisy count; above 1 where few numbers estimate
            all cells.
    """

    shares: np.ndarray
    sure: float
    precision: float = 1.0

    @property
    def information(self) -> float:
        """The mutual information of both groups, in nats."""
        return mutual_information(self.shares)


def nearest_shares(values: np.ndarray) -> np.ndarray:
    """Return the shares that are nearest to numbers (Euclidean projection on the simplex; Duchi et al. 2008).

    Example:
        >>> nearest_shares(np.array([0.7, 0.5, -0.4])).round(2)
        array([0.6, 0.4, 0. ])
    """
    ordered = np.sort(values, axis=None)[::-1]
    over = (np.cumsum(ordered) - 1.0) / np.arange(1, ordered.size + 1)
    return np.maximum(values - over[np.flatnonzero(ordered > over)[-1]], 0.0)


def mutual_information(shares: np.ndarray) -> float:
    """Return the mutual information of rows and columns of shares, in nats.

    Example:
        >>> round(mutual_information(np.eye(2) / 2), 3), round(mutual_information(np.ones((2, 2)) / 4), 3)
        (0.693, 0.0)
    """
    alone = np.outer(shares.sum(axis=1), shares.sum(axis=0))
    there = shares > LEAST
    return max(0.0, float((shares[there] * np.log(shares[there] / alone[there])).sum()))


def fitted_to(shares: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return a table with these shares of rows and columns, by iterative proportional fitting; cells of 0 stay 0."""
    down, across = np.ones(len(rows)), np.ones(len(columns))
    for number in range(_ROUNDS):
        sums = down * (shares @ across)
        # Those of columns are right after each round.
        if number and np.abs(sums - rows).max() < _NEAR:
            break
        down *= np.divide(rows, sums, out=np.ones_like(sums), where=sums > LEAST)
        sums = across * (down @ shares)
        across *= np.divide(columns, sums, out=np.ones_like(sums), where=sums > LEAST)
    shares = down[:, None] * shares * across
    return shares / max(float(shares.sum()), LEAST)


def strongest_tree(groups: int, information: Mapping[tuple[int, int], float]) -> list[tuple[int, int]]:
    """Return the edges of a forest of pairs of groups with the largest sum of information, strongest first.

    Pairs that are not given have none (Chow and Liu 1968, by Kruskal's algorithm).

    Example:
        >>> strongest_tree(4, {(0, 1): 0.5, (0, 2): 0.2, (1, 2): 0.4})
        [(0, 1), (1, 2)]
    """
    tree = list(range(groups))
    edges = []
    for pair in sorted(information, key=lambda pair: (-information[pair], pair)):
        first, second = (tree[group] for group in pair)
        if first != second:
            edges.append(pair)
            tree = [first if own == second else own for own in tree]
    return edges
