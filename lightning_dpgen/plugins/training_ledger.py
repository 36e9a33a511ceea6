"""The ledger of one training: opened for its records, gone on with from a checkpoint, and closed with a digest."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from lightning_dpgen.gradients.shards import bytes_of, reshard
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.ledger import Ledger
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.software import launched_as
from lightning_dpgen.privacy.studies.study import Study
from lightning_dpgen.release.weights import FrozenTensors
from lightning_dpgen.sampling.contents import content
from lightning_dpgen.sampling.stores import Store


def open_account(
    plan: Plan,
    ledger: str | Path | None,
    stream: PrivateStream | None,
    study: Study | None,
    store: Store,
    persons: np.ndarray | None,
    earlier: Account | None = None,
    validation: tuple[Store, np.ndarray | None] | None = None,
) -> Account:
    """Return a new account, or that of the run that the ledger holds; other ranks than 0 learn from rank 0 which it is.

    Args:
        earlier: an account of this process that has the ledger and gives it up, if the run goes on.
        validation: the validation records that the plan looks at, and their persons.

    Raises:
        LedgerError: if the ledger holds a run with other settings, or on other records.
    """
    if ledger is None or launched_as() or not Path(ledger).exists():
        about = None if ledger is None else _about(store, persons, validation)
        return Account(plan, ledger, stream, about=about, study=study)
    # Read first, since opening a ledger writes to it.
    begun = Ledger.read(ledger)
    if not _promises(begun, plan):
        raise LedgerError(
            f"ledger={str(ledger)!r}: holds a run with other settings: give the settings of that run to go on with it, or "
            "another file for a new one"
        )
    key = begun.about.get("key")
    known = isinstance(key, str) and re.fullmatch("[0-9a-f]{32}", key)
    if not known or begun.about != _about(store, persons, validation, key):
        raise LedgerError(
            f"ledger={str(ledger)!r}: holds a run on other records or persons, and what it has spent is about those: "
            "give the same ones to go on with it, or another file for a new run"
        )
    if earlier is not None:
        earlier.ledger.close()
    account = Account.resume(ledger, stream, study=study)
    if not account.ledger.accesses:
        account.go_on({})
    return account


def _about(
    store: Store,
    persons: np.ndarray | None,
    validation: tuple[Store, np.ndarray | None] | None,
    key: str | None = None,
) -> dict[str, str]:
    """Return what a ledger says of records and persons: fingerprints and their key; items of a Dataset are left out."""
    key = key or secrets.token_hex(16)
    about = {"key": key, "records": _fingerprint(store, persons, key)}
    return about if validation is None else about | {"validation": _fingerprint(*validation, key)}


def _fingerprint(store: Store, persons: np.ndarray | None, key: str) -> str:
    digest = hashlib.blake2b(content(store), key=bytes.fromhex(key), digest_size=16)
    if persons is not None:
        # As numbers, so that text and numbers of persons are told apart alike.
        digest.update(np.unique(np.asarray(persons), return_inverse=True)[1].astype(np.int64).tobytes())
    return digest.hexdigest()


def _promises(ledger: Ledger, plan: Plan) -> bool:
    """Return whether a ledger is of a run that promised what `plan` does."""
    try:
        begun = Plan.from_json(ledger.promise or {})
    except ValueError:
        return False
    ours, theirs = ((p.delta, p.relation, p.max_rows, p.n, p.accountant, p.stops) for p in (plan, begun))
    counts = len(begun.stages) == len(plan.stages)
    return ours == theirs and counts and all(a.draws_as(b) for a, b in zip(plan.stages, begun.stages, strict=True))


def digest_of(module: nn.Module, frozen: FrozenTensors | None = None) -> str:
    """Return a digest of the trainable parameters of a module, with their names; the same on any device.

    Sharded parameters are gathered one by one, so all ranks call it.

    Args:
        frozen: other tensors of the module, which the digest is about, too.
    """
    # numpy holds on to the memory that it is shown, and FSDP2 frees that of parameters that an evaluation has left whole.
    reshard(module)
    digest = hashlib.blake2b(digest_size=16)
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype} ".encode())
            digest.update(bytes_of(parameter))
    for name, of_tensor in sorted(frozen.digests.items()) if frozen is not None else ():
        digest.update(f"{name} {of_tensor} ".encode())
    return digest.hexdigest()


def record_of(account: Account) -> dict[str, Any]:
    """Return the last checksum of the ledger, the accesses of each stage, and all that was drawn; all of it is public.

    What has to be known again and is secret is written beside the ledger as well, and does not stand in the checkpoint.
    """
    account.save_private_state()
    drawn = [access.as_json() | {"count": count} for access, count in account.accesses]
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
