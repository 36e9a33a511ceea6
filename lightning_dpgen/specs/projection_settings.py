"""From settings to a checked projection: what is left open is chosen, every mistake said in one line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.projection.choice import TRIED, Option, options, typical_distance
from lightning_dpgen.projection.matrices import make_matrix
from lightning_dpgen.projection.neighbourhood import Neighbourhood
from lightning_dpgen.projection.project import Projection
from lightning_dpgen.release.bounds import check_rows
from lightning_dpgen.release.publishing.licenses import LICENSE
from lightning_dpgen.specs.groups import ProjectSpec
from lightning_dpgen.specs.spec import as_settings
from lightning_dpgen.specs.usage_error import UsageError

# Wider tables are not searched for the best k: that draws a matrix for each.
_SEARCHED = 4096


@dataclass(frozen=True)
class ProjectionSettings:
    """A checked projection of rows of d numbers.

    Args:
        options: the ways to release the rows at this budget, the best first; what the settings fix stays fixed.
        projection: by the best of them.
        typical: the distance between two rows for which errors are weighed.
    """

    spec: ProjectSpec
    options: list[Option]
    projection: Projection
    typical: float

    @property
    def best(self) -> Option:
        """The best option, by which rows are projected."""
        return self.options[0]

    @property
    def private(self) -> bool:
        return self.spec.privacy.private

    def plan(self) -> Plan:
        """Return the plan of the release; reads no data."""
        privacy = self.spec.privacy
        delta = privacy.delta if privacy.private else (1e-5 if self.projection.noise == "gaussian" else 0.0)
        try:
            return self.projection.plan(privacy.target, delta, count_share=self.spec.project.count_share)
        except ValueError as error:
            raise UsageError(_in_settings(error, self.spec)) from None

    def dump_public(self, n: int) -> dict[str, Any]:
        """Return everything that the certificate assumes to be public."""
        project = self.spec.project
        return {
            "data": self.spec.data.source,
            "n": n,
            "columns": self.projection.d,
            "projection": {
                "unit": project.unit,
                "radius": project.radius,
                "distance": project.distance,
                "k": self.best.k,
                "matrix": self.best.matrix,
                "noise": self.best.noise,
                "grid": self.projection.grid,
                "centre": project.centre,
                "typical": self.typical,
                "count_share": project.count_share,
            },
            "seed": self.spec.seed,
            **self.spec.given(LICENSE),
        }

    def dump_for_resume(self, n: int) -> dict[str, Any]:
        """Return what a run must be asked for again when it goes on."""
        privacy = self.spec.privacy
        return self.dump_public(n) | {
            "privacy": {"epsilon": privacy.epsilon, "delta": privacy.delta},
            "debug": {"private_seed": self.spec.debug.private_seed},
        }


def complete_projection(spec: ProjectSpec, d: int) -> ProjectionSettings:
    """Choose what was left open, for rows of d columns.

    Raises:
        UsageError: for a k, a centre or a budget that does not go with the rest.
    """
    project = spec.project
    try:
        neighbourhood = Neighbourhood(project.unit, project.radius, project.distance)
    except ValueError as error:
        raise UsageError(as_settings(error, "project", project)) from None
    if project.k is not None and not 1 <= project.k <= d:
        raise UsageError(f"project.k={project.k}: expected 1 to {d}, the number of columns")
    if spec.data.d is not None and spec.data.d != d:
        raise UsageError(f"data.d={spec.data.d}: the rows have {d} columns")
    typical = _typical(spec, neighbourhood, d)
    try:
        choices = _options(spec, neighbourhood, d, typical)
        option = choices[0]
        matrix = make_matrix(option.matrix, d, option.k, spec.seed)
        projection = Projection(matrix, neighbourhood, option.noise, _centre(project.centre, d))
    except ValueError as error:
        raise UsageError(_in_settings(error, spec)) from None
    try:
        check_rows(spec.data.n or 0, 8 * option.k)
    except ValueError as error:
        raise UsageError(f"data.n: {error}") from None
    return ProjectionSettings(spec, choices, projection, typical)


def _in_settings(error: ValueError, spec: ProjectSpec) -> str:
    return as_settings(as_settings(error, "project", spec.project), "privacy", spec.privacy)


def _options(spec: ProjectSpec, neighbourhood: Neighbourhood, d: int, typical: float) -> list[Option]:
    project, private = spec.project, spec.privacy.private
    if d > _SEARCHED and project.k is None and project.matrix != "identity":
        raise UsageError(f"project.k=null: is chosen for up to {_SEARCHED:,} columns, and there are {d:,}; give one")
    return options(
        d,
        neighbourhood,
        spec.privacy.epsilon if private else 4.0,
        spec.privacy.delta if private else (1e-5 if project.noise == "gaussian" else 0.0),
        ks=None if project.k is None else [project.k],
        matrices=[project.matrix] if project.matrix else TRIED,
        noises=[project.noise] if project.noise else None,
        typical=typical,
        count_share=project.count_share,
        seed=spec.seed,
    )


def _typical(spec: ProjectSpec, neighbourhood: Neighbourhood, d: int) -> float:
    usual, asked = typical_distance(neighbourhood, d), spec.project.typical
    if neighbourhood.enforced and asked is not None:
        most = 2.0 * neighbourhood.radius * (1.0 if neighbourhood.unit == "row" else math.sqrt(d))
        if asked > most:
            raise UsageError(f"project.typical={asked:g}: within project.radius rows are at most {most:g} apart")
    if asked is not None:
        return asked
    if spec.data.source != "blobs":
        return usual
    # For the simulated clusters it is known: 2 d within a cluster, 16 more between two; unless they are pulled back.
    known = math.sqrt(2.0 * d + 8.0)
    return min(known, usual) if neighbourhood.enforced else known


def _centre(centre: Any, d: int) -> np.ndarray | None:
    if centre is None:
        return None
    try:
        values = np.asarray(centre, dtype=np.float64)
    except (TypeError, ValueError):
        raise UsageError(f"project.centre={centre}: expected a number, or a list of {d} numbers") from None
    if values.ndim > 1 or values.size not in (1, d) or not np.isfinite(values).all():
        raise UsageError(f"project.centre={centre}: expected a number, or a list of {d} numbers")
    return np.broadcast_to(values, (d,)).copy() if values.any() else None
