"""The file of a table's schema: YAML that a person writes, with its faults by line."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from lightning_dpgen.common.folders import place_of
from lightning_dpgen.common.nearest_word import nearest
from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.common.strict_json import read_json
from lightning_dpgen.data.files.text import check_there
from lightning_dpgen.data.tables.column import BadParts, BadSchema, Column, shortened
from lightning_dpgen.data.tables.description import Unfilled
from lightning_dpgen.data.tables.relative import RELATIVE_TO
from lightning_dpgen.data.tables.row_rules import CONSTRAINTS, FOUND
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_keys import KINDS, TableKeys, column_of, describe

# A draft holds one of these where a person has to decide.
UNFILLED = ("???", "TODO")
# The words of PyYAML for text behind a closing quote.
_BEHIND_QUOTE = "expected <block end>, but found '<scalar>'"
# A place to fill in, behind a sign and not in a comment.
_BETWEEN_BRACES = re.compile(r"(?m)(?<=[:,\[{ \t])\?\?\?(?=[\s,\]}]|$)")
# The problem of a key that is misspelt.
_MEANT = re.compile(r"unknown here: did you mean '(\w+)'\?")
_LARGEST_FILE = 16 * 2**20
# By YAML 1.2, where `no` is no boolean and 12:30 no number.
_SCALARS = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "null": (r"~|null|Null|NULL|", "~nN\0"),
    "int": (r"[-+]?[0-9]+", "-+0123456789"),
    "float": (r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", "-+.0123456789"),
}
_RESOLVERS: dict[str, list] = {}
for _name, (_pattern, _starts) in _SCALARS.items():
    for _start in _starts:
        entry = (f"tag:yaml.org,2002:{_name}", re.compile(f"^(?:{_pattern})$"))
        _RESOLVERS.setdefault("" if _start == "\0" else _start, []).append(entry)


class _Loader(yaml.SafeLoader):
    """Plain values only: no key twice, and no alias, since a few of them could stand for very many values."""

    yaml_implicit_resolvers = _RESOLVERS

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise _Refused("an alias (*): expected it written out", self.peek_event().start_mark)
        return super().compose_node(parent, index)

    def construct_yaml_int(self, node: Any) -> int:
        # In YAML 1.1 010 would be 8. A list may be tagged as a number.
        if not isinstance(node, yaml.ScalarNode):
            raise _Refused("expected a number", node.start_mark)
        if len(node.value) > 100:
            raise _Refused("a huge number", node.start_mark)
        return int(node.value)

    def construct_yaml_str(self, node: Any) -> str:
        text = super().construct_yaml_str(node)
        if node.style is not None or not text.strip().startswith(UNFILLED):
            return text
        word = Unfilled(text)
        word.line = node.start_mark.line + 1
        return word

    def construct_mapping(self, node: Any, deep: bool = False) -> dict:
        if not isinstance(node, yaml.MappingNode):
            raise _Refused(f"{shortened(node.value)}: expected keys and values", node.start_mark)
        mapping: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _Refused("expected a name before the colon", key.start_mark)
            # Names of columns such as 2020 or no stay text.
            if key.value in mapping:
                raise _Refused(f"{shortened(key.value)} appears twice", key.start_mark)
            mapping[key.value] = self.construct_object(value, deep=True)
        return mapping


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers = _RESOLVERS

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _OneLine(dict):
    """All that is declared of a column, on one line."""


def _of_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # Only between double quotes is every character kept, and ??? a value.
    plain = text.isprintable() and not text.strip().startswith(UNFILLED)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _of_text)
_Dumper.add_representer(
    _OneLine, lambda dumper, fields: dumper.represent_mapping("tag:yaml.org,2002:map", fields.items(), flow_style=True)
)


class _Refused(Exception):
    def __init__(self, problem: str, mark: yaml.Mark) -> None:
        super().__init__(f"line {mark.line + 1}: {problem}")


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:str", _Loader.construct_yaml_str)


def read_schema(path: str | Path) -> TableSchema:
    """Read the schema of a table from a YAML file.

    Raises:
        BadSchema: naming file, line, column, value and what was expected, in one line.
        MissingData: if there is no such file.
        OSError: if it cannot be read.
    """
    check_there(Path(path), "schema")
    return parse_schema(_text(Path(path)), str(path))


def schema_of(description: TableSchema | Mapping[str, Any] | str | Path) -> TableSchema:
    """Return a schema from itself, from what its file says as a dict, or from the path of that file.

    Raises:
        BadSchema: if it makes no sense, naming column, key and value.
        MissingData, OSError: if the file is not there, or cannot be read.

    Example:
        >>> schema_of({"columns": {"age": {"type": "integer", "low": 0, "high": 99}}}).arrow.names
        ['age']
    """
    if isinstance(description, TableSchema):
        return description
    if isinstance(description, str | Path):
        return read_schema(place_of(description))
    if not isinstance(description, Mapping):
        raise BadSchema(
            f"schema={shortened(description)}: expected a TableSchema, a dict with the keys of a schema file, or the path "
            "of such a file"
        )
    fields = dict(description)
    columns = fields.pop("columns", None)
    if not isinstance(columns, Mapping):
        raise BadSchema(f"{shortened(columns)}: expected a dict from column names to their declarations", key="columns")
    return TableSchema([column_of(name, described) for name, described in columns.items()], TableKeys.of(fields))


def read_leniently(path: str | Path) -> tuple[TableSchema | None, list[BadSchema]]:
    """Read a file as `read_schema` does, and return all that is wrong with it; see `parse_leniently`."""
    check_there(Path(path), "schema")
    return parse_leniently(_text(Path(path)), str(path))


def read_yaml(path: str | Path, key: str = "columns") -> dict[str, Any]:
    """Read the keys and values of another file: JSON by its name, else YAML, as the file of a schema is read.

    Args:
        key: one that is expected, for messages.

    Raises:
        BadSchema: for anything else, naming file and line.
        OSError: if it cannot be read.
    """
    path = Path(path)
    if path.suffix != ".json":
        return _parsed(_text(path), str(path), key)[1]
    try:
        return read_json(path, most_bytes=_LARGEST_FILE)
    except ValueError as error:
        raise BadSchema(f"{path.parent / str(error)}") from None


def parse_schema(text: str, source: str = "the schema") -> TableSchema:
    """Parse the text of a file of this name as `read_schema` does.

    Example:
        >>> parse_schema("columns: {sex: {type: category, values: [F, M]}}").arrow.names
        ['sex']
        >>> parse_schema("columns:\\n  age: {type: integer, low: 0, high: x}", "F")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        lightning_dpgen.data.tables.column.BadSchema: F, line 2: column 'age': high: 'x': expected a whole number...
    """
    schema, problems = parse_leniently(text, source)
    if problems:
        raise problems[0]
    assert schema is not None, "a schema without a problem is one"
    return schema


def parse_leniently(text: str, source: str = "the schema") -> tuple[TableSchema | None, list[BadSchema]]:
    """Parse a text as `parse_schema` does, and return all that is wrong with it.

    Returns:
        The schema without the columns and keys that are wrong, and what depends on them; None where too little is left.

    Raises:
        BadSchema: for what is no file of a schema.

    Example:
        >>> kept, wrong = parse_leniently("columns: {a: {type: integer, low: 9}, b: {type: bolean}, c: {type: boolean}}")
        >>> kept.arrow.names, [error.column for error in wrong]
        (['c'], ['a', 'b'])
    """
    node, fields = _parsed(text, source)
    if not isinstance(fields.get("columns"), dict):
        near = None if "columns" in fields else nearest("columns", fields, shortened=True)
        hint = f"; did you mean columns in place of {shortened(near)}?" if near else ""
        if any(isinstance(part, dict) and "person" in part for part in fields.values()):
            hint = "; it describes histories, which dpgen budget data=histories checks"
        raise BadSchema(f"{source}: expected columns: with each column's name and what is declared of it{hint}")
    return build_leniently(fields, source, _lines(node))


def build_leniently(
    fields: dict[str, Any], source: str = "the schema", lines: Mapping[tuple[str | None, str | None], int] | None = None
) -> tuple[TableSchema | None, list[BadSchema]]:
    """Make a schema of the keys and values of a file, as `parse_leniently` does of its text.

    Args:
        fields: they are changed.
        lines: of each column and key, for messages.
    """
    lines, columns, problems = lines or {}, fields.pop("columns"), list[BadSchema]()

    def tell(error: BadSchema, problem: str, part: Any = None) -> None:
        line = lines.get((error.key, str(part)), lines.get((error.column, error.key), lines.get((error.column, None), 1)))
        problems.append(BadSchema(problem, error.column, error.key, f"{source}, line {line}"))

    problems += unfilled_problem([columns, fields], source)
    fields = {key: value for key, value in fields.items() if not any(_unfilled(value))}
    for name in list(columns):
        columns[name], wrong = _mended(name, columns[name])
        for one in wrong:
            tell(one, one.problem)
    names = list(columns)
    for name in names:
        if columns[name] is None:
            _leave_out(name, columns, fields)
    # Keys of the whole table are looked at where too few columns are left for one, too.
    stand_in: list[Column] = []
    while True:
        try:
            made = [column_of(name, one) for name, one in columns.items()]
            found = TableSchema(made + stand_in, TableKeys.of(fields))
            return None if stand_in else found, problems
        except BadParts as error:
            declared = fields[error.whole]
            for part, problem in error.parts.items():
                tell(error, problem, part if isinstance(declared, Mapping) else declared[part])
            fields[error.whole] = _without(declared, error.parts)
        except BadSchema as error:
            if problems and error.key == "columns" and not stand_in:
                misnamed = {problem.column for problem in problems if problem.key == "name"}
                name = next((name for name in names if name not in misnamed), "column")
                columns.pop(name, None)
                stand_in.append(column_of(name, {"type": "boolean"}))
                continue
            tell(error, error.problem)
            if error.column is not None and error.column in columns:
                _leave_out(error.column, columns, fields)
            elif error.key in fields:
                del fields[error.key]
            else:
                return None, problems


def _mended(name: str, described: Any) -> tuple[dict[str, Any] | None, list[BadSchema]]:
    """Return what is declared of a column without the keys that are wrong, or as they are meant, and what is wrong.

    A key that is wrong is like one that a person is still to decide on: which others fit to it is not checked.

    Returns:
        None for what is declared where too little of it is left for a column.
    """
    if not isinstance(described, dict):
        return None, [] if isinstance(described, Unfilled) else [_refusal(name, described)]
    problems: list[BadSchema] = []
    kept = {key: next(_unfilled(value), value) for key, value in described.items()}
    while not isinstance(kept.get("type"), Unfilled) and (error := _refusal(name, kept)):
        problems.append(error)
        if error.key not in kept:
            return None, problems
        value, meant = kept.pop(error.key), _MEANT.fullmatch(error.problem)
        if meant is not None and meant[1] not in kept:
            kept[meant[1]] = value
        elif error.key == "type" or error.key in KINDS[kept["type"]].model_fields:
            kept[error.key] = Unfilled(UNFILLED[0])
    kept = {key: value for key, value in kept.items() if not isinstance(value, Unfilled)}
    return (None if _refusal(name, kept) else kept), problems


def _refusal(name: str, described: Any) -> BadSchema | None:
    """Return what is wrong with what is declared of a column; None if nothing is."""
    try:
        # A column that is not all filled in cannot be built yet.
        (describe if any(_unfilled(described)) else column_of)(name, described)
    except BadSchema as error:
        return error
    return None


def _unfilled(value: Any) -> Iterator[Unfilled]:
    """Yield the words in a value that stand for what a person is still to decide."""
    if isinstance(value, Unfilled):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _unfilled(part)


def unfilled_problem(value: Any, source: str) -> list[BadSchema]:
    """Return what is wrong with what a file of this name says where some of it is still to be filled in, or nothing."""
    if not (unfilled := sorted({word.line for word in _unfilled(value)})):
        return []
    told = f"line{'s' if len(unfilled) > 1 else ''} {listed(unfilled)}"
    return [BadSchema(f"{source}: ??? or TODO is still to be filled in, on {told}")]


def _without(declared: Any, parts: Container) -> Any:
    """Return a mapping without some of its keys, or a list without what stands at some places."""
    if isinstance(declared, Mapping):
        return {key: value for key, value in declared.items() if key not in parts}
    return [value for place, value in enumerate(declared) if place not in parts]


def _leave_out(name: str, columns: dict[str, Any], fields: dict[str, Any]) -> None:
    """Leave out a column, and what is said of it elsewhere."""
    del columns[name]
    if fields.get("label") == name:
        del fields["label"]
    if isinstance(fields.get("types"), dict):
        fields["types"].pop(name, None)
    named = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
    for key in (CONSTRAINTS, FOUND):
        if isinstance(fields.get(key), list):
            fields[key] = [one for one in fields[key] if not named.search(str(one))]
    for other in columns.values():
        if isinstance(other, dict) and other.get(RELATIVE_TO) == name:
            for key in (RELATIVE_TO, "distance"):
                other.pop(key, None)


def schema_text(schema: TableSchema) -> str:
    """Return the text of a file from which `parse_schema` makes the same schema again.

    Example:
        >>> print(schema_text(parse_schema("{label: sex, columns: {sex: {type: category, values: [F, M]}}}")), end="")
        label: sex
        columns:
          sex: {type: category, values: [F, M]}
    """
    fields = schema.declared.dump()
    rules = {key: fields.pop(key) for key in (CONSTRAINTS, FOUND) if key in fields}
    fields |= {"columns": {column.name: _OneLine(column.declared.dump()) for column in schema.columns}} | rules
    return yaml.dump(
        fields, Dumper=_Dumper, default_flow_style=False, sort_keys=False, allow_unicode=True, width=float("inf")
    )


def value_text(value: Any) -> str:
    """Return a value of a schema in one line.

    Example:
        >>> value_text("1e5"), value_text(["no", 3])
        ("'1e5'", '[no, 3]')
    """
    return yaml.dump([value], Dumper=_Dumper, default_flow_style=True, allow_unicode=True, width=float("inf"))[1:-2]


def parse_value(text: str) -> Any:
    """Return the value that stands for a text behind a key, as a file would have it; the text itself where it is no YAML.

    Example:
        >>> parse_value("12"), parse_value("[no, 3]"), parse_value("a: b"), parse_value("2020-01-01")
        (12, ['no', 3], 'a: b', '2020-01-01')
    """
    line = " ".join(text.split())
    try:
        fields = _parsed(f"value: {line}", "the value", "value")[1]
    except BadSchema:
        return line
    return fields["value"] if len(fields) == 1 else line


def _text(path: Path) -> str:
    if path.stat().st_size > _LARGEST_FILE:
        raise BadSchema(f"{path} is larger than {_LARGEST_FILE} bytes: expected a description of a table")
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadSchema(f"{path}: byte {error.start} is not UTF-8: save it as UTF-8") from None


def _parsed(text: str, source: str, key: str = "columns") -> tuple[yaml.MappingNode, dict[str, Any]]:
    """Return the nodes of a text, and its keys and values."""
    expected = f"expected keys and values, of which one is {key}"
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            fields = None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except _Refused as refused:
        raise BadSchema(f"{source}, {refused}") from None
    except yaml.MarkedYAMLError as error:
        # Between braces ??? is not even YAML.
        filled = _BETWEEN_BRACES.sub(UNFILLED[1], text)
        if filled != text:
            return _parsed(filled, source, key)
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        problem = error.problem or error.context
        behind = "; a text that begins with a quote ends with the next one: put the whole into quotes, or none"
        quoted = behind if problem == _BEHIND_QUOTE else ""
        raise BadSchema(f"{source}{line}: not YAML: {problem}{quoted}") from None
    except yaml.YAMLError as error:
        raise BadSchema(f"{source}: not YAML: {' '.join(str(error).split())[:100]}") from None
    except (RecursionError, ValueError):
        raise BadSchema(f"{source}: nested too deeply, or with huge numbers: {expected}") from None
    if not isinstance(fields, dict):
        raise BadSchema(f"{source}: {expected}")
    return node, fields


def _lines(root: yaml.MappingNode) -> dict[tuple[str | None, str | None], int]:
    """Return the line of each column and key, as `BadSchema` names them, and of each part of a list or a mapping."""
    lines: dict[tuple[str | None, str | None], int] = {}
    for key, value in root.value:
        lines[None, key.value] = key.start_mark.line + 1
        if key.value != "columns":
            for part in value.value if isinstance(value, yaml.CollectionNode) else ():
                one = part[0] if isinstance(part, tuple) else part
                lines[key.value, str(one.value)] = one.start_mark.line + 1
            continue
        for name, described in value.value:
            lines[name.value, None] = name.start_mark.line + 1
            if isinstance(described, yaml.MappingNode):
                for inner, content in described.value:
                    lines[name.value, inner.value] = content.start_mark.line + 1
    return lines
