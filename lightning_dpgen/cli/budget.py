"""`dpgen budget`: the table that `train` would print, without reading a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lightning_dpgen.cli.arguments import VERBOSE_HELP, loading
from lightning_dpgen.cli.hydra_flags import CommandLine, read_command_line
from lightning_dpgen.common.plain_text import align_columns
from lightning_dpgen.privacy.accounting.epsilon_range import caution
from lightning_dpgen.specs.plain_words import plain_words
from lightning_dpgen.specs.run import (
    RunSpec,
    check_privacy,
    load_projection_settings,
    load_settings_without_slow_defaults,
    with_default_bins,
)
from lightning_dpgen.specs.usage_error import UsageError
from lightning_dpgen.specs.words import asks_for_selection

if TYPE_CHECKING:
    from lightning_dpgen.projection.choice import Option
    from lightning_dpgen.specs.groups import ProjectSpec
    from lightning_dpgen.specs.projection_settings import ProjectionSettings

HELP = """usage: dpgen budget [NAME=VALUE ...]

Prints what `dpgen train` with the same settings would spend, stage by stage. Reads no data.

  dpgen budget data=mnist privacy.epsilon=1.74
  dpgen budget experiment=dpgm_mnist

  dpgen budget project [NAME=VALUE ...]      the same for `dpgen project`, and how well each choice keeps distances"""


def run(argv: Sequence[str]) -> int:
    if any(word in ("-h", "--help") for word in argv):
        print(f"{HELP}\n\nOptions:\n{VERBOSE_HELP}")
        return 0
    line = read_command_line(argv, "budget")
    if line.cfg is not None:
        raise UsageError("--cfg: dpgen train and dpgen project show settings; leave it out")
    if line.words[:1] == ("project",):
        return _print_projection(load_projection_settings(plain_words(line.words[1:], line.files, "project")))
    if asks_for_selection(line.words):
        return _print_selection(line)
    # Mistakes are reported before the import of what a plan needs.
    spec = load_settings_without_slow_defaults(plain_words((*line.words, *line.hydra), line.files))
    check_privacy(spec)
    return _print_run(with_default_bins(spec))


def _print_run(spec: RunSpec) -> int:
    """Print the budget of a training."""
    with loading():
        from lightning_dpgen.runs.budget import tell_budget
        from lightning_dpgen.runs.reporter import TerminalReporter
    tell_budget(spec, TerminalReporter())
    return 0


def _print_selection(line: CommandLine) -> int:
    """Print the budget of a selection."""
    with loading():
        from lightning_dpgen.runs.budget import tell_study
        from lightning_dpgen.runs.candidates import read_candidates
        from lightning_dpgen.runs.reporter import TerminalReporter
    reporter = TerminalReporter()
    candidates = read_candidates(line.words, reporter, line.files)
    print(candidates.table())
    tell_study(candidates.settings[0].spec, candidates.plan, candidates.settings[0].n, reporter)
    return 0


def _print_projection(spec: ProjectSpec) -> int:
    """Print the budget of a projection, and its options."""
    with loading():
        from lightning_dpgen.runs.budget import tell_study
        from lightning_dpgen.runs.reporter import TerminalReporter
        from lightning_dpgen.specs.projection_settings import complete_projection
    if (d := spec.data.d) is None:
        raise UsageError("data.d=null: the budget is computed without reading the rows; declare how many columns they have")
    projection, reporter = complete_projection(spec, d), TerminalReporter()
    reporter.warn(caution(spec.privacy.epsilon) if projection.private else None)
    print(_projection_table(projection))
    tell_study(spec, projection.plan(), spec.data.n, reporter)
    return 0


def _projection_table(settings: ProjectionSettings) -> str:
    """Return the budget table of a projection, and its options: the best for each k, the best of all, and raw rivals."""
    from lightning_dpgen.projection.choice import PAIRS
    from lightning_dpgen.runs.table import budget_table

    head = ("k", "matrix", "noise", "scale", "error of one distance", f"of the mean of {PAIRS:,}")
    best = {option.k: option for option in reversed(settings.options)}
    rows = [head, *(_cells(best[k]) for k in sorted(best))]
    raw = next((option for option in settings.options if option.matrix == "identity"), None)
    return "\n".join(
        [
            budget_table(settings.plan(), pure="pure"),
            "",
            "the best matrix and noise for each k, by the standard deviation of recovered squared distances, relative, "
            f"where the true distance is {settings.typical:.4g}:",
            align_columns(rows),
            "",
            _advice(settings.best, raw, PAIRS),
        ]
    )


def _cells(option: Option) -> tuple[str, ...]:
    errors = (f"{option.error:.0%}", f"{option.error_of_mean:.1%}")
    return (str(option.k), option.matrix, option.noise, f"{option.scale:.3g}", *errors)


def _advice(best: Option, raw: Option | None, pairs: int) -> str:
    text = f"best: project.k={best.k} project.matrix={best.matrix} project.noise={best.noise}"
    if raw is None:
        return text
    if best.matrix == "identity":
        return f"{text}: noise on the rows as they are. A projection pays only where fewer columns are wanted in themselves"
    if best.error_of_mean > 1.0:
        text += f" (at this budget not even the mean of {pairs:,} distances survives: more epsilon, or a smaller radius)"
    elif best.error > 1.0:
        text += " (no single distance survives at this budget, only averages over many pairs)"
    gain = 1.0 - best.error_of_mean / raw.error_of_mean
    return f"{text}: {gain:.0%} less error of means than {raw.noise} noise on the rows as they are"
