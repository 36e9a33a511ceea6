"""The budget table that is printed before a record is read."""

from __future__ import annotations

import math
from collections.abc import Mapping

from lightning_dpgen.common.plain_text import align_columns, listed, say_epochs
from lightning_dpgen.data.discovery.value_grid import without_level
from lightning_dpgen.gradients.clipping import ClippingRule, Decay, DPNorm
from lightning_dpgen.privacy.access import GAUSSIAN, LAPLACE
from lightning_dpgen.privacy.accounting.epsilon_range import round_up
from lightning_dpgen.privacy.accounting.pld import REPLACE_ONE
from lightning_dpgen.privacy.plan import TRAINING, Plan
from lightning_dpgen.specs.modules import rules_of
from lightning_dpgen.specs.settings import Settings

_KINDS = {GAUSSIAN: "Gaussian", LAPLACE: "Laplace"}
_METHODS = {"pld": "privacy loss distributions", "closed form": "closed form", "rdp": "Renyi moments"}
# The sets of columns that are listed.
_MOST_SETS = 20
_HEADER = ("stage", "mechanism", "noise multiplier", "steps", "epochs", "share", "epsilon alone")


def budget_table(plan: Plan, *, of_person: bool = False, pure: str = "exponential mechanism") -> str:
    """Return the plan as text: a line a stage, and the total at delta under the named relation.

    Args:
        of_person: whether the unit is a person, even where a person has one record.
        pure: what is known by its epsilon alone.

    A share is that of mu^2 (Gaussian differential privacy), at delta 0 of epsilon; the last stage takes what is left.
    """
    rows = [_HEADER]
    events = dict(plan.stage_events)
    for stage in plan.stages:
        access = stage.access
        noises = _noises(access.multipliers)
        kinds = "/".join(dict.fromkeys(_KINDS.get(access.kind(name), pure) for name in access.multipliers))
        sampled = f"{kinds}, Poisson q = {access.sample_rate:.3g}" if access.sample_rate < 1 else f"{kinds}, full pass"
        epsilon = plan.cost_of(events[stage.name]).epsilon if plan.private else 0.0
        alone = f"{round_up(epsilon, 4):g}" if plan.private else "none"
        rows.append(
            (
                stage.name,
                sampled,
                noises if plan.private else "none",
                f"{stage.count:,}",
                say_epochs(stage.count, access.sample_rate).split()[0],
                _percent(stage.share),
                alone,
            )
        )
    if all(stage.access.sample_rate == 1.0 for stage in plan.stages):
        at = _HEADER.index("epochs")
        rows = [(*row[:at], *row[at + 1 :]) for row in rows]
    return "\n".join([align_columns(rows), "", _total(plan, of_person)])


def _percent(share: float) -> str:
    return "<1%" if 0.0 < share < 0.01 else f"{share:.0%}"


def _noises(multipliers: Mapping[str, float]) -> str:
    """Return noises with their multipliers, the levels of a tree as one, and columns of equal noise together."""
    trees: dict[str, list[str]] = {}
    texts = []
    for name, multiplier in multipliers.items():
        if (column := without_level(name)) == name:
            texts.append(f"{name} {multiplier:.3g}")
        elif column not in (columns := trees.setdefault(f"{multiplier:.3g}", [])):
            columns.append(column)
    for multiplier, columns in trees.items():
        many = f"values of {len(columns)} columns" if len(columns) > 1 else columns[0]
        texts.append(f"{many} {multiplier} a level")
    return listed(texts)


def decay_line(rule: ClippingRule | None, plan: Plan) -> str | None:
    """Return the first and the last bound of a run in which it decays, in words; None where none does."""
    if not isinstance(rule, Decay):
        return None
    training = plan.stage(TRAINING)
    epochs = say_epochs(rule.every, training.access.sample_rate)
    every = f"every {rule.every:,} steps, {epochs}" if rule.every > 1 else "every step"
    last = rule.known(training.count - 1)
    return f"bound of a gradient: {rule.c:g} at first, {last:.3g} at last (times {rule.factor:.6g} {every}), at no cost"


