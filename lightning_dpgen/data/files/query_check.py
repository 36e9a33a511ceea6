"""Queries whose rows depend on one record each, told by their form: a part that could join records is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
# Columns that a database makes up by where a row lies among others.
_PLACES = ("rownum", "rowid", "_rowid_", "ctid", "xmin", "xmax", "cmin", "cmax")


@dataclass(frozen=True)
class OneTable:
    """The table that a query is of."""

    name: str
    schema: str | None


def one_table(query: str, system: str) -> OneTable:
    """Return the table of a query of which each row depends on one row of that table alone.

    Args:
        query: in SQL.
        system: whose SQL it is, as the head of a URL names it, such as ``postgresql``.

    Raises:
        ValueError: naming the part because of which rows may depend on several records, or for what is no such query.

    Example:
        >>> one_table("select age, upper(sex) as sex from visits where ward = 3", "postgresql")
        OneTable(name='visits', schema=None)
        >>> one_table("select ward, count(*) from visits group by ward", "postgresql")
        Traceback (most recent call last):
        ValueError: COUNT (a row may depend on several records)
    """
    import sqlglot.expressions

    tree = _parsed(query, system)
    if not isinstance(tree, sqlglot.expressions.Select):
        raise ValueError(f"{_named(tree)} (a row may depend on several records)")
    allowed = {getattr(sqlglot.expressions, name) for name in _ALLOWED if hasattr(sqlglot.expressions, name)}
    for node in tree.walk():
        if type(node) not in allowed or (node is not tree and isinstance(node, sqlglot.expressions.Select)):
            raise ValueError(f"{_named(node)} (a row may depend on several records)")
        if isinstance(node, sqlglot.expressions.Column) and node.name.lower() in _PLACES:
            raise ValueError(f"{node.name} (says where a row lies among others)")
    tables = list(tree.find_all(sqlglot.expressions.Table))
    if len(tables) != 1 or not isinstance(tables[0].this, sqlglot.expressions.Identifier):
        raise ValueError("no single table behind FROM")
    return OneTable(tables[0].name, tables[0].db or None)


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
    except ValueError as error:
        if str(error).startswith("several"):
            raise
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
        said = " ".join(str(error).split())
        raise ValueError(f"it cannot be parsed ({shown(said[:80])})") from None
    finally:
        logger.setLevel(level)
    if len(found) != 1:
        raise ValueError(f"several statements ({len(found)}): give one" if found else "no statement")
    return found[0]


def _named(node: Any) -> str:
    name = type(node).__name__
    if name == "Select":
        return "a subquery"
    if name == "Anonymous":
        return f"the function {shown(node.name)}"
    return _NAMES.get(name) or (node.key if not hasattr(node, "sql_name") else node.sql_name()).upper()
