"""The recipe of histories: tables of persons, tables of steps from row to row, and a network fitted to both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.common import pace
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.measure.history_steps import fit_steps, step_statistics, steps_of, units_of_tables, weights_of_tables
from lightning_dpgen.measure.pair_moments import contrast_moments
from lightning_dpgen.measure.recipe import LEARNING, Recipe
from lightning_dpgen.measure.statistics import UNITS, Statistic
from lightning_dpgen.measure.step_moments import StepContrasts
from lightning_dpgen.measure.tables import MOMENTS, TABLES, TableRecipe
from lightning_dpgen.measure.workload import State, Workload, check_share
from lightning_dpgen.models.forests import StackedForests
from lightning_dpgen.models.histories import PersonLevel, StackedHistories
from lightning_dpgen.models.labelled import without_label
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.privacy.plan import Plan

STEPS = "steps"
# The weight of a column of persons in the share of what is spent, over that of a table of steps.
_PERSONS = 1.2
# The share of the moments of persons, which tell more than tables do of what goes with numbers of rows.
_MOMENTS_SHARE = 0.05


class OfPersons(Statistic):
    """A statistic of persons, of histories: of each its attributes, and the number of rows and the first row of each table.

    Args:
        schema: of the histories.
        inner: of the records of `PersonLevel`; its bound is that of one person.
    """

    def __init__(self, schema: Any, inner: Statistic) -> None:
        self._level, self._inner, self.layout = PersonLevel(schema), inner, schema.layout
        self.shape, self.bound, self.unit, self.k = inner.shape, inner.bound, inner.unit, inner.k
        self.at_once, self.released = inner.at_once, inner.released

    def scores(self, sums: Tensor) -> Tensor:
        return self._inner.scores(sums)

    def sums(self, records: Encoded, component: Tensor) -> Tensor:
        return self._inner.sums(self._level.encode(records), component)


@dataclass(frozen=True)
class HistoryRecipe(Recipe):
    """Accesses of tables of persons (`TableRecipe`), and one of all tables of steps; a record is a person with all rows.

    Args:
        schema: the schema of histories; public.
        k: number of components of persons.
        n: the declared number of persons.
        steps_share: share of what may be spent on the tables of steps, in mu^2; None takes it from their number, beside
            that of the columns of a person: .7 where rows have many columns, less where persons have more.
        seed: of the fits; public.

    Raises:
        ValueError: for a share outside (0, 1).
    """

    schema: Any
    k: int
    n: int
    steps_share: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("steps_share", 0.5 if self.steps_share is None else self.steps_share)

    @cached_property
    def persons(self) -> TableRecipe:
        """The recipe of persons."""
        return TableRecipe(PersonLevel(self.schema), self.k, self.n, seed=self.seed)

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """The tables of persons, and those of steps."""
        weights, groups = weights_of_tables(self.schema), len(self.persons.schema.layout.groups)
        share = len(weights) / (len(weights) + _PERSONS * groups)
        share = self.steps_share if self.steps_share is not None and weights else share
        share *= 1.0 - _MOMENTS_SHARE
        of_persons = tuple(
            Workload(own.stage, own.noise_shares, own.max_noise, own.share * (1.0 - share - _MOMENTS_SHARE), own.rounds)
            for own in self.persons.workloads
        )
        total = sum(weights.values())
        noise_shares = {name: own * share / total for name, own in weights.items()} | {MOMENTS: _MOMENTS_SHARE}
        units = units_of_tables(self.schema) | {MOMENTS: UNITS["moments"]}
        return (*of_persons, Workload(STEPS, noise_shares, self.n, share + _MOMENTS_SHARE, units=units))

    def statistics(self, stage: str, state: State) -> Mapping[str, Statistic]:
        """Return the statistics of a stage; one person moves each by its bound in L2 at most, with all rows."""
        if stage == STEPS:
            shares = self._shares(state)
            moments = contrast_moments(self.persons.schema.layout, shares)
            return step_statistics(self._contrasts(shares)) | {MOMENTS: OfPersons(self.schema, moments)}
        of_persons = self.persons.statistics(stage, self._of_persons(state))
        return {name: OfPersons(self.schema, own) for name, own in of_persons.items()}

    def _shares(self, state: State) -> list[np.ndarray]:
        """Return the shares of the choices of each group of persons, as their tables say."""
        return self.persons.shares({TABLES: state[TABLES]})

    def _contrasts(self, shares: Sequence[np.ndarray]) -> list[StepContrasts]:
        """Return the contrasts of each table of rows."""
        return [StepContrasts(steps, self.persons.schema, shares) for steps in steps_of(self.schema)]

    def warnings(self, plan: Plan) -> list[str]:
        """Return what noise hides of persons."""
        return self.persons.warnings(plan)

    def _of_persons(self, state: State) -> State:
        """Return what was measured of persons; moments beside the tables."""
        if not (steps := state.get(STEPS)):
            return state
        return {TABLES: [{**state[TABLES][0], MOMENTS: steps[0][MOMENTS]}]}

    def _mixture(self, state: State) -> Mixture:
        persons = self.persons._mixture(self._of_persons(state))
        forests = without_label(persons.network)
        assert isinstance(forests, StackedForests), "the network of tables"
        network = StackedHistories(self.schema, self.k, forests.parents)
        network.persons.load_state_dict(forests.state_dict())
        with pace.stage(LEARNING), torch.no_grad():
            contrasts, total = self._contrasts(self._shares(state)), self.persons.total(state)
            fit_steps(network, persons.weights, state[STEPS][0], contrasts, total, self.seed)
        return Mixture(network, persons.weights)
