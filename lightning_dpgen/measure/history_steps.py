"""Steps of histories: noisy tables of what the next row follows from, and a network whose rows make the same ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.measure.pair_estimates import NoisyPair
from lightning_dpgen.measure.pair_tables import nearest_shares
from lightning_dpgen.measure.statistics import Statistic
from lightning_dpgen.measure.step_moments import ByContrasts, StepContrasts, StepMoments
from lightning_dpgen.measure.workload import Measured
from lightning_dpgen.models.histories import StackedHistories
from lightning_dpgen.models.history_masks import barred_cells
from lightning_dpgen.models.history_steps import Feature, Steps

# Bits of the weight of a person's steps.
_BITS = 20
# Histories that are taken, and made up, at a time; and the steps of a table beyond which fewer are made up.
_AT_ONCE, _MADE_UP, _STEPS_MADE_UP = 1 << 14, 6000, 50_000
# The tables up to which there are all rounds.
_TABLES = 300
# Rounds of the fit; the pace of each, which falls to a half and a fifth; the share of the step before that is kept.
_ROUNDS, _PACE, _KEPT, _LONGEST = 60, 0.5, 0.6, 0.6
# Cells whose deviation is so many times what they hold on average have slow waves alone.
_SMOOTH = 1.0
# The weight of the table of a column by itself in the row before, over that of other tables of its size; found on the
# training halves of two sets.
_OWN = 3.5
# Cells beyond which a table gets no more weight, and the weight of moments over that of all tables of their table of rows.
_LARGE, _OF_MOMENTS = 300, 0.08
# The evidence from which on a wide column follows from another one of the row; and how much of its margin is mixed in.
_TIED, _BLUR = 6.0, 0.05
# Cells of all persons for each step, up to which all are counted at once.
_DENSE = 8
# The least that a choice of a target counts, in steps.
_LEAST = 0.25


class StepTable(Statistic):
    """Counts of a target by a feature, over the steps of persons in one table, those of each scaled to a length of 1.

    A person's counts c are taken times the largest multiple w of 2^-20 for which ``w |c|`` is 1 at most. So one person
    moves the table by 1 in L2 at most, however long the history, and a history whose steps differ counts for more than one
    whose steps are alike.

    Args:
        steps: of a table of rows.
        target: the name of the target.
        feature: one of its features.
        size: the number of the target's choices.
    """

    bound, unit, at_once = 1.0, 2.0**-_BITS, _AT_ONCE

    def __init__(self, steps: Steps, target: str, feature: Feature, size: int) -> None:
        self.layout, self._steps = steps.schema.layout, steps
        self._target, self._feature, self.shape = target, feature, (feature.size, size)

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        who, codes = self._steps.of_histories(records, self._steps.names_of(self._target, self._feature))
        cells = self._steps.cells_of(codes, self._target, self._feature)
        return torch.from_numpy(scaled_sums(who, *cells, self.shape))


def scaled_sums(who: np.ndarray, feature: np.ndarray, target: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Return the sums of a table over persons, of counts that are scaled to a length of 2^20 or less, as whole numbers.

    Args:
        who: (S,) the person of each step.
        feature: (S,) its choice of the feature; a step with none of them, such as -1, does not count.
        target: (S,) its choice of the target, likewise.
        shape: of the table.
    """
    size = math.prod(shape)
    # A cell outside of the table would be one of the next person, and the bound that of several histories.
    there = (feature >= 0) & (feature < shape[0]) & (target >= 0) & (target < shape[1])
    keys = who.astype(np.int64) * size + feature * shape[1] + target
    keys = keys if there.all() else keys[there]
    most = (int(who.max(initial=-1)) + 1) * size
    if most <= _DENSE * len(keys):
        counts = np.bincount(keys, minlength=most)
        pairs = np.flatnonzero(counts)
        counts = counts[pairs]
    else:
        pairs, counts = np.unique(keys, return_counts=True)
    persons = pairs // size
    squares = np.bincount(persons, counts**2).astype(np.int64)
    squared = (1 << 2 * _BITS) // np.maximum(squares, 1)
    # Rounding may lead to the next whole number.
    weights = np.sqrt(squared).astype(np.int64)
    weights -= weights**2 > squared
    # Below 2^53, so exact in float64.
    return np.bincount(pairs % size, weights[persons] * counts, minlength=size).astype(np.int64).reshape(shape)


