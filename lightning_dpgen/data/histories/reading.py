"""Histories from two tables, of persons and of their rows, or from one table in which attributes stand in each row."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lightning_dpgen.data.histories.schema import HistorySchema
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.persons import priorities, row_hashes
from lightning_dpgen.data.reading import CLAMP, Numbering, Reading
from lightning_dpgen.data.tables.arrays import Misfit
from lightning_dpgen.data.tables.column import shortened
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.reading import Table, check_rows, no_records, read_parts
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.sources import table_source
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.sampling.errors import BadRecords

# The counts that a reading tells, privately.
MORE_ROWS = "persons: more than max_rows rows, of which the others are left out"
TWICE = "rows: of a time that the person has already"
CHANGED = "persons: an attribute that changes from row to row, taken from the first row"


@dataclass(frozen=True)
class HistoryTables:
    """Where histories are: tables as `read_table` takes them.

    Args:
        rows: the table of rows.
        persons: the table of persons; None where their attributes, if there are any, stand in each row.
    """

    rows: Table
    persons: Table | None = None


def read_histories(tables: HistoryTables, schema: HistorySchema, *, outside: str = "refuse") -> Reading:
    """Read the histories of persons.

    A history follows from the person's own rows alone: they stand in the order of time, those of one time in the order of
    their columns, and of more than ``max_rows`` the first or the last count (of rows without an order some, by a hash).

    Args:
        outside: ``refuse``, or ``clamp`` values that the schema does not allow into it, which is counted.

    Raises:
        MissingData: if a file is not there.
        BadRecords: for what the schema does not declare, a person twice, a row of no person, or an attribute that changes.

    Example:
        >>> import pandas as pd
        >>> from lightning_dpgen.data.histories.schema import RowOrder
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> rows = parse_schema("columns: {ward: {type: category, values: [a, b]}}")
        >>> order = RowOrder.of("day", {"type": "integer", "low": 0, "high": 9, "bins": 5}, {"high": 9, "bins": 5})
        >>> schema = HistorySchema(None, rows, max_rows=2, order=order)
        >>> visits = pd.DataFrame({"person": ["x", "y", "x"], "day": [6, 3, 1], "ward": ["a", "b", "b"]})
        >>> read_histories(HistoryTables(visits), schema).encoded.codes.tolist()
        [[2, 0, 1, 2, 0], [1, 1, 1, 5, 2]]
    """
    counted, numbers, attributes = Counter[str](), Numbering(), None
    if tables.persons is not None:
        attributes = _read_persons(tables.persons, schema, numbers, outside, counted)
    known = len(numbers.known)
    person, times, codes, fixed = _read_rows(tables, schema, numbers, outside, counted)
    n = len(numbers.known)
    if tables.persons is not None and n > known:
        unknown = list(numbers.known)[known]
        raise BadRecords(
            f"the table of rows has a {shortened(schema.names.person)}, {shortened(unknown)} ({type(unknown).__name__}), "
            "that the table of persons lacks: expected a row for each person there, and keys of one type in both"
        )
    order = np.lexsort((*fixed.T[::-1], *codes.T[::-1], times, person))
    person, times, codes = person[order], times[order], codes[order]
    sizes = np.bincount(person, minlength=n)
    place = np.arange(len(person)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    if schema.order is not None and (same := int(((np.diff(times) == 0) & (np.diff(person) == 0)).sum())):
        counted[TWICE] = same
    if attributes is None:
        attributes = _fixed(fixed[order], person, place, n, schema, outside, counted)
    kept = _kept(schema, person, place, sizes, codes)
    if over := int((sizes > schema.max_rows).sum()):
        counted[MORE_ROWS] = over
    person, times, codes = person[kept], times[kept], codes[kept]
    return Reading(_joined(schema, attributes, person, times, codes, n, outside, counted), None, dict(counted))


def _kept(schema: HistorySchema, person: np.ndarray, place: np.ndarray, sizes: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return which rows count (R,), bool, at most `max_rows` of each person."""
    if schema.order is None:
        hashes = row_hashes(Encoded(np.zeros((len(codes), 0), np.float32), codes))
        together = np.zeros(len(sizes), np.uint64)
        np.add.at(together, person, hashes)
        # Rows that are alike are told apart by their place, which makes no difference.
        order = np.lexsort((place, priorities(hashes, together[person]), person))
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return rank < schema.max_rows
    if schema.keep == "first":
        return place < schema.max_rows
    return place >= sizes[person] - schema.max_rows