def terms_table(settings: Settings, plan: Plan) -> str | None:
    """Return what each term of a loss adds to the sensitivity of the mean gradient, as text; None for a single term.

    A record, or a person with all records, moves the mean by at most the sum of reach times bound over divisor, and one
    Gaussian of that sensitivity covers all terms (docs/papers/errata.md, PriVAE). A mean embedding has a noise of its own,
    for features of length 1.
    """
    if settings.clipping is None or not plan.private:
        return None
    most = plan.max_rows
    rules, training = rules_of(settings.spec.model, settings.clipping), plan.stage(TRAINING).access
    reached = 1 if settings.clipping.by_person else most
    if (embedded := training.multipliers.get("embedding")) is not None:
        lot = training.sample_rate * settings.n
        bound, word = _bound(rules[0])
        rows = [("term", "bound", "reach", "divisor", "sensitivity", "noise of a number")]
        for name, text, reach, size, multiplier in (
            ("records", f"{word}{bound:.3g}", reached, bound, training.multipliers["gradient"]),
            ("embedding", "1", most, 1.0, embedded),
        ):
            value = reach * size / lot
            rows.append((name, text, str(reach), f"{lot:,.0f}", f"{value:.3g}", f"{multiplier * value:.3g}"))
        return "\n".join(["", align_columns(rows)])
    if len(rules) < 2:
        return None
    divisors = training.sample_rate * settings.n, settings.spec.model.groups
    rows, parts = [("term", "bound", "reach", "divisor", "part of the sensitivity")], []
    for name, reach, rule, divisor in zip(("records", "groups"), (reached, 2), rules, divisors, strict=True):
        bound, word = _bound(rule)
        parts.append(reach * bound / divisor)
        rows.append((name, f"{word}{bound:.3g}", str(reach), f"{divisor:,.0f}", f"{parts[-1]:.3g}"))
    rows = [
        (*row, share) for row, share in zip(rows, ("share", *(f"{part / sum(parts):.0%}" for part in parts)), strict=True)
    ]
    multiplier = training.multipliers["gradient"]
    noise = f"noise of a number of the mean gradient: {multiplier * sum(parts):.3g}, {multiplier:.3g} times the sensitivity"
    return "\n".join(["", align_columns(rows), f"{noise}; of records alone {multiplier * parts[0]:.3g}"])


def errors_table(settings: Settings, plan: Plan) -> str | None:
    """Return what noise does to the counts of columns and of pairs, as text; None where no such counts are measured.

    A distance is the expected one of noisy shares from those of the records (total variation), which half the mean absolute
    error of a count makes in each cell. The fit to all tables together lowers it, and bins coarser than the values add to
    what a reader sees.
    """
    expected = getattr(None if settings.trains_network else settings.recipe, "errors_of_counts", None)
    if expected is None or not plan.private:
        return None
    n, rows = settings.n, [("counts of", "cells", "records in a cell, on average", "noise of a count", "distance, at most")]
    for names, cells, deviation in expected(plan):
        distance = min(1.0, cells * deviation / (n * math.sqrt(2.0 * math.pi)))
        rows.append((" and ".join(names), f"{cells:,}", f"{n / cells:,.1f}", f"{deviation:,.1f}", f"{distance:.3f}"))
    return "\n".join(["", align_columns(rows)])


def answers_table(settings: Settings, plan: Plan) -> str | None:
    """Return the error of the counts that `data.workload` asks for, as text; None where nothing is asked for."""
    sets = settings.spec.data.asked_sets
    if not sets or not plan.private:
        return None
    recipe, n = settings.recipe, settings.n
    deviation = recipe.deviation_of_asked(plan)
    rows = [("counts of", "cells", "records in a cell, on average", "standard error of a count", "of n")]
    for names, cells in zip(sets, recipe.cells_asked, strict=True):
        rows.append((listed(names), f"{cells:,}", f"{n / cells:,.1f}", f"{deviation:,.1f}", f"{deviation / n:.2%}"))
    more = [] if len(rows) <= _MOST_SETS + 1 else [f"and {len(rows) - 1 - _MOST_SETS:,} more, each with this error"]
    return "\n".join(["", align_columns(rows[: _MOST_SETS + 1]), *more])


def _bound(rule: ClippingRule) -> tuple[float, str]:
    """Return the first or the largest bound of a rule, and which it is, in a word."""
    if (known := rule.known(0)) is not None:
        return known, ""
    while (inner := getattr(rule, "of", None)) is not None:
        rule = inner
    return (rule.c_max, "up to ") if isinstance(rule, DPNorm) else (getattr(rule, "c", 1.0), "at first ")


def _total(plan: Plan, of_person: bool) -> str:
    if not plan.private or math.isinf(plan.epsilon):
        return "total: NOT PRIVATE (privacy=off): no noise, no bound; do not publish what this makes"
    unit = "person" if of_person or plan.max_rows > 1 else "record"
    how = f"one {unit} replaced" if plan.relation == REPLACE_ONE else f"one {unit} added or removed"
    by = _METHODS[plan.spent.method] if plan.delta else "a sum"
    return f"total: epsilon {round_up(plan.epsilon):g} of {plan.target_epsilon:g} at delta {plan.delta:g}, {how} ({by})"
