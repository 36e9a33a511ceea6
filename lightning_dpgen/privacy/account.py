"""The account of a run: its plan, its ledger and its private stream, and the one way to open an access."""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import dp_accounting
import numpy as np

from lightning_dpgen.privacy.access import GAUSSIAN, Access
from lightning_dpgen.privacy.accountant import ADD_OR_REMOVE_ONE, Spent, spent
from lightning_dpgen.privacy.errors import BudgetTooSmall, LedgerError, PlanMismatch
from lightning_dpgen.privacy.events import composed, encode, stage_events
from lightning_dpgen.privacy.ledger import Ledger
from lightning_dpgen.privacy.lot_id import LotId
from lightning_dpgen.privacy.noise import PrivateStream
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.pld import REPLACE_ONE, Unaccountable
from lightning_dpgen.privacy.ranks import Ranks, launched_as
from lightning_dpgen.privacy.software import versions
from lightning_dpgen.privacy.study import Study, Total

T = TypeVar("T")
# Lines written ahead: so few of a stage that a crash costs at most a hundredth of it, so many that fsync is no burden.
_BLOCK, _BLOCK_SHARE = 200, 100


class OpenAccess:
    """An access whose ledger line is written: each of its noises may be drawn once, until it is closed.

    Attributes:
        number: how many accesses of its stage came before and left their mark; public.
        max_rows: how many records the unit of privacy has at most.
        ranks: the processes of which each has a part of the records, and draws a part of the noise.
    """

    def __init__(
        self,
        access: Access,
        stream: PrivateStream,
        relation: str = ADD_OR_REMOVE_ONE,
        number: int = 0,
        max_rows: int = 1,
        ranks: Ranks | None = None,
    ) -> None:
        self.access, self.stream, self.relation, self.number = access, stream, relation, number
        self.max_rows, self.ranks = max_rows, ranks or Ranks()
        self._left = dict(access.multipliers)
        self._open, self._process = True, os.getpid()

    @property
    def private(self) -> bool:
        """False in the non-private twin, where nothing is clipped and no noise is drawn."""
        return self.access.private

    def consume(self, name: str, kind: str = GAUSSIAN) -> float:
        """The multiplier of the noise `name`, which is thereby used up.

        Raises:
            LedgerError: if the access is closed, does not list the noise, lists it as another kind, or has given it out
                already; or in a forked child, where it would be drawn a second time.
        """
        if os.getpid() != self._process:
            raise LedgerError(f"noise {name!r}: this access belongs to process {self._process}, which forked since")
        if not self._open:
            raise LedgerError(f"noise {name!r}: the access of stage {self.access.stage!r} is closed")
        if name not in self._left:
            raise LedgerError(
                f"noise {name!r} was drawn already or is not listed; "
                f"stage {self.access.stage!r} has {sorted(self._left)} left of {sorted(self.access.multipliers)}"
            )
        if self.ranks.size > 1 and kind != GAUSSIAN:
            raise LedgerError(f"noise {name!r}: {kind} is no sum of parts, so {self.ranks.size} processes cannot share it")
        if self.access.kind(name) != kind:
            planned = self.access.kind(name)
            raise LedgerError(f"noise {name!r} of stage {self.access.stage!r} is {planned} in the plan, not {kind}")
        return self._left.pop(name)

    def _close(self) -> None:
        self._open = False

    def _check_used_up(self) -> None:
        if self._left and self.private:
            raise LedgerError(f"stage {self.access.stage!r}: {sorted(self._left)} was paid for and never drawn")


def study_entry(plan: Plan) -> dict[str, Any]:
    """How a plan enters a study: with its pair, whether its event has moments, and what it costs under replace-one."""
    entry: dict[str, Any] = {"relation": plan.relation}
    if not plan.private or math.isinf(plan.epsilon):
        return entry
    moments = plan.relation == ADD_OR_REMOVE_ONE and plan.delta > 0.0
    entry |= {"pair": (plan.epsilon, plan.delta), "moments": moments}
    if moments and (plan.reference is None or plan.reference.replaceable):
        with suppress(Unaccountable):
            replaced = spent(plan.event, plan.delta, relation=REPLACE_ONE).epsilon
            entry |= {"replaced": (replaced, plan.delta)} if math.isfinite(replaced) else {}
    return entry


