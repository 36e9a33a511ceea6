"""`dpgen project`: every row of a table, projected and perturbed, under pure epsilon."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

import scipy.sparse
import torch

from lightning_dpgen.cli.guarded import guarded, tell_release
from lightning_dpgen.data.rows import blobs, read_rows
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.projection.project import check_rows
from lightning_dpgen.release.bundle import write_release
from lightning_dpgen.release.projected import ProjectedRows
from lightning_dpgen.release.projected_content import ProjectedContent
from lightning_dpgen.runs import folder as run_folder
from lightning_dpgen.runs import run_identity
from lightning_dpgen.runs.context import private_stream
from lightning_dpgen.runs.interrupts import Interrupts
from lightning_dpgen.runs.reporter import warn
from lightning_dpgen.runs.resume import load_state
from lightning_dpgen.runs.studies import check_study, mark, study_of
from lightning_dpgen.runs.table import budget_table
from lightning_dpgen.runs.warnings import seed_warning
from lightning_dpgen.specs.projection import ProjectSpec
from lightning_dpgen.specs.projection_settings import ProjectionSettings, fill_projection
from lightning_dpgen.specs.run import read_projection
from lightning_dpgen.specs.usage_error import UsageError

HELP = """usage: dpgen project [NAME=VALUE ...]

Releases every row of a table, projected to fewer columns and perturbed, with a privacy certificate: who has it can
compute distances, neighbours and clusters. One row (or one element) replaced; delta is 0.

  dpgen project project.radius=10                    two simulated clusters; farther rows are pulled back to that radius
  dpgen project project.distance=1 data.d=100        the setting of the Johnson-Lindenstrauss paper
  dpgen project data=array data.path=F.npy project.radius=1 project.k=20 privacy.epsilon=2
  dpgen project ... project.unit=element             protects one number of one row, and no whole row
  dpgen budget project project.radius=10             which k, which matrix and which noise; reads no record

Settings: data=blobs|array, project.unit, project.radius or project.distance, project.k, project.matrix, project.noise,
project.centre, project.typical, privacy.epsilon, privacy.delta (above 0 for Gaussian noise), run_dir, seed; all are
listed in conf/project.yaml."""


def run(argv: Sequence[str]) -> int:
    if any(word in ("-h", "--help") for word in argv):
        print(HELP)
        return 0
    spec = read_projection(argv)
    folder = run_folder.choose(spec.run_dir)
    certificate = guarded("project", argv, folder, lambda interrupts: _run(spec, folder, interrupts))
    unit = f"one {certificate['declared']['projection']['unit']} replaced"
    report = f"open {folder.release / 'report.html'} in a browser; in Python: load_release({str(folder.release)!r})"
    tell_release(certificate, folder, unit, report)
    return 0


def _run(spec: ProjectSpec, folder: run_folder.RunFolder, interrupts: Interrupts) -> dict[str, Any]:
    simulated = spec.data.source == "blobs"
    rows = check_rows(blobs(spec.data.n, spec.data.d, spec.seed)[0] if simulated else read_rows(spec.data.path))
    n, d = rows.shape
    if spec.data.source == "array" and spec.data.n not in (None, n):
        raise UsageError(f"data.n={spec.data.n}: {spec.data.path} holds {n:,} rows")
    settings = fill_projection(spec, d)
    if settings.private and settings.projection.noise == "gaussian" and spec.privacy.delta >= 1.0 / n:
        raise UsageError(f"privacy.delta={spec.privacy.delta:g}: expected less than 1/n = {1.0 / n:.3g}")
    _warn(settings)
    stream = private_stream(spec)
    records = [rows.data, rows.indices, rows.indptr] if scipy.sparse.issparse(rows) else [rows]
    asked = settings.asked(n)
    study = study_of(spec.privacy)
    if folder.unfinished:
        account = run_folder.reopen_account(folder, stream, study)
    else:
        plan = settings.plan()
        print(budget_table(plan), flush=True)
        if (text := check_study(study, plan)) is not None:
            print(text, flush=True)
        warn(mark(study, spec.privacy, [] if simulated else records))
        run_folder.take(folder)
        about = run_identity.about_records(records, {}) | run_identity.about_settings(asked, n, None)
        account = run_folder.open_account(plan, folder, stream, about, study)
    try:
        if account.resumed:
            run_identity.check_records(account.ledger.about, records, {}, folder)
            run_identity.check_settings(account.ledger.about, asked, folder)
        projected = _released(settings, rows, account, folder, interrupts)
        account.verify_complete()
        return write_release(
            folder.release,
            folder.staging,
            ProjectedContent(projected, settings.typical),
            account,
            unit=settings.projection.neighbourhood.words,
            declared=settings.declared(n),
        )
    finally:
        account.ledger.close()


def _released(
    settings: ProjectionSettings, rows, account: Account, folder: run_folder.RunFolder, interrupts: Interrupts
) -> ProjectedRows:
    """Return the released rows, drawn now or before an interruption."""
    projection = settings.projection
    shutil.rmtree(folder.staging, ignore_errors=True)
    kept = None
    if account.resumed:
        if folder.projected.is_file():
            kept = load_state(folder.projected, account, "done", "rows", "count")
        account.go_on(kept["done"] if kept else {})
    if kept is None:
        # A first interrupt waits until what was drawn is saved.
        with interrupts.patient():
            noisy, count = projection.release(rows, account)
            kept = {"rows": torch.from_numpy(noisy), "count": count}
            durable.save(folder.projected, kept | {"head": account.ledger.head, "done": account.done})
        interrupts.stop_here()
    _warn_if_clipped(kept["count"], len(kept["rows"]), settings)
    scale = projection.scale(account.plan)
    return ProjectedRows(kept["rows"].numpy(), projection, settings.chosen.matrix, scale, kept["count"])


def _warn(settings: ProjectionSettings) -> None:
    spec = settings.spec
    warn(seed_warning(spec.debug.private_seed))
    if spec.project.unit == "element" and settings.private:
        warn(
            "project.unit=element: protects one number of one row. Where a person's numbers change together, as in a whole "
            "row, it protects them as many times less; project.unit=row is for that"
        )
    if spec.project.distance is not None and settings.private:
        warn(
            f"project.distance={spec.project.distance:g}: is declared and not enforced; {spec.project.unit}s that differ "
            "by more are protected less (project.radius covers any replacement)"
        )


def _warn_if_clipped(count: int | None, n: int, settings: ProjectionSettings) -> None:
    if count is None or not settings.private:
        return
    radius = settings.spec.project.radius
    print(f"about {count:,} of {n:,} rows were farther from the centre than {radius:g} and pulled back (noisy count)")
    if count > n / 2:
        warn(f"project.radius={radius:g}: pulls back most rows, so distances between them shrink; choose a larger one")
