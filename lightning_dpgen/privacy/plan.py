"""The plan: every access that a run will make, with its noise, computed before any record is read."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import dp_accounting

from lightning_dpgen.common.arguments import read_whole
from lightning_dpgen.common.strict_json import check_shape, shape
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.accounting.accountant import INTERVALS, Spent, affordable, compute_epsilon
from lightning_dpgen.privacy.accounting.epsilon_range import (
    ACCOUNTANTS_BY_NAME,
    LARGEST_EPSILON,
    PLD,
    check_accountant,
    round_down,
)
from lightning_dpgen.privacy.accounting.events import compose_events, stage_events
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE, RELATIONS
from lightning_dpgen.privacy.accounting.reference import Reference, dominating_shift
from lightning_dpgen.privacy.accounting.renyi import compute_epsilon_by_rdp
from lightning_dpgen.privacy.errors import BudgetTooSmall, PlanMismatch
from lightning_dpgen.privacy.sampling.strategy import MOST_STRATEGIES

# Far more than rounding moves a number in a calibration, and far less than a difference of noise that matters.
_ROUNDING = 1e-9
_COUNT = {"type": "integer", "minimum": 1, "maximum": 10**9}
_NUMBER = {"type": "number"}
_REFERENCE = shape(multiplier=_NUMBER, failure=_NUMBER, after=_COUNT, replaceable={"type": "boolean"}).schema
_SHAPE = shape(
    stages={
        "type": "array",
        "minItems": 1,
        "items": shape(count=_COUNT, share=_NUMBER, multiple_=_COUNT, interleaved_={"const": True}).schema,
    },
    target_epsilon={"type": ["number", "null"], "exclusiveMinimum": 0},
    delta={"type": "number", "minimum": 0, "exclusiveMaximum": 1},
    relation={"enum": list(RELATIONS)},
    max_rows=_COUNT,
    flexible={"type": ["string", "null"]},
    reference=_REFERENCE | {"type": ["object", "null"], "additionalProperties": False},
    n_={"type": "integer", "minimum": 1},
    stops_={"type": "array", "items": _COUNT},
    accountant_={"enum": list(ACCOUNTANTS_BY_NAME)},
)

# The stages of the steps of a training, and of the label of measured statistics.
TRAINING, LABELS = "training", "labels"
# The most stages of a certificate, which lists them one by one.
MOST_STAGES = 1000
# The most named times of a plan, the last among them, so that others can compute the epsilon of each in seconds.
MOST_STOPS = 20


@dataclass(frozen=True)
class Stage:
    """One stage of a plan: `count` equal accesses, which make a difference by so many at a time (`multiple`).

    Accesses of an `interleaved` stage are made between those of the stages behind it, when public numbers say so.
    """

    access: Access
    count: int
    share: float
    multiple: int = 1
    interleaved: bool = False

    @property
    def name(self) -> str:
        return self.access.stage

    def as_json(self) -> dict[str, Any]:
        """Return the stage as it stands in a ledger; what is as ever is left out."""
        fields = self.access.as_json() | {"count": self.count, "share": self.share}
        fields |= {} if self.multiple == 1 else {"multiple": self.multiple}
        return fields | ({"interleaved": True} if self.interleaved else {})

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Stage:
        """Return the stage that `as_json` described, of a plan whose shape was checked.

        Raises:
            ValueError: for a schedule, which ledgers of before the first release may hold.
        """
        if "later" in fields:
            raise ValueError(
                f"stage {fields.get('stage')!r}: a schedule of noise or rate, which this version does not know"
            )
        count, multiple = int(fields["count"]), int(fields.get("multiple", 1))
        return cls(Access.from_json(fields), count, fields["share"], multiple, fields.get("interleaved", False))

    def draws_as(self, other: Stage) -> bool:
        """Return whether both stages draw the same, whichever way their numbers were computed.

        A share says how noise was found and not what is drawn, so shares are not compared. Fractions may differ in their
        last digits, since another sequence of operations, or another version of a library, rounds differently.
        """
        ours, theirs = self.access, other.access
        return (
            (self.name, self.count, ours.kinds, ours.trials) == (other.name, other.count, theirs.kinds, theirs.trials)
            and ours.sampler.is_close(theirs.sampler)
            and _are_close(ours.multipliers, theirs.multipliers)
            and _are_close(ours.deltas, theirs.deltas)
        )


def _are_close(one: Mapping[str, float], two: Mapping[str, float]) -> bool:
    return one.keys() == two.keys() and all(math.isclose(one[name], two[name], rel_tol=_ROUNDING) for name in one)


@dataclass(frozen=True)
class Plan:
    """The promise of a run: its stages in order, and the budget that they were calibrated to.

    `epsilon` is computed from `event`; it is `inf` for a run without privacy, whose event is one NonPrivateDpEvent.
    Multipliers and epsilon are those of `relation`; see `access.Access`. One unit is added or removed: a record, or a
    person with all of their records, `max_rows` at most. Lots draw units whole, and every mechanism multiplies the
    sensitivity of a record by `max_rows`, since a unit is that many records added one after the other.

    `n` is the number of records that the plan was made for: declared, or bought by its first stages; None where no stage
    depends on it.

    `flexible` names the stage that gives up accesses if others have to be made again (`rewrite`); None is the last one.

    In a plan that is made from what its first stages have released, `reference` stands for the stages after these: it was
    fixed before, dominates them, and takes their place in `event`.

    `accountant` is the one that epsilon was calibrated with, and that a certificate states it by: ``pld`` or ``rdp``.

    `stops` names numbers of accesses of the flexible stage, rising and below its count: a run that ends at one of them, or
    before it and behind the one before, is certified at its cost (docs/guarantees/accounting.md, "Stops at named times").
    Each of these times and the last access have an equal part of delta (`part_of_delta`), at which all epsilons stand.
    """

    stages: tuple[Stage, ...]
    target_epsilon: float
    delta: float
    relation: str = ADD_OR_REMOVE_ONE
    max_rows: int = 1
    flexible: str | None = None
    reference: Reference | None = None
    n: int | None = None
    accountant: str = PLD
    stops: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_accountant(self.accountant)
        if self.accountant != PLD and (self.delta == 0.0 or self.reference is not None):
            raise ValueError(
                f"accountant={self.accountant!r}: a plan at delta=0, or made from what its first stages release, takes "
                f"{PLD!r} alone"
            )
        object.__setattr__(self, "max_rows", read_whole("max_rows", self.max_rows))
        if self.n is not None:
            object.__setattr__(self, "n", read_whole("n", self.n, of=" of records"))
        if self.reference is not None and self.relation != ADD_OR_REMOVE_ONE:
            raise ValueError(f"relation={self.relation!r}: a reference is one under {ADD_OR_REMOVE_ONE}")
        for stage in self.stages:
            stage.access.sampler.check_plan(stage.name, stage.count, self.relation, self.max_rows, self.n)
        if sum(stage.access.sampler.noise_strategy is not None for stage in self.stages) > MOST_STRATEGIES:
            raise ValueError(f"expected at most {MOST_STRATEGIES} stages with correlated noise")
        object.__setattr__(self, "stops", tuple(self.stops))
        self._check_stops()
        if (count := len(self.accesses)) > MOST_STAGES:
            raise ValueError(f"{count:,} stages: expected at most {MOST_STAGES:,}, so that others can verify their account")
        if self.delta and self.stages and not self._affordable:
            raise ValueError(
                f"{len(self.stages):,} stages: accounting for their noises takes minutes; expected fewer stages that are "
                "sampled or have Laplace noise, the same noise in more of them, or more noise"
            )

    def _check_stops(self) -> None:
        if not self.stops:
            return
        last = self._last
        rising = all(type(stop) is int for stop in self.stops) and all(
            before < after for before, after in itertools.pairwise((0, *self.stops, last.count))
        )
        if not rising or len(self.stops) >= MOST_STOPS:
            raise ValueError(
                f"stops={self.stops!r}: expected at most {MOST_STOPS - 1} whole numbers, rising, from 1 to "
                f"{last.count - 1:,}, of the {last.count:,} accesses of stage {last.name!r}"
            )
        other = self.reference is not None or self.relation != ADD_OR_REMOVE_ONE or not self.delta
        if last.access.sampler.in_turn or other:
            raise ValueError(
                f"stops={self.stops!r}: expected independent noise in each access (sampler='poisson'), no first pass that "
                "the plan follows from, a record added or removed, and a delta above 0; leave stops out, since for others "
                "no stop is certified below the whole plan"
            )

    @property
    def _last(self) -> Stage:
        """The stage that gives up accesses, and whose accesses `stops` counts."""
        return self.stages[-1] if self.flexible is None else self.stage(self.flexible)

    @property
    def part_of_delta(self) -> float:
        """The delta at which epsilon is computed: that of the plan, or the part of it that each named time has."""
        return self.delta / (len(self.stops) + 1)

    def stopped_after(self, count: int) -> Plan:
        """Return the plan that ends after so many accesses of the stage whose accesses `stops` counts."""
        last = self._last
        stages = tuple(replace(stage, count=count) if stage is last else stage for stage in self.stages)
        return replace(self, stages=stages, stops=tuple(stop for stop in self.stops if stop < count))

    def named_stop(self, accesses: Sequence[tuple[Access, int]]) -> int | None:
        """Return the named time at which a run is certified that ended for good; None if it is charged as a whole.

        Args:
            accesses: all that were drawn. Other stages are charged whole, however much of them was drawn.
        """
        made: Counter[str] = Counter()
        for access, count in accesses:
            made[access.stage] += count
        planned = {stage.name: stage for stage in self.stages}
        if any(access.stage not in planned or access != planned[access.stage].access for access, _ in accesses):
            return None
        if any(count > planned[name].count for name, count in made.items()):
            return None
        return next((stop for stop in self.stops if 0 < made[self._last.name] <= stop), None)

    @property
    def _affordable(self) -> bool:
        """True if others can verify the plan in seconds, or if its Renyi moments are infinite and so its only account."""
        stages = compose_events([access.event for access, _ in self.accesses])
        return affordable(stages, INTERVALS[0]) or compute_epsilon_by_rdp(self.event, self.delta) > LARGEST_EPSILON

    @cached_property
    def private(self) -> bool:
        return all(access.private for access, _ in self.accesses)

    @property
    def accesses(self) -> list[tuple[Access, int]]:
        return [(stage.access, stage.count) for stage in self.stages]

    @property
    def stage_events(self) -> list[tuple[str, dp_accounting.DpEvent]]:
        return stage_events(self.accesses, pure=self.delta == 0.0)

    @property
    def composition(self) -> dp_accounting.DpEvent:
        """The composition of all accesses."""
        return compose_events([event for _, event in self.stage_events])

    @property
    def event(self) -> dp_accounting.DpEvent:
        """The cost of the plan: its composition, where the reference takes the place of the stages that it stands for."""
        if self.reference is None:
            return self.composition
        first = self.stage_events[: self.reference.after]
        return compose_events([*(event for _, event in first), self.reference.event])

    @cached_property
    def spent(self) -> Spent:
        return self.cost_of(self.event)

    def cost_of(self, event: dp_accounting.DpEvent, *, delta: float | None = None, interval: float | None = None) -> Spent:
        """Return epsilon of an event (`compute_epsilon`) by the plan's relation and accountant.

        Args:
            delta: None for `part_of_delta`.
        """
        delta = self.part_of_delta if delta is None else delta
        return compute_epsilon(event, delta, relation=self.relation, interval=interval, accountant=self.accountant)

    @property
    def epsilon(self) -> float:
        return self.spent.epsilon

    def stage(self, name: str) -> Stage:
        """Return the stage of a name.

        Raises:
            ValueError: if the plan has none.
        """
        for stage in self.stages:
            if stage.access.stage == name:
                return stage
        raise ValueError(f"stage={name!r}: the plan has the stages {[stage.name for stage in self.stages]}")

    def as_json(self) -> dict[str, Any]:
        """Return the plan as it stands in a ledger; a target that is infinite is null, and what is as ever is left out."""
        fields = {
            "stages": [stage.as_json() for stage in self.stages],
            "target_epsilon": self.target_epsilon if math.isfinite(self.target_epsilon) else None,
            "delta": self.delta,
            "relation": self.relation,
            "max_rows": self.max_rows,
            "flexible": self.flexible,
            "reference": None if self.reference is None else self.reference.as_json(),
        }
        extra: dict[str, Any] = {"n": self.n, "accountant": None if self.accountant == PLD else self.accountant}
        extra |= {"stops": list(self.stops) or None}
        return fields | {name: value for name, value in extra.items() if value is not None}

    @classmethod
    def from_json(cls, fields: Any) -> Plan:
        """Return the plan that `as_json` described; fields may be anything that was read.

        Raises:
            ValueError: if the fields describe none.
        """
        check_shape(fields, _SHAPE)
        stages = tuple(Stage.from_json(stage) for stage in fields["stages"])
        names = [stage.name for stage in stages]
        if len(set(names)) < len(names) or fields["flexible"] not in (None, *names):
            raise ValueError(f"stages {str(names)[:160]}: expected no name twice, and the flexible one among them")
        target = math.inf if fields["target_epsilon"] is None else fields["target_epsilon"]
        reference = None if fields["reference"] is None else Reference(**fields["reference"])
        rows, n = int(fields["max_rows"]), int(fields["n"]) if "n" in fields else None
        accountant, stops = fields.get("accountant", PLD), tuple(fields.get("stops", ()))
        flexible, relation = fields["flexible"], fields["relation"]
        return cls(stages, target, fields["delta"], relation, rows, flexible, reference, n, accountant, stops)

    def covers(self, accesses: Iterable[tuple[Access, int]]) -> bool:
        """Return whether accesses cost no more than the plan: its reference, where there is one, else its budget.

        Args:
            accesses: the accesses, those of the first stages before all others, as they are planned.
        """
        events = stage_events(accesses, pure=self.delta == 0.0)
        if self.reference is None:
            event = compose_events([event for _, event in events])
            return self.cost_of(event).epsilon <= round_down(self.target_epsilon)
        after = self.reference.after
        if events[:after] != self.stage_events[:after]:
            return False
        rest = [event for _, event in events[after:]]
        return not rest or self.reference.dominates(compose_events(rest))

    def begin_with(self, first: Plan) -> Plan:
        """Return this plan, with the stages of a plan that was carried out before it as they were drawn.

        Raises:
            PlanMismatch: if it does not begin with these stages, or has another relation, unit, reference or n.
        """
        n = first.n if self.n is None else self.n
        if first.n not in (None, n):
            raise PlanMismatch(
                f"the plan is for n={n} records, and the stages that were drawn were planned for n={first.n}"
            )
        begun = self.stages[: len(first.stages)]
        alike = len(begun) == len(first.stages) and all(map(Stage.draws_as, begun, first.stages))
        ours, theirs = ((p.relation, p.max_rows, p.reference, p.accountant) for p in (self, first))
        if not alike or ours != theirs:
            raise PlanMismatch(f"the plan does not begin with the stages {[s.name for s in first.stages]} that were drawn")
        return replace(self, stages=(*first.stages, *self.stages[len(begun) :]), n=n)

    def rewrite(self, drawn: Mapping[str, int], done: Mapping[str, int]) -> Plan:
        """Return the plan of a run that goes on: what was drawn, what is still to be done, and the steps that still fit.

        Multipliers stay. Accesses that were made and lost are made again, and the flexible stage gives up as many as it
        takes to stay within the budget, or below the reference; its own total never grows. The accesses of that stage whose
        results are there in the end are a multiple of its `multiple`, since the rest would be paid for and change nothing.
        Where accesses of that stage alone were lost, or of interleaved ones, the plan stays as it is, since stopping early
        does not lower its cost; those beyond a multiple are then made and change nothing.

        Args:
            drawn: accesses of each stage that were made, lost ones included.
            done: accesses of each stage whose results are still there.

        Raises:
            BudgetTooSmall: if no access of the flexible stage would fit beside the lost ones, or fewer than its `multiple`.
        """
        last = self._last
        # Steps in turn are not made again: those that were lost are steps of the same mechanism. Nor are interleaved ones,
        # which nothing behind them is made from.
        once = [stage.name for stage in self.stages if stage.interleaved or stage.access.sampler.in_turn]
        others = [stage.name for stage in self.stages if stage is not last and stage.name not in once]
        again = {name: drawn.get(name, 0) - done.get(name, 0) for name in others}
        grown = tuple(replace(stage, count=stage.count + again.get(stage.name, 0)) for stage in self.stages)
        # Lost accesses change nothing, so as many as make a difference have to come on top of them.
        lost = drawn.get(last.name, 0) - done.get(last.name, 0)
        least, high = max(drawn.get(last.name, 0), lost + min(last.multiple, last.count)), last.count
        least = max(least, len(self.stops) + 1)
        if grown == self.stages and least <= high:
            return self

        def shortened(count: int) -> Plan:
            stages = tuple(replace(s, count=count) if s.name == last.name else s for s in grown)
            # As many times as ever, so that no part of delta grows; the last accesses stand for those behind the new end.
            kept = [stop for stop in self.stops if stop < count]
            others = (number for number in range(count - 1, 0, -1) if number not in kept)
            kept += itertools.islice(others, len(self.stops) - len(kept))
            return replace(self, stages=stages, stops=tuple(sorted(kept)))

        def fits(count: int) -> bool:
            return self.covers(shortened(count).accesses)

        low = least
        if least > high or not fits(low):
            raise BudgetTooSmall(
                f"what was spent before the interruption leaves no room for stage {last.name!r} within epsilon="
                f"{self.target_epsilon:g}, so there is nothing to release: start a new run, whose cost adds to what this "
                "one has spent"
            )
        if fits(high):
            low = high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return shortened(max(least, low - (low - lost) % last.multiple))

    def curve(self, name: str, points: int = 16) -> Curve:
        """Return epsilon after each part of stage `name`, with all stages before it, to be shown while the run goes on.

        It is a display of the plan and not an odometer: stopping early does not lower a certificate. Knots are closer
        together at the beginning, since epsilon grows about as the root of the number of steps.
        """
        before: list[tuple[Access, int]] = []
        for stage in self.stages:
            if stage.name == name:
                break
            before.append((stage.access, stage.count))
        stage = self.stage(name)

        def after(steps: int) -> float:
            return min(self.cost_of(self._up_to([*before, (stage.access, steps)]), interval=1e-3).epsilon, self.epsilon)

        return Curve(sorted({max(1, round(stage.count * (i / points) ** 2)) for i in range(1, points + 1)}), after)

    def _up_to(self, accesses: list[tuple[Access, int]]) -> dp_accounting.DpEvent:
        """Return the cost of a beginning of the run; a part of the reference stands for accesses that it dominates."""
        events = [event for _, event in stage_events(accesses)]
        if self.reference is None or len(events) <= self.reference.after:
            return compose_events(events)
        after, ours = self.reference.after, self.reference
        part = dominating_shift(compose_events(events[after:]), ours.failure, interval=1e-3)
        shift = min(part.shift, 1.0 / ours.multiplier)
        return compose_events([*events[:after], replace(ours, multiplier=1.0 / shift).event])


class Curve:
    """Epsilon by the plan at a few step counts, the knots; between two of them the later one stands, never too small.

    Epsilon at a knot is computed when it is first asked for, in some milliseconds.

    Args:
        steps: the knots, ascending.
        after: returns epsilon after so many steps.
    """

    def __init__(self, steps: Sequence[int], after: Callable[[int], float]) -> None:
        self.steps, self._after = tuple(steps), functools.cache(after)

    @property
    def epsilons(self) -> tuple[float, ...]:
        """Epsilon at each knot."""
        return tuple(map(self._after, self.steps))

    def at(self, step: int) -> float:
        """Return epsilon after a step, rounded up to the next knot."""
        if step <= 0:
            return 0.0
        return self._after(self.steps[min(bisect.bisect_left(self.steps, step), len(self.steps) - 1)])
