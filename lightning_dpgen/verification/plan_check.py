"""The check of a certificate against the plan of its own settings: the planner of `dpgen train` makes it once more.

Every stage, its order, rate, count, failures and noises must be what the settings plan. What a run may do beside its plan
is listed here, a function for each. A release of a program of one's own declares no settings, and is not held against any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lightning_dpgen.data.discovery.value_grid import VALUES_OF
from lightning_dpgen.data.schema import kind_named, kind_of
from lightning_dpgen.data.tables.row_rules import FOUND
from lightning_dpgen.measure.copulas import CopulaRecipe
from lightning_dpgen.measure.crossings import CHOSEN, EVIDENCE
from lightning_dpgen.models.initial import TRAINED
from lightning_dpgen.models.labelled import Crossed, read_crossings
from lightning_dpgen.privacy.access import PURE
from lightning_dpgen.privacy.accounting.accountant import compute_epsilon
from lightning_dpgen.privacy.accounting.epsilon_range import PLD, round_down
from lightning_dpgen.privacy.accounting.events import compose_events, decode, encode
from lightning_dpgen.privacy.accounting.reference import read_reference
from lightning_dpgen.privacy.drawn_noise import NOISY_MAX, REAL_GAUSSIAN, ROUNDED_GAUSSIAN
from lightning_dpgen.privacy.errors import PrivacyError
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.planning.calibration import PLANNER
from lightning_dpgen.privacy.planning.solving import EpsilonLimit, Limit, ReferenceLimit
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
from lightning_dpgen.release.drawing.description import (
    COPULA,
    LABELLED,
    PLAIN_WEIGHTS,
    PROJECTION,
    measured_networks,
)
from lightning_dpgen.release.drawing.description import CROSSINGS as CROSSED
from lightning_dpgen.release.files import MODEL, WEIGHTS
from lightning_dpgen.release.run_names import in_words, names_of_a_run
from lightning_dpgen.release.stated_noises import NOT_DRAWN
from lightning_dpgen.specs.model import AutoSpec, CustomSpec
from lightning_dpgen.specs.settings import FIRST_PASS, Settings, first_stage, has_first_pass, reference_plan
from lightning_dpgen.specs.usage_error import UsageError
from lightning_dpgen.verification.declared_settings import settings_of

TRAINING, FIDELITY = "training", "fidelity"
# Relative tolerance of a multiplier that was solved for: a solution is within 0.1 % of its limit.
_SOLVED = 2e-3
# The same of a number of steps that was solved for, which goes with the square of a multiplier.
_COUNTED = 5e-3
# Rates and failures are written as they are declared, but for last digits.
_ROUNDING = 1e-9
_MOST_SAID, _LONGEST = 4, 240
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


def follows_from_settings(certificate: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    """Return whether a certificate is held against the plan of settings: all are, but for programs of one's own.

    Such a program has released the weights of a network, whose settings are words; or a mixture of this package, for which
    `release_mixture` declares words and no name of a run; or something else that declares no name of a run. A projection
    has settings of its own.
    """
    declared, kind = certificate["declared"], model.get("model")
    model_words = declared.get("model")
    if kind == PROJECTION or (kind == PLAIN_WEIGHTS and {MODEL, WEIGHTS}.issuperset(certificate["released"])):
        return False
    return bool(names_of_a_run(declared)) or not (in_words(model_words) or (model_words is None and not _is_mixture(kind)))


def _is_mixture(kind: Any) -> bool:
    """Return whether this package writes a model of this kind, or of a class of a user, into a release."""
    kinds = measured_networks() | {trained.kind for trained in TRAINED.values()}
    return isinstance(kind, str) and (kind in kinds or ":" in kind)


def _left_out(declared: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a part of the settings of a run, without the others that every run declares."""
    forms = {"data": str, "schema": dict, "model": dict, "seed": int, "rows": int}
    wrong = [name for name, form in forms.items() if not isinstance(declared.get(name), form)]
    if not wrong:
        return []
    there = names_of_a_run(declared)
    beside = f" beside {', '.join(there)}" if there else ", and this is a model that they make"
    stated = ", ".join(f"{name}={str(declared.get(name, 'missing'))[:40]!r}" for name in wrong)
    return [f"declared: its settings are not whole: {stated[:_LONGEST]}{beside[:_LONGEST]}"]


