"""Synthetic records in the form in which a schema says that real ones are written: rows, words, dates and numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.data.files.text import UTF8
from lightning_dpgen.data.schema import Schema, kind_of
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import Modelled
from lightning_dpgen.data.tables.column_types import in_arrow, in_pandas
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.written_form import NEEDED, NumberForm, WrittenForm, with_offset


@dataclass(frozen=True)
class OutputFormat:
    """The form of a file of synthetic records, as files with real ones have it.

    Args:
        separator: between fields of text; None for what goes with the ending of a name.
        charset: the encoding of text.
        header: whether text begins with the names of columns.
        skip_rows: the empty lines above all others, in place of those that the file with the real ones has there.
        comment: how lines begin that are no records; a first field that begins so stands in double quotes.
        quotes: which fields of text stand in double quotes, one of `data.tables.written_form.QUOTES`.
        forms: of numbers, dates and times in text, by column.
        words: for false and for true, by column.
        missing: the text for a missing value, by column, where that is no empty field.
        as_lines: whether text has baskets, one a line: the label, where there is one, and then the items, in no columns.
        types: of columns in frames and Parquet files, where they are not the usual ones, each with its column.

    Example:
        >>> chunk = pa.record_batch({"ok": [True, None], "x": [1.5, 2.0]})
        >>> form = OutputFormat(forms={"x": NumberForm(",")}, words={"ok": ("no", "yes")}, missing={"ok": "?"})
        >>> form.texts(chunk).to_pydict()
        {'ok': ['yes', '?'], 'x': ['1,5', '2']}
        >>> form.values(chunk).to_pydict()
        {'ok': ['yes', None], 'x': [1.5, 2.0]}
    """

    separator: str | None = None
    charset: str = UTF8
    header: bool = True
    quotes: str = NEEDED
    forms: dict[str, WrittenForm] = field(default_factory=dict)
    words: dict[str, tuple[str, str]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    skip_rows: int = 0
    comment: tuple[str, ...] = ()
    as_lines: bool = False
    types: dict[str, tuple[str, Modelled]] = field(default_factory=dict)

    @classmethod
    def of(cls, schema: Schema) -> OutputFormat:
        """Return the form that the schema of a table declares; the usual one for other records."""
        if not kind_of(schema).tabular:
            return cls()
        columns, forms = schema.recorded, dict(schema.forms)
        for column in columns:
            if isinstance(column, Numeric) and column.decimals is not None:
                forms[column.name] = replace(forms.get(column.name, NumberForm()), decimals=column.decimals)
        return cls(
            schema.separator,
            schema.charset,
            schema.header,
            schema.quotes,
            forms,
            {c.name: c.words for c in columns if isinstance(c, Category) and c.words is not None},
            {c.name: c.missing_values[0] for c in columns if c.missing and "" not in c.missing_values},
            schema.skip_rows,
            schema.comment,
            types={c.name: (schema.types[c.name], c) for c in columns if c.name in schema.types},
        )

    def without_types(self, names: Collection[str]) -> OutputFormat:
        """Return the same with the usual types of some columns, whose values are not all declared."""
        return replace(self, types={name: own for name, own in self.types.items() if name not in names})

    def texts(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        """Return records as a file of text has them: all columns are text, null where a field is empty."""

        def written(name: str, column: pa.Array) -> pa.Array:
            form = self.forms.get(name)
            column = _without_zone(column) if form is None else form.written(column)
            texts = self._with_words(name, column).cast(pa.string())
            return pc.coalesce(texts, self.missing[name]) if name in self.missing else texts

        return _changed(chunk, written)

    def values(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        """Return records as files with types have them: words, and dates in a declared form, are text."""

        def written(name: str, column: pa.Array) -> pa.Array:
            form = self.forms.get(name)
            if form is not None and not isinstance(form, NumberForm):
                return form.written(column)
            return self._with_words(name, column)

        return _changed(chunk, written)

    def lines(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        """Return records as JSON lines have them: as `values`, and moments with a zone are text."""
        return _changed(self.values(chunk), lambda _, column: _without_zone(column))

    def cells(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        """Return records as a workbook has them, whose dates and numbers have a format for the eye.

        Words are text, and so are moments with a zone.
        """
        return _changed(chunk, lambda name, column: _without_zone(self._with_words(name, column)))

    def typed(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        """Return records as a Parquet file has them."""
        return _changed(chunk, lambda name, column: in_arrow(*self.types[name], column) if name in self.types else column)

    def typed_schema(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns of `typed`, with the types that pandas gives them when it reads such a file."""
        if not self.types:
            return columns
        nothing = pa.record_batch([pa.array([], kind) for kind in columns.types], names=columns.names)
        told = pa.Schema.from_pandas(self.frame(pa.Table.from_batches([nothing])), preserve_index=False)
        return self.typed(nothing).schema.with_metadata({**(told.metadata or {}), **(columns.metadata or {})})

    def frame(self, table: pa.Table) -> pd.DataFrame:
        """Return records as a frame has them."""
        frame = table.to_pandas()
        for name, (own, column) in self.types.items():
            if name in frame:
                frame[name] = in_pandas(own, column, table.column(name).combine_chunks())
        return frame

    def schema(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns of `values`."""
        nothing = pa.record_batch([pa.array([], kind) for kind in columns.types], names=columns.names)
        return self.values(nothing).schema.with_metadata(columns.metadata)

    def _with_words(self, name: str, column: pa.Array) -> pa.Array:
        if name not in self.words or not pa.types.is_boolean(column.type):
            return column
        no, yes = self.words[name]
        return pc.if_else(column, yes, no)


def _without_zone(column: pa.Array) -> pa.Array:
    """Return moments with a zone as text, and other values as they are."""
    return with_offset(column) if getattr(column.type, "tz", None) is not None else column


def _changed(chunk: pa.RecordBatch, change: Callable[[str, pa.Array], pa.Array]) -> pa.RecordBatch:
    names = chunk.schema.names
    return pa.record_batch([change(name, column) for name, column in zip(names, chunk.columns, strict=True)], names=names)


_USUAL = OutputFormat()


@dataclass(frozen=True)
class WrittenRecords:
    """The form of a file of synthetic records. It goes to the processes that write files.

    Args:
        columns: of its rows.
        rows: makes its rows from those of one record each, after so many records.
        form: of a file of text.
        rows_a_record: how many rows a record has; None where that differs from record to record.
    """

    columns: pa.Schema
    rows: Callable[[Iterable[pa.RecordBatch], int], Iterator[pa.RecordBatch]]
    form: OutputFormat = _USUAL
    rows_a_record: int | None = 1


def as_they_are(columns: pa.Schema, form: OutputFormat = _USUAL) -> WrittenRecords:
    """Return the form of one record a row, in the columns in which it is drawn.

    Example:
        >>> written = as_they_are(pa.schema([("x", pa.int64())]))
        >>> [chunk.to_pydict() for chunk in written.rows([pa.record_batch({"x": [1]})], 0)]
        [{'x': [1]}]
    """
    return WrittenRecords(columns, _unchanged, form)


def _unchanged(chunks: Iterable[pa.RecordBatch], before: int) -> Iterator[pa.RecordBatch]:
    return iter(chunks)
