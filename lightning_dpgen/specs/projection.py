"""From a configuration to a checked projection: what is left open is chosen, every mistake said in one line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.projection.choice import TRIED, Option, options, typical_distance
from lightning_dpgen.projection.matrices import MATRICES, make_matrix
from lightning_dpgen.projection.neighbourhood import Neighbourhood
from lightning_dpgen.projection.noises import NOISES
from lightning_dpgen.projection.project import Projection
from lightning_dpgen.release.bounds import check_rows
from lightning_dpgen.specs.configuration import ProjectConf, read_project_conf
from lightning_dpgen.specs.settings import check_budget
from lightning_dpgen.specs.usage_error import UsageError

_MOST, _WIDEST = 10**9, 2**20
# Wider tables are not searched for the best k: that draws a matrix for each.
_SEARCHED = 4096


@dataclass(frozen=True)
class ProjectionSettings:
    """A checked projection of rows of d numbers."""

    conf: ProjectConf
    chosen: Option
    projection: Projection
    typical: float

    @property
    def private(self) -> bool:
        return self.conf.privacy.noise != "off"

    def plan(self) -> Plan:
        """The plan of the release; reads no data."""
        epsilon = self.conf.privacy.epsilon if self.private else math.inf
        return _plan(self.projection, self.conf, epsilon)

    def declared(self, n: int) -> dict[str, Any]:
        """Everything that the certificate assumes to be public."""
        project = self.conf.project
        return {
            "data": self.conf.data.source,
            "n": n,
            "columns": self.projection.d,
            "projection": {
                "unit": project.unit,
                "radius": project.radius,
                "distance": project.distance,
                "k": self.chosen.k,
                "matrix": self.chosen.matrix,
                "noise": self.chosen.noise,
                "centre": project.centre,
                "typical": self.typical,
                "count_share": project.count_share,
            },
            "seed": self.conf.seed,
        }

    def asked(self, n: int) -> dict[str, Any]:
        """What a run must be asked for again when it goes on."""
        privacy = self.conf.privacy
        return self.declared(n) | {
            "privacy": {"epsilon": privacy.epsilon, "delta": privacy.delta},
            "debug": {"private_seed": self.conf.debug.private_seed},
        }


def read_projection_conf(overrides: Sequence[str]) -> ProjectConf:
    """Compose and check what can be checked before the number of columns is known.

    Raises:
        UsageError: naming the argument, its value and what was expected.
    """
    conf = read_project_conf(overrides)
    privacy, project = conf.privacy, conf.project
    if privacy.noise not in ("standard", "secure", "off"):
        raise UsageError(f"privacy.noise={privacy.noise}: expected standard, secure, or off by way of privacy=off")
    if privacy.noise == "off":
        if privacy.epsilon is not None:
            raise UsageError(f"privacy.epsilon={privacy.epsilon}: privacy=off draws no noise, so it takes no epsilon")
    else:
        if privacy.unit is not None:
            raise UsageError("privacy.unit: the unit of a projection follows from project.unit; leave it out")
        check_budget(privacy.epsilon)
        if privacy.delta != 0.0 and not 1e-30 <= privacy.delta < 1.0:
            raise UsageError(f"privacy.delta={privacy.delta}: expected 0, or a number below 1 for Gaussian noise")
    if privacy.noise == "secure" and conf.debug.private_seed is not None:
        raise UsageError(
            f"debug.private_seed={conf.debug.private_seed}: secure noise takes no seed; leave out one of the two"
        )
    for name, value in (("seed", conf.seed), ("debug.private_seed", conf.debug.private_seed or 0)):
        if not 0 <= value < 2**62:
            raise UsageError(f"{name}={value}: expected a whole number from 0 to 2^62")
    if project.matrix not in (None, *MATRICES):
        raise UsageError(f"project.matrix={project.matrix}: expected one of {', '.join(MATRICES)}")
    if project.noise not in (None, *NOISES):
        raise UsageError(f"project.noise={project.noise}: expected one of {', '.join(NOISES)}")
    if project.typical is not None and not 0.0 < project.typical < 1e12:
        raise UsageError(f"project.typical={project.typical:g}: expected a positive finite distance")
    _neighbourhood(conf)
    if conf.data.source == "blobs":
        for name, value, most in (("data.n", conf.data.n, _MOST), ("data.d", conf.data.d, _WIDEST)):
            if value is None or not 1 <= value <= most:
                raise UsageError(f"{name}={value}: expected a whole number from 1 to {most:,}")
    elif conf.data.source != "array":
        raise UsageError(f"data.source={conf.data.source}: expected blobs or array")
    elif not conf.data.path:
        raise UsageError("data=array needs data.path=FILE (.npy, .npz or .parquet)")
    return conf


def fill_projection(conf: ProjectConf, d: int) -> ProjectionSettings:
    """Choose what was left open, for rows of d columns.

    Raises:
        UsageError: for a k, a centre or a budget that does not go with the rest.
    """
    project, neighbourhood = conf.project, _neighbourhood(conf)
    if project.k is not None and not 1 <= project.k <= d:
        raise UsageError(f"project.k={project.k}: expected 1 to {d}, the number of columns")
    if conf.data.d is not None and conf.data.d != d:
        raise UsageError(f"data.d={conf.data.d}: the rows have {d} columns")
    typical = _typical(conf, neighbourhood, d)
    try:
        option = _options(conf, neighbourhood, d, typical)[0]
        matrix = make_matrix(option.matrix, d, option.k, conf.seed)
        projection = Projection(matrix, neighbourhood, option.noise, _centre(project.centre, d))
    except ValueError as error:
        raise UsageError(f"project.{error}") from None
    try:
        check_rows(conf.data.n or 0, 8 * option.k)
    except ValueError as error:
        raise UsageError(f"data.n: {error}") from None
    return ProjectionSettings(conf, option, projection, typical)


def all_options(conf: ProjectConf, d: int) -> list[Option]:
    """What could be released at this budget, the best first; whatever the configuration fixes stays fixed.

    Raises:
        UsageError: as `fill_projection`.
    """
    neighbourhood = _neighbourhood(conf)
    try:
        return _options(conf, neighbourhood, d, _typical(conf, neighbourhood, d))
    except ValueError as error:
        raise UsageError(f"project.{error}") from None


def _options(conf: ProjectConf, neighbourhood: Neighbourhood, d: int, typical: float) -> list[Option]:
    project, private = conf.project, conf.privacy.noise != "off"
    if d > _SEARCHED and project.k is None and project.matrix != "identity":
        raise UsageError(f"project.k=null: is chosen for up to {_SEARCHED:,} columns, and there are {d:,}; give one")
    return options(
        d,
        neighbourhood,
        conf.privacy.epsilon if private else 4.0,
        conf.privacy.delta if private else (1e-5 if project.noise == "gaussian" else 0.0),
        ks=None if project.k is None else [project.k],
        matrices=[project.matrix] if project.matrix else TRIED,
        noises=[project.noise] if project.noise else None,
        typical=typical,
        count_share=project.count_share,
        seed=conf.seed,
    )


def _plan(projection: Projection, conf: ProjectConf, epsilon: float) -> Plan:
    private = math.isfinite(epsilon)
    delta = conf.privacy.delta if private else (1e-5 if projection.noise == "gaussian" else 0.0)
    try:
        return projection.plan(epsilon, delta, count_share=conf.project.count_share)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _neighbourhood(conf: ProjectConf) -> Neighbourhood:
    project = conf.project
    try:
        return Neighbourhood(project.unit, project.radius, project.distance)
    except ValueError as error:
        raise UsageError(f"project.{error}") from None


def _typical(conf: ProjectConf, neighbourhood: Neighbourhood, d: int) -> float:
    usual, asked = typical_distance(neighbourhood, d), conf.project.typical
    if neighbourhood.enforced and asked is not None:
        most = 2.0 * neighbourhood.radius * (1.0 if neighbourhood.unit == "row" else math.sqrt(d))
        if asked > most:
            raise UsageError(f"project.typical={asked:g}: within project.radius rows are at most {most:g} apart")
    if asked is not None:
        return asked
    if conf.data.source != "blobs":
        return usual
    # Of the simulated clusters it is known: 2 d within a cluster, 16 more between two; unless they are pulled back.
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
