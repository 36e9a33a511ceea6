"""A table in files as blocks: row groups of Parquet files, and ranges of files of text, each read and encoded by itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from lightning_dpgen.data.files.blocks import RowSource
from lightning_dpgen.data.files.parquet import FileRows
from lightning_dpgen.data.files.text import WHOLE, TextRange
from lightning_dpgen.data.reading import Reading
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.tables.reading import check_rows, read_open_rows, read_parts, with_person
from lightning_dpgen.data.tables.sources import localized, table_files


@dataclass(frozen=True, eq=False)
class TableBlocks:
    """The blocks of a table, by keys that name a file and its row group, or the first line of a range.

    A range of a file of text ends where a record does, by the quotes of its fields, which takes one reading of the file. A
    file is one block where it is small or packed, or where what a row is read as depends on others.

    Args:
        path: a folder as `table_source` reads it, or a file.
        schema: the public description, each of its columns decided.
        outside: ``refuse``, or ``clamp``, as for `read_table`.
        values: whether the records are kept by their values, too.
        person: the column of the owners of records, which every file has; None where no person has several.
        described: the same schema with what is still to be found of it, for `opened`; None where nothing is.
        cuts: the file in which it is kept where files of text are cut, in a private folder; None to keep it in memory.

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
    schema: Schema
    outside: str = "refuse"
    values: bool = False
    person: str | None = None
    described: Schema | None = None
    cuts: Path | None = None

    def __post_init__(self) -> None:
        for file in self._files.values():
            check_rows(file, self.schema, self.person)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process opens the files itself.
        return TableBlocks, (
            self.path, self.schema, self.outside, self.values, self.person, self.described, self.cuts
        )  # fmt: skip

    @property
    def keys(self) -> list[str]:
        """The names of the blocks, in the order of the files.

        Raises:
            OSError: from the disk.
        """
        return list(self._places)

    def identity(self, key: str) -> str:
        """Return a text that changes with the file of a block, and with the way in which it is read."""
        name, place = self._places[key]
        return json.dumps([self._file_identity(name), place])

    def encoded(self, key: str, counted: Counter[str]) -> Iterator[Reading]:
        """Yield the records of a block, some at a time; changes on the way are added to `counted`.

        Raises:
            BadRecords: naming the file and the row group, or the line.
        """
        rows = self._rows(self._files, key)
        how = {"outside": self.outside, "person": self.person, "values": self.values}
        yield from read_parts(localized(rows, self.schema), self.schema, counted=counted, **how)

    def opened(self, key: str, names: Sequence[str]) -> tuple[dict[str, Any], list[pa.Array] | None]:
        """Return the columns of a block that are looked at privately, and its persons; see `read_open_rows`.

        Raises:
            BadRecords: as `encoded`.
            ValueError: where nothing is described as still to be found.
        """
        if self.described is None:
            raise ValueError("described=None: expected the schema with what is to be found, whose columns are looked at")
        rows = self._rows(self._open_files, key)
        return read_open_rows(localized(rows, self.described), self.described, names, person=self.person)

    def _rows(self, files: Mapping[str, FileRows], key: str) -> RowSource:
        name, place = self._places[key]
        return files[name].within(place) if isinstance(place, TextRange) else files[name].group(place)

    def _file(self, name: str) -> Path:
        return Path(self.path) / name if Path(self.path).is_dir() else Path(self.path)

    def _file_identity(self, name: str) -> list[Any]:
        stat = self._file(name).stat()
        # A time of change that no program sets tells of a file whose size and time of writing were put back.
        times = stat.st_mtime_ns, stat.st_ctime_ns
        read = [self.schema.as_json(), self.outside, self.values, self.person]
        read += [] if self.described is None else [self.described.as_json()]
        return [name, stat.st_size, *times, *read]

    @cached_property
    def _files(self) -> dict[str, FileRows]:
        return dict(table_files(self.path, self.schema))

    @cached_property
    def _open_files(self) -> dict[str, FileRows]:
        return dict(table_files(self.path, self.described))

    @cached_property
    def _places(self) -> dict[str, tuple[str, int | TextRange]]:
        """The file of each block, and its row group or range."""
        places: dict[str, tuple[str, int | TextRange]] = {}
        for name, rows in self._files.items():
            if rows.groups is not None:
                places |= {f"{name}, row group {group}": (name, group) for group in range(rows.groups)}
                continue
            for part in self._ranges(name):
                places[name if part == WHOLE else f"{name}, from line {part.line}"] = name, part
        return places

    def _ranges(self, name: str) -> list[TextRange]:
        """Return the ranges of a file of text, as they were kept where it is the same."""
        # It imports torch, which no mistake in a file waits for.
        from lightning_dpgen.passes import checksummed_file

        about = json.dumps(self._file_identity(name))
        content = None if self.cuts is None else checksummed_file.read(self.cuts)
        kept = {} if content is None else json.loads(content)
        if about in kept:
            return [TextRange(*part) for part in kept[about]]
        recorded = [column.name for column in self.schema.recorded]
        ranges = self._files[name].ranges(with_person(recorded, self.person))
        if self.cuts is not None and len(ranges) > 1:
            checksummed_file.write(self.cuts, [json.dumps(kept | {about: ranges}).encode()])
        return ranges
