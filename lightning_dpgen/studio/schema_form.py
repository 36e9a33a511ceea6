"""The form of a table's schema: the keys of each column as fields, with what is open beside them, and back to the file.

The file is the one that `dpgen schema` drafts. The form keeps its questions, and knows no rule of its own: which keys there
are, what they mean and what is wrong with them follow from the declarations of schemas.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from lightning_dpgen.common.folders import write_whole
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.description import Unfilled
from lightning_dpgen.data.tables.schema_draft import OPEN, ColumnDraft, draft_text
from lightning_dpgen.data.tables.schema_file import build_leniently, parse_value, read_yaml, value_text
from lightning_dpgen.data.tables.schema_keys import KINDS, TableKeys, keys_of, meaning_of

# Keys that stand open, beside those that have a value; all others are a click away.
_FIRST = ("fake", "values", "low", "high", "decimals", "unit", "missing", "missing_values")
_FIRST_OF_TABLE = ("label", "constraints")
_COLUMN, _COMMENTED = re.compile(r"  \S.*:\s*$"), re.compile(r"    (\w+): .*?   # (.*)$")
_WHOLE, _NUMBER = re.compile(r"-?(0|[1-9][0-9]*)"), re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_DRAFTED = re.compile(r"# Drafted from (.+?)\. All of it is public")


@dataclass(frozen=True)
class Key:
    """A key as a field of the form.

    Args:
        text: the value, one line for each part of a list.
        choices: all values there are; none where any text may stand.
        is_list: whether the value is a list.
        why: the question of the draft.
        problem: what is wrong with the value.
    """

    name: str
    text: str
    choices: tuple[str, ...]
    is_list: bool
    meaning: str
    default: str
    why: str = ""
    problem: str = ""

    @property
    def open(self) -> bool:
        """True where a person is still to decide."""
        return self.text == OPEN


@dataclass(frozen=True)
class Part:
    """The fields of a column, or (no name) of the whole table: those that are needed or have a value, and empty others."""

    name: str
    kind: str
    first: tuple[Key, ...]
    more: tuple[Key, ...]
    decide: str = ""
    why: str = ""
    problem: str = ""

    @property
    def open(self) -> bool:
        return any(key.open for key in (*self.first, *self.more))


@dataclass(frozen=True)
class SchemaForm:
    """A schema as a form.

    Args:
        columns: by name, in the order of the table.
        about: the keys of the whole table.
        origin: the file that it was drafted from.
        former: what a column has declared as another type, which it has again when that comes back.
    """

    columns: Mapping[str, ColumnDraft]
    about: Mapping[str, Any]
    origin: str
    former: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)

    @cached_property
    def problems(self) -> dict[tuple[str | None, str | None], str]:
        """All that is wrong, by column and key; the column of the whole table is None."""
        columns = {name: _undecided(draft.fields) for name, draft in self.columns.items()}
        _, wrong = build_leniently({**_undecided(self.about), "columns": columns})
        return {(one.column, one.key): one.problem for one in reversed(wrong)}

    @classmethod
    def read(cls, path: Path) -> SchemaForm:
        """Read the file of a schema, or of a draft.

        Raises:
            BadSchema: for what is no file of a schema.
            OSError: if it cannot be read.
        """
        # Pages ask for a file again and again, and to parse one of 200 columns takes a tenth of a second.
        known, form = _known.get(path, (None, None))
        if form is None or known != _stamp(path):
            known, form = _stamp(path), _parse(path)
            _known[path] = known, form
        return form

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all.

        Raises:
            OSError: if it cannot be written; the file is then as it was.
        """
        text = draft_text(list(self.columns.values()), self.origin, dict(self.about))
        write_whole(path, text)
        _known[path] = _stamp(path), self

    def changed(self, column: str, said: Mapping[str, str]) -> SchemaForm:
        """Return the schema with the fields of one column, or of the whole table (no name), that a form sends.

        Keys that the form does not send stay, since another page may have changed them. An empty field is no key.

        Raises:
            KeyError: for a column that is none.
        """
        if not column:
            return replace(self, about=_merged(TableKeys, self.about, said))
        draft = self.columns[column]
        kind = said.get("type", draft.fields.get("type"))
        if kind not in KINDS:
            return self
        before, why, former = draft.fields, draft.why, self.former
        if kind != before.get("type"):
            former = {**former, (column, str(before.get("type"))): before}
            begun = ColumnDraft.of_type(column, kind)
            kept = {key: value for key, value in before.items() if key in KINDS[kind].model_fields}
            before, why = {**begun.fields, **former.get((column, kind), {}), **kept, "type": kind}, begun.why
        fields = _merged(KINDS[kind], before, said)
        # A question ends with its answer.
        whys = {key: one for key, one in why.items() if fields.get(key) == before.get(key)}
        return replace(self, columns={**self.columns, column: ColumnDraft(column, fields, whys)}, former=former)

    def part(self, column: str) -> Part:
        """Return the fields of a column, or of the whole table (no name)."""
        if not column:
            return Part("", "", *self._keys(TableKeys, self.about, {}, None, _FIRST_OF_TABLE))
        draft = self.columns[column]
        kind = str(draft.fields.get("type"))
        told = self.problems.get((column, None), "") or self.problems.get((column, "type"), "")
        if kind not in KINDS:
            return Part(column, kind, (), (), problem=told)
        why = draft.why.get("type", "")
        return Part(column, kind, *self._keys(KINDS[kind], draft.fields, draft.why, column), KINDS[kind].decide, why, told)

    def id(self, column: str) -> str:
        """Return how a page calls the form of a column, or of the whole table (no name)."""
        return f"part-{list(self.columns).index(column)}" if column else "part-table"

    @cached_property
    def parts(self) -> list[Part]:
        return [self.part(name) for name in self.columns]

    @property
    def open(self) -> int:
        """The number of columns in which a person is still to decide."""
        return sum(part.open for part in self.parts)

    def _keys(
        self,
        kind: type,
        fields: Mapping[str, Any],
        whys: Mapping[str, str],
        column: str | None,
        first: Container[str] = _FIRST,
    ) -> tuple[tuple[Key, ...], tuple[Key, ...]]:
        known = keys_of(kind)
        keys = {
            name: _key(name, kind, own, fields.get(name), whys.get(name, ""), self.problems.get((column, name), ""))
            for name, own in known.items()
        }
        shown = [name for name in keys if name in first or keys[name].text]
        return tuple(keys[name] for name in shown), tuple(key for name, key in keys.items() if name not in shown)


