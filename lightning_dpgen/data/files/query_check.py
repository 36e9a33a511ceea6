"""Queries whose rows depend on one record each, told by their form: a part that could join records is refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.data.names import shown

_DIALECTS = {"postgresql": "postgres", "mariadb": "mysql", "mssql": "tsql"}
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

    dialect = _DIALECTS.get(system, system)
    if sqlglot.Dialect.get(dialect) is None:
        dialect = ""
    # The parser tells its log of what it does not know, and hands that back as a command, which is refused.
    logger = logging.getLogger("sqlglot")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        found = [tree for tree in sqlglot.parse(query, read=dialect or None) if tree is not None]
    except (SqlglotError, RecursionError, ValueError) as error:
        raise _unreadable(query, error) from None
    finally:
        logger.setLevel(level)
    if len(found) != 1:
        raise ValueError(f"several statements ({len(found)}): give one" if found else "no statement")
    return found[0]


def _unreadable(query: str, error: Exception) -> Unreadable:
    """Return the error for a query that is no SQL, with the place where the parser gave up."""
    faults = getattr(error, "errors", None)
    if not faults:
        return Unreadable("is no SQL: is a quote or a bracket left open?")
    at, before = str(faults[0].get("highlight") or ""), str(faults[0].get("start_context") or "").split()[-1:]
    where = f": {shown(at)} cannot stand {f'behind {shown(before[0])}' if before else 'there'}"
    # A keyword that is misspelled is taken for a name, and the word behind it is the one too many.
    return Unreadable(f"is no SQL{where}", [*query.split()[:1], *before, at])


def _named(node: Any) -> str:
    name = type(node).__name__
    if name == "Select":
        return "a subquery"
    if name == "Anonymous":
        return f"the function {shown(node.name)}"
    return _NAMES.get(name) or (node.key if not hasattr(node, "sql_name") else node.sql_name()).upper()
