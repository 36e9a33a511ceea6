"""A measurement at its worst neighbours: one record, and none, told apart by the noisy sums."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from lightning_dpgen.audit.bound import Finding, gaussian_bound
from lightning_dpgen.audit.one_run import each_sum
from lightning_dpgen.audit.steps import plan_of_many
from lightning_dpgen.data.records import Records
from lightning_dpgen.measure.recipe import Recipe
from lightning_dpgen.measure.statistics import Statistic
from lightning_dpgen.measure.workload import State
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.gaussian_cost import gaussian_epsilon
from lightning_dpgen.privacy.plan import Plan


def audit_measurements(
    recipe: Recipe, plan: Plan, canaries: Records, component: Tensor, draws: int, confidence: float
) -> list[Finding]:
    """Bound the epsilon of each access from below, by `draws` measurements of one record and as many of none.

    Args:
        plan: a plan of its accesses; here each is made 2 * `draws` times.
        canaries: the candidates; the one that adds the most takes part.
        component: (m,) the component of each.
    """
    empty, findings = Records(canaries.schema, canaries.encoded[:0]), []
    state: State = {}
    for workload in recipe.workloads:
        access = plan.stage(workload.stage).access
        statistics = recipe.statistics(workload.stage, state)
        many = plan_of_many(access, draws, plan)
        access = many.stages[0].access
        place = _farthest(statistics, canaries, component)
        one, own = Records(canaries.schema, canaries.encoded[place : place + 1]), component[place : place + 1]
        # An account is about one set of records.
        runs = ((Account(many), empty, component[:0]), (Account(many), one, own))
        deviations = {name: access.multipliers[name] * statistics[name].bound for name in statistics}
        direction = {name: statistics[name].of_all(one, own) / deviations[name] ** 2 for name in statistics}
        found = np.empty((2, draws))
        for row, (account, records, components) in enumerate(runs):
            for i in range(draws):
                noisy = workload.measure(statistics, records, components, account)
                found[row, i] = float(sum((noisy[name].sums * direction[name]).sum() for name in statistics))
        bound = gaussian_bound(*found, confidence, plan.delta)
        claim = gaussian_epsilon(1.0 / access.multiplier, plan.delta)
        how = f"{draws:,} measurements of one record, and of none"
        findings.append(Finding(f"stage {workload.stage!r}, at noise multiplier 1", claim, bound, plan.delta, how))
        # The statistics of later stages follow from what was released.
        once = Account(dataclasses.replace(plan, stages=(plan.stage(workload.stage),)))
        made = workload.measure(statistics, empty, component[:0], once)
        state = {**state, workload.stage: (*state.get(workload.stage, ()), made)}
    return findings


def _farthest(statistics: Mapping[str, Statistic], canaries: Records, component: Tensor) -> int:
    squares = torch.zeros(len(canaries), dtype=torch.float64)
    for statistic in statistics.values():
        sums = each_sum(statistic, canaries, component)
        squares += torch.stack([(one / statistic.bound).square().sum() for one in sums])
    return int(squares.argmax())
