"""Everything that decides the synthetic records of a draw, and the form in which they are written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.privacy.software import installed_version
from lightning_dpgen.release.as_read import AsRead
from lightning_dpgen.release.files import MODEL, WEIGHTS, NotARelease, read_certificate
from lightning_dpgen.release.long_series import NUMBER, TIME, long_chunks, long_schema
from lightning_dpgen.release.opened import file_hash
from lightning_dpgen.release.sampler import Release, load_release


@dataclass(frozen=True)
class DrawSpec:
    """Records of a release, as `dpgen sample` draws them.

    Args:
        folder: of the release.
        n, seed, where: as of `Release.sample`.
        component: the only one that is drawn from, or None for all.
        form: of series, ``wide`` or ``long``; None for that in which they were read.
    """

    folder: Path
    n: int
    seed: int | None = None
    where: tuple[str, ...] = ()
    component: int | None = None
    form: str | None = None

    @cached_property
    def release(self) -> Release:
        """The release, or its component.

        Raises:
            NotARelease: if there is none.
        """
        release = load_release(self.folder)
        return release if self.component is None else release.component(self.component)

    @property
    def written_form(self) -> AsRead:
        """The form of a table as it was read."""
        return self.release.form

    @cached_property
    def columns(self) -> pa.Schema:
        """The columns of a file."""
        columns = self.release.arrow
        if self._long is None:
            return columns
        return long_schema(self.release.schema, *self._long).with_metadata(columns.metadata)

    def chunks(self, rows: range | None = None) -> Iterator[pa.RecordBatch]:
        """Draw the records, or some of them (`Release.chunks`), a block at a time."""
        chunks = self.release.chunks(self.n, self.seed, list(self.where), rows)
        if self._long is None:
            return chunks
        return long_chunks(chunks, self.release.schema, *self._long, before=0 if rows is None else rows.start)

    def digest(self, **written: bool) -> str:
        """Return twelve hexadecimal digits that another draw lacks, and the same by another version of this software.

        Args:
            written: what else decides the content of a file.
        """
        told = asdict(self) | {"folder": [file_hash(self.folder / name) for name in (MODEL, WEIGHTS)]}
        told |= written | {"columns": self.columns.to_string(), "version": installed_version()}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]

    @cached_property
    def _long(self) -> tuple[str, str] | None:
        """The names of the columns of number and time, as the real series had them, where one time is a row."""
        schema = self.release.schema
        if not isinstance(schema, SeriesSchema) or self.form == "wide":
            return None
        declared = self._declared()
        if self.form is None and declared.get("form") != "long":
            return None
        number, time = declared.get("by") or NUMBER, declared.get("day") or TIME
        if len({number, time, *schema.channels, "label"}) < 3 + len(schema.channels):
            return NUMBER, TIME
        return number, time

    def _declared(self) -> dict[str, Any]:
        with suppress(NotARelease):  # a model gives records without its certificate
            declared = read_certificate(self.folder).get("declared")
            return declared if isinstance(declared, dict) else {}
        return {}
