"""`dpgen budget`: the table that `train` would print, without reading a record."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_dpgen.cli.projection_table import planned_projection, projection_table
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.runs.candidates import read_candidates
from lightning_dpgen.runs.reporter import TerminalReporter, warn
from lightning_dpgen.runs.studies import check_study, said, study_of
from lightning_dpgen.runs.table import budget_table
from lightning_dpgen.runs.warnings import doubts, seed_warning
from lightning_dpgen.specs.compose import asks_for_selection
from lightning_dpgen.specs.projection import ProjectSpec
from lightning_dpgen.specs.run import RunSpec
from lightning_dpgen.specs.settings import read_settings

HELP = """usage: dpgen budget [NAME=VALUE ...]

Prints what `dpgen train` with the same settings would spend, stage by stage. Reads no data.

  dpgen budget data=mnist privacy.epsilon=1.74
  dpgen budget experiment=dpgm_mnist

  dpgen budget project [NAME=VALUE ...]      the same for `dpgen project`, and how well each choice keeps distances"""


def run(argv: Sequence[str]) -> int:
    if any(word in ("-h", "--help") for word in argv):
        print(HELP)
        return 0
    if argv[:1] == ["project"]:
        projection = planned_projection(argv[1:])
        print(projection_table(projection))
        _tell_study(projection.spec, projection.plan())
        return 0
    if asks_for_selection(argv):
        candidates = read_candidates(argv, TerminalReporter())
        print(candidates.table())
        _tell_study(candidates.settings[0].spec, candidates.plan)
        return 0
    settings = read_settings(argv)
    plan = settings.plan()
    for text in (seed_warning(settings.spec.debug.private_seed), *doubts(settings, plan)):
        warn(text)
    if settings.chosen is not None:
        print(settings.chosen)
    print(budget_table(plan, of_person=settings.spec.data.column_of_persons is not None))
    _tell_study(settings.spec, plan)
    return 0


def _tell_study(spec: RunSpec | ProjectSpec, plan: Plan) -> None:
    if (study := study_of(spec.privacy, begin=False)) is not None:
        print(f"study {study.name}: spent so far: {said(study.total, study)}")
        print(check_study(study, plan))
    elif spec.privacy.study is not None:
        print(f"study {spec.privacy.study}: not begun; its first run begins it")
