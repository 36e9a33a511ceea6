"""Functions that write a release: complete, or not at all."""

from __future__ import annotations

import json
import secrets
import shutil
from pathlib import Path
from typing import Any, Protocol

from lightning_dpgen.common.folders import FOLDER, make_folder, place_of, publish, sync_files
from lightning_dpgen.common.plain_text import check_plain
from lightning_dpgen.models.networks import check_sizes
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import PlanMismatch
from lightning_dpgen.release.bounds import MOST_FILES, check_declared, check_written
from lightning_dpgen.release.certificate import make_certificate
from lightning_dpgen.release.files import CERTIFICATE
from lightning_dpgen.release.publishing.licenses import check_license
from lightning_dpgen.release.unit_check import check_unit


class Content(Protocol):
    """The content of a release. All of it is a function of what an account paid for, and of public settings."""

    released: tuple[str, ...]

    def write(self, folder: Path, *, private: bool) -> None:
        """Write the files named in `released`; those of a run that is not private carry a mark (`publishing.mark`)."""

    def present(self, folder: Path, certificate: dict[str, Any]) -> None:
        """Write report and card, which show the certificate and the files of `write`."""


def release_from(
    content: Content, account: Account, folder: str | Path, *, data: str, n: int, unit: str | None, declared: dict[str, Any]
) -> dict[str, Any]:
    """Write a release of what any program has learned on an account, and return its certificate.

    Args:
        account: the account that has paid for all of it. Nothing can be drawn from it any more.
        folder, data, n, unit, declared: as for `release_mixture`.

    Raises:
        FileExistsError, PlanMismatch: as `release_mixture`.
        ValueError: for `declared` that repeats an argument, cannot be JSON, or has a `license` that is no word of the Hub;
            for empty words, or an n that is no whole number from 1; for a unit of more records than the plan's `max_rows`.
    """
    folder = place_of(folder)
    check_sizes(n=n)
    if names := sorted({"data", "n", "max_rows", "n_share"} & set(declared)):
        raise ValueError(f"declared: holds {names}, which arguments and the account's plan state already; leave them out")
    for name, words in {"data": data, "unit": unit}.items():
        if words is not None and not (isinstance(words, str) and words.strip()):
            raise ValueError(f"{name}={words!r}: expected words")
        if words is not None:
            check_plain(name, words)
    if len(content.released) > MOST_FILES:
        raise ValueError(f"released: {len(content.released):,} files, expected at most {MOST_FILES:,}; put them into fewer")
    check_license(declared)
    try:
        check_declared(declared)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"declared: {error}; expected values that JSON can hold, since they stand in the certificate"
        ) from None
    if folder.exists():
        raise FileExistsError(f"{folder} exists already: choose another folder, since a release is never overwritten")
    if not account.ledger.accesses:
        raise PlanMismatch("nothing has been drawn from this account: learn from the records on it first")
    per_person = {} if account.plan.max_rows == 1 else {"max_rows": account.plan.max_rows}
    if unit is None:
        unit = "one person" if per_person else "one record"
    everything = {"data": data, "n": n, **per_person, **declared}
    if names := check_unit({"unit": unit, "declared": everything}, by_settings=False):
        raise ValueError(f"{names[0]} by the account's plan: leave the unit out, or name one thing, as in 'one person'")
    account.ledger.close()
    make_folder(folder.parent)
    # A random name, since the folder of another process may stand there.
    staging = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    try:
        return write_release(folder, staging, content, account, unit=unit, declared=everything)
    finally:
        # An incomplete release is removed; it can be asked for again.
        shutil.rmtree(staging, ignore_errors=True)


def write_release(
    folder: Path,
    staging: Path,
    content: Content,
    account: Account,
    *,
    unit: str,
    declared: dict[str, Any],
    selection: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write a release into `staging`, rename it to `folder` and return its certificate.

    Args:
        folder: a folder that does not exist.
        staging: a folder beside it that does not exist, on the same file system.
        account, unit, declared, selection: as for `make_certificate`.
    """
    staging.mkdir(mode=FOLDER)
    content.write(staging, private=account.private)
    check_written(staging)
    about = {"unit": unit, "declared": declared, "released": list(content.released), "selection": selection}
    # Report and card show the certificate's fields but not its hashes, so they come before the hashes are taken.
    content.present(staging, make_certificate(account, folder=staging, **about))
    final = make_certificate(account, folder=staging, **about)
    (staging / CERTIFICATE).write_text(json.dumps(final, indent=2) + "\n", encoding="utf-8")
    sync_files(staging)
    publish(staging, folder)
    return final