def _joined(
    schema: HistorySchema,
    attributes: np.ndarray,
    person: np.ndarray,
    times: np.ndarray,
    codes: np.ndarray,
    n: int,
    outside: str,
    counted: Counter[str],
) -> Encoded:
    counts = np.bincount(person, minlength=n)
    if schema.order is None:
        return schema.joined(attributes, counts, None, np.zeros(len(person), np.int64), codes)
    begins, there = np.cumsum(counts) - counts, counts > 0
    distance = np.diff(times, prepend=0)
    distance[begins[there]] = schema.order.gap.limits[0]
    starts = np.zeros(n, np.int64)
    first = f"the first time that counts of a person (start, keep={schema.keep})"
    starts[there] = _coded(schema.order.start, first, times[begins[there]], outside, counted)
    gaps = _coded(schema.order.gap, "the distance from a row to the next one (gap)", distance, outside, counted)
    return schema.joined(attributes, counts, starts, gaps, codes)


def _coded(column: Numeric, words: str, ticks: np.ndarray, outside: str, counted: Counter[str]) -> np.ndarray:
    """Return the choices of times or distances, given as ticks."""
    values = column.restored(ticks, np.zeros(len(ticks), bool))
    try:
        return column.encode(values, column.clamps(outside), counted)[0]
    except Misfit as misfit:
        raise BadRecords(f"column {shortened(column.name)}, {words}: {misfit}") from None


def _fixed(
    fixed: np.ndarray, person: np.ndarray, place: np.ndarray, n: int, schema: HistorySchema, outside: str, counted: Counter
) -> np.ndarray:
    """Return the attributes of persons (n, attributes), which stand in each of their rows."""
    first = fixed[place == 0]
    changes = (fixed != first[person]).any(axis=1)
    if changes.any():
        if outside != CLAMP:
            raise BadRecords(
                f"{shortened(_changed(fixed, first[person], schema))} changes from row to row of a person: expected the "
                "same in all rows of a person; make it a column of rows, or take that of the first row with outside=clamp"
            )
        counted[CHANGED] = len(np.unique(person[changes]))
    return first


def _changed(fixed: np.ndarray, first: np.ndarray, schema: HistorySchema) -> str:
    assert schema.persons is not None
    return list(schema.persons.choices)[int((fixed != first).any(axis=0).argmax())]


def _read_persons(
    source: Table, schema: HistorySchema, numbers: Numbering, outside: str, counted: Counter[str]
) -> np.ndarray:
    """Read the table of persons: their attributes (N, attributes), in the order of their numbers."""
    key = schema.names.key
    if schema.persons is None:
        raise ValueError("persons: a table of persons whose attributes are not declared: leave it out")
    read = _read(source, schema.persons, key, outside, counted)
    if len(numbers.of(read.owners)) > len(numbers.known):
        counts = read.owners.value_counts()
        (twice, *_) = [one["values"].as_py() for one in counts if one["counts"].as_py() > 1]
        raise BadRecords(
            f"the table of persons has a {shortened(key)} twice, {shortened(twice)}: expected one row for each person; "
            "where attributes stand in each row of the other table, declare them as fixed there"
        )
    return read.encoded.codes.astype(np.int64)


def _read_rows(
    tables: HistoryTables, schema: HistorySchema, numbers: Numbering, outside: str, counted: Counter[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Read the table of rows.

    Returns:
        Persons (R,), times (R,) as ticks, choices of columns (R, per_row), and of attributes where they stand in each row.
    """
    fixed = schema.persons.columns if schema.persons is not None and tables.persons is None else ()
    columns = [*schema.rows.columns, *fixed]
    if schema.order is not None:
        columns.append(schema.order.time)
    read = _read(tables.rows, schema.rows.with_values(columns), schema.names.person, outside, counted)
    codes, times = read.encoded.codes.astype(np.int64), np.zeros(len(read.encoded), np.int64)
    if schema.order is not None:
        times = read.values.column(schema.order.name).astype(np.int64)
    return numbers.of(read.owners), times, codes[:, : schema.per_row], codes[:, schema.per_row :]


def _read(source: Table, schema: TableSchema, person: str, outside: str, counted: Counter[str]) -> Reading:
    """Read a table with the person of each row, as its source names them, and exact values."""
    rows = table_source(source, schema)
    check_rows(rows, schema, person)
    parts = [*read_parts(rows, schema, outside=outside, person=person, values=True, counted=counted)]
    parts = parts or [no_records(schema, person=person, values=True)]
    values = TableValues.joined([part.values for part in parts])
    owners = pa.chunked_array([part.owners for part in parts]).combine_chunks()
    return Reading(Encoded.joined([part.encoded for part in parts]), None, {}, values, owners)
