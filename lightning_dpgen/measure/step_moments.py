"""Moments of steps of histories: a few numbers that tell what a column of the next row follows from, with little noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.measure.pair_estimates import Contrasts, contrasts
from lightning_dpgen.measure.statistics import Statistic
from lightning_dpgen.measure.workload import Measured
from lightning_dpgen.models.histories import PersonLevel
from lightning_dpgen.models.history_steps import FEW, Steps, column_of, count_edges

# Bits of a person's moments, and the steps of a contrast between 0 and 1.
_BITS, _STEPS = 31, 64
_AT_ONCE = 1 << 14
# Shares that are less count as so much.
_LEAST = 1e-6
# The variance that weights of contrasts have beforehand; the share of the step before that is kept, and the longest step.
_PRIOR, _KEPT, _LONGEST = 0.1, 0.6, 0.6


class StepContrasts:
    """Contrasts of the targets of a table's steps, and of what they follow from by these alone.

    Args:
        steps: of a table of rows.
        level: persons as a whole.
        shares: for each group of `level` the shares of its choices; public.

    Attributes:
        features: (choices, contrasts) of each feature, in whole numbers of a unit of 1 / 64.
        targets: the same of each target.
    """

    def __init__(self, steps: Steps, level: PersonLevel, shares: Sequence[np.ndarray]) -> None:
        self.steps, head = steps, level.heads[steps.number]
        table = steps.table
        self._first_row = first_row = [own[:-1] for own in shares[head.stop - table.per_row : head.stop]]
        known = {f"attribute {i}": own for i, own in enumerate(shares[: level.of.attributes])}
        known |= {f"column {i}": own for i, own in enumerate(first_row)}
        for i, other in enumerate(level.of.tables):
            coarse = np.searchsorted(count_edges(other.max_rows, coarse=True), level.edges[i], side="right") - 1
            known[f"rows of {other.name}"] = np.bincount(coarse, shares[level.heads[i].start])

        def table_of(name: str, size: int, ordered: int) -> np.ndarray:
            own = known.get(name, np.full(size, 1.0 / size))
            own = own / own.sum() if own.sum() > 0 else np.full(size, 1.0 / size)
            return _whole(contrasts(own, ordered, FEW), size)

        self.features = {one.name: table_of(one.name, one.size, one.ordered) for one in steps.by_contrasts}
        self.targets = {
            name: table_of(name, size, ordered) for name, size, ordered in steps.targets if name not in steps.wide
        }

    def logarithms_of_first(self, target: str) -> Tensor:
        """Return the logarithms (choices,) of the shares of a column in first rows, up to a constant."""
        return torch.from_numpy(np.log(np.maximum(self._first_row[column_of(target)], _LEAST)))

    @property
    def shape(self) -> tuple[int, int]:
        """The number of contrasts of all features, and of all targets."""
        return tuple(sum(own.shape[1] for own in tables.values()) for tables in (self.features, self.targets))

    def sums(self, who: np.ndarray, codes: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the sums over persons of products of contrasts, of `shape`, in whole numbers.

        A person's products are divided by the root of the number of their steps, and cut to a length of 2^31.

        Args:
            who: (S,) the person of each step.
            codes: of features and targets, each (S,).
        """
        n = int(who.max(initial=-1)) + 1
        x = np.zeros((n, self.shape[0]))
        x[who] = np.concatenate([own[codes[name]] for name, own in self.features.items()], axis=1)
        y = np.concatenate([own[codes[f"now: {name}"]] for name, own in self.targets.items()], axis=1)
        sums = np.stack([np.bincount(who, column, minlength=n) for column in (*y.T, np.zeros(len(who)))], axis=1)[:, :-1]
        # A length that is rounded up, by more than floats lose of it.
        squares = np.ceil((x**2).sum(axis=1) * (sums**2).sum(axis=1) * (1.0 + 1e-9))
        usual = float(_STEPS) ** 4 * math.prod(self.shape) * np.bincount(who, minlength=n)
        divisor = np.maximum(np.maximum(squares, usual), 1.0)
        most = np.where(divisor < 2.0 ** (2 * _BITS), (1 << 2 * _BITS) // np.minimum(divisor, 2.0**62).astype(np.int64), 0)
        # Rounding may lead to the next whole number.
        weights = np.sqrt(most).astype(np.int64)
        weights -= weights**2 > most
        # Below 2^53, so exact in float64.
        return ((weights[:, None] * x).T @ sums).astype(np.int64)

    def block(self, feature: str, target: str) -> tuple[slice, slice]:
        """Return the place of a feature and a target in `sums`."""
        return _span(self.features, feature), _span(self.targets, target)


def _span(tables: Mapping[str, np.ndarray], name: str) -> slice:
    names = list(tables)
    start = sum(tables[other].shape[1] for other in names[: names.index(name)])
    return slice(start, start + tables[name].shape[1])


def _whole(own: Contrasts | None, size: int) -> np.ndarray:
    if own is None:
        return np.zeros((size, 0))
    return np.rint(own.values[:, : own.tested] * own.measured * _STEPS)


class StepMoments(Statistic):
    """Products of contrasts of features and targets, over the steps of persons in one table (`StepContrasts`).

    A person's products have a length of 1 at most, however long the history.
    """

    bound, unit, at_once = 1.0, 2.0**-_BITS, _AT_ONCE

    def __init__(self, contrasts: StepContrasts) -> None:
        self._contrasts, self.layout, self.shape = contrasts, contrasts.steps.schema.layout, contrasts.shape

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        names = {*self._contrasts.features, *(f"now: {name}" for name in self._contrasts.targets)}
        who, codes = self._contrasts.steps.of_histories(records, names)
        # A record of the layout may say of a row that it is none, and counts for nothing there.
        there = np.ones(len(who), bool)
        for name, table in self._contrasts.targets.items():
            there &= codes[f"now: {name}"] < len(table)
        if not there.all():
            who, codes = who[there], {name: own[there] for name, own in codes.items()}
        return torch.from_numpy(self._contrasts.sums(who, codes))


class ByContrasts:
    """Tables of all targets by features that tell by contrasts alone, while they are fitted: ``F w T^T`` by contrasts.

    Args:
        contrasts: of a table of rows.
        measured: its noisy moments.
    """

    def __init__(self, contrasts: StepContrasts, measured: Measured) -> None:
        self._contrasts, self._noisy, self._variance = contrasts, measured.sums.double(), measured.deviation**2
        self._weights, self._moved = torch.zeros_like(self._noisy), torch.zeros_like(self._noisy)

    def table(self, target: str, feature: str) -> Tensor:
        """Return the table (choices of the feature, choices of the target)."""
        own = self._contrasts
        left, right = (torch.from_numpy(part / _STEPS) for part in (own.features[feature], own.targets[target]))
        return left @ self._weights[own.block(feature, target)] @ right.T

    def step(self, who: np.ndarray, codes: Mapping[str, np.ndarray], scale: float, pace: float) -> None:
        """Move towards weights that make the noisy moments, given the steps of made-up histories.

        Args:
            who, codes: as for `StepContrasts.sums`.
            scale: persons for each that is made up.
        """
        made = torch.from_numpy(self._contrasts.sums(who, codes) * (scale * 2.0**-_BITS))
        # A product of two contrasts has a mean square of 1, and each person's are divided by the root of their number.
        lengths = np.bincount(who)
        weight = scale * float(np.sqrt(lengths).sum()) / math.sqrt(max(math.prod(self._contrasts.shape), 1))
        ridge = (1.0 + self._variance / max(weight, 1e-9)) / _PRIOR
        gradient = self._noisy - made - ridge * self._weights
        self._moved = _KEPT * self._moved + (1.0 - _KEPT) * gradient / (weight + ridge)
        self._weights = self._weights + 0.5 * (pace * self._moved).clamp(-_LONGEST, _LONGEST)