def steps_of(schema: Any) -> list[Steps]:
    """Return the steps of each table of rows."""
    return [Steps(schema, number) for number in range(len(schema.tables))]


def weights_of_tables(schema: Any) -> dict[str, float]:
    """Return the weights of all tables and moments of steps: a large one gets more, by the power 2/3 of its cells.

    A column by itself in the row before gets more, since histories are told by it first. The share of a table of
    rows weighs all of its own.
    """
    weights = {}
    for steps in steps_of(schema):
        of_table = {}
        for target, feature, size in steps.tables:
            own = _OWN if feature.name in (f"before: {target}", f"memory: {target}") else 1.0
            of_table[steps.name_of(target, feature)] = own * min(feature.size * size, _LARGE) ** (2 / 3)
        if steps.by_contrasts:
            of_table[steps.name_of_moments] = _OF_MOMENTS * sum(of_table.values())
        weights |= {name: steps.table.share * own for name, own in of_table.items()}
    return weights


def units_of_tables(schema: Any) -> dict[str, float]:
    """Return the bound of each statistic of steps, in its units, by their names."""
    moments = {steps.name_of_moments for steps in steps_of(schema)}
    return {name: 1.0 / (StepMoments if name in moments else StepTable).unit for name in weights_of_tables(schema)}


def step_statistics(contrasts: Sequence[StepContrasts]) -> dict[str, Statistic]:
    """Return the statistics of steps, by their names.

    Args:
        contrasts: of each table of rows.
    """
    statistics: dict[str, Statistic] = {}
    for own in contrasts:
        steps = own.steps
        statistics |= {
            steps.name_of(target, feature): StepTable(steps, target, feature, size)
            for target, feature, size in steps.tables
        }
        statistics |= {steps.name_of_moments: StepMoments(own)} if steps.by_contrasts else {}
    return statistics


def _tie(table: Measured, margin: Tensor) -> Tensor:
    """Return the logarithms of the factors by which a column of a row makes choices of a wide one likelier.

    Args:
        table: the noisy counts of both.
        margin: (choices of the wide one,) its shares.

    Returns:
        (choices of the column, choices of the wide one), 0 where noise hides that they have to do with each other.
    """
    counts, deviation = table.sums.double().numpy(), max(table.deviation, 1e-6)
    total = max(float(counts.sum()), 1.0)
    rows, columns = nearest_shares(counts.sum(axis=1) / total), nearest_shares(margin.double().numpy())
    pair = NoisyPair(counts, deviation, rows, columns, total)
    if pair.evidence < _TIED:
        return torch.zeros(counts.shape, dtype=torch.float64)
    shares = pair.estimate(np.random.default_rng(0)).shares
    given = shares / np.maximum(shares.sum(axis=1, keepdims=True), 1e-12)
    ratio = (given + _BLUR * columns) / (1.0 + _BLUR) / np.maximum(columns, 1e-12)
    return torch.from_numpy(np.where(columns > 1e-12, np.log(ratio.clip(1e-3, 1e3)), 0.0))