def check_plan(certificate: Mapping[str, Any], model: Mapping[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """Hold a certificate whose numbers agree with each other against the plan of the settings that it declares.

    Args:
        certificate: of a shape that was checked; private, by settings (`follows_from_settings`).
        model: the description of the model as the release holds it.

    Returns:
        What is wrong, what was confirmed, and what is worth knowing, a line each.
    """
    if problems := _left_out(certificate["declared"]):
        return problems, [], []
    try:
        planner = certificate["versions"].get("planner", "1")
        if not (planner.isascii() and planner.isdecimal() and 0 < int(planner[:9]) <= PLANNER):
            said = f"versions.planner={planner[:20]!r}: this software knows none beyond {PLANNER}: take a later one"
            return [said], [], []
        number = int(planner[:9])
        if isinstance(certificate["selection"], dict):
            return _check_selection(certificate, model, number)
        settings = settings_of(certificate)
        specs = settings.specs()
        problems = [*_of_model(settings, specs, model), *_outline(settings, specs, certificate)]
        if problems:
            return problems[:_MOST_SAID], [], []
        if number < PLANNER:
            problems = [*_given_noises(specs, certificate), *_unused(specs, certificate)]
            return problems[:_MOST_SAID], [], [] if problems else [_EARLIER]
        plan = _planned(settings, certificate)
        problems = [*unplanned_events(plan, certificate), *_noises(plan, certificate), *_bounds(settings, certificate)]
    # Settings of strangers may end anywhere in the planner.
    except Exception as error:
        return [unplannable(error, certificate["declared"])], [], []
    checks = ["the plan that follows from the declared settings is the one that the certificate states, stage by stage"]
    return problems[:_MOST_SAID], [] if problems else checks, []


def unplannable(error: Exception, declared: Mapping[str, Any]) -> str:
    """Return the line about settings from which no run is planned."""
    reason = " ".join(str(error).split())[:_LONGEST]
    if not reason or not isinstance(error, ValueError | OSError | UsageError | PrivacyError):
        # Words of Python would be about the planner.
        parts = {part: own for part, own in declared.items() if isinstance(own, dict)}
        null = [f"{part}.{name}" for part, own in parts.items() for name in own if own[name] is None]
        reason = "one of them is missing, null or of another type" + (f"; null are {_listed(null)}" if null else "")
    return f"declared: no run is planned from these settings ({reason})"


def _given_noises(specs: Sequence[StageSpec], certificate: Mapping[str, Any]) -> Iterator[str]:
    """Give a noise that the settings state and the certificate states otherwise, which takes no planner to see."""
    stated = {stage["name"]: stage["event"] for stage in certificate["stages"]}
    for spec in specs:
        # The noise of a first pass follows from a share.
        if spec.noise is not None and spec.stage != FIRST_PASS:
            due, event = encode(spec.access(spec.noise).event_at(pure=False)), _counted(stated[spec.stage])[0]
            if not _agree(due, event, _ROUNDING):
                yield _told(spec.stage, _words(due), _words(event))


def _unused(specs: Sequence[StageSpec], certificate: Mapping[str, Any]) -> Iterator[str]:
    """Give a part of the budget that no planner would leave: less noise that was solved for, or more steps, would fit."""
    stages, stated = certificate["stages"], certificate.get("reference")
    flexible = next((spec.stage for spec in specs if spec.share is None), specs[-1].stage)
    counted = [_counted(stage["event"]) for stage in stages]
    # Counts are solved for, or steps given up for accesses that were made again, and then noise stays.
    stays = any(spec.count is None or count > spec.count for spec, (_, count) in zip(specs, counted, strict=True))
    cheaper = []
    for spec, (event, count) in zip(specs, counted, strict=True):
        if stays and spec.stage == flexible:
            count += max(spec.multiple - 1, math.ceil(_COUNTED * count)) + 1
        elif not stays and (spec.noise is None or spec.stage == FIRST_PASS):
            event = _scaled(event)
        cheaper.append({"type": "SelfComposedDpEvent", "event": event, "count": count})
    after = 0 if stated is None else stated["after"]
    limit: Limit = _budget(certificate)
    if stated is not None:
        if limit.holds(decode(_scaled(certificate["event"]))):
            yield _unspent(certificate)
        limit = ReferenceLimit(
            read_reference(decode(certificate["event"]["events"][-1]), after, replaceable=stated["replaceable"])
        )
    # Where all is given, nothing is left open.
    free = stays or any(spec.noise is None for spec in specs[after:])
    if free and limit.holds(compose_events([decode(event) for event in cheaper[after:]])):
        yield _unspent(certificate)


def _budget(certificate: Mapping[str, Any]) -> EpsilonLimit:
    accountant = certificate["accountant"].get("chosen", PLD)
    return EpsilonLimit(round_down(certificate["target_epsilon"]), certificate["delta"], accountant)


def _unspent(certificate: Mapping[str, Any]) -> str:
    return (
        f"target_epsilon={certificate['target_epsilon']:g}: more than any planner leaves of it is not used, so stages are "
        "stated with more noise, or fewer accesses, than these settings have"
    )


def _scaled(event: Any) -> Any:
    """Return an event tree as it stands in a certificate, with less of each noise."""
    if isinstance(event, list):
        return [_scaled(part) for part in event]
    if not isinstance(event, dict):
        return event
    return {name: part * _LESS_NOISE if name == "noise_multiplier" else _scaled(part) for name, part in event.items()}


def _of_model(settings: Settings, specs: Sequence[StageSpec], model: Mapping[str, Any]) -> Iterator[str]:
    """Give what the model that is released has of another run."""
    schema, kind, spec = settings.schema, str(model.get("model"))[:80], settings.spec.model
    # Constraints that noisy tables have shown are not declared, and no other model shows any.
    released, shown = model.get("schema"), {FOUND: None} if kind in kind_named("table").measured_networks else {}
    if not isinstance(released, dict) or {**released, **shown} != {**schema.as_json(), **shown}:
        yield "declared.schema: the released model is of another one"
    if isinstance(spec, CustomSpec):
        # A subclass of a model of the package is released as that one.
        fits = ":" in kind or kind in {trained.kind for trained in TRAINED.values()}
    elif settings.trained:
        fits = kind == TRAINED[spec.name].kind
    else:
        of_copula = isinstance(settings.recipe, CopulaRecipe)
        fits = kind in kind_of(schema).measured_networks and (kind == COPULA) == of_copula
    if not fits:
        yield f"declared.model: a model of {spec.title!r} is declared, and one of kind {kind!r} is released"
    if settings.trained and model.get("k") != settings.split.k:
        yield f"declared.split.k={settings.split.k}: the released model has {str(model.get('k'))[:20]} components"
    # The stages of a selection are its trials.
    if (spec.label_share or 0.0) > 0.0 and model.get(LABELLED) is not True:
        yield f"declared.model.label_share={spec.label_share:g}: the released model has no label that it pays for"
    if not spec.label_share and model.get(LABELLED) is True:
        yield "declared.model.label_share: nothing is declared to pay for the label of the released model"
    try:
        crossings = Crossed(schema.layout, read_crossings(model.get(CROSSED, []))).crossings
    except ValueError as error:
        yield f"{CROSSED}: {str(error)[:_LONGEST]}"
        return
    most = CHOSEN if EVIDENCE in {spec.stage for spec in specs} else 0
    if len(crossings) > most:
        yield f"{CROSSED}: the released model has {len(crossings)}, and these settings choose {most} at most"


def _outline(settings: Settings, specs: Sequence[StageSpec], certificate: Mapping[str, Any]) -> Iterator[str]:
    """Give a difference that no budget explains: in stages, rates, failures, names of noises, or counts that are given.

    It is computed without a planner's search, so it also comes before one that a forgery would make long.
    """
    stated = {stage["name"]: stage["event"] for stage in certificate["stages"]}
    if [spec.stage for spec in specs] != list(stated):
        yield f"stages: these settings plan {_listed(spec.stage for spec in specs)}, and stated are {_listed(stated)}"
        return
    counts = {}
    for spec in specs:
        event, counts[spec.stage] = _counted(stated[spec.stage])
        access = spec.access(1.0)
        due = encode(access.event_at(pure=certificate["delta"] == 0.0))
        if not _agree(due, event, None):
            yield _told(spec.stage, _words(due, noise=False), _words(event))
    flexible = next((spec.stage for spec in specs if spec.share is None), specs[-1].stage)
    repeated = {spec.stage: counts[spec.stage] - spec.count for spec in specs if spec.count is not None}
    yield from _repeats(repeated, flexible)

    choices = {(spec.stage, name) for spec in specs for name, kind in spec.kinds.items() if kind == PURE}

    def drawn_by(stage: str, noise: str) -> str:
        if (stage, noise) in choices:
            return NOISY_MAX.name
        return (REAL_GAUSSIAN if stage == TRAINING and noise not in _norms(settings) else ROUNDED_GAUSSIAN).name

    yield from unplanned_names({spec.stage: spec.noise_shares for spec in specs}, drawn_by, certificate)
    yield from _of_other_records(settings, certificate)


def _repeats(repeated: Mapping[str, int], flexible: str) -> Iterator[str]:
    """Give a stage of more or fewer accesses than planned, but for those that a run which went on may have.

    After a crash, accesses whose results were lost are made again, and the stage that has what others leave of the budget
    gives up as many as it takes (`Plan.rewritten`). A first pass that is lost ends its run. A run that stops early is
    certified as it was planned.
    """
    again = any(more > 0 for name, more in repeated.items() if name not in (flexible, FIRST_PASS))
    for name, more in repeated.items():
        allowed = more <= 0 and again if name == flexible else more > 0 and name != FIRST_PASS
        if more and not allowed:
            how = "more" if more > 0 else "fewer"
            yield f"stage {name!r}: {abs(more):,} accesses {how} are stated than these settings plan"


def _planned(settings: Settings, certificate: Mapping[str, Any]) -> Plan:
    """Return the plan of settings: as it was made before a record was read, or of what a first pass has found.

    Raises:
        ValueError, BudgetTooSmall: if there is none.
    """
    spec, parts, stated = settings.spec, settings.parts, certificate.get("reference")
    if stated is None:
        if has_first_pass(spec, parts) and not settings.trained:
            raise ValueError("what is measured is planned from what the first pass finds, and the event has no reference")
        return settings.plan()
    if not has_first_pass(spec, parts):
        raise ValueError("the event has a reference, and these settings plan no first pass")
    # A model that is chosen is not known before the first pass.
    asked = spec if settings.chosen is None else spec.changed(model=AutoSpec())
    promise = reference_plan(asked, first_stage(spec, parts))
    assert promise.reference is not None, "the plan of a first pass has one"
    # More steps are allowed for than are planned in the end, where they follow from defaults.
    if stated["replaceable"] and not promise.reference.replaceable:
        raise ValueError("reference.replaceable: the reference of these settings does not cover a record replaced")
    if not _agree(encode(promise.reference.event), certificate["event"]["events"][-1], _SOLVED):
        raise ValueError("reference: it is not the one that these settings set aside before the first pass")
    return settings.plan(promise)


def unplanned_events(plan: Plan, certificate: Mapping[str, Any]) -> Iterator[str]:
    """Give a stage whose accesses are not those of a plan of the same stages, or of the plan of a run that went on.

    Args:
        certificate: of a shape that was checked.
    """
    stated = {stage["name"]: _counted(stage["event"]) for stage in certificate["stages"]}
    if certificate["relation"] != plan.relation:
        yield f"relation={certificate['relation']!r}: these settings plan for {plan.relation!r}"
    for name, event in plan.stage_events:
        due, _ = _counted(encode(event))
        if not _agree(due, stated[name][0], _SOLVED):
            yield _told(name, _words(due), _words(stated[name][0]))
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


def _bounds(settings: Settings, certificate: Mapping[str, Any]) -> Iterator[str]:
    """Give counts of a table whose stated bound is not the one by which a record moves them: it follows from settings."""
    due = {}
    if kind_of(settings.schema).tabular and not settings.trained:
        first = settings.recipe.workloads[0].stage
        due = {(first, name): counts.bound for name, counts in settings.recipe.statistics(first, {}).items()}
    for entry in certificate["noise"]["sums"]:
        stage = entry["stage"]
        for name in entry["names"]:
            bound = 1.0 if stage == FIRST_PASS and name.startswith(VALUES_OF) else due.get((stage, name))
            stated = entry["bound_in_units"]
            if bound is not None and not (entry["unit"] == "1" and math.isclose(stated, bound, rel_tol=_ROUNDING)):
                yield (
                    f"noise of stage {stage[:80]!r}: a record moves the counts {name[:80]!r} by {bound:.6g}, and stated is "
                    f"{stated:.6g} times {entry['unit'][:40]}"
                )


def _noises(plan: Plan, certificate: Mapping[str, Any]) -> Iterator[str]:
    """Give a noise whose multiplier is not the planned one."""
    for entry in _entries(certificate):
        multipliers = plan.stage(entry["stage"]).access.multipliers
        for name in entry["names"]:
            if not math.isclose(entry["multiplier"], multipliers[name], rel_tol=_SOLVED):
                due = f"{name!r} a multiplier of {multipliers[name]:.6g}"
                yield _told(entry["stage"], due, f"{entry['multiplier']:.6g}")


def unplanned_names(
    due: Mapping[str, Collection[str]], drawn_by: Callable[[str, str], str], certificate: Mapping[str, Any]
) -> Iterator[str]:
    """Give a stage whose noises have other names than planned, are drawn otherwise than this program does, or not at all.

    Args:
        due: the names of the noises of each stage.
        drawn_by: a function from a stage and a noise to the mechanism that draws it.
    """
    for stage, names in due.items():
        entries = [entry for entry in _entries(certificate) if entry["stage"] == stage]
        drawn = {name: entry["mechanism"] for entry in entries for name in entry["names"]}
        what = f"noise of stage {stage[:80]!r}"
        if drawn.keys() != set(names):
            yield f"{what}: it is stated for {_listed(sorted(drawn))}; such a stage draws it for {_listed(sorted(names))}"
            continue
        for name, mechanism in drawn.items():
            # A figure that was paid for and lost is not bought again.
            if mechanism == NOT_DRAWN and stage != FIDELITY:
                yield f"{what}: it is stated to have been planned and never drawn, and the model needs it"
            elif mechanism not in (drawn_by(stage, name), NOT_DRAWN):
                yield f"{what}: {name[:80]!r} is stated to be drawn by {mechanism}; it is by {drawn_by(stage, name)}"


def _of_other_records(settings: Settings, certificate: Mapping[str, Any]) -> Iterator[str]:
    """Give a noise that hides fewer records than a unit of privacy has."""
    most = settings.spec.data.most_rows
    for entry in _entries(certificate):
        stage = entry["stage"]
        of_records = [name for name in entry["names"] if not _is_of_unit(stage, name, settings)]
        if of_records and entry.get("records", most) != most:
            yield (
                f"noise of stage {stage!r}: {of_records[0][:80]!r} is stated for records={entry['records']}, and a unit of "
                f"privacy has {most}"
            )


def _is_of_unit(stage: str, noise: str, settings: Settings) -> bool:
    """Return whether the bound of a sum is that of a person with all records, and not of a single record."""
    if stage == FIRST_PASS:
        return noise != "n" and not noise.startswith(VALUES_OF)
    return stage == TRAINING and noise in _norms(settings)


def _norms(settings: Settings) -> Mapping[str, float]:
    """Return the shares of the noises by which a rule counts norms, and so finds a bound, in each step."""
    return {} if settings.clipping is None else settings.clipping.noise_shares


def _check_selection(
    certificate: Mapping[str, Any], model: Mapping[str, Any], planner: int
) -> tuple[list[str], list[str], list[str]]:
    """Hold the best of several trials against the settings of the winner, whose plan is that of one of the trials.

    The budget of a trial is what it costs; other candidates are not described, and are planned for the same budget.

    Args:
        planner: the number of the planner that has made the plans; of an earlier one multipliers and solved counts are
            its own.
    """
    # Steps that were solved for beside a given noise may leave one step, of which there may be few.
    given = getattr(settings_of(certificate).spec.model, "noise", None) is not None
    if not given and _budget(certificate).holds(decode(_scaled(certificate["event"]))):
        return [_unspent(certificate)], [], []
    if certificate["selection"]["chosen"] is None:
        settings = settings_of(certificate)
        problems = [*_of_model(settings, settings.specs(), model)]
        notes = ["no trial was made, so the declared settings are those of a network that has seen nothing"]
        return problems, [], [] if problems else notes
    event = certificate["event"]["event"]
    trials, problems = event["events"] if event["type"] == "OneOfDpEvent" else [event], []
    for trial in trials:
        cost = compute_epsilon(decode(trial), certificate["delta"]).epsilon
        for factor in _TRIAL_BUDGETS:
            settings = settings_of(certificate, min(cost * factor, certificate["target_epsilon"]))
            specs = settings.specs()
            if problems := [*_of_model(settings, specs, model)]:
                return problems, [], []
            parts = trial["events"] if trial["type"] == "ComposedDpEvent" else [trial]
            names = [spec.stage for spec in specs]
            if len(specs) != len(parts):
                continue
            if planner < PLANNER and all(map(_is_outlined, specs, parts)):
                return [], [], [_EARLIER]
            if planner == PLANNER and _agree(encode(settings.plan().composition), trial, _SOLVED):
                return [], ["the plan of one of the trials is that of the declared settings"], []
    return [f"selection: none of {len(trials):,} trials is what these settings plan, which is {_listed(names)}"], [], []


def _is_outlined(spec: StageSpec, stated: Mapping[str, Any]) -> bool:
    """Return whether the event of a stage is that of its spec but for multipliers, and for a count that is not given."""
    event, count = _counted(stated)
    return _agree(encode(spec.access(1.0).event_at(pure=False)), event, None) and spec.count in (None, count)


def _entries(certificate: Mapping[str, Any]) -> list[dict[str, Any]]:
    return certificate["noise"]["sums"] + certificate["noise"]["others"]


def _counted(event: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
    """Return the event of one access of a stage, and how many there are."""
    return (event["event"], event["count"]) if event["type"] == "SelfComposedDpEvent" else (event, 1)


def _agree(due: Any, stated: Any, tolerance: float | None) -> bool:
    """Return whether two event trees are the same but for last digits; multipliers within a tolerance, or any for None."""
    if isinstance(due, dict):
        if not isinstance(stated, dict) or due.keys() != stated.keys():
            return False
        return all(
            (tolerance is None or math.isclose(due[name], stated[name], rel_tol=tolerance))
            if name == "noise_multiplier"
            else _agree(due[name], stated[name], tolerance)
            for name in due
        )
    if isinstance(due, list):
        return len(due) == len(stated) and all(_agree(*pair, tolerance) for pair in zip(due, stated, strict=True))
    if isinstance(due, float):
        return math.isclose(due, stated, rel_tol=_ROUNDING)
    return due == stated


def _told(stage: str, due: str, stated: str) -> str:
    return f"stage {stage[:80]!r}: its settings give {due[:_LONGEST]}, and the certificate states {stated[:_LONGEST]}"


def _words(event: Mapping[str, Any], *, noise: bool = True) -> str:
    """Return an event in words; without noise, where no multiplier was planned."""
    match event:
        case {"type": "PoissonSampledDpEvent"}:
            return f"lots of rate {event['sampling_probability']:.6g} with {_words(event['event'], noise=noise)}"
        case {"type": "SelfComposedDpEvent"}:
            return f"{event['count']:,} times {_words(event['event'], noise=noise)}"
        case {"events": [*parts]}:
            return " and ".join(_words(part, noise=noise) for part in parts)
        case {"type": "EpsilonDeltaDpEvent"}:
            return f"a failure of probability {event['delta']:.6g}"
        case {"type": "GaussianDpEvent" | "LaplaceDpEvent", "noise_multiplier": multiplier}:
            named = event["type"].removesuffix("DpEvent")
            return f"{named} noise of multiplier {multiplier:.6g}" if noise else f"{named} noise"
    return f"a {event['type']}"


def _listed(names: Iterable[str]) -> str:
    return (", ".join(repr(name[:80]) for name in names) or "none")[:_LONGEST]
