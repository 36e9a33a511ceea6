"""Sources of a table's records: files of text as their schema says that they are written, other files, frames in memory."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lightning_dpgen.data.files.blocks import RowSource, WrappedRows
from lightning_dpgen.data.files.delimited import DelimitedText
from lightning_dpgen.data.files.formulas import begins_with_sign, doubtful, known_again
from lightning_dpgen.data.files.kinds import PARQUET, is_known, unknown
from lightning_dpgen.data.files.parquet import FileRows, FolderRows
from lightning_dpgen.data.files.rows import rows_of
from lightning_dpgen.data.files.text import WHOLE, MissingData, TextRange, check_there
from lightning_dpgen.data.names import are_numbers, plain
from lightning_dpgen.data.tables.arrays import Misfit, quote_cell
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import Column, shortened
from lightning_dpgen.data.tables.likely_rows import likely_advice
from lightning_dpgen.data.tables.moment_form import MomentForm
from lightning_dpgen.data.tables.scales import MOMENTS
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.written_form import WrittenForm
from lightning_dpgen.sampling.errors import BadRecords


class LocalizingSource(WrappedRows):
    """A source in which some columns have a declared form, where they are text.

    Args:
        rows: as the file holds them.
        forms: the form of each of these columns.
        missing: the texts that stand for a missing value in each of them, which have no form.
    """

    def __init__(self, rows: RowSource, forms: Mapping[str, WrittenForm], missing: Mapping[str, tuple[str, ...]]) -> None:
        super().__init__(rows, rows.columns)
        self._forms, self._missing = forms, missing

    def batches(self, columns: list[str]) -> Generator[pa.RecordBatch]:
        done = 0
        for batch in self._rows.batches(columns):
            arrays = []
            for name, column in zip(columns, batch.columns, strict=True):
                try:
                    arrays.append(self._read(name, column))
                except Misfit as misfit:
                    where = f"{self.where}, {self.place(done + misfit.row)}: column {shortened(name)}"
                    raise BadRecords(f"{where}: {misfit.problem}; {misfit.advice}") from None
            yield pa.record_batch(arrays, names=columns)
            done += batch.num_rows

    def _read(self, name: str, column: pa.Array) -> pa.Array:
        form = self._forms.get(name)
        return column if form is None else read_in_form(column, form, self._missing.get(name, ()))


def read_in_form(column: pa.Array, form: WrittenForm, missing: Sequence[str]) -> pa.Array:
    """Return values whose texts have a declared form as all programs write them; those that are no text stay as they are.

    Args:
        missing: the texts that stand for a missing value, which have no form.

    Raises:
        Misfit: naming the first text of another form.
    """
    values = plain(column)
    if isinstance(form, MomentForm) and are_numbers(values.type):
        # Programs take dates of digits alone for numbers.
        values = form.of_numbers(values)
    if not pa.types.is_string(values.type):
        return column
    absent = pc.or_(pc.is_null(values), pc.is_in(values, pa.array(["", *missing], pa.string())))
    texts = values.fill_null("")
    present = ~absent.to_numpy(zero_copy_only=False)
    wrong = present & ~form.fits(texts)
    if wrong.any():
        raise _refusal(form, values, int(np.argmax(wrong)))
    read = form.read(texts)
    if isinstance(form, MomentForm):
        # A day that there is not, such as the 31st of February, is told as it stands in the file.
        rows = np.flatnonzero(present)
        try:
            MOMENTS[form.kind].ticks(read.filter(pa.array(present)))
        except Misfit as misfit:
            raise _refusal(form, values, misfit.moved(rows).row) from None
    return pc.if_else(absent, values, read)


def _refusal(form: WrittenForm, values: pa.Array, row: int) -> Misfit:
    """Return the refusal of a text that has not the declared form."""
    kinds = (form.kind,) if isinstance(form, MomentForm) else ("integer", "number")
    advice = likely_advice(values[row].as_py(), *kinds)
    likely = f"; {advice}" if advice else ""
    problem = f"{quote_cell(values, row)}: expected {form.declared}, as the schema declares, such as {form.example}"
    return Misfit(row, problem, f"correct the value or the schema{likely}")


# The question where one column stands in the place of several, and signs that may then be the separator of a file.
OTHER_SEPARATOR = "; is it another separator than the schema's?"
_SEPARATORS = re.compile(r"[,;|\t]")


class UnescapingSource(WrappedRows):
    """A file of text in which what was escaped for spreadsheets (`data.files.formulas`) is known again.

    Args:
        rows: as the file holds them.
        listed: names of columns, and for some of them all values that there may be. What was escaped is known again by
            these, and nothing else is touched.
    """

    def __init__(self, rows: DelimitedText, listed: Mapping[str, pa.Array | None]) -> None:
        names, self._escaped = rows.columns, True
        if rows.has_header:
            header = pa.array(names, pa.string())
            # A text that is known in both forms is the escaped one, unless a name in the header is not escaped.
            self._escaped = not pc.any(begins_with_sign(header)).as_py()
            names = known_again(header, pa.array(list(listed), pa.string()), escaped=self._escaped).to_pylist()
        super().__init__(rows, names)
        self._listed = listed
        self._in_file = dict(zip(names, rows.columns, strict=True))

    def ranges(self, columns: Sequence[str]) -> list[TextRange]:
        # All rows decide whether texts that may be escaped are.
        return [WHOLE] if any(map(len, self._both(columns).values())) else self._rows.ranges(columns)

    def within(self, part: TextRange) -> UnescapingSource:
        rows = copy.copy(self)
        rows._rows = self._rows.within(part)
        return rows

    def batches(self, columns: list[str]) -> Generator[pa.RecordBatch]:
        both = self._both(columns)
        forms: dict[str, tuple[bool, bool]] = {}
        for batch in self._rows.batches([self._in_file[name] for name in columns]):
            arrays = []
            # An empty field may be the text of a category.
            for name, column in zip(columns, (column.fill_null("") for column in batch.columns), strict=True):
                if len(both.get(name, ())):
                    forms[name] = self._one_form(name, column, both[name], forms.get(name, (False, False)))
                texts = self._listed.get(name)
                arrays.append(column if texts is None else known_again(column, texts, escaped=self._escaped))
            yield pa.record_batch(arrays, names=columns)

    def _both(self, columns: Sequence[str]) -> dict[str, pa.Array]:
        """Return the texts of columns that are declared with an apostrophe before them and without."""
        listed = {name: self._listed.get(name) for name in columns if self._escaped}
        return {name: doubtful(texts) for name, texts in listed.items() if texts is not None}

    def _one_form(self, name: str, column: pa.Array, both: pa.Array, before: tuple[bool, bool]) -> tuple[bool, bool]:
        """Note whether texts that were not escaped were found so far, and texts that may have been: never both."""
        now = (begins_with_sign(column), pc.is_in(column, both))
        plain, either = (old or bool(pc.any(texts).as_py()) for old, texts in zip(before, now, strict=True))
        if plain and either:
            raise BadRecords(
                f"{self.where}: column {shortened(name)} holds text that begins with a formula sign, and "
                f"{shortened(both[0].as_py())} or similar text, which the schema also has without its apostrophe: "
                "expected all such text escaped, as in a synthetic table, or none; a Parquet file avoids the ambiguity"
            )
        return plain, either


def check_kind(path: Path) -> None:
    """Raise MissingData if there is no such file, and BadRecords for a name that no file of a table has."""
    if path.is_dir():
        return
    check_there(path)
    if not is_known(path):
        raise BadRecords(unknown(path))


def table_source(source: Any, schema: TableSchema) -> RowSource:
    """Return what reads a source as all programs write it (`localized`); no record is read yet.

    Args:
        source: the path of a file of a kind of `data.files.kinds`, or of a folder of such files of Parquet or text; a
            DataFrame; a table or record batch of Arrow.
        schema: which says how a file of text is written, and which table or sheet is read where there are several.

    Raises:
        MissingData: if there is no such file.
        BadRecords: for anything else.
    """
    return localized(written_source(source, schema), schema)


def written_source(source: Any, schema: TableSchema) -> RowSource:
    """Return what reads a source as it is written; arguments and errors are those of `table_source`."""
    if isinstance(source, str | Path):
        check_kind(Path(source))
        if Path(source).is_dir():
            return _folder(Path(source), schema)
    return _one_source(source, schema)


def separator_advice(rows: RowSource, columns: Collection[str]) -> str:
    """Return the question whether the separator is another one, where the only column has the names of several in it."""
    names = _SEPARATORS.split(rows.columns[0]) if len(rows.columns) == 1 else ()
    return OTHER_SEPARATOR if len(names) > 1 and any(name.strip(' "') in columns for name in names) else ""


def declared_types(source: Any) -> dict[str, Any]:
    """Return the types of pandas or Arrow that a source declares of its columns, by name; nothing is read of others.

    A source that cannot be read declares none: what is wrong is told when its records are read.
    """
    if isinstance(source, pd.DataFrame):
        return {str(name): kind for name, kind in source.dtypes.items()}
    if isinstance(source, pa.Table | pa.RecordBatch):
        return dict(zip(source.schema.names, source.schema.types, strict=True))
    try:
        path = Path(source)
        if not path.is_dir() and path.suffix.lower() != PARQUET:
            return {}
        rows = rows_of(path)
    except (MissingData, BadRecords, OSError):
        return {}
    return dict(zip(rows.columns, rows.types or (), strict=False))


def table_files(path: str | Path, schema: TableSchema) -> dict[str, FileRows]:
    """Return the files of a table by their names, before `localized`; no record is read yet.

    Args:
        path: of a folder, or of a file.

    Raises:
        MissingData, BadRecords: as `table_source`.
    """
    path = Path(path)
    check_kind(path)
    if path.is_dir():
        return _folder(path, schema).files
    return {path.name: FileRows(_one_source(path, schema), {})}


def localized(rows: RowSource, schema: TableSchema) -> RowSource:
    """Return rows whose texts of a declared form are read as all programs write them."""
    if not schema.forms:
        return rows
    missing = {column.name: column.missing_values for column in schema.recorded if column.missing}
    return LocalizingSource(rows, schema.forms, missing)


def _folder(path: Path, schema: TableSchema) -> FolderRows:
    return FolderRows(path, lambda file: _one_source(file, schema))


def _one_source(source: Any, schema: TableSchema) -> RowSource:
    columns = [column.name for column in schema.columns]
    names = None if schema.header else columns
    rows = rows_of(
        source, names, schema.separator, table=schema.table, keys=columns, strip=schema.strip, skip_empty=True,
        headless="header: false in its schema", charset=schema.charset, skip_rows=schema.skip_rows, comment=schema.comment,
    )  # fmt: skip
    if isinstance(rows, DelimitedText):
        return UnescapingSource(rows, {column.name: _listed(column) for column in schema.columns})
    return rows


def _listed(column: Column) -> pa.Array | None:
    """Return all texts that there may be in a column, where they are declared."""
    texts = isinstance(column, Category) and column.kind is str
    return pa.array([*column.values, *column.missing_values], pa.string()) if texts else None
