"""Keys of a schema are declared once: for the code, the page and the JSON Schema of editors, which know the same ones."""

import tempfile
from pathlib import Path

import jsonschema
import pytest
from data.random_tables import schemas
from hypothesis import given, settings

import lightning_dpgen
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import BadSchema, Key
from lightning_dpgen.data.tables.made_up import Fake
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.relative import Relative
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_file import parse_schema, read_yaml, schema_text
from lightning_dpgen.data.tables.schema_keys import KINDS, TableKeys, json_schema, tables

ROOT = Path(__file__).parents[2]
CHECK = jsonschema.Draft202012Validator(json_schema())


def test_the_declaration_is_a_json_schema():
    jsonschema.Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize("kind", [Category, Numeric, Relative, Fake, TableSchema])
def test_what_a_column_takes_from_its_description_is_a_key(kind):
    known = {name for one in (*KINDS.values(), TableKeys) for name in one.model_fields}
    taken = {name for one in kind.__mro__ for name, value in vars(one).items() if isinstance(value, Key)}
    assert taken <= known


def test_the_page_has_the_tables_of_the_declarations():
    """Else: python -m lightning_dpgen.data.tables.schema_keys prints them."""
    assert tables() in (ROOT / "docs/reference/schema.md").read_text(encoding="utf-8")


@settings(max_examples=20, deadline=None)
@given(schemas())
def test_an_editor_accepts_every_schema_that_is_read(made):
    CHECK.validate(_plain(schema_text(made)))


def _plain(text):
    """Read a text as YAML 1.2, as the editor does and the program: dates are texts."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "s.yaml"
        path.write_text(text, encoding="utf-8")
        return read_yaml(path)


def test_an_editor_accepts_the_bundled_schemas():
    found = [*Path(lightning_dpgen.__file__).parent.rglob("*.schema.yaml"), *ROOT.glob("experiments/*/*.schema.yaml")]
    assert len(found) >= 2
    for path in found:
        CHECK.validate(read_yaml(path))


REFUSED = [
    "columns: {a: {type: integr}}",
    "columns: {a: {type: integer, low: 0, hihg: 9}}",
    "columns: {a: {type: category, values: []}}",
    "columns: {a: {type: boolean, values: [a]}}",
    "columns: {a: {type: number, low: 0, high: 1, transform: cube}}",
    "columns: {a: {low: 0}}",
    "{colums: {a: {type: drop}}, columns: {a: {type: boolean}}}",
    "columns: {}",
    "{header: 1, columns: {a: {type: boolean}}}",
]


@pytest.mark.parametrize("text", REFUSED)
def test_an_editor_refuses_what_is_refused(text):
    """Keys, types and ranges; what fits together is checked by the program alone."""
    with pytest.raises(BadSchema):
        parse_schema(text)
    assert list(CHECK.iter_errors(_plain(text)))


def test_no_key_is_left_out_of_a_column_of_numbers():
    text = (
        "columns: {a: {type: number, low: 0, high: 9, decimals: 1, bins: 4, transform: log, special: [0], missing: true}}"
    )
    assert isinstance(parse_schema(text).columns[0], Numeric)
    CHECK.validate(_plain(text))
