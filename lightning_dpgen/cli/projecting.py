"""The command `project` once its settings are read."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from lightning_dpgen.cli.guarded import guarded, tell_release
from lightning_dpgen.cli.launch import launched
from lightning_dpgen.common.launched import launched_as
from lightning_dpgen.runs import folder as run_folder
from lightning_dpgen.runs.project import project
from lightning_dpgen.runs.reporter import TerminalReporter
from lightning_dpgen.specs.projection import ProjectSpec
from lightning_dpgen.specs.usage_error import UsageError


def run(argv: Sequence[str], spec: ProjectSpec) -> int:
    """Project the rows; gives the exit status."""
    if launched() or launched_as():
        raise UsageError("dpgen project: runs in one process; start it without torchrun or srun")
    folder = run_folder.choose(spec.run_dir)
    certificate = guarded("project", argv, folder, lambda interrupts: project(spec, folder, interrupts, TerminalReporter()))
    unit = f"one {certificate['declared']['projection']['unit']} replaced"
    page = shlex.quote(str(folder.release / "report.html"))
    report = f"open {page} in a browser; in Python: load_release({str(folder.release)!r})"
    tell_release(certificate, folder, unit, report)
    return 0
