"""Parquet files, whose groups of rows can be read each by itself, and folders of files that are one table."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.files.blocks import Block, RowSource, WrappedRows
from lightning_dpgen.data.files.kinds import PARQUET, TEXT
from lightning_dpgen.data.files.text import UNREADABLE, MissingData, TextRange, bare_name, damaged
from lightning_dpgen.data.names import quote
from lightning_dpgen.sampling.errors import BadRecords

_ROWS_AT_ONCE = 1 << 16


class ParquetRows(RowSource):
    """A Parquet file, or one of its row groups.

    Args:
        path: the file.
        group: the number of the row group that is read, from 0; None for all of them.

    Attributes:
        types: those of its columns, which the file declares.
    """

    def __init__(self, path: Path, group: int | None = None) -> None:
        self._path, self._group = path, group
        try:
            # Arrow would read a path in its own way.
            with open(path, "rb") as file:
                schema = pa.parquet.read_schema(file)
            names = schema.names
        # Names may not be UTF-8, too.
        except UNREADABLE as error:
            raise damaged(path, error, " as Parquet") from None
        super().__init__(str(path) if group is None else f"{path}, row group {group}", names)
        self.types = schema.types

    @property
    def groups(self) -> int:
        """The number of row groups of the file."""
        try:
            with open(self._path, "rb") as opened, pa.parquet.ParquetFile(opened) as file:
                return file.num_row_groups
        except UNREADABLE as error:
            raise damaged(self._path, error, " as Parquet") from None

    def batches(self, columns: list[str]) -> Generator[pa.RecordBatch]:
        groups = None if self._group is None else [self._group]
        try:
            with open(self._path, "rb") as opened, pa.parquet.ParquetFile(opened) as file:
                for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=groups, columns=columns, use_threads=False):
                    yield batch.select(columns)
        except UNREADABLE as error:
            which = "" if self._group is None else f" in row group {self._group}"
            raise damaged(self._path, error, f"{which} as Parquet") from None


class FolderRows(RowSource):
    """The files in a folder, in the order of their names, all with the same columns.

    Folders below may be named by the value of a column, as in ``year=2024/sex=F``, which each row of their files then has
    as text. Files whose names begin with a dot or an underscore are none of the table: programs note there what they did.

    Args:
        folder: the place of the files.
        open_text: opens a file of text, where they may be such; None where they are Parquet files alone.

    Attributes:
        types: those of its columns, which Parquet files declare; None of files of text.
        files: the rows of each file, by its name within the folder.

    Raises:
        MissingData: if there is none.
        BadRecords: if one has other columns than the first, or lies where others do not.
    """

    def __init__(self, folder: Path, open_text: Callable[[Path], RowSource] | None = None) -> None:
        paths = _files_of(folder, open_text is not None)
        self.files = {path.relative_to(folder).as_posix(): _opened(path, folder, open_text) for path in paths}
        first, *others = self.files.values()
        for file in others:
            if (file.columns, file.types) != (first.columns, first.types):
                raise BadRecords(f"{file.where} has other columns than {first.where}{_difference(first, file)}")
        super().__init__(str(folder), first.columns)
        self.types, self.unnamed = first.types, first.unnamed

    def batches(self, columns: list[str]) -> Generator[pa.RecordBatch]:
        for file in self.files.values():
            yield from file.batches(columns)

    def commented(self) -> int:
        return sum(file.commented() for file in self.files.values())

    def blocks(self, columns: Sequence[str] | None = None) -> Generator[Block]:
        for file in self.files.values():
            yield from file.blocks(columns)


class FileRows(WrappedRows):
    """A file of a table, and the values that folders name, which all its rows have.

    Args:
        rows: as the file holds them.
        values: by the names of columns; None for a missing one.

    Attributes:
        types: those of its columns, which a Parquet file declares; None of a file of text.
    """

    def __init__(self, rows: RowSource, values: Mapping[str, str | None]) -> None:
        super().__init__(rows, [*rows.columns, *values], ", or the folder that names its value")
        self._values = dict(values)
        types = getattr(rows, "types", None)
        self.types = None if types is None else [*types, *[pa.string()] * len(values)]

    @property
    def groups(self) -> int | None:
        """The number of row groups of a Parquet file; None for a file of text."""
        return getattr(self._rows, "groups", None)

    def ranges(self, columns: Sequence[str]) -> list[TextRange]:
        return self._rows.ranges([name for name in columns if name not in self._values])

    def within(self, part: TextRange) -> FileRows:
        return FileRows(self._rows.within(part), self._values)

    def group(self, number: int) -> FileRows:
        """Return the rows of one row group of a Parquet file."""
        return FileRows(ParquetRows(Path(self._rows.where), number), self._values)

    def batches(self, columns: list[str]) -> Generator[pa.RecordBatch]:
        # A column of the file says how many rows there are.
        in_file = [name for name in columns if name not in self._values] or self._rows.columns[:1]
        for batch in self._rows.batches(in_file):
            if not self._values:
                yield batch
                continue
            there = dict(zip(in_file, batch.columns, strict=True))
            for name, value in self._values.items():
                there[name] = pa.repeat(pa.scalar(value, pa.string()), batch.num_rows)
            yield pa.record_batch([there[name] for name in columns], names=columns)


def _files_of(folder: Path, text: bool) -> list[Path]:
    """Return the files of a table; raise for a folder that holds none, or others beside them."""
    files = sorted(_walk(folder))
    paths = [path for path in files if path.suffix == PARQUET]
    if not paths and text:
        paths = [path for path in files if bare_name(path).endswith(TEXT)]
    if not paths:
        also = f" or of files that end in {', '.join(TEXT)}" if text else ""
        raise MissingData(f"{folder} is a folder without {PARQUET} files: expected a file, or a folder of such files{also}")
    others = sorted(path.name for path in {*files} - {*paths})
    if others:
        kind = PARQUET if paths[0].suffix == PARQUET else "text"
        raise BadRecords(
            f"{folder}: {quote(others[0])} lies beside the {kind} files and would not be read: expected these alone; "
            "name one file, or move the others away"
        )
    return paths


def _walk(folder: Path) -> Generator[Path]:
    """Yield all files of a folder and of those below that are named by a value; other folders as they are."""
    for path in folder.iterdir():
        if path.name[0] in "._":
            continue
        if path.is_dir() and "=" in path.name:
            yield from _walk(path)
        else:
            yield path


def _opened(path: Path, folder: Path, open_text: Callable[[Path], RowSource] | None) -> FileRows:
    rows = open_text(path) if open_text is not None and path.suffix != PARQUET else ParquetRows(path)
    parts = path.relative_to(folder).parent.parts
    if not parts:
        return FileRows(rows, {})
    # All values are text, which the schema reads as it declares; Arrow would guess types by the first ones.
    kinds = pa.schema([(part.partition("=")[0], pa.string()) for part in parts])
    read = pa.dataset.partitioning(kinds, flavor="hive").parse("/".join(parts) + "/x")
    values = pa.dataset.get_partition_keys(read)
    return FileRows(rows, {name: values.get(name) for name in kinds.names})


def _difference(first: RowSource, other: RowSource) -> str:
    lacking, more = (
        [name for name in one.columns if name not in another.columns] for one, another in ((first, other), (other, first))
    )
    # Names stand one for the other where there are as many of them.
    differ = len(first.columns) != len(other.columns)
    parts = [f"no {listed(lacking)}"] * bool(lacking) + [f"{listed(more)} besides"] * bool(more)
    if parts and differ:
        return f": {' and '.join(parts)}; write all files with the same columns"
    kinds, other_kinds = (file.types or [None] * len(file.columns) for file in (first, other))
    pairs = zip(zip(first.columns, kinds, strict=True), zip(other.columns, other_kinds, strict=True), strict=True)
    for (name, kind), (own, own_kind) in pairs:
        if name != own:
            return f": {quote(own)} in place of {quote(name)}; write all files with the same columns in one order"
        if kind != own_kind:
            return f": {quote(name)} is {own_kind} and not {kind}; write all files with the same types"
    return ""
