"""The check of a certificate's epsilon, which is recomputed from its event tree alone."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import dp_accounting
from dp_accounting.rdp import RdpAccountant
from opacus.accountants import RDPAccountant

from lightning_dpgen.privacy.accounting.accountant import INTERVALS, MOST_POINTS, affordable, compute_epsilon
from lightning_dpgen.privacy.accounting.epsilon_range import PLD, round_up
from lightning_dpgen.privacy.accounting.event_parts import (
    CorrelatedGaussianDpEvent,
    EpsilonDeltaDpEvent,
    gaussian_history,
    without_failures,
)
from lightning_dpgen.privacy.accounting.events import UnknownEvent, check_size, compose_events, decode, encode
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE, REPLACE_ONE
from lightning_dpgen.privacy.accounting.private_selection import SHAPES, OneOfDpEvent
from lightning_dpgen.privacy.accounting.reference import Reference, read_reference
from lightning_dpgen.privacy.accounting.renyi import compute_epsilon_by_rdp
from lightning_dpgen.privacy.noise.stream import SECURE, STANDARD
from lightning_dpgen.privacy.sampling.samplers import read_truncation, truncation_failure
from lightning_dpgen.release.certificate import (
    ACCOUNTANTS,
    INIT,
    STUDY_UNKNOWN,
    TRUNCATED_LOTS,
    also,
    stage_epsilons,
    whole_epsilon,
)
from lightning_dpgen.release.unit_check import protects_persons
from lightning_dpgen.release.verdict import TOLERANCE, Verdict
from lightning_dpgen.verification.stops_check import counted_event, named_times

# Relative tolerance between the account of a run and that of its study, which is the looser one.
_BETWEEN_ACCOUNTS = 1e-2
# A smaller delta cannot be accounted for soundly, or in reasonable time.
_SMALLEST_DELTA = 1e-30
# The difference between neighbours, in words.
_CHANGES = {ADD_OR_REMOVE_ONE: "added or removed", REPLACE_ONE: "replaced"}
# Orders of Renyi moments, for a second account.
_ORDERS = [*range(2, 65), 128, 256, 512]


def check_epsilon(certificate: dict, verdict: Verdict) -> None:
    """Check that the numbers of a certificate of a checked shape follow from its event tree.

    Args:
        verdict: gets epsilon as it is recomputed, and what is wrong, confirmed or worth knowing.
    """
    try:
        # All stages together, too, hold no more strategies than a plan.
        check_size([stage["event"] for stage in certificate["stages"]])
        event = decode(certificate["event"])
        stages = [(stage["name"], decode(stage["event"]), stage["epsilon"]) for stage in certificate["stages"]]
    except UnknownEvent as error:
        verdict.problems.append(f"the event tree cannot be accounted for: {error}")
        return
    seeded = certificate["noise"]["seeded"]
    if not certificate["private"]:
        reason = "its noise came from a debugging seed" if seeded else "it was made without privacy"
        verdict.problems.append(f"the certificate itself says that this is not a private release: {reason}")
        return
    if seeded:
        verdict.problems.append("the noise came from a known seed, so it can be removed")
    _check_correlated(certificate, [event, *(stage for _, stage, _ in stages)], verdict)
    if certificate["noise"]["source"] not in (STANDARD, SECURE):
        verdict.problems.append("noise.source is none that this software draws private noise from")
    delta, epsilon, target = (certificate[name] for name in ("delta", "epsilon", "target_epsilon"))
    if delta and not _SMALLEST_DELTA <= delta < 1.0:
        verdict.problems.append(f"delta={delta:g}: expected 0, or a number from {_SMALLEST_DELTA:g} to 1")
        return
    if delta >= 1.0 / certificate["declared"]["n"]:
        verdict.problems.append(f"delta={delta:g} is 1/n or more: publishing one record in n would satisfy it")
    if epsilon > target * (1.0 + TOLERANCE):
        verdict.problems.append(f"epsilon={epsilon:g} is above the budget that was set, target_epsilon={target:g}")
    if len({name for name, *_ in stages}) < len(stages):
        verdict.problems.append("two stages have one name")
    try:
        _check_account(certificate, event, stages, verdict)
    except (ValueError, ArithmeticError) as error:
        verdict.problems.append(f"the event tree cannot be accounted for: {error}")


def _check_correlated(certificate: dict, events: list[dp_accounting.DpEvent], verdict: Verdict) -> None:
    """Check that correlated noise is stated under a relation for which its sampler is proved, and say how large it is.

    Sensitivities were computed again from the strategies when the events were read.
    """
    relation = certificate["relation"]
    correlated = {event for tree in events for event in _parts(tree) if isinstance(event, CorrelatedGaussianDpEvent)}
    if correlated and (relation == REPLACE_ONE or certificate["declared"].get("max_rows", 1) > 1):
        verdict.problems.append("correlated noise is proved for one record added or removed alone")
    for event in correlated if not verdict.problems else ():
        verdict.checks.append(
            f"the strategy of the steps moves by at most {event.sensitivity:.6g} with a record, so the independent part of "
            f"each step's noise is {event.noise_multiplier * event.sensitivity:.6g} times the bound of a record"
        )


def _parts(event: dp_accounting.DpEvent) -> Iterator[dp_accounting.DpEvent]:
    yield event
    for part in [*getattr(event, "events", ()), *([event.event] if hasattr(event, "event") else ())]:
        yield from _parts(part)


def _check_account(
    certificate: dict,
    event: dp_accounting.DpEvent,
    stages: list[tuple[str, dp_accounting.DpEvent, float | None]],
    verdict: Verdict,
) -> None:
    """Check that the numbers follow from the event tree, which is evaluated only if all of it is affordable."""
    relation, delta, epsilon = (certificate[name] for name in ("relation", "delta", "epsilon"))
    before, events = len(verdict.problems), [stage for _, stage, _ in stages]
    reference = _reference(certificate, event, events, verdict)
    fit = len(verdict.problems) == before
    interval = certificate["accountant"]["value_discretization_interval"]
    if interval not in (0.0, *INTERVALS):
        verdict.problems.append(f"an interval of {interval:g} is none that this accountant uses")
        return
    known = len(verdict.problems)
    times, dearest = named_times(certificate, event, events, verdict)
    if len(verdict.problems) > known:
        return
    at = delta / len(times)
    # At delta 0 epsilon is a sum.
    if delta:
        finer = 0.0 < interval < INTERVALS[0]
        if finer and not (affordable(dearest, interval) and compute_epsilon_by_rdp(dearest, at) <= MOST_POINTS * interval):
            verdict.problems.append(f"an interval of {interval:g} is too fine for an event that costs so much")
            return
        # Stages that a reference stands for are no part of the event.
        evaluated = compose_events([event, *events]) if fit and reference is not None else event
        if not affordable(evaluated, INTERVALS[0]):
            verdict.problems.append("the event tree is of more different noises than an account of it can be made of")
            return
    _check_selection(certificate["selection"], event, verdict)
    _check_truncated(certificate, dict(zip((name for name, *_ in stages), events, strict=True)), verdict)
    before = len(verdict.problems)
    accountant = certificate["accountant"].get("chosen", PLD)
    spending = compute_epsilon(event, at, relation=relation, interval=interval or None, accountant=accountant)
    verdict.epsilon = spending.epsilon
    if (certificate["accountant"]["name"], interval) != (ACCOUNTANTS[spending.method], spending.interval):
        verdict.problems.append(
            f"the accountant is not the one that this event needs: {ACCOUNTANTS[spending.method]}, interval "
            f"{spending.interval:g}"
        )
    _compare("epsilon", epsilon, verdict.epsilon, verdict)
    # The cost of stages says nothing of an event that is not made of them, or whose account is another one.
    if not fit or len(verdict.problems) > before:
        return
    for stated, time in zip(certificate["stops"]["epsilons"] if len(times) > 1 else (), times, strict=len(times) > 1):
        cost = compute_epsilon(time, at, relation=relation, interval=interval or None, accountant=accountant).epsilon
        _compare("epsilon of a named time", stated, cost, verdict)
    costs = stage_epsilons(events, at, interval or None, relation, accountant)
    for (name, _, stated), cost in zip(stages, costs, strict=True):
        _compare(f"epsilon of stage {name!r}", stated, cost, verdict)
    if len(verdict.problems) > before:
        return
    if reference is not None:
        _check_reference(reference, events, verdict)
    if certificate["study"] != STUDY_UNKNOWN:
        counted = event if "stopped" not in certificate or reference is not None else counted_event(certificate, events)
        _check_study(certificate["study"], counted, relation, certificate["declared"]["n"], verdict)
    replaceable = reference is None or reference.replaceable
    # They state the cost of the procedure, whenever it ends.
    others = also(
        dearest, whole_epsilon(certificate), delta, interval or None, relation, replaceable, accountant, len(times)
    )
    if not _agrees(certificate["also"], others):
        verdict.problems.append("'also' is not what the event tree costs when a record is replaced, or at other deltas")
    if len(verdict.problems) == before:
        declared = certificate["declared"]
        unit = "one person" if isinstance(declared, dict) and protects_persons(certificate) else "one record"
        verdict.checks.append(
            f"epsilon recomputed from the event tree: {round_up(verdict.epsilon):g} at delta {delta:g} "
            f"(stated: {epsilon:g}), {unit} {_CHANGES[relation]}"
        )
        if len(times) > 1:
            verdict.checks.append(
                f"each of {len(times)} named times has delta {at:g}, at which its epsilon was recomputed; the run is "
                f"charged up to {certificate['stops']['charged']:,}"
            )
        verdict.notes.append(_second_opinion(event, at, relation))
        if (init := declared.get(INIT)) is not None:
            verdict.notes.append(f"it rests on the declaration that these data are public: {init['public']}")


def _reference(
    certificate: dict, event: dp_accounting.DpEvent, stages: list[dp_accounting.DpEvent], verdict: Verdict
) -> Reference | None:
    """Return the reference that stands in the event for stages planned later, if any; check that the rest composes it."""
    stated = certificate.get("reference")
    if stated is None:
        if encode(compose_events(stages)) != certificate["event"]:
            verdict.problems.append("the event is not the composition of the stages")
        return None
    after = stated["after"]
    first, parts = stages[:after], getattr(event, "events", [])
    try:
        if len(parts) != after + 1 or len(stages) <= after or certificate["relation"] != ADD_OR_REMOVE_ONE:
            raise ValueError("expected so many stages before it and one at least behind it, of a record added or removed")
        reference = read_reference(parts[-1], after, replaceable=stated["replaceable"])
    except ValueError as error:
        verdict.problems.append(f"reference: the event does not end with one ({error})")
        return None
    if encode(compose_events([*first, reference.event])) != certificate["event"]:
        verdict.problems.append("the event is not the composition of the first stages and the reference")
    return reference


def _check_reference(reference: Reference, stages: list[dp_accounting.DpEvent], verdict: Verdict) -> None:
    """Check that the later stages are below the reference, at every epsilon and in both directions."""
    rest = compose_events(stages[reference.after :])
    try:
        dominated = reference.dominates(rest)
    except ValueError as error:
        verdict.problems.append(f"reference: the stages that it stands for cannot be accounted for: {error}")
        return
    if dominated:
        verdict.checks.append(
            "the stages that were planned from what the first ones released are dominated by the reference in the event"
        )
    else:
        verdict.problems.append(
            "reference: it does not dominate the stages that it stands for, so these cost more than the event says"
        )


def _check_selection(selection: dict | str, event: dp_accounting.DpEvent, verdict: Verdict) -> None:
    """Check that the event is that of the stated selection, or of none."""
    selects = isinstance(event, dp_accounting.dp_event.RepeatAndSelectDpEvent)
    if not isinstance(selection, dict):
        if "RepeatAndSelect" in json.dumps(encode(event)):
            verdict.problems.append("the event is that of the best of several trials, and the certificate speaks of none")
        return
    if not selects or (event.mean, event.shape) != (selection["mean"], SHAPES[selection["law"]]):
        verdict.problems.append(
            f"selection: the event is not that of the best of trials of the {selection['law']} law of mean "
            f"{selection['mean']:g}"
        )
    space, chosen = selection["space"], selection["chosen"]
    if chosen is not None and (chosen.keys() != space.keys() or any(chosen[name] not in space[name] for name in space)):
        verdict.problems.append("selection: what was chosen is none of what there was to choose from")
    if chosen is None and selection["law"] != "poisson":
        verdict.problems.append(f"selection: under the {selection['law']} law there is always a trial")


def _check_truncated(certificate: dict, events: dict[str, dp_accounting.DpEvent], verdict: Verdict) -> None:
    """Check that lots are cut where the certificate says so, and that each fails as often as its numbers say."""
    stated = certificate["declared"].get(TRUNCATED_LOTS, {})
    try:
        cuts = {name: read_truncation(fields) for name, fields in stated.items()}
    except (ValueError, AttributeError):
        verdict.problems.append(f"declared.{TRUNCATED_LOTS}: expected largest_lot and at_most of each stage with such lots")
        return
    for name in sorted(set(cuts) - set(events)):
        verdict.problems.append(f"declared.{TRUNCATED_LOTS}: {name[:80]!r} is no stage")
    for name, event in events.items():
        cut = cuts.get(name)
        for rate, failure in _lots(event):
            if failure < (0.0 if cut is None else truncation_failure(rate, *cut)) * (1.0 - TOLERANCE):
                verdict.problems.append(f"stage {name[:80]!r}: its cut lots fail more often than its event says")
                break
            if cut is None and failure:
                verdict.problems.append(f"stage {name[:80]!r}: declared.{TRUNCATED_LOTS} does not say why its lots fail")
                break
    if cuts:
        most, declared = min(at_most for _, at_most in cuts.values()), certificate["declared"]
        if most * declared.get("max_rows", 1) < declared["n"]:
            verdict.problems.append(
                f"declared.{TRUNCATED_LOTS}: at_most={most:,} is below what declared.n={declared['n']:,} records need"
            )
        verdict.notes.append(f"it rests on the declaration that such data never hold more than {most:,} records or persons")


def _lots(event: dp_accounting.DpEvent) -> Iterator[tuple[float, float]]:
    """Yield the rate of each kind of lot in the event of a stage, and the failure beside it: 0 where there is none."""
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
        yield from _lots(event.event)
    elif isinstance(event, dp_accounting.PoissonSampledDpEvent):
        yield event.sampling_probability, 0.0
    elif isinstance(event, dp_accounting.ComposedDpEvent):
        match event.events:
            case [dp_accounting.PoissonSampledDpEvent() as lot, EpsilonDeltaDpEvent() as failure]:
                yield lot.sampling_probability, failure.delta
            case parts:
                for part in parts:
                    yield from _lots(part)


def _check_study(study: dict, event: dp_accounting.DpEvent, relation: str, n: int, verdict: Verdict) -> None:
    """Check that a study can have spent so little with this run in it, and no more than its total."""
    if study["epsilon"] > study["total_epsilon"]:
        verdict.problems.append(f"study: epsilon {study['epsilon']:g} is above the total of {study['total_epsilon']:g}")
    if study["delta"] < _SMALLEST_DELTA:
        verdict.problems.append(f"study: delta={study['delta']:g}: expected a number from {_SMALLEST_DELTA:g} to 1")
        return
    # Other runs of the study may have fewer records, so this alone is no fault.
    if study["delta"] >= 1.0 / n:
        verdict.notes.append(f"study: delta={study['delta']:g} is 1/n or more: its epsilon says little of these records")
    # A run under replace-one enters with its own epsilon.
    alone = verdict.epsilon if relation == REPLACE_ONE else compute_epsilon(event, study["delta"]).epsilon
    if study["epsilon"] < alone * (1.0 - _BETWEEN_ACCOUNTS):
        verdict.problems.append(
            f"study: epsilon {study['epsilon']:g} at delta {study['delta']:g} is less than what this run alone costs, "
            f"{alone:.6g}"
        )
    if relation == REPLACE_ONE != study["relation"]:
        verdict.problems.append("study: is stated for a record added or removed, and this run for one replaced")


def _compare(name: str, stated: float | None, recomputed: float, verdict: Verdict) -> None:
    if stated is None or not math.isfinite(recomputed) or stated < recomputed * (1.0 - TOLERANCE):
        verdict.problems.append(f"{name} is stated as {stated}, but the event tree costs {recomputed:.6g}")
    elif round_up(recomputed * (1.0 + TOLERANCE)) < stated:
        verdict.problems.append(f"{name} is stated as {stated}, and the event tree costs only {recomputed:.6g}")


def _agrees(stated: Any, recomputed: Any) -> bool:
    """Return whether two JSON values are equal, numbers up to one in their last written digit."""
    if isinstance(recomputed, dict):
        return stated.keys() == recomputed.keys() and all(_agrees(stated[key], recomputed[key]) for key in recomputed)
    if isinstance(recomputed, list):
        return len(stated) == len(recomputed) and all(map(_agrees, stated, recomputed))
    if isinstance(recomputed, float) and isinstance(stated, (int, float)):
        return math.isclose(stated, recomputed, rel_tol=2e-5)
    return stated == recomputed


def _second_opinion(event: dp_accounting.DpEvent, delta: float, relation: str) -> str:
    """Ask an accountant of other authors: Opacus, by Renyi moments."""
    # Opacus knows no failures, so it is asked for the rest, at what they leave of delta.
    event, delta = without_failures(event, delta) if delta else (event, delta)
    if isinstance(event, dp_accounting.dp_event.RepeatAndSelectDpEvent) and not isinstance(event.event, OneOfDpEvent):
        epsilon_by_rdp = RdpAccountant(_ORDERS).compose(event).get_epsilon(delta)
        return f"a second account (dp_accounting's own of the best of several trials): {round_up(epsilon_by_rdp):g}"
    history = None if relation == REPLACE_ONE else gaussian_history(event)
    if history is None:
        return "no second accountant: Opacus knows neither Laplace noise, nor a replaced record, nor trials that differ"
    accountant, times = RDPAccountant(), Counter()
    for multiplier, rate, count in history:
        times[multiplier, rate] += count
    accountant.history = [(*noise, count) for noise, count in times.items()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its orders may end, and its bound holds all the same
        # Whole orders only: the series of other orders may take minutes to converge.
        epsilon = accountant.get_epsilon(delta, alphas=_ORDERS)
    return f"a second accountant (Opacus, Renyi moments, a looser bound): {round_up(epsilon):g}"
