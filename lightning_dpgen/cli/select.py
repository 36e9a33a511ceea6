"""`dpgen train privacy.selection=...`: the best of a secret number of trials."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightning_dpgen.cli.guarded import guarded
from lightning_dpgen.cli.launch import launched
from lightning_dpgen.runs import folder as run_folder
from lightning_dpgen.runs.candidates import read_candidates
from lightning_dpgen.runs.folder import RunFolder
from lightning_dpgen.runs.reporter import TerminalReporter
from lightning_dpgen.runs.select import forget_what_is_left, select
from lightning_dpgen.specs.compose import refuse_interpolations
from lightning_dpgen.specs.usage_error import OK, UsageError


def run(argv: Sequence[str]) -> int:
    """Make the trials, and release the best.

    Raises:
        UsageError, BadRecords, BudgetTooSmall, LedgerError, MissingData: in one line each.
    """
    refuse_interpolations(argv)
    if launched():
        raise UsageError(
            "privacy.selection: trials are made one after the other by one process, on one device; start it without "
            "torchrun or srun"
        )
    words = [word for word in argv if not word.startswith("run_dir=")]
    run_dir = next((word.partition("=")[2] for word in argv if word.startswith("run_dir=")), None)
    if run_dir is not None:
        forget_what_is_left(RunFolder(Path(run_dir)))
    folder = run_folder.choose(run_dir)
    reporter = TerminalReporter()
    candidates = read_candidates(words, reporter)
    certificate = guarded("train", argv, folder, lambda asked: select(candidates, words, folder, asked, reporter))
    print(f"\ndone: epsilon {certificate['epsilon']:g} at delta {certificate['delta']:g}")
    print(f"  release (may be published):  {folder.release}")
    print(f"  private (must not leave this machine):  {folder.private}")
    print("Keep to yourself how long this took, and what you saw of it: it tells how many trials there were.")
    return OK
