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
from lightning_dpgen.models.histories import Feature, StackedHistories, Steps

# Bits of the weight of a person's steps.
_BITS = 20
# Histories that are taken, and made up, at a time.
_AT_ONCE, _MADE_UP = 1 << 14, 6000
# Rounds of the fit; the pace of each, which falls to a half and a fifth; the share of the step before that is kept.
_ROUNDS, _PACE, _KEPT, _LONGEST = 60, 0.5, 0.6, 0.6
# Cells whose deviation is so many times what they hold on average have slow waves alone.
_SMOOTH = 2.0
# The weight of the table of a column by itself in the row before, over that of other tables of its size.
_OWN = 2.0
# The least that a choice of a target counts, in steps.
_LEAST = 0.25


class StepTable(Statistic):
    """Counts of a target by a feature, over the steps of persons: those of one person have the weight 1 together.

    The weight of each is the largest whole multiple of 2^-20 of which so many are 1 at most. All are 0 or more, so one
    person moves the table by 1 in L2 at most, however long the history.

    Args:
        schema: of the histories.
        target: the name of the target.
        feature: one of its features.
        size: the number of the target's choices.
    """

    bound, unit, at_once = 1.0, 2.0**-_BITS, _AT_ONCE

    def __init__(self, schema: Any, target: str, feature: Feature, size: int) -> None:
        self.layout, self._steps = schema.layout, Steps(schema)
        self._target, self._feature, self.shape = target, feature, (feature.size, size)

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        _, number, codes = self._steps.of_histories(records)
        weights = (1 << _BITS) // np.maximum(number, 1)
        places = codes[self._feature.name] * self.shape[1] + codes[f"now: {self._target}"]
        # Below 2^53, so exact in float64.
        sums = np.bincount(places, weights, minlength=math.prod(self.shape))
        return torch.from_numpy(sums.astype(np.int64)).view(self.shape)


def name_of(target: str, feature: Feature) -> str:
    """Return the name of a table in plan and ledger."""
    return f"{target} by {feature.name}"


def weights_of_tables(schema: Any) -> dict[str, float]:
    """Return the weights of all tables of steps: a large one gets more, by the power 2/3 of its cells.

    A column by itself in the row before gets twice as much, since histories are told by it first.
    """
    weights = {}
    for target, feature, size in Steps(schema).tables:
        own = _OWN if feature.name == f"before: {target}" else 1.0
        weights[name_of(target, feature)] = own * (feature.size * size) ** (2 / 3)
    return weights


def step_tables(schema: Any) -> dict[str, Statistic]:
    """Return the statistics of all tables of steps, by their names."""
    return {
        name_of(target, feature): StepTable(schema, target, feature, size) for target, feature, size in Steps(schema).tables
    }


class _Target:
    """The tables of one target while they are fitted."""

    def __init__(self, network: StackedHistories, j: int, measured: Mapping[str, Measured], total: float) -> None:
        name, size, ordered = network.steps.targets[j]
        self.name, self.features = name, network.steps.features[name]
        found = [measured[name_of(name, feature)] for feature in self.features]
        self.noisy = [own.sums.double() for own in found]
        self.deviations = [own.deviation for own in found]
        # The shares of the choices, from the tables with the least noise.
        trust = torch.tensor([1.0 / (max(d, 1e-6) ** 2 * len(x)) for d, x in zip(self.deviations, self.noisy, strict=True)])
        sums = torch.stack([x.sum(dim=0) for x in self.noisy])
        base = ((trust.double()[:, None] * sums).sum(dim=0) / trust.double().sum()).clamp(min=_LEAST)
        self.base = base * (total / base.sum())
        self.level = (self.base / total).log()
        self.tables = [torch.zeros_like(x) for x in self.noisy]
        self._moved = [torch.zeros_like(x) for x in self.noisy]
        self._left, self._right, self._ridge = [], [], []
        for feature, x, deviation in zip(self.features, self.noisy, self.deviations, strict=True):
            mean = total / x.numel()
            part = min(1.0, mean / max(_SMOOTH * deviation, 1e-9))
            left, right = slow_waves(feature.size, feature.ordered, part), slow_waves(size, ordered, part)
            kept = math.prod(1.0 if q is None else float(q.trace()) / len(q) for q in (left, right))
            self._left.append(left)
            self._right.append(right)
            self._ridge.append((1.0 + deviation**2 / max(mean, 0.5)) * kept)

    def step(self, expected: list[Tensor], total: float, pace: float) -> None:
        """Move the tables towards those that make the noisy ones, given what they make now."""
        for i, made in enumerate(expected):
            made = made * (total / made.sum().clamp(min=1e-9))
            rows = made.sum(dim=1, keepdim=True)
            gradient = self.noisy[i] - made - self._ridge[i] * self.tables[i]
            curvature = made * (1.0 - made / rows.clamp(min=1e-9)) + self._ridge[i]
            self._moved[i] = _KEPT * self._moved[i] + (1.0 - _KEPT) * gradient / curvature
            moved = (pace * self._moved[i]).clamp(-_LONGEST, _LONGEST) / math.sqrt(len(self.features))
            table = self.tables[i] + moved
            table = table if self._left[i] is None else self._left[i] @ table
            self.tables[i] = table if self._right[i] is None else table @ self._right[i]
        made = expected[0].sum(dim=0)
        made = (made * (total / made.sum().clamp(min=1e-9))).clamp(min=_LEAST)
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
        measured: the noisy tables, by `name_of`.
        seed: of the histories; public.
    """
    tables = [(one.sums, one.deviation) for one in measured.values()]
    trust = np.array([1.0 / (max(deviation, 1e-6) ** 2 * sums.numel()) for sums, deviation in tables])
    total = max(float(np.average([float(sums.sum()) for sums, _ in tables], weights=trust)), 1.0)
    targets = [_Target(network, j, measured, total) for j in range(len(network.steps.targets))]
    generator = torch.Generator().manual_seed(seed)
    for turn in range(_ROUNDS):
        _write(network, targets)
        component = torch.multinomial(weights.double(), _MADE_UP, replacement=True, generator=generator)
        expected = _expected(network, component, generator)
        pace = _PACE * (1.0 if turn < _ROUNDS // 2 else 0.5 if turn < 0.8 * _ROUNDS else 0.2)
        for target in targets:
            target.step(expected[target.name], total, pace)
    _write(network, targets)


def _write(network: StackedHistories, targets: list[_Target]) -> None:
    for j, target in enumerate(targets):
        network.get_buffer(f"level_{j}").copy_(target.level)
        for own, table in zip(network.tables_of(j), target.tables, strict=True):
            own.copy_(table)


def _expected(network: StackedHistories, component: Tensor, generator: torch.Generator) -> dict[str, list[Tensor]]:
    """Return the expected tables of histories that are drawn, by target and feature."""
    steps, found = network.steps, {}
    for name, size, _ in steps.targets:
        found[name] = [torch.zeros(feature.size, size, dtype=torch.float64) for feature in steps.features[name]]
    persons = network.persons.draw(component, generator).numpy()
    counts = persons[:, network.schema.attributes]
    for who, _, codes in network.rows_after(persons, generator):
        weight = torch.from_numpy(1.0 / (counts[who] - 1))[:, None]
        for name, tables in found.items():
            shares = torch.from_numpy(codes[f"shares: {name}"]) * weight
            for table, feature in zip(tables, steps.features[name], strict=True):
                table.index_add_(0, torch.from_numpy(codes[feature.name]), shares)
    return found
