"""Shares of the choices of two groups, estimated from noisy counts: post-processing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import ndtr, softmax
from threadpoolctl import threadpool_limits

from lightning_dpgen.common import pace
from lightning_dpgen.measure.pair_tables import LEAST, NoisyTables, PairShares, fitted_to, nearest_shares

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
# The largest value of a contrast that is measured by itself: a record with a larger one would be shortened for all others.
_LARGEST_VALUE = 3.5
# The least share of a choice whose rank counts.
_SEEN = 1e-5


@dataclass(frozen=True)
class Contrasts:
    """Functions of the choices of a group, by which few numbers say how two groups go together.

    They are orthogonal to each other and to a constant by the shares of choices, and the mean of a square is 1.

    Args:
        values: (choices, functions).
        tested: how many of the first `NoisyPair.trend` tests, each by itself.
    """

    values: np.ndarray
    tested: int

    @property
    def measured(self) -> np.ndarray:
        """A flag of each tested function, (tested,): True if it has moments, since no rare choice makes it large."""
        return np.abs(self.values[:, : self.tested]).max(axis=0) <= _LARGEST_VALUE


def contrasts(shares: np.ndarray, ordered: int, few: int = _FEW) -> Contrasts | None:
    """Return polynomials of the ranks of choices in an order, and functions that tell few others apart; None for none.

    Args:
        shares: (choices,).
        ordered: how many of the first are in an order.
        few: the most choices that are told apart without one.

    Example:
        >>> contrasts(np.array([0.25, 0.25, 0.25, 0.25]), 4).values.round(1)[:, :2].tolist()
        [[-1.3, 1.0], [-0.4, -1.0], [0.4, -1.0], [1.3, 1.0]]
        >>> np.abs(contrasts(np.array([0.8, 0.2]), 0).values).tolist()
        [[0.5], [2.0]]
    """
    shares = np.maximum(shares, _SEEN)
    ordered = ordered if ordered >= _SHORTEST else 0
    others = len(shares) - ordered
    told_apart = min(others, len(shares) - 1) if others <= few else 0
    functions = np.zeros((len(shares), 0))
    if ordered:
        inside = shares[:ordered]
        ranks = 2.0 * (inside.cumsum() - inside / 2.0) / inside.sum() - 1.0
        of_ranks = _orthogonal(np.vander(ranks, min(_DEGREE + 1, ordered), increasing=True)[:, 1:], inside)
        functions = np.concatenate([of_ranks, np.zeros((others, of_ranks.shape[1]))])
    if told_apart:
        of_others = _orthogonal(np.eye(len(shares))[:, len(shares) - told_apart :], shares)
        functions = np.concatenate([functions[:, :_TREND], of_others, functions[:, _TREND:]], axis=1)
    return Contrasts(functions, min(_TREND, ordered) + told_apart) if functions.shape[1] else None


def _orthogonal(functions: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return functions (choices, d) made orthogonal to a constant and, in turn, to each other, by shares."""
    roots = np.sqrt(shares)[:, None]
    factors, signs = np.linalg.qr(roots * np.concatenate([np.ones_like(roots), functions], axis=1))
    return (factors * np.sign(np.diag(signs)) / roots)[:, 1:]


