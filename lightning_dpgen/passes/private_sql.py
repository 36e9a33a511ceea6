"""DuckDB for tables that are larger than memory: what does not fit is written to a folder that its owner alone may read."""

from __future__ import annotations

import errno
import functools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lightning_dpgen.common.folders import make_private

if TYPE_CHECKING:
    import duckdb

MEMORY = "512MiB"


@contextmanager
def open_private_sql(spill: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database in memory, which is gone at the end, with all that it has written.

    It reads and writes no other file, loads no extension, and has one thread, so that results have one order. Its memory is
    limited to `MEMORY`.

    Args:
        spill: a path in a private folder, at which a folder is made for what does not fit into memory. One that a killed
            process has left there is removed.

    Raises:
        OSError: if the disk is full, one row does not fit into memory, or the folder cannot be made or removed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, open_private_sql(Path(folder) / "spill") as sql:
        ...     sql.sql("SELECT sum(range) FROM range(4)").fetchall()
        [(6,)]
    """
    import duckdb

    if os.path.lexists(spill):
        shutil.rmtree(spill)
    make_private(spill)
    settings = {
        "threads": "1",
        "memory_limit": MEMORY,
        "temp_directory": str(spill.absolute()),
        "autoload_known_extensions": "false",
        "autoinstall_known_extensions": "false",
        "python_enable_replacements": "false",
    }
    try:
        with duckdb.connect(":memory:", config=settings) as sql:
            sql.execute("SET enable_external_access = false; SET lock_configuration = true")
            yield sql
    except RuntimeError as error:
        if str(error) == "Query interrupted":
            raise KeyboardInterrupt from None
        raise
    except duckdb.Error as error:
        # The error of a function of Python, and of a signal within it, arrives as text.
        if "KeyboardInterrupt" in str(error):
            raise KeyboardInterrupt from None
        if isinstance(error, duckdb.IOException | duckdb.OutOfMemoryException):
            raise OSError(
                errno.ENOSPC, "the disk is full, or too little memory is free to sort its rows", str(spill)
            ) from None
        # Its text may quote a value.
        raise RuntimeError(f"a query over the records has failed ({type(error).__name__})") from None
    finally:
        shutil.rmtree(spill)


def insert(sql: duckdb.DuckDBPyConnection, table: str, rows: pa.Table) -> None:
    """Add rows to a table, which is created with the first ones."""
    sql.register("more", rows)
    sql.execute(f"CREATE TABLE IF NOT EXISTS {table} AS FROM more LIMIT 0; INSERT INTO {table} FROM more")
    sql.unregister("more")


def add_function(
    sql: duckdb.DuckDBPyConnection, name: str, function: Callable[..., np.ndarray], kinds: Sequence[str]
) -> None:
    """Let queries call a function of arrays (n,) that returns uint64 (n,).

    Args:
        kinds: the types of its arguments.
    """

    @functools.wraps(function)
    def call(*columns: pa.ChunkedArray) -> pa.Array:
        return pa.array(function(*(column.to_numpy(zero_copy_only=False) for column in columns)), pa.uint64())

    sql.create_function(name, call, list(kinds), "UBIGINT", type="arrow")  # type: ignore[arg-type]
