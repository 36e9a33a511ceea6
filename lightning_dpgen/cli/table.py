"""The budget table that is printed before a record is read."""

from __future__ import annotations

import math

from lightning_dpgen.privacy.accountant import round_up, spent
from lightning_dpgen.privacy.plan import Plan

_HEADER = ("stage", "mechanism", "noise multiplier", "steps", "share", "epsilon alone")


def budget_table(plan: Plan) -> str:
    """The plan as text: a line a stage, and the total at delta under the named relation.

    A share is that of mu^2 (Gaussian differential privacy); the last stage takes what is left.
    """
    rows = [_HEADER]
    events = dict(plan.stage_events)
    for stage in plan.stages:
        access = stage.access
        noises = ", ".join(f"{name} {m:.3g}" for name, m in access.multipliers.items())
        sampled = f"Gaussian, Poisson q = {access.rate:.3g}" if access.rate < 1 else "Gaussian, full pass"
        alone = f"{round_up(spent(events[stage.name], plan.delta).epsilon, 4):g}" if plan.private else "none"
        rows.append(
            (stage.name, sampled, noises if plan.private else "none", f"{stage.count:,}", f"{stage.share:.0%}", alone)
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADER))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join([*lines, "", _total(plan)])


def _total(plan: Plan) -> str:
    if not plan.private or math.isinf(plan.epsilon):
        return "total: NOT PRIVATE (privacy=off): no noise, no bound; do not publish what this makes"
    return (
        f"total: epsilon {round_up(plan.epsilon):g} of {plan.target_epsilon:g} at delta {plan.delta:g}, "
        "one record added or removed (privacy loss distributions)"
    )
