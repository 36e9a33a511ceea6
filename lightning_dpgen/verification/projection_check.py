"""The check of projected rows: the matrix is the public seed's, and the noise is as large as the event tree demands."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lightning_dpgen.privacy.drawn_noise import (
    DISCRETE_LAPLACE,
    ROUNDED_GAUSSIAN,
    ROUNDED_LAPLACE,
    ROUNDED_SPHERICAL,
    write_unit,
)
from lightning_dpgen.projection.matrices import make_matrix
from lightning_dpgen.projection.project import CLIPPED, ROWS, Projection
from lightning_dpgen.projection.steps import matrix_unit
from lightning_dpgen.release.drawing.opened import read_json_file
from lightning_dpgen.release.files import MODEL, NotARelease
from lightning_dpgen.release.projected import load_projected
from lightning_dpgen.release.stated_noises import sums_of
from lightning_dpgen.release.verdict import TOLERANCE, Verdict
from lightning_dpgen.specs.groups import ProjectionSpec
from lightning_dpgen.specs.spec import parse
from lightning_dpgen.verification.outline_check import unplanned_names
from lightning_dpgen.verification.plan_check import unplannable, unplanned_events


def check_projection(folder: Path, certificate: dict, verdict: Verdict) -> None:
    """Check that the noise is as large as the drawn projection, the neighbourhood and the event tree demand.

    Args:
        verdict: of a release whose files and epsilon were checked; gets what is wrong or confirmed.
    """
    try:
        projected = load_projected(folder)
    except NotARelease as error:
        verdict.problems.append(str(error))
        return
    projection, before = projected.projection, len(verdict.problems)
    if certificate["unit"] != projection.neighbourhood.words:
        verdict.problems.append("the unit of privacy is not the neighbourhood of the projection")
    declared, grid = certificate["declared"], read_json_file(folder / MODEL)["grid"]
    if declared["n"] != len(projected.rows):
        verdict.problems.append(f"declared.n is not the number of projected rows, {len(projected.rows)}")
    seed, stated = declared.get("seed"), declared.get("projection")
    settings = projected.settings | {"grid": grid}
    if not isinstance(stated, dict) or any(stated.get(name) != value for name, value in settings.items()):
        verdict.problems.append(f"declared.projection does not say what {MODEL} says")
    elif type(seed) is not int or not 0 <= seed < 2**63:
        verdict.problems.append(f"declared.seed={seed!r}: expected the seed that the matrix was drawn from")
    elif not np.allclose(
        make_matrix(projected.matrix, projection.d, projection.k, seed),
        projection.matrix,
        rtol=0.0,
        # Half a unit is what its rounding moves a number by.
        atol=1e-9 + 0.5 * matrix_unit(projection.matrix),
    ):
        verdict.problems.append("the matrix is not the one that declared.seed draws, so it may depend on the records")
    names = [stage["name"] for stage in certificate["stages"]]
    if sorted(names) != sorted([ROWS] if projected.pulled_back is None else [ROWS, CLIPPED]):
        verdict.problems.append(f"stages {names}: expected {ROWS!r}, and {CLIPPED!r} exactly if {MODEL} gives a count")
    verdict.problems += [] if len(verdict.problems) > before else _unplanned(projected.projection, certificate)
    if len(verdict.problems) > before:
        return
    events = [stage["event"] for stage in certificate["stages"] if stage["name"] == ROWS]
    # A Gaussian under replace-one is written with twice its ratio.
    ratio = events[0]["noise_multiplier"] / (2.0 if projection.noise == "gaussian" else 1.0)
    if projected.scale < ratio * projection.sensitivity * (1.0 - TOLERANCE):
        verdict.problems.append(
            f"the noise is too small: its scale is {projected.scale:.6g}, and this projection, whose rows move by up to "
            f"{projection.sensitivity:.6g}, needs {ratio * projection.sensitivity:.6g}"
        )
    if grid != projection.grid:
        verdict.problems.append(f"grid={grid!r}: this projection puts rows on multiples of {projection.grid!r}")
    stated = [(entry["unit"], entry["bound_in_units"]) for entry in sums_of(certificate, ROWS)]
    if stated != [(write_unit(projection.grid), projection.steps.sensitivity)]:
        verdict.problems.append(
            f"noise.sums: stage {ROWS!r} has unit and bound {stated}, and this projection moves rows by at most "
            f"{projection.steps.sensitivity:,} times {write_unit(projection.grid)}"
        )
    if len(verdict.problems) == before:
        verdict.checks.append(
            f"the matrix is what the public seed draws; it moves rows by at most {projection.sensitivity:.6g} between "
            f"neighbours, and {projection.noise} noise of scale {projected.scale:.6g} is what the event tree needs"
        )
        verdict.checks.append(
            f"all projected numbers are multiples of the grid, {projection.grid:.6g}: a row moves by at most "
            f"{projection.steps.sensitivity:,} steps of it, their rounding included"
        )


def _unplanned(projection: Projection, certificate: dict) -> list[str]:
    """Return where events and noises are not those that the declared settings plan for this projection, a line each."""
    try:
        stated = certificate["declared"]["projection"]
        asked = parse(ProjectionSpec, {name: stated[name] for name in stated if name != "grid"}, within="projection")
        plan = projection.plan(certificate["target_epsilon"], certificate["delta"], count_share=asked.count_share)
        due = {stage.name: list(stage.access.multipliers) for stage in plan.stages}
        return [
            *unplanned_events(plan, certificate),
            *unplanned_names(due, lambda stage, _: _drawn_by(stage, projection.noise, certificate), certificate),
        ]
    # Settings of strangers may end anywhere in the planner.
    except Exception as error:
        return [unplannable(error, certificate["declared"])]


def _drawn_by(stage: str, noise: str, certificate: dict) -> str:
    if stage == CLIPPED and noise != "gaussian":
        stated = {entry["mechanism"] for entry in sums_of(certificate, stage)}
        return (DISCRETE_LAPLACE if DISCRETE_LAPLACE.name in stated else ROUNDED_LAPLACE).name
    return {"gaussian": ROUNDED_GAUSSIAN, "laplace": ROUNDED_LAPLACE, "spherical": ROUNDED_SPHERICAL}[noise].name