@dataclass(frozen=True)
class NoisyPair:
    """Noisy counts of two groups, with what is known of each of them.

    Args:
        counts: (choices of the first, choices of the second).
        deviation: standard deviation of the noise of each count.
        rows, columns: shares of the choices of each group.
        total: the number of records.
        by: the `contrasts` of each group; None where one has none.
        moments: sums of products of the tested contrasts of both groups, measured by themselves; None where they were not.
        moment_deviation: standard deviation of the noise of a number of those.
    """

    counts: np.ndarray
    deviation: float
    rows: np.ndarray
    columns: np.ndarray
    total: float
    by: tuple[Contrasts, Contrasts] | None = None
    moments: np.ndarray | None = None
    moment_deviation: float = 0.0

    @classmethod
    def of(cls, tables: NoisyTables, first: int, second: int, shares: Sequence[np.ndarray]) -> NoisyPair:
        """Return two groups of tables of all records.

        Args:
            shares: of the choices of each group (`NoisyTables.shares`).
        """
        own, other = (contrasts(shares[group], tables.ordered[group] if tables.ordered else 0) for group in (first, second))
        by = None if own is None or other is None else (own, other)
        (counts,), deviation = tables.pairs[first, second], tables.deviation_of(first, second)
        pair = cls(counts, deviation, shares[first], shares[second], tables.total, by)
        if by is None or tables.moments is None:
            return pair
        return replace(pair, moments=tables.moments.of(first, second), moment_deviation=tables.moments.deviation)

    @cached_property
    def independent(self) -> np.ndarray:
        """The shares of groups that have nothing to do with each other."""
        return np.outer(self.rows, self.columns)

    @property
    def evidence(self) -> float:
        """By how many deviations counts are farther from those of independent groups than noise and chance take them.

        The squares of normal differences of variance v add up to the sum of v, give or take the root of twice the sum of
        v^2.
        """
        expected = self.total * self.independent
        variances = self.deviation**2 + expected
        return float(
            (np.square(self.counts - expected) - variances).sum() / math.sqrt(2.0 * np.square(variances).sum() + 1e-9)
        )

    @property
    def trend(self) -> float:
        """The p-value of the largest tested contrast of both groups, were they independent; 1 without contrasts.

        Straight lines and parabolas of the ranks of numbers are tested, and each of few choices beside all others. They
        are seen where `evidence`, which has all cells alike, sees nothing: a correlation of the ranks moves each cell by
        little.
        """
        if self.by is None:
            return 1.0
        tested = tuple(slice(own.tested) for own in self.by)
        moved, variances = (own[tested] for own in self.coefficients)
        # A bound for all of them together, by Bonferroni.
        return float(min(1.0, moved.size * 2.0 * ndtr(-(np.abs(moved) / np.sqrt(variances + 1e-9)).max())))

    @cached_property
    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """The amounts of each contrast of rows times one of columns, beyond independence, and their variances.

        Counts tell them, and so do moments of tested contrasts, each by its inverse variance.
        """
        first, second = (own.values for own in self.by or ())
        variances = self.deviation**2 * np.outer(np.square(first).sum(axis=0), np.square(second).sum(axis=0))
        moved = first.T @ (self.counts - self.total * self.independent) @ second
        if self.moments is not None:
            tested = tuple(map(slice, self.moments.shape))
            trust = self._measured * variances[tested] / (variances[tested] + self.moment_deviation**2 + 1e-9)
            moved[tested] += trust * (self.moments - moved[tested])
            variances[tested] *= 1.0 - trust
        return moved, variances + self.total

    @cached_property
    def _measured(self) -> np.ndarray:
        """A flag of each product of tested contrasts, (tested of the first, of the second): True if it has a moment."""
        return np.logical_and.outer(*(own.measured for own in self.by or ()))

    def estimate(self, random: np.random.Generator) -> PairShares:
        """Estimate the shares by the estimator that fits best.

        Noise is split off, so that estimates from one part are judged by the other one, whose noise is independent (data
        fission, Leiner et al. 2023; see `workload.split_noise`). Tables of two groups are of different kinds: of few
        directions, of few cells, of one cell for each choice, or smooth, and each kind has its estimator.

        Args:
            random: public.
        """
        pair = replace(self, deviation=max(self.deviation, 1.0))
        noise, total, alone = pair.deviation, pair.total, pair.total * pair.independent
        estimates = _ESTIMATES if pair.by is None else (*_ESTIMATES, _by_contrasts, _by_contrasts_and_directions)
        gains, far, errors = (dict.fromkeys(estimates, 0.0) for _ in range(3))
        for _ in range(_SPLITS):
            drawn = noise * random.standard_normal(pair.counts.shape)
            held_out = pair.counts - drawn / _PART
            seen = replace(pair, counts=pair.counts + _PART * drawn, deviation=noise * math.hypot(1.0, _PART))
            seen, judge = pair._split_moments(seen, random)
            for estimator in estimates:
                estimated = total * estimator(seen)
                error = float(np.square(estimated - held_out).sum())
                more, moved = judge(estimated - alone)
                gains[estimator] += (float(np.square(alone - held_out).sum()) - error + more) / _SPLITS
                errors[estimator] += error / _SPLITS
                far[estimator] += math.sqrt(float(np.square(estimated - alone).sum()) + moved) / _SPLITS
        best = max(gains, key=gains.__getitem__)
        # The noise of a gain has twice the deviation of what is held out on average, times how far estimates are apart.
        deviation = noise * math.sqrt(1.0 + 1.0 / (_PART**2 * _SPLITS))
        sure = gains[best] / max(2.0 * far[best] * deviation, 1e-9)
        precision = 1.0
        if pair.by is not None and best is _by_contrasts:
            # In units of the variance of noise, summed over cells: the variance of the coefficients, and the squared bias.
            cells, variance = pair.counts.size, pair._coefficients_of_noise
            bias = errors[best] / noise**2 - (1.0 + _PART**-2) * cells - (1.0 + _PART**2) * variance
            precision = min(max(1.0, cells / (variance + max(bias, 0.0))), _MOST_PRECISE)
        return PairShares(best(pair), sure, precision)

    @property
    def _coefficients_of_noise(self) -> float:
        """The noise of all coefficients, in units of that which counts give each."""
        number = math.prod(own.values.shape[1] for own in self.by or ())
        if self.moments is None:
            return float(number)
        alone = replace(self, moments=None).coefficients[1] - self.total
        return number - alone.size + float(((self.coefficients[1] - self.total) / np.maximum(alone, 1e-9)).sum())

    def _split_moments(
        self, seen: NoisyPair, random: np.random.Generator
    ) -> tuple[NoisyPair, Callable[[np.ndarray], tuple[float, float]]]:
        """Split the noise of moments, too: one part is seen, and the other one judges estimates.

        Returns:
            The part that is seen; and a function of the differences (choices, choices) of an estimate from independence, in
            records. It gives how much nearer to moments than independence the estimate is, and how far from it, both in
            units of counts, squared.
        """
        if self.moments is None or self.by is None:
            return seen, lambda _: (0.0, 0.0)
        deviation, measured = max(self.moment_deviation, 1.0), self._measured
        drawn = deviation * random.standard_normal(self.moments.shape)
        held_out = self.moments - drawn / _PART
        seen = replace(seen, moments=self.moments + _PART * drawn, moment_deviation=deviation * math.hypot(1.0, _PART))
        first, second = (own.values[:, : own.tested] for own in self.by)
        unit = (self.deviation / deviation) ** 2

        def judge(differences: np.ndarray) -> tuple[float, float]:
            moved = (first.T @ differences @ second)[measured]
            nearer = np.square(held_out[measured]) - np.square(moved - held_out[measured])
            return unit * float(nearer.sum()), unit * float(np.square(moved).sum())

        return seen, judge