class _Target:
    """The tables of one target while they are fitted."""

    def __init__(
        self,
        steps: Steps,
        j: int,
        measured: Mapping[str, Measured],
        contrasts: ByContrasts | None,
        margin: Tensor | None,
    ) -> None:
        name, size, ordered = steps.targets[j]
        self.name, self._all = name, steps.features[name]
        self.features, self.ties = steps.fitted(name), {}
        if margin is not None:
            of_row = (own for own in self._all if own not in self.features)
            self.ties = {own.name: _tie(measured[steps.name_of(name, own)], margin) for own in of_row}
        self.contrasts = contrasts
        found = [measured[steps.name_of(name, feature)] for feature in self.features]
        rules = steps.schema.rules[steps.number]
        self.noisy = []
        for feature, own in zip(self.features, found, strict=True):
            shape = steps.shape_of(feature, size)
            # All that is there is noise.
            none = torch.from_numpy(barred_cells(rules, steps.table, name, feature.name, shape))
            self.noisy.append(own.sums.double().masked_fill(none, 0.0))
        self.deviations = [own.deviation for own in found]
        self.totals = [max(float(x.sum()), 1.0) for x in self.noisy]
        # The table that tells the shares of the choices with the least noise. Each weighs histories in its own way.
        noise = [
            d * math.sqrt(len(x)) / total for d, x, total in zip(self.deviations, self.noisy, self.totals, strict=True)
        ]
        self.best = min((i for i, feature in enumerate(self.features) if not feature.of_memory), key=noise.__getitem__)
        total = self.totals[self.best]
        shares = nearest_shares(self.noisy[self.best].sum(dim=0).numpy() / total)
        base = (torch.from_numpy(shares) * total).clamp(min=_LEAST)
        self.base = base / base.sum()
        self.level = self.base.log()
        self.tables = [torch.zeros_like(x) for x in self.noisy]
        self._moved = [torch.zeros_like(x) for x in self.noisy]
        self._left, self._right, self._ridge = [], [], []
        for feature, x, deviation, total in zip(self.features, self.noisy, self.deviations, self.totals, strict=True):
            mean = total / x.numel()
            part = min(1.0, mean / max(_SMOOTH * deviation, 1e-9))
            left, right = slow_waves(feature.size, feature.ordered, part), slow_waves(size, ordered, part)
            kept = math.prod(1.0 if q is None else float(q.trace()) / len(q) for q in (left, right))
            self._left.append(left)
            self._right.append(right)
            self._ridge.append((1.0 + deviation**2 / max(mean, 0.5)) * kept)

    def written(self) -> list[Tensor]:
        """Return the tables of all features."""
        by_name = {own.name: table for own, table in zip(self.features, self.tables, strict=True)} | self.ties
        return [
            by_name[own.name] if own.name in by_name else self.contrasts.table(self.name, own.name) for own in self._all
        ]

    def step(self, expected: list[Tensor], pace: float) -> None:
        """Move the tables towards those that make the noisy ones, given what they make now."""
        for i, made in enumerate(expected):
            made = made * (self.totals[i] / made.sum().clamp(min=1e-9))
            rows = made.sum(dim=1, keepdim=True)
            gradient = self.noisy[i] - made - self._ridge[i] * self.tables[i]
            curvature = made * (1.0 - made / rows.clamp(min=1e-9)) + self._ridge[i]
            self._moved[i] = _KEPT * self._moved[i] + (1.0 - _KEPT) * gradient / curvature
            moved = (pace * self._moved[i]).clamp(-_LONGEST, _LONGEST) / math.sqrt(len(self.features))
            table = self.tables[i] + moved
            table = table if self._left[i] is None else self._left[i] @ table
            self.tables[i] = table if self._right[i] is None else table @ self._right[i]
        made = expected[self.best].sum(dim=0)
        made = (made / made.sum().clamp(min=1e-9)).clamp(min=_LEAST / self.totals[self.best])
        self.level += 0.5 * pace * (self.base / made).log().clamp(-0.5, 0.5)


def slow_waves(size: int, ordered: int, part: float) -> Tensor | None:
    """Return the projection (size, size) on the slow waves of the choices that are in an order; None for all of them.

    Choices beyond them, such as a missing one, stay by themselves.

    Args:
        part: the share of the waves that is kept; three at least.
    """
    waves = min(ordered, max(3, math.ceil(part * ordered)))
    if waves == ordered:
        return None
    places = (torch.arange(ordered, dtype=torch.float64)[:, None] + 0.5) * torch.arange(waves, dtype=torch.float64)
    basis = torch.nn.functional.normalize((math.pi * places / ordered).cos(), dim=0)
    projection = torch.eye(size, dtype=torch.float64)
    projection[:ordered, :ordered] = basis @ basis.T
    return projection


