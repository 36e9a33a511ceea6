"""Reading tables: the records of a file or frame as numbers, of which only the numbers are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.reading import Reading
from lightning_dpgen.data.tables.arrays import Misfit, plain
from lightning_dpgen.data.tables.column import Modelled, shortened
from lightning_dpgen.data.tables.open_columns import KEYS
from lightning_dpgen.data.tables.schema import BadValue, TableSchema, listed
from lightning_dpgen.data.tables.sources import TableSource, table_source
from lightning_dpgen.sampling.errors import BadRecords


def read_table(
    source: str | Path | pd.DataFrame | pa.Table | pa.RecordBatch,
    schema: TableSchema,
    *,
    outside: str = "refuse",
    person: str | None = None,
) -> Reading:
    """The records of a table, as its schema encodes them, a block at a time.

    Args:
        source: the path of a ``.csv``, ``.tsv`` or ``.data`` file, each also with ``.gz``, or of a ``.parquet`` file; a
            DataFrame; a table or record batch of Arrow. Columns may be in any order, and be of any type that can be
            understood as the schema's. Those of type drop or fake may be missing.
        schema: the public description, each of its columns decided.
        outside: ``refuse``, or ``clamp`` values that the schema does not allow into it, which is counted.
        person: the column that says whose a record is; it need not be in the schema.

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
    reader = table_source(source, schema)
    title = str(source) if isinstance(source, str | Path) else "the table"
    _check_columns(reader, schema, person, title)
    modelled = [column.name for column in schema.modelled]
    wanted = modelled + ([person] if person is not None and person not in modelled else [])
    counted: Counter[str] = Counter()
    # The form of no records at all, too.
    nothing = pa.record_batch([pa.nulls(0, pa.string())] * len(modelled), names=modelled)
    parts, persons, done = [schema.encode(nothing, outside=outside)], [], 0
    for batch in reader.batches(wanted):
        try:
            parts.append(schema.encode(batch, outside=outside, counted=counted))
            if person is not None:
                persons.append(_persons(batch.column(person), person))
        except BadValue as bad:
            where = "" if bad.row is None else f", {reader.place(done + bad.row)}"
            raise BadRecords(f"{title}{where}: column {shortened(bad.column)}: {bad.problem}") from None
        done += batch.num_rows
    encoded = Encoded.joined(parts if len(parts) < 2 else parts[1:])
    return Reading(encoded, None if person is None else _codes(persons), dict(counted))


def read_open_columns(
    source: str | Path | pd.DataFrame | pa.Table | pa.RecordBatch, schema: TableSchema, *, person: str | None = None
) -> tuple[dict[str, np.ndarray | pa.ChunkedArray], np.ndarray | None]:
    """What is to be looked at privately: `Open.raw` of each open column, and the persons.

    Raises:
        MissingData, BadRecords: as `read_table`.
    """
    reader = table_source(source, schema)
    title = str(source) if isinstance(source, str | Path) else "the table"
    _check_columns(reader, schema, person, title)
    wanted = [column.name for column in schema.open]
    parts, persons, done = {column.name: [] for column in schema.open}, [], 0
    for batch in reader.batches(wanted + ([person] if person is not None and person not in wanted else [])):
        for column in schema.open:
            try:
                parts[column.name].append(column.raw(batch.column(column.name)))
            except Misfit as misfit:
                where = "" if misfit.row is None else f", {reader.place(done + misfit.row)}"
                problem = f"column {shortened(column.name)}: {misfit.problem}; {misfit.advice}"
                raise BadRecords(f"{title}{where}: {problem}") from None
        if person is not None:
            try:
                persons.append(_persons(batch.column(person), person))
            except BadValue as bad:
                raise BadRecords(f"{title}, {reader.place(done + (bad.row or 0))}: {bad.problem}") from None
        done += batch.num_rows
    raw = {
        column.name: pa.chunked_array(parts[column.name], pa.string())
        if column.find == KEYS
        else np.concatenate([np.empty(0), *parts[column.name]])
        for column in schema.open
    }
    return raw, None if person is None else _codes(persons)


def table_bytes(
    frame: pd.DataFrame | pa.Table | pa.RecordBatch, schema: TableSchema, person: str | None = None
) -> Iterator[np.ndarray]:
    """What `read_table` reads of a table in memory, as bytes (n,) a block at a time: for a fingerprint.

    Columns that are not there are left out, so a table that cannot be read has one too.

    Raises:
        BadRecords: if it is no table, or a column holds values of several types.
    """
    reader = table_source(frame.combine_chunks() if isinstance(frame, pa.Table) else frame, schema)
    there = set(reader.columns())
    wanted = [name for name in dict.fromkeys([*(column.name for column in schema.modelled), person]) if name in there]
    for batch in reader.batches(wanted) if wanted else ():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        yield np.frombuffer(sink.getvalue(), np.uint8)


def _check_columns(reader: TableSource, schema: TableSchema, person: str | None, title: str) -> None:
    """That the columns of a table are those of its schema.

    Raises:
        BadRecords: saying which are not.
    """
    found = reader.columns()
    twice = [name for name, count in Counter(found).items() if count > 1]
    if twice:
        raise BadRecords(f"{title}: two columns are named {shortened(twice[0])}: expected each name once; rename one")
    needed = {column.name for column in schema.columns if isinstance(column, Modelled)}
    known = {column.name for column in schema.columns} | {person}
    missing = [column.name for column in schema.columns if column.name in needed and column.name not in found]
    foreign = [name for name in found if name not in known]
    if missing or foreign:
        parts = [f"lacks {listed(missing)}"] * bool(missing) + [f"has {listed(foreign)}, not in the schema"] * bool(foreign)
        single = "; is it another separator than the schema's?" if len(found) == 1 and len(needed) > 1 else ""
        advice = "declare them in the schema, with type: drop those to leave out"
        raise BadRecords(f"{title} {' and '.join(parts)}: expected the same columns; {advice}{single}")
    if person is not None and person not in found:
        raise BadRecords(f"{title} has no column {shortened(person)} (data.person): expected one of {listed(found)}")


def _persons(values: pa.Array, name: str) -> pa.DictionaryArray:
    try:
        values = plain(values)
    except Misfit as misfit:
        raise BadValue(name, misfit.row, f"{misfit.problem}; {misfit.advice}") from None
    absent = pc.is_null(values, nan_is_null=True)
    if pa.types.is_string(values.type):
        absent = pc.or_(absent, pc.equal(values.fill_null(""), ""))
    absent = absent.to_numpy(zero_copy_only=False)
    if absent.any():
        raise BadValue(name, int(absent.argmax()), "a value is missing: expected whose the record is (data.person)")
    return values.dictionary_encode()


def _codes(blocks: list[pa.DictionaryArray]) -> np.ndarray:
    """One number for each person, of blocks that have dictionaries of their own."""
    if not blocks:
        return np.zeros(0, np.int64)
    if len({block.type for block in blocks}) > 1:
        # A frame's column may begin with numbers and go on with text.
        blocks = [block.dictionary_decode().cast(pa.string()).dictionary_encode() for block in blocks]
    joined = pa.chunked_array(blocks).unify_dictionaries()
    return np.concatenate([chunk.indices.to_numpy() for chunk in joined.chunks]).astype(np.int64)
