"""What a trained mixture releases: the model, synthetic records, and a picture of some."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.release.certificate import FIGURE, MODEL, SHEET, SYNTHETIC, WEIGHTS
from lightning_dpgen.release.croissant import write_croissant
from lightning_dpgen.release.curves import write_curves
from lightning_dpgen.release.described import described
from lightning_dpgen.release.distributions import shown
from lightning_dpgen.release.examples import example_condition, size_category, tasks
from lightning_dpgen.release.pictures import embedded, write_sheet
from lightning_dpgen.release.report import write_pages
from lightning_dpgen.release.sampler import Release, write_model
from lightning_dpgen.release.tables import write_table


@dataclass(frozen=True)
class SyntheticContent:
    """A `bundle.Content`.

    Args:
        mixture: the trained mixture.
        rows: number of synthetic records, public.
        seed: of the synthetic records; public.
        figure: how close they are to the real ones, bought with a share of the budget (`measure_fidelity`), if it was.
    """

    mixture: Mixture
    rows: int
    seed: int
    figure: dict[str, float] | None = None

    @property
    def released(self) -> tuple[str, ...]:
        pictured, measured = self._draw is not None, self.figure is not None
        return (MODEL, WEIGHTS, SYNTHETIC) + (SHEET,) * pictured + (FIGURE,) * measured

    @property
    def _draw(self) -> Callable[[Path, Release], None] | None:
        """What draws the picture; None for records that are neither pictures nor curves."""
        schema = self.mixture.network.schema
        if isinstance(schema, ImageSchema):
            return write_sheet
        return write_curves if isinstance(schema, SeriesSchema) else None

    def write(self, folder: Path) -> None:
        release = Release(self.mixture)
        write_model(folder, self.mixture)
        write_table(folder / SYNTHETIC, release.chunks(self.rows, self.seed), release.schema.arrow)
        if self._draw is not None:
            self._draw(folder / SHEET, release)
        if self.figure is not None:
            (folder / FIGURE).write_text(json.dumps(self.figure, indent=2) + "\n", encoding="utf-8")

    def present(self, folder: Path, certificate: dict[str, Any]) -> None:
        schema = self.mixture.network.schema
        name = f"Synthetic records: {certificate['declared']['data']}"
        write_croissant(folder, schema.arrow, name=name, description=certificate["statement"])
        what, parts, left_out = described(schema)
        write_pages(
            folder,
            certificate,
            "synthetic",
            kind=schema.kind,
            what=what,
            parts=parts,
            left_out=left_out,
            rows=self.rows,
            components=self.mixture.network.k,
            picture=embedded(folder / SHEET) if self._draw is not None else None,
            shown=shown(folder / SYNTHETIC, schema),
            where=example_condition(schema),
            size=size_category(self.rows),
            tasks=tasks(schema),
            figure=self.figure,
        )
