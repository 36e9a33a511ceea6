"""Where records come from: for each kind of data what is declared of them, and how they are read. Records are private."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lightning_dpgen.common.passwords import without_passwords
from lightning_dpgen.data.baskets.files import check_basket_columns
from lightning_dpgen.data.baskets.keys import basket_keys
from lightning_dpgen.data.baskets.reading import OUTSIDE_COUNTED, read_baskets
from lightning_dpgen.data.baskets.schema import MOST_ITEMS, BasketSchema
from lightning_dpgen.data.baskets.universe import NO_UNIVERSE, read_items
from lightning_dpgen.data.errors import MissingData
from lightning_dpgen.data.files.arrays import ENDINGS
from lightning_dpgen.data.files.database import DatabaseQuery
from lightning_dpgen.data.files.kinds import JSON_LINES, PARQUET, TEXT, is_database
from lightning_dpgen.data.files.text import bare_name
from lightning_dpgen.data.names import is_name, public_names, shown
from lightning_dpgen.data.pictures.form import MOST_CLASSES
from lightning_dpgen.data.pictures.reading import read_pictures
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.public_sets import find_public_set, load_public_set, public_set
from lightning_dpgen.data.reading import Reading
from lightning_dpgen.data.row_sample import RowSample
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.series.files import names_in
from lightning_dpgen.data.series.form import WEEKDAYS
from lightning_dpgen.data.series.reading import read_series
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.series.times import read_steps
from lightning_dpgen.data.tables.description import KEYS, PRIVATE
from lightning_dpgen.data.tables.reading import check_columns, read_open_columns, read_table, row_digests, table_bytes
from lightning_dpgen.data.tables.record_check import TableCheck, check_table
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_file import read_schema
from lightning_dpgen.data.tables.search import Part
from lightning_dpgen.data.tables.sources import declared_types
from lightning_dpgen.passes.table_blocks import TableBlocks
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.argument_names import as_settings
from lightning_dpgen.specs.data import (
    BasketsSpec,
    CustomDataSpec,
    DataSpec,
    PicturesSpec,
    PublicPicturesSpec,
    SeriesSpec,
    TableSpec,
)
from lightning_dpgen.specs.source import Source
from lightning_dpgen.specs.table_parts import filled, table_parts, told
from lightning_dpgen.specs.usage_error import UsageError

if TYPE_CHECKING:
    from lightning_dpgen.passes.column_counts import ColumnCounts
    from lightning_dpgen.passes.kept_blocks import KeptBlocks

_BYTES_AT_ONCE = 1 << 24
# Settings of the form of files of baskets and series.
_BASKETS = ("form", "separator", "columns", "label", "header")
_SERIES = (*_BASKETS, "by", "day", "time", "weekdays")
# Settings of a table in a database.
_DATABASE = ("url", "query", "rows_independent")


class PublicSource(Source):
    """A public set of records that is known by name."""

    held_out = True

    @property
    def word(self) -> str:
        return {"images": "picture", "table": "record", "baskets": "basket", "series": "series"}[self.spec.kind]

    @property
    def open_parts(self) -> dict[str, Part]:
        schema = public_set(self.spec.source).schema
        return table_parts(schema, self.spec) if isinstance(schema, TableSchema) else {}

    def raw_parts(self, rows: Any = None) -> tuple[dict[str, Any], list[pa.Array] | None]:
        rows = self.files()[0] if rows is None else rows
        return read_open_columns(rows, public_set(self.spec.source).schema, list(self.open_parts))

    def found_in_words(self, found: dict[str, Any]) -> dict[str, str]:
        return told(public_set(self.spec.source).schema, found)

    def declare(self, found: dict[str, Any] | None = None) -> Schema:
        schema = public_set(self.spec.source).schema
        if isinstance(schema, TableSchema):
            return filled(schema, found)
        if not isinstance(self.spec, PublicPicturesSpec):
            return schema
        return dataclasses.replace(schema, **self.spec.given("classes", "threshold"))

    def files(self, held_out: bool = False) -> list[Path]:
        return find_public_set(self.spec.source, held_out=held_out)

    def _read(self, schema: Schema, held_out: bool) -> Reading:
        return load_public_set(self.spec.source, schema, held_out=held_out)


class PictureFiles(Source):
    """Pictures in a folder or an archive of arrays."""

    word = "picture"

    def declare(self, found: dict[str, Any] | None = None) -> ImageSchema:
        spec = self.spec
        names = tuple(spec.classes) if isinstance(spec.classes, list) else ()
        if any(type(name) is int for name in names):
            raise UsageError(
                f"data.classes={list(names[:5])}: expected names as text, as in data.classes=[cats,dogs], or data.classes="
                f"{len(names)} for labels that are the whole numbers from 0 to {len(names) - 1}"
            )
        if names:
            public_names("classes", names, 2, MOST_CLASSES)
        classes = len(names) if names else spec.classes or 0
        given = spec.given("height", "width", "channels", "threshold")
        return ImageSchema(**{"levels": 255, "classes": classes, "names": names} | given)

    def _read(self, schema: ImageSchema, held_out: bool) -> Reading:
        form = {"channels": schema.channels, "classes": list(schema.names) or schema.classes}
        given = self.spec.given("fit", "high")
        images, labels = read_pictures(self.spec.path, schema.height, schema.width, **form, **given)
        return Reading(schema.encode(images, labels), None, {})


class TableFile(Source):
    """A table in a file, or in memory.

    Args:
        frame: the records, where they are in memory; the settings name no file then.
        schema: their description, where no file holds it.
    """

    def __init__(self, spec: TableSpec, frame: Any = None, schema: TableSchema | None = None) -> None:
        super().__init__(spec)
        self._frame = frame
        if schema is not None:
            self.described = self._typed(schema)

    @cached_property
    def described(self) -> TableSchema:
        """The schema, of which something may be left to be found privately."""
        if not self.spec.schema_:
            raise UsageError(
                "data=table needs data.schema=FILE.schema.yaml, the public description of its columns: dpgen schema FILE "
                "drafts one"
            )
        with self._settings_named():
            return self._typed(read_schema(self.spec.schema_))

    def _typed(self, schema: TableSchema) -> TableSchema:
        """Return a schema with the types that a frame or a Parquet file declares of its columns."""
        kinds = declared_types(self._records) if self._frame is not None or self.spec.path else {}
        return schema.with_types_of(kinds) if kinds else schema

    def declare(self, found: dict[str, Any] | None = None) -> TableSchema:
        return filled(self.described, found)

    @property
    def description(self) -> dict[str, Any]:
        return self.described.as_json()

    def check_records(self) -> None:
        if self._frame is None and self.spec.url is None:
            with self._settings_named():
                check_columns(self.spec.path, self.described, self.spec.person)

    @property
    def _records(self) -> Any:
        if self._frame is not None:
            return self._frame
        return self.spec.path if self.spec.url is None else DatabaseQuery(**self.spec.given(*_DATABASE))

    def files(self, held_out: bool = False) -> list[Path]:
        if self._frame is not None or self.spec.url is not None:
            return []
        if self.spec.path is None:
            raise MissingData("data.path: must be given, the file of the records; or data.url and data.query, a database")
        if re.search(r"/[a-z+\d]+:/", self.spec.path):
            raise MissingData(
                f"data.path={without_passwords(self.spec.path)}: names a database: expected a file, or the database by "
                "data.url=URL data.query=SQL"
            )
        return super().files()

    @cached_property
    def _digests(self) -> np.ndarray:
        with self._settings_named():
            return row_digests(self._records, self.described, self.spec.person)

    def contents(self) -> Iterator[np.ndarray]:
        if self._frame is not None:
            yield from table_bytes(self._frame, self.described, self.spec.person)
        elif self.spec.url is not None or is_database(self.spec.path):
            # Rows of a database have no order, and its file changes though its records do not.
            yield self._digests
        elif self.in_blocks:
            for file in self.files():
                yield from _pieces(file)
        else:
            yield from super().contents()

    @property
    def in_blocks(self) -> bool:
        if self._frame is not None or not self.spec.path:
            return False
        path = Path(self.spec.path)
        if path.is_file() and not (path.suffix == PARQUET or bare_name(path).endswith((*TEXT, *JSON_LINES))):
            return False
        return sum(file.stat().st_size for file in self.files()) > self.spec.memory_gib * 2**30

    def blocks(self, schema: TableSchema, folder: Path, *, values: bool = False, by_rows: bool = False) -> KeptBlocks:
        # It imports torch, which no mistake in a file waits for.
        from lightning_dpgen.passes.kept_blocks import CUTS, KeptBlocks

        with self._settings_named():
            how = {"outside": self.spec.outside, "person": self.spec.person, "values": values}
            blocks = TableBlocks(self.spec.path, schema, cuts=folder / f"{CUTS}.json", **how)
            return KeptBlocks(blocks, folder, self.spec.most_rows, by_rows=by_rows)

    def first_look(self, schema: TableSchema, folder: Path, *, private: bool) -> ColumnCounts:
        from lightning_dpgen.passes.column_counts import ColumnCounts
        from lightning_dpgen.passes.kept_blocks import CUTS

        with self._settings_named():
            how = {"outside": self.spec.outside, "person": self.spec.person, "described": self.described}
            blocks = TableBlocks(self.spec.path, schema, cuts=folder / f"{CUTS}.json", **how)
            return ColumnCounts(blocks, self.open_parts, folder, self.spec.most_rows, private=private)

    def _read(self, schema: TableSchema, held_out: bool) -> Reading:
        return read_table(self._records, schema, **self.spec.given("outside", "person"))

    def _read_values(self, schema: TableSchema, held_out: bool, sample: RowSample | None = None) -> Reading:
        return read_table(self._records, schema, values=True, sample=sample, **self.spec.given("outside", "person"))

    @property
    def open_parts(self) -> dict[str, Part]:
        return table_parts(self.described, self.spec)

    def raw_parts(self, rows: Any = None) -> tuple[dict[str, Any], list[pa.Array] | None]:
        rows = self._records if rows is None else rows
        with self._settings_named():
            return read_open_columns(rows, self.described, list(self.open_parts), person=self.spec.person)

    def check_table(self) -> TableCheck:
        with self._settings_named():
            return check_table(self._records, self.described, **self.spec.given("outside", "person", "max_moved"))

    def found_in_words(self, found: dict[str, Any]) -> dict[str, str]:
        return told(self.described, found)


def _pieces(path: Path) -> Iterator[np.ndarray]:
    """Yield the bytes of a file, few at a time: pages of one that is mapped count as memory of the process."""
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(_BYTES_AT_ONCE):
            yield np.frombuffer(piece, np.uint8)


class BasketFile(Source):
    """Baskets in a file."""

    word = "basket"

    def declare(self, found: dict[str, Any] | None = None) -> BasketSchema:
        spec, private = self.spec, self.spec.items == PRIVATE
        if private:
            # A name that no file could hold is left out.
            items = [name for name in found["items"] if is_name(name)] if found else ["a", "b"]
        elif spec.items in (None, ""):
            missing = as_settings(NO_UNIVERSE, "data", spec)
            raise UsageError(
                f"data.{missing}, or have it found privately from a share of the budget (data.items=private "
                "data.discovery_share=0.05 data.outside=clamp)"
            )
        else:
            with self._settings_named():
                items = spec.items if isinstance(spec.items, list) else read_items(spec.items)
        if not isinstance(spec.classes, list | tuple | None):
            raise UsageError(
                f"data.classes={shown(spec.classes)}: expected names in a list, as in data.classes=[day,night]"
            )
        # Fewer may be found than a basket holds.
        most = min(spec.max_items, len(items)) if private else spec.max_items
        return BasketSchema(tuple(items), most, tuple(spec.classes or ()), dataclasses.replace(spec.written, person=None))

    def check_records(self) -> None:
        with self._settings_named():
            check_basket_columns(self.spec.path, self.spec.written)

    @property
    def record(self) -> str:
        return f"basket (all rows of one {self.spec.columns[0]})" if self.spec.columns else self.word

    def _read(self, schema: BasketSchema, held_out: bool) -> Reading:
        reading = read_baskets(self.spec.path, schema, **self.spec.given("outside", "person", *_BASKETS))
        # Items that were found privately, as those of a release may be, leave out what is rare.
        declared = self.spec.items not in (None, PRIVATE)
        if declared and (outside := reading.counted.get(OUTSIDE_COUNTED, 0)) > reading.encoded.units.nnz:
            raise BadRecords(
                f"{outside:,} items in baskets are outside the universe (data.items), more than are in it: correct the "
                "separator, the form or the list of items"
            )
        return reading

    @property
    def open_parts(self) -> dict[str, Part]:
        if self.spec.items != PRIVATE:
            return {}
        if not 1 <= self.spec.max_items <= MOST_ITEMS:
            raise UsageError(f"data.max_items={self.spec.max_items}: expected a whole number from 1 to {MOST_ITEMS:,}")
        return {"items": Part(KEYS, self.spec.most_rows * self.spec.max_items)}

    def raw_parts(self, rows: Any = None) -> tuple[dict[str, Any], list[pa.Array] | None]:
        spec = self.spec
        with self._settings_named():
            keys = basket_keys(spec.path, form=dataclasses.replace(spec.written, person=None))
        return {"items": (keys.indptr, keys.ids, keys.names)}, None


class SeriesFile(Source):
    """Series in a file."""

    word = "series"

    def declare(self, found: dict[str, Any] | None = None) -> SeriesSchema:
        spec = self.spec
        described = spec.given("length", "low", "high", "channels", "classes", "decimals")
        if spec.weekdays is not None:
            if spec.classes is not None or spec.label is not None:
                raise UsageError(f"data.weekdays={spec.weekdays}: is the label, so leave out data.label and data.classes")
            described["classes"] = WEEKDAYS[spec.weekdays][0]
        if spec.steps is not None and spec.length is not None:
            described["steps"] = read_steps(spec.steps, spec.length)
        form = dataclasses.replace(spec.written, person=None)
        # Columns that are asked for may be some of a wide file's.
        schema = SeriesSchema(**described, written=dataclasses.replace(form, columns=None))
        return dataclasses.replace(schema, written=dataclasses.replace(form, columns=self._names(schema) or form.columns))

    def _names(self, schema: SeriesSchema) -> tuple[str, ...] | None:
        """Return the names of the columns of readings, which the header says; None where no file with one is there."""
        # A fault of the file is told by `check_records`, and where it is read.
        with suppress(MissingData, BadRecords, OSError):
            return self._header(schema)
        return None

    def _header(self, schema: SeriesSchema) -> tuple[str, ...] | None:
        path = self.spec.path
        return None if path is None or Path(path).suffix in ENDINGS else names_in(path, schema, self.spec.written)

    def check_records(self) -> None:
        with self._settings_named():
            self._header(self.declare())

    @property
    def record(self) -> str:
        named = " and one ".join(name for name in (self.spec.by, self.spec.day and f"day of {self.spec.day}") if name)
        return f"series (all rows of one {named})" if named else self.word

    def _read(self, schema: SeriesSchema, held_out: bool) -> Reading:
        return read_series(self.spec.path, schema, **self.spec.given("outside", "person", *_SERIES))


def source_of(spec: DataSpec) -> Source:
    """Return the source that settings describe."""
    if isinstance(spec, CustomDataSpec):
        # It imports torch, which no other kind of data waits for.
        from lightning_dpgen.specs.custom_data import CustomSource

        return CustomSource(spec)
    kinds = {PicturesSpec: PictureFiles, TableSpec: TableFile, BasketsSpec: BasketFile, SeriesSpec: SeriesFile}
    return kinds.get(type(spec), PublicSource)(spec)
