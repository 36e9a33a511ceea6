"""Tables in a file of SQLite or DuckDB; nothing is written, beside the file neither."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from lightning_dpgen.data.files.blocks import RowSource
from lightning_dpgen.data.files.kinds import quoted, the_table
from lightning_dpgen.data.files.text import UNREADABLE, damaged
from lightning_dpgen.data.files.values import ROWS_AT_ONCE, ValueRows
from lightning_dpgen.sampling.errors import BadRecords

MAGIC = b"SQLite format 3\0"


class SqliteRows(ValueRows):
    """A table in a file of SQLite.

    Args:
        path: the file.
        table: its name; None for the only one.

    Raises:
        BadRecords: if there is no such table, it is a view, or the file cannot be read.
    """

    def __init__(self, path: Path, table: str | None = None) -> None:
        self._path = path
        kinds = dict(self._select("SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')"))
        tables = [name for name, kind in kinds.items() if kind == "table" and not name.startswith("sqlite_")]
        self._table = the_table(path, table, tables, [name for name, kind in kinds.items() if kind == "view"])
        columns = [row[1] for row in self._select(f"PRAGMA table_xinfo({quoted(self._table)})")]
        super().__init__(f"{path}, table {self._table}", columns)

    def value_blocks(self, columns: list[str]) -> Generator[list[tuple]]:
        rows = self._select(f"SELECT {', '.join(map(quoted, columns))} FROM {quoted(self._table)}")
        block = []
        for row in rows:
            block.append(row)
            if len(block) == ROWS_AT_ONCE:
                yield block
                block = []
        yield block

    def _select(self, query: str) -> Iterator[Any]:
        # A file that no program is writing is read as it stands, which leaves no trace beside it.
        beside = [self._path.with_name(self._path.name + end) for end in ("-wal", "-journal")]
        written = any(path.is_file() and path.stat().st_size for path in beside)
        place = f"file:{quote(str(self._path.absolute()))}?mode=ro{'' if written else '&immutable=1'}"
        try:
            with closing(sqlite3.connect(place, uri=True)) as connection:
                yield from connection.execute(query)
        except (sqlite3.Error, OverflowError) as error:
            raise damaged(self._path, error, " as SQLite") from None
        except UnicodeDecodeError:
            raise BadRecords(f"{self._path} holds text that is not UTF-8: correct it") from None


_ROWS_AT_ONCE = 1 << 16
_TABLES = "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = 'main' ORDER BY table_name"


class DuckdbRows(RowSource):
    """A table in a file of DuckDB.

    Args:
        path: the file.
        table: its name; None for the only one.

    Raises:
        BadRecords: if there is no such table, it is a view, or the file cannot be read.
    """

    def __init__(self, path: Path, table: str | None = None) -> None:
        self._path = path
        with self._opened() as connection:
            kinds = connection.execute(_TABLES).fetchall()
            tables = [name for name, kind in kinds if kind != "VIEW"]
            self._table = the_table(path, table, tables, [name for name, kind in kinds if kind == "VIEW"])
            found = connection.execute(f"SELECT * FROM {quoted(self._table)} LIMIT 0").description
        super().__init__(f"{path}, table {self._table}", [column[0] for column in found])

    def batches(self, columns: list[str]) -> Generator[pa.RecordBatch]:
        with self._opened() as connection:
            asked = connection.sql(f"SELECT {', '.join(map(quoted, columns))} FROM {quoted(self._table)}")
            for batch in asked.to_arrow_reader(_ROWS_AT_ONCE):
                yield batch.rename_columns(columns)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        import duckdb

        try:
            # The file may be another's: it reads no other file, and loads no code.
            settings = {"enable_external_access": "false", "autoload_known_extensions": "false", "threads": "1"}
            with duckdb.connect(str(self._path.absolute()), read_only=True, config=settings) as connection:
                yield connection
        except BadRecords:
            raise
        except (duckdb.Error, *UNREADABLE) as error:
            raise damaged(self._path, error, " as DuckDB") from None
