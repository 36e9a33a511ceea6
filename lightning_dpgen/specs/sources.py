"""Where records come from: for each kind of data what is declared of them, and how they are read. Records are private."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lightning_dpgen.data.baskets.files import BasketForm
from lightning_dpgen.data.baskets.keys import basket_keys
from lightning_dpgen.data.baskets.reading import read_baskets
from lightning_dpgen.data.baskets.schema import MOST_ITEMS, BasketSchema
from lightning_dpgen.data.baskets.universe import NO_UNIVERSE, read_items
from lightning_dpgen.data.errors import MissingData
from lightning_dpgen.data.names import is_name, public_names, shown
from lightning_dpgen.data.persons import bounded
from lightning_dpgen.data.pictures.form import MOST_CLASSES
from lightning_dpgen.data.pictures.reading import read_pictures
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.public_sets import find_public_set, load_public_set, public_set
from lightning_dpgen.data.reading import Reading
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.series.reading import read_series
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.open_columns import BOUNDS, KEYS, PRIVATE
from lightning_dpgen.data.tables.reading import read_open_columns, read_table, table_bytes
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_file import read_schema
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
from lightning_dpgen.specs.usage_error import UsageError

# Settings of the form of files of baskets and series.
_BASKETS = ("form", "separator", "columns", "label")
_SERIES = (*_BASKETS, "header", "by", "day")


@dataclass(frozen=True)
class Part:
    """A part of a description that is found privately.

    Args:
        find: bounds or keys.
        most: how many of them a unit (a record, or a person with all of theirs) has a part in.
        whole: whether bounds are whole numbers.
    """

    find: str
    most: int
    whole: bool = False


class Source(ABC):
    """Records by the settings that say where they are; for files of one kind, and the base of all kinds."""

    # A record in a word, and whether there are records that no training sees.
    word, held_out = "record", False

    def __init__(self, spec: DataSpec) -> None:
        self.spec: Any = spec

    @abstractmethod
    def declare(self, found: dict[str, Any] | None = None) -> Schema:
        """Return the schema from what is declared alone, and from what was found privately.

        Raises:
            UsageError, BadSchema, ValueError: if it describes no record.
        """

    @abstractmethod
    def _read(self, schema: Schema, held_out: bool) -> Reading:
        """Read the records, for a training or held out."""

    def files(self, held_out: bool = False) -> list[Path]:
        """Return the files, none of them read.

        Raises:
            MissingData: if one is not there.
        """
        if not self.spec.path:
            raise MissingData(f"data={self.spec.source} needs data.path=..., the place of its records")
        path = Path(self.spec.path)
        if not path.exists():
            raise MissingData(f"no file {path} (data.path)")
        return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]

    def contents(self) -> Iterator[np.ndarray]:
        """Yield the bytes of all records, for a fingerprint."""
        for file in self.files():
            yield np.memmap(file, np.uint8, "r") if file.stat().st_size else np.zeros(0, np.uint8)

    def records(self, schema: Schema, *, held_out: bool = False) -> tuple[Records, dict[str, int]]:
        """Return the records, at most `max_rows` of a person, and what was changed or left out on the way.

        Raises:
            UsageError: for a setting that makes no sense of how they are written.
            MissingData: if a file is not there.
            BadRecords: if there are no records, or they do not fit the schema.
        """
        with self._settings_named():
            reading = self._read(schema, held_out)
        if not len(reading.encoded):
            raise BadRecords(
                f"data={self.spec.source}: there are no records: expected at least one; see what data.path holds"
            )
        if reading.persons is None:
            return Records(schema, reading.encoded), dict(reading.counted)
        kept = bounded(reading.encoded, reading.persons, self.spec.most_rows)
        left_out = len(reading.encoded) - len(kept)
        counted = dict(reading.counted) | ({"records: more than max_rows of a person": left_out} if left_out else {})
        return Records(schema, reading.encoded[kept], reading.persons[kept]), counted

    @property
    def record(self) -> str:
        """A record in words: whose presence is protected where no person has several."""
        return self.word

    @property
    def description(self) -> dict[str, Any]:
        """The public description of the records, with what of it is still to be found, as JSON."""
        return self.declare().as_json()

    @property
    def open_parts(self) -> dict[str, Part]:
        """The parts that are found privately, by name."""
        return {}

    def raw_parts(self) -> tuple[dict[str, Any], np.ndarray | None]:
        """Return where these are found (numbers, categories, or sets as `KeyOwners.of_sets` takes them), and persons.

        Raises:
            UsageError, MissingData, BadRecords: as `records`.
        """
        return {}, None

    def found_in_words(self, found: dict[str, Any]) -> dict[str, str]:
        """Return what was found privately, as a schema would say it."""
        return {name: _few(value) for name, value in found.items()}

    @contextmanager
    def _settings_named(self) -> Iterator[None]:
        """Name a reader's arguments as settings in its errors; those about arguments alone are mistakes in the settings."""
        try:
            yield
        except BadSchema:
            # It names keys of the schema, which may be called like settings.
            raise
        except MissingData as error:
            said = as_settings(error, "data", self.spec)
            of_path = hasattr(self.spec, "path") and not said.startswith("data.")
            raise MissingData(f"{said} (data.path)" if of_path else said) from None
        except BadRecords as error:
            raise BadRecords(as_settings(error, "data", self.spec)) from None
        except ValueError as error:
            raise UsageError(as_settings(error, "data", self.spec)) from None

    def check(self) -> None:
        """Refuse a share of the budget for what is found privately where nothing is, and the other way round.

        Raises:
            UsageError: naming the setting.
        """
        spec, opened = self.spec, self.open_parts
        if bool(opened) != (spec.share_of_discovery is not None):
            raise UsageError(
                f"data.discovery_share={spec.share_of_discovery}: expected a share of the budget, as in "
                "data.discovery_share=0.05, exactly where something is to be found privately "
                f"({', '.join(opened) or 'nothing here'})"
            )
        if opened and spec.outside != "clamp":
            raise UsageError(
                f"data.outside={spec.outside or 'refuse'}: what is found privately does not cover every record, and a "
                "refusal would tell: set data.outside=clamp"
            )
        if "items" in opened and spec.person is not None:
            raise UsageError(
                f"data.items=private with data.person={spec.person}: declare the items where a person has several"
            )


