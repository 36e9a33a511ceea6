"""Histories from tables of persons and of their rows, or from one table in which attributes stand in each row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.files.blocks import RowSource
from lightning_dpgen.data.histories.read_rows import ReadRows, hold_to_rules
from lightning_dpgen.data.histories.row_table import PersonRows, RowTable
from lightning_dpgen.data.histories.rules import HistoryRules
from lightning_dpgen.data.histories.schema import PERSONS, HistorySchema
from lightning_dpgen.data.histories.values import HistoryValues, RowValues
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.persons import priorities, row_hashes
from lightning_dpgen.data.reading import CLAMP, Numbering, Reading
from lightning_dpgen.data.tables.arrays import Misfit
from lightning_dpgen.data.tables.column import Modelled, shortened
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.reading import Table, check_rows, no_records, read_parts
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


def read_histories(tables: HistoryTables, schema: HistorySchema, *, outside: str = "refuse") -> Reading:
    """Read the histories of persons.

    A history follows from the person's own rows alone: in each table they stand in the order of time, those of one time in
    the order of their columns, and of more than ``max_rows`` the first or the last count (of rows without an order some, by
    a hash). Without a table of persons, persons are those of all tables of rows together.

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
    if set(tables.rows) != {table.name for table in schema.tables}:
        raise ValueError(f"tables.rows={list(tables.rows)}: expected {[table.name for table in schema.tables]}")
    counted, numbers, attributes, by_values = Counter[str](), Numbering(), None, None
    if tables.persons is not None:
        attributes, by_values = _read_persons(tables.persons, schema, numbers, outside, counted)
    elif schema.persons is not None and len(schema.tables) > 1:
        raise ValueError("tables.persons=None: expected the table of persons, whose attributes stand in no table of rows")
    known, read = len(numbers.known), []
    for table, rules in zip(schema.tables, schema.rules, strict=True):
        fixed = schema.persons.columns if schema.persons is not None and attributes is None else ()
        with _named(table.name):
            read.append(_read_rows(tables.rows[table.name], table, fixed, numbers, outside, counted, rules))
        if attributes is not None and len(numbers.known) > known:
            unknown = list(numbers.known)[known]
            raise BadRecords(
                f"{table.name} has a {shortened(table.person)}, {shortened(unknown)} ({type(unknown).__name__}), that the "
                "table of persons lacks: expected a row for each person there, and keys of one type in both"
            )
    n, parts, values, keys = len(numbers.known), [], [], list(numbers.known)
    for table, rules, rows in zip(schema.tables, schema.rules, read, strict=True):
        told = Counter[str]()
        with _named(table.name):
            if attributes is None:
                attributes, by_values = _fixed(rows, n, schema, outside, told)
            rows = hold_to_rules(rows, rules, table, attributes, by_values, keys, outside, told)
            part, by_rows = _histories_of(table, rows, n, outside, told)
        parts.append(part)
        values.append(by_rows)
        counted.update({f"{schema.prefix(table)}{what}": count for what, count in told.items()})
    return Reading(schema.joined(attributes, parts), None, dict(counted), HistoryValues(schema, by_values, tuple(values)))


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
    starts = np.zeros(n, np.int64)
    first = f"the first time that counts of a person (start, keep={table.keep})"
    starts[there] = _coded(table.order.start, first, times[begins[there]], outside, counted)
    gaps = _coded(table.order.gap, "the distance from a row to the next one (gap)", distance, outside, counted)
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


def _coded(column: Numeric, words: str, ticks: np.ndarray, outside: str, counted: Counter[str]) -> np.ndarray:
    """Return the choices of times or distances, given as ticks."""
    values = column.restored(ticks, np.zeros(len(ticks), bool))
    try:
        return column.encode(values, column.clamps(outside), counted)[0]
    except Misfit as misfit:
        raise BadRecords(f"column {shortened(column.name)}, {words}: {misfit}; {misfit.advice}") from None


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
            raise BadRecords(
                f"{shortened(_changed(rows.fixed, first[rows.person], schema))} changes from row to row of a person: "
                "expected the same in all rows of a person; make it a column of rows, or take that of the first row with "
                "outside=clamp"
            )
        counted[CHANGED] = len(np.unique(rows.person[changes]))
    return first, rows.values[firsts].of_columns(schema.persons)


def _changed(fixed: np.ndarray, first: np.ndarray, schema: HistorySchema) -> str:
    assert schema.persons is not None
    return list(schema.persons.choices)[int((fixed != first).any(axis=0).argmax())]


def _read_persons(
    source: Table, schema: HistorySchema, numbers: Numbering, outside: str, counted: Counter[str]
) -> tuple[np.ndarray, TableValues]:
    """Read the table of persons: their attributes (N, attributes), in the order of their numbers; and their values."""
    key = schema.key
    if schema.persons is None:
        raise ValueError("persons: a table of persons whose attributes are not declared: leave it out")
    with _named(PERSONS):
        _, read = _read(source, schema.persons, key, outside, counted, "key")
    if len(numbers.of(read.owners)) > len(numbers.known):
        counts = read.owners.value_counts()
        (twice, *_) = [one["values"].as_py() for one in counts if one["counts"].as_py() > 1]
        raise BadRecords(
            f"the table of persons has a {shortened(key)} twice, {shortened(twice)}: expected one row for each person; "
            "where attributes stand in each row of the other table, declare them as fixed there"
        )
    return read.encoded.codes.astype(np.int64), read.values


def _read_rows(
    source: Table,
    table: RowTable,
    fixed: Sequence[Modelled],
    numbers: Numbering,
    outside: str,
    counted: Counter[str],
    rules: HistoryRules,
) -> ReadRows:
    """Read a table of rows, and attributes where they stand in each row."""
    columns = [*table.rows.columns, *fixed]
    if table.order is not None:
        columns.append(table.order.time)
    rows, read = _read(source, table.rows.with_values(columns), table.person, outside, counted)
    person, codes, times = (
        numbers.of(read.owners),
        read.encoded.codes.astype(np.int64),
        np.zeros(len(read.encoded), np.int64),
    )
    if table.order is not None:
        times = read.values.column(table.order.name).astype(np.int64)
    own, fixed_codes = codes[:, : table.per_row], codes[:, table.per_row :]
    return ReadRows(rows, read.places, person, times, own, fixed_codes, read.values).in_order(rules, table)


def _read(
    source: Table, schema: TableSchema, person: str, outside: str, counted: Counter[str], key: str = "person"
) -> tuple[RowSource, Reading]:
    """Read a table with the person of each row, as its source names them, exact values, and places in the source.

    Args:
        key: of the description that names the column of persons, for messages.
    """
    rows = table_source(source, schema)
    if person not in rows.columns:
        near = suggest(person, rows.columns)
        raise BadRecords(f"{rows.where} has no column {key}={shortened(person)}: it has {listed(rows.columns)}{near}")
    check_rows(rows, schema, person)
    parts = [*read_parts(rows, schema, outside=outside, person=person, values=True, counted=counted)]
    parts = parts or [no_records(schema, person=person, values=True)]
    values = TableValues.joined([part.values for part in parts])
    owners = pa.chunked_array([part.owners for part in parts]).combine_chunks()
    places = np.concatenate([part.places for part in parts])
    return rows, Reading(Encoded.joined([part.encoded for part in parts]), None, {}, values, owners, places)
