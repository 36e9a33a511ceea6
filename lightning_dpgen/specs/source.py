"""Sources: where the records of a run come from, and what is known of them before they are read. Records are private."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lightning_dpgen.common.nearest_word import suggest_file
from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.files.text import MissingData
from lightning_dpgen.data.persons import MORE_ROWS, bounded
from lightning_dpgen.data.public_sets import find_public_set, load_public_set, public_set
from lightning_dpgen.data.reading import CLAMP, Reading
from lightning_dpgen.data.row_sample import RowSample
from lightning_dpgen.data.schema import Schema, kind_named
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.description import VALUES
from lightning_dpgen.data.tables.search import Part
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.data import CustomDataSpec, DataSpec
from lightning_dpgen.specs.spec import as_settings
from lightning_dpgen.specs.usage_error import UsageError

if TYPE_CHECKING:
    from lightning_dpgen.data.records import Records
    from lightning_dpgen.data.tables.record_check import TableCheck
    from lightning_dpgen.passes.column_counts import ColumnCounts
    from lightning_dpgen.passes.encoded_blocks import EncodedBlockStore


class Source(ABC):
    """Records by the settings that say where they are: the base of all kinds."""

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
            raise MissingData(f"no file {path} (data.path){suggest_file(path)}")
        return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]

    def contents(self) -> Iterator[np.ndarray]:
        """Yield the bytes of all records, for a fingerprint."""
        for file in self.files():
            yield np.memmap(file, np.uint8, "r") if file.stat().st_size else np.zeros(0, np.uint8)

    def records(
        self, schema: Schema, *, held_out: bool = False, values: bool = False, sample: RowSample | None = None
    ) -> tuple[Records, dict[str, int]]:
        """Return the records, at most `max_rows` of a person, and what was changed or left out on the way.

        Args:
            values: whether those of a table are kept by their values, too; records that come encoded have none.
            sample: with values: a part of the rows of a table that is read in place of all of them.

        Raises:
            UsageError: for a setting that makes no sense of how they are written.
            MissingData: if a file is not there.
            BadRecords: if there are no records, or they do not fit the schema.
        """
        # It imports torch, which no mistake in a file waits for.
        from lightning_dpgen.data.records import Records

        with self._settings_named():
            reading = self._read_values(schema, held_out, sample) if values else self._read(schema, held_out)
        if not len(reading.encoded):
            raise BadRecords(
                f"data={self.spec.source}: there are no {self.counted}s{' that are held out' * held_out}: expected at "
                f"least one; see what {self._place(held_out)} holds"
            )
        by_values = reading.values if values else None
        if reading.persons is None:
            return Records(schema, reading.encoded, values=by_values), dict(reading.counted)
        rows = bounded(reading.encoded, reading.persons, self.spec.most_rows)
        left_out = len(reading.encoded) - len(rows)
        counted = dict(reading.counted) | ({MORE_ROWS: left_out} if left_out else {})
        by_values = None if by_values is None else by_values[rows]
        return Records(schema, reading.encoded[rows], reading.persons[rows], by_values), counted

    @property
    def in_blocks(self) -> bool:
        """True where the files are so large that they are read in blocks; it follows from their size."""
        return False

    def blocks(self, schema: Any, folder: Path, *, values: bool = False, by_rows: bool = False) -> EncodedBlockStore:
        """Return the records in blocks, none of which is read yet; see `EncodedBlockStore`.

        Args:
            folder: where they are kept once they are encoded, in a private place.
            values: as for `records`.
            by_rows: whether lots are drawn from them.

        Raises:
            UsageError, MissingData, BadRecords: as `records`.
        """
        raise UsageError(f"data={self.spec.source}: is read into memory: expected a table in files for blocks")

    def first_look(self, schema: Any, folder: Path, *, private: bool) -> ColumnCounts:
        """Return what a first pass sees of records in blocks, none of which is read yet; see `ColumnCounts`.

        Args:
            schema: with anything in the place of what is to be found.
            folder: where counts are kept, in a private place.
            private: False for a run without noise and bound.

        Raises:
            UsageError, MissingData, BadRecords: as `records`.
        """
        raise UsageError(f"data={self.spec.source}: is read into memory: expected a table in files for blocks")

    def _read_values(self, schema: Any, held_out: bool, sample: RowSample | None = None) -> Reading:
        """Read the same, and keep the values of a table where they are known."""
        return self._read(schema, held_out)

    def _place(self, held_out: bool) -> str:
        """Return where the records are, for a message."""
        return "data.path"

    @property
    def counted(self) -> str:
        """A record in a word, for numbers of records."""
        return self.word if self.word == "person" else "record"

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

    def check_table(self) -> TableCheck | None:
        """Return all that would be refused or moved of the records of a table; None for other records. Private.

        Raises:
            UsageError, MissingData, BadRecords: as `records`, for what is no such table.
        """
        return None

    def raw_parts(self, rows: Any = None) -> tuple[dict[str, Any], list[pa.Array] | None]:
        """Return where these are found (numbers, categories, or sets as `KeyOwners.of_sets` takes them), and the
        persons of the records, some at a time; None where no person has several.

        Args:
            rows: of a table: rows in memory that take the place of the records; None for the records.

        Raises:
            UsageError, MissingData, BadRecords: as `records`.
        """
        return {}, None

    def found_in_words(self, found: dict[str, Any]) -> dict[str, str]:
        """Return what was found privately, as a schema would say it."""
        return {name: abbreviate(value) for name, value in found.items()}

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

    def check_records(self) -> None:
        """Refuse a file whose names of columns show that it is another one; no record is read.

        Raises:
            UsageError, MissingData, BadRecords: as `records`.
        """
        return

    def check(self) -> None:
        """Refuse a share of the budget for what is found privately where nothing is, and the other way round."""
        check_discovery(self.spec, self.open_parts)


class PublicSource(Source):
    """A public set of records that is known by name."""

    held_out = True

    @property
    def word(self) -> str:
        return kind_named(self.spec.kind).word

    def declare(self, found: dict[str, Any] | None = None) -> Schema:
        return public_set(self.spec.source).schema

    def files(self, held_out: bool = False) -> list[Path]:
        return find_public_set(self.spec.source, held_out=held_out)

    def _place(self, held_out: bool) -> str:
        return ", ".join(map(str, self.files(held_out))) or f"data={self.spec.source}"

    def check(self) -> None:
        super().check()
        person, known = self.spec.column_of_persons, public_set(self.spec.source).person
        if person not in (None, known):
            expected = f"{known}, or none" if known else "none, since no person has several records"
            raise UsageError(f"data.person={person}: data={self.spec.source} has no such column; expected {expected}")

    def _read(self, schema: Schema, held_out: bool) -> Reading:
        # Sets in files have one number of records, whatever is declared, and one draw.
        reading = load_public_set(self.spec.source, schema, held_out=held_out, **self._asked)
        return reading if self.spec.column_of_persons else dataclasses.replace(reading, persons=None)

    @property
    def _asked(self) -> dict[str, Any]:
        """The number of records of a simulated set, where it is declared, and which draw they are of."""
        draw = getattr(self.spec, "draw", None)
        return {} if draw is None else {"n": self.spec.n, "draw": draw}


def source_of(spec: DataSpec) -> Source:
    """Return the source that settings describe."""
    if isinstance(spec, CustomDataSpec):
        # It imports torch, which no other kind of data waits for.
        from lightning_dpgen.specs.custom import CustomSource

        return CustomSource(spec)
    return kind_named(spec.kind).source(spec)


def check_discovery(spec: Any, parts: Mapping[str, Part]) -> None:
    """Refuse a share of the budget for what is found privately where nothing is, and the other way round.

    Args:
        spec: the settings of the data.
        parts: what is found privately, by name.
    """
    opened = {name: part for name, part in parts.items() if part.find != VALUES}
    if bool(opened) != (spec.share_of_discovery is not None):
        raise UsageError(
            f"data.discovery_share={spec.share_of_discovery}: expected a share of the budget, as in "
            "data.discovery_share=0.05, exactly where something is to be found privately "
            f"({listed(opened) or 'nothing here'})"
        )
    # A column of a table that is found privately is clamped, whatever the others are.
    if "items" in opened and spec.kind is not None and kind_named(spec.kind).discoverable == "items":
        if spec.outside != CLAMP:
            raise UsageError(
                f"data.outside={spec.outside}: what is found privately does not cover every record, and a "
                "refusal would tell: set data.outside=clamp"
            )
        if spec.person is not None:
            raise UsageError(
                f"data.items=private with data.person={spec.person}: declare the items where a person has several"
            )


def abbreviate(keys: list[Any]) -> str:
    """Return a list in words, or its length where it is long."""
    return ", ".join(str(key) for key in keys) if len(keys) < 8 else f"{len(keys):,} of them"
