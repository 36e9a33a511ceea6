"""Tables in files of text, CSV or TSV, plain or gzipped: read a block at a time, and what is wrong with them by line."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from lightning_dpgen.data.files.formulas import begins_with_sign, doubtful, known_again
from lightning_dpgen.data.tables.column import shortened
from lightning_dpgen.sampling.errors import BadRecords

SUFFIXES = (".csv", ".tsv", ".data")
# Errors that a damaged gzip file raises while it is read.
_DAMAGED = (gzip.BadGzipFile, EOFError, zlib.error)
# Bytes that are read at a time; a record cannot be longer.
_BLOCK = 1 << 23


@dataclass(frozen=True)
class TextTable:
    """A file of text with one record a line, unless a line break is in quotes.

    Args:
        path: the file; ``.gz`` is unpacked.
        separator: of fields.
        names: of the columns, where no header says them; else None.
        strip: whether spaces around fields are cut off.
        listed: names of columns, and for some of them all values that there may be: what was escaped for spreadsheets
            (`data.files.formulas`) is known again by these, and nothing else is touched.
    """

    path: Path
    separator: str
    names: tuple[str, ...] | None
    strip: bool
    listed: Mapping[str, pa.Array | None] = field(default_factory=dict)

    def columns(self) -> list[str]:
        """The names of the columns.

        Raises:
            BadRecords: if there is no header where there should be one, or a first record of another length.
        """
        return self._header()[0]

    def batches(self, wanted: list[str]) -> Iterator[pa.RecordBatch]:
        """These columns as text, so many records at a time.

        Raises:
            BadRecords: for what is no such file, naming the line.
        """
        (names, escaped), records = self._header(), self._records()
        header = 0 if self.names is not None else next(records)[0]
        if next(records, None) is None:
            return
        try:
            yield from self._read(names, wanted, header, escaped)
        except (pa.ArrowInvalid, OSError) as error:
            raise BadRecords(self._fault(len(names), error)) from None

    def place(self, row: int) -> str:
        """Where a record is, told from 0: found by reading once more."""
        try:
            return f"line {next(itertools.islice(self._records(), row + (self.names is None), None))[0]}"
        except (BadRecords, StopIteration):
            return f"record {row + 1}"

    def _header(self) -> tuple[list[str], bool]:
        """The names of the columns, and whether a text that is known in both forms is the escaped one."""
        first = next(self._records(), None)
        if self.names is None:
            if first is None:
                raise BadRecords(f"{self.path} is empty: expected a header line with the names of the columns")
            names = pa.array([name.strip() if self.strip else name for name in first[1]], pa.string())
            escaped = not pc.any(begins_with_sign(names)).as_py()
            return known_again(names, pa.array(list(self.listed), pa.string()), escaped=escaped).to_pylist(), escaped
        if first is not None and len(first[1]) != len(self.names):
            raise BadRecords(self._ragged(first[0], len(first[1]), len(self.names)))
        return list(self.names), True

    def _read(self, names: list[str], wanted: list[str], header: int, escaped: bool) -> Iterator[pa.RecordBatch]:
        both = {name: doubtful(listed) for name, listed in self.listed.items() if escaped and listed is not None}
        found: dict[str, tuple[bool, bool]] = {}
        reader = pa.csv.open_csv(
            self.path,
            read_options=pa.csv.ReadOptions(
                use_threads=False,
                block_size=_BLOCK,
                column_names=names,
                # Lines before the header are empty; the header may be of several lines.
                skip_rows=max(header - 1, 0),
                skip_rows_after_names=min(header, 1),
            ),
            parse_options=pa.csv.ParseOptions(
                delimiter=self.separator, newlines_in_values=True, ignore_empty_lines=self._skips_empty(names)
            ),
            convert_options=pa.csv.ConvertOptions(include_columns=wanted, column_types=dict.fromkeys(wanted, pa.string())),
        )
        for batch in reader:
            if self.strip:
                batch = pa.record_batch([pc.utf8_trim_whitespace(column) for column in batch.columns], names=wanted)
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            for name in columns.keys() & {name for name, texts in both.items() if len(texts)}:
                found[name] = self._one_form(name, columns[name], both[name], found.get(name, (False, False)))
            arrays = [
                column if (listed := self.listed.get(name)) is None else known_again(column, listed, escaped=escaped)
                for name, column in columns.items()
            ]
            yield pa.record_batch(arrays, names=batch.schema.names)

    def _one_form(self, name: str, column: pa.Array, both: pa.Array, before: tuple[bool, bool]) -> tuple[bool, bool]:
        """Note whether texts that were not escaped were found so far, and texts that may have been: never both."""
        now = (begins_with_sign(column), pc.is_in(column, both))
        plain, either = (old or bool(pc.any(texts).as_py()) for old, texts in zip(before, now, strict=True))
        if plain and either:
            raise BadRecords(
                f"{self.path}: column {shortened(name)} holds text that begins with a sign of formulas as it stands, and "
                f"{shortened(both[0].as_py())} or the like, which the schema also has without its apostrophe: expected all "
                "of it escaped, as dpgen sample writes it, or none; a Parquet file leaves no doubt"
            )
        return plain, either

    def _skips_empty(self, names: list[str]) -> bool:
        """Of a single column an empty line is a record."""
        return len(names) > 1

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Records as fields, the header first, each with its line."""
        skips = self.names is None or self._skips_empty(list(self.names))
        try:
            with _opened(self.path) as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as text:
                reader = csv.reader(text, delimiter=self.separator)
                line = 1
                for fields in reader:
                    if len(fields) == 1 and self.names is None:
                        skips = False
                    if fields or not skips:
                        yield line, fields or [""]
                    line = reader.line_num + 1
        except UnicodeDecodeError:
            # A damaged archive may be found out by its checksum alone, behind what it holds.
            try:
                raise BadRecords(self._not_utf8()) from None
            except _DAMAGED as error:
                raise BadRecords(f"{self.path} cannot be read: {error}") from None
        except (csv.Error, *_DAMAGED) as error:
            raise BadRecords(f"{self.path} cannot be read: {error}") from None

    def _fault(self, expected: int, error: Exception) -> str:
        """What is wrong with the file, found by reading once more."""
        try:
            for line, fields in self._records():
                if len(fields) != expected:
                    return self._ragged(line, len(fields), expected)
        except BadRecords as found:
            return str(found)
        # Arrow's own words may quote a record at length.
        text = " ".join(str(error).split())
        return f"{self.path} cannot be read: {text if len(text) < 100 else text[:95] + '...'}"

    def _ragged(self, line: int, found: int, expected: int) -> str:
        return (
            f"{self.path}, line {line}: {found} field{'s' if found > 1 else ''}, expected {expected}, separated by "
            f"{self.separator!r}; correct the line, or put fields that hold the separator in double quotes"
        )

    def _not_utf8(self) -> str:
        with _opened(self.path) as raw:
            for number, line in enumerate(raw, 1):
                try:
                    line.decode()
                except UnicodeDecodeError as error:
                    utf16 = line[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
                    kind, name = ("; it looks like UTF-16", "utf-16") if utf16 else ("", "latin1")
                    found = f"byte 0x{line[error.start]:02x} is not UTF-8{kind}"
                    return f"{self.path}, line {number}: {found}: save the file as UTF-8 (iconv -f {name} -t utf-8)"
        return f"{self.path} is not UTF-8: save it as UTF-8"


def _opened(path: Path) -> io.BufferedIOBase:
    return gzip.open(path) if path.suffix == ".gz" else open(path, "rb")
