"""What a projection releases: the rows, the matrix, and pages that say how well distances survive."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from markupsafe import Markup

from lightning_dpgen.release.certificate import MODEL, PROJECTED, WEIGHTS
from lightning_dpgen.release.projected import ProjectedRows, write_projected
from lightning_dpgen.release.report import write_pages

# Rows in the picture, and what part of them its axes hold: a few far ones would squeeze the rest.
_SHOWN, _WITHIN = 1000, 0.99


@dataclass(frozen=True)
class ProjectedContent:
    """A `bundle.Content`.

    Args:
        projected: the released rows.
        typical: public: the distance about which the table of the report is made.
    """

    projected: ProjectedRows
    typical: float

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
            "unit": projection.neighbourhood.unit,
            "radius": projection.neighbourhood.radius,
            "change": projection.neighbourhood.change,
            "pulled_back": projected.pulled_back,
            "bias": 2.0 * projection.k * projected.recovery.coordinate_variance,
            "variance": projected.recovery.coordinate_variance,
        }
        write_pages(
            folder, certificate, "projected", p=shown, distances=self._distances(), scatter=_scatter(projected.rows)
        )

    def _distances(self) -> list[dict[str, float]]:
        rows, around = [], self.projected.projection.neighbourhood
        for factor in (0.5, 1.0, 2.0, 4.0):
            squared = (factor * self.typical) ** 2
            if around.enforced and around.unit == "row" and factor * self.typical > 2.0 * around.radius:
                continue  # no two rows are so far apart
            error = math.sqrt(self.projected.recovery.variance(squared))
            # Of the estimate around the truth; an analyst's interval for the truth is `Recovery.interval`.
            low, high = squared - 1.645 * error, squared + 1.645 * error
            rows.append({"distance": factor * self.typical, "squared": squared, "error": error, "low": low, "high": high})
        return rows


def _scatter(rows: np.ndarray) -> Markup:
    """The first rows by their first two columns (by their place and their only column, if there is one)."""
    rows = rows[:_SHOWN].astype(np.float64)
    across, up = (rows[:, 0], rows[:, 1]) if rows.shape[1] > 1 else (np.arange(len(rows), dtype=np.float64), rows[:, 0])
    width, height = 520, 320
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2"/>'
        for x, y in zip(_placed(across, 8, width - 8), _placed(up, height - 8, 8), strict=True)
        if 0.0 <= x <= width and 0.0 <= y <= height
    )
    names = ("projected_0", "projected_1") if rows.shape[1] > 1 else ("row", "projected_0")
    return Markup(
        f'<svg viewBox="0 0 {width} {height + 18}" role="img" aria-label="released rows"><rect width="{width}" '
        f'height="{height}" fill="none" class="grid"/><g fill="#1f5fa8" fill-opacity="0.45">{dots}</g>'
        f'<text x="{width / 2}" y="{height + 14}" text-anchor="middle">the first {len(rows):,} rows: {names[0]} across, '
        f"{names[1]} up</text></svg>"
    )


def _placed(values: np.ndarray, start: float, end: float) -> np.ndarray:
    """Values as places on an axis that holds most of them."""
    low, high = np.quantile(values, [(1.0 - _WITHIN) / 2.0, (1.0 + _WITHIN) / 2.0])
    return start + (values - low) / max(high - low, 1e-30) * (end - start)
