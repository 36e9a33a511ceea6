"""What a checkpoint says of the account that its weights were paid from, and how a run goes on from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import LedgerError


def record_of(account: Account) -> dict[str, Any]:
    """The checksum up to which the ledger has come, the accesses of each stage, and what was drawn; all public."""
    drawn = [access.as_json() | {"count": count} for access, count in account.ledger.accesses]
    return {"head": account.ledger.head, "done": account.done, "spent": drawn}


def go_on_from(account: Account, record: Mapping[str, Any] | None) -> None:
    """Go on from the state that a record was saved with.

    Args:
        account: from `Account.resume`.
        record: what `record_of` gave; None where a checkpoint has none.

    Raises:
        LedgerError: if the record is not of the run that the ledger is about, or the account was not resumed.
        BudgetTooSmall: as `Account.go_on`.
    """
    if record is None or not account.ledger.knows(record["head"]):
        raise LedgerError(
            "this checkpoint is not of the run that this account's ledger is about, so what that run has spent would "
            "not be counted: use Account.resume(<its ledger>), or start from the weights with a new plan"
        )
    account.go_on(record["done"])
