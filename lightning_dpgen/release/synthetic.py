"""What a trained mixture releases: the model, synthetic records, and a sheet of samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_dpgen.data.image_schema import ImageSchema
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.release.certificate import MODEL, SHEET, SYNTHETIC, WEIGHTS
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
    """

    mixture: Mixture
    rows: int
    seed: int

    @property
    def released(self) -> tuple[str, ...]:
        return (MODEL, WEIGHTS, SYNTHETIC) + (SHEET,) * self._pictured

    @property
    def _pictured(self) -> bool:
        return isinstance(self.mixture.network.schema, ImageSchema)

    def write(self, folder: Path) -> None:
        release = Release(self.mixture)
        write_model(folder, self.mixture)
        write_table(folder / SYNTHETIC, release.chunks(self.rows, self.seed), release.schema.arrow)
        if self._pictured:
            write_sheet(folder / SHEET, release)

    def present(self, folder: Path, certificate: dict[str, Any]) -> None:
        write_pages(folder, certificate, "synthetic", picture=embedded(folder / SHEET) if self._pictured else None)
