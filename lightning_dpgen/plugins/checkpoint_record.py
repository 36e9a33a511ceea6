"""The record in a checkpoint of the account that paid for its weights, and the way to go on from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import LedgerError


def record_of(account: Account) -> dict[str, Any]:
    """Return the last checksum of the ledger, the accesses of each stage, and all that was drawn; all of it is public.

    What has to be known again and is secret is written beside the ledger as well, and does not stand in the checkpoint.
    """
    account.save_private_state()
    drawn = [access.as_json() | {"count": count} for access, count in account.ledger.accesses]
    return {"head": account.ledger.head, "done": account.done, "spent": drawn}


def go_on_from(account: Account, record: Mapping[str, Any] | None) -> None:
    """Go on from the state that a record was saved with.

    Args:
        account: the account from `Account.resume`.
        record: the record from `record_of`; None for a checkpoint without one.

    Raises:
        LedgerError: if the record belongs to another run than the ledger, or the account was not resumed.
        BudgetTooSmall: as `Account.go_on`.
    """
    if record is None or not account.ledger.knows(record["head"]):
        raise LedgerError(
            "this checkpoint is not of the run that this account's ledger is about, so the spending of that run would not "
            "be counted: use Account.resume(<its ledger>), or start from the weights with a new plan"
        )
    account.go_on(record["done"])