def estimate_pairs(tables: NoisyTables, shares: list[np.ndarray], seed: int) -> dict[tuple[int, int], PairShares]:
    """Return estimates of the pairs of groups that surely have to do with each other, in spite of the noise.

    Args:
        shares: of the choices of each group (`NoisyTables.shares`).
        seed: public.
    """
    estimates = {}
    # Matrices are small: threads would wait for each other most of the time.
    with threadpool_limits(1, "blas"):
        for number, groups in pace.counted("estimating pairs", [*enumerate(tables.of_all.pairs)]):
            pair = NoisyPair.of(tables.of_all, *groups, shares)
            evidence = pair.evidence
            plain = evidence > _PLAIN or pair.trend < _LARGEST_P
            if plain or evidence > _CERTAIN:
                own = pair.estimate(np.random.default_rng((seed, number)))
                if own.sure > (0.0 if plain else _SURE):
                    estimates[groups] = own
    return estimates


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


# Gives the shares of both groups.
Estimate = Callable[[NoisyPair], np.ndarray]


def _independent(pair: NoisyPair) -> np.ndarray:
    return pair.independent


def _of_few_directions(pair: NoisyPair) -> np.ndarray:
    """Shrink the singular values of what is not independent."""
    return _shrunk(pair, pair.independent)


