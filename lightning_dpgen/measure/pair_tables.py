"""Shares of the choices of one group and of two, from noisy tables of counts: post-processing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
from scipy.special import ndtr, softmax
from threadpoolctl import threadpool_limits

from lightning_dpgen.privacy import pace

# The deviation of noise that is split off to choose an estimate, in units of the noise that there is.
_PART = 0.7
# It is split so often, since a single draw is a matter of luck.
_SPLITS = 4
# Two groups have to do with each other where counts are so many deviations of all noise farther from those of independent
# groups, and where an estimate is better than independent groups by so many: by any, where counts are plainly farther.
_CERTAIN, _SURE, _PLAIN = 4.0, 1.0, 6.0
# Groups are known to go together, too, by polynomials of such a degree and by each of few choices, below such a p-value.
# They are estimated by polynomials of a higher degree; each coefficient is held back by so many variances.
_TREND, _LARGEST_P, _DEGREE, _HELD_BACK = 2, 1e-4, 8, 3.0
# The largest precision of an estimate, in units of that of noisy counts: its bias is only roughly known.
_MOST_PRECISE = 3.0
# The fewest choices that have an order, and the most that are told apart without one.
_SHORTEST, _FEW = 3, 5
# The most rounds of iterative proportional fitting, which ends where sums are so near to what they should be.
_ROUNDS, _NEAR = 30, 1e-9
# The least share of a choice whose rank counts.
_SEEN = 1e-5
# Shares that are at most so large are none.
_LEAST = 1e-30

# Gives counts of two groups from noisy ones: (counts, deviation, shares of the rows, shares of the columns, records).
Estimate = Callable[[np.ndarray, float, np.ndarray, np.ndarray, float], np.ndarray]


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
    """

    singles: Mapping[int, np.ndarray]
    pairs: Mapping[tuple[int, int], np.ndarray]
    single_deviation: float
    pair_deviation: float
    total: float
    label: int | None = None
    deviations: Mapping[tuple[int, ...], float] = field(default_factory=dict)
    ordered: Sequence[int] = ()

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

    def about(self, first: int, second: int, shares: Sequence[np.ndarray]) -> tuple[tuple, TwoContrasts | None]:
        """Return what `evidence` and `estimate_pair` ask for of two groups, whose table is one of all records."""
        known = (self.pairs[first, second][0], self.deviation_of(first, second), shares[first], shares[second], self.total)
        own, other = (contrasts(shares[group], self.ordered[group] if self.ordered else 0) for group in (first, second))
        return known, None if own is None or other is None else (own, other)

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
    there = shares > _LEAST
    return max(0.0, float((shares[there] * np.log(shares[there] / alone[there])).sum()))