class PublicSource(Source):
    """A public set of records that is known by name."""

    held_out = True

    @property
    def word(self) -> str:
        return {"images": "picture", "table": "record", "baskets": "basket", "series": "series"}[self.spec.kind]

    def declare(self, found: dict[str, Any] | None = None) -> Schema:
        schema = public_set(self.spec.source).schema
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
            self.described = schema

    @cached_property
    def described(self) -> TableSchema:
        """The schema, of which something may be left to be found privately."""
        if not self.spec.schema_:
            raise UsageError(
                "data=table needs data.schema=FILE.schema.yaml, the public description of its columns: dpgen schema FILE "
                "drafts one"
            )
        # Hydra reads 12 and [a] as a number and a list.
        if not isinstance(self.spec.schema_, str):
            raise UsageError(
                f"data.schema={shown(self.spec.schema_)}: expected the name of a file, as in data.schema=FILE.schema.yaml; "
                "a name that is a number needs its folder before it, as in data.schema=./12"
            )
        with self._settings_named():
            return read_schema(self.spec.schema_)

    def declare(self, found: dict[str, Any] | None = None) -> TableSchema:
        # Before anything was found, any will do.
        return self.described.filled(found or {c.name: [0, 1] if c.find == BOUNDS else ["a"] for c in self.described.open})

    @property
    def description(self) -> dict[str, Any]:
        return self.described.as_json()

    @property
    def _records(self) -> Any:
        return self.spec.path if self._frame is None else self._frame

    def files(self, held_out: bool = False) -> list[Path]:
        return super().files() if self._frame is None else []

    def contents(self) -> Iterator[np.ndarray]:
        if self._frame is not None:
            yield from table_bytes(self._frame, self.described, self.spec.person)
        yield from super().contents()

    def _read(self, schema: TableSchema, held_out: bool) -> Reading:
        return read_table(self._records, schema, **self.spec.given("outside", "person"))

    @property
    def open_parts(self) -> dict[str, Part]:
        rows = self.spec.most_rows
        return {
            column.name: Part(column.find, rows, column.find == BOUNDS and column.scale.whole)
            for column in self.described.open
        }

    def raw_parts(self) -> tuple[dict[str, Any], np.ndarray | None]:
        with self._settings_named():
            return read_open_columns(self._records, self.described, person=self.spec.person)

    def found_in_words(self, found: dict[str, Any]) -> dict[str, str]:
        columns = {column.name: column for column in self.described.open}
        said = {}
        for name, value in found.items():
            fields = columns[name].filled(value)
            said[name] = f"from {fields['low']} to {fields['high']}" if "low" in fields else _few(fields["values"])
        return said


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
        return BasketSchema(tuple(items), most, tuple(spec.classes or ()))

    @property
    def record(self) -> str:
        return f"basket (all rows of one {self.spec.columns[0]})" if self.spec.columns else self.word

    def _read(self, schema: BasketSchema, held_out: bool) -> Reading:
        return read_baskets(self.spec.path, schema, **self.spec.given("outside", "person", *_BASKETS))

    @property
    def open_parts(self) -> dict[str, Part]:
        if self.spec.items != PRIVATE:
            return {}
        if not 1 <= self.spec.max_items <= MOST_ITEMS:
            raise UsageError(f"data.max_items={self.spec.max_items}: expected a whole number from 1 to {MOST_ITEMS:,}")
        return {"items": Part(KEYS, self.spec.most_rows * self.spec.max_items)}

    def raw_parts(self) -> tuple[dict[str, Any], np.ndarray | None]:
        spec = self.spec
        with self._settings_named():
            form = BasketForm(**spec.given("form", "separator", "columns"), label=spec.label or bool(spec.classes))
            keys = basket_keys(spec.path, form=form)
        return {"items": (keys.indptr, keys.ids, keys.names)}, None


class SeriesFile(Source):
    """Series in a file."""

    word = "series"

    def declare(self, found: dict[str, Any] | None = None) -> SeriesSchema:
        return SeriesSchema(**self.spec.given("length", "low", "high", "channels", "classes", "decimals"))

    @property
    def record(self) -> str:
        named = " and one ".join(name for name in (self.spec.by, self.spec.day and f"day of {self.spec.day}") if name)
        return f"series (all rows of one {named})" if named else self.word

    def _read(self, schema: SeriesSchema, held_out: bool) -> Reading:
        return read_series(self.spec.path, schema, **self.spec.given("outside", "person", *_SERIES))


def source_of(spec: DataSpec) -> Source:
    """Return the source that settings describe."""
    from lightning_dpgen.specs.custom_data import CustomSource

    kinds = {
        PicturesSpec: PictureFiles, TableSpec: TableFile, BasketsSpec: BasketFile, SeriesSpec: SeriesFile,
        CustomDataSpec: CustomSource,
    }  # fmt: skip
    return kinds.get(type(spec), PublicSource)(spec)


def _few(keys: list[Any]) -> str:
    return ", ".join(str(key) for key in keys) if len(keys) < 8 else f"{len(keys):,} of them"
