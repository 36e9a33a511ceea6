"""A run that releases every row of a table, projected and perturbed: plan, look, open, draw, release."""

from __future__ import annotations

import math
import shutil
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy.sparse
import torch

from lightning_dpgen.common.plain_text import say_count
from lightning_dpgen.data.files.arrays import read_rows
from lightning_dpgen.data.simulated.points import blobs
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.epsilon_range import caution
from lightning_dpgen.privacy.durable import make_room
from lightning_dpgen.projection.project import check_rows
from lightning_dpgen.release.bundle import write_release
from lightning_dpgen.release.files import MODEL, PROJECTED, WEIGHTS
from lightning_dpgen.release.pages.charts import scatter
from lightning_dpgen.release.pages.report import write_pages
from lightning_dpgen.release.pages.text import sentence, size_category
from lightning_dpgen.release.projected import ProjectedRows, write_projected
from lightning_dpgen.runs import identity, run_folder
from lightning_dpgen.runs.context import load_state, private_stream
from lightning_dpgen.runs.interrupts import Interrupts
from lightning_dpgen.runs.reporter import Reporter
from lightning_dpgen.runs.run_folder import RunFolder
from lightning_dpgen.runs.studies import check_study, mark, study_delta_warning, study_of
from lightning_dpgen.runs.table import budget_table
from lightning_dpgen.runs.warnings import projection_warnings, seed_warning
from lightning_dpgen.specs.as_yaml import write_asked_for
from lightning_dpgen.specs.groups import ProjectSpec
from lightning_dpgen.specs.projection_settings import ProjectionSettings, complete_projection
from lightning_dpgen.specs.usage_error import UsageError


@dataclass(frozen=True)
class ProjectedContent:
    """A `bundle.Content`.

    Args:
        projected: the released rows.
        typical: the distance around which the report's table is made; public.
        limits: sentences about what to expect of the rows, from public numbers alone, for report and card.
    """

    projected: ProjectedRows
    typical: float
    limits: tuple[str, ...] = ()

    released: ClassVar[tuple[str, ...]] = (MODEL, WEIGHTS, PROJECTED)

    def write(self, folder: Path, *, private: bool) -> None:
        write_projected(folder, self.projected, private=private)

    def present(self, folder: Path, certificate: dict[str, Any]) -> None:
        projected, projection = self.projected, self.projected.projection
        shown = {
            "n": len(projected.rows),
            "d": projection.d,
            "k": projection.k,
            "matrix": projected.matrix,
            "noise": projection.noise,
            "scale": projected.scale,
            "grid": projection.grid,
            "unit": projection.neighbourhood.unit,
            "radius": projection.neighbourhood.radius,
            "change": projection.neighbourhood.change,
            "pulled_back": projected.pulled_back,
            "bias": 2.0 * projection.k * projected.recovery.coordinate_variance,
            "variance": projected.recovery.coordinate_variance,
        }
        write_pages(
            folder,
            certificate,
            "projected",
            self.limits,
            p=shown,
            size=size_category(len(projected.rows)),
            distances=self._distances(),
            scatter=scatter(projected.rows),
        )

    def _distances(self) -> list[dict[str, float]]:
        rows, around = [], self.projected.projection.neighbourhood
        for factor in (0.5, 1.0, 2.0, 4.0):
            squared = (factor * self.typical) ** 2
            if around.enforced and around.unit == "row" and factor * self.typical > 2.0 * around.radius:
                continue  # no two rows are so far apart
            error = math.sqrt(self.projected.recovery.variance(squared))
            # The estimate's interval around the truth; an analyst's interval for the truth is `Recovery.interval`.
            low, high = squared - 1.645 * error, squared + 1.645 * error
            rows.append({"distance": factor * self.typical, "squared": squared, "error": error, "low": low, "high": high})
        return rows


def project(spec: ProjectSpec, folder: RunFolder, interrupts: Interrupts, reporter: Reporter) -> dict[str, Any]:
    """Release the rows, or go on with a release that was interrupted, and return the certificate.

    Raises:
        UsageError, BadRecords, BudgetTooSmall, LedgerError, MissingData: in one line each.
        OSError: from the disk.
    """
    rows = _read(spec)
    settings = _fill(spec, rows)
    _warn(settings, reporter)
    account = _open(settings, rows, folder, reporter)
    with closing(account.ledger):
        projected = _draw(settings, rows, account, folder, interrupts)
        account.verify_complete()
        _say_pulled_back(projected, settings, reporter)
        texts = list(projection_warnings(settings, len(projected.rows), projected.pulled_back))
        for text in texts[len(list(projection_warnings(settings))) :]:
            reporter.warn(text)
        return write_release(
            folder.release,
            folder.staging,
            ProjectedContent(projected, settings.typical, tuple(map(sentence, texts))),
            account,
            unit=settings.projection.neighbourhood.words,
            declared=settings.dump_public(len(projected.rows)),
        )


