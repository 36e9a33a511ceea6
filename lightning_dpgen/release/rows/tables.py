"""Synthetic records as files of a table: Parquet, text, JSON lines, a workbook or a database, written a chunk at a time."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from lightning_dpgen.data.baskets.form import LINES
from lightning_dpgen.data.files.delimited import default_separator
from lightning_dpgen.data.files.formulas import escaped, escaped_name
from lightning_dpgen.data.files.kinds import DATABASES, WORKBOOK
from lightning_dpgen.data.tables.written_form import NEEDED, OF_ALL
from lightning_dpgen.release.rows.as_read import AsRead
from lightning_dpgen.release.rows.database_table import write_to_database, write_to_duckdb
from lightning_dpgen.release.rows.workbook import SHEET, write_workbook

# Files of text that hold baskets, and no other records.
OF_BASKETS = LINES
FORMATS = (".parquet", ".csv", ".tsv", ".jsonl", WORKBOOK, *DATABASES)
# Those of files that are read together from a folder.
OF_FOLDERS = FORMATS[:4]
_USUAL = AsRead()
# Bytes of a row group of Parquet: small ones take longer to write and to read, and their file is larger.
_ROW_GROUP = 1 << 24


def write_table(
    path: Path,
    chunks: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    *,
    escape: bool = True,
    form: AsRead = _USUAL,
    sheet: str = SHEET,
) -> None:
    """Write records to a file of one of `FORMATS`, never holding more than a chunk (a row group of Parquet, the texts of a
    workbook).

    Args:
        path: of the file, whose ending says its format.
        schema: the columns.
        escape: as for `csv_text`.
        form: of a table as it was read; a Parquet file has its types alone.
        sheet: the name of the sheet of a workbook, or of the table of a database (DuckDB by its ending, else SQLite).

    Raises:
        ValueError: for another ending, or text that the encoding or a workbook cannot hold.
        BadRecords: if the library for workbooks or databases is missing.
    """
    if path.suffix == ".parquet":
        # Arrow would read a path in its own way.
        columns = form.typed_schema(schema)
        with open(path, "wb") as file, pa.parquet.ParquetWriter(file, columns, compression="zstd") as writer:
            for group in _row_groups(map(form.typed, chunks)):
                writer.write(group)
    elif path.suffix in (".csv", ".tsv", *OF_BASKETS):
        with open(path, "w", encoding=form.charset, newline="") as file:
            try:
                # No spreadsheet opens the others.
                escape &= path.suffix not in OF_BASKETS
                file.writelines(csv_text(chunks, escape=escape, form=form, separator=default_separator(path)))
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"the encoding of the schema, {form.charset}, has no sign for {error.object[error.start]!r}: expected "
                    "one that has all letters of its categories; a .parquet file holds them"
                ) from None
    elif path.suffix == ".jsonl":
        with open(path, "w", encoding="utf-8", newline="") as file:
            for chunk in chunks:
                lines = (json.dumps(row, ensure_ascii=False, default=str) for row in form.lines(chunk).to_pylist())
                file.writelines(f"{line}\n" for line in lines)
    elif path.suffix == WORKBOOK:
        write_workbook(path, chunks, schema, form, sheet)
    elif path.suffix == ".duckdb":
        write_to_duckdb(path, sheet, map(form.values, chunks), form.schema(schema))
    elif path.suffix in DATABASES:
        write_to_database(f"sqlite:///{path}", sheet, map(form.values, chunks), form.schema(schema))
    else:
        raise ValueError(f"{path}: expected a name that ends in {', '.join(FORMATS)}")


def _row_groups(chunks: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield chunks together, in tables of `_ROW_GROUP` bytes or a little more, and the rest."""
    held: list[pa.RecordBatch] = []
    for chunk in chunks:
        held.append(chunk)
        if sum(own.nbytes for own in held) >= _ROW_GROUP:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def csv_text(
    chunks: Iterable[pa.RecordBatch], *, escape: bool = True, form: AsRead = _USUAL, separator: str = ","
) -> Iterator[str]:
    """Write records as CSV, a chunk at a time, names of columns first; a list becomes JSON, or its values are the line.

    Args:
        escape: whether text, in cells and names, that a spreadsheet would run as a formula gets an apostrophe before it
            (`data.files.formulas`); numbers stay as they are. Tables that dpgen reads by a schema know it again.
        form: of a table as it was read.
        separator: where the form has none.

    Example:
        >>> batch = pa.RecordBatch.from_pydict({"items": [["tea", "bread"], []], "label": ["day", "night"]})
        >>> print("".join(csv_text([batch])), end="")
        items,label
        "[""tea"", ""bread""]",day
        [],night
    """
    separator = form.separator or separator
    if form.as_lines:
        yield from _basket_lines(chunks, separator, escape=escape, header=form.header)
        return
    for i, chunk in enumerate(chunks):
        plain = _without_lists(chunk)
        names = pa.array(plain.schema.names, pa.string())
        if escape:
            plain, names = _escaped(plain), pa.array(map(escaped_name, plain.schema.names), pa.string())
        if i == 0 and form.skip_rows:
            yield "\n" * form.skip_rows
        if i == 0 and form.header:
            first = _quoted(names, separator, every=form.quotes != NEEDED, marks=form.comment)
            yield separator.join(first.to_pylist()) + "\n"
        fields = []
        for name, kind, texts in zip(plain.schema.names, plain.schema.types, form.texts(plain).columns, strict=True):
            is_text = pa.types.is_string(kind) or name in form.words
            every = form.quotes == OF_ALL or (form.quotes != NEEDED and is_text)
            quoted = _quoted(texts, separator, every=every, marks=() if fields else form.comment)
            # A line of nothing is no row to most readers.
            fields.append(pc.coalesce(quoted, '""' if form.quotes == OF_ALL or plain.num_columns == 1 else ""))
        lines = pc.binary_join_element_wise(*fields, separator).to_pylist()
        yield "".join(f"{line}\n" for line in lines)


