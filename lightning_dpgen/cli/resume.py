"""Going on with a run that did not end: the same settings, the same records, and the state that was saved last."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from pathlib import Path
from typing import Any

from lightning_dpgen.cli.configuration import Conf
from lightning_dpgen.cli.count import with_count
from lightning_dpgen.cli.mistake import Mistake
from lightning_dpgen.cli.run_folder import RunFolder
from lightning_dpgen.cli.settings import Settings, fill
from lightning_dpgen.cli.table import budget_table
from lightning_dpgen.data.records import Records
from lightning_dpgen.plugins.accountant import LEDGER
from lightning_dpgen.plugins.split import PrivateSplitDataModule
from lightning_dpgen.plugins.vae import VAE
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import BudgetTooSmall, LedgerError


def about(settings: Settings | None, records: Records) -> dict[str, Any]:
    """What a ledger says about its run, so that another run is not mistaken for it. Private: of the records it holds a
    fingerprint, and the key that it was made with."""
    key = secrets.token_hex(16)
    return {"key": key, "records": _fingerprint(records, key)} | about_settings(settings)


def about_settings(settings: Settings | None) -> dict[str, Any]:
    """The public part of `about`; empty while the number of records, on which settings rest, is not known."""
    return {} if settings is None else {"settings": _settings(settings), "n": settings.conf.data.n}


def settings_of(conf: Conf, about: dict[str, Any], folder: RunFolder) -> Settings:
    """The settings of the run, with the number of records that it has bought, if it did.

    Raises:
        Mistake: if the run ended before that was known; or as `settings.fill`.
    """
    if conf.data.n is not None:
        return fill(conf)
    if "n" not in about:
        raise Mistake(
            f"run_dir={folder.root}: the run was interrupted while its records were counted; choose another run_dir (what "
            "the count has cost adds to the cost of the new run)"
        )
    return with_count(conf, about["n"])


def check(about: dict[str, Any], settings: Settings, records: Records, folder: RunFolder) -> None:
    """Refuse to go on with other settings or other records.

    Raises:
        Mistake: naming what is different.
    """
    before, now = about["settings"], _settings(settings)
    different = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if different:
        changes = "; ".join(f"{name} was {before.get(name)} and is {now.get(name)}" for name in different[:3])
        raise Mistake(
            f"run_dir={folder.root}: holds an unfinished run with other settings ({changes}): give the same ones to go on, "
            "or choose another run_dir"
        )
    if about["records"] != _fingerprint(records, about["key"]):
        raise Mistake(
            f"run_dir={folder.root}: holds an unfinished run on other records: what it has spent is about those; give the "
            "same data to go on, or choose another run_dir"
        )


def restore(account: Account, data: PrivateSplitDataModule, module: VAE, folder: RunFolder) -> Path | None:
    """Say to the account from which state the run goes on, and print the plan that follows.

    Gives the checkpoint that the fit has to start from, if there is one. Of a run whose training is complete the module is
    restored here, for there is no fit.
    """
    shutil.rmtree(folder.staging, ignore_errors=True)
    done, path = data.load(), None
    if folder.checkpoint.is_file():
        path = folder.checkpoint
        checkpoint = durable.load(path, LEDGER, "state_dict")
        if not account.ledger.knows(checkpoint[LEDGER]["head"]):
            raise LedgerError(f"{path}: knows of lines that the ledger does not hold; some of it is missing")
        done = checkpoint[LEDGER]["done"]
    account.go_on(done)
    if path is None and not account.remaining("training"):
        raise BudgetTooSmall(
            f"run_dir={folder.root}: all training steps were spent before a state of the network was saved, so there is "
            "nothing to release; start a new run, whose cost adds to what this one has spent"
        )
    steps = done.get("training", 0)
    print(f"going on with the run in {folder.root} after {steps:,} training steps; its plan is now:")
    print(budget_table(account.plan), flush=True)
    if path is not None and not account.remaining("training"):
        module.load_state_dict(checkpoint["state_dict"])
    return path


def _settings(settings: Settings) -> dict[str, Any]:
    """Everything declared, flat, by dotted name, as JSON would give it back."""
    conf = settings.conf
    declared = settings.declared() | {
        "privacy": {"epsilon": conf.privacy.epsilon, "delta": conf.privacy.delta, "unit": conf.privacy.unit},
        "debug": {"private_seed": conf.debug.private_seed},
    }
    flat: dict[str, Any] = {}
    for name, value in json.loads(json.dumps(declared)).items():
        flat |= {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def _fingerprint(records: Records, key: str) -> str:
    digest = hashlib.blake2b(key=bytes.fromhex(key), digest_size=16)
    digest.update(str(tuple(records.encoded.shape)).encode())
    digest.update(records.encoded.numpy())
    return digest.hexdigest()
