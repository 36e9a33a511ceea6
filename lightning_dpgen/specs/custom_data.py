"""`data=own data.target=package.function`: records that a function of the user's own hands over."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.reading import Reading
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.row_sample import RowSample
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.reading import read_open_columns, read_table, table_bytes
from lightning_dpgen.data.tables.record_check import TableCheck, check_table
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.search import Part
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.custom import named, options_of, said
from lightning_dpgen.specs.source import Source
from lightning_dpgen.specs.table_parts import filled, table_parts, told
from lightning_dpgen.specs.usage_error import UsageError

_SCHEMAS = (ImageSchema, TableSchema, BasketSchema, SeriesSchema)


class CustomSource(Source):
    """Records of a function, which is called once."""

    @cached_property
    def _given(self) -> tuple[Schema, Records | pd.DataFrame | pa.Table]:
        """The schema, and records: encoded, or a table for a `TableSchema`.

        Raises:
            UsageError: if there is no such function, it fails, or gives anything else than (schema, `Encoded` or
                `Records`), or (frame, `TableSchema`).
        """
        function, where = named("data.target", self.spec.target), f"data.target={self.spec.target}"
        if not callable(function):
            raise UsageError(
                f"{where}: is a {type(function).__name__}; expected a function that returns schema and records"
            )
        options = options_of("data.options", self.spec.options)
        try:
            given = function(**options)
        # It may end the program, too.
        except (Exception, SystemExit) as error:
            raise UsageError(f"{where}: it failed when it was called ({said(error)})") from None
        schema = records = None
        if isinstance(given, tuple) and len(given) == 2:
            schema, records = given if isinstance(given[0], _SCHEMAS) else given[::-1]
        if isinstance(schema, _SCHEMAS) and isinstance(records, Encoded | Records):
            try:
                if isinstance(records, Encoded):
                    records = Records(schema, records)
                if records.schema != schema:
                    raise BadRecords("the records are of another schema")
            except (BadRecords, BadSchema, ValueError) as error:
                raise UsageError(f"{where}: {error}") from None
            return schema, records
        if isinstance(schema, TableSchema) and isinstance(records, pd.DataFrame | pa.Table):
            return schema, records
        parts = ", ".join(type(part).__name__ for part in given) if isinstance(given, tuple) else type(given).__name__
        raise UsageError(f"{where}: it returned ({parts}): expected (schema, Encoded or Records), or (frame, TableSchema)")

    def declare(self, found: dict[str, Any] | None = None) -> Schema:
        return self._given[0] if self._frame is None else filled(self._given[0], found)

    @property
    def _frame(self) -> pd.DataFrame | pa.Table | None:
        """The records of a table that are not encoded; None for others."""
        return None if isinstance(self._given[1], Records) else self._given[1]

    @property
    def description(self) -> dict[str, Any]:
        return self._given[0].as_json()

    @property
    def open_parts(self) -> dict[str, Part]:
        return {} if self._frame is None else table_parts(self._given[0], self.spec)

    def raw_parts(self, rows: Any = None) -> tuple[dict[str, Any], list[pa.Array] | None]:
        rows = self._frame if rows is None else rows
        with self._settings_named():
            return read_open_columns(rows, self._given[0], list(self.open_parts), person=self.spec.person)

    def check_table(self) -> TableCheck | None:
        if self._frame is None:
            return None
        with self._settings_named():
            return check_table(self._frame, self._given[0], **self.spec.given("outside", "person", "max_moved"))

    def found_in_words(self, found: dict[str, Any]) -> dict[str, str]:
        return told(self._given[0], found)

    def files(self, held_out: bool = False) -> list[Path]:
        return []

    def contents(self) -> Iterator[np.ndarray]:
        schema, records = self._given
        if isinstance(records, Records):
            yield from records.arrays
        else:
            yield from table_bytes(records, schema, self.spec.person)

    def _read_values(self, schema: Any, held_out: bool, sample: RowSample | None = None) -> Reading:
        if self._frame is None or not isinstance(schema, TableSchema):
            return self._read(schema, held_out)
        asked = {"outside": self.spec.outside, "person": self.spec.person, "sample": sample}
        return read_table(self._frame, schema, values=True, **asked)

    def _read(self, schema: Schema, held_out: bool) -> Reading:
        (own, records), where = self._given, f"data.target={self.spec.target}"
        if not isinstance(records, Records):
            if not isinstance(schema, TableSchema):
                raise BadRecords(f"{where}: it returned a table: expected records of kind {schema.kind}")
            return read_table(records, schema, outside=self.spec.outside, person=self.spec.person)
        if schema != own:
            raise BadRecords(f"{where}: its records are encoded by another schema than the release's")
        if (records.persons is None) != (self.spec.max_rows is None):
            raise UsageError(
                f"{where}: its records say{' not' if records.persons is None else ''} whose they are: "
                "expected data.person and data.max_rows exactly if they do"
            )
        return Reading(records.encoded, records.persons, {})
