"""The entry of a run in the study that it belongs to."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from lightning_dpgen.privacy.accounting.accountant import spent
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE, REPLACE_ONE, Unaccountable
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.studies.study import Study
from lightning_dpgen.privacy.studies.study_total import Total


def study_entry(plan: Plan) -> dict[str, Any]:
    """Return how a plan enters a study: its pair, whether its event has moments, and what it costs under replace-one."""
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

    def enter(self, run: str, plan: Plan) -> None:
        """Charge a run with its plan, unless this plan is entered already.

        Args:
            plan: the plan of all that it will draw.

        Raises:
            BudgetTooSmall, LedgerError: as `Study.enter`.
        """
        if self.study is not None and self._entered is not plan:
            self.total = self.study.enter(run, plan.event, **study_entry(plan))
            self._entered = plan
