"""`dpgen train privacy.selection=...`: the best of a secret number of trials."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_dpgen.cli.guarded import guarded
from lightning_dpgen.cli.launch import launched
from lightning_dpgen.common.folders import place_of
from lightning_dpgen.release.files import MODEL
from lightning_dpgen.runs import folder as run_folder
from lightning_dpgen.runs.candidates import read_candidates
from lightning_dpgen.runs.folder import RunFolder
from lightning_dpgen.runs.reporter import TerminalReporter
from lightning_dpgen.runs.select import forget_what_is_left, select
from lightning_dpgen.specs.compose import expanded, name_of, refuse_interpolations, replaced
from lightning_dpgen.specs.run import read_run
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
    # Candidates do not differ in it.
    run_dir = read_run(expanded(argv)[0][0]).run_dir
    if run_dir is not None:
        forget_what_is_left(RunFolder(place_of(run_dir)))
    folder = run_folder.choose(run_dir)
    reporter = TerminalReporter()
    # The network that the trials start from is that which the first of them started from, wherever the release is now.
    kept = (folder.initial / MODEL).is_file() and any(name_of(word) == "model.init" for word in argv)
    candidates = read_candidates(replaced(argv, "model.init", folder.initial) if kept else argv, reporter)
    words = [word for word in argv if name_of(word) != "run_dir"]
    certificate = guarded("train", argv, folder, lambda asked: select(candidates, words, folder, asked, reporter))
    print(f"\ndone: epsilon {certificate['epsilon']:g} at delta {certificate['delta']:g}")
    print(f"  release (may be published):  {folder.release}")
    print(f"  private (must not leave this machine):  {folder.private}")
    print("Keep to yourself how long this took, and what you saw of it: it tells how many trials there were.")
    return OK
