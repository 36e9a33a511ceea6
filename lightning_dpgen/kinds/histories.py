"""Histories: what is measured of them, and how they are released and described."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.files.kinds import JSON_LINES, PARQUET, is_database
from lightning_dpgen.data.histories.description import HistoryDescription, check_files, read_description
from lightning_dpgen.data.histories.reading import HistoryTables, check_tables, history_digests, read_histories
from lightning_dpgen.data.histories.schema import PERSONS, HistorySchema
from lightning_dpgen.data.reading import Reading
from lightning_dpgen.kinds.kind import Kind
from lightning_dpgen.release.rows.output_format import OutputFormat, WrittenRecords, as_they_are
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.data import HistoriesSpec
from lightning_dpgen.specs.source import Source
from lightning_dpgen.specs.usage_error import UsageError

_WITH_LISTS = (PARQUET, *JSON_LINES)


class HistoryFiles(Source):
    """Histories in several tables, or in one, which a file describes.

    Args:
        tables: by their names, in the place of those that the file names; None for these.
        described: what the file says, where there is none.
    """

    word = "person"

    def __init__(
        self, spec: HistoriesSpec, tables: Mapping[str, Any] | None = None, described: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(spec)
        self._given, self._fields = tables, described

    @cached_property
    def _described(self) -> HistoryDescription:
        if not self.spec.path:
            raise UsageError("data=histories needs data.path=..., the file that describes the tables of histories")
        with self._settings_named():
            described = self.spec.path if self._fields is None else self._fields
            independent = bool(self.spec.rows_independent)
            return read_description(described, self.spec.bins, rows_independent=independent, tables=self._given)

    def declare(self, found: dict[str, Any] | None = None) -> HistorySchema:
        return self._described.schema

    def files(self, held_out: bool = False) -> list[Path]:
        return check_files(self._described.files)

    def check_records(self) -> None:
        if self.spec.rows_independent is not None and not self._described.files.queries:
            raise UsageError("data.rows_independent: declares something of queries, and no table has one: leave it out")
        with self._settings_named():
            check_tables(self._described.files, self._described.schema)

    @cached_property
    def _digests(self) -> list[np.ndarray]:
        with self._settings_named():
            return [*history_digests(self._described.files, self._described.schema)]

    def contents(self) -> Iterator[np.ndarray]:
        # Rows of a database have no order, and its file changes though its records do not.
        if all(isinstance(table, str | Path) and not is_database(table) for table in self._described.files.all):
            yield from super().contents()
        else:
            yield from self._digests

    @property
    def record(self) -> str:
        # All rows of a person are one record, also those beyond max_rows: which ones count follows from them alone.
        return "person (attributes and the whole history)"

    def _read(self, schema: HistorySchema, held_out: bool) -> Reading:
        return read_histories(self._described.files, schema, outside=self.spec.outside)


class Histories(Kind):
    """Persons with attributes, and the rows of each in one or several tables."""

    name, schema, word = "histories", HistorySchema, "person"
    parts = "the attributes of a person, the columns of rows, and the largest numbers of rows"
    measured_networks, by_values = ("histories",), True
    # Other networks draw each choice by itself, so rows would stand behind the last one.
    trained_networks = ("autoregressive",)

    def source(self, spec: HistoriesSpec) -> Source:
        return HistoryFiles(spec)

    def complete_measured(self, spec: Any, schema: HistorySchema, defaults: Any) -> dict[str, Any]:
        return {"components": defaults.components}

    def recipe(self, spec: Any, schema: HistorySchema, *, n: int, seed: int, strength: float, sets: Any = ()) -> Any:
        from lightning_dpgen.measure.histories import HistoryRecipe

        return HistoryRecipe(schema, spec.components, n, seed=seed)

    def describe(self, schema: HistorySchema) -> tuple[str, list[Any]]:
        from lightning_dpgen.data.schema import kind_of
        from lightning_dpgen.release.drawing.described import Described

        parts = [] if schema.persons is None else kind_of(schema.persons).describe(schema.persons)[1]
        for table in schema.tables:
            of_rows = kind_of(table.rows).describe(table.rows)[1]
            if table.order is not None:
                start, gap = table.order.start, table.order.gap
                values = f"{start.low} to {start.high}, then {gap.low} to {gap.high} from row to row"
                values += "" if table.order.end is None else f", until {table.order.end}"
                of_rows.insert(0, Described(table.order.name, start.type, values))
            parts += [dataclasses.replace(part, name=f"{schema.prefix(table)}{part.name}") for part in of_rows]
        if len(schema.tables) == 1:
            return f"persons with up to {schema.tables[0].max_rows:,} rows each", parts
        return f"persons with up to {listed([f'{table.max_rows:,} {table.name}' for table in schema.tables])} each", parts

    def show(self, path: Path, schema: HistorySchema) -> Any:
        from lightning_dpgen.release.pages.distributions import show_histories

        return show_histories(path, schema)

    def forms(self, schema: HistorySchema) -> tuple[str, ...]:
        return (PERSONS, *(table.name for table in schema.tables))

    def output_format(
        self, schema: HistorySchema, release: Any, ending: str, form: str | None, declared: Any
    ) -> WrittenRecords:
        if form is None and ending in _WITH_LISTS:
            return as_they_are(schema.arrow)
        return written_histories(schema, form or schema.tables[0].name)

    def related(self, schema: HistorySchema) -> dict[str, WrittenRecords]:
        return {form: written_histories(schema, form) for form in self.forms(schema)}

    def sample(self, release: Any, *draw: Any) -> dict[str, Any]:
        """Draw histories as frames: persons, and the rows of each table, by their names."""
        drawn = release.drawn_table(*draw).combine_chunks().to_batches()
        tables = ((name, written, [*written.rows(drawn, 0)]) for name, written in self.related(release.schema).items())
        return {name: written.form.frame(pa.Table.from_batches(rows, written.columns)) for name, written, rows in tables}

    def read_tables(self, tables: Mapping[str, Any], schema: HistorySchema) -> Any:
        from lightning_dpgen.data.records import Records

        rows = {name: table for name, table in tables.items() if name != PERSONS}
        try:
            read = read_histories(HistoryTables(rows, tables.get(PERSONS)), schema)
        except ValueError as error:
            raise BadRecords(str(error)) from None
        return Records(schema, read.encoded, values=read.values)

    def evaluate(self, release: Any, real: Any, held_out: Any, count: int, **asked: Any) -> Any:
        from lightning_dpgen.data.histories.values import HistoryValues
        from lightning_dpgen.metrics.history_sides import evaluate_histories

        schema, seed = release.schema, asked["seed"]
        made = HistoryValues.joined([HistoryValues.of(batch, schema) for batch in release.sample_blocks(count, seed)])

        def by_values(records: Any) -> HistoryValues:
            return HistoryValues.drawn(schema, records.encoded, seed) if records.values is None else records.values

        aside = None if held_out is None else by_values(held_out)
        return evaluate_histories(by_values(real), made, held_out=aside, **asked)


KIND = Histories()


def written_histories(schema: HistorySchema, form: str) -> WrittenRecords:
    """Return the form in which one of the tables of synthetic histories is written: persons, or rows by their table's name.

    Persons have numbers from 1 in all. The same release, number of persons and seed give tables that belong together.

    Example:
        >>> from lightning_dpgen.data.histories.row_table import RowTable
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> visits = RowTable("visits", parse_schema("columns: {ward: {type: category, values: [a, b]}}"), max_rows=3)
        >>> written = written_histories(HistorySchema(None, (visits,)), "visits")
        >>> histories = pa.record_batch({"visits": [[{"ward": "a"}, {"ward": "b"}], [], [{"ward": "b"}]]})
        >>> next(written.rows([histories], 0)).to_pydict()
        {'person': [1, 1, 3], 'ward': ['a', 'b', 'b']}
    """
    if form == PERSONS:
        attributes = [] if schema.persons is None else schema.persons.arrow
        columns = pa.schema([pa.field(schema.key, pa.int64()), *attributes])
        written = OutputFormat() if schema.persons is None else OutputFormat.of(schema.persons)
        return WrittenRecords(columns, partial(_persons, columns), written)
    table = next(table for table in schema.tables if table.name == form)
    columns = pa.schema([pa.field(table.person, pa.int64()), *table.fields])
    return WrittenRecords(columns, partial(_rows, table.name, columns), OutputFormat.of(table.rows), None)


def _persons(columns: pa.Schema, chunks: Iterable[pa.RecordBatch], before: int) -> Iterator[pa.RecordBatch]:
    """Return persons one a row, each under a number."""
    for chunk in chunks:
        numbers = pa.array(np.arange(before + 1, before + chunk.num_rows + 1))
        yield pa.record_batch([numbers, *chunk.columns[: len(columns) - 1]], schema=columns)
        before += chunk.num_rows


def _rows(table: str, columns: pa.Schema, chunks: Iterable[pa.RecordBatch], before: int) -> Iterator[pa.RecordBatch]:
    """Return the rows of persons in a table, one a row, each with the number of its person."""
    for chunk in chunks:
        lists = chunk.column(table)
        sizes = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
        numbers = np.repeat(np.arange(before + 1, before + chunk.num_rows + 1), sizes)
        yield pa.record_batch([pa.array(numbers), *lists.flatten().flatten()], schema=columns)
        before += chunk.num_rows
