"""The account of a run: its plan, its ledger and its private stream, and the one way to open an access."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import dp_accounting
import numpy as np

from lightning_dpgen.privacy import reconcile
from lightning_dpgen.privacy.access import Access, IssuedLots, LotId, OpenAccess
from lightning_dpgen.privacy.accounting.accountant import Spent
from lightning_dpgen.privacy.drawn_noise import DrawnNoise
from lightning_dpgen.privacy.errors import BudgetTooSmall, LedgerError, OtherNoise, PlanMismatch
from lightning_dpgen.privacy.ledger import Ledger
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.ranks import Ranks
from lightning_dpgen.privacy.reconcile import Progress
from lightning_dpgen.privacy.sampling.correlated_noise import CorrelatedState
from lightning_dpgen.privacy.software import launched_as, versions
from lightning_dpgen.privacy.studies.entry import Stopped, StudyEntry, check_stream, check_study, name_in_ledger
from lightning_dpgen.privacy.studies.study import Study
from lightning_dpgen.privacy.studies.study_total import Total

T = TypeVar("T")
# Lines written ahead: so few that a crash costs at most a hundredth of a stage, so many that fsync is no burden.
_BLOCK, _BLOCK_SHARE = 200, 100


class Account:
    """The promise and the spending of a run.

    The plan is fixed before a record is read; every access is written to the ledger before its noise is drawn; at the
    end `verify_complete` compares the two. All parts of a run (split, optimizer, callback) share one account.

    In a process that a launcher has started as one of several (torchrun, SLURM, Lightning's own), accounts of other ranks
    than 0 leave the file alone; they spend what rank 0 writes down, once all of them have joined (`join`).

    Args:
        ledger: a path for a new file of this run's accesses, or None to keep them in memory.
        stream: the private stream; None makes one keyed by the operating system.
        about: settings and a fingerprint of the records, which `resume` returns in the ledger.
        study: the study that this run belongs to; the plan is entered there before anything is drawn.

    Raises:
        ValueError: for a study and a stream with a seed; nothing is made or entered then.

    Attributes:
        plan: the promise, or the plan that took its place when the run was resumed or extended.
        ledger: the accesses that were drawn so far, as they are written down.
        stream: the private stream.
        ranks: the processes that share the accesses to come: one, except within a fit on several devices.

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
        check_stream(study, stream)
        known = None if study is None else name_in_ledger(study)
        new = Ledger(path, plan=plan.as_json(), about=about, noise=stream.source, study=known)
        self._begin(plan, new, stream, study)

    @classmethod
    def resume(
        cls, ledger: str | Path, stream: PrivateStream | None = None, *, study: Study | None = None, exact: bool = False
    ) -> Account:
        """Return the account of a run that did not end, from its ledger; `go_on` then says from where.

        Args:
            exact: whether the plan may not be rewritten (`Plan.rewrite`), since another account has paid for it as it is.

        Raises:
            ValueError: for a study and a stream with a seed.
            LedgerError: if the ledger is damaged, of another version, or held by another process; if the run was stopped
                for good, or was entered in another study than the one given; or if the run's noise came from elsewhere:
                the certificate says one source, and a run once seeded stays so.
        """
        account, stream = cls.__new__(cls), stream or PrivateStream()
        check_stream(study, stream)
        reopened = Ledger.read(ledger) if launched_as() else Ledger.reopen(ledger)
        if reopened.noise != stream.source:
            reopened.close()
            raise OtherNoise(
                f"{ledger}: this run began with other noise ({str(reopened.noise)[:40]!r}; now: {stream.source!r}): give "
                "a stream of the same kind, and of the same seed if it has one, to go on"
            )
        try:
            check_study(reopened, study)
        except BaseException:
            reopened.close()
            raise
        try:
            plans = [Plan.from_json(fields) for fields in (reopened.plan, reopened.promise)]
            # A plan that cannot be accounted for is found before anything else of the run is made again.
            for plan in plans:
                _ = plan.spent
        except (ValueError, OverflowError) as error:
            reopened.close()
            raise LedgerError(f"{ledger}: holds a plan that cannot be accounted for ({str(error)[:200]})") from None
        account._begin(plans[0], reopened, stream, study, Progress(resumed=True))
        account._exact = exact
        return account

    def _begin(
        self,
        plan: Plan,
        ledger: Ledger,
        stream: PrivateStream,
        study: Study | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.plan, self.ledger, self.stream, self.ranks = plan, ledger, stream, Ranks()
        # True if rank 0 of the run is another process, also once they have parted: it writes the file, and the ledger of
        # this one is in memory and counts as that of rank 0 does.
        self.follows = launched_as() > 0
        self._entry, self._progress = StudyEntry(study), progress or Progress()
        self._exact, self._lots = False, IssuedLots()
        self._correlated = CorrelatedState(ledger.path, ledger.run, stream)
        self._of: weakref.ref | None = None
        self._process, self._lock = os.getpid(), threading.Lock()

    @property
    def study(self) -> Study | None:
        """The study of the run."""
        return self._entry.study

    @property
    def study_total(self) -> Total | None:
        """The total of the study with this run; None before it is entered."""
        return self._entry.total

    @property
    def resumed(self) -> bool:
        """True if the account goes on with an earlier run."""
        return self._progress.resumed

    def step_of(self, stage: str) -> int:
        """Return the number of accesses of a stage that have left their mark on the state of the run."""
        return self._progress.done[stage]

    @property
    def done(self) -> dict[str, int]:
        """The number of accesses of each stage that have left their mark on the state of the run, for checkpoints."""
        return dict(self._progress.done)

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "an account is never saved or copied, since it would be spent twice: use Account.resume to go on, and "
            "strategy='ddp' for a Trainer that starts processes by spawn"
        )

    def extend(self, plan: Plan, about: Mapping[str, Any] | None = None) -> None:
        """Promise the whole run, once its first accesses have given what the plan is made from (a noisy count of records).

        Args:
            plan: the whole plan. It begins with the stages of the plan so far, all of them made; these stay as they were
                drawn.

        Raises:
            PlanMismatch: if it begins differently, is for another unit or number of records, is not below the reference
                that was promised, or not all of the stages so far were made.
        """
        ours = self.plan
        # A plan that differs in n alone is not extended: the first accesses have bought n.
        extended = plan != replace(ours, n=plan.n)
        if extended and (unfinished := [stage.name for stage in ours.stages if self.remaining(stage.name)]):
            raise PlanMismatch(f"a plan can be extended when its stages have been made, and {unfinished} have not")
        plan = plan.begin_with(ours)
        if extended and plan.private and (plan.reference is None or not plan.covers(plan.accesses)):
            raise PlanMismatch(
                "a plan that follows from what was released is extended below a reference that was promised before "
                "(make_first_plan, make_rest)"
            )
        self.plan = plan
        self.ledger.extend(plan.as_json(), about or {})

    def go_on(self, done: Mapping[str, int]) -> None:
        """Rewrite the plan of a resumed run; see `Plan.rewrite`. A second call for the same does nothing.

        Accesses made after the state was saved from which the run goes on are spent and lost.

        Args:
            done: `done` at the moment when that state was saved; empty for the very start.

        Raises:
            BudgetTooSmall: if the stages before the last one no longer fit, or the plan would change and may not.
            LedgerError: if this account was not resumed, or has gone on from elsewhere, or the state knows of accesses
                that the ledger does not hold.
        """
        if self._progress.start == dict(done):
            return
        if not self._progress.waits:
            raise LedgerError("a run goes on once, on an account from Account.resume, and before anything is drawn")
        promise = Plan.from_json(self.ledger.promise)
        if promise.private:
            counts = {stage.name: self.ledger.count(stage.name) for stage in promise.stages}
            for stage, count in done.items():
                if count > counts.get(stage, 0):
                    raise LedgerError(
                        f"stage {stage!r}: the saved state knows of {count} accesses and the ledger of "
                        f"{counts.get(stage, 0)}: lines of the ledger are missing"
                    )
            plan = promise.rewrite(counts, done)
            if self._exact and plan != promise:
                raise BudgetTooSmall("accesses were made and lost before their results were saved, and the plan is fixed")
            if plan.as_json() != self.ledger.plan:
                self.ledger.rewrite(plan.as_json())
            self.plan = plan
            for planned in plan.stages:
                if planned.access.sampler.in_turn and not self.remaining(planned.name):
                    self._correlated.erase(planned.name)
        self._progress.go_on(done)

    def join(self, ranks: Ranks) -> None:
        """Share all accesses with other processes, until `leave_ranks`: each opens the same ones, in the same order.

        Rank 0 writes its ledger before any of them draws; each draws its part of the noise. They go on from what rank 0 has
        spent. All of them call it; under a Trainer, `MomentsAccountant` does.

        Raises:
            RanksDiffer: if they do not hold the same promise, made with the same software.
            LedgerError: if this process was started as one of several, and there are no others; or of several, if a
                sampler of the plan is for one.
        """
        for stage in self.plan.stages:
            stage.access.sampler.check_ranks(stage.name, ranks.size)
        ranks.assert_equal("software", versions())
        ranks.assert_equal("plan", (self.ledger.promise, self.ledger.noise))
        if self.follows and ranks.size == 1:
            raise LedgerError(
                f"this process was started as rank {launched_as()} (RANK, LOCAL_RANK or SLURM_PROCID), and its Trainer has "
                "one device: give the Trainer as many devices and num_nodes as were launched, or launch one process"
            )
        self.ranks, self.follows = ranks, not ranks.leads
        self._catch_up(ranks.broadcast_object(self._state))
        self.stream.part_of(ranks.rank)

    def scratch_account(self, plan: Plan) -> Account:
        """Return an account in memory for draws that are thrown away, on the same stream, with the same ranks."""
        account = Account(plan, stream=self.stream)
        account.ranks, account.follows = self.ranks, self.follows
        return account

    def leave_ranks(self) -> None:
        """End what `join` began: rank 0 goes on alone."""
        self.ranks = Ranks()

    def on_rank_zero(self, make: Callable[[], T]) -> T:
        """Return what rank 0 makes alone, of accesses that it opens alone; all ranks go on from the same account."""
        ranks = self.ranks
        if ranks.size == 1:
            return make()
        result = None
        try:
            self.ranks = Ranks()
            result = ranks.leader_first(make if ranks.leads else lambda: None)
        finally:
            self.ranks = ranks
        released, state = ranks.broadcast_object((result, self._state))
        self._catch_up(state)
        return released

    @property
    def _state(self) -> dict[str, Any]:
        return {"ledger": self.ledger.state, "progress": self._progress.state}

    def _catch_up(self, state: Mapping[str, Any]) -> None:
        if not self.ranks.leads:
            self.ledger.follow(state["ledger"])
            self._progress.follow(state["progress"])
            self.plan = Plan.from_json(self.ledger.plan)

    def save_private_state(self) -> None:
        """Write the memory of correlated noise beside the ledger, as the state of the run is saved; it does not join it."""
        self._correlated.save()

    def sample(
        self,
        stage: str,
        units: int,
        rows: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None,
        number: int | None = None,
    ) -> tuple[np.ndarray, LotId]:
        """Draw a lot by the sampler that the plan has for a stage.

        Args:
            stage: the stage of the plan that the lot is drawn for; at rate 1 the lot holds all units.
            units: the number of units: records, or persons.
            rows: a function from positions of units to the positions of their records, and the unit of each, counted from 0
                among those; None where a unit is one record.
            number: the number of accesses of the stage that come before the one that the lot is for; None for the next one.

        Returns:
            The sorted positions of the records, which are private, and the draw that one access may be opened against.

        Raises:
            PlanMismatch: for more units than a plan with truncated lots allows.
            ValueError: for persons, where records take turns.
            LedgerError: for other records than before, where these take turns.
        """
        step, sampler = self.count(stage) if number is None else number, self.plan.stage(stage).access.sampler
        sampler.check_units(stage, units)
        if rows is not None:
            sampler.check_persons(stage)
        positions, persons = sampler.draw(stage, units, step, self.stream, self._correlated), None
        if rows is not None:
            positions, persons = rows(positions)
        lot = LotId(stage, len(positions), self.ranks.size, persons, step if sampler.in_turn else None)
        return positions, self._lots.issue(lot)

    def check_draw(self, stage: str, draw: LotId) -> None:
        """Refuse records from which no access of a stage can be made.

        The rate of a stage is a statement about how its records are sampled, so nothing is known of records that
        `sample` has not drawn. Two releases from one lot are one access (docs/guarantees/lots.md, "One lot, one event"): as
        two, they are under-reported.

        Raises:
            LedgerError: if an access was made from this draw already, or this account has not issued it for this stage.
        """
        self._lots.check(self.plan.stage(stage).access, draw)

    @contextmanager
    def open(self, stage: str, *, draw: LotId | None = None, of: object | None = None) -> Iterator[OpenAccess]:
        """Open the next access of a stage: its line is in the ledger when the block is entered.

        Args:
            draw: the draw of the lot that is looked at, which is spent; None for a pass over all records.
            of: the records that are looked at, by identity; None where they need not be those of earlier accesses.

        Raises:
            PlanMismatch: if the plan does not hold this access next.
            LedgerError: without a draw that `sample` has issued for a stage with a rate below 1, or with one that
                `check_draw` refuses; in a forked child, after the end of the run, of other records than before, or on
                leaving, if a noise that was paid for was not drawn.
        """
        self._check_open(stage, of)
        with self._lock:
            planned, step = self.plan.stage(stage), self.count(stage)
            self._check_next(planned, step)
            access = planned.access
            if draw is not None or access.sample_rate < 1.0:
                self._lots.take(access, draw or LotId(), step)
            if self._entry.study is not None and not self.follows:
                self._entry.enter(self.ledger, self.plan)
            if access.private:
                # Lines that wait for an interleaved stage would stand before those of the next.
                block = 1 if planned.interleaved else min(_BLOCK, max(1, planned.count // _BLOCK_SHARE))
                self._write(access, ahead=min(block, planned.count - step))
            elif not self.ledger.accesses:
                # One line says it all: the run is not private, whatever else is read.
                self.ledger.write(access)
            number = self._progress.done[stage]
            correlated = self._correlated.noise(access, step) if access.sampler.in_turn else None
            opened = OpenAccess(
                access, self.stream, self.ranks, self.plan.relation, number, self.plan.max_rows, correlated, step
            )
            self._progress.done[stage] += 1
            self._of = self._of if of is None else weakref.ref(of)
        try:
            yield opened
        except BaseException:
            # A number that was drawn before an error may be in the caller's hands. Other ranks may wait elsewhere.
            if self.ranks.size == 1:
                self._record(opened.drawn)
            raise
        finally:
            opened._close()
            if access.sampler.in_turn and not self.remaining(stage):
                self._correlated.erase(stage)
        opened._check_used_up()
        self._record(opened.drawn)

    def _check_open(self, stage: str, of: object | None) -> None:
        """Raise LedgerError if no access may be opened in this process, now, of these records."""
        if os.getpid() != self._process:
            raise LedgerError(
                f"stage {stage!r}: this account belongs to process {self._process}, and a forked child would spend its "
                "plan a second time"
            )
        if self.follows and self.ranks.size == 1:
            raise LedgerError(
                f"stage {stage!r}: this process is rank {launched_as()} of several, and rank 0 alone spends what is not "
                "spent by all of them in a fit"
            )
        if self._progress.waits:
            raise LedgerError("this account was resumed: say with go_on(...) which state the run goes on from")
        if of is not None and self._of is not None and self._of() is not of:
            raise LedgerError(
                f"stage {stage!r}: this account has paid for measurements of other records, and one model is made from "
                "one data set: pass the same Records, or begin another run"
            )

    def _write(self, access: Access, ahead: int) -> None:
        # Others wait for rank 0 only where it writes a block: all ranks count down the same one.
        if self.ranks.size == 1 or self.ledger.waits(access):
            self.ledger.write(access, ahead)
        else:
            self.ranks.compare()
            self.ranks.leader_first(lambda: self.ledger.write(access, ahead))

    def _record(self, drawn: Sequence[DrawnNoise]) -> None:
        """Write down how noises were drawn, where the ledger does not say so already of an earlier access."""
        new = [noise for noise in dict.fromkeys(drawn) if noise not in self.ledger.noises]
        if new:
            self.ranks.leader_first(lambda: self.ledger.record_noises(new))

    def count(self, stage: str) -> int:
        """Return how many accesses of a stage were made; those that were lost in a crash count."""
        return self.ledger.count(stage) if self.plan.private else self._progress.done[stage]

    def remaining(self, stage: str) -> int:
        """Return how many accesses of a stage the plan still holds."""
        return self.plan.stage(stage).count - self.count(stage)

    @property
    def finished(self) -> bool:
        """True if the plan holds no access that is still to be made."""
        return not any(self.remaining(stage.name) for stage in self.plan.stages)

    def _check_next(self, planned: Stage, step: int) -> None:
        """Raise PlanMismatch unless the plan holds an access of a stage next, after so many."""
        if not self.plan.private:
            return
        if step >= planned.count:
            raise PlanMismatch(
                f"stage {planned.name!r}: the plan has {planned.count} accesses, and that many have been made"
            )
        for earlier in self.plan.stages:
            if earlier is planned:
                break
            if self.remaining(earlier.name) and not earlier.interleaved:
                raise PlanMismatch(f"stage {planned.name!r} was opened before stage {earlier.name!r} was complete")

    @property
    def private(self) -> bool:
        """True if this run protects its records: its plan draws noise, and no known seed can remove it."""
        return self.plan.private and not self.stream.seeded

    @property
    def accesses(self) -> list[tuple[Access, int]]:
        """The accesses that the ledger says were drawn, by stage in the plan's order."""
        return reconcile.order_by_stage(self.plan, self.ledger.accesses)

    @property
    def event(self) -> dp_accounting.DpEvent:
        """The composition of what the ledger says was drawn, by stage in the plan's order."""
        return reconcile.drawn_event(self.plan, self.accesses)

    def verify_complete(self) -> None:
        """Compare ledger and plan at the end of an uninterrupted run, and close the ledger.

        Raises:
            PlanMismatch: if an access is missing, came twice or had other noise than promised.
        """
        self.ledger.close()
        self.read_on()
        reconcile.check_complete(self.plan, self.accesses)

    def stop(self) -> Stopped:
        """Stop the run for good: nothing is ever drawn again, and its study gets back what the plan had not drawn.

        The decision must follow from what the run has released so far (a noisy number that the plan paid for), or from
        nothing in the records. No account covers a stop that follows from private numbers, such as a training loss or
        anything else under ``private/``.

        The ledger's last line is on disk before the study changes. After a crash between the two the run is stopped and
        counted whole, and a second call completes it. A finished run stays as it is.

        Returns:
            The accesses that were drawn, and the total of the study before and after.

        Raises:
            LedgerError: as `Ledger.stop` and `Study.stop`; in a process of several that does not write the ledger.

        Example:
            >>> from lightning_dpgen import StageSpec, make_plan
            >>> plan = make_plan([StageSpec("mean", {"sum": 1.0}, 3, max_noise=100)], epsilon=1.0, delta=1e-5)
            >>> print(Account(plan).stop())
            0 of 3 accesses of 'mean' were drawn. The run is stopped for good: nothing more is drawn
        """
        if self.follows:
            raise LedgerError("this process is one of several, and rank 0 alone stops the run: call it there after the fit")
        with self._lock:
            self.read_on()
            if not self.finished:
                before = self.ledger.plan
                self.ledger.stop()
                if self.ledger.plan != before:
                    self.plan = Plan.from_json(self.ledger.plan)
            return self._entry.stop(self.ledger, self.plan)

    def read_on(self) -> None:
        """Count what another account has drawn and written to the file since this one closed its ledger.

        Raises:
            LedgerError: if the file is damaged or missing, or another run's.
        """
        if self.ledger.read_on():
            self.plan = Plan.from_json(self.ledger.plan)

    def certify(self) -> tuple[dp_accounting.DpEvent, Spent]:
        """Return event and epsilon for the certificate: the plan's, unless the ledger's is larger.

        A run that stopped early, for whatever was seen, does not get a smaller epsilon: reading an odometer at a
        chosen time under-reports. A run that was stopped for good (`stop`) costs what the next time costs that its plan
        has named, if it has. Where a reference stands for the rest of a plan, the ledger's accesses must be below
        it, too. What another account has gone on to draw since this one closed its ledger counts.

        Raises:
            PlanMismatch: if nothing was drawn, or the ledger's accesses are not below the reference.
            LedgerError: as `read_on`.
        """
        self.read_on()
        return reconcile.certify(self.plan, self.accesses, self.named_stop)

    @property
    def named_stop(self) -> int | None:
        """The named time of the plan (`Plan.stops`) that a run which was stopped for good is charged up to; else None.

        A run whose plan was rewritten after a crash is charged whole: the named times are those of the plan as promised.
        """
        as_promised = self.ledger.plan == self.ledger.promise
        return self.plan.named_stop(self.accesses) if self.ledger.stopped and as_promised else None