def fitted_to(shares: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return a table with these shares of rows and columns, by iterative proportional fitting; cells of 0 stay 0."""
    down, across = np.ones(len(rows)), np.ones(len(columns))
    for number in range(_ROUNDS):
        sums = down * (shares @ across)
        # Those of columns are right after each round.
        if number and np.abs(sums - rows).max() < _NEAR:
            break
        down *= np.divide(rows, sums, out=np.ones_like(sums), where=sums > _LEAST)
        sums = across * (down @ shares)
        across *= np.divide(columns, sums, out=np.ones_like(sums), where=sums > _LEAST)
    shares = down[:, None] * shares * across
    return shares / max(float(shares.sum()), _LEAST)


@dataclass(frozen=True)
class Contrasts:
    """Functions of the choices of a group, by which few numbers say how two groups go together.

    They are orthogonal to each other and to a constant by the shares of choices, and the mean of a square is 1.

    Args:
        values: (choices, functions).
        tested: how many of the first `trend` tests, each by itself.
    """

    values: np.ndarray
    tested: int


TwoContrasts = tuple[Contrasts, Contrasts]


def contrasts(shares: np.ndarray, ordered: int) -> Contrasts | None:
    """Return polynomials of the ranks of choices in an order, and functions that tell few others apart; None for none.

    Args:
        shares: (choices,).
        ordered: how many of the first are in an order.

    Example:
        >>> contrasts(np.array([0.25, 0.25, 0.25, 0.25]), 4).values.round(1)[:, :2].tolist()
        [[-1.3, 1.0], [-0.4, -1.0], [0.4, -1.0], [1.3, 1.0]]
        >>> np.abs(contrasts(np.array([0.8, 0.2]), 0).values).tolist()
        [[0.5], [2.0]]
    """
    shares = np.maximum(shares, _SEEN)
    ordered = ordered if ordered >= _SHORTEST else 0
    others = len(shares) - ordered
    told = min(others, len(shares) - 1) if others <= _FEW else 0
    found = np.zeros((len(shares), 0))
    if ordered:
        inside = shares[:ordered]
        ranks = 2.0 * (inside.cumsum() - inside / 2.0) / inside.sum() - 1.0
        of_ranks = _orthogonal(np.vander(ranks, min(_DEGREE + 1, ordered), increasing=True)[:, 1:], inside)
        found = np.concatenate([of_ranks, np.zeros((others, of_ranks.shape[1]))])
    if told:
        of_others = _orthogonal(np.eye(len(shares))[:, len(shares) - told :], shares)
        found = np.concatenate([found[:, :_TREND], of_others, found[:, _TREND:]], axis=1)
    return Contrasts(found, min(_TREND, ordered) + told) if found.shape[1] else None


def _orthogonal(functions: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return functions (choices, d) made orthogonal to a constant and, in turn, to each other, by shares."""
    roots = np.sqrt(shares)[:, None]
    factors, signs = np.linalg.qr(roots * np.concatenate([np.ones_like(roots), functions], axis=1))
    return (factors * np.sign(np.diag(signs)) / roots)[:, 1:]


def estimate_pair(
    counts: np.ndarray,
    deviation: float,
    rows: np.ndarray,
    columns: np.ndarray,
    total: float,
    random: np.random.Generator,
    by: TwoContrasts | None = None,
) -> PairShares:
    """Estimate the shares of two groups by the estimator that fits best.

    Noise is split off, so that estimates from one part are judged by the other one, whose noise is independent (data
    fission, Leiner et al. 2023; see `measure.splitting`). Tables of two groups are of different kinds: of few directions,
    of few cells, of one cell for each choice, or smooth, and each kind has its estimator.

    Args:
        counts: noisy counts.
        deviation: standard deviation of the noise of each.
        rows, columns: shares of the choices of each group.
        total: the number of records.
        random: public.
        by: the `contrasts` of each group; None where one has none.
    """
    noise = max(deviation, 1.0)
    estimates, smooth = _ESTIMATES, None
    if by is not None:
        smooth = partial(_by_contrasts, by)
        estimates = (*_ESTIMATES, smooth, partial(_by_contrasts_and_directions, by))
    gains, far, errors = (dict.fromkeys(estimates, 0.0) for _ in range(3))
    for _ in range(_SPLITS):
        drawn = noise * random.standard_normal(counts.shape)
        seen, held_out = counts + _PART * drawn, counts - drawn / _PART
        alone = total * np.outer(rows, columns)
        for own in estimates:
            made = total * own(seen, noise * math.hypot(1.0, _PART), rows, columns, total)
            error = float(np.square(made - held_out).sum())
            gains[own] += (float(np.square(alone - held_out).sum()) - error) / _SPLITS
            errors[own] += error / _SPLITS
            far[own] += float(np.linalg.norm(made - alone)) / _SPLITS
    best = max(gains, key=gains.__getitem__)
    # The noise of a gain has twice the deviation of what is held out on average, times how far both estimates are apart.
    deviation = noise * math.sqrt(1.0 + 1.0 / (_PART**2 * _SPLITS))
    sure = gains[best] / max(2.0 * far[best] * deviation, 1e-9)
    precision = 1.0
    if by is not None and best is smooth:
        # In units of the variance of noise, summed over cells: the variance of the coefficients, and the squared bias.
        variance = by[0].values.shape[1] * by[1].values.shape[1]
        bias = errors[best] / noise**2 - (1.0 + _PART**-2) * counts.size - (1.0 + _PART**2) * variance
        precision = min(max(1.0, counts.size / (variance + max(bias, 0.0))), _MOST_PRECISE)
    return PairShares(best(counts, noise, rows, columns, total), sure, precision)


def estimate_pairs(tables: NoisyTables, shares: list[np.ndarray], seed: int) -> dict[tuple[int, int], PairShares]:
    """Return estimates of the pairs of groups that surely have to do with each other, in spite of the noise.

    Args:
        shares: of the choices of each group (`NoisyTables.shares`).
        seed: public.
    """
    found = {}
    pairs = [*enumerate(tables.of_all.pairs)]
    # Matrices are small: threads would wait for each other most of the time.
    with threadpool_limits(1, "blas"):
        for number, pair in pace.counted("estimating pairs", pairs):
            about, by = tables.of_all.about(*pair, shares)
            seen = evidence(*about)
            plain = seen > _PLAIN or (by is not None and trend(*about, by) < _LARGEST_P)
            if plain or seen > _CERTAIN:
                own = estimate_pair(*about, np.random.default_rng((seed, number)), by)
                if own.sure > (0.0 if plain else _SURE):
                    found[pair] = own
    return found


def evidence(counts: np.ndarray, deviation: float, rows: np.ndarray, columns: np.ndarray, total: float) -> float:
    """Return by how many deviations counts are farther from those of independent groups than noise and chance take them.

    The squares of normal differences of variance v add up to the sum of v, give or take the root of twice the sum of v^2.
    """
    expected = total * np.outer(rows, columns)
    variances = deviation**2 + expected
    return float((np.square(counts - expected) - variances).sum() / math.sqrt(2.0 * np.square(variances).sum() + 1e-9))


def trend(
    counts: np.ndarray,
    deviation: float,
    rows: np.ndarray,
    columns: np.ndarray,
    total: float,
    by: TwoContrasts,
) -> float:
    """Return the p-value of the largest tested contrast of two groups, were they independent.

    Straight lines and parabolas of the ranks of numbers are tested, and each of few choices beside all others. They are
    seen where `evidence`, which has all cells alike, sees nothing: a correlation of the ranks moves each cell by little.
    """
    moved, variances = _coefficients(counts, deviation, rows, columns, total, [own.values[:, : own.tested] for own in by])
    # A bound for all of them together, by Bonferroni.
    return float(min(1.0, moved.size * 2.0 * ndtr(-(np.abs(moved) / np.sqrt(variances + 1e-9)).max())))


def _coefficients(
    counts: np.ndarray, noise: float, rows: np.ndarray, columns: np.ndarray, total: float, by: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return how much counts have of each function of rows times one of columns, beyond independence, and variances."""
    first, second = by
    of_noise = noise**2 * np.outer(np.square(first).sum(axis=0), np.square(second).sum(axis=0))
    return first.T @ (counts - total * np.outer(rows, columns)) @ second, of_noise + total


def records_to_show(choices: tuple[int, int], deviation: float, total: float) -> float:
    """Return about how many records would show that two groups have to do with each other, if one determined the other.

    Less information than that takes more records. If the one with fewer choices follows from the other, all of whose M
    choices are alike, counts of n records are farther from independent ones by n (1 - 1/m) / M, squared and for one record.

    Args:
        choices: of each group.
        deviation: standard deviation of the noise of each count.
        total: the number of records there are, by which chance varies.

    Example:
        >>> [round(records_to_show((size, size), 30.0, 5_000.0)) for size in (5, 50)]
        [441, 3608]
    """
    low, high = sorted(choices)
    if low < 2:
        return math.inf
    variance = deviation**2 + total / (low * high)
    return math.sqrt(_CERTAIN * math.sqrt(2.0 * low * high) * variance * high / (1.0 - 1.0 / low))


def _independent(counts: np.ndarray, noise: float, rows: np.ndarray, columns: np.ndarray, total: float) -> np.ndarray:
    return np.outer(rows, columns)


def _of_few_directions(counts: np.ndarray, noise: float, rows: np.ndarray, columns: np.ndarray, total: float) -> np.ndarray:
    """Shrink the singular values of what is not independent."""
    expected = total * np.outer(rows, columns)
    return _shrunk(counts, expected, noise, rows, columns, total)


def _shrunk(
    counts: np.ndarray, expected: np.ndarray, noise: float, rows: np.ndarray, columns: np.ndarray, total: float
) -> np.ndarray:
    """Shrink the singular values of what is not expected (Gavish and Donoho 2017, for the Frobenius norm)."""
    differences = counts - expected
    if differences.shape[0] > differences.shape[1]:
        differences = differences.T
    low, high = differences.shape
    ratio, unit = low / high, noise * math.sqrt(high)
    # Squares of singular values are enough, since those near 0 are left out.
    squares, left = np.linalg.eigh(differences @ differences.T / unit**2)
    kept = squares > (1.0 + math.sqrt(ratio)) ** 2
    squares, left = squares[kept], left[:, kept]
    factors = np.sqrt(np.maximum((squares - ratio - 1.0) ** 2 - 4.0 * ratio, 0.0)) / squares
    cells = (left * factors) @ (left.T @ differences)
    cells = expected + (cells if cells.shape == counts.shape else cells.T)
    return fitted_to(np.maximum(cells, 1e-3 * expected + 1e-9) / total, rows, columns)


def _nearest(counts: np.ndarray, noise: float, rows: np.ndarray, columns: np.ndarray, total: float) -> np.ndarray:
    return fitted_to(nearest_shares(counts / total) + 1e-4 * np.outer(rows, columns), rows, columns)


def _of_large_cells(counts: np.ndarray, noise: float, rows: np.ndarray, columns: np.ndarray, total: float) -> np.ndarray:
    """Keep the cells that are beyond two and a half deviations, and hardly any other."""
    expected = total * np.outer(rows, columns)
    return fitted_to(np.where(counts > 2.5 * noise, counts, 1e-3 * expected) / total, rows, columns)


def _of_few_directions_and_cells(
    counts: np.ndarray, noise: float, rows: np.ndarray, columns: np.ndarray, total: float
) -> np.ndarray:
    """Take nearly all away from cells of few directions that are small in both."""
    cells = total * _of_few_directions(counts, noise, rows, columns, total)
    small = (counts < noise) & (cells < 1.5 * noise)
    return fitted_to(np.maximum(np.where(small, 0.02 * cells, cells), 1e-6) / total, rows, columns)


def _of_one_each(counts: np.ndarray, noise: float, rows: np.ndarray, columns: np.ndarray, total: float) -> np.ndarray:
    """Give the records of each row to one column, as likely as noisy counts say which (by the rule of Bayes).

    If all records of a row are in one column, the likelihood of a column grows as e to its count times their number, over
    the variance of the noise.
    """
    logits = counts * (total * rows / noise**2)[:, None] + np.log(np.maximum(columns, _LEAST))
    return fitted_to(rows[:, None] * softmax(logits, axis=1) + 1e-4 * np.outer(rows, columns), rows, columns)


def _of_one_each_way(counts: np.ndarray, noise: float, rows: np.ndarray, columns: np.ndarray, total: float) -> np.ndarray:
    """Do the same by columns."""
    return _of_one_each(counts.T, noise, columns, rows, total).T


def _by_contrasts(
    by: TwoContrasts,
    counts: np.ndarray,
    noise: float,
    rows: np.ndarray,
    columns: np.ndarray,
    total: float,
) -> np.ndarray:
    """Smooth what is not independent, by the contrasts of both groups, each coefficient held back by its noise."""
    moved, variances = _coefficients(counts, noise, rows, columns, total, [own.values for own in by])
    moved *= np.maximum(1.0 - _HELD_BACK * variances / np.maximum(np.square(moved), 1e-9), 0.0)
    alone = np.outer(rows, columns)
    ratio = 1.0 + by[0].values @ moved @ by[1].values.T / total
    return fitted_to(alone * np.maximum(ratio, 1e-3), rows, columns)


def _by_contrasts_and_directions(
    by: TwoContrasts,
    counts: np.ndarray,
    noise: float,
    rows: np.ndarray,
    columns: np.ndarray,
    total: float,
) -> np.ndarray:
    """Smooth by contrasts, and shrink the singular values of what they do not say, such as a tail of both groups."""
    smooth = _by_contrasts(by, counts, noise, rows, columns, total)
    return _shrunk(counts, total * smooth, noise, rows, columns, total)


_ESTIMATES: tuple[Estimate, ...] = (
    _independent, _of_few_directions, _nearest, _of_large_cells, _of_few_directions_and_cells, _of_one_each,
    _of_one_each_way,
)  # fmt: skip


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
