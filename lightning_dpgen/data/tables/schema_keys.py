"""Descriptions of columns by the types that schemas have for them, and of a whole table; their keys for people and editors.

python -m lightning_dpgen.data.tables.schema_keys    prints the tables of docs/reference/schema.md
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema
from pydantic.fields import FieldInfo

from lightning_dpgen.common.nearest_word import nearest, suggest
from lightning_dpgen.data.declarations import as_text
from lightning_dpgen.data.files.text import CHARSETS, UTF8, charset_of
from lightning_dpgen.data.tables.categories import BooleanDescription, CategoryDescription
from lightning_dpgen.data.tables.column import BadSchema, Column, is_text, shortened
from lightning_dpgen.data.tables.description import (
    TRAILING,
    ColumnDescription,
    Description,
    Listed,
    Text,
    key,
    refuse,
)
from lightning_dpgen.data.tables.made_up import DropDescription, FakeDescription
from lightning_dpgen.data.tables.numeric_description import (
    DateDescription,
    DatetimeDescription,
    IntegerDescription,
    NumberDescription,
    TimeDescription,
)
from lightning_dpgen.data.tables.search import Search
from lightning_dpgen.data.tables.written_form import (
    ANY_DECIMAL,
    ANY_THOUSANDS,
    NEEDED,
    DecimalSign,
    ThousandsSign,
    problem_of_signs,
)

_COLUMNS = "each column by its name, in the order of the synthetic table"
# The longest name of a column.
_LONGEST_NAME = 1000
_LONGEST_MARK = 100
_TEXT = {"type": "string"}
_SIGN = _TEXT | {"minLength": 1, "maxLength": 1}
_COMMENT = "a text by which lines begin that are no records, or a list of such, as in '#'"


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": [*properties], "properties": properties, "additionalProperties": False}


_MAPPING = _object(column=_TEXT, of=_TEXT, mapping={"type": "object", "minProperties": 1})
_ALLOWED = _object(
    columns={"type": "array", "minItems": 2, "items": _TEXT},
    allowed={"type": "array", "minItems": 1, "items": {"type": "array"}},
)
_STATEMENTS = {"type": "array", "items": {"anyOf": [_TEXT, _MAPPING, _ALLOWED]}}


KINDS: dict[str, type[ColumnDescription]] = {
    "category": CategoryDescription,
    "boolean": BooleanDescription,
    "integer": IntegerDescription,
    "number": NumberDescription,
    "date": DateDescription,
    "datetime": DatetimeDescription,
    "time": TimeDescription,
    "drop": DropDescription,
    "fake": FakeDescription,
}


def _check_marks(marks: tuple[str, ...]) -> tuple[str, ...]:
    for mark in marks:
        if not mark.strip() or not mark.isprintable() or mark[0] in '" ' or len(mark) > _LONGEST_MARK:
            refuse("comment", mark, f"{_COMMENT}, without a quote or a space in front")
    return marks


def _separator(sign: str) -> str:
    if len(sign) != 1 or not sign.isascii() or sign in '"\r\n':
        raise ValueError("one character, such as ';'")
    return sign


def _charset(name: str) -> str:
    if (charset := charset_of(name)) is None:
        raise ValueError(f"an encoding: {', '.join(CHARSETS)}")
    return charset


_Constraints = Annotated[
    Any, AfterValidator(lambda value: tuple(value) if isinstance(value, list) else value), WithJsonSchema(_STATEMENTS)
]


class TableKeys(Description):
    """The keys of a whole table, beside its columns."""

    label: Text | None = None
    """the column that holds the class of a record: of categories, true and false, or few whole numbers"""
    header: bool = True
    """whether a text file begins with the names of columns; otherwise positions identify the columns"""
    skip_rows: int = key(0, expected="a number of lines, at most 1,000", ge=0, le=1000)
    """the number of lines of a text file, or rows of a workbook, above the header (or the first record), such as a title;
    written files have as many empty lines there"""
    comment: Annotated[
        tuple[Text, ...],
        Listed,
        BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
        AfterValidator(_check_marks),
        WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}),
    ] = key((), expected=_COMMENT, max_length=20)
    """the beginning of lines that are no records (in a workbook, of the first cell), or a list of such: `"#"`, or `["#",
    Total]`; a word is whole, and a field in quotes is no comment"""
    separator: Annotated[str, AfterValidator(_separator), WithJsonSchema(_SIGN)] | None = None
    """the character between the fields of a text file (default: a tab in a .tsv file, else a comma)"""
    charset: Annotated[str, AfterValidator(_charset)] = key(UTF8, expected=f"an encoding: {', '.join(CHARSETS)}")
    """the encoding of a text file, such as `latin-1`, `cp1252` or `utf-16`"""
    quotes: Literal["needed", "texts", "all"] = NEEDED
    """which fields are written in double quotes: `needed` (those that hold a separator, a quote or a line break), `texts`
    (categories, words and names of columns) or `all`; files with any quotes can be read"""
    decimal: DecimalSign = key(".", expected=ANY_DECIMAL)
    """the sign before the decimals of numbers, if they are text (default: `.`)"""
    thousands: ThousandsSign = key("", expected=ANY_THOUSANDS)
    """the sign between the thousands of numbers, if they are text (`.`, `,`, `'` or a space)"""
    # Most people write a year without quotes.
    table: Annotated[Text, BeforeValidator(lambda name: str(name) if type(name) is int else name)] | None = key(
        None, expected="the name of a sheet or of a table", min_length=1
    )
    """the sheet of a workbook, or the table of a database (default: the only one)"""
    strip: bool = True
    """whether spaces around the fields of a text file are removed"""
    types: dict[str, str] = key({}, expected="a type for each of some columns")
    """the types in which frames and Parquet files have columns, by their names, as pandas or Arrow call them (`int8`,
    `Int64`, `boolean`, `float32`, `category`, `ordered category`, `string[python]`, `datetime64[us]`, `object`,
    `decimal128`, `int8[pyarrow]`); each must hold every value that the schema allows (default: those of the frame or
    Parquet file that is learned from, where they hold every such value)"""
    constraints: _Constraints = ()
    """statements about several columns that are true of every record and every synthetic row (below)"""
    found_constraints: _Constraints = ()
    """statements that are true only of synthetic rows; a release has them from noisy tables"""
    description: Text = key("", expected="text")
    """words for people"""

    def check(self) -> None:
        for mark in self.comment:
            if mark[0] == (self.separator or ","):
                expected = "another text than the separator, by which lines with an empty first field begin"
                refuse("comment", mark, expected)
        if problem := problem_of_signs(self.decimal, self.thousands):
            raise BadSchema(problem, key="decimal")


def describe(name: str, fields: Any) -> ColumnDescription:
    """Return the description of a column by ``type``, and by the keys of that type, as `Description.dump` does.

    Raises:
        BadSchema: if that makes no sense, naming column and key.

    Example:
        >>> describe("age", {"type": "integer", "low": "private", "high": "private"}).unfinished
        'bounds'
        >>> describe("age", {"type": "integer", "low": 0, "hihg": 9})
        Traceback (most recent call last):
        lightning_dpgen.data.tables.column.BadSchema: column 'age': hihg: unknown here: did you mean 'high'?
    """
    if not is_text(name) or not 0 < len(name) <= _LONGEST_NAME:
        raise BadSchema(f"expected text of 1 to {_LONGEST_NAME} characters", name, "name")
    if not isinstance(fields, dict) or not all(isinstance(word, str) for word in fields):
        raise BadSchema(f"{shortened(fields)}: expected keys and values, such as type: integer", name)
    kind = fields.get("type")
    if kind is None:
        near = nearest("type", fields)
        hint = f"; did you mean type in place of {shortened(near)}?" if near else ""
        raise BadSchema(f"must be given: expected one of {', '.join(KINDS)}{hint}", name, "type")
    if not isinstance(kind, str) or kind not in KINDS:
        hint = suggest(kind, KINDS, "'{}'", shortened=True)
        raise BadSchema(f"{shortened(kind)}: expected one of {', '.join(KINDS)}{hint}", name, "type")
    for word in [word for word in fields if word not in KINDS[kind].model_fields]:
        if word.isdecimal() and fields[word] is None:
            raise BadSchema("is the rest of a value with a comma: expected a decimal point, as in 1.5", name, word)
        if others := [other for other, one in KINDS.items() if word in one.model_fields]:
            *first, last = others
            kinds = f"{', '.join(first)} or {last}" if first else last
            raise BadSchema(f"expected only with type: {kinds}", name, word)
    try:
        return KINDS[kind].of(fields)
    except BadSchema as error:
        raise BadSchema(error.problem, name, error.key) from None


def column_of(name: str, fields: Any) -> Column | Search:
    """Return the column that is described so, or what is to be found of it privately.

    Raises:
        BadSchema: if that makes no sense, naming column and key.

    Example:
        >>> column_of("sex", {"type": "category", "values": ["F", "M"]}).choices
        2
    """
    declared = describe(name, fields)
    return Search(name, declared) if declared.unfinished else declared.build(name)


def keys_of(kind: type[Description]) -> dict[str, FieldInfo]:
    """Return the keys that a column of a type may have, beside `type`; those of most types last.

    Example:
        >>> list(keys_of(KINDS["boolean"]))
        ['words', 'missing', 'missing_values', 'outside', 'description']
    """
    fields = kind.model_fields
    names = [name for name in fields if name not in ("type", *TRAILING)] + [name for name in TRAILING if name in fields]
    return {name: fields[name] for name in names}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the file of a schema, by which editors complete and check it.

    It covers keys, types and ranges; `read_schema` checks which of them fit together.
    """
    columns = {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {"$ref": "#/$defs/column"},
        "description": _COLUMNS,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The schema of a table, for dpgen",
        "type": "object",
        "required": ["columns"],
        "additionalProperties": False,
        "properties": {"columns": columns} | _properties(TableKeys),
        "$defs": {"column": {"type": "object", "required": ["type"], "oneOf": [_column(kind) for kind in KINDS]}},
    }


