"""Reading tables: the records of a file or frame as numbers, of which only the numbers are kept."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa

from lightning_dpgen.common.nearest_word import nearest, suggest
from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.files.blocks import Block, RowSource
from lightning_dpgen.data.files.database import DatabaseQuery
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.reading import Numbering, Reading
from lightning_dpgen.data.row_sample import SAMPLED, RowSample, SampledRows
from lightning_dpgen.data.tables.arrays import BadValue, Misfit, is_empty, plain
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import shortened
from lightning_dpgen.data.tables.description import KEYS
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.search import Search
from lightning_dpgen.data.tables.sources import OTHER_SEPARATOR, table_source
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.sampling.errors import BadRecords

# The words for columns that the header gives no name, as the index that pandas writes.
UNNAMED = "columns without a name in the header, left out"
COMMENTED = "lines that begin as a comment of the schema, left out"
# Columns of which a message asks whether they are other ones, and columns that are compared with all others for it.
_MOST_ASKED, _MOST_LOOKED_UP = 2, 20

Table: TypeAlias = str | Path | DatabaseQuery | pd.DataFrame | pa.Table | pa.RecordBatch


def read_table(
    source: Table,
    schema: TableSchema,
    *,
    outside: str = "refuse",
    person: str | None = None,
    values: bool = False,
    sample: RowSample | None = None,
) -> Reading:
    """Read the records of a table a block at a time, as its schema encodes them.

    Args:
        source: the path of a file of a kind of `data.files.kinds`, or of a folder of files of Parquet, or of text alone; a
            `DatabaseQuery`; a DataFrame; a table or record batch of Arrow. Columns may be in any order, and be of any type
            that can be understood as the schema's. Those of type drop or fake may be missing.
        schema: the public description, each of its columns decided.
        outside: ``refuse``, or ``clamp`` values that the schema does not allow into it, which is counted.
        person: the column of the owners of records; it need not be in the schema.
        values: whether the records are kept by their values, too.
        sample: a part of them that is read in their place, which is counted; None for all.

    Raises:
        MissingData: if there is no such file.
        BadRecords: if the table is not what the schema declares, naming column, line and value. Nothing has been spent.
        ValueError: for another `outside`, or a schema with undecided columns.

    Example:
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> schema = parse_schema("columns: {age: {type: integer, low: 0, high: 99, bins: 10}}")
        >>> frame = pd.DataFrame({"age": [7, 142], "who": ["a", "b"]})
        >>> read = read_table(frame, schema, outside="clamp", person="who")
        >>> read.encoded.codes.tolist(), read.persons.tolist(), read.counted
        ([[0], [9]], [0, 1], {'age: above high': 1})
    """
    rows = table_source(source, schema)
    check_rows(rows, schema, person)
    rows = rows if sample is None else SampledRows(rows, sample, person)
    counted, numbers = Counter[str](), Numbering()
    parts = list(read_parts(rows, schema, outside=outside, person=person, values=values, counted=counted))
    if rows.unnamed:
        counted[UNNAMED] = len(rows.unnamed)
    if commented := rows.commented():
        counted[COMMENTED] = commented
    if isinstance(rows, SampledRows) and rows.is_part:
        counted[SAMPLED] = rows.seen
    parts = parts or [no_records(schema, person=person, values=values)]
    encoded = Encoded.joined([part.encoded for part in parts])
    persons_of = None if person is None else np.concatenate([numbers.of(part.owners) for part in parts])
    return Reading(
        encoded, persons_of, dict(counted), TableValues.joined([part.values for part in parts]) if values else None
    )


def read_parts(
    rows: RowSource,
    schema: TableSchema,
    *,
    outside: str = "refuse",
    person: str | None = None,
    values: bool = False,
    counted: Counter[str],
) -> Iterator[Reading]:
    """Yield the records of rows as `read_table` reads them, some at a time; changes on the way are added to `counted`.

    Their persons are `Reading.owners`, without numbers, so that those of several sources can be told apart together.

    Raises:
        BadRecords: as `read_table`.
    """
    recorded, before = [column.name for column in schema.recorded], 0
    # An error below leaves no file or connection open.
    with closing(rows.blocks(with_person(recorded, person))) as blocks:
        for block in blocks:
            with _placed(rows, block):
                conformed, kept = schema.rules.conformed(block.rows, outside=outside, counted=counted)
                encoded = schema.encode(conformed, outside=outside, counted=counted)
                by_values = TableValues.of(conformed, schema) if values else None
                owners = None if person is None else _owners(block.column(person), person).filter(pa.array(kept))
                places = None if person is None else before + np.flatnonzero(kept)
                yield Reading(encoded, None, {}, by_values, owners, places)
            before += block.rows.num_rows


def no_records(schema: TableSchema, *, person: str | None = None, values: bool = False) -> Reading:
    """Return the reading of a table without rows."""
    recorded = [column.name for column in schema.recorded]
    nothing = pa.record_batch([pa.nulls(0, pa.string())] * len(recorded), names=recorded)
    by_values = TableValues.of(nothing, schema) if values else None
    owners, places = (None, None) if person is None else (pa.array([], pa.string()), np.zeros(0, np.int64))
    return Reading(schema.encode(nothing), None, {}, by_values, owners, places)


def check_columns(source: Table, schema: TableSchema, person: str | None = None) -> None:
    """Check that a table has the columns of its schema, and that of persons; no record is read.

    Raises:
        MissingData, BadRecords: as `read_table`.
    """
    check_rows(table_source(source, schema), schema, person)


def read_open_columns(
    source: Table, schema: TableSchema, names: Sequence[str] | None = None, *, person: str | None = None
) -> tuple[dict[str, np.ndarray | pa.ChunkedArray], list[pa.Array] | None]:
    """Read what is to be looked at privately, and the persons; see `read_open_rows`.

    Raises:
        MissingData, BadRecords: as `read_table`.
    """
    rows = table_source(source, schema)
    check_rows(rows, schema, person)
    return read_open_rows(rows, schema, names, person=person)


def read_open_rows(
    rows: RowSource, schema: TableSchema, names: Sequence[str] | None = None, *, person: str | None = None
) -> tuple[dict[str, np.ndarray | pa.ChunkedArray], list[pa.Array] | None]:
    """Read of rows what is to be looked at privately: `Search.raw` of unfinished columns, the `ticks` of others.

    Args:
        names: of the columns; None for the unfinished ones.
        person: the column of the owners of rows, if there is one.

    Returns:
        The columns by name, (N,) each, and the persons of these rows, some at a time.

    Raises:
        BadRecords: as `read_table`.
    """
    counted = [column for column in schema.modelled if isinstance(column, Numeric | Category)] if names else []
    columns = [column for column in (*schema.open, *counted) if names is None or column.name in names]
    parts: dict[str, list] = {column.name: [] for column in columns}
    others = {one.relative_to for name, one in schema.rules.relatives.items() if name in parts}
    persons: list[pa.Array] = []
    with closing(rows.blocks(with_person(sorted({*parts, *others}), person))) as blocks:
        for block in blocks:
            with _placed(rows, block):
                for column in columns:
                    read = column.raw if isinstance(column, Search) else column.ticks
                    try:
                        parts[column.name].append(read(schema.learned(column.name, block.rows, True, Counter())))
                    except Misfit as misfit:
                        raise BadValue.of(column.name, misfit) from None
                if person is not None:
                    persons.append(_owners(block.column(person), person))
    raw = {
        column.name: pa.chunked_array(parts[column.name], pa.string())
        if isinstance(column, Search) and column.find == KEYS
        else np.concatenate([np.empty(0), *parts[column.name]])
        for column in columns
    }
    return raw, None if person is None else persons


def table_bytes(
    frame: pd.DataFrame | pa.Table | pa.RecordBatch, schema: TableSchema, person: str | None = None
) -> Iterator[np.ndarray]:
    """Yield what `read_table` reads of a table in memory as bytes (n,), a block at a time, for a fingerprint.

    Columns that are not there are left out, so a table that cannot be read has one too.

    Raises:
        BadRecords: if it is no table, or a column holds values of several types.
    """
    rows = table_source(frame.combine_chunks() if isinstance(frame, pa.Table) else frame, schema)
    wanted = [name for name in with_person([column.name for column in schema.recorded], person) if name in rows.columns]
    for batch in rows.batches(wanted) if wanted else ():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        yield np.frombuffer(sink.getvalue(), np.uint8)


def row_digests(source: Table, schema: TableSchema, person: str | None = None) -> np.ndarray:
    """Return what `read_table` reads of each row as 16 bytes, sorted, for a fingerprint that no order of rows changes.

    Returns:
        np.ndarray: (n, 16) uint8.

    Raises:
        MissingData, BadRecords: as `read_table`.

    Example:
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> schema = parse_schema("columns: {age: {type: integer, low: 0, high: 99, bins: 10}}")
        >>> one, other = (row_digests(pd.DataFrame({"age": ages}), schema) for ages in ([7, 42], [42, 7]))
        >>> one.shape, (one == other).all()
        ((2, 16), np.True_)
    """
    rows = table_source(source, schema)
    check_rows(rows, schema, person)
    wanted = with_person([column.name for column in schema.recorded], person)
    digests = []
    with closing(rows.batches(wanted)) as batches:
        for batch in batches:
            values = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            digests += [hashlib.blake2b(repr(row).encode(), digest_size=16).digest() for row in values]
    return np.frombuffer(b"".join(sorted(digests)), np.uint8).reshape(-1, 16)


def with_person(columns: list[str], person: str | None) -> list[str]:
    """Return the columns that are read, with that of persons."""
    return columns if person is None or person in columns else [*columns, person]


@contextmanager
def _placed(rows: RowSource, block: Block) -> Iterator[None]:
    """Say where a value stands that does not fit."""
    try:
        yield
    except BadValue as bad:
        where = rows.where if bad.row is None else block.place(bad.row)
        raise BadRecords(f"{where}: column {shortened(bad.column)}: {bad.problem}") from None


def check_rows(rows: RowSource, schema: TableSchema, person: str | None = None) -> None:
    """Raise BadRecords for columns that are not those of the schema, and say which."""
    needed = [column.name for column in schema.recorded]
    known, there = {column.name for column in schema.columns} | {person}, set(rows.columns)
    missing = [name for name in needed if name not in there]
    # The real column of persons would be taken for one that the schema lacks.
    if person is not None and person not in there and not missing:
        near = suggest(person, rows.columns)
        raise BadRecords(
            f"{rows.where} has no column person={shortened(person)}: expected one of {listed(rows.columns)}{near}"
        )
    foreign = [name for name in rows.columns if name not in known]
    if missing or foreign:
        parts = [f"lacks {listed(missing)}"] * bool(missing) + [f"has {listed(foreign)}, not in the schema"] * bool(foreign)
        looked_up = ((name, nearest(name, missing)) for name in foreign[:_MOST_LOOKED_UP])
        pairs = [(name, near) for name, near in looked_up if near][:_MOST_ASKED]
        misspelled = "".join(f"; is {shortened(name)} {shortened(near)}?" for name, near in pairs)
        elsewhere = rows.advice_on(missing) if missing else ""
        if missing and rows.unnamed and not elsewhere:
            elsewhere = f"; column {min(rows.unnamed.values())} has no name in the header"
        single = OTHER_SEPARATOR if len(rows.columns) == 1 and len(needed) > 1 else ""
        advice = "declare them in the schema, with type: drop those to leave out"
        raise BadRecords(
            f"{rows.where} {' and '.join(parts)}: expected the same columns; {advice}{elsewhere or single}{misspelled}"
        )


def _owners(values: pa.Array, name: str) -> pa.Array:
    """Return the person of each row (n,), none of which is missing."""
    try:
        values = plain(values)
    except Misfit as misfit:
        raise BadValue.of(name, misfit) from None
    absent = is_empty(values)
    if absent.any():
        raise BadValue(name, int(absent.argmax()), "a value is missing: expected the person of each record")
    return values
