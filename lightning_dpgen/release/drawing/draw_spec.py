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

from lightning_dpgen.data.files.kinds import PARQUET
from lightning_dpgen.data.kinds import kind_of
from lightning_dpgen.privacy.software import installed_version
from lightning_dpgen.release.drawing.opened import file_hash
from lightning_dpgen.release.drawing.sampler import Release, load_release
from lightning_dpgen.release.files import MODEL, WEIGHTS, NotARelease, read_certificate
from lightning_dpgen.release.rows.as_read import AsRead
from lightning_dpgen.release.rows.written_records import WrittenRecords


@dataclass(frozen=True)
class DrawSpec:
    """Records of a release, as `dpgen sample` draws them.

    Args:
        folder: of the release.
        n, seed, where, balance: as of `Release.sample`.
        component: the only one that is drawn from, or None for all.
        form: of series, ``wide`` or ``long``; None for that in which they were read.
        ending: of the files, on which the form of baskets depends.
    """

    folder: Path
    n: int
    seed: int | None = None
    where: tuple[str, ...] = ()
    component: int | None = None
    form: str | None = None
    ending: str = PARQUET
    balance: str | None = None

    @cached_property
    def release(self) -> Release:
        """The release, or its component.

        Raises:
            NotARelease: if there is none.
        """
        release = load_release(self.folder)
        return release if self.component is None else release.component(self.component)

    @cached_property
    def _written(self) -> WrittenRecords:
        schema = self.release.schema
        return kind_of(schema).written(schema, self.release, self.ending, self.form, self._declared)

    @property
    def written_form(self) -> AsRead:
        """The form of a file of text, as real records were read."""
        return self._written.form

    @property
    def columns(self) -> pa.Schema:
        """The columns of a file."""
        return self._written.columns.with_metadata(self.release.arrow.metadata)

    @property
    def rows_a_record(self) -> int | None:
        """The rows of each record in a file; None where records differ in it."""
        return self._written.rows_a_record

    def chunks(self, rows: range | None = None) -> Iterator[pa.RecordBatch]:
        """Draw the records, or some of them (`Release.chunks`), a block at a time."""
        chunks = self.release.chunks(self.n, self.seed, list(self.where), rows, self.balance)
        return self._written.rows(chunks, 0 if rows is None else rows.start)

    def digest(self, **written: bool) -> str:
        """Return twelve hexadecimal digits that another draw lacks, and the same by another version of this software.

        Args:
            written: what else decides the content of a file.
        """
        told = asdict(self) | {"folder": [file_hash(self.folder / name) for name in (MODEL, WEIGHTS)]}
        told |= written | {"columns": self.columns.to_string(), "version": installed_version()}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]

    def _declared(self) -> dict[str, Any]:
        with suppress(NotARelease):  # a model gives records without its certificate
            declared = read_certificate(self.folder).get("declared")
            return declared if isinstance(declared, dict) else {}
        return {}
