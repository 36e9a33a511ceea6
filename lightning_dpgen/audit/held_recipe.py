"""A recipe whose fits between two accesses are those of one run, for runs that are made thousands of times."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from lightning_dpgen.data.records import Records
from lightning_dpgen.measure.recipe import Recipe
from lightning_dpgen.measure.statistics import Statistic
from lightning_dpgen.measure.workload import State, Workload
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan


class HeldRecipe(Recipe):
    """A recipe whose stages after a fit are held: they start from the outcome of one run.

    Such a fit is post-processing, and a bound has to hold for any of its results, so those accesses are as private as they
    were; a stage's own rounds still follow from each other.

    Args:
        recipe: the recipe.
        state: the measurements of one run.
        held: the stages from the first that follows from a fit.
    """

    def __init__(self, recipe: Recipe, state: State, held: frozenset[str]) -> None:
        self._recipe, self._state, self.held = recipe, state, held
        self.k, self.n = recipe.k, recipe.n

    @classmethod
    def of(cls, recipe: Recipe, records: Records, component: torch.Tensor, plan: Plan) -> HeldRecipe:
        """Make one run, and hold the stages from the first that follows from a fit, since later ones use the same one.

        Args:
            records, component: made-up records, and the component of each.
            plan: the plan of a run, which holds the stages of the recipe.
        """
        stages = {workload.stage for workload in recipe.workloads}
        own = tuple(stage for stage in plan.stages if stage.name in stages)
        # Its records are made up: an audit that is made again starts from the same run.
        stream = PrivateStream(seed=0)
        account = Account(Plan(own, plan.target_epsilon, plan.delta, max_rows=plan.max_rows), stream=stream)
        state, held = {}, set()
        for workload in recipe.workloads:
            statistics = recipe.statistics(workload.stage, state)
            if held or workload.stage in recipe.from_fits:
                held.add(workload.stage)
            while account.remaining(workload.stage):
                found = workload.measure(statistics, records, component, account)
                state = {**state, workload.stage: (*state.get(workload.stage, ()), found)}
                statistics = recipe.statistics(workload.stage, state)
        return cls(recipe, state, frozenset(held))

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """The workloads of the recipe."""
        return self._recipe.workloads

    def statistics(self, stage: str, state: State) -> Mapping[str, Statistic]:
        """Return the statistics of a stage."""
        if stage in self.held:
            state = {**state, **{own: made for own, made in self._state.items() if own != stage}}
        return self._recipe.statistics(stage, state)

    def warnings(self, plan: Plan) -> list[str]:
        """Return none: the recipe itself warns of its plan."""
        return []

    def _mixture(self, state: State) -> Mixture:
        return self._recipe.fitted(state)
