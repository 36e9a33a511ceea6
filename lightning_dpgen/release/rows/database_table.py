"""Synthetic records as new tables of a database: complete, or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from lightning_dpgen.common.passwords import without_passwords
from lightning_dpgen.data.files.database import described_error, engine_of
from lightning_dpgen.data.files.kinds import quoted
from lightning_dpgen.data.tables.written_form import with_offset
from lightning_dpgen.release.rows.output_format import WrittenRecords
from lightning_dpgen.sampling.errors import BadRecords

# The types of columns of SQLite; of others TEXT.
_SQLITE_TYPES = {"int64": "INTEGER", "bool": "BOOLEAN", "double": "DOUBLE", "date32[day]": "DATE"}
# Databases that keep the zone of a moment, or what it is in another; in all others it is text with its offset.
_WITH_ZONES = ("postgresql", "oracle", "snowflake", "duckdb")


class TableExists(BadRecords):
    """A table of the name is there already."""


def check_new_table(url: str, table: str) -> None:
    """Refuse the name of a table that is there already, and a database that does not answer.

    Raises:
        TableExists, BadRecords: in one line each.
        ValueError: for a URL with a password, or what is no URL.
    """
    import sqlalchemy
    from sqlalchemy.exc import SQLAlchemyError

    engine = engine_of(url)
    if engine.dialect.name == "sqlite" and not Path(engine.url.database or "").exists():
        folder = Path(engine.url.database or ".").absolute().parent
        if not engine.url.database or not folder.is_dir():
            raise BadRecords(f"{url}: there is no folder {folder}: expected sqlite:///FILE")
        return
    try:
        there = sqlalchemy.inspect(engine).has_table(table)
    except SQLAlchemyError as error:
        raise described_error(url, error) from None
    if there:
        raise TableExists(f"{without_passwords(url)} has a table {table!r} already: choose another name")


def write_to_database(url: str, table: str, chunks: Iterable[pa.RecordBatch], columns: pa.Schema) -> None:
    """Write records as a new table, a chunk at a time, in one transaction.

    A database that commits a new table by itself, as MySQL does, is told to drop it after an error.

    Raises:
        TableExists, BadRecords: as `check_new_table`, or if the database refuses the records.
    """
    import sqlalchemy
    from sqlalchemy.exc import SQLAlchemyError

    engine = engine_of(url)
    file = Path(engine.url.database) if engine.dialect.name == "sqlite" and engine.url.database else None
    is_new = file is not None and not file.exists()
    if engine.dialect.name == "sqlite":
        _begin_by_hand(engine)
    if engine.dialect.name not in _WITH_ZONES:
        nothing = pa.record_batch([pa.array([], kind) for kind in columns.types], names=columns.names)
        chunks, columns = map(_without_zones, chunks), _without_zones(nothing).schema
    new_table = sqlalchemy.Table(table, sqlalchemy.MetaData(), *(_column(field) for field in columns))
    done = created = False
    try:
        with engine.begin() as connection:
            if sqlalchemy.inspect(connection).has_table(table):
                raise TableExists(f"{without_passwords(url)} has a table {table!r} already: choose another name")
            new_table.create(connection)
            created = True
            for chunk in chunks:
                if rows := chunk.to_pylist():
                    connection.execute(new_table.insert(), rows)
        done = True
    except SQLAlchemyError as error:
        raise described_error(url, error) from None
    finally:
        if not done:
            with suppress(SQLAlchemyError):
                if created:
                    new_table.drop(engine, checkfirst=True)
            if is_new:
                file.unlink(missing_ok=True)
        engine.dispose()


def write_to_duckdb(path: Path, table: str, chunks: Iterable[pa.RecordBatch], columns: pa.Schema) -> None:
    """Write records as the table of a new file of DuckDB, a chunk at a time.

    Raises:
        BadRecords: if its library is missing.
    """
    import duckdb

    with duckdb.connect(str(path.absolute())) as connection:
        connection.register("records", pa.RecordBatchReader.from_batches(columns, chunks))
        connection.execute(f"CREATE TABLE {quoted(table)} AS SELECT * FROM records")


def write_tables_to_duckdb(path: Path, chunks: Iterable[pa.RecordBatch], tables: Mapping[str, WrittenRecords]) -> None:
    """Write records as several tables of a new file of DuckDB; arguments are those of `write_to_sqlite`.

    Raises:
        BadRecords: if its library is missing.
    """
    import duckdb

    with duckdb.connect(str(path.absolute())) as connection:
        for name, table in tables.items():
            connection.register("records", table.form.schema(table.columns).empty_table())
            connection.execute(f"CREATE TABLE {quoted(name)} AS SELECT * FROM records")
        before = 0
        for chunk in chunks:
            for name, table in tables.items():
                for rows in map(table.form.values, table.rows([chunk], before)):
                    connection.register("records", pa.Table.from_batches([rows]))
                    connection.execute(f"INSERT INTO {quoted(name)} SELECT * FROM records")
            before += chunk.num_rows


def write_to_sqlite(path: Path, chunks: Iterable[pa.RecordBatch], tables: Mapping[str, WrittenRecords]) -> None:
    """Write records as several tables of a new file of SQLite, a chunk of records at a time.

    Args:
        chunks: the records, one a row.
        tables: the form of each table, whose first column is the key of a record: the first table has one row for each.
    """
    with closing(sqlite3.connect(path)) as connection, connection:
        for number, (name, table) in enumerate(tables.items()):
            columns = [f"{quoted(field.name)} {_SQLITE_TYPES.get(str(field.type), 'TEXT')}"
                       for field in table.form.schema(table.columns)]  # fmt: skip
            columns[0] += "" if number else " PRIMARY KEY"
            connection.execute(f"CREATE TABLE {quoted(name)} ({', '.join(columns)})")
        before = 0
        for chunk in chunks:
            for name, table in tables.items():
                for rows in map(table.form.values, table.rows([chunk], before)):
                    columns = [_of_sqlite(column).to_pylist() for column in rows.columns]
                    places = ", ".join("?" * len(columns))
                    connection.executemany(f"INSERT INTO {quoted(name)} VALUES ({places})", zip(*columns, strict=True))
            before += chunk.num_rows
        for name, table in list(tables.items())[1:]:
            key = table.columns.names[0]
            connection.execute(f"CREATE INDEX {quoted(f'{key} of {name}')} ON {quoted(name)} ({quoted(key)})")


def _of_sqlite(column: pa.Array) -> pa.Array:
    """Return values that SQLite has: dates and times are text there, as SQLAlchemy writes them."""
    if getattr(column.type, "tz", None):
        column = with_offset(column)
    return column.cast(pa.string()) if pa.types.is_temporal(column.type) else column


def _without_zones(chunk: pa.RecordBatch) -> pa.RecordBatch:
    columns = [with_offset(column) if getattr(column.type, "tz", None) else column for column in chunk.columns]
    return pa.record_batch(columns, names=chunk.schema.names)


def _begin_by_hand(engine: Any) -> None:
    """Begin transactions before a table is made: Python's SQLite would commit that by itself."""
    from sqlalchemy import event

    @event.listens_for(engine, "connect")
    def leave_to_us(connection: Any, _: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")


def _column(field: pa.Field) -> Any:
    import sqlalchemy

    kind, types = field.type, pa.types
    if types.is_timestamp(kind):
        sql_type = sqlalchemy.DateTime(timezone=kind.tz is not None)
    elif types.is_list(kind):
        sql_type = sqlalchemy.JSON()
    else:
        known = {
            sqlalchemy.Boolean: types.is_boolean, sqlalchemy.BigInteger: types.is_integer,
            sqlalchemy.Double: types.is_floating, sqlalchemy.Date: types.is_date, sqlalchemy.Time: types.is_time,
        }  # fmt: skip
        sql_type = next((made for made, test in known.items() if test(kind)), sqlalchemy.Text)()
    return sqlalchemy.Column(field.name, sql_type)
