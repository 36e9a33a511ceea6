"""Writing a release: complete, or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.durable import sync_files, sync_folder
from lightning_dpgen.release.certificate import CERTIFICATE, make_certificate
from lightning_dpgen.release.pictures import write_sheet
from lightning_dpgen.release.report import write_card, write_report
from lightning_dpgen.release.sampler import MODEL, WEIGHTS, Release, write_model
from lightning_dpgen.release.tables import write_table

SYNTHETIC, SHEET = "synthetic.parquet", "samples.png"


def write_release(
    folder: Path,
    staging: Path,
    mixture: Mixture,
    account: Account,
    *,
    rows: int,
    unit: str,
    declared: dict[str, Any],
    seed: int,
) -> dict[str, Any]:
    """Write a release into `staging` and rename it to `folder`; gives its certificate.

    Everything in it is a function of what the account paid for: of the mixture, the plan and public settings.

    Args:
        folder: must not exist.
        staging: a folder beside it that must not exist, on the same file system.
        mixture: the trained mixture.
        account: the run's account, settled.
        rows: number of synthetic records, public.
        unit: whose presence is protected.
        declared: all that is assumed public.
        seed: of the synthetic records; public.
    """
    staging.mkdir()
    release = Release(mixture)
    write_model(staging, mixture)
    write_table(staging / SYNTHETIC, release.chunks(rows, seed), release.schema)
    write_sheet(staging / SHEET, release)

    def certificate() -> dict[str, Any]:
        released = [MODEL, WEIGHTS, SYNTHETIC, SHEET]
        return make_certificate(account, unit=unit, declared=declared, released=released, folder=staging)

    # Report and card show the certificate's fields but not its hashes, so they come before the hashes are taken.
    draft = certificate()
    write_report(staging, draft)
    write_card(staging, draft)
    final = certificate()
    (staging / CERTIFICATE).write_text(json.dumps(final, indent=2) + "\n", encoding="utf-8")
    sync_files(staging)
    os.rename(staging, folder)
    sync_folder(folder.parent)
    return final
