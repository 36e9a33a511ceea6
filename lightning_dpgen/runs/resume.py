"""Going on with a training that did not end, from the state that was saved last."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_dpgen.metrics.fidelity import FIDELITY
from lightning_dpgen.plugins.accountant import LEDGER
from lightning_dpgen.plugins.mixture import PrivateMixture
from lightning_dpgen.plugins.split import PrivateSplitDataModule
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import BudgetTooSmall, LedgerError
from lightning_dpgen.runs.discover import Bought, with_bought
from lightning_dpgen.runs.folder import RunFolder
from lightning_dpgen.runs.reporter import Reporter
from lightning_dpgen.runs.table import budget_table
from lightning_dpgen.specs.configuration import Conf
from lightning_dpgen.specs.settings import FIRST_PASS, Settings
from lightning_dpgen.specs.usage_error import UsageError


def bought(account: Account, folder: RunFolder) -> Bought:
    """What a run has bought first and not yet made its plan from.

    Raises:
        UsageError: if the run ended before it was saved.
    """
    if folder.bought.is_file():
        kept = durable.load(folder.bought, "head", "n", "parts")
        if account.ledger.knows(kept["head"]):
            return Bought(kept["n"], kept["parts"])
    raise UsageError(
        f"run_dir={folder.root}: the run was interrupted in its first pass over the records; choose another run_dir (what "
        "that has cost adds to the cost of the new run)"
    )


def fidelity(account: Account, folder: RunFolder) -> dict[str, float] | None:
    """The public figure that a run has measured, if it was saved."""
    if folder.fidelity.is_file():
        kept = durable.load(folder.fidelity, "head", "figure")
        if account.ledger.knows(kept["head"]):
            return kept["figure"]
    return None


def settings_of(conf: Conf, about: dict[str, Any]) -> Settings:
    """The settings of the run, with what it has bought first, if it did.

    Raises:
        UsageError: as `settings.fill`.
    """
    bought = Bought(about["n"] if conf.data.n is None else None, about.get("found") or {})
    return with_bought(conf, bought)


def paid_once(account: Account) -> dict[str, int]:
    """Accesses that are not made again, for `Account.go_on`.

    What was bought first stands in the ledger, and a figure that was lost is not bought again: the model would pay for it.
    """
    return {name: 1 for name in (FIRST_PASS, FIDELITY) if account.ledger.count(name)}


def restore(
    account: Account,
    data: PrivateSplitDataModule,
    module: PrivateMixture,
    folder: RunFolder,
    telling: Reporter,
    measured: Mapping[str, int],
) -> Path | None:
    """Say to the account from which state the run goes on, with what was measured, and tell the plan that follows.

    Gives the checkpoint that the fit has to start from, if there is one. Of a run whose training is complete the module is
    restored here, for there is no fit.
    """
    shutil.rmtree(folder.staging, ignore_errors=True)
    done, path = data.load() | dict(measured), None
    if folder.checkpoint.is_file():
        path = folder.checkpoint
        checkpoint = durable.load(path, LEDGER, "state_dict")
        if not account.ledger.knows(checkpoint[LEDGER]["head"]):
            raise LedgerError(f"{path}: knows of lines that the ledger does not hold; some of it is missing")
        done = checkpoint[LEDGER]["done"]
    account.go_on(paid_once(account) | done)
    if path is None and not account.remaining("training"):
        raise BudgetTooSmall(
            f"run_dir={folder.root}: all training steps were spent before a state of the network was saved, so there is "
            "nothing to release; start a new run, whose cost adds to what this one has spent"
        )
    steps = done.get("training", 0)
    telling.say(f"going on with the run in {folder.root} after {steps:,} training steps; its plan is now:")
    telling.say(budget_table(account.plan))
    if path is not None and not account.remaining("training"):
        module.load_state_dict(checkpoint["state_dict"])
    return path
