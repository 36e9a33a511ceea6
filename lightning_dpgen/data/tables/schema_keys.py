"""The keys that the file of a schema may have: each declared once, for docs/reference/schema.md and for editors.

python -m lightning_dpgen.data.tables.schema_keys    prints the tables of docs/reference/schema.md
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_dpgen.data.reading import OUTSIDE
from lightning_dpgen.data.tables.bins import TRANSFORMS
from lightning_dpgen.data.tables.categories import MANY
from lightning_dpgen.data.tables.datetimes import RESOLUTIONS
from lightning_dpgen.data.tables.numeric import MOST_BINS
from lightning_dpgen.data.tables.open_columns import PRIVATE
from lightning_dpgen.data.tables.unmodelled import FAKES
from lightning_dpgen.data.tables.written_form import NEEDED, QUOTES

_TEXT, _FLAG, _VALUE = {"type": "string"}, {"type": "boolean"}, {"type": ["number", "string"]}
_PRIVATE = {"const": PRIVATE}
_DECIMAL, _THOUSANDS = {"enum": [".", ","]}, {"enum": ["", ".", ",", "'", " "]}
_BOUND = {"anyOf": [{"type": "number"}, {"type": "string", "description": "a date or time, as 2021-12-31"}, _PRIVATE]}


@dataclass(frozen=True)
class Key:
    """A key of a table or a column.

    Args:
        name, meaning, default: as docs/reference/schema.md tells them; the default in words.
        form: the values that it may have, as a JSON Schema.
    """

    name: str
    meaning: str
    default: str
    form: Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """A type of columns: its values in words, the keys beside those of all, and the one thing to decide about it."""

    values: str
    keys: tuple[str, ...]
    decide: str


_MAPPING = {
    "type": "object",
    "required": ["column", "of", "mapping"],
    "properties": {"column": _TEXT, "of": _TEXT, "mapping": {"type": "object", "minProperties": 1}},
    "additionalProperties": False,
}
_ALLOWED = {
    "type": "object",
    "required": ["columns", "allowed"],
    "properties": {
        "columns": {"type": "array", "minItems": 2, "items": _TEXT},
        "allowed": {"type": "array", "minItems": 1, "items": {"type": "array"}},
    },
    "additionalProperties": False,
}
_CONSTRAINTS = {"type": "array", "items": {"anyOf": [_TEXT, _MAPPING, _ALLOWED]}}
TABLE_KEYS = (
    Key(
        "columns",
        "each column by its name, in the order of the synthetic table",
        "must be given",
        {"type": "object", "minProperties": 1},
    ),
    Key(
        "label",
        "the column that holds the class of a record: of categories, true and false, or few whole numbers",
        "none",
        _TEXT,
    ),
    Key(
        "header",
        "whether a text file begins with the names of columns; otherwise positions identify the columns",
        "true",
        _FLAG,
    ),
    Key(
        "skip_rows",
        "the number of lines of a text file, or rows of a workbook, above the header (or the first record), such as a "
        "title; written files have as many empty lines there",
        "0",
        {"type": "integer", "minimum": 0, "maximum": 1000},
    ),
    Key(
        "comment",
        'the beginning of lines that are no records (in a workbook, of the first cell), or a list of such: `"#"`, or '
        '`["#", Total]`; a word is whole, and a field in quotes is no comment',
        "none",
        {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]},
    ),
    Key(
        "separator",
        "the character between the fields of a text file",
        "a tab in a .tsv file, else a comma",
        {"type": "string", "minLength": 1, "maxLength": 1},
    ),
    Key(
        "charset",
        "the encoding of a text file, such as `latin-1`, `cp1252` or `utf-16`",
        "utf-8",
        _TEXT,
    ),
    Key(
        "quotes",
        "which fields are written in double quotes: `needed` (those that hold a separator, a quote or a line break), "
        "`texts` (categories, words and names of columns) or `all`; files with any quotes can be read",
        NEEDED,
        {"enum": list(QUOTES)},
    ),
    Key(
        "decimal",
        "the sign before the decimals of numbers, if they are text",
        "`.`",
        _DECIMAL,
    ),
    Key(
        "thousands",
        "the sign between the thousands of numbers, if they are text (`.`, `,`, `'` or a space)",
        "none",
        _THOUSANDS,
    ),
    Key(
        "table",
        "the sheet of a workbook, or the table of a database",
        "the only one",
        _TEXT,
    ),
    Key(
        "strip",
        "whether spaces around the fields of a text file are removed",
        "true",
        _FLAG,
    ),
    Key(
        "types",
        "the types in which frames and Parquet files have columns, by their names, as pandas or Arrow call them (`int8`, "
        "`Int64`, `boolean`, `float32`, `category`, `ordered category`, `string[python]`, `datetime64[us]`, `object`, "
        "`decimal128`, `int8[pyarrow]`); each must hold every value that the schema allows",
        "those of the frame or Parquet file that is learned from, where they hold every such value",
        {"type": "object", "additionalProperties": _TEXT},
    ),
    Key(
        "constraints",
        "statements about several columns that are true of every record and every synthetic row (below)",
        "none",
        _CONSTRAINTS,
    ),
    Key(
        "found_constraints",
        "statements that are true only of synthetic rows; a release has them from noisy tables",
        "none",
        _CONSTRAINTS,
    ),
    Key(
        "description",
        "words for people",
        "none",
        _TEXT,
    ),
)
COLUMN_KEYS = (
    Key(
        "values",
        "all possible values; `private` has them found with a share of the budget",
        "must be given",
        {"anyOf": [{"type": "array", "minItems": 1, "items": {"type": ["string", "integer", "boolean"]}}, _PRIVATE]},
    ),
    Key(
        "other",
        "the value in this list that stands for unlisted values (`outside: clamp`)",
        "none",
        {"type": ["string", "integer", "boolean"]},
    ),
    Key(
        "ignore_case",
        "whether upper and lower case are alike in texts that are read; synthetic tables have them as `values` does",
        "false",
        _FLAG,
    ),
    Key(
        "counts",
        "about how many records have each value, in the order of `values`, if that is public and need not be bought: rare "
        "values are then learned together, in groups",
        f"none: bought with `bins_share` where there are more than {MANY:,} values, else each value is learned by itself",
        {"type": "array", "items": {"type": "number"}},
    ),
    Key(
        "counts_noise",
        "the standard deviation of the noise in a count of `counts`",
        "0",
        {"type": "number", "minimum": 0},
    ),
    Key(
        "low",
        "the lower bound, included; `private` has it found (types `integer`, `number`, `date`)",
        "must be given, but for `time`",
        _BOUND,
    ),
    Key(
        "high",
        "the upper bound, included; `private` has it found (the same types)",
        "must be given, but for `time`",
        _BOUND,
    ),
    Key(
        "decimals",
        "the number of decimals, 0 to 15, to which numbers are rounded and with which text files show them; of type "
        "`integer` the zeros that text files show, as in 23.0",
        "none: real numbers, and whole ones without a point",
        {"type": "integer", "minimum": 0, "maximum": 15},
    ),
    Key(
        "resolution",
        "`second`, `minute`, `hour`, or `day` of a `datetime`; the rest is cut off",
        "second",
        {"enum": list(RESOLUTIONS)},
    ),
    Key(
        "bins",
        "the number of bins of equal width; a synthetic value is drawn at random within its bin",
        "none: about as many bins of equal mass as `bins` of the run says, by a distribution that `bins_share` buys; "
        "without it as many bins of equal width",
        {"type": "integer", "minimum": 1, "maximum": MOST_BINS},
    ),
    Key(
        "edges",
        "the lower ends of all bins except the first, instead of `bins`",
        "none",
        {"type": "array", "items": _VALUE},
    ),
    Key(
        "transform",
        "the transformation after which bins have equal width: `linear`, `log` (of 1 plus the distance from `low`) "
        "or `sqrt`",
        "linear",
        {"enum": list(TRANSFORMS)},
    ),
    Key(
        "special",
        "values that each are a choice of their own, within the bounds or not",
        "none",
        {"type": "array", "items": _VALUE},
    ),
    Key(
        "density",
        "the distribution of the values, if it is public and need not be bought: pairs of a value and the count (or "
        "share) of values from it to the value of the next pair; the first pair begins at `low`. Open bins are cut by "
        "this distribution, and values within a bin are drawn from it",
        "none: evenly",
        {"type": "array", "items": {"type": "array", "prefixItems": [_VALUE, {"type": "number", "minimum": 0}]}},
    ),
    Key(
        "density_noise",
        "the standard deviation of the noise in a count of `density`",
        "0",
        {"type": "number", "minimum": 0},
    ),
    Key(
        "encoding",
        "`bins`; or `scaled`, for one number in [0, 1] instead of bins (below)",
        "bins",
        {"enum": ["bins", "scaled"]},
    ),
    Key(
        "relative_to",
        "another column of the same type: the model learns distances from it instead of values (below); `bins`, `edges`, "
        "`transform`, `encoding` and `density` then describe the distance",
        "none",
        _TEXT,
    ),
    Key(
        "distance",
        "the smallest and the largest distance, such as [0, 180]: in days for a date, in units of `resolution` for a time",
        "0 to the distance between the bounds",
        {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "number"}},
    ),
    Key(
        "words",
        "the texts for false and for true, such as `[no, yes]`, in upper or lower case; text files, workbooks, pages and "
        "rules have these texts, and a DataFrame or Parquet file has true and false",
        "true, yes, t, y, 1 and their opposites are read, and true and false are written",
        {"type": "array", "minItems": 2, "maxItems": 2, "items": _TEXT},
    ),
    Key(
        "decimal",
        "the sign before the decimals of this column, if its numbers are text",
        "that of the table",
        _DECIMAL,
    ),
    Key(
        "thousands",
        'the sign between the thousands of this column, if its numbers are text; `""` for none, as in postal codes',
        "that of the table",
        _THOUSANDS,
    ),
    Key(
        "unit",
        'the number 1 as this column writes it, if its numbers are text: `"1 €"`, `"$1"`, `"1 %"` (12.5 % is the number '
        "12.5), `1kg`; each number has this unit, with any spaces beside it",
        "no unit",
        _TEXT,
    ),
    Key(
        "negative",
        'the number -1 as this column writes it, with its unit, if its numbers are text: `"(1)"`, `"1-"`, `"$-1"`, '
        '`"($1)"`, or `"\u22121"` with the minus of typesetters',
        "a minus before unit and number",
        _TEXT,
    ),
    Key(
        "format",
        'how dates or times are written in text or by digits: `"%d.%m.%Y"`, `"%Y%m%d"`, `"%d %b %y"`, `"%I:%M %p"`, `"%s"` '
        "(below)",
        "ISO 8601, as in 2024-01-31",
        _TEXT,
    ),
    Key(
        "zone",
        "the time zone of the column, such as `Europe/Berlin`: values have an offset, bounds are local times without one",
        "none: values have no offset",
        _TEXT,
    ),
    Key(
        "missing",
        "whether values may be missing; a missing value is a choice of its own",
        "false",
        _FLAG,
    ),
    Key(
        "missing_values",
        'texts that stand for a missing value, such as ["?"], or ["?", ""] if an empty field does, too; a text such as '
        '"-9" also stands for the number in files that hold numbers',
        "an empty field",
        {"type": "array", "minItems": 1, "items": {"type": ["string", "integer"]}},
    ),
    Key(
        "outside",
        "`refuse` a value that is not listed, or beyond the bounds; or `clamp` it to `other` or missing, or to the bound",
        "`outside` of the run; `clamp` for what is found privately",
        {"enum": list(OUTSIDE)},
    ),
    Key(
        "fake",
        "`row_number`, `uuid`, `name` or `email`",
        "none",
        {"enum": list(FAKES)},
    ),
    Key(
        "constant",
        "one value for all rows",
        "none",
        {"type": ["string", "number", "boolean"]},
    ),
    Key(
        "description",
        "words for people",
        "none",
        _TEXT,
    ),
)
_CUT = (
    *("low", "high", "bins", "edges", "transform", "special", "density", "density_noise", "encoding"),
    *("relative_to", "distance"),
)
_READ, _SIGNS = ("missing", "missing_values", "outside"), ("decimal", "thousands", "unit", "negative")
_RANGE = (
    "between which bounds does every possible record lie? Bounds as narrow as public knowledge allows cost the least "
    "noise; low: private (and high) has them found"
)
KINDS: dict[str, Kind] = {
    "category": Kind(
        "texts or whole numbers from a list",
        ("values", "other", "ignore_case", "counts", "counts_noise", *_READ),
        "which values are possible, including rare ones? Rare values may share one (other)",
    ),
    "boolean": Kind("true and false", ("words", *_READ), "may it be missing?"),
    "integer": Kind(
        "whole numbers within bounds",
        (*_CUT, "decimals", *_SIGNS, *_READ),
        f"{_RANGE}. Does a code such as -1 occur? (special)",
    ),
    "number": Kind(
        "numbers within bounds",
        (*_CUT, "decimals", *_SIGNS, *_READ),
        f"{_RANGE}. How many decimals do they have? (decimals)",
    ),
    "date": Kind("days within bounds", (*_CUT, "format", *_READ), f"{_RANGE}. Does a code stand for no date? (special)"),
    "datetime": Kind(
        "times within bounds",
        (*_CUT, "resolution", "format", "zone", *_READ),
        f"{_RANGE}. How fine must it be? (resolution)",
    ),
    "time": Kind("times of day", (*_CUT, "resolution", "format", *_READ), "how fine must it be? (resolution)"),
    "drop": Kind("the column is left out", (), "nothing: the column is not in the synthetic table"),
    "fake": Kind(
        "made-up values, which do not depend on the records", ("fake", "constant"), "which made-up value takes its place?"
    ),
}
# Keys of all types.
_OF_ALL = ("description",)


def keys_of(kind: str) -> list[Key]:
    """Return the keys that a column of a type may have, beside `type`.

    Example:
        >>> [key.name for key in keys_of("boolean")]
        ['words', 'missing', 'missing_values', 'outside', 'description']
    """
    return [key for key in COLUMN_KEYS if key.name in (*KINDS[kind].keys, *_OF_ALL)]


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the file of a schema, by which editors complete and check it.

    It covers keys, types and ranges; `read_schema` checks which of them fit together.
    """
    columns = {"type": "object", "minProperties": 1, "additionalProperties": {"$ref": "#/$defs/column"}}
    table = {key.name: _described(key) for key in TABLE_KEYS}
    table["columns"] |= columns
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The schema of a table, for dpgen",
        "type": "object",
        "required": ["columns"],
        "additionalProperties": False,
        "properties": table,
        "$defs": {"column": {"type": "object", "required": ["type"], "oneOf": [_column(kind) for kind in KINDS]}},
    }