def _shrunk(pair: NoisyPair, shares: np.ndarray) -> np.ndarray:
    """Shrink the singular values of what is not as by shares (Gavish and Donoho 2017, for the Frobenius norm)."""
    expected = pair.total * shares
    differences = pair.counts - expected
    if differences.shape[0] > differences.shape[1]:
        differences = differences.T
    low, high = differences.shape
    ratio, unit = low / high, pair.deviation * math.sqrt(high)
    # Squares of singular values are enough, since those near 0 are left out.
    squares, directions = np.linalg.eigh(differences @ differences.T / unit**2)
    kept = squares > (1.0 + math.sqrt(ratio)) ** 2
    squares, directions = squares[kept], directions[:, kept]
    factors = np.sqrt(np.maximum((squares - ratio - 1.0) ** 2 - 4.0 * ratio, 0.0)) / squares
    cells = (directions * factors) @ (directions.T @ differences)
    cells = expected + (cells if cells.shape == expected.shape else cells.T)
    return fitted_to(np.maximum(cells, 1e-3 * expected + 1e-9) / pair.total, pair.rows, pair.columns)


def _nearest(pair: NoisyPair) -> np.ndarray:
    return fitted_to(nearest_shares(pair.counts / pair.total) + 1e-4 * pair.independent, pair.rows, pair.columns)


def _of_large_cells(pair: NoisyPair) -> np.ndarray:
    """Keep the cells that are beyond two and a half deviations, and hardly any other."""
    expected = pair.total * pair.independent
    large = np.where(pair.counts > 2.5 * pair.deviation, pair.counts, 1e-3 * expected)
    return fitted_to(large / pair.total, pair.rows, pair.columns)


def _of_few_directions_and_cells(pair: NoisyPair) -> np.ndarray:
    """Take nearly all away from cells of few directions that are small in both."""
    cells = pair.total * _of_few_directions(pair)
    small = (pair.counts < pair.deviation) & (cells < 1.5 * pair.deviation)
    return fitted_to(np.maximum(np.where(small, 0.02 * cells, cells), 1e-6) / pair.total, pair.rows, pair.columns)


def _of_one_each(pair: NoisyPair) -> np.ndarray:
    """Give the records of each row to one column, as likely as noisy counts say which (by the rule of Bayes).

    If all records of a row are in one column, the likelihood of a column grows as e to its count times their number, over
    the variance of the noise.
    """
    trust = pair.total * pair.rows / pair.deviation**2
    logits = pair.counts * trust[:, None] + np.log(np.maximum(pair.columns, LEAST))
    likely = pair.rows[:, None] * softmax(logits, axis=1)
    return fitted_to(likely + 1e-4 * pair.independent, pair.rows, pair.columns)


def _of_one_each_way(pair: NoisyPair) -> np.ndarray:
    """Do the same by columns."""
    return _of_one_each(replace(pair, counts=pair.counts.T, rows=pair.columns, columns=pair.rows)).T


def _by_contrasts(pair: NoisyPair) -> np.ndarray:
    """Smooth what is not independent, by the contrasts of both groups, each coefficient held back by its noise."""
    first, second = (own.values for own in pair.by or ())
    moved, variances = pair.coefficients
    moved = moved * np.maximum(1.0 - _HELD_BACK * variances / np.maximum(np.square(moved), 1e-9), 0.0)
    ratio = 1.0 + first @ moved @ second.T / pair.total
    return fitted_to(pair.independent * np.maximum(ratio, 1e-3), pair.rows, pair.columns)


def _by_contrasts_and_directions(pair: NoisyPair) -> np.ndarray:
    """Smooth by contrasts, and shrink the singular values of what they do not say, such as a tail of both groups."""
    return _shrunk(pair, _by_contrasts(pair))


_ESTIMATES: tuple[Estimate, ...] = (
    _independent, _of_few_directions, _nearest, _of_large_cells, _of_few_directions_and_cells, _of_one_each,
    _of_one_each_way,
)  # fmt: skip