def _column(name: str) -> dict[str, Any]:
    kind = KINDS[name]
    told = {"const": name, "description": f"{kind.holds}; decide: {kind.decide}"}
    return {"properties": {"type": told} | _properties(kind), "required": ["type"], "additionalProperties": False}


def _properties(kind: type[Description]) -> dict[str, Any]:
    forms, keys = kind.model_json_schema()["properties"], keys_of(kind)
    words = ("title", "default", "description", "expected")
    plain = {name: {word: value for word, value in forms[name].items() if word not in words} for name in keys}
    # A key with null is the same as no key.
    told = {name: "{} (default: {})".format(*meaning_of(field)) for name, field in keys.items()}
    return {name: {"anyOf": [plain[name], {"type": "null"}], "description": told[name]} for name in keys}


def meaning_of(field: FieldInfo) -> tuple[str, str]:
    """Return the meaning of a key, and its default, in words."""
    meaning, _, default = " ".join((field.description or "").split()).partition(" (default: ")
    usual = "none" if field.default in (None, "", (), {}) else as_text(field.default)
    return meaning, default.removesuffix(")") or usual


def tables() -> str:
    """Return the tables of keys, as docs/reference/schema.md has them."""
    head = f"| `columns` | {_COLUMNS} | must be given |"
    lines = ["## Keys of the table", "", *_rows(keys_of(TableKeys), head), "", "## Types of columns", ""]
    lines += ["| `type` | values | decide | keys beside those of all |", "| --- | --- | --- | --- |"]
    every: dict[str, FieldInfo] = {}
    for name, kind in KINDS.items():
        named = ", ".join(f"`{key}`" for key in keys_of(kind) if key != "description")
        lines.append(f"| `{name}` | {kind.holds} | {kind.decide} | {named} |")
        every |= keys_of(kind)
    ordered = {name: every.pop(name) for name in [name for name in every if name not in TRAILING]} | every
    return "\n".join([*lines, "", "## Keys of a column", "", *_rows(ordered)]) + "\n"


def _rows(keys: dict[str, FieldInfo], *first: str) -> list[str]:
    told = ["| `{}` | {} | {} |".format(name, *meaning_of(field)) for name, field in keys.items()]
    return ["| key | meaning | default |", "| --- | --- | --- |", *first, *told]


if __name__ == "__main__":
    print(tables(), end="")
