"""The form of a schema: what a page sends back unchanged changes nothing, and nothing of the records stands in it."""

import pytest
from studio.conftest import SCHEMA

from lightning_dpgen.data.tables.schema_draft import draft_of_file, draft_text
from lightning_dpgen.data.tables.schema_file import parse_schema, read_schema
from lightning_dpgen.data.tables.schema_keys import KINDS
from lightning_dpgen.studio.schema_form import SchemaForm

MANY = """label: smoker
decimal: ","
thousands: "."
comment: ["#", Total]
constraints: ["start <= end", {column: band, of: town, mapping: {Oslo: a, "no": b}}]
description: "a: text, with # signs"
columns:
  "no": {type: integer, low: -5, high: 5, special: [99], edges: [-1, 2]}
  "2020": {type: number, low: 0, high: 1.5, decimals: 2, unit: "1 €", negative: "(1 €)"}
  "a: b # c": {type: category, values: ["no", "1", "2", "x, y", "[q]", "???"], other: "x, y", outside: clamp}
  <b>: {type: boolean, words: ["no", "yes"], missing: true, missing_values: ["?", ""]}
  town: {type: category, values: [Oslo, "no"], counts: [900, 2]}
  band: {type: category, values: [a, b]}
  smoker: {type: boolean}
  start: {type: date, low: 2020-01-01, high: 2024-12-31, format: "%d.%m.%Y"}
  end: {type: date, low: 2020-01-01, high: 2024-12-31, relative_to: start, distance: [0, 90]}
  at: {type: datetime, low: 2020-01-01, high: 2024-12-31, resolution: minute, zone: Europe/Oslo}
  clock: {type: time, resolution: hour}
  pay: {type: integer, low: 0, high: 1000, density: [[0, 10], [100, 2]], density_noise: 1.5}
  key: {type: fake, fake: uuid}
  text: {type: drop}
"""


def read(tmp_path, text):
    path = tmp_path / "t.schema.yaml"
    path.write_text(text, encoding="utf-8")
    return SchemaForm.read(path)


def sent(part):
    """Return the fields of a part as a browser sends them."""
    kind = {"type": part.kind} if part.name else {}
    return kind | {key.name: key.text for key in (*part.first, *part.more)}


@pytest.mark.parametrize("text", [SCHEMA, MANY], ids=["few", "many"])
def test_fields_that_come_back_unchanged_change_nothing(tmp_path, text):
    form = read(tmp_path, text)
    assert not form.problems and not form.open and form.part("").name == ""
    for name in ("", *form.columns):
        form = form.changed(name, sent(form.part(name)))
    form.write(tmp_path / "again.yaml")
    assert read_schema(tmp_path / "again.yaml") == parse_schema(text)


def test_all_types_have_fields_for_all_their_keys(tmp_path):
    form = read(tmp_path, MANY)
    assert {part.kind for part in form.parts} == set(KINDS)
    for part in form.parts:
        assert {key.name for key in (*part.first, *part.more)} == KINDS[part.kind].model_fields.keys() - {"type"}


def test_a_draft_is_open_where_a_person_decides_and_holds_no_value(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("age,town,pay\n1234,Xanadu,87654.25\n5678,Erewhon,12345.50\n")
    columns, about = draft_of_file(path)
    form = read(tmp_path, draft_text(columns, "t.csv", about))
    assert form.open == 3 and form.origin == "t.csv"
    age, town = form.part("age"), form.part("town")
    assert [key.name for key in age.first if key.open] == ["low", "high"]
    assert "from public knowledge" in next(key.why for key in age.first if key.name == "low")
    shown = str(form.parts)
    assert not any(word in shown for word in ("1234", "Xanadu", "Erewhon", "87654", "12345"))
    # Questions stay until the answer is there, and the file keeps them.
    form = form.changed("town", sent(town) | {"values": "Oslo\nno\n 12 "})
    form.write(tmp_path / "t.schema.yaml")
    form = SchemaForm.read(tmp_path / "t.schema.yaml")
    assert form.open == 2 and form.columns["town"].fields["values"] == ["Oslo", "no", 12]
    assert form.part("age").first == age.first


def test_what_is_wrong_stands_beside_its_field(tmp_path):
    form = read(tmp_path, SCHEMA)
    form.changed("age", {"type": "integer", "low": "9", "high": "x"}).write(tmp_path / "t.schema.yaml")
    form = SchemaForm.read(tmp_path / "t.schema.yaml")
    problems = {key.name: key.problem for key in form.part("age").first if key.problem}
    assert list(problems) == ["high"] and "'x'" in problems["high"]
    assert not any(key.problem for key in form.part("town").first)


def test_another_type_asks_for_what_it_needs(tmp_path):
    form = read(tmp_path, SCHEMA)
    changed = form.changed("town", {"type": "date"})
    assert changed.columns["town"].fields == {"type": "date", "low": "???", "high": "???"}
    assert changed.changed("town", {"type": "category"}).columns["town"].fields == form.columns["town"].fields
    assert form.changed("town", {"type": "no-such-type"}) is form


@pytest.mark.parametrize("field", ["values", "missing_values"])
def test_a_line_is_the_text_that_was_typed(tmp_path, field):
    typed = [
        "New York # 1",
        "a: b",
        "#none",
        "~",
        "1e3",
        "007",
        "+1",
        "a  b",
        "???",
        "- x",
        "{a",
        "yes",
        "2020-01-01",
        "'",
        "%",
    ]
    form = read(tmp_path, "columns: {town: {type: category, values: [a, b], missing: true}}\n")
    form.changed("town", {field: "\n".join(typed)}).write(tmp_path / "t.schema.yaml")
    assert SchemaForm.read(tmp_path / "t.schema.yaml").columns["town"].fields[field] == typed
    assert parse_schema((tmp_path / "t.schema.yaml").read_text()).declared is not None
    # Whole numbers are such in a list of values, unless they are in quotes.
    kept = form.changed("town", {field: "1\n2"}).columns["town"].fields[field]
    assert kept == ([1, 2] if field == "values" else ["1", "2"])
    assert form.changed("town", {field: '"1"\n"2"'}).columns["town"].fields[field] == ["1", "2"]


def test_a_field_that_is_not_sent_stays(tmp_path):
    form = read(tmp_path, MANY)
    changed = form.changed("pay", {"low": "5"})
    assert changed.columns["pay"].fields == form.columns["pay"].fields | {"low": 5}
    assert changed.changed("pay", {"low": ""}).columns["pay"].fields.keys() == form.columns["pay"].fields.keys() - {"low"}
