"""Synthetic records in the form in which a schema says that real ones are written: words, dates and numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.data.files.text import UTF8
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.written_form import NumberForm, WrittenForm


@dataclass(frozen=True)
class AsRead:
    """The form of a file of synthetic records, as files with real ones have it.

    Args:
        separator: between fields of text; None for what goes with the ending of a name.
        charset: the encoding of text.
        header: whether text begins with the names of columns.
        forms: of numbers, dates and times in text, by column.
        words: for false and for true, by column.
        missing: the text for a missing value, by column, where that is no empty field.

    Example:
        >>> chunk = pa.record_batch({"ok": [True, None], "x": [1.5, 2.0]})
        >>> form = AsRead(forms={"x": NumberForm(",")}, words={"ok": ("no", "yes")}, missing={"ok": "?"})
        >>> form.texts(chunk).to_pydict()
        {'ok': ['yes', '?'], 'x': ['1,5', '2']}
        >>> form.values(chunk).to_pydict()
        {'ok': ['yes', None], 'x': [1.5, 2.0]}
    """

    separator: str | None = None
    charset: str = UTF8
    header: bool = True
    forms: dict[str, WrittenForm] = field(default_factory=dict)
    words: dict[str, tuple[str, str]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, schema: Schema) -> AsRead:
        """Return the form that the schema of a table declares; the usual one for other records."""
        if not isinstance(schema, TableSchema):
            return cls()
        columns = schema.recorded
        return cls(
            schema.separator,
            schema.charset,
            schema.header,
            schema.forms,
            {c.name: c.words for c in columns if isinstance(c, Category) and c.words is not None},
            {c.name: c.missing_values[0] for c in columns if c.missing and "" not in c.missing_values},
        )

    def texts(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        """Return records as a file of text has them: all that has a declared form is text."""
        return self._changed(self.values(chunk, numbers=True), self._with_missing)

    def values(self, chunk: pa.RecordBatch, *, numbers: bool = False) -> pa.RecordBatch:
        """Return records as files with types have them: words and dates in a declared form are text.

        Args:
            numbers: whether numbers in a declared form are text as well, and moments of a zone.
        """

        def written(name: str, column: pa.Array) -> pa.Array:
            form = self.forms.get(name)
            if name in self.words and pa.types.is_boolean(column.type):
                no, yes = self.words[name]
                return pc.if_else(column, yes, no)
            if form is not None and (numbers or not isinstance(form, NumberForm)):
                return form.written(column)
            if numbers and pa.types.is_timestamp(column.type) and column.type.tz is not None:
                return pc.strftime(column, format="%Y-%m-%d %H:%M:%S%z")
            return column

        return self._changed(chunk, written)

    def schema(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns of `values`."""
        nothing = pa.record_batch([pa.array([], kind) for kind in columns.types], names=columns.names)
        return self.values(nothing).schema.with_metadata(columns.metadata)

    def _with_missing(self, name: str, column: pa.Array) -> pa.Array:
        if name not in self.missing:
            return column
        return pc.coalesce(column.cast(pa.string()), self.missing[name])

    @staticmethod
    def _changed(chunk: pa.RecordBatch, change: object) -> pa.RecordBatch:
        names = chunk.schema.names
        return pa.record_batch(
            [change(name, column) for name, column in zip(names, chunk.columns, strict=True)], names=names
        )