class Account:
    """What a run may spend and what it has spent.

    The plan is fixed before a record is read; every access is written to the ledger before its noise is drawn; at the
    end `settle` compares the two. All parts of a run (split, optimizer, callback) share one account.

    Args:
        plan: what the run promises.
        ledger: a path for a new file of this run's accesses, or None to keep them in memory.
        stream: the private stream; None makes one keyed by the operating system.
        about: what `resume` hands back: settings, a fingerprint of the records.
        study: that this run belongs to; the plan is entered there before anything is drawn.

    In a process that a launcher has started as one of several (torchrun, SLURM, Lightning's own), accounts of other ranks
    than 0 leave the file alone; they spend what rank 0 writes down, once all of them have joined (`join`).

    Attributes:
        resumed: whether the account goes on with an earlier run.
        study, study_total: the study of the run, and what it has spent with this run, once it is entered.
        ranks: the processes that share the accesses to come; one, but within a fit on several devices.

    Example:
        >>> from lightning_dpgen import StageSpec, make_plan
        >>> import torch
        >>> plan = make_plan([StageSpec("mean", {"sum": 1.0}, 1, max_noise=100)], epsilon=1.0, delta=1e-5)
        >>> account = Account(plan)
        >>> with account.open("mean") as access:
        ...     total = gaussian(access, "sum", torch.zeros(3), sensitivity=1.0)
        >>> account.verify_complete()
    """

    def __init__(
        self,
        plan: Plan,
        ledger: str | Path | None = None,
        stream: PrivateStream | None = None,
        *,
        about: Mapping[str, Any] | None = None,
        study: Study | None = None,
    ) -> None:
        stream, path = stream or PrivateStream(), None if launched_as() else ledger
        self._begin(plan, Ledger(path, plan=plan.as_json(), about=about, noise=stream.source), stream)
        self.study = study

    @classmethod
    def resume(
        cls, ledger: str | Path, stream: PrivateStream | None = None, *, study: Study | None = None, exact: bool = False
    ) -> Account:
        """The account of a run that did not end, from its ledger; `go_on` then says from where.

        Args:
            ledger, stream, study: as for a new one.
            exact: whether the plan may not be rewritten (`Plan.rewritten`), since somebody else has paid for it as it is.

        Raises:
            LedgerError: if the ledger is damaged, of another version, or held by another process, or if the run's noise
                came from elsewhere: the certificate says one source, and a run once seeded stays so.
        """
        account, stream = cls.__new__(cls), stream or PrivateStream()
        reopened = Ledger.read(ledger) if launched_as() else Ledger.reopen(ledger)
        if reopened.noise != stream.source:
            reopened.close()
            raise LedgerError(
                f"{ledger}: this run began with other noise ({str(reopened.noise)[:40]!r}; now: {stream.source!r}): give "
                "the same privacy.noise and debug.private_seed, or the same kind of stream, to go on"
            )
        try:
            plans = [Plan.from_json(fields) for fields in (reopened.plan, reopened.promise)]
            # A plan that nobody can account for is found before anything else of the run is made again.
            for plan in plans:
                _ = plan.spent
        except (ValueError, OverflowError) as error:
            reopened.close()
            raise LedgerError(f"{ledger}: holds a plan that cannot be accounted for ({str(error)[:200]})") from None
        account._begin(plans[0], reopened, stream)
        account.resumed, account._waits, account.study, account._exact = True, True, study, exact
        return account

    def _begin(self, plan: Plan, ledger: Ledger, stream: PrivateStream) -> None:
        self.plan, self._ledger, self.stream = plan, ledger, stream
        # Where its ledger is, once it is another process that writes there.
        self._elsewhere: Path | None = None
        self.study: Study | None = None
        # What stands in the study of this run, and what the study has spent with it.
        self._entered: Plan | None = None
        self.study_total: Total | None = None
        # None for a run that starts; for one that goes on, where from, once `go_on` has said it.
        self._from: Mapping[str, int] | None = None
        self.resumed = self._waits = self._exact = False
        self._done: Counter[str] = Counter()
        # Draws of records that no access was made from yet, and those that one was.
        self._issued: weakref.WeakSet[LotId] = weakref.WeakSet()
        self._spent: weakref.WeakSet[LotId] = weakref.WeakSet()
        self._of: weakref.ref | None = None
        self.ranks, self._follows = Ranks(), bool(launched_as())
        self._spawned_from: Path | None = None
        self._process, self._lock = os.getpid(), threading.Lock()

    @property
    def done(self) -> dict[str, int]:
        """How many accesses of each stage have left their mark on the state of the run: what a checkpoint remembers."""
        if self._elsewhere is not None:
            return {stage.name: self.ledger.count(stage.name) for stage in self.plan.stages}
        return dict(self._done)

    @property
    def ledger(self) -> Ledger:
        """What was drawn; read again from its file where a fit in spawned processes has gone on with it."""
        return self._ledger if self._elsewhere is None else Ledger.read(self._elsewhere)

    def __getstate__(self) -> dict[str, Any]:
        """For processes that a Trainer spawns: the account goes with them, and can here only be looked at from then on."""
        if multiprocessing.context.get_spawning_popen() is None:
            raise TypeError("an account is never saved nor copied, since it would be spent twice: Account.resume goes on")
        path = self._elsewhere or self._ledger.path
        if path is None:
            raise TypeError(
                "this account keeps its ledger in memory, which ends with the processes that a Trainer spawns: give it a "
                "file (Account(plan, ledger=...)), or take strategy='ddp'"
            )
        self._enter_study()
        state, kind = self._state, {"seed": self.stream._seed, "secure": self.stream.secure}
        self._ledger.detach()
        self._elsewhere = path.absolute()
        return {"path": self._elsewhere, "state": state, "stream": kind}

    def __setstate__(self, handed: dict[str, Any]) -> None:
        plan = Plan.from_json(handed["state"]["ledger"]["plan"])
        self._begin(plan, Ledger(), PrivateStream(**handed["stream"]))
        # Which rank this is, is known when it joins.
        self._spawned_from, self._follows = handed["path"], True
        self._take_over(handed["state"])

    def extend(self, plan: Plan, about: Mapping[str, Any] | None = None) -> None:
        """Promise the whole run, once its first accesses have given what the plan is made from (a noisy count of records).

        Args:
            plan: begins with the stages of the plan so far, all of them made; these stay as they were drawn.
            about: more of what `resume` hands back.

        Raises:
            PlanMismatch: if it begins otherwise, is about another unit, is not below the reference that was promised, or
                not all of them were made.
        """
        ours = self.plan
        # The first accesses may have bought n alone.
        extended = plan != replace(ours, n=plan.n)
        if extended and (left := [stage.name for stage in ours.stages if self.remaining(stage.name)]):
            raise PlanMismatch(f"a plan can be extended when its stages have been made, and {left} have not")
        plan = plan.begun_by(ours)
        if extended and plan.private and (plan.reference is None or not plan.covers(plan.accesses)):
            raise PlanMismatch(
                "a plan that follows from what was released is extended below a reference that was promised before "
                "(make_first_plan, make_rest)"
            )
        self.plan = plan
        self.ledger.extend(plan.as_json(), about or {})

    def go_on(self, done: Mapping[str, int]) -> None:
        """Rewrite the plan of a resumed run; see `Plan.rewritten`. Asked twice for the same, it does nothing.

        What was made after the state was saved from which the run goes on is spent and lost.

        Args:
            done: `done` at the moment when that state was saved; empty for the very start.

        Raises:
            BudgetTooSmall: if the stages before the last one no longer fit, or the plan would change and may not.
            LedgerError: if this account was not resumed, or has gone on from elsewhere, or the state knows of accesses
                that the ledger does not hold.
        """
        if self._from == dict(done):
            return
        if not self._waits:
            raise LedgerError("a run goes on once, on an account from Account.resume, and before anything is drawn")
        promise = Plan.from_json(self.ledger.promise)
        if promise.private:
            made = {stage.name: self.ledger.count(stage.name) for stage in promise.stages}
            for stage, count in done.items():
                if count > made.get(stage, 0):
                    raise LedgerError(
                        f"stage {stage!r}: the saved state knows of {count} accesses and the ledger of "
                        f"{made.get(stage, 0)}: lines of the ledger are missing"
                    )
            plan = promise.rewritten(made, done)
            if self._exact and plan != promise:
                raise BudgetTooSmall("accesses were made and lost before their results were saved, and the plan is fixed")
            if plan.as_json() != self.ledger.plan:
                self.ledger.rewrite(plan.as_json())
            self.plan = plan
        self._from, self._waits = dict(done), False
        self._done.update(done)

    def join(self, ranks: Ranks) -> None:
        """Share all accesses with other processes, until `part`: each of them opens the same ones, in the same order.

        Rank 0 writes its ledger before any of them draws; each draws its part of the noise. They go on from what rank 0 has
        spent. Called by all of them; under a Trainer, `MomentsAccountant` does.

        Raises:
            RanksDiffer: if they do not hold the same promise, made with the same software.
            LedgerError: if this process was started as one of several, and there are no others.
        """
        if self._follows and ranks.size == 1 and self._spawned_from is None:
            raise LedgerError(
                f"this process was started as rank {launched_as()} (RANK, LOCAL_RANK or SLURM_PROCID), and its Trainer has "
                "one device: give the Trainer as many devices and num_nodes as were launched, or launch one process"
            )
        ranks.assert_equal("software", versions())
        ranks.assert_equal("plan", (self.ledger.promise, self.ledger.noise))
        if self._spawned_from is not None and ranks.leads:
            self._ledger, self._spawned_from = Ledger.reopen(self._spawned_from), None
        self.ranks, self._follows = ranks, not ranks.leads
        self._catch_up(ranks.broadcast_object(self._state))
        self.stream.part_of(ranks.rank)

    def aside(self, plan: Plan) -> Account:
        """An account in memory for what is drawn and thrown away, on the same stream, with the same ranks."""
        account = Account(plan, stream=self.stream)
        account.ranks, account._follows = self.ranks, self._follows
        return account

    def leave(self) -> None:
        """End what `join` began: rank 0 goes on alone."""
        self.ranks = Ranks()

    def on_rank_zero(self, make: Callable[[], T]) -> T:
        """What rank 0 makes alone, of accesses that it opens alone; all ranks get it, and go on from the same account."""
        ranks = self.ranks
        if ranks.size == 1:
            return make()
        made = None
        try:
            self.ranks = Ranks()
            made = ranks.leader_first(make if ranks.leads else lambda: None)
        finally:
            self.ranks = ranks
        made, state = ranks.broadcast_object((made, self._state))
        self._catch_up(state)
        return made

    @property
    def _state(self) -> dict[str, Any]:
        return {"ledger": self.ledger.state, "from": self._from, "resumed": self.resumed, "done": dict(self._done)}

    def _catch_up(self, state: Mapping[str, Any]) -> None:
        if not self.ranks.leads:
            self._take_over(state)

    def _take_over(self, state: Mapping[str, Any]) -> None:
        self._ledger.follow(state["ledger"])
        self.plan = Plan.from_json(self.ledger.plan)
        self._from, self.resumed, self._waits = state["from"], state["resumed"], state["resumed"] and state["from"] is None
        self._done = Counter(state["done"])

    def sample(
        self, stage: str, units: int, rows: Callable[[np.ndarray], np.ndarray] | None = None
    ) -> tuple[np.ndarray, LotId]:
        """Draw a Poisson lot: each unit of privacy takes part by itself, with the probability that the plan says.

        Args:
            stage: of the plan, for an access of which the lot is drawn; at rate 1 it holds all units.
            units: how many there are: records, or persons.
            rows: gives the positions of the records of the units at these positions; None where a unit is one record.

        Returns:
            The sorted positions of the records, which are private, and the draw that one access may be opened against.
        """
        positions = self.stream.poisson_sample(units, self.plan.stage(stage).access.sample_rate)
        if rows is not None:
            positions = rows(positions)
        draw = LotId(stage, len(positions), self.ranks.size)
        self._issued.add(draw)
        return positions, draw

    def check_draw(self, stage: str, draw: LotId) -> None:
        """Refuse records from which no access of a stage can be made.

        The rate of a stage is a statement about how its records are sampled, so nothing is known of records that
        `sample` has not drawn. Two releases from one lot are one access (docs/PRIVACY.md, "One lot, one event"): as two,
        they are under-reported.

        Raises:
            LedgerError: if an access was made from this draw already, or this account has not issued it for this stage.
        """
        if draw in self._spent:
            raise LedgerError(
                "these records were used for an access already: draw a new lot for each step, and let one optimizer take "
                "all that is computed from a lot"
            )
        if draw in self._issued and draw.stage == stage:
            return
        planned = self.plan.stage(stage).access.sample_rate
        found = f"were drawn for stage {draw.stage!r}, or with another account," if draw.stage else "were not drawn at all,"
        raise LedgerError(
            f"stage {stage!r}: these records {found} so the plan's rate of {planned:g} says nothing about them: take "
            f"each lot from PoissonLots or poisson_loader(records, account, stage={stage!r}), or the batches of an Opacus "
            "loop from AccountEngine(account).make_private(...); a full lot is drawn so, too. Nothing was charged"
        )

    @contextmanager
    def open(self, stage: str, *, draw: LotId | None = None, of: object | None = None) -> Iterator[OpenAccess]:
        """Open the next access of a stage: its line is in the ledger when the block is entered.

        Args:
            stage: of the plan.
            draw: of the lot that is looked at, which it spends; None for a pass over all records.
            of: the records that are looked at, by identity; None where nobody asks whether they are those of before.

        Raises:
            PlanMismatch: if the plan does not hold this access next.
            LedgerError: without a draw that `sample` has issued for a stage with a rate below 1, or with one that
                `check_draw` refuses; in a forked child, after the end of the run, of other records than before, or on
                leaving, if a noise that was paid for was not drawn.
        """
        if os.getpid() != self._process:
            raise LedgerError(
                f"stage {stage!r}: this account belongs to process {self._process}, and a forked child would spend its "
                "plan a second time"
            )
        if self._follows and self.ranks.size == 1:
            raise LedgerError(
                f"stage {stage!r}: this process is rank {launched_as()} of several, and rank 0 alone spends what is not "
                "spent by all of them in a fit"
            )
        if self._elsewhere is not None:
            raise LedgerError(
                f"stage {stage!r}: this account went to the processes of a fit (strategy 'ddp_spawn'), and can only be "
                f"looked at here; Account.resume({str(self._elsewhere)!r}) goes on with a run that did not end"
            )
        if self._waits:
            raise LedgerError("this account was resumed: say with go_on(...) which state the run goes on from")
        if None not in (of, self._of) and self._of() is not of:
            raise LedgerError(
                f"stage {stage!r}: this account has paid for measurements of other records, and what comes of two data "
                "sets makes no model: hand over the same Records, or begin another run"
            )
        with self._lock:
            access, remaining = self._next(stage)
            if draw is not None or access.sample_rate < 1.0:
                draw = draw or LotId()
                self.check_draw(stage, draw)
                self._issued.discard(draw)
                self._spent.add(draw)
            self._enter_study()
            if access.private:
                block = min(_BLOCK, max(1, self.plan.stage(stage).count // _BLOCK_SHARE))
                self._write(access, ahead=min(block, remaining))
            elif not self.ledger.accesses:
                # One line says it all: the run is not private, whatever else is read.
                self.ledger.write(access)
            number = self._done[stage]
            opened = OpenAccess(access, self.stream, self.plan.relation, number, self.plan.max_rows, self.ranks)
            self._done[stage] += 1
            self._of = self._of if of is None else weakref.ref(of)
        try:
            yield opened
        finally:
            opened._close()
        opened._check_used_up()

    def _enter_study(self) -> None:
        if self.study is not None and self._entered is not self.plan and not self._follows:
            self.study_total = self.study.enter(self.ledger.run, self.plan.event, **study_entry(self.plan))
            self._entered = self.plan

    def _write(self, access: Access, ahead: int) -> None:
        # Rank 0 has to be waited for only where it writes a block: all ranks count down the same one.
        if self.ledger.waits(access):
            self.ledger.write(access)
        else:
            self.ranks.compare()
            self.ranks.leader_first(lambda: self.ledger.write(access, ahead))

    def remaining(self, stage: str) -> int:
        """How many accesses of a stage the plan still holds."""
        made = self.ledger.count(stage) if self.plan.private else self._done[stage]
        return self.plan.stage(stage).count - made

    @property
    def finished(self) -> bool:
        """Whether the plan holds no access that is still to be made."""
        return not any(self.remaining(stage.name) for stage in self.plan.stages)

    def _next(self, stage: str) -> tuple[Access, int]:
        planned = self.plan.stage(stage)
        remaining = self.remaining(stage)
        if remaining < 1 and self.plan.private:
            raise PlanMismatch(f"stage {stage!r}: the plan has {planned.count} accesses, and that many have been made")
        for earlier in self.plan.stages:
            if earlier.name == stage:
                break
            if self.plan.private and self.remaining(earlier.name):
                raise PlanMismatch(f"stage {stage!r} was opened before stage {earlier.name!r} was complete")
        return planned.access, remaining

    @property
    def private(self) -> bool:
        """Whether this run protects anybody: its plan draws noise, and nobody has a seed by which to remove it."""
        return self.plan.private and not self.stream.seeded

    @property
    def accesses(self) -> list[tuple[Access, int]]:
        """What the ledger says was drawn, by stage in the plan's order.

        A run that went on makes early stages again after later ones; what a composition costs does not depend on the order.
        """
        order = {stage.name: position for position, stage in enumerate(self.plan.stages)}
        return sorted(self.ledger.accesses, key=lambda run: order.get(run[0].stage, len(order)))

    @property
    def event(self) -> dp_accounting.DpEvent:
        """What the ledger says was drawn, by stage in the plan's order."""
        accesses = self.accesses
        if not accesses:
            raise PlanMismatch("nothing has been drawn yet")
        return composed([event for _, event in stage_events(accesses, pure=self.plan.delta == 0.0)])

    def verify_complete(self) -> None:
        """Compare ledger and plan at the end of an uninterrupted run, and close the ledger.

        Raises:
            PlanMismatch: if an access is missing, came twice or had other noise than promised.
        """
        self.ledger.close()
        if encode(self.event) != encode(self.plan.composition):
            raise PlanMismatch(
                "the ledger is not what the plan promised; nothing may be released on the strength of this plan.\n"
                f"plan:   {encode(self.plan.composition)}\nledger: {encode(self.event)}"
            )

    def certified(self) -> tuple[dp_accounting.DpEvent, Spent]:
        """Event and epsilon for the certificate: the plan's, unless the ledger's is larger.

        A run that stopped early, for whatever was seen, does not get a smaller epsilon: reading an odometer at a
        chosen time under-reports. Where a reference stands for the rest of a plan, the ledger's accesses must be below
        it, too.

        Raises:
            PlanMismatch: if nothing was drawn, or the ledger's accesses are not below the reference.
        """
        planned = self.plan.spent
        if encode(self.event) == encode(self.plan.composition):
            return self.plan.event, planned
        if self.plan.reference is not None:
            if not self.plan.covers(self.accesses):
                raise PlanMismatch("what the ledger holds is not below the reference of the plan: nothing may be released")
            return self.plan.event, planned
        drawn = spent(self.event, self.plan.delta, relation=self.plan.relation)
        if drawn.epsilon > planned.epsilon:
            return self.event, drawn
        return self.plan.event, planned
