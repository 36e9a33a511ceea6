"""Histories from tables of persons and of their rows, or from one table in which attributes stand in each row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.files.blocks import RowSource
from lightning_dpgen.data.files.database import DatabaseQuery
from lightning_dpgen.data.histories.read_rows import ReadRows, hold_to_rules
from lightning_dpgen.data.histories.row_table import PersonRows, RowTable
from lightning_dpgen.data.histories.rules import HistoryRules
from lightning_dpgen.data.histories.schema import PERSONS, HistorySchema
from lightning_dpgen.data.histories.values import HistoryValues, RowValues
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.persons import priorities, row_hashes
from lightning_dpgen.data.reading import CLAMP, Numbering, Reading
from lightning_dpgen.data.tables.arrays import Misfit
from lightning_dpgen.data.tables.column import shortened
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.reading import Table, check_rows, no_records, read_parts, row_digests
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.sources import table_source
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.sampling.errors import BadRecords

# The counts that a reading tells, privately.
MORE_ROWS = "persons: more than max_rows rows, of which the others are left out"
TWICE = "rows: of a time that the person has already"
EMPTY = "tables of rows: empty, so that no history is learned"
CHANGED = "persons: an attribute that changes from row to row, taken from the first row"


@dataclass(frozen=True)
class HistoryTables:
    """Where histories are: tables as `read_table` takes them.

    Args:
        rows: the tables of rows, by their names.
        persons: the table of persons; None where their attributes, if there are any, stand in each row.
    """

    rows: Mapping[str, Table]
    persons: Table | None = None

    @property
    def all(self) -> list[Table]:
        """The tables, that of persons first."""
        return [*([] if self.persons is None else [self.persons]), *self.rows.values()]

    @property
    def queries(self) -> list[DatabaseQuery]:
        """Those that are queries of a database."""
        return [source for source in self.all if isinstance(source, DatabaseQuery)]


def read_histories(tables: HistoryTables, schema: HistorySchema, *, outside: str = "refuse") -> Reading:
    """Read the histories of persons.

    A history follows from the person's own rows alone: in each table they stand in the order of time, those of one time in
    the order of their columns, and of more than ``max_rows`` the first or the last count (of rows without an order some, by
    a hash). Without a table of persons, persons are those of all tables of rows together. Persons stand in the order of
    their keys, so the order of a file, or of what a database returns, moves nothing.

    Args:
        outside: ``refuse``, or ``clamp`` values that the schema does not allow into it, which is counted.

    Raises:
        MissingData: if a file is not there.
        BadRecords: for what the schema does not declare, a person twice, a row of no person, or an attribute that changes.

    Example:
        >>> import pandas as pd
        >>> from lightning_dpgen.data.histories.row_table import RowOrder
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> rows = parse_schema("columns: {ward: {type: category, values: [a, b]}}")
        >>> order = RowOrder.of("day", {"type": "integer", "low": 0, "high": 9, "bins": 5}, {"high": 9, "bins": 5})
        >>> schema = HistorySchema(None, (RowTable("visits", rows, max_rows=2, order=order),))
        >>> visits = pd.DataFrame({"person": ["x", "y", "x"], "day": [6, 3, 1], "ward": ["a", "b", "b"]})
        >>> read_histories(HistoryTables({"visits": visits}), schema).encoded.codes.tolist()
        [[2, 0, 1, 2, 0], [1, 1, 1, 5, 2]]
    """
    of_persons, of_rows = _parts_of(tables, schema)
    counted, numbers, attributes, by_values = Counter[str](), Numbering(), None, None
    if of_persons is not None:
        attributes, by_values = _read_persons(of_persons, numbers, outside, counted)
    known, read = len(numbers.known), []
    for table, part, rules in zip(schema.tables, of_rows, schema.rules, strict=True):
        with _named(table.name):
            read.append(rows := _read_rows(part, table, numbers, outside, counted, rules))
            if attributes is not None and len(numbers.known) > known:
                unknown = list(numbers.known)[known]
                raise BadRecords(
                    f"{rows.place(int((rows.person == known).argmax()))} has a {shortened(table.person)}, "
                    f"{shortened(unknown)} ({type(unknown).__name__}), that the table of persons lacks: expected a row for "
                    "each person there, and keys of one type in both"
                )
    n, parts, values, keys = len(numbers.known), [], [], list(numbers.known)
    for table, rules, rows in zip(schema.tables, schema.rules, read, strict=True):
        told = Counter[str]()
        with _named(table.name):
            if attributes is None:
                attributes, by_values = _fixed(rows, n, schema, outside, told)
            rows = hold_to_rules(rows, rules, table, attributes, by_values, keys, outside, told)
            counting, by_rows = _histories_of(table, rows, n, outside, told)
        parts.append(counting)
        values.append(by_rows)
        counted.update({f"{schema.prefix(table)}{what}": count for what, count in told.items()})
    by_key = np.array(sorted(range(n), key=lambda number: (type(keys[number]).__name__, keys[number])), np.int64)
    encoded, found = schema.joined(attributes, parts), HistoryValues(schema, by_values, tuple(values))
    if (by_key != np.arange(n)).any():
        encoded, found = encoded[by_key], found[by_key]
    return Reading(encoded, None, dict(counted), found)


def check_tables(tables: HistoryTables, schema: HistorySchema) -> None:
    """Check that tables have the columns that are declared, and those of persons; no record is read.

    Raises:
        MissingData, BadRecords: as `read_histories`.
    """
    persons, rows = _parts_of(tables, schema)
    for part in [*([] if persons is None else [persons]), *rows]:
        with _named(part.name):
            part.opened()


def history_digests(tables: HistoryTables, schema: HistorySchema) -> Iterator[np.ndarray]:
    """Yield digests of each table, as `row_digests`, which no order of rows changes.

    Raises:
        MissingData, BadRecords: as `read_histories`.
    """
    persons, rows = _parts_of(tables, schema)
    for part in [*([] if persons is None else [persons]), *rows]:
        with _named(part.name):
            part.opened()
            yield row_digests(part.source, part.columns, part.person)


@dataclass(frozen=True)
class _Part:
    """A table with its columns as they are read.

    Args:
        person: the column of persons.
        key: of the description that names this column, for messages.
    """

    name: str
    source: Table
    columns: TableSchema
    person: str
    key: str = "person"

    def opened(self) -> RowSource:
        """Return what reads the table, whose columns are checked."""
        rows = table_source(self.source, self.columns)
        if self.person not in rows.columns:
            near = suggest(self.person, rows.columns)
            raise BadRecords(
                f"{rows.where} has no column {self.key}={shortened(self.person)}: it has {listed(rows.columns)}{near}"
            )
        check_rows(rows, self.columns, self.person)
        return rows


def _parts_of(tables: HistoryTables, schema: HistorySchema) -> tuple[_Part | None, list[_Part]]:
    """Return the table of persons, where there is one, and the tables of rows, in the order of the schema."""
    if set(tables.rows) != {table.name for table in schema.tables}:
        expected = listed([table.name for table in schema.tables])
        raise ValueError(
            f"tables of rows: {listed(list(tables.rows)) or 'none'}: expected {expected}, as they are described"
        )
    persons, parts = None, []
    if tables.persons is not None:
        if schema.persons is None:
            raise ValueError("persons: a table of persons whose attributes are not declared: leave it out")
        persons = _Part(PERSONS, tables.persons, schema.persons, schema.key, "key")
    elif schema.persons is not None and len(schema.tables) > 1:
        raise ValueError("tables.persons=None: expected the table of persons, whose attributes stand in no table of rows")
    fixed = schema.persons.columns if schema.persons is not None and persons is None else ()
    for table in schema.tables:
        time = () if table.order is None else (table.order.read_time(table.keep),)
        columns = table.rows.with_values([*table.rows.columns, *fixed, *time])
        parts.append(_Part(table.name, tables.rows[table.name], columns, table.person))
    return persons, parts


@contextmanager
def _named(table: str) -> Iterator[None]:
    """Name the table of rows in what is told of its records."""
    try:
        yield
    except BadRecords as error:
        raise BadRecords(f"{table}: {error}") from None


def _histories_of(
    table: RowTable, rows: ReadRows, n: int, outside: str, counted: Counter[str]
) -> tuple[PersonRows, RowValues]:
    """Return the rows of n persons that count, as codes and by their values."""
    sizes = np.bincount(rows.person, minlength=n)
    if not len(rows.person):
        counted[EMPTY] = 1
    if table.order is not None and (same := int(((np.diff(rows.times) == 0) & (np.diff(rows.person) == 0)).sum())):
        counted[TWICE] = same
    if over := int((sizes > table.max_rows).sum()):
        counted[MORE_ROWS] = over
    kept = _kept(table, rows, sizes)
    times, codes, counts = rows.times[kept], rows.codes[kept], np.minimum(sizes, table.max_rows)
    by_values = rows.values[kept].of_columns(table.rows)
    if table.order is None:
        return PersonRows(counts, None, np.zeros(len(codes), np.int64), codes), RowValues(counts, None, by_values)
    begins, there = np.cumsum(counts) - counts, counts > 0
    distance = np.diff(times, prepend=0)
    distance[begins[there]] = table.order.gap.limits[0]
    starts, at = np.zeros(n, np.int64), np.flatnonzero(kept)
    first = f"the first time that counts of a person (start, keep={table.keep})"
    starts[there] = _coded(rows, at[begins[there]], table.order.start, first, times[begins[there]], outside, counted)
    before = "the distance from the person's row before (gap)"
    gaps = _coded(rows, at, table.order.gap, before, distance, outside, counted)
    return PersonRows(counts, starts, gaps, codes), RowValues(counts, times.astype(np.float64), by_values)


def _kept(table: RowTable, rows: ReadRows, sizes: np.ndarray) -> np.ndarray:
    """Return which rows count (R,), bool, at most `max_rows` of each person."""
    begins = np.repeat(np.cumsum(sizes) - sizes, sizes)
    place = np.arange(len(rows.person)) - begins
    if table.order is None:
        hashes = row_hashes(Encoded(np.zeros((len(rows.codes), 0), np.float32), rows.codes))
        together = np.zeros(len(sizes), np.uint64)
        np.add.at(together, rows.person, hashes)
        # Rows that are alike are told apart by their place, which makes no difference.
        order = np.lexsort((place, priorities(hashes, together[rows.person]), rows.person))
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order)) - begins
        return rank < table.max_rows
    if table.keep == "first":
        return place < table.max_rows
    return place >= sizes[rows.person] - table.max_rows


def _coded(
    rows: ReadRows, at: np.ndarray, column: Numeric, words: str, ticks: np.ndarray, outside: str, counted: Counter[str]
) -> np.ndarray:
    """Return the choices of times or distances of the rows at these places, given as ticks."""
    values = column.restored(ticks, np.zeros(len(ticks), bool))
    try:
        return column.encode(values, column.clamps(outside), counted)[0]
    except Misfit as misfit:
        where = f"{rows.place(int(at[misfit.row]))}: column {shortened(column.name)}, {words}"
        raise BadRecords(f"{where}: {misfit}; {misfit.advice}") from None


def _fixed(
    rows: ReadRows, n: int, schema: HistorySchema, outside: str, counted: Counter[str]
) -> tuple[np.ndarray, TableValues | None]:
    """Return the attributes of persons (n, attributes), which stand in each of their rows; and their values."""
    if schema.persons is None:
        return np.zeros((n, 0), np.int64), None
    firsts = np.flatnonzero(np.diff(rows.person, prepend=-1))
    first = rows.fixed[firsts]
    changes = (rows.fixed != first[rows.person]).any(axis=1)
    if changes.any():
        if outside != CLAMP:
            changed = shortened(_changed(rows.fixed, first[rows.person], schema))
            raise BadRecords(
                f"{rows.place(int(changes.argmax()))}: column {changed} changes from row to row of a person: "
                "expected the same in all rows of a person; make it a column of rows, or take that of the first row with "
                "outside=clamp"
            )
        counted[CHANGED] = len(np.unique(rows.person[changes]))
    return first, rows.values[firsts].of_columns(schema.persons)


def _changed(fixed: np.ndarray, first: np.ndarray, schema: HistorySchema) -> str:
    assert schema.persons is not None
    return list(schema.persons.choices)[int((fixed != first).any(axis=0).argmax())]


def _read_persons(part: _Part, numbers: Numbering, outside: str, counted: Counter[str]) -> tuple[np.ndarray, TableValues]:
    """Read the table of persons: their attributes (N, attributes), in the order of their numbers; and their values."""
    with _named(PERSONS):
        _, read = _read(part, outside, counted)
    if len(numbers.of(read.owners)) > len(numbers.known):
        counts = read.owners.value_counts()
        (twice, *_) = [one["values"].as_py() for one in counts if one["counts"].as_py() > 1]
        raise BadRecords(
            f"the table of persons has a {shortened(part.person)} twice, {shortened(twice)}: expected one row for each "
            "person; where attributes stand in each row of the other table, declare them as fixed there"
        )
    return read.encoded.codes.astype(np.int64), read.values


def _read_rows(
    part: _Part, table: RowTable, numbers: Numbering, outside: str, counted: Counter[str], rules: HistoryRules
) -> ReadRows:
    """Read a table of rows, and attributes where they stand in each row."""
    rows, read = _read(part, outside, counted)
    person, codes = numbers.of(read.owners), read.encoded.codes.astype(np.int64)
    times = np.zeros(len(codes), np.int64)
    if table.order is not None:
        absent, codes = codes[:, -1] > 0, codes[:, :-1]
        if absent.any():
            raise BadRecords(
                f"{rows.where}, {rows.place(int(read.places[absent.argmax()]))}: column {shortened(table.order.name)}: a "
                "time is missing: expected one in each row; fill it in, or leave such rows out"
            )
        times = read.values.column(table.order.name).astype(np.int64)
    own, fixed_codes = codes[:, : table.per_row], codes[:, table.per_row :]
    return ReadRows(rows, read.places, person, times, own, fixed_codes, read.values).in_order(rules, table)


def _read(part: _Part, outside: str, counted: Counter[str]) -> tuple[RowSource, Reading]:
    """Read a table with the person of each row, as its source names them, exact values, and places in the source."""
    rows, schema, person = part.opened(), part.columns, part.person
    parts = [*read_parts(rows, schema, outside=outside, person=person, values=True, counted=counted)]
    parts = parts or [no_records(schema, person=person, values=True)]
    values = TableValues.joined([own.values for own in parts])
    owners = pa.chunked_array([own.owners for own in parts]).combine_chunks()
    places = np.concatenate([own.places for own in parts])
    return rows, Reading(Encoded.joined([own.encoded for own in parts]), None, {}, values, owners, places)
