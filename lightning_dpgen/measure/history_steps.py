"""Steps of histories: noisy tables of what the next row follows from, and a network whose rows make the same ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.measure.statistics import Statistic
from lightning_dpgen.measure.workload import Measured
from lightning_dpgen.models.histories import StackedHistories
from lightning_dpgen.models.history_steps import Feature, Steps

# Bits of the weight of a person's steps.
_BITS = 20
# Histories that are taken, and made up, at a time; and the steps of a table beyond which fewer are made up.
_AT_ONCE, _MADE_UP, _STEPS_MADE_UP = 1 << 14, 6000, 50_000
# Rounds of the fit; the pace of each, which falls to a half and a fifth; the share of the step before that is kept.
_ROUNDS, _PACE, _KEPT, _LONGEST = 60, 0.5, 0.6, 0.6
# Cells whose deviation is so many times what they hold on average have slow waves alone.
_SMOOTH = 1.0
# The weight of the table of a column by itself in the row before, over that of other tables of its size; found on the
# training halves of two sets.
_OWN = 3.5
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
        who, codes = self._steps.of_histories(records, (self._feature.name, f"now: {self._target}"))
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
    pairs, counts = np.unique(keys if there.all() else keys[there], return_counts=True)
    persons = pairs // size
    squares = np.bincount(persons, counts**2).astype(np.int64)
    most = (1 << 2 * _BITS) // np.maximum(squares, 1)
    # Rounding may lead to the next whole number.
    weights = np.sqrt(most).astype(np.int64)
    weights -= weights**2 > most
    # Below 2^53, so exact in float64.
    return np.bincount(pairs % size, weights[persons] * counts, minlength=size).astype(np.int64).reshape(shape)


def steps_of(schema: Any) -> list[Steps]:
    """Return the steps of each table of rows."""
    return [Steps(schema, number) for number in range(len(schema.tables))]


def weights_of_tables(schema: Any) -> dict[str, float]:
    """Return the weights of all tables of steps: a large one gets more, by the power 2/3 of its cells.

    A column by itself in the row before gets more, since histories are told by it first. The share of a table of
    rows weighs all of its own.
    """
    weights = {}
    for steps in steps_of(schema):
        for target, feature, size in steps.tables:
            own = _OWN if feature.name in (f"before: {target}", f"memory: {target}") else 1.0
            weights[steps.name_of(target, feature)] = steps.table.share * own * (feature.size * size) ** (2 / 3)
    return weights


def step_tables(schema: Any) -> dict[str, Statistic]:
    """Return the statistics of all tables of steps, by their names."""
    return {
        steps.name_of(target, feature): StepTable(steps, target, feature, size)
        for steps in steps_of(schema)
        for target, feature, size in steps.tables
    }


class _Target:
    """The tables of one target while they are fitted."""

    def __init__(self, steps: Steps, j: int, measured: Mapping[str, Measured]) -> None:
        name, size, ordered = steps.targets[j]
        self.name, self.features = name, steps.features[name]
        found = [measured[steps.name_of(name, feature)] for feature in self.features]
        self.noisy = [own.sums.double() for own in found]
        self.deviations = [own.deviation for own in found]
        self.totals = [max(float(x.sum()), 1.0) for x in self.noisy]
        # The table that tells the shares of the choices with the least noise. Each weighs histories in its own way.
        noise = [
            d * math.sqrt(len(x)) / total for d, x, total in zip(self.deviations, self.noisy, self.totals, strict=True)
        ]
        self.best = min((i for i, feature in enumerate(self.features) if not feature.of_memory), key=noise.__getitem__)
        base = self.noisy[self.best].sum(dim=0).clamp(min=_LEAST)
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


def fit_steps(network: StackedHistories, weights: Tensor, measured: Mapping[str, Measured], seed: int) -> None:
    """Fit the tables of steps to noisy ones, by histories that the network makes up. Post-processing.

    In each round histories are drawn, and the tables of each target move by the difference between the noisy counts and
    those that are expected in these histories, over the curvature of a log-linear model.

    Args:
        network: whose persons are fitted; its tables are written.
        weights: (k,) of its components.
        measured: the noisy tables, by `Steps.name_of`.
        seed: of the histories; public.
    """
    generator = torch.Generator().manual_seed(seed)
    for number, steps in enumerate(network.steps):
        if steps.tables:
            _fit_table(network, number, weights, measured, generator)


def _fit_table(
    network: StackedHistories, number: int, weights: Tensor, measured: Mapping[str, Measured], generator: torch.Generator
) -> None:
    """Fit the steps of one table of rows."""
    steps = network.steps[number]
    targets = [_Target(steps, j, measured) for j in range(len(steps.targets))]
    for turn in range(_ROUNDS):
        _write(network, number, targets)
        component = torch.multinomial(weights.double(), _MADE_UP, replacement=True, generator=generator)
        expected = _expected(network, number, component, generator)
        pace = _PACE * (1.0 if turn < _ROUNDS // 2 else 0.5 if turn < 0.8 * _ROUNDS else 0.2)
        for target in targets:
            target.step(expected[target.name], pace)
    _write(network, number, targets)


def _write(network: StackedHistories, number: int, targets: list[_Target]) -> None:
    for j, target in enumerate(targets):
        network.level_of(number, j).copy_(target.level)
        for own, table in zip(network.tables_of(number, j), target.tables, strict=True):
            own.copy_(table)


def _expected(
    network: StackedHistories, number: int, component: Tensor, generator: torch.Generator
) -> dict[str, list[Tensor]]:
    """Return the expected tables of histories that are drawn, by target and feature; of long ones fewer do."""
    steps, (attributes, heads) = network.steps[number], network.draw_persons(component, generator)
    later = heads[number][:, 0] - 1
    with_steps = np.flatnonzero(later > 0)
    some = with_steps[: int((later[with_steps].cumsum() < _STEPS_MADE_UP).sum()) + 1]
    attributes, heads = attributes[some], [head[some] for head in heads]
    drawn = list(network.rows_after(number, attributes, heads, generator))
    if not drawn:
        return {
            name: [torch.zeros(steps.shape_of(feature, size), dtype=torch.float64) for feature in steps.features[name]]
            for name, size, _ in steps.targets
        }
    who = np.concatenate([rows.who for rows in drawn])
    fixed = steps.of_persons(attributes, [head[:, 0] for head in heads])
    codes = {name: np.concatenate([rows.codes[name] for rows in drawn]) for name in drawn[0].codes}
    codes |= {name: own[who] for name, own in fixed.items()}
    found: dict[str, list[Tensor]] = {}
    for name, size, _ in steps.targets:
        found[name] = []
        for feature in steps.features[name]:
            sums = scaled_sums(who, *steps.cells_of(codes, name, feature), steps.shape_of(feature, size))
            found[name].append(torch.from_numpy(sums / 2.0**_BITS))
    return found
