"""Rows of a database: a query of a URL, read by SQLAlchemy through a cursor on the server, a block at a time."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.common.passwords import check_url, without_passwords
from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.files.kinds import needs
from lightning_dpgen.data.files.values import ROWS_AT_ONCE, ValueRows
from lightning_dpgen.data.names import quote
from lightning_dpgen.sampling.errors import BadRecords

_SQLGLOT_NAMES = {"postgresql": "postgres", "mariadb": "mysql", "mssql": "tsql"}
# Everything that may stand in a query of one table: a row of the result is a function of one row. What is not listed is
# refused, such as functions that sqlglot does not know, which may look at other rows.
_ALLOWED = (
    "Select", "From", "Table", "TableAlias", "Identifier", "Column", "Star", "Alias", "Where", "Order", "Ordered",
    "Literal", "Boolean", "Null", "Paren", "Tuple", "And", "Or", "Not", "Xor", "EQ", "NEQ", "NullSafeEQ",
    "NullSafeNEQ", "LT", "LTE", "GT", "GTE", "Between", "In", "Is", "Like", "ILike", "Escape", "SimilarTo",
    "RegexpLike", "RegexpILike", "Add", "Sub", "Mul", "Div", "IntDiv", "Mod", "Neg", "DPipe", "Concat", "Case",
    "If", "Coalesce", "Nullif", "Cast", "TryCast", "DataType", "DataTypeParam", "Upper", "Lower", "Trim",
    "Substring", "Left", "Right", "Length", "Replace", "Round", "Abs", "Floor", "Ceil", "Sqrt", "Ln", "Log", "Exp",
    "Pow", "Sign", "Greatest", "Least", "Extract", "Year", "Month", "Day", "DateTrunc", "TimestampTrunc",
    "TsOrDsToDate", "TsOrDsToTimestamp", "Date", "Interval", "Var",
)  # fmt: skip
_NAMES = {
    "Group": "GROUP BY", "Limit": "LIMIT or TOP", "Offset": "OFFSET", "Fetch": "FETCH", "Distinct": "DISTINCT",
    "Having": "HAVING", "Window": "a window (OVER)", "Join": "a JOIN", "Lateral": "LATERAL", "With": "WITH",
    "Qualify": "QUALIFY", "TableSample": "TABLESAMPLE", "Subquery": "a subquery", "Exists": "a subquery",
    "Union": "UNION", "Intersect": "INTERSECT", "Except": "EXCEPT", "Into": "INTO", "Lock": "FOR UPDATE",
    "Rand": "random()",
}  # fmt: skip
# Columns that a database makes up by where a row lies among others. A table may have its own of such a name.
_PLACES = (
    "rownum", "rowid", "_rowid_", "oid", "ctid", "xmin", "xmax", "cmin", "cmax", "tableoid", "level", "ora_rowscn",
)  # fmt: skip
# The parts that a SELECT may have; others, such as settings of a system, are refused.
_PARTS = ("expressions", "from", "from_", "where", "order")
_KEYWORDS = ("select", "from", "where", "order", "and", "or", "not", "between", "like", "is", "in", "as")
# Systems in which names have no upper and lower case.
_CASELESS = ("sqlite", "mysql", "mariadb", "mssql", "duckdb")


class Unreadable(ValueError):
    """A text that the parser of SQL does not understand; `near` asks for the keyword that may be misspelled."""

    def __init__(self, problem: str, words: Iterable[str] = ()) -> None:
        super().__init__(problem)
        nears = (suggest(word, _KEYWORDS) for word in words if word.lower() not in _KEYWORDS)
        self.near = next(filter(None, nears), "")


@dataclass(frozen=True)
class Name:
    """A name in a query, and whether it is in quotes."""

    text: str
    quoted: bool

    def is_one_of(self, names: Iterable[str], system: str) -> bool:
        """Return whether a database finds exactly one of these under the name, and cannot mean another thing by it."""
        names = list(names)
        alike = [name for name in names if name.lower() == self.text.lower()]
        if system in _CASELESS:
            return len(alike) == 1
        return (self.text if self.quoted else self.text.lower()) in names


@dataclass(frozen=True)
class OneTable:
    """The table that a query is of, and the columns that it names.

    A system may understand other names as functions of the whole table, or of where a row lies in it, so each has to be
    that of a column.
    """

    table: Name
    schema: str | None
    columns: tuple[Name, ...]


def one_table(query: str, system: str) -> OneTable:
    """Return the table of a query of which each row depends on one row of that table alone.

    Args:
        query: in SQL.
        system: whose SQL it is, as the head of a URL names it, such as ``postgresql``.

    Raises:
        Unreadable: for what is no SQL.
        ValueError: naming the part because of which rows may depend on several records, or for what is no such query.

    Example:
        >>> one_table("select age, upper(sex) as sex from visits where ward = 3", "postgresql").table
        Name(text='visits', quoted=False)
        >>> one_table("select ward, count(*) from visits group by ward", "postgresql")
        Traceback (most recent call last):
        ValueError: COUNT (a row may depend on several records)
    """
    import sqlglot.expressions

    tree = _parsed(query, system)
    if isinstance(tree, sqlglot.expressions.Alias | sqlglot.expressions.Column):
        raise Unreadable("does not begin with SELECT", query.split()[:1])
    if not isinstance(tree, sqlglot.expressions.Select):
        raise ValueError(f"{_named(tree)} (a row may depend on several records)")
    allowed = {getattr(sqlglot.expressions, name) for name in _ALLOWED if hasattr(sqlglot.expressions, name)}
    columns = {}
    for node in tree.walk():
        if type(node) not in allowed or (node is not tree and isinstance(node, sqlglot.expressions.Select)):
            raise ValueError(f"{_named(node)} (a row may depend on several records)")
        if isinstance(node, sqlglot.expressions.In) and not node.expressions:
            raise ValueError("IN without a list of values (a row may depend on several records)")
        if isinstance(node, sqlglot.expressions.Column):
            if node.name.lower() in _PLACES:
                raise ValueError(f"{node.name} (depends on the place of a row among others)")
            columns[Name(node.name, bool(node.this.args.get("quoted")))] = None
    if other := [name for name, part in tree.args.items() if part and name not in _PARTS]:
        raise ValueError(f"{other[0].upper()} (a row may depend on several records)")
    if any(sign in query for sign in ("/*", "--", "#")):
        # Some systems run what stands in some comments.
        raise ValueError("a comment (a system may run it)")
    tables = list(tree.find_all(sqlglot.expressions.Table))
    if len(tables) != 1 or not isinstance(tables[0].this, sqlglot.expressions.Identifier):
        raise ValueError("not exactly one table after FROM")
    named = Name(tables[0].name, bool(tables[0].this.args.get("quoted")))
    return OneTable(named, tables[0].db or None, tuple(columns))


def check_reads(query: str, system: str) -> None:
    """Refuse what is known to change a database; a query that cannot be understood passes.

    Raises:
        ValueError: naming the part.

    Example:
        >>> check_reads("delete from visits", "sqlite")
        Traceback (most recent call last):
        ValueError: DELETE (a query that only reads begins with SELECT)
    """
    import sqlglot.expressions as parts

    try:
        tree = _parsed(query, system)
    except Unreadable:
        return
    changes = (parts.DML, parts.DDL, parts.Command, parts.Drop, parts.Alter, parts.Into, parts.Set, parts.Pragma)
    for node in tree.walk():
        if isinstance(node, changes) and not isinstance(node, parts.Query):
            raise ValueError(f"{_named(node)} (a query that only reads begins with SELECT)")


def _parsed(query: str, system: str) -> Any:
    import logging

    import sqlglot
    from sqlglot.errors import SqlglotError

    dialect = _SQLGLOT_NAMES.get(system, system)
    if sqlglot.Dialect.get(dialect) is None:
        dialect = ""
    # The parser tells its log of what it does not know, and hands that back as a command, which is refused.
    logger = logging.getLogger("sqlglot")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        statements = [tree for tree in sqlglot.parse(query, read=dialect or None) if tree is not None]
    except (SqlglotError, RecursionError, ValueError) as error:
        raise _unreadable(query, error) from None
    finally:
        logger.setLevel(level)
    if len(statements) != 1:
        raise ValueError(f"several statements ({len(statements)}): give one" if statements else "no statement")
    return statements[0]


def _unreadable(query: str, error: Exception) -> Unreadable:
    """Return the error for a query that is no SQL, with the place where the parser gave up."""
    faults = getattr(error, "errors", None)
    if not faults:
        return Unreadable("is no SQL: is a quote or a bracket left open?")
    at, before = str(faults[0].get("highlight") or ""), str(faults[0].get("start_context") or "").split()[-1:]
    where = f": {quote(at)} cannot stand {f'behind {quote(before[0])}' if before else 'there'}"
    # A keyword that is misspelled is taken for a name, and the word behind it is the one too many.
    return Unreadable(f"is no SQL{where}", [*query.split()[:1], *before, at])


def _named(node: Any) -> str:
    name = type(node).__name__
    if name == "Select":
        return "a subquery"
    if name == "Anonymous":
        return f"the function {quote(node.name)}"
    return _NAMES.get(name) or (node.key if not hasattr(node, "sql_name") else node.sql_name()).upper()


EXTRA = "database"
# Systems that SQLAlchemy knows, packages that teach it others, and packages of drivers with another name.
_SYSTEMS = ("sqlite", "postgresql", "mysql", "mariadb", "oracle", "mssql")
_DRIVERS = {"duckdb": "duckdb-engine", "snowflake": "snowflake-sqlalchemy", "bigquery": "sqlalchemy-bigquery"}
_PACKAGES = {"MySQLdb": "mysqlclient"}


@dataclass(frozen=True)
class DatabaseQuery:
    """Records of a database, each a row of a query.

    A row must depend on one record alone. Of a query that says nothing else than ``select ... from TABLE where ...``, with
    expressions of one row, its form shows that. Any other query needs the curator's word.

    Args:
        url: of the database, as SQLAlchemy has it, without a password: the driver finds that in its own way
            (``PGPASSWORD`` or ``~/.pgpass`` of PostgreSQL).
        query: in SQL.
        rows_independent: a declaration: adding or removing one record (of a person all rows of the person) adds or removes
            exactly its own rows, and changes no other row.

    Raises:
        ValueError: for a URL with a password, or what is no URL.

    Example:
        >>> DatabaseQuery("postgresql://ann@host/clinic", "select age, sex from visits where age >= 18").system
        'postgresql'
    """

    url: str
    query: str
    rows_independent: bool = False

    def __post_init__(self) -> None:
        check_url(self.url)
        if not self.query.strip():
            raise ValueError("expected a query, such as select age, sex from visits")

    @cached_property
    def system(self) -> str:
        """The kind of database, as the head of the URL names it."""
        return urlsplit(self.url).scheme.partition("+")[0]


class QueryRows(ValueRows):
    """The rows of a query; see `DatabaseQuery`. Nothing is written to the database.

    Raises:
        BadRecords: for a query that would have to be declared, one that fails, a server that does not answer, or a library
            that is missing.
    """

    def __init__(self, asked: DatabaseQuery) -> None:
        self._asked = asked
        self._where = f"the query of {without_passwords(asked.url)}"
        for library in ("sqlalchemy", "sqlglot"):
            needs(library, EXTRA, self._where)
        table = self._checked()
        with connected(asked.url) as connection:
            if table is not None:
                self._check_is_table(connection, table)
            with self._executed(connection) as result:
                names = list(result.keys())
        super().__init__(self._where, names)

    def value_blocks(self, columns: list[str]) -> Generator[list[tuple]]:
        places = [self.columns.index(name) for name in columns]
        with connected(self._asked.url) as connection, self._executed(connection) as result:
            for rows in result.partitions(ROWS_AT_ONCE):
                yield [tuple(row[place] for place in places) for row in rows]

    def _checked(self) -> OneTable | None:
        """Return the table whose rows are the records; None where their independence is declared."""
        asked = self._asked
        try:
            if asked.rows_independent:
                check_reads(asked.query, asked.system)
                return None
            return one_table(asked.query, asked.system)
        except Unreadable as error:
            raise BadRecords(
                f"{self._where} {error}; expected select COLUMNS from TABLE where CONDITION, in the SQL of {asked.system} "
                f"(or declare rows_independent=True, where the database takes it){error.near}"
            ) from None
        except ValueError as error:
            advice = (
                "; or declare rows_independent=True, if one record more or less changes no row but its own"
                if not asked.rows_independent
                else ""
            )
            raise BadRecords(
                f"{self._where} has {error}: expected select COLUMNS from TABLE where CONDITION, of expressions of one row"
                f"{advice}"
            ) from None

    def _check_is_table(self, connection: Any, table: OneTable) -> None:
        """Refuse a view, whose own query may join records, and names that are none of a table or its columns."""
        import sqlalchemy

        there, system = sqlalchemy.inspect(connection), self._asked.system
        names, views = there.get_table_names(schema=table.schema), there.get_view_names(schema=table.schema)
        declare = "or declare rows_independent=True"
        if any(view.lower() == table.table.text.lower() for view in views):
            raise BadRecords(
                f"{self._where}: {quote(table.table.text)} is a view, so a row may depend on several records: name a "
                f"table, {declare}"
            )
        same = [name for name in names if table.table.is_one_of([name], system)]
        if len(same) != 1:
            raise BadRecords(
                f"{self._where}: the default schema has no table {quote(table.table.text)}: it has "
                f"{listed(sorted(names)) or 'none'}; name it with its own schema, as in clinic.visits"
            )
        columns = [str(column["name"]) for column in there.get_columns(same[0], schema=table.schema)]
        if other := [name.text for name in table.columns if not name.is_one_of(columns, system)]:
            raise BadRecords(
                f"{self._where}: {quote(same[0])} has no such column: {quote(other[0])}; it has "
                f"{listed(columns)}: name one of them, {declare}"
            )

    @contextmanager
    def _executed(self, connection: Any) -> Iterator[Any]:
        """Execute the query on a cursor of the server, where there is one."""
        options = {"stream_results": True, "no_parameters": True, "max_row_buffer": ROWS_AT_ONCE}
        result = connection.execution_options(**options).exec_driver_sql(self._asked.query.strip().rstrip(";"))
        try:
            if not result.returns_rows:
                raise BadRecords(f"{self._where} gives no rows: expected one that begins with SELECT")
            yield result
        finally:
            result.close()


@contextmanager
def connected(url: str) -> Iterator[Any]:
    """Open a connection of SQLAlchemy that only reads: a file that is not there is not made, and a server is told.

    Args:
        url: without a password.

    Raises:
        BadRecords: for whatever the driver or the server refuses, in one line.
    """
    engine, where = engine_of(url), without_passwords(url)
    from sqlalchemy.exc import SQLAlchemyError

    system, file = engine.dialect.name, engine.url.database
    if system == "sqlite" and not (file and Path(file).is_file()):
        raise BadRecords(f"{where}: no file {file or 'is named'}: expected sqlite:///FILE, or sqlite:////FOLDER/FILE")
    options = {"postgresql_readonly": True} if system == "postgresql" else {}
    try:
        with engine.connect().execution_options(**options) as connection:
            if system == "sqlite":
                connection.exec_driver_sql("PRAGMA query_only=ON")
            yield connection
    except SQLAlchemyError as error:
        raise described_error(url, error) from None


def engine_of(url: str) -> Any:
    """Return an engine of SQLAlchemy, which keeps no connection open.

    Raises:
        BadRecords: for what is no URL of a database, or a driver that is missing.
        ValueError: for a URL with a password.
    """
    where = without_passwords(url)
    needs("sqlalchemy", EXTRA, where)
    import sqlalchemy
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError
    from sqlalchemy.pool import NullPool

    check_url(url)
    try:
        return sqlalchemy.create_engine(url, poolclass=NullPool, hide_parameters=True)
    except NoSuchModuleError:
        system = urlsplit(url).scheme.partition("+")[0]
        known = [*_SYSTEMS, *_DRIVERS]
        if system in known:
            advice = f"pip install {_DRIVERS.get(system, system)}"
        else:
            advice = f"expected one of {', '.join(known)}, or another dialect of SQLAlchemy{suggest(system, known)}"
        raise BadRecords(f"{where}: no driver of this kind is installed: {advice}") from None
    except ModuleNotFoundError as error:
        package = _PACKAGES.get(error.name, error.name)
        raise BadRecords(f"{where}: the driver {error.name} is not installed: pip install {package}") from None
    except (ArgumentError, ValueError) as error:
        raise BadRecords(f"{where}: is not the URL of a database: {_said(error)}") from None


def described_error(url: str, error: Exception) -> BadRecords:
    """Return the error for what a driver or a server has refused."""
    return BadRecords(f"{without_passwords(url)}: {_said(getattr(error, 'orig', None) or error)}")


def _said(error: Any) -> str:
    """Return what a driver says, in one line, without an address of its pages or a password."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("(Background")]
    text = without_passwords(" ".join(lines) or type(error).__name__)
    return text if len(text) <= 200 else f"{text[:195]}..."
