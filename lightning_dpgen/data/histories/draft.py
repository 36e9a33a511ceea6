"""Drafts of descriptions of histories: the table of persons, what is the same in all rows of a person, what to decide."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.files.blocks import RowSource
from lightning_dpgen.data.files.database import DatabaseQuery, one_table
from lightning_dpgen.data.files.rows import rows_of
from lightning_dpgen.data.histories.description import PERSONS
from lightning_dpgen.data.names import plain, texts_of
from lightning_dpgen.data.reading import Numbering
from lightning_dpgen.data.tables.arrays import is_empty
from lightning_dpgen.data.tables.column import shortened
from lightning_dpgen.data.tables.likely_form import reads
from lightning_dpgen.data.tables.scales import MOMENTS
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_draft import OPEN, ColumnDraft, draft_of_file, draft_of_rows, table_lines
from lightning_dpgen.data.tables.schema_file import value_text
from lightning_dpgen.data.tables.schema_keys import TableKeys, column_of
from lightning_dpgen.data.tables.sources import table_source
from lightning_dpgen.sampling.errors import BadRecords

_TIMES, _FIRST = ("date", "integer"), 1000
_MOST_ROWS = (
    "how many rows of a person count, a round number from public knowledge, such as 10; the largest number of the file "
    "would reveal a person"
)
_FIXED = "the same in all rows of each person, told from the rows: check it; what may change belongs under columns"
_SAME = "the same in all rows of each person, told from the rows: check it. Is it an attribute, of the table of persons?"
_IN_PERSONS = "the table of persons has it, too, and it is the same in all rows of each person: check it"
_DAYS = "times of day are cut off; rows of one day are in no order of time"
_DISTANCE = "from a row of a person to the next one{}, {}. Are most far shorter? Add  edges: [7, 30, 90]"


@dataclass(frozen=True, eq=False, repr=False)
class TableDraft:
    """The draft of one table of histories; no value of the file is in it.

    Args:
        source: the file, or the query.
        name: of the file, or of the table of the query.
        columns: all but that of persons.
        about: what is known of the whole table, by key.
        has_several: whether a person has several rows.
        fixed: the columns that are the same in all rows of each person.
        days: the columns that can be read as dates, by the type in the file or by the first rows.
    """

    source: Path | DatabaseQuery
    name: str
    columns: list[ColumnDraft]
    about: Mapping[str, Any]
    has_several: bool
    fixed: frozenset[str]
    days: frozenset[str]

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns if column.name]


def draft_of_table(
    source: Path | DatabaseQuery, person: str, *, header: bool = True, table: str | None = None
) -> TableDraft:
    """Draft a table of histories: by its types, as `draft_of_file`, and by what all of its rows have alike.

    Args:
        source: the file, or the query.
        person: the column that names the person of a row.
        header, table: as of `draft_of_file`.

    Raises:
        MissingData, BadRecords: if it cannot be read, has no rows, or a row has no person.
    """
    about: dict[str, Any] = {}
    if isinstance(source, DatabaseQuery):
        rows = rows_of(source)
        columns, where, name = draft_of_rows(rows), rows.where, _table_of(source)
    else:
        columns, about = draft_of_file(source, header=header, table=table)
        where, name = str(source), " ".join((table or source.name).split())
    named = [column.name for column in columns if column.name]
    if person not in named:
        near = suggest(person, named)
        raise BadRecords(f"{where} has no column person={shortened(person)}: expected one of {listed(named)}{near}")
    # Only how the table is written counts here, so columns are of any type.
    rows = table_source(source, TableSchema([column_of(name, {"type": "boolean"}) for name in named], TableKeys.of(about)))
    others = [column for column in columns if column.name != person]
    alike = [column.name for column in others if column.name and column.fields["type"] != "drop"]
    several, fixed, days = _compare_rows(rows, person, alike)
    return TableDraft(source, name, others, about, several, fixed, days)


def _table_of(asked: DatabaseQuery) -> str:
    """Return the name of the table that a query is of; "rows" where it is of several."""
    try:
        return one_table(asked.query, asked.system).table.text
    except ValueError:
        return "rows"


def _compare_rows(rows: RowSource, person: str, names: list[str]) -> tuple[bool, frozenset[str], frozenset[str]]:
    """Return whether a person has several rows, the columns that are the same in all rows of each, and those of days."""
    numbers, several = Numbering(), False
    first = {name: np.empty(0, np.uint64) for name in names}
    days: set[str] = set()
    with closing(rows.blocks([person, *names])) as blocks:
        for block in blocks:
            absent = is_empty(plain(block.column(person)))
            if absent.any():
                raise BadRecords(
                    f"{block.place(int(absent.argmax()))}: column {shortened(person)}: a value is missing: expected the "
                    "person of each row"
                )
            known = len(numbers.known)
            owners = numbers.of(block.column(person))
            unique, place = np.unique(owners, return_index=True)
            several |= len(unique) < len(owners) or bool((unique < known).any())
            for name in list(first):
                values = plain(block.column(name))
                if not known and _are_days(values):
                    days.add(name)
                texts = texts_of(values).fill_null("").to_numpy(zero_copy_only=False)
                hashes = pd.util.hash_array(texts, categorize=True)
                firsts = np.concatenate([first[name], hashes[place[unique >= known]]])
                if (hashes == firsts[owners]).all():
                    first[name] = firsts
                else:
                    del first[name]
    if not numbers.known:
        raise BadRecords(f"{rows.where} has no rows: expected those of at least one person")
    return several, frozenset(first), frozenset(days)


def _are_days(values: pa.Array) -> bool:
    """Tell whether type: date reads the first values."""
    if pa.types.is_timestamp(values.type):
        return values.type.tz is None
    return pa.types.is_string(values.type) and reads(MOMENTS["date"], values[:_FIRST].drop_null())


def draft_description(tables: Sequence[TableDraft], person: str, orders: Sequence[str], folder: Path) -> str:
    """Return the text of a description of histories.

    Args:
        tables: in which at most one has one row for each person.
        person: the column of persons in each.
        orders: columns of times; of each table the first one that it has.
        folder: that of the description, beside which files are named.

    Raises:
        BadRecords: if none of the tables is one of rows, or two are of persons; or an order that is no time.
    """
    singles, rows = [one for one in tables if not one.has_several], [one for one in tables if one.has_several]
    named = listed(one.name for one in singles)
    if len(singles) > 1:
        raise BadRecords(
            f"{named}: each has one row for each {shortened(person)}: expected one table of persons; join them by "
            f"{shortened(person)}, or leave one out"
        )
    if not rows:
        raise BadRecords(
            f"{named} has one row for each {shortened(person)}: expected a table in which a person has several rows; "
            "dpgen schema FILE drafts the schema of one without histories"
        )
    for order in orders:
        if not any(order in one.names for one in rows):
            near = suggest(order, [name for one in rows for name in one.names])
            raise BadRecords(f"order={shortened(order)}: {listed(one.name for one in rows)} has no such column{near}")
    origin = listed(one.name for one in tables)
    lines = [
        f"# Drafted from {origin}. All of it is public: fill in every {OPEN} from public knowledge, not from the records.",
        '# Where values may be missing, add  missing: true  (and missing_values: ["?"], if a text says so).',
        "# Names and keys are no categories:  type: drop  leaves them out.",
        "# Nothing of histories is found privately: declare all bounds and values.",
        "# The number of records that is declared is that of persons. docs/how_to/release_histories.md has all keys.",
    ]
    lines += _database(tables, folder)
    used = {PERSONS} | {name for one in tables for name in one.names}
    for one in singles:
        if not one.names:
            raise BadRecords(f"{one.name} has no column beside {shortened(person)}: leave it out")
        lines += [f"{PERSONS}:", *_indented(_table_head(one, folder, "key", person)), *_indented(_label())]
        lines += _indented(table_lines(one.columns, one.about, finds=False))
    attributes = {name for one in singles for name in one.names}
    for one in rows:
        name = one.name.split(".")[0] or "rows"
        while name in used:
            name += "_rows"
        used.add(name)
        of_rows = _rows_lines(one, person, orders, folder, attributes, len(tables) == 1)
        lines += [f"{value_text(name)}:", *_indented(of_rows)]
    return "\n".join(lines) + "\n"


def _rows_lines(
    table: TableDraft, person: str, orders: Sequence[str], folder: Path, attributes: set[str], is_alone: bool
) -> list[str]:
    """Return the lines of a table of rows.

    Args:
        attributes: the columns of the table of persons.
        is_alone: whether there is no other table, so that attributes stand in its rows.
    """
    order = next((name for name in orders if name in table.names), None)
    columns = [column for column in table.columns if column.name != order]
    names = {column.name for column in columns if column.name}
    fixed = table.fixed & names if is_alone else set()
    if not names - fixed:
        raise BadRecords(
            f"{table.name} has no column in which the rows of a {shortened(person)} differ"
            f"{'' if order is None else ', but for the times'}: expected one"
        )
    lines = _table_head(table, folder, "person", person)
    lines += _order_question(table) if order is None else [f"order: {value_text(order)}"]
    lines.append(f"max_rows: {OPEN}   # {_MOST_ROWS}")
    if order is not None:
        lines += _order_lines(table, next(column for column in table.columns if column.name == order))
    about = dict(table.about)
    if fixed:
        of_persons = [column for column in columns if column.name in fixed]
        lines += [*_label(), *table_lines(of_persons, about, "fixed", finds=False)]
        lines.insert(lines.index("fixed:") + 1, f"  # {_FIXED}")
        about = {}
    drafts = [_noted(column, attributes, table) for column in columns if column.name not in fixed]
    return lines + table_lines(drafts, about, finds=False)


def _noted(column: ColumnDraft, attributes: set[str], table: TableDraft) -> ColumnDraft:
    """Return the draft of a column of rows with a question where it looks like an attribute, left out where it is one."""
    if column.name not in table.fixed:
        return column
    if column.name in attributes:
        return ColumnDraft(column.name, {"type": "drop"}, {"type": _IN_PERSONS})
    return column.because("type", f"{column.why['type']}. Or {_SAME}" if "type" in column.why else _SAME)


def _order_question(table: TableDraft) -> list[str]:
    kinds = {column.name: column.fields["type"] for column in table.columns if column.name}
    times = [name for name, kind in kinds.items() if kind == "date"]
    times = times or [name for name in kinds if name in table.days]
    asked = f": {listed(times, 6)}?" if times else "?"
    return [f"# order: {OPEN}   # is there a column of times{asked} Draft it by  --order COLUMN; without it rows are a set"]


def _order_lines(table: TableDraft, column: ColumnDraft) -> list[str]:
    """Return the lines of the bounds of times and of distances.

    Raises:
        BadRecords: for a column that is drafted as no time.
    """
    kind = column.fields["type"]
    if kind not in _TIMES and column.name in table.days:
        told = {"type": _DAYS} if kind == "datetime" else {}
        column = ColumnDraft.of_type(column.name, "date")
        column = replace(column, why=column.why | told)
    elif kind not in _TIMES:
        reason = column.why.get("type", "") if kind == OPEN else f"is of type {kind}"
        advice = "; keep the day of each time in a column of its own" if kind == "datetime" else ""
        raise BadRecords(
            f"order={shortened(column.name)}: the column of {table.name} {reason or 'has no type'}: expected dates or "
            f"whole numbers, the times of rows{advice}"
        )
    without = ("missing", "missing_values", "decimals")
    start = replace(column, fields={key: value for key, value in column.fields.items() if key not in without})
    start = start.because("low", f"the first row of a person: {start.why['low']}")
    days = ", in days" if start.fields["type"] == "date" else ""
    gap = ColumnDraft.of_type("", "integer")
    gap = replace(gap, fields={"low": 0, "high": OPEN}, why={"high": _DISTANCE.format(days, gap.why["high"])})
    end = f"# end: {OPEN}   # the latest time of any row, such as the end of a study, if it is publicly known"
    return ["start:", *_indented(start.lines), "gap:", *_indented(gap.lines), end]


def _database(tables: Sequence[TableDraft], folder: Path) -> list[str]:
    """Return the line of the database that queries are of; a file of SQLite is named from the folder of the description."""
    for table in tables:
        if isinstance(table.source, DatabaseQuery):
            head, of_file, file = table.source.url.partition("sqlite:///")
            return [f"url: {value_text(table.source.url if head or not of_file else of_file + _from(folder, Path(file)))}"]
    return []


def _from(folder: Path, path: Path) -> str:
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()


def _table_head(table: TableDraft, folder: Path, key: str, person: str) -> list[str]:
    source = table.source
    if isinstance(source, DatabaseQuery):
        return [f"query: {value_text(source.query)}", f"{key}: {value_text(person)}"]
    return [f"file: {value_text(_from(folder, source))}", f"{key}: {value_text(person)}"]


def _label() -> list[str]:
    return [f"# label: {OPEN}   # an attribute that is to be predicted, if there is one"]


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]
