"""Tables in a file of DuckDB, read by its own library in blocks of Arrow."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from lightning_dpgen.data.files.blocks import RowSource
from lightning_dpgen.data.files.table_choice import quoted, the_table
from lightning_dpgen.data.files.text import UNREADABLE, damaged
from lightning_dpgen.sampling.errors import BadRecords

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