def _read(spec: ProjectSpec) -> np.ndarray | scipy.sparse.csr_matrix:
    if spec.data.source == "blobs":
        return check_rows(blobs(spec.data.n, spec.data.d, spec.seed)[0])
    rows = check_rows(read_rows(spec.data.path))
    if spec.data.n not in (None, rows.shape[0]):
        raise UsageError(f"data.n={spec.data.n}: {spec.data.path} holds {say_count(rows.shape[0], 'row')}")
    return rows


def _fill(spec: ProjectSpec, rows: np.ndarray | scipy.sparse.csr_matrix) -> ProjectionSettings:
    n, d = rows.shape
    settings = complete_projection(spec, d)
    if settings.private and settings.projection.noise == "gaussian" and spec.privacy.delta >= 1.0 / n:
        raise UsageError(f"privacy.delta={spec.privacy.delta:g}: expected less than 1/n = {1.0 / n:.3g}")
    return settings


def _open(
    settings: ProjectionSettings, rows: np.ndarray | scipy.sparse.csr_matrix, folder: RunFolder, reporter: Reporter
) -> Account:
    spec, asked = settings.spec, settings.dump_for_resume(rows.shape[0])
    stream, study = private_stream(spec), study_of(spec.privacy, rows.shape[0])
    records = [rows.data, rows.indices, rows.indptr] if scipy.sparse.issparse(rows) else [rows]
    if folder.unfinished:
        with ExitStack() as unless_it_fits:
            account = run_folder.reopen_account(folder, stream, study)
            unless_it_fits.callback(account.ledger.close)
            identity.check_records(account.ledger.about, records, {}, folder)
            identity.check_settings(account.ledger.about, asked, folder)
            unless_it_fits.pop_all()
        return account
    plan = settings.plan()
    reporter.say(budget_table(plan, pure="pure"))
    reporter.warn(study_delta_warning(study, rows.shape[0]))
    reporter.say(check_study(study, plan))
    reporter.warn(mark(study, spec.privacy, [] if spec.data.source == "blobs" else records))
    run_folder.take(folder)
    durable.write(folder.settings, write_asked_for(spec).encode())
    about = identity.about_records(records, {}) | identity.about_settings(asked, rows.shape[0], None)
    return run_folder.open_account(plan, folder, stream, about, study)


def _draw(
    settings: ProjectionSettings,
    rows: np.ndarray | scipy.sparse.csr_matrix,
    account: Account,
    folder: RunFolder,
    interrupts: Interrupts,
) -> ProjectedRows:
    """Return the released rows, drawn now or before an interruption."""
    projection = settings.projection
    shutil.rmtree(folder.staging, ignore_errors=True)
    state = None
    if account.resumed:
        if folder.projected.is_file():
            state = load_state(folder.projected, account, "done", "rows", "count")
        account.go_on(state["done"] if state else {})
    if state is None:
        none = {"rows": torch.zeros(rows.shape[0], projection.k, dtype=torch.float64), "count": 0}
        make_room(folder.projected, _content(none, account), account, "the projected rows")
        # A first interrupt waits until what was drawn is saved.
        with interrupts.patient():
            noisy, count = projection.release(rows, account)
            state = {"rows": torch.from_numpy(noisy), "count": count}
            durable.save(folder.projected, _content(state, account))
        interrupts.stop_here()
    scale = projection.scale(account.plan)
    return ProjectedRows(state["rows"].numpy(), projection, settings.best.matrix, scale, state["count"])


def _content(drawn: dict[str, Any], account: Account) -> dict[str, Any]:
    return drawn | {"head": account.ledger.head, "done": account.done}


def _warn(settings: ProjectionSettings, reporter: Reporter) -> None:
    spec = settings.spec
    reporter.warn(seed_warning(spec.debug.private_seed))
    reporter.warn(caution(spec.privacy.epsilon) if settings.private else None)
    for text in projection_warnings(settings):
        reporter.warn(text)


def _say_pulled_back(projected: ProjectedRows, settings: ProjectionSettings, reporter: Reporter) -> None:
    """Say how many rows were pulled back, a noisy count."""
    count, n, radius = projected.pulled_back, len(projected.rows), settings.spec.project.radius
    if count is None or not settings.private:
        return
    where = f"farther from the centre than {radius:g}"
    reporter.say(f"about {count:,} of {n:,} rows were {where} and pulled back (noisy count)")
