"""The file that describes histories: where their tables are, and what is publicly known of persons and of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_dpgen.common.nearest_word import nearest, suggest_file
from lightning_dpgen.common.passwords import check_url, without_passwords
from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.files.database import DatabaseQuery
from lightning_dpgen.data.files.kinds import is_known
from lightning_dpgen.data.files.text import MissingData, check_there
from lightning_dpgen.data.histories.reading import HistoryTables
from lightning_dpgen.data.histories.row_table import RowOrder, RowTable
from lightning_dpgen.data.histories.rules import is_rule, once_texts
from lightning_dpgen.data.histories.schema import PERSONS, HistorySchema
from lightning_dpgen.data.tables.column import BadSchema, shortened
from lightning_dpgen.data.tables.description import PRIVATE
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.reading import Table
from lightning_dpgen.data.tables.row_rules import CONSTRAINTS
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_file import read_yaml, schema_of, unfilled_problem
from lightning_dpgen.data.tables.schema_keys import TableKeys, column_of

# The keys of the table of persons, and of a table of rows, beside those of any table.
_OF_PERSONS = ("file", "query", "key")
_OF_ROWS = ("file", "query", "person", "order", "max_rows", "keep", "start", "gap", "end", "share", "fixed")

# The key of the database that queries are of, and databases that are files.
_URL, _IN_FILES = "url", ("sqlite", "duckdb")


@dataclass(frozen=True)
class HistoryDescription:
    """A description of histories, as a file declares it.

    Args:
        schema: with bins where none are declared.
        files: the tables.
    """

    schema: HistorySchema
    files: HistoryTables


def read_description(
    path: str | Path | Mapping[str, Any],
    bins: int,
    *,
    rows_independent: bool = False,
    tables: Mapping[str, Table] | None = None,
) -> HistoryDescription:
    """Read a description of histories from a YAML file; files that it names are beside it.

    Args:
        path: of the file; or what it says as a dict.
        tables: by their names, which take the place of those that the description names.
        bins: of columns of numbers, times and distances that declare none.
        rows_independent: of its queries, as of `DatabaseQuery`.

    Raises:
        BadSchema: naming the part, the column, the key, and what was expected.
        MissingData: if there is no such file.
    """
    if isinstance(path, Mapping):
        fields, path = dict(path), Path("schema")
    else:
        path = Path(path)
        check_there(path, "path")
        if is_known(path):
            raise BadSchema(
                f"{path}: is a table: expected the file that describes tables of histories, which dpgen schema --person "
                f"COLUMN {path.name} drafts"
            )
        fields = read_yaml(path, "events")
    if PERSONS in fields and fields[PERSONS] is None:
        raise BadSchema(f"{path}: persons: expected file, key and columns; or leave it out")
    url = fields.pop(_URL) if isinstance(fields.get(_URL), str) else None
    rows = {name: of_rows for name, of_rows in fields.items() if name != PERSONS}
    if not rows:
        raise BadSchema(
            f"{path}: no table of rows: expected persons, and tables of their rows under names of their own, such as events"
        )
    for problem in unfilled_problem(fields, str(path)):
        raise problem
    try:
        url = None if url is None else _database(url, path.parent)
        return _description(fields.get(PERSONS), rows, _Place(path.parent, url, rows_independent, tables), bins)
    except BadSchema as error:
        raise BadSchema(str(error), place=str(path)) from None


@dataclass(frozen=True)
class _Place:
    """Where tables are: files in a folder, queries of a database, or given."""

    folder: Path
    url: str | None
    rows_independent: bool
    given: Mapping[str, Table] | None

    def table(self, name: str, fields: Mapping[str, Any]) -> Table:
        """Return where a table is that names a file or a query, or is given."""
        if self.given is not None:
            return self.given[name]
        if "query" not in fields:
            return self.folder / _text(name, "file", fields.get("file"))
        query = _text(name, "query", fields["query"])
        if "file" in fields:
            raise BadSchema("expected a file or a query, not both", key="query", place=name)
        if self.url is None:
            raise BadSchema(
                "is of no database: expected one above the tables, as in url: sqlite:///clinic.db", key="query", place=name
            )
        try:
            return DatabaseQuery(self.url, query, self.rows_independent)
        except ValueError as error:
            raise BadSchema(f"{shortened(query)}: {error}", key="query", place=name) from None


def _database(url: str, folder: Path) -> str:
    """Return the URL of a database; one that is a file is beside the description, as other files are."""
    try:
        check_url(url)
    except ValueError as error:
        raise BadSchema(f"{without_passwords(url)}: {error}", key=_URL) from None
    system, is_file, file = url.partition(":///")
    if not is_file or system.partition("+")[0] not in _IN_FILES:
        return url
    return f"{system}:///{folder.absolute() / file}"


def _description(persons: Any, tables: Mapping[str, Any], place: _Place, bins: int) -> HistoryDescription:
    parted = {name: _parted(name, rows, _OF_ROWS) for name, rows in tables.items()}
    fixed = _fixed(persons, parted)
    attributes, of_persons = None, {}
    if persons is not None:
        of_persons, table_of_persons = _parted(PERSONS, persons, _OF_PERSONS)
        if not table_of_persons.get("columns"):
            raise BadSchema("a table of persons without columns: leave it out", key="columns", place=PERSONS)
        attributes = _table(PERSONS, table_of_persons, bins)
    elif fixed is not None:
        ((name, (_, table_of_rows)),) = parted.items()
        label = {"label": table_of_rows.pop("label")} if table_of_rows.get("label") in fixed else {}
        attributes = _table(name, {"columns": fixed} | label, bins)
    described = tuple(_rows(name, *own, bins) for name, own in parted.items())
    if fixed is not None and (twice := [name for name in described[0].names if name in fixed]):
        raise BadSchema("appears twice: expected each name once, under fixed or columns", twice[0], place=described[0].name)
    key = _text(PERSONS, "key", of_persons.get("key", described[0].person))
    if place.given is not None:
        names = [*([] if persons is None else [PERSONS]), *parted]
        if set(place.given) != set(names):
            raise BadSchema(
                f"describes {listed(names)}, and the tables are {listed(place.given) or 'none'}: expected the same"
            )
    rows = {name: place.table(name, own) for name, (own, _) in parted.items()}
    files = HistoryTables(rows, None if persons is None else place.table(PERSONS, of_persons))
    if place.url is not None and place.given is None and not files.queries:
        raise BadSchema("no table has a query: expected one, or no url", key=_URL)
    return HistoryDescription(HistorySchema(attributes, described, key), files)


def _fixed(persons: Any, parted: Mapping[str, tuple[dict[str, Any], dict[str, Any]]]) -> Mapping[str, Any] | None:
    """Return the attributes that stand in each row of a person; None where there are none."""
    for name, (own, _) in parted.items():
        if "fixed" not in own:
            continue
        fixed = own["fixed"]
        if persons is not None:
            raise BadSchema(
                "expected attributes in the table of persons, or under fixed, not both", key="fixed", place=name
            )
        if len(parted) > 1:
            raise BadSchema("expected one table of rows, or attributes in a table of persons", key="fixed", place=name)
        if not (isinstance(fixed, Mapping) and fixed):
            raise BadSchema(
                f"{shortened(fixed)}: expected columns, as in fixed: {{sex: {{type: boolean}}}}", key="fixed", place=name
            )
        return fixed
    return None


def _rows(name: str, of_rows: Mapping[str, Any], table: Mapping[str, Any], bins: int) -> RowTable:
    if "max_rows" not in of_rows:
        raise BadSchema("missing: expected the largest number of rows of a person that count", key="max_rows", place=name)
    table, rules = _without_rules(name, table)
    return RowTable(
        name, _table(name, table, bins), of_rows["max_rows"], _order(name, of_rows, bins), of_rows.get("keep", "first"),
        of_rows.get("share", 1.0), _text(name, "person", of_rows.get("person")), rules,
    )  # fmt: skip


def _without_rules(place: str, table: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Return the keys of a table without what goes beyond a row, and that."""
    table, rules = dict(table), list[Any]()
    if isinstance(columns := table.get("columns"), Mapping):
        table["columns"] = dict(columns)
        for name, column in columns.items():
            if isinstance(column, Mapping) and "once" in column:
                try:
                    rules += once_texts(str(name), column["once"])
                except ValueError as error:
                    raise BadSchema(str(error), str(name), "once", place) from None
                table["columns"][name] = {key: value for key, value in column.items() if key != "once"}
    if isinstance(constraints := table.get(CONSTRAINTS), list):
        rules += filter(is_rule, constraints)
        table[CONSTRAINTS] = [one for one in constraints if not is_rule(one)]
    return table, tuple(rules)


