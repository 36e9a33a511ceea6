"""`dpgen project`: every row of a table, projected and perturbed, under pure epsilon."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial

from lightning_dpgen.cli import hydra_flags, shown_settings
from lightning_dpgen.cli.arguments import VERBOSE_HELP, loading
from lightning_dpgen.cli.hydra_flags import read_command_line
from lightning_dpgen.privacy.software import launched_as
from lightning_dpgen.specs.compose import compose_settings
from lightning_dpgen.specs.groups import ProjectSpec
from lightning_dpgen.specs.plain_words import plain_words
from lightning_dpgen.specs.run import load_projection_settings
from lightning_dpgen.specs.usage_error import UsageError

HELP = """usage: dpgen project [NAME=VALUE ...]

Releases every row of a table, projected to fewer columns and perturbed, with a privacy certificate: who has it can
compute distances, neighbours and clusters. One row (or one element) replaced; delta is 0.

  dpgen project project.radius=10                    two simulated clusters; farther rows are pulled back to that radius
  dpgen project project.distance=1 data.d=100        the setting of the Johnson-Lindenstrauss paper
  dpgen project data=array data.path=F.npy project.radius=1 project.k=20 privacy.epsilon=2
  dpgen project ... project.unit=element             protects one number of one row, and no whole row
  dpgen budget project project.radius=10             which k, which matrix and which noise; reads no record

Options:
{options}

Settings: data=blobs|array, project.unit, project.radius or project.distance, project.k, project.matrix, project.noise,
project.centre, project.typical, privacy.epsilon, privacy.delta (above 0 for Gaussian noise), run_dir, seed; all are
listed in docs/reference/settings.md."""


def run(argv: Sequence[str]) -> int:
    if any(word in ("-h", "--help") for word in argv):
        print(HELP.format(options=f"{hydra_flags.HELP}\n{VERBOSE_HELP}"))
        return 0
    line = read_command_line(argv, "project")
    if line.cfg is not None:
        return shown_settings.show(line, "project", partial(compose_settings, name="project"), load_projection_settings)
    words = plain_words((*line.words, *line.hydra), line.files, "project")
    return _project(words, load_projection_settings(words))


def _project(argv: Sequence[str], spec: ProjectSpec) -> int:
    """Project the rows; gives the exit status."""
    with loading():
        from lightning_dpgen.cli.launch import is_launched, print_release, run_guarded
        from lightning_dpgen.runs import run_folder
        from lightning_dpgen.runs.project import project
        from lightning_dpgen.runs.reporter import TerminalReporter
    if is_launched() or launched_as():
        raise UsageError("dpgen project: runs in one process; start it without torchrun or srun")
    folder = run_folder.choose(spec.run_dir)
    certificate = run_guarded(
        "project", argv, folder, lambda interrupts: project(spec, folder, interrupts, TerminalReporter())
    )
    unit = f"one {certificate['declared']['projection']['unit']} replaced"
    page = shlex.quote(str(folder.release / "report.html"))
    report = f"open {page} in a browser; in Python: load_release({str(folder.release)!r})"
    print_release(certificate, folder, unit, report)
    return 0
