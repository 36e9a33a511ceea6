"""The check of a run that was stopped for good, and of the times to stop at that its plan has named."""

from __future__ import annotations

import itertools
import math
from typing import Any

import dp_accounting

from lightning_dpgen.privacy.accounting.event_parts import CorrelatedGaussianDpEvent
from lightning_dpgen.privacy.accounting.events import compose_events
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE
from lightning_dpgen.release.verdict import TOLERANCE, Verdict


def named_times(
    certificate: dict[str, Any], event: dp_accounting.DpEvent, stages: list[dp_accounting.DpEvent], verdict: Verdict
) -> tuple[list[dp_accounting.DpEvent], dp_accounting.DpEvent]:
    """Check what is stated of stops, but for the epsilons; return the events of all named times, and the dearest of them.

    Args:
        certificate: of a checked shape.
        event: its event.
        stages: the events of its stages.
        verdict: gets what is wrong.
    """
    names, stops = [stage["name"] for stage in certificate["stages"]], certificate.get("stops")
    drawn, counts = certificate.get("stopped", {}), [_count(stage) for stage in stages]
    for name, made in drawn.items():
        if name not in names or made > counts[names.index(name)]:
            verdict.problems.append(f"stopped: {made:,} accesses of {name[:80]!r} are stated, and the event has fewer")
            return [event], event
    if stops is None:
        return [event], event
    named, charged = stops["named"], stops["charged"]
    wrong = None
    if "reference" in certificate or certificate["relation"] != ADD_OR_REMOVE_ONE or not certificate["delta"]:
        wrong = "no time is certified of such a plan"
    elif stops["stage"] not in names or not all(before < after for before, after in itertools.pairwise(named)):
        wrong = "expected a stage, and rising numbers of its accesses"
    elif isinstance(place := stages[names.index(stops["stage"])], CorrelatedGaussianDpEvent):
        wrong = "no time is certified of correlated noise"
    elif charged not in named or _count(place) != charged:
        wrong = f"charged={charged:,}: expected a named time, and the event of so many accesses"
    elif len(stops["epsilons"]) != len(named):
        wrong = "expected an epsilon for each named time"
    elif not math.isclose(stops["delta_of_each"], certificate["delta"] / len(named), rel_tol=TOLERANCE):
        wrong = f"delta_of_each={stops['delta_of_each']:g}: expected delta over the {len(named)} named times"
    elif certificate["stages"][names.index(stops["stage"])].get("interleaved"):
        wrong = "no time is certified of an interleaved stage"
    elif charged < named[-1] and stops["stage"] not in drawn:
        wrong = "a run is charged up to a time before the last if it was stopped for good, behind its first access"
    elif charged < named[-1] and charged != next(time for time in named if time >= drawn[stops["stage"]]):
        # Up to the last time a run is also charged whose plan was rewritten.
        wrong = (
            f"charged={charged:,}: expected the first time behind the {drawn[stops['stage']]:,} accesses that were drawn"
        )
    elif stops["stage"] in drawn and (unfinished := _unfinished_before(certificate, counts)):
        wrong = f"stage {unfinished[:80]!r} stands before {stops['stage'][:80]!r}, and not all of it is stated as drawn"
    if wrong is not None:
        verdict.problems.append(f"stops: {wrong}")
        return [event], event
    times = [
        compose_events(
            [
                _repeated(stage, count) if name == stops["stage"] else stage
                for name, stage in zip(names, stages, strict=True)
            ]
        )
        for count in named
    ]
    return times, times[-1]


def _unfinished_before(certificate: dict[str, Any], counts: list[int]) -> str | None:
    """Return a stage that had to be complete before the stage that was stopped, and is not; None if there is none."""
    drawn, last = certificate["stopped"], certificate["stops"]["stage"]
    named = zip(certificate["stages"], counts, strict=True)
    before = itertools.takewhile(lambda stage: stage[0]["name"] != last, named)
    left = (field["name"] for field, count in before if not field.get("interleaved") and drawn.get(field["name"]) != count)
    return next(left, None)


def counted_event(certificate: dict[str, Any], stages: list[dp_accounting.DpEvent]) -> dp_accounting.DpEvent:
    """Return the event of what a stopped run has drawn, of which its study counts no less."""
    drawn = certificate["stopped"]
    named = zip(certificate["stages"], stages, strict=True)
    return compose_events([_repeated(stage, drawn[field["name"]]) for field, stage in named if field["name"] in drawn])


def _count(stage: dp_accounting.DpEvent) -> int:
    """Return the number of equal accesses of a stage; of steps in turn, all that its strategy has."""
    if isinstance(stage, CorrelatedGaussianDpEvent):
        return stage.strategy.steps
    return stage.count if isinstance(stage, dp_accounting.SelfComposedDpEvent) else 1


def _repeated(stage: dp_accounting.DpEvent, count: int) -> dp_accounting.DpEvent:
    """Return the event of so many accesses of a stage."""
    if isinstance(stage, CorrelatedGaussianDpEvent):
        return stage.after(count)
    one = stage.event if isinstance(stage, dp_accounting.SelfComposedDpEvent) else stage
    return one if count == 1 else dp_accounting.SelfComposedDpEvent(one, count)