def _parted(place: str, fields: Any, own: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys of a table that are those of histories, and those of any table."""
    if not isinstance(fields, Mapping):
        raise BadSchema(f"{shortened(fields)}: expected keys and values, such as file and columns", place=place)
    known = (*own, "columns", *TableKeys.model_fields)
    for key in fields:
        if key not in known:
            near = nearest(key, known, shortened=True)
            expected = f"expected one of {', '.join(known)}" if near is None else f"did you mean {near!r}?"
            raise BadSchema(f"unknown here: {expected}", key=str(key), place=place)
    return {key: fields[key] for key in own if key in fields}, {key: x for key, x in fields.items() if key not in own}


def _table(place: str, fields: Mapping[str, Any], bins: int) -> TableSchema:
    try:
        schema = schema_of(fields)
        if schema.open:
            raise BadSchema("is to be found privately: expected all of it declared", schema.open[0].name)
        return schema.with_bins(bins)
    except BadSchema as error:
        raise BadSchema(error.problem, error.column, error.key, place) from None


def _order(place: str, fields: Mapping[str, Any], bins: int) -> RowOrder | None:
    if "order" not in fields:
        if given := [key for key in ("start", "gap", "end", "keep") if key in fields]:
            raise BadSchema("applies to rows in an order: expected order, the column of times", key=given[0], place=place)
        return None
    name = _text(place, "order", fields["order"])
    parts = []
    for key, usual in (("start", {}), ("gap", {"type": "integer", "low": 0})):
        declared = fields.get(key)
        if not isinstance(declared, Mapping):
            expected = "{low: 2015-01-01, high: 2024-12-31}" if key == "start" else "{high: 365}"
            raise BadSchema(f"{shortened(declared)}: expected bounds, as in {key}: {expected}", key=key, place=place)
        if PRIVATE in declared.values():
            raise BadSchema(f"{PRIVATE}: expected bounds from public knowledge, since none are found", name, key, place)
        kind = {"type": "date" if isinstance(declared.get("low"), str) else "integer"} if key == "start" else {}
        parts.append(usual | kind | declared)
        try:
            column = column_of(name, parts[-1])
        except BadSchema as error:
            raise BadSchema(error.problem, error.column, error.key, f"{place}: {key}") from None
        if not isinstance(column, Numeric):
            raise BadSchema(f"expected whole numbers{' or dates' * (key == 'start')}, with bounds", name, key, place)
    try:
        order = RowOrder.of(name, *parts, fields.get("end"))
    except BadSchema as error:
        raise BadSchema(error.problem, error.column, error.key, place) from None
    return RowOrder(name, order.start.with_bins(bins), order.gap.with_bins(bins), order.end)


def _text(place: str, key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise BadSchema(f"{'missing' if value is None else shortened(value)}: expected a name", key=key, place=place)
    return value


def check_files(files: HistoryTables) -> list[Path]:
    """Return the files of the tables, none of them read.

    Raises:
        MissingData: if one is not there.
    """
    paths = [Path(source) for source in files.all if isinstance(source, str | Path)]
    for path in paths:
        if not path.exists():
            raise MissingData(f"no file {path}, which the description of histories names{suggest_file(path)}")
    parts = (path.rglob("*") if path.is_dir() else [path] for path in paths)
    return [file for part in parts for file in sorted(part) if file.is_file()]
