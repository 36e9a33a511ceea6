"""A table in files as blocks: the row groups of Parquet files, and files of text, each read and encoded by itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lightning_dpgen.data.files.blocks import RowSource
from lightning_dpgen.data.files.folder import FileRows
from lightning_dpgen.data.reading import Reading
from lightning_dpgen.data.tables.reading import check_rows, read_parts
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.sources import localized, table_folder, table_source


@dataclass(frozen=True, eq=False)
class TableBlocks:
    """The blocks of a table, by keys that name a file and its row group.

    Args:
        path: a folder as `table_source` reads it, or a file.
        schema: the public description, each of its columns decided.
        outside: ``refuse``, or ``clamp``, as for `read_table`.
        values: whether the records are kept by their values, too.
        person: the column of the owners of records, which every file has; None where no person has several.

    Raises:
        MissingData: if there is no such file.
        BadRecords: for files of different columns, or of others than the schema's.

    Example:
        >>> import tempfile, pandas as pd
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> schema = parse_schema("columns: {age: {type: integer, low: 0, high: 99, bins: 10}}")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pd.DataFrame({"age": [7, 42, 99]}).to_parquet(f"{folder}/a.parquet", row_group_size=2)
        ...     blocks = TableBlocks(folder, schema)
        ...     blocks.keys, [part.encoded.codes.tolist() for part in blocks.encoded("a.parquet, row group 0", Counter())]
        (['a.parquet, row group 0', 'a.parquet, row group 1'], [[[0], [4]]])
    """

    path: str
    schema: TableSchema
    outside: str = "refuse"
    values: bool = False
    person: str | None = None

    def __post_init__(self) -> None:
        for file in self._files.values():
            check_rows(file, self.schema, self.person)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process opens the files itself.
        return TableBlocks, (self.path, self.schema, self.outside, self.values, self.person)

    @property
    def keys(self) -> list[str]:
        """The names of the blocks, in the order of the files."""
        return list(self._places)

    @property
    def source_bytes(self) -> int:
        """The size of all files."""
        return sum(self._file(name).stat().st_size for name in self._files)

    def identity(self, key: str) -> str:
        """Return a text that changes with the file of a block, and with the way in which it is read."""
        name, group = self._places[key]
        found = self._file(name).stat()
        read = [self.schema.as_json(), self.outside, self.values, self.person]
        return json.dumps([name, group, found.st_size, found.st_mtime_ns, *read])

    def encoded(self, key: str, counted: Counter[str]) -> Iterator[Reading]:
        """Yield the records of a block, some at a time; changes on the way are added to `counted`.

        Raises:
            BadRecords: naming the file and the row group, or the line.
        """
        name, group = self._places[key]
        rows = self._files[name]
        if group is not None:
            rows = localized(rows.group(group), self.schema)
        elif isinstance(rows, FileRows):
            rows = localized(rows, self.schema)
        how = {"outside": self.outside, "person": self.person, "values": self.values}
        yield from read_parts(rows, self.schema, counted=counted, **how)

    def _file(self, name: str) -> Path:
        return Path(self.path) / name if Path(self.path).is_dir() else Path(self.path)

    @cached_property
    def _files(self) -> dict[str, RowSource]:
        path = Path(self.path)
        if path.is_dir():
            return dict(table_folder(path, self.schema).files)
        if path.suffix == ".parquet":
            return {path.name: FileRows(table_source(path, self.schema), {})}
        return {path.name: table_source(path, self.schema)}

    @cached_property
    def _places(self) -> dict[str, tuple[str, int | None]]:
        """The file of each block, and its row group."""
        places: dict[str, tuple[str, int | None]] = {}
        for name, rows in self._files.items():
            groups = rows.groups if isinstance(rows, FileRows) else None
            if groups is None:
                places[name] = name, None
            for group in range(groups or 0):
                places[f"{name}, row group {group}"] = name, group
        return places