def _basket_lines(chunks: Iterable[pa.RecordBatch], separator: str, *, escape: bool, header: bool) -> Iterator[str]:
    """Write baskets, one a line: the label, where there is one, and the items.

    Example:
        >>> batch = pa.RecordBatch.from_pydict({"items": [["tea", "bread, rye"], []]})
        >>> print("".join(_basket_lines([batch], ",", escape=True, header=False)), end="")
        tea,"bread, rye"
        <BLANKLINE>
    """
    for i, chunk in enumerate(chunks):
        if i == 0 and header:
            yield separator.join(reversed(chunk.schema.names)) + "\n"
        lists = chunk.column(0)
        items = _field_texts(lists.flatten(), separator, escape=escape)
        lines = [items[start:stop] for start, stop in itertools.pairwise(lists.offsets.to_pylist())]
        for labels in chunk.columns[1:]:
            texts = _field_texts(labels, separator, escape=escape)
            lines = [[text, *line] for text, line in zip(texts, lines, strict=True)]
        yield "".join(f"{separator.join(line)}\n" for line in lines)


def _field_texts(values: pa.Array, separator: str, *, escape: bool) -> list[str]:
    texts = values.cast(pa.string())
    texts = escaped(texts) if escape and pa.types.is_string(values.type) else texts
    return _quoted(texts, separator, every=False).to_pylist()


def _quoted(texts: pa.Array, separator: str, *, every: bool, marks: Sequence[str] = ()) -> pa.Array:
    """Return texts as fields of RFC 4180: in double quotes where they need them, or every one; null stays null.

    A text that begins with one of the marks would be a comment without quotes.

    An empty text needs them, since an empty field is a missing value.

    Example:
        >>> print(*_quoted(pa.array(["tea", 'the "best"', "a,b", ""]), ",", every=False))
        tea "the ""best\"\"\" "a,b" ""
    """
    inside = pc.binary_join_element_wise('"', pc.replace_substring(texts, '"', '""'), '"', "")
    if every:
        return inside
    comment = "".join(f"|^{re.escape(mark)}" for mark in marks)
    return pc.if_else(pc.match_substring_regex(texts, f'[{re.escape(separator)}"\\r\\n]|^${comment}'), inside, texts)


def _escaped(chunk: pa.RecordBatch) -> pa.RecordBatch:
    columns = [escaped(column) if pa.types.is_string(column.type) else column for column in chunk.columns]
    return pa.RecordBatch.from_arrays(columns, names=chunk.schema.names)


def _without_lists(chunk: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        pa.array([json.dumps(value, ensure_ascii=False) for value in column.to_pylist()], pa.string())
        if pa.types.is_list(column.type)
        else column
        for column in chunk.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=chunk.schema.names)
