"""The content of a projection's release: the rows, the matrix, and pages that say how well distances survive."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lightning_dpgen.release.files import MODEL, PROJECTED, WEIGHTS
from lightning_dpgen.release.pages.charts import scatter
from lightning_dpgen.release.pages.examples import size_category
from lightning_dpgen.release.pages.report import write_pages
from lightning_dpgen.release.projected import ProjectedRows, write_projected


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