def _column(kind: str) -> dict[str, Any]:
    told = {"const": kind, "description": f"{KINDS[kind].values}; decide: {KINDS[kind].decide}"}
    return {
        "properties": {"type": told} | {key.name: _described(key) for key in keys_of(kind)},
        "required": ["type"],
        "additionalProperties": False,
    }


def _described(key: Key) -> dict[str, Any]:
    # A key with null is the same as no key.
    form = dict(key.form) if key.name == "columns" else {"anyOf": [dict(key.form), {"type": "null"}]}
    return form | {"description": f"{key.meaning} (default: {key.default})"}


def tables() -> str:
    """Return the tables of keys, as docs/reference/schema.md has them."""
    lines = ["## Keys of the table", "", *_rows(TABLE_KEYS), "", "## Types of columns", ""]
    lines += ["| `type` | values | decide | keys beside those of all |", "| --- | --- | --- | --- |"]
    for name, kind in KINDS.items():
        named = ", ".join(f"`{key}`" for key in kind.keys)
        lines.append(f"| `{name}` | {kind.values} | {kind.decide} | {named} |")
    return "\n".join([*lines, "", "## Keys of a column", "", *_rows(COLUMN_KEYS)]) + "\n"


def _rows(keys: tuple[Key, ...]) -> list[str]:
    told = [f"| `{key.name}` | {key.meaning} | {key.default} |" for key in keys]
    return ["| key | meaning | default |", "| --- | --- | --- |", *told]


if __name__ == "__main__":
    print(tables(), end="")
