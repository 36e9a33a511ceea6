"""The entry of one run in its study, from the first draw to a stop for good, after which the study has the rest back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lightning_dpgen.privacy import reconcile
from lightning_dpgen.privacy.accounting.epsilon_range import round_up
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.ledger import Ledger
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.studies.study import Study, study_entry
from lightning_dpgen.privacy.studies.study_total import Total


@dataclass(frozen=True)
class Stopped:
    """A run after `Account.stop`.

    Args:
        drawn: of each stage its name, the accesses that were drawn or may have been, and those that were planned.
        study: the name of its study; None for a run that was entered in none.
        before, after: the total of the study before and after the stop; None without a study.
        whole: True if the study still counts all that was planned.
    """

    drawn: tuple[tuple[str, int, int], ...]
    study: str | None = None
    before: Total | None = None
    after: Total | None = None
    whole: bool = True

    @property
    def finished(self) -> bool:
        """True if all was drawn that was planned, so that nothing was left to stop."""
        return all(drawn >= planned for _, drawn, planned in self.drawn)

    def __str__(self) -> str:
        parts = [f"{drawn:,} of {planned:,} accesses of {stage!r}" for stage, drawn, planned in self.drawn]
        text = f"{', '.join(parts)} were drawn. "
        if self.finished:
            return f"{text}The run is finished, so nothing goes back"
        text += "The run is stopped for good: nothing more is drawn"
        if self.before is None or self.after is None:
            return text
        before, after = round_up(self.before.epsilon), round_up(self.after.epsilon)
        how = "counts it whole" if self.whole else "counts what was drawn"
        goes = f"stays at epsilon {after:g}" if after == before else f"goes from epsilon {before:g} to {after:g}"
        return f"{text}. Study {self.study} {how}, and {goes} at delta {self.after.delta:g}"


class StudyEntry:
    """The entry of one run, which is made once for each plan that the run has.

    Attributes:
        study: the study that the run belongs to; None for a run outside of studies.
        total: the total of the study with this run; None before it is entered.
    """

    def __init__(self, study: Study | None) -> None:
        self.study = study
        self.total: Total | None = None
        self._entered: Plan | None = None

    def enter(self, ledger: Ledger, plan: Plan) -> None:
        """Charge a run with its plan, unless this plan is entered already; the ledger knows its study first.

        Args:
            plan: the plan of all that the run will draw.

        Raises:
            BudgetTooSmall, LedgerError: as `Study.enter`.
        """
        if self.study is not None and self._entered is not plan:
            if ledger.study is None:
                ledger.record_study(name_in_ledger(self.study))
            self.total = self.study.enter(ledger.run, plan.event, **study_entry(plan))
            self._entered = plan

    def stop(self, ledger: Ledger, plan: Plan) -> Stopped:
        """Give back to the study what a run that is stopped for good has not drawn; see `Study.stop`.

        A run that began without the study counts whole: a copy of its ledger from before may go on without it.

        Args:
            ledger: the ledger of the run, whose last line says so, unless the run is finished.
        """
        drawn = tuple((stage.name, ledger.count(stage.name), stage.count) for stage in plan.stages)
        totals = None
        if self.study is not None and ledger.stopped:
            drawn_event = reconcile.counted_event(plan, ledger.accesses)
            totals = self.study.stop(ledger.run, drawn_event, not ledger.in_study_first)
        if self.study is None or totals is None:
            return Stopped(drawn)
        self.total = totals[1]
        return Stopped(drawn, self.study.name, *totals)


def name_in_ledger(study: Study) -> tuple[str, str]:
    """Return the identity and the file by which a ledger knows a study."""
    return study.identity, str(study.path.resolve())


def check_stream(study: Study | None, stream: PrivateStream) -> None:
    """Refuse a study for a run whose noise is repeatable: with its seed the noise can be removed, at no epsilon.

    Raises:
        ValueError: naming both arguments of the account.
    """
    if study is not None and stream.seeded:
        raise ValueError(
            f"study={study.name!r}: expected a run that is private, and stream=PrivateStream(seed=...) makes noise that "
            "can be removed: leave out the seed, or the study"
        )


def check_study(ledger: Ledger, study: Study | None) -> None:
    """Refuse to go on with a run without the study that it was entered in, or if that knows it as stopped.

    Raises:
        LedgerError: naming the study.
    """
    if ledger.study is not None and (study is None or study.identity != ledger.study[0]):
        given = "none" if study is None else str(study.path)
        raise LedgerError(
            f"{ledger.path}: this run belongs to the study {ledger.study[1]}, which may have spent what it has not drawn: "
            f"expected that study, wherever its file is now, and found {given}"
        )
    if study is not None:
        study.check_going(ledger.run)


def stop_run(path: str | Path, study: Study | None = None) -> Stopped:
    """Stop the run of a ledger for good, as `Account.stop` does; what an earlier stop has left undone is completed.

    Args:
        path: the file of the ledger.
        study: the study that it was entered in; None finds it by the ledger.

    Raises:
        LedgerError: if the run was entered in no study, or in another; if another process holds its ledger, or a file is
            damaged. Nothing is stopped then.
        FileNotFoundError: if there is no such ledger.
    """
    ledger = Ledger.read(path)
    if ledger.plan is None:
        raise LedgerError(f"{path}: holds no plan, so what the run has not drawn is not known")
    if study is None and ledger.study is not None:
        study = Study(ledger.study[1])
    if study is None:
        raise LedgerError(f"{path}: this run was entered in no study, so nothing can go back, and it is not stopped")
    if ledger.study is not None and ledger.study[0] != study.identity:
        raise LedgerError(f"{path}: this run belongs to the study {ledger.study[1]}, and {study.path} is another")
    if not study.holds(ledger.run):
        raise LedgerError(f"{study.path}: holds no entry of run {ledger.run!r}, so nothing can go back; it is not stopped")
    plan = Plan.from_json(ledger.plan)
    if not ledger.stopped and any(ledger.count(stage.name) < stage.count for stage in plan.stages):
        ledger = Ledger.reopen(path)
        plan = Plan.from_json(ledger.plan)
        ledger.stop()
    return StudyEntry(study).stop(ledger, plan)
