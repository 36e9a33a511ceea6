"""The cost of a run in words, before a record is read: `dpgen budget` prints it and the studio shows it."""

from __future__ import annotations

from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.runs.memory import fit_memory_line
from lightning_dpgen.runs.reporter import Reporter
from lightning_dpgen.runs.studies import check_study, first_total, spent_so_far, study_delta_warning, study_of
from lightning_dpgen.runs.table import answers_table, budget_table, decay_line, errors_table, terms_table
from lightning_dpgen.runs.warnings import lost_histories_warning, plan_warnings, seed_warning
from lightning_dpgen.specs.groups import ProjectSpec
from lightning_dpgen.specs.run import RunSpec
from lightning_dpgen.specs.settings import complete_declared_settings


def tell_budget(spec: RunSpec, reporter: Reporter) -> None:
    """Tell what a training would spend, what its noise does to what it measures, and what is to be expected of it.

    Raises:
        UsageError, BadSchema, BudgetTooSmall, LedgerError: for what a run would refuse.
    """
    settings = complete_declared_settings(spec)
    plan = settings.plan()
    of_settings = (seed_warning(settings.spec.debug.private_seed), lost_histories_warning(settings.spec))
    for text in (*of_settings, *plan_warnings(settings, plan)):
        reporter.warn(text)
    reporter.say(settings.choice_reason)
    reporter.say(None if settings.initial is None else settings.initial.line)
    reporter.say(budget_table(plan, of_person=settings.spec.protects_persons))
    crossings = getattr(None if settings.trains_network else settings.recipe, "crossings_line", None)
    tables = errors_table(settings, plan), terms_table(settings, plan), answers_table(settings, plan)
    for line in (crossings, decay_line(settings.clipping, plan), *tables, fit_memory_line(settings)):
        reporter.say(line)
    if settings.parts and settings.spec.data.asked_sets:
        reporter.say("the number of cells follows from what a first pass finds, and may differ")
    tell_study(settings.spec, plan, settings.n, reporter)


def tell_study(spec: RunSpec | ProjectSpec, plan: Plan, n: int | None, reporter: Reporter) -> None:
    """Tell what the study of a run has spent, and would have with it; nothing where there is none."""
    if (study := study_of(spec.privacy, n, begin=False)) is not None:
        reporter.warn(study_delta_warning(study, n))
        reporter.say(spent_so_far(study))
        reporter.say(check_study(study, plan))
    elif spec.privacy.study is not None:
        reporter.say(f"study {spec.privacy.study}: not begun; its first run begins it")
        if (texts := first_total(spec.privacy, plan, n)) is not None:
            reporter.warn(texts[0])
            reporter.say(texts[1])
