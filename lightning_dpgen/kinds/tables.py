"""Tables: where they are read, what is found and measured of them, and how they are released and shown."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lightning_dpgen.common.passwords import without_passwords
from lightning_dpgen.common.plain_text import say_count
from lightning_dpgen.data.discovery.value_grid import values_of
from lightning_dpgen.data.files.database import DatabaseQuery
from lightning_dpgen.data.files.kinds import JSON_LINES, PARQUET, TEXT, is_database
from lightning_dpgen.data.files.text import MissingData, bare_name
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.public_sets import public_set
from lightning_dpgen.data.reading import Reading
from lightning_dpgen.data.row_sample import RowSample
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.description import BOUNDS, VALUES
from lightning_dpgen.data.tables.grouped import CERTAIN, MOST_COMMON
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.reading import check_columns, read_open_columns, read_table, row_digests, table_bytes
from lightning_dpgen.data.tables.record_check import TableCheck, check_table
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_file import read_schema
from lightning_dpgen.data.tables.search import Part
from lightning_dpgen.data.tables.sources import declared_types
from lightning_dpgen.kinds.kind import Kind
from lightning_dpgen.passes.table_blocks import TableBlocks
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.data import PublicTableSpec, TableSpec
from lightning_dpgen.specs.defaults import FEWEST_BINS
from lightning_dpgen.specs.source import PublicSource, Source, abbreviate
from lightning_dpgen.specs.usage_error import UsageError

if TYPE_CHECKING:
    from lightning_dpgen.passes.column_counts import ColumnCounts
    from lightning_dpgen.passes.encoded_blocks import EncodedBlockStore


def with_common(schema: TableSchema, parts: Mapping[str, Part], most: float) -> TableSchema:
    """Return the schema before categories with very many values are counted: as many are common then as may be.

    Args:
        most: the most values that can have a count that stands out of noise.
    """
    grids = {name: part.grid for name, part in parts.items() if part.counted and part.grid is not None}
    common = min(most, MOST_COMMON)
    counts = {
        name: {"counts": [2.0 * CERTAIN * (place < common) for place in range(grid.span)], "noise": 1.0}
        for name, grid in grids.items()
    }
    return schema.with_discovery(counts)


_BYTES_AT_ONCE = 1 << 24
# Settings of a table in a database.
_DATABASE = ("url", "query", "rows_independent")
# Tables of two columns, twice: what a fit of minutes and a GiB of memory can look at.
_MOST_CELLS = 1 << 26


class _TableSource(Source):
    """A table whose description may leave something to be found privately."""

    described: TableSchema
    _records: Any

    @property
    def open_parts(self) -> dict[str, Part]:
        schema, spec, parts = self.described, self.spec, {}
        for column in schema.open:
            bounds = column.find == BOUNDS
            # A label has a choice for each value.
            bought = spec.share_of_values is not None and column.name != schema.label
            cut = column if bounds and bought and column.declared.undecided else None
            parts[column.name] = Part(column.find, spec.most_rows, bounds and column.scale.whole, column=cut)
        if spec.share_of_values is None:
            return parts
        # The default number of bins is not known before n is.
        looked_at = [*schema.undecided(spec.bins or FEWEST_BINS), *schema.of_many_values]
        return parts | {column.name: Part(VALUES, spec.most_rows, grid=column.grid) for column in looked_at}

    def raw_parts(self, rows: Any = None) -> tuple[dict[str, Any], list[pa.Array] | None]:
        rows = self._records if rows is None else rows
        with self._settings_named():
            return read_open_columns(rows, self.described, list(self.open_parts), person=self.spec.column_of_persons)

    def found_in_words(self, discovery: dict[str, Any]) -> dict[str, str]:
        columns, texts = {column.name: column for column in self.described.open}, {}
        for name, value in discovery.items():
            parts = []
            if name in columns:
                about = columns[name].complete(value)
                bounds = columns[name].find == BOUNDS
                parts.append(f"from {about.low} to {about.high}" if bounds else abbreviate(about.values))
            if isinstance(value, dict) and "counts" in value:
                parts.append(self.declare(discovery).rules.learned[name].in_words)
            elif isinstance(value, dict):
                parts.append(f"how it is distributed, in {len(value['pieces']):,} pieces")
            texts[name] = "; ".join(parts)
        return texts

    def declare(self, discovery: dict[str, Any] | None = None) -> TableSchema:
        # Before anything was found, anything stands in its place.
        anything = {column.name: [0, 1] if column.find == BOUNDS else ["a"] for column in self.described.open}
        return self.described.with_discovery(discovery or anything)


class PublicTable(_TableSource, PublicSource):
    """A public table that is known by name."""

    @property
    def described(self) -> TableSchema:
        return public_set(self.spec.source).schema

    @property
    def _records(self) -> Any:
        known = public_set(self.spec.source)
        return self.files()[0] if known.draw is None else known.draw(self.spec.n or known.n, self.spec.draw)


class TableFile(_TableSource):
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

    def blocks(
        self, schema: TableSchema, folder: Path, *, values: bool = False, by_rows: bool = False
    ) -> EncodedBlockStore:
        # It imports torch, which no mistake in a file waits for.
        from lightning_dpgen.passes.encoded_blocks import CUTS, EncodedBlockStore

        with self._settings_named():
            how = {"outside": self.spec.outside, "person": self.spec.person, "values": values}
            blocks = TableBlocks(self.spec.path, schema, cuts=folder / f"{CUTS}.json", **how)
            return EncodedBlockStore(blocks, folder, self.spec.most_rows, by_rows=by_rows)

    def first_look(self, schema: TableSchema, folder: Path, *, private: bool) -> ColumnCounts:
        from lightning_dpgen.passes.column_counts import ColumnCounts
        from lightning_dpgen.passes.encoded_blocks import CUTS

        with self._settings_named():
            how = {"outside": self.spec.outside, "person": self.spec.person, "described": self.described}
            blocks = TableBlocks(self.spec.path, schema, cuts=folder / f"{CUTS}.json", **how)
            return ColumnCounts(blocks, self.open_parts, folder, self.spec.most_rows, private=private)

    def _read(self, schema: TableSchema, held_out: bool) -> Reading:
        return read_table(self._records, self._of_table(schema), **self.spec.given("outside", "person"))

    def _read_values(self, schema: TableSchema, held_out: bool, sample: RowSample | None = None) -> Reading:
        said = self.spec.given("outside", "person")
        return read_table(self._records, self._of_table(schema), values=True, sample=sample, **said)

    def _of_table(self, schema: Schema) -> TableSchema:
        """Return the schema of a table; refuse that of other records, as of a release of another kind."""
        if not isinstance(schema, TableSchema):
            raise BadRecords(f"data={self.spec.source}: the records are a table: expected records of kind {schema.kind}")
        return schema

    def check_table(self) -> TableCheck:
        with self._settings_named():
            return check_table(self._records, self.described, **self.spec.given("outside", "person", "max_moved"))


def _pieces(path: Path) -> Iterator[np.ndarray]:
    """Yield the bytes of a file, few at a time: pages of one that is mapped count as memory of the process."""
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(_BYTES_AT_ONCE):
            yield np.frombuffer(piece, np.uint8)


class Tables(Kind):
    """Rows of cells, one a record."""

    name, schema, word = "table", TableSchema, "record"
    parts = "its columns, their bounds and their categories"
    measured_networks = ("forest_mixture", "product_mixture", "copula")
    tabular = by_values = True

    def source(self, spec: TableSpec | PublicTableSpec) -> Source:
        return TableFile(spec) if isinstance(spec, TableSpec) else PublicTable(spec)

    def frame_source(self, spec: Any, schema: TableSchema, frame: Any) -> Source:
        source = TableFile(spec, frame)
        # A function may choose the types of its frame by the values: only what the schema says is published.
        source.described = schema
        return source

    def complete_schema(self, schema: TableSchema, spec: Any, source: Source, discovery: Any, initial: Any) -> TableSchema:
        """Return the schema with bins for numbers that leave them open, and groups of rare values."""
        from lightning_dpgen.specs.defaults import default_bins
        from lightning_dpgen.specs.settings import assumed_epsilon
        from lightning_dpgen.specs.starts import take_bins

        bins, n = spec.data.bins, spec.data.n
        if not discovery and any(part.counted for part in source.open_parts.values()):
            schema = with_common(schema, source.open_parts, _most_common(spec, source.open_parts))
        if initial is not None and bins is None:
            schema = take_bins(schema, initial)
        if bins is None:
            # Where n is still to be bought, records are only counted.
            bins = 1 if n is None else default_bins(n, assumed_epsilon(spec), spec.privacy.delta)
        return schema.with_bins(bins)

    def complete_measured(self, spec: Any, schema: TableSchema, defaults: Any) -> dict[str, Any]:
        from lightning_dpgen.measure.copulas import takes_copula
        from lightning_dpgen.measure.crossings import buys_crossings, can_cross
        from lightning_dpgen.models.labelled import takes_label

        layout, has = schema.layout, {}
        if not takes_copula(schema, defaults.n, defaults.strength):
            has = {"components": defaults.components, "pairs_share": 0.8}
            has["label_share"] = defaults.label_share if takes_label(layout) else 0.0
            if spec.label_share or (spec.label_share is None and has["label_share"]):
                has["label_sharpness"] = 1.0
                # Only what is bought is declared, so that releases without it are planned as they were.
                has["crossings"] = buys_crossings(layout, defaults.n, defaults.strength) or None
            if spec.crossings and not ("crossings" in has and can_cross(layout)):
                raise UsageError(
                    "model.crossings=true: applies only to a label that model.label_share pays for, beside two other "
                    "columns: leave it out"
                )
        _check_choices(schema)
        if has:
            _check_cells(schema, defaults.strength)
        return has

    def recipe(self, spec: Any, schema: TableSchema, *, n: int, seed: int, strength: float, sets: Any = ()) -> Any:
        from lightning_dpgen.measure.copulas import CopulaRecipe
        from lightning_dpgen.measure.tables import TableRecipe, pays_by_label

        # A copula has no components, which all other tables declare.
        if spec.components is None:
            if sets:
                raise UsageError(
                    f"data.workload: the table has {len(schema.layout.groups):,} columns, too many to count their pairs "
                    "beside what is asked for; leave columns out, or data.workload"
                )
            return CopulaRecipe(schema, n)
        groups = list(schema.choices)
        asked = tuple(tuple(map(groups.index, names)) for names in sets)
        sharpness = 1.0 if spec.label_sharpness is None else spec.label_sharpness
        return TableRecipe(
            schema, spec.components, n, pairs_share=spec.pairs_share, seed=seed, label_share=spec.label_share,
            label_sharpness=sharpness, by_label=pays_by_label(schema.layout, strength), asked=asked,
            crossed=bool(spec.crossings),
        )  # fmt: skip

    def describe(self, schema: TableSchema) -> tuple[str, list[Any]]:
        from lightning_dpgen.release.drawing.described import describe_column

        count = sum(column.arrow is not None for column in schema.columns)
        learned, label = schema.rules.learned, schema.label
        parts = [describe_column(column, learned.get(column.name), column.name == label) for column in schema.columns]
        return f"rows of {say_count(count, 'column')}", parts

    def show(self, path: Path, schema: TableSchema) -> Any:
        from lightning_dpgen.release.pages.distributions import show_table

        return show_table(path, schema)

    def tasks(self, schema: TableSchema) -> list[str]:
        return ["tabular-classification"] if schema.label is not None else []

    def example_label(self, schema: TableSchema) -> tuple[str, Any, str] | None:
        column = next((column for column in schema.columns if column.name == schema.label), None)
        if isinstance(column, Category):
            return column.name, column.values[-1], column.present_names[-1]
        is_number = isinstance(column, Numeric) and not column.special
        return (column.name, column.high, str(column.high)) if is_number else None

    def encode(self, records: Any, schema: TableSchema) -> Encoded:
        return read_table(records, schema).encoded


def _most_common(spec: Any, parts: Mapping[str, Part]) -> float:
    """Return how many values of a category may have counts that stand out of their noise, before they are counted."""
    from lightning_dpgen.specs.first_pass import first_stage

    stage = first_stage(spec, parts)
    if spec.data.n is None or stage.noise is None:
        return math.inf
    multipliers = stage.access(stage.noise).multipliers
    noise = spec.data.most_rows * min(multipliers[values_of(name, 1)] for name, part in parts.items() if part.counted)
    # Noise that is added to a count is hardly ever so large that it takes more than a deviation to be common.
    return spec.data.n / ((CERTAIN - 1.0) * max(noise, 1.0))


def _check_choices(schema: TableSchema) -> None:
    scaled = next((column.name for column in schema.modelled if column.scaled), None)
    if scaled is not None:
        raise UsageError(
            f"model=measured: counts choices, and column {scaled!r} is a real number (encoding: scaled): leave encoding "
            "out, so that it is put into bins, or take model=vae"
        )


def _check_cells(schema: TableSchema, strength: float) -> None:
    from lightning_dpgen.measure.pair_tables import what_to_leave_out
    from lightning_dpgen.measure.tables import pays_by_label
    from lightning_dpgen.specs.defaults import labels_of

    layout, label = schema.layout, None
    tables = 1
    if pays_by_label(layout, strength):
        label, tables = layout.label, labels_of(layout)
    sizes = [choices for group, choices in enumerate(layout.groups) if group != label]
    pairs = tables * (sum(sizes) ** 2 - sum(size**2 for size in sizes)) / 2
    # A fit holds the tables of all columns with all columns.
    if tables * layout.width**2 > _MOST_CELLS:
        raise UsageError(
            f"model=measured: the tables of each two columns would have {pairs:.1g} cells, most of them nothing but noise, "
            f"and columns {layout.width:,} choices: expected {math.isqrt(_MOST_CELLS // tables):,} choices or fewer; "
            f"{what_to_leave_out(schema)}"
        )


KIND = Tables()