# The last form of each file, with what tells that the file is still the same.
_known: dict[Path, tuple[tuple[int, ...], SchemaForm]] = {}


def _stamp(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _parse(path: Path) -> SchemaForm:
    fields, text = read_yaml(path), path.read_text(encoding="utf-8-sig")
    columns = fields.pop("columns")
    if not isinstance(columns, dict) or not columns:
        raise BadSchema(f"{path}: expected columns: with each column's name and what is declared of it")
    whys = _questions(text, list(columns))
    drafts = {name: ColumnDraft(name, _plain(said), whys.get(name, {})) for name, said in columns.items()}
    drafted = _DRAFTED.match(text)
    return SchemaForm(drafts, _plain(fields), drafted[1] if drafted else path.name)


def _undecided(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of what is declared, with the words of files where a person is still to decide."""
    copied = copy.deepcopy(dict(fields))
    for name, value in copied.items():
        if value == OPEN:
            copied[name] = Unfilled(OPEN)
            copied[name].line = 0
    return copied


def _key(name: str, kind: type, own: FieldInfo, value: Any, why: str, problem: str) -> Key:
    meaning, default = (text.replace("`", "") for text in meaning_of(own))
    form = _forms(kind)[name]
    choices = tuple(str(choice) for one in (form, *form.get("anyOf", ())) for choice in one.get("enum", ()))
    choices = choices or (("true", "false") if form.get("type") == "boolean" else ())
    return Key(name, _shown(value, form), choices, _is_list(form), meaning, default, why, problem)


@cache
def _forms(kind: type) -> dict[str, Any]:
    """Return the JSON Schema of each key of a type of columns, or of the whole table."""
    return kind.model_json_schema()["properties"]


def _is_list(form: Mapping[str, Any]) -> bool:
    return any(one.get("type") == "array" for one in (form, *form.get("anyOf", ())))


def _types(form: Mapping[str, Any]) -> set[str]:
    """Return the types of a value, or of the parts of a list, as JSON Schema calls them."""
    types = form.get("type", ())
    inner = (*form.get("anyOf", ()), *form.get("prefixItems", ()), *([form["items"]] if "items" in form else ()))
    return set().union([types] if isinstance(types, str) else types, *map(_types, inner))


def _read(text: str, types: set[str]) -> Any:
    """Return the value that a person has typed: a text as it stands, unless the key takes numbers and it is one.

    A text that would be a number or a list is put into quotes, as in a file.
    """
    typed = parse_value(text) if len(text) > 1 and text[0] == text[-1] in "'\"" else None
    if isinstance(typed, str):
        return typed
    if (
        (text[0] == "{" and "object" in types)
        or (text[0] == "[" and "array" in types)
        or (text in ("true", "false") and "boolean" in types)
        or ("integer" in types and _WHOLE.fullmatch(text))
        or ("number" in types and _NUMBER.fullmatch(text))
    ):
        return parse_value(text)
    return text


def _shown(value: Any, form: Mapping[str, Any]) -> str:
    """Return a value as a person types it, one line for each part of a list."""
    if value is None:
        return ""
    if _is_list(form) and isinstance(value, list):
        return "\n".join(_line(one, _types(form)) for one in value)
    return OPEN if value == OPEN else _line(value, _types(form))


def _line(value: Any, types: set[str]) -> str:
    if (
        isinstance(value, str)
        and value
        and value == " ".join(value.split())
        and value != OPEN
        and _read(value, types) == value
    ):
        return value
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else value_text(value)


def _merged(kind: type, before: Mapping[str, Any], said: Mapping[str, str]) -> dict[str, Any]:
    """Return keys and values with those that a form sends; an empty field is no key."""
    values = dict(before)
    for name in keys_of(kind):
        if name not in said:
            continue
        text, form = said[name].strip(), _forms(kind)[name]
        values.pop(name, None)
        if text in (OPEN, "private"):
            values[name] = text
        elif text and _is_list(form):
            values[name] = [_read(line.strip(), _types(form)) for line in text.splitlines() if line.strip()]
        elif text:
            values[name] = _read(text, _types(form))
    # Keys stand in the order of the page.
    return {name: values[name] for name in ("type", *keys_of(kind)) if name in values}


def _plain(fields: Any) -> dict[str, Any]:
    """Return the keys of a column with the word of drafts where a person is still to decide."""
    said = fields if isinstance(fields, dict) else {}
    return {name: OPEN if isinstance(value, Unfilled) else value for name, value in said.items()}


def _questions(text: str, names: list[str]) -> dict[str, dict[str, str]]:
    """Return the comments of a draft by column and key; none where a person has written the file in another form."""
    found: list[dict[str, str]] = []
    for line in text.partition("\ncolumns:\n")[2].splitlines():
        if _COLUMN.match(line):
            found.append({})
        elif found and (comment := _COMMENTED.match(line)):
            found[-1][comment[1]] = comment[2]
    return dict(zip(names, found, strict=True)) if len(found) == len(names) else {}
