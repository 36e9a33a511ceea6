"""Plan and ledger: how far a run has come, and whether what was drawn is what was promised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import dp_accounting

from lightning_dpgen.common.plain_text import say_steps
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.accounting.accountant import Spent
from lightning_dpgen.privacy.accounting.event_parts import CorrelatedGaussianDpEvent
from lightning_dpgen.privacy.accounting.events import compose_events, encode, stage_events
from lightning_dpgen.privacy.errors import PlanMismatch
from lightning_dpgen.privacy.plan import Plan


def order_by_stage(plan: Plan, accesses: Sequence[tuple[Access, int]]) -> list[tuple[Access, int]]:
    """Return the accesses of a ledger by stage in the plan's order, neighbours that are alike counted together.

    A run that went on makes early stages again after later ones, and stages may be interleaved; what a composition costs
    does not depend on the order.
    """
    order = {stage.name: position for position, stage in enumerate(plan.stages)}
    runs = sorted(accesses, key=lambda run: order.get(run[0].stage, len(order)))
    return [(access, sum(count for _, count in alike)) for access, alike in groupby(runs, key=itemgetter(0))]


def drawn_event(plan: Plan, accesses: Sequence[tuple[Access, int]]) -> dp_accounting.DpEvent:
    """Return the composition of accesses, stage by stage.

    Raises:
        PlanMismatch: if there are none.
    """
    if not accesses:
        raise PlanMismatch("nothing has been drawn yet")
    return compose_events([event for _, event in stage_events(accesses, pure=plan.delta == 0.0)])


def counted_event(plan: Plan, accesses: Sequence[tuple[Access, int]]) -> dp_accounting.DpEvent | None:
    """Return the event with which a stopped run counts in its study: that of what was drawn; None for nothing.

    Where a reference stands for later stages, it is the whole plan's, as it was promised.
    """
    if not accesses or plan.reference is not None:
        return plan.event if accesses else None
    events = []
    for name, event in stage_events(order_by_stage(plan, accesses), pure=plan.delta == 0.0):
        made = sum(count for access, count in accesses if access.stage == name)
        events.append(event.after(made) if isinstance(event, CorrelatedGaussianDpEvent) else event)
    return compose_events(events)


def check_complete(plan: Plan, accesses: Sequence[tuple[Access, int]]) -> None:
    """Raise PlanMismatch unless the accesses of a ledger are all that the plan promised, with that noise."""
    event = drawn_event(plan, accesses)
    # Steps in turn are one event, however many were made.
    for stage in plan.stages if plan.private else ():
        count_made = sum(count for access, count in accesses if access.stage == stage.name)
        if stage.access.sampler.in_turn and count_made != stage.count:
            planned = say_steps(stage.count, stage.access.sample_rate)
            raise PlanMismatch(f"stage {stage.name!r}: {count_made} of {planned} that are planned were made")
    if encode(event) != encode(plan.composition):
        raise PlanMismatch(
            "the ledger is not what the plan promised; nothing may be released under this plan.\nplan:   "
            f"{encode(plan.composition)}\nledger: {encode(event)}"
        )


def certify(
    plan: Plan, accesses: Sequence[tuple[Access, int]], named_stop: int | None = None
) -> tuple[dp_accounting.DpEvent, Spent]:
    """Return event and epsilon for a certificate: the plan's, unless the ledger's is larger; see `Account.certify`."""
    planned, event = plan.spent, drawn_event(plan, accesses)
    if encode(event) == encode(plan.composition):
        return plan.event, planned
    if named_stop is not None:
        event = plan.stopped_after(named_stop).event
        return event, plan.cost_of(event)
    if plan.reference is not None:
        if not plan.covers(accesses):
            raise PlanMismatch("what the ledger holds is not below the reference of the plan: nothing may be released")
        return plan.event, planned
    drawn = plan.cost_of(event)
    if drawn.epsilon > planned.epsilon:
        return event, drawn
    return plan.event, planned


class Progress:
    """The accesses of each stage that have left their mark on the state of a run.

    Args:
        resumed: whether the run goes on with an earlier one, from a start that `go_on` says.

    Attributes:
        done: the accesses, counted by stage; a checkpoint remembers them.
        start: the accesses from which a resumed run went on; None before that is known, and for a new run.
        waits: True if nothing may be drawn before `go_on` is called.
    """

    def __init__(self, resumed: bool = False) -> None:
        self.resumed = self.waits = resumed
        self.start: Mapping[str, int] | None = None
        self.done: Counter[str] = Counter()

    def go_on(self, done: Mapping[str, int]) -> None:
        """Go on from a state with these accesses."""
        self.start, self.waits = dict(done), False
        self.done.update(done)

    @property
    def state(self) -> dict[str, Any]:
        """The numbers that another rank must know to have come as far; see `follow`."""
        return {"from": self.start, "resumed": self.resumed, "done": dict(self.done)}

    def follow(self, state: Mapping[str, Any]) -> None:
        """Take over the progress of rank 0."""
        self.start, self.resumed, self.done = state["from"], state["resumed"], Counter(state["done"])
        self.waits = self.resumed and self.start is None
