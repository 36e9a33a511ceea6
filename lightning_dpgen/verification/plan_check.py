"""The check of a certificate against the plan of its own settings: the planner of `dpgen train` makes it once more.

Every stage, its order, rate, count, failures and noises must be what the settings plan. `outline_check` holds what takes no
planner to see.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lightning_dpgen.data.discovery.value_grid import VALUES_OF
from lightning_dpgen.data.schema import kind_of
from lightning_dpgen.privacy.accounting.accountant import compute_epsilon
from lightning_dpgen.privacy.accounting.epsilon_range import PLD, round_down
from lightning_dpgen.privacy.accounting.events import compose_events, decode, encode
from lightning_dpgen.privacy.accounting.reference import read_reference
from lightning_dpgen.privacy.errors import PrivacyError
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.planning.calibration import PLANNER
from lightning_dpgen.privacy.planning.solving import EpsilonLimit, Limit, ReferenceLimit
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
from lightning_dpgen.specs.first_pass import FIRST_PASS, first_stage, has_first_pass, reference_plan
from lightning_dpgen.specs.model import AutoSpec
from lightning_dpgen.specs.settings import Settings
from lightning_dpgen.specs.usage_error import UsageError
from lightning_dpgen.verification import outline_check
from lightning_dpgen.verification.declared_settings import settings_of
from lightning_dpgen.verification.event_words import (
    LONGEST,
    ROUNDING,
    agree,
    describe_event,
    difference_message,
    event_and_count,
    quote_names,
)

# Relative tolerance of a multiplier that was solved for: a solution is within 0.1 % of its limit.
_SOLVED = 2e-3
# The same of a number of steps that was solved for, which goes with the square of a multiplier.
_COUNTED = 5e-3
_MOST_PROBLEMS = 4
# A trial is planned for an epsilon of which it uses all but 0.1 %.
_TRIAL_BUDGETS = (1.0, 1.001)
# No planner leaves a budget that would buy the same with so much less noise. Noise that is solved for is within 0.1 % of
# its limit, and the budget of a trial within 0.5 % of the largest; of the plans that are kept (tests/verification) each
# uses 99.8 % of epsilon or more. The rest allows for a planner that divides it into rounder parts.
_LESS_NOISE = 0.95
_EARLIER = (
    "a planner of earlier software has divided the budget, so multipliers were not planned again: stages, rates, failures, "
    "and given noises and counts are those of the settings, the budget is used up, and all of it costs what is stated"
)


def check_plan(certificate: Mapping[str, Any], model: Mapping[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """Hold a certificate whose numbers agree with each other against the plan of the settings that it declares.

    Args:
        certificate: of a shape that was checked; private, by settings (`follows_from_settings`).
        model: the description of the model as the release holds it.

    Returns:
        What is wrong, what was confirmed, and what is worth knowing, a line each.
    """
    if problems := outline_check.incomplete_settings(certificate["declared"]):
        return problems, [], []
    try:
        planner = certificate["versions"].get("planner", "1")
        if not (planner.isascii() and planner.isdecimal() and 0 < int(planner[:9]) <= PLANNER):
            problem = f"versions.planner={planner[:20]!r}: this software knows none beyond {PLANNER}: take a later one"
            return [problem], [], []
        number = int(planner[:9])
        if isinstance(certificate["selection"], dict):
            return _check_selection(certificate, model, number)
        settings = settings_of(certificate)
        specs = settings.specs()
        problems = [
            *outline_check.model_problems(settings, specs, model),
            *outline_check.outline_problems(settings, specs, certificate),
        ]
        if problems:
            return problems[:_MOST_PROBLEMS], [], []
        if number < PLANNER:
            problems = [*outline_check.wrong_given_noises(specs, certificate), *_unused_budget(specs, certificate)]
            return problems[:_MOST_PROBLEMS], [], [] if problems else [_EARLIER]
        plan = _plan_of(settings, certificate)
        problems = [
            *unplanned_events(plan, certificate),
            *_wrong_multipliers(plan, certificate),
            *_wrong_bounds(settings, certificate),
        ]
    # Settings of strangers may end anywhere in the planner.
    except Exception as error:
        return [unplannable(error, certificate["declared"])], [], []
    checks = ["the plan that follows from the declared settings is the one that the certificate states, stage by stage"]
    return problems[:_MOST_PROBLEMS], [] if problems else checks, []


def unplannable(error: Exception, declared: Mapping[str, Any]) -> str:
    """Return the line about settings from which no run is planned."""
    reason = " ".join(str(error).split())[:LONGEST]
    if not reason or not isinstance(error, ValueError | OSError | UsageError | PrivacyError):
        # Words of Python would be about the planner.
        groups = {group: values for group, values in declared.items() if isinstance(values, dict)}
        null = [f"{group}.{name}" for group, values in groups.items() for name in values if values[name] is None]
        reason = "one of them is missing, null or of another type" + (f"; null are {quote_names(null)}" if null else "")
    return f"declared: no run is planned from these settings ({reason})"


def _unused_budget(specs: Sequence[StageSpec], certificate: Mapping[str, Any]) -> Iterator[str]:
    """Yield a part of the budget that no planner would leave: less noise that was solved for, or more steps, would fit."""
    stages, stated = certificate["stages"], certificate.get("reference")
    flexible = next((spec.stage for spec in specs if spec.share is None), specs[-1].stage)
    counted = [event_and_count(stage["event"]) for stage in stages]
    # Counts are solved for, or steps given up for accesses that were made again, and then noise stays.
    stays = any(spec.count is None or count > spec.count for spec, (_, count) in zip(specs, counted, strict=True))
    cheaper = []
    for spec, (event, count) in zip(specs, counted, strict=True):
        if stays and spec.stage == flexible:
            count += max(spec.multiple - 1, math.ceil(_COUNTED * count)) + 1
        elif not stays and (spec.noise is None or spec.stage == FIRST_PASS):
            event = _with_less_noise(event)
        cheaper.append({"type": "SelfComposedDpEvent", "event": event, "count": count})
    after = 0 if stated is None else stated["after"]
    limit: Limit = _budget(certificate)
    if stated is not None:
        if limit.holds(decode(_with_less_noise(certificate["event"]))):
            yield _unused_budget_message(certificate)
        limit = ReferenceLimit(
            read_reference(decode(certificate["event"]["events"][-1]), after, replaceable=stated["replaceable"])
        )
    # Where all is given, nothing is left open.
    free = stays or any(spec.noise is None for spec in specs[after:])
    if free and limit.holds(compose_events([decode(event) for event in cheaper[after:]])):
        yield _unused_budget_message(certificate)


def _budget(certificate: Mapping[str, Any]) -> EpsilonLimit:
    accountant = certificate["accountant"].get("chosen", PLD)
    return EpsilonLimit(round_down(certificate["target_epsilon"]), certificate["delta"], accountant)


def _unused_budget_message(certificate: Mapping[str, Any]) -> str:
    return (
        f"target_epsilon={certificate['target_epsilon']:g}: more than any planner leaves of it is not used, so stages are "
        "stated with more noise, or fewer accesses, than these settings have"
    )


def _with_less_noise(event: Any) -> Any:
    """Return an event tree as it stands in a certificate, with less of each noise."""
    if isinstance(event, list):
        return [_with_less_noise(part) for part in event]
    if not isinstance(event, dict):
        return event
    return {
        name: part * _LESS_NOISE if name == "noise_multiplier" else _with_less_noise(part) for name, part in event.items()
    }


def _plan_of(settings: Settings, certificate: Mapping[str, Any]) -> Plan:
    """Return the plan of settings: as it was made before a record was read, or of what a first pass has found."""
    spec, parts, stated = settings.spec, settings.parts, certificate.get("reference")
    if stated is None:
        if has_first_pass(spec, parts) and not settings.trains_network:
            raise ValueError("what is measured is planned from what the first pass finds, and the event has no reference")
        return settings.plan()
    if not has_first_pass(spec, parts):
        raise ValueError("the event has a reference, and these settings plan no first pass")
    # A model that is chosen is not known before the first pass.
    asked = spec if settings.choice_reason is None else spec.changed(model=AutoSpec())
    promise = reference_plan(asked, first_stage(spec, parts))
    assert promise.reference is not None, "the plan of a first pass has one"
    # More steps are allowed for than are planned in the end, where they follow from defaults.
    if stated["replaceable"] and not promise.reference.replaceable:
        raise ValueError("reference.replaceable: the reference of these settings does not cover a record replaced")
    if not agree(encode(promise.reference.event), certificate["event"]["events"][-1], _SOLVED):
        raise ValueError("reference: it is not the one that these settings set aside before the first pass")
    return settings.plan(promise)


def unplanned_events(plan: Plan, certificate: Mapping[str, Any]) -> Iterator[str]:
    """Yield a stage whose accesses are not those of a plan of the same stages, or of the plan of a run that went on.

    Args:
        certificate: of a shape that was checked.
    """
    stated = {stage["name"]: event_and_count(stage["event"]) for stage in certificate["stages"]}
    if certificate["relation"] != plan.relation:
        yield f"relation={certificate['relation']!r}: these settings plan for {plan.relation!r}"
    for name, event in plan.stage_events:
        planned, _ = event_and_count(encode(event))
        if not agree(planned, stated[name][0], _SOLVED):
            yield difference_message(name, describe_event(planned), describe_event(stated[name][0]))
    last = plan.stages[-1] if plan.flexible is None else plan.stage(plan.flexible)
    counts_by_stage = {name: count for name, (_, count) in stated.items()}
    count, near = counts_by_stage[last.name], max(last.multiple - 1, math.ceil(_COUNTED * last.count))
    if any(counts_by_stage[stage.name] > stage.count for stage in plan.stages if stage is not last):
        # A few more than a run that went on would have are too many, so a run had no fewer.
        more = count + near + 1
        counts = counts_by_stage | {last.name: more}
        again = replace(plan, stages=tuple(replace(stage, count=counts[stage.name]) for stage in plan.stages))
        if more <= last.count and plan.covers(again.accesses):
            yield f"stage {last.name!r}: {count:,} accesses are stated, and {more:,} fit beside those that were made again"
    elif abs(count - last.count) > near:
        yield f"stage {last.name!r}: {count:,} accesses are stated, and these settings plan {last.count:,}"


def _wrong_bounds(settings: Settings, certificate: Mapping[str, Any]) -> Iterator[str]:
    """Yield counts of a table whose stated bound is not the one by which a record moves them: it follows from settings."""
    planned = {}
    if kind_of(settings.schema).tabular and not settings.trains_network:
        first = settings.recipe.workloads[0].stage
        planned = {(first, name): counts.bound for name, counts in settings.recipe.statistics(first, {}).items()}
    for entry in certificate["noise"]["sums"]:
        stage = entry["stage"]
        for name in entry["names"]:
            bound = 1.0 if stage == FIRST_PASS and name.startswith(VALUES_OF) else planned.get((stage, name))
            stated = entry["bound_in_units"]
            if bound is not None and not (entry["unit"] == "1" and math.isclose(stated, bound, rel_tol=ROUNDING)):
                yield (
                    f"noise of stage {stage[:80]!r}: a record moves the counts {name[:80]!r} by {bound:.6g}, and stated is "
                    f"{stated:.6g} times {entry['unit'][:40]}"
                )


def _wrong_multipliers(plan: Plan, certificate: Mapping[str, Any]) -> Iterator[str]:
    """Yield a noise whose multiplier is not the planned one."""
    for entry in outline_check.noise_entries(certificate):
        multipliers = plan.stage(entry["stage"]).access.multipliers
        for name in entry["names"]:
            if not math.isclose(entry["multiplier"], multipliers[name], rel_tol=_SOLVED):
                planned = f"{name!r} a multiplier of {multipliers[name]:.6g}"
                yield difference_message(entry["stage"], planned, f"{entry['multiplier']:.6g}")


def _check_selection(
    certificate: Mapping[str, Any], model: Mapping[str, Any], planner: int
) -> tuple[list[str], list[str], list[str]]:
    """Hold the best of several trials against the settings of the winner, whose plan is that of one of the trials.

    The budget of a trial is what it costs; other candidates are not described, and are planned for the same budget. The
    multipliers and solved counts of an earlier planner are its own.
    """
    # Steps that were solved for beside a given noise may leave one step, of which there may be few.
    given = getattr(settings_of(certificate).spec.model, "noise", None) is not None
    if not given and _budget(certificate).holds(decode(_with_less_noise(certificate["event"]))):
        return [_unused_budget_message(certificate)], [], []
    if certificate["selection"]["chosen"] is None:
        settings = settings_of(certificate)
        problems = [*outline_check.model_problems(settings, settings.specs(), model)]
        notes = ["no trial was made, so the declared settings are those of a network that has seen nothing"]
        return problems, [], [] if problems else notes
    event = certificate["event"]["event"]
    trials, problems = event["events"] if event["type"] == "OneOfDpEvent" else [event], []
    for trial in trials:
        cost = compute_epsilon(decode(trial), certificate["delta"]).epsilon
        for factor in _TRIAL_BUDGETS:
            settings = settings_of(certificate, min(cost * factor, certificate["target_epsilon"]))
            specs = settings.specs()
            if problems := [*outline_check.model_problems(settings, specs, model)]:
                return problems, [], []
            parts = trial["events"] if trial["type"] == "ComposedDpEvent" else [trial]
            # For the message at the end: those of the last budget.
            names = [spec.stage for spec in specs]
            if len(specs) != len(parts):
                continue
            if planner < PLANNER and all(map(outline_check.is_outlined, specs, parts)):
                return [], [], [_EARLIER]
            if planner == PLANNER and agree(encode(settings.plan().composition), trial, _SOLVED):
                return [], ["the plan of one of the trials is that of the declared settings"], []
    return [f"selection: none of {len(trials):,} trials is what these settings plan, which is {quote_names(names)}"], [], []
