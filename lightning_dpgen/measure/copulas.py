"""The recipe of tables with very many numbers: counts of each column, and second moments of normal scores of them all."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.common.plain_text import listed, say_count
from lightning_dpgen.data.layout import Encoded, Layout
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.measure.moments import beyond_noise
from lightning_dpgen.measure.pair_estimates import records_to_show
from lightning_dpgen.measure.pair_tables import lost_columns, nearest_shares, total_of
from lightning_dpgen.measure.recipe import Recipe
from lightning_dpgen.measure.statistics import UNITS, Marginals, SecondMoments, Statistic
from lightning_dpgen.measure.workload import State, Workload
from lightning_dpgen.models.bases import Basis
from lightning_dpgen.models.gaussians import StackedCopula, ordered_choices
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.privacy.plan import Plan

MARGINS, SCORES = "margins", "scores"
# The share of what may be spent for the columns by themselves.
_MARGINS_SHARE = 0.3
# The fewest columns with an order for which pairs are not counted, and the share of a table's budget for pairs.
_FEWEST, _PAIRS_SHARE = 100, 0.8
# Scores end here, and records are shortened to so many times their expected length.
_FARTHEST, _REACH = 2.5, 1.05
# Directions count from so many times the largest variance that noise makes.
_BEYOND = 1.05
# The most of a column that follows from the numbers that columns share; how often what is a column's own is estimated.
_MOST_SHARED, _ROUNDS = 0.98, 3
# The share of all variation that a direction needs, from which on it is said; and records that are taken at a time.
_LARGE, _AT_ONCE = 0.05, 1 << 12
_BYTES_ANYWAY = 200 << 20
# Made-up records that tell how much shorter directions become.
_MADE_UP = 2000


class ColumnScores(Basis):
    """The normal scores of a record's ordered columns: for each choice the mean of a standard normal in its part.

    A score is looked up, so coordinates follow from the record alone, bit for bit. Choices without an order have 0.

    Args:
        ordered: the ordered choices of groups (`ordered_choices`).
        shares: for each of these groups the shares of its ordered choices, which add up to 1; public.

    Attributes:
        variances: (columns,) of the scores, by these shares.

    Example:
        >>> scores = ColumnScores(Layout(0, groups=(3, 2)), {0: 2}, [np.array([0.5, 0.5])])
        >>> scores.coordinates(Encoded(np.zeros((3, 0)), np.array([[0, 1], [1, 1], [2, 0]]))).round(decimals=3).T
        tensor([[-0.7980,  0.7980,  0.0000]], dtype=torch.float64)
    """

    def __init__(self, layout: Layout, ordered: Mapping[int, int], shares: Sequence[np.ndarray]) -> None:
        self.layout, self.size = layout, len(ordered)
        self._groups = np.array(list(ordered), np.int64)
        width = max(layout.groups)
        self._table = np.zeros((self.size, width))
        variances = []
        for row, column_shares in zip(self._table, shares, strict=True):
            scores = _scores(column_shares)
            row[: len(column_shares)] = scores
            variances.append(float(column_shares @ scores**2))
        self.variances = torch.tensor(variances, dtype=torch.float64)

    def coordinates(self, records: Encoded) -> Tensor:
        """Return the scores (B, size) of records, in float64."""
        places = records.codes[:, self._groups].astype(np.int64) + self._table.shape[1] * np.arange(self.size)
        return torch.from_numpy(self._table.reshape(-1).take(places))


def _radius(scores: ColumnScores) -> float:
    """Return the length to which records are shortened, from public numbers."""
    return _REACH * math.sqrt(max(float(scores.variances.sum()), 1e-6))


def _scores(shares: np.ndarray) -> np.ndarray:
    """Return the mean of a standard normal between the quantiles of each choice."""
    ends = torch.special.ndtri(torch.from_numpy(np.append(0.0, shares.cumsum()).clip(0.0, 1.0))).numpy()
    ends[-1] = math.inf
    density = np.exp(-0.5 * np.square(ends)) / math.sqrt(2.0 * math.pi)
    there = shares > 1e-12
    means = np.where(there, -np.diff(density) / np.where(there, shares, 1.0), ends[:-1])
    return means.clip(-_FARTHEST, _FARTHEST)


@dataclass(frozen=True)
class CopulaRecipe(Recipe):
    """Two accesses: counts of each column, and second moments of all ordered columns; and a Gaussian copula of low rank.

    Very many pairs of columns cannot be counted: each of P tables has the root of P times the noise of one. Second moments
    of scores of d columns have noise of about d in each number, and a direction of theirs that columns share grows as d.

    Args:
        schema: the schema of a table of choices; public.
        n: the declared number of records.

    Raises:
        ValueError: for a schema without an ordered column.
    """

    schema: Schema
    n: int
    k: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self._ordered:
            raise ValueError("schema: expected columns of numbers, or of two categories")

    @functools.cached_property
    def _ordered(self) -> dict[int, int]:
        return ordered_choices(self.schema)

    @functools.cached_property
    def _margins(self) -> Marginals:
        return Marginals(self.schema.layout, [(group,) for group in range(len(self.schema.layout.groups))])

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """The counts, and the moments."""
        return (
            Workload(MARGINS, {"singles": 1.0}, self.n, _MARGINS_SHARE),
            Workload(SCORES, {"moments": 1.0}, self.n, 1.0 - _MARGINS_SHARE, units=UNITS),
        )

    @property
    def fit_bytes(self) -> int:
        """About how many bytes a fit takes: a few matrices of all ordered columns with all."""
        return _BYTES_ANYWAY + 64 * len(self._ordered) ** 2

    def statistics(self, stage: str, state: State | None = None) -> Mapping[str, Statistic]:
        """Return the statistics of a stage.

        One record changes one count of each column by 1; and the moments by a matrix of the Frobenius norm of the squared
        radius, to which its scores are shortened.
        """
        if stage == MARGINS:
            return {"singles": self._margins}
        scores = self._scores_of(self._shares(state))
        moments = SecondMoments(scores, _radius(scores))
        moments.at_once = _AT_ONCE
        return {"moments": moments}

    def _shares(self, state: State) -> list[np.ndarray]:
        """Return the shares of the choices of each group."""
        measured = state[MARGINS][0]
        total = total_of({"singles": self._margins}, measured)
        return [nearest_shares(counts.numpy() / total) for counts in self._margins.tables_of(measured["singles"].sums)]

    def _scores_of(self, shares: Sequence[np.ndarray]) -> ColumnScores:
        parts = [shares[group][:count] for group, count in self._ordered.items()]
        inside = [part / part.sum() if part.sum() > 0.0 else np.full(len(part), 1.0 / len(part)) for part in parts]
        scores = ColumnScores(self.schema.layout, self._ordered, inside)
        # Records without an ordered choice tell nothing.
        scores.variances *= torch.tensor(
            [part.sum() / max(shares[group].sum(), 1e-9) for group, part in zip(self._ordered, parts, strict=True)]
        )
        return scores

    def warnings(self, plan: Plan) -> list[str]:
        """Return what noise hides: directions, whole columns; and which columns are drawn by themselves."""
        layout, names = self.schema.layout, list(self.schema.choices)
        warned, count = [], len(self._ordered)
        # Scores have a variance of 1 at most.
        deviation = plan.stage(SCORES).access.multipliers["moments"] * plan.max_rows * _REACH**2 * count
        share = _BEYOND * 2.0 * deviation / math.sqrt(2.0) * math.sqrt(count) / self.n / count
        size = f"with {self.n:,} records, {count:,} columns and epsilon {plan.epsilon:.3g}"
        if share >= 1.0:
            warned.append(
                f"correlations cannot be found {size}: noise hides even that all columns follow from one; take some "
                f"{math.ceil(share / _LARGE):,} times the records or epsilon, or leave out columns of little use"
            )
        elif share > _LARGE:
            warned.append(
                f"correlations cannot be found {size} but where something that columns share makes up {share:.0%} of all "
                f"their variation or more; take some {math.ceil(share / _LARGE):,} times the records or epsilon, or leave "
                "out columns of little use"
            )
        noise = plan.stage(MARGINS).access.multipliers["singles"] * plan.max_rows * self._margins.bound
        lost = lost_columns(self.schema, dict.fromkeys(range(len(layout.groups)), noise), self.n)
        warned += [] if lost is None else [lost]
        if alone := [names[group] for group in range(len(layout.groups)) if group not in self._ordered]:
            warned.append(
                f"{say_count(len(alone), 'column')} of three categories or more ({listed(alone)}) would be drawn "
                f"independently of all others, since pairs of {len(layout.groups):,} columns cannot be counted; leave "
                "columns of little use out, until they can"
            )
        return warned

    def _mixture(self, state: State) -> Mixture:
        shares = self._shares(state)
        total = total_of({"singles": self._margins}, state[MARGINS][0])
        measured = state[SCORES][0]["moments"]
        moments = 0.5 * (measured.sums + measured.sums.T) / total
        # A number beside the diagonal is the mean of two draws, and records are a sample.
        noise = math.hypot(measured.deviation / math.sqrt(2.0), math.sqrt(total)) / total
        scores = self._scores_of(shares)
        loadings = _loadings(moments, noise, scores.variances)
        loadings = _lengthened(loadings, scores.variances, _radius(scores))
        network = StackedCopula(self.schema, 1, rank=loadings.shape[1])
        network.loadings.copy_(_within_one(loadings))
        network.shares.copy_(torch.from_numpy(np.concatenate(shares)))
        return Mixture(network, torch.ones(1))


def _loadings(moments: Tensor, noise: float, variances: Tensor) -> Tensor:
    """Return how columns follow from normal numbers that they share, (columns, rank), from noisy moments of their scores.

    Only what is beside the diagonal tells of that: what is a column's own is taken off the diagonal, as it is estimated
    from the directions before. Scores of a column vary by less than its normal number, which makes moments smaller.
    """
    shared = torch.zeros_like(moments.diagonal())
    for _ in range(_ROUNDS):
        off = moments - torch.diag(moments.diagonal() - shared)
        variances_found, directions = beyond_noise(off, noise, _BEYOND)
        parts = directions * variances_found.sqrt()
        shared = parts.square().sum(dim=1)
    if not len(variances_found):
        return torch.zeros(len(moments), 1, dtype=moments.dtype)
    return parts / variances.clamp(min=1e-3)[:, None]


def _lengthened(loadings: Tensor, variances: Tensor, radius: float) -> Tensor:
    """Return loadings (columns, rank) whose records, once they are shortened to a radius, have these.

    Made-up records tell how much shorter each direction becomes; those of the longest records, which columns share, most.
    """
    directions, lengths, turned = torch.linalg.svd(loadings, full_matrices=False)
    generator, longer = torch.Generator().manual_seed(0), lengths
    z, own_numbers, rest = (
        torch.randn(_MADE_UP, size, generator=generator, dtype=torch.float64)
        for size in (len(lengths), *(len(variances),) * 2)
    )
    for _ in range(_ROUNDS):
        inside = _within_one(directions * longer)
        alone = (1.0 - inside.square().sum(dim=1)).clamp(min=0.0).sqrt()
        x = z @ inside.T + alone * own_numbers
        scores = variances * x + (variances * (1.0 - variances)).clamp(min=0.0).sqrt() * rest
        kept = (radius / scores.norm(dim=1).clamp(min=1e-9)).clamp(max=1.0)
        seen = scores @ directions
        ratio = (seen.square().mean(dim=0) / (kept[:, None] * seen).square().mean(dim=0).clamp(min=1e-9)).clamp(1.0, 2.0)
        longer = lengths * ratio.sqrt()
    return (directions * longer) @ turned


def _within_one(loadings: Tensor) -> Tensor:
    """Return loadings (columns, rank) no row of which is longer than what columns share at most."""
    longest = loadings.square().sum(dim=1, keepdim=True).sqrt()
    return loadings * (math.sqrt(_MOST_SHARED) / longest.clamp(min=1e-12)).clamp(max=1.0)


def takes_copula(schema: Schema, n: int, strength: float) -> bool:
    """Return whether a table has so many columns of numbers that their pairs cannot be counted.

    There are at least a hundred, and noise would hide even that one column determines another.

    Args:
        n: the declared number of records.
        strength: the same in units of the noise that the budget buys.

    Example:
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> columns = ", ".join(f"a{i}: {{type: integer, low: 0, high: 9, bins: 10}}" for i in range(200))
        >>> schema = parse_schema(f"columns: {{{columns}}}")
        >>> takes_copula(schema, 2_000, 500.0), takes_copula(schema, 500_000, 250_000.0)
        (True, False)
    """
    ordered, groups = ordered_choices(schema), len(schema.layout.groups)
    if len(ordered) < _FEWEST:
        return False
    typical = round(statistics.median(ordered.values()))
    deviation = math.sqrt(groups * (groups - 1) / 2 / _PAIRS_SHARE) * n / strength
    return records_to_show((typical, typical), deviation, n) > n
