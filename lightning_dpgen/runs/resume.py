"""Going on with a run that did not end, from the state that was saved last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning_dpgen.measure.crossings import EVIDENCE
from lightning_dpgen.measure.labels import LABELS
from lightning_dpgen.metrics.fidelity import FIDELITY
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.runs.context import Context
from lightning_dpgen.runs.folder import RunFolder
from lightning_dpgen.runs.table import budget_table
from lightning_dpgen.specs.settings import FIRST_PASS


def load_state(path: Path, account: Account, *names: str) -> dict[str, Any]:
    """Return what a run has saved under these names.

    Raises:
        LedgerError: if the ledger lacks lines that were there when it was saved.
        DamagedState: if it cannot be read.
    """
    kept = durable.load(path, "head", *names)
    if not account.ledger.knows(kept["head"]):
        raise LedgerError(f"{path}: refers to lines that the ledger does not hold: some of the ledger is missing")
    return kept


def fidelity(account: Account, folder: RunFolder) -> dict[str, float] | None:
    """Return the public figure that a run has measured, if it was saved."""
    if folder.fidelity.is_file():
        kept = durable.load(folder.fidelity, "head", "figure")
        if account.ledger.knows(kept["head"]):
            return kept["figure"]
    return None


def paid_once(account: Account) -> dict[str, int]:
    """Return the accesses that are not made again, for `Account.go_on`.

    What was bought first stands in the ledger. A figure that was lost is not bought again, nor are gradients of labels and
    what tells how much crossings say of them: the model would pay for it.
    """
    return {name: count for name in (FIRST_PASS, EVIDENCE, LABELS, FIDELITY) if (count := account.ledger.count(name))}


def say_plan(run: Context, after: str = "") -> None:
    """Say that a run goes on, and by which plan."""
    run.reporter.say(f"going on with the run in {run.folder.root}{after}; its plan is now:")
    run.reporter.say(budget_table(run.account.plan))