def fit_steps(
    network: StackedHistories,
    weights: Tensor,
    measured: Mapping[str, Measured],
    contrasts: Sequence[StepContrasts],
    total: float,
    seed: int,
) -> None:
    """Fit the tables of steps to noisy ones, by histories that the network makes up. Post-processing.

    In each round histories are drawn, and the tables of each target move by the difference between the noisy counts, and
    moments, and those that are expected in these histories, over the curvature of a log-linear model.

    Args:
        network: whose persons are fitted; its tables are written.
        weights: (k,) of its components.
        measured: the noisy tables and moments, by the names of `step_statistics`.
        contrasts: of each table of rows.
        total: the number of persons, as it is estimated.
        seed: of the histories; public.
    """
    generator = torch.Generator().manual_seed(seed)
    for number, steps in enumerate(network.steps):
        if steps.tables:
            moments = measured.get(steps.name_of_moments)
            by_contrasts = None if moments is None else ByContrasts(contrasts[number], moments)
            for j, (name, _, _) in enumerate(steps.targets):
                if name in steps.wide:
                    network.first_of(number, j).copy_(contrasts[number].logarithms_of_first(name))
            _fit_table(network, number, weights, measured, by_contrasts, total, generator)


def _fit_table(
    network: StackedHistories,
    number: int,
    weights: Tensor,
    measured: Mapping[str, Measured],
    contrasts: ByContrasts | None,
    total: float,
    generator: torch.Generator,
) -> None:
    """Fit the steps of one table of rows."""
    steps = network.steps[number]
    targets = []
    for j, (name, _, _) in enumerate(steps.targets):
        margin = network.first_of(number, j).exp() if name in steps.wide else None
        targets.append(_Target(steps, j, measured, contrasts, margin))
    # Where there are very many tables, noise in each is large, and a rough fit is as near.
    rounds = min(_ROUNDS, max(_ROUNDS // 3, _ROUNDS * _TABLES // len(steps.tables)))
    for turn in range(rounds):
        _write(network, number, targets)
        component = torch.multinomial(weights.double(), _MADE_UP, replacement=True, generator=generator)
        who, codes, part = _drawn(network, number, component, generator)
        pace = _PACE * (1.0 if turn < rounds // 2 else 0.5 if turn < 0.8 * rounds else 0.2)
        for target in targets:
            target.step(_expected(steps, target.name, who, codes), pace)
        if contrasts is not None and len(who):
            contrasts.step(who, codes, total / (part * _MADE_UP), pace)
    _write(network, number, targets)


def _write(network: StackedHistories, number: int, targets: list[_Target]) -> None:
    for j, target in enumerate(targets):
        network.level_of(number, j).copy_(target.level)
        for own, table in zip(network.tables_of(number, j), target.written(), strict=True):
            own.copy_(table)


def _drawn(
    network: StackedHistories, number: int, component: Tensor, generator: torch.Generator
) -> tuple[np.ndarray, dict[str, np.ndarray], float]:
    """Return the steps of histories that are drawn: the person (S,) and codes; and what part of persons they are of."""
    steps, (attributes, heads) = network.steps[number], network.draw_persons(component, generator)
    later = heads[number][:, 0] - 1
    with_steps = np.flatnonzero(later > 0)
    # Fewer of long histories are enough.
    some = with_steps[: int((later[with_steps].cumsum() < _STEPS_MADE_UP).sum()) + 1]
    attributes, heads = attributes[some], [head[some] for head in heads]
    rows = list(network.rows_after(number, attributes, heads, generator))
    if not rows:
        return np.zeros(0, np.int64), {}, 1.0
    who = np.concatenate([own.who for own in rows])
    fixed = steps.of_persons(attributes, [head[:, 0] for head in heads])
    codes = {name: np.concatenate([own.codes[name] for own in rows]) for name in rows[0].codes}
    return who, codes | {name: own[who] for name, own in fixed.items()}, len(some) / len(with_steps)


def _expected(steps: Steps, name: str, who: np.ndarray, codes: Mapping[str, np.ndarray]) -> list[Tensor]:
    """Return the tables of a target that steps make."""
    size = next(size for target, size, _ in steps.targets if target == name)
    found = []
    for feature in steps.fitted(name):
        shape = steps.shape_of(feature, size)
        cells = steps.cells_of(codes, name, feature) if len(who) else (who, who)
        found.append(torch.from_numpy(scaled_sums(who, *cells, shape) / 2.0**_BITS))
    return found
