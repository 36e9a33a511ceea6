"""Whatever the schema: records become numbers and records again, each alone, and nothing is lost but what bins merge."""

import json
import math

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from random_tables import records, schemas

from lightning_dpgen.data.conditions import Clause, parse_condition
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.tables.arrays import BadValue
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.data.tables.schema_keys import column_of

SOME = settings(max_examples=20, deadline=None)
ROWS, SEEDS = st.integers(0, 12), st.integers(0, 2**32)


def same(a: Encoded, b: Encoded) -> bool:
    return a.codes.dtype == b.codes.dtype and np.array_equal(a.codes, b.codes) and np.array_equal(a.units, b.units)


@SOME
@given(schemas(), SEEDS, ROWS)
def test_there_and_back(schema, seed, rows):
    table = records(schema, seed, rows)
    encoded = schema.encode(table)
    again = schema.decode(encoded, np.random.default_rng(seed))
    assert again.schema == schema.arrow and again.num_rows == rows == len(encoded)
    assert same(schema.encode(again), encoded)
    for column, before, after in zip(schema.modelled, table.columns, again.columns, strict=True):
        before, after = before.to_pylist(), after.to_pylist()
        kept = column.scaled and column.scale.whole
        kept = kept and column.scale.tick(column.high) - column.scale.tick(column.low) <= 2**24
        kept = kept or (not column.scaled and all(map(column.alone, range(column.present))))
        if kept:
            assert before == after
        # Missing values stay missing, and all others within their bounds.
        assert [value is None for value in before] == [value is None for value in after]


@SOME
@given(schemas(), SEEDS, st.integers(1, 12))
def test_a_record_is_encoded_alone_as_the_layout_says(schema, seed, rows):
    table, layout = records(schema, seed, rows), schema.layout
    encoded = schema.encode(table)
    assert encoded.codes.shape == (rows, len(layout.groups)) and encoded.units.shape == (rows, layout.units)
    assert (encoded.codes < np.array(layout.groups, int)).all() and encoded.units.dtype == np.float32
    assert ((encoded.units >= 0) & (encoded.units <= 1)).all()
    for row in range(rows):
        assert same(schema.encode(table.slice(row, 1)), encoded[row : row + 1])
    # A record's one-hot numbers are never longer than the norm.
    assert layout.norm == pytest.approx(math.sqrt(len(layout.groups) + layout.units))
    # Columns are found by name, not by place.
    assert same(schema.encode(table.select(table.schema.names[::-1])), encoded)


@SOME
@given(schemas(), SEEDS)
def test_what_is_written_of_a_schema_makes_it_again(schema, seed):
    assert TableSchema.from_json(json.loads(json.dumps(schema.as_json(), sort_keys=True))) == schema
    # Anybody's numbers in [0, 1] and choices are records.
    random, layout = np.random.default_rng(seed), schema.layout
    codes = np.stack([random.integers(0, most, 9) for most in layout.groups], 1) if layout.groups else np.zeros((9, 0), int)
    table = schema.decode(Encoded(random.random((9, layout.units), np.float32), codes), random)
    assert np.array_equal(schema.encode(table).codes, codes)


ABOUT = """
label: sex
columns:
  sex: {type: category, values: [F, M], missing: true}
  age: {type: integer, low: 0, high: 99, bins: 10, special: [50, 999]}
  few: {type: integer, low: 3, high: 5, bins: 10}
  pay: {type: number, low: 0, high: 9, encoding: scaled}
  day: {type: date, low: 2020-01-01, high: 2020-01-31, bins: 31}
  one: {type: category, values: [same]}
  who: {type: fake, fake: name}
  row: {type: fake, fake: row_number}
  id: {type: fake, fake: uuid}
  mail: {type: fake, fake: email}
  site: {type: fake, constant: 7}
  notes: {type: drop}
"""


def conditioned(schema, text):
    condition = schema.condition(parse_condition(text, [column.name for column in schema.columns]))
    return condition.group, set(condition.may), set(condition.sure)


def exactly(group, *choices):
    return group, set(choices), set(choices)


def test_conditions_are_told_by_choices_where_they_can_be():
    schema = parse_schema(ABOUT)
    for text, expected in {
        "sex=M": exactly(0, 1), "sex = ": exactly(0, 2), "sex is not missing": exactly(0, 0, 1), "sex != M": exactly(0, 0),
        'sex in (F, "M")': exactly(0, 0, 1), "sex not in (F)": exactly(0, 1), "age=999": exactly(1, 11),
        "age = 50": exactly(1, 10), "few=4": exactly(2, 1), "day=2020-01-03": exactly(3, 2), "age=10..29": exactly(1, 1, 2),
        "age = 40..59": exactly(1, 4, 5, 10), "age=0..99": exactly(1, *range(11)), "few=4..5": exactly(2, 1, 2),
        "day<2020-01-03": exactly(3, 0, 1), "day >= 2020-01-30": exactly(3, 29, 30), "age>=90": exactly(1, 9, 11),
        "age > 100": exactly(1, 11), "age in (50, 999)": exactly(1, 10, 11), "age != 999": exactly(1, *range(11)),
        "age=51": (1, {5}, set()), "age < 15": (1, {0, 1}, {0}), "age=5..29": (1, {0, 1, 2}, {1, 2}),
        "pay>3": (None, set(), set()), "one=same": (None, set(), set()), "age=0..500": exactly(1, *range(11)),
    }.items():  # fmt: skip
        assert conditioned(schema, text) == expected, text
    for text, words in {
        "age=100": "above high", "sex=X": "expected one of 'F', 'M'", "age=19..10": "smaller end",
        "age=0..x": "whole number", "age=0..9..19": "whole number", "day=2020-01-01..": "a date", "age=..": "whole number",
        "notes=1": "is modelled",
        "nosuch=1": "no such column", "agee=1": "did you mean age", "few=": "missing", "age>1e30": "no value",
        "sex<M": "no order", "few>5": "no value", "age": "expected a column, a sign", "age in ()": "between the brackets",
        "age<": "expected a value",
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=words):
            conditioned(schema, text)
    for value in ({}, [[1]], object(), 10**30, "50..x"):
        with pytest.raises(ValueError, match="age"):
            schema.condition(Clause("age", "=", (value,)))


def test_conditions_on_real_numbers():
    schema = parse_schema("""columns:
  x: {type: number, low: 0, high: 10, bins: 2}
  odd: {type: integer, low: 1, high: 2, special: [1, 2], bins: 4}
  paid: {type: number, low: 0, high: 9, encoding: scaled, missing: true}
""")
    for text, expected in {
        "x=0..5": exactly(0, 0), "x<5": (0, {0}, set()), "x>=5": exactly(0, 1), "x != 5": (0, {0, 1}, set()),
        "odd=1..2": exactly(1, 0, 1), "paid=": exactly(2, 1), "paid>=0": exactly(2, 0), "paid=3": (2, {0}, set()),
    }.items():  # fmt: skip
        assert conditioned(schema, text) == expected, text
    test = schema.condition(parse_condition("x < 5", ["x"])).test
    assert test(pa.array([np.nextafter(5, 0), 5.0, 0.0])).tolist() == [True, False, True]


def test_columns_that_are_not_modelled_come_from_the_generator_alone():
    schema = parse_schema(ABOUT)
    assert schema.layout.groups == (3, 12, 3, 31) and schema.layout.units == 1
    encoded = schema.encode(pa.record_batch({
        "sex": ["F", None], "age": [50, 3], "few": [3, 3], "pay": [1.0, 2.0], "day": ["2020-01-03", "2020-01-04"],
        "one": ["same", "same"],
    }))  # fmt: skip
    table = schema.decode(encoded, np.random.default_rng(0))
    assert table.schema.names == ["sex", "age", "few", "pay", "day", "one", "who", "row", "id", "mail", "site"]
    assert table.select(["row", "site", "one"]).to_pylist() == [
        {"row": 1, "site": 7, "one": "same"}, {"row": 2, "site": 7, "one": "same"},
    ]  # fmt: skip
    assert all(len(text) == 36 and text[14] == "4" and text[19] in "89ab" for text in table["id"].to_pylist())
    assert all(text.endswith("@example.com") for text in table["mail"].to_pylist())
    assert table == schema.decode(encoded, np.random.default_rng(0)) != schema.decode(encoded, np.random.default_rng(1))


def test_undecided_columns_are_completed_by_a_public_number():
    schema = parse_schema(
        "label: kind\ncolumns:\n kind: {type: integer, low: 0, high: 30}\n a: {type: number, low: 0, high: 1}\n"
        " b: {type: integer, low: 1, high: 4}\n c: {type: integer, low: 1, high: 100, bins: 5}"
    )
    with pytest.raises(BadSchema, match="column 'kind': bins"):
        _ = schema.layout
    assert schema.with_bins(20).layout.groups == (31, 20, 4, 5)


def test_a_table_of_constants_has_nothing_to_learn():
    schema = parse_schema("columns: {a: {type: category, values: [x]}, b: {type: integer, low: 3, high: 3, bins: 5}}")
    with pytest.raises(BadSchema, match="every modelled column has one value only"):
        _ = schema.layout


def test_what_is_not_of_the_layout_is_refused():
    schema = parse_schema("columns: {sex: {type: category, values: [F, M]}}")
    none = np.zeros((2, 0), np.float32)
    for units, codes in [(none, np.array([[0], [2]])), (none, np.array([[0], [-1]])), (none, np.zeros((2, 2), int)),
                         (np.zeros((2, 1)), np.zeros((2, 1), int))]:  # fmt: skip
        with pytest.raises(ValueError, match="codes"):
            schema.decode(Encoded(units, codes), np.random.default_rng(0))
    with pytest.raises(BadValue, match="column 'sex', row 1: 'X'"):
        schema.encode(pa.record_batch({"sex": ["F", "X"]}))
    with pytest.raises(ValueError, match="outside='drop'"):
        schema.encode(pa.record_batch({"sex": ["F"]}), outside="drop")


GOOD = column_of("a", {"type": "boolean"})
BAD = {
    "no columns": {"columns": ()},
    "no list": {"columns": "a"},
    "twice": {"columns": (GOOD, GOOD)},
    "label": {"columns": (GOOD,), "label": "b"},
    "one class": {"columns": (GOOD, column_of("b", {"type": "category", "values": ["x"]})), "label": "b"},
    "label of bins": {"columns": (column_of("b", {"type": "integer", "low": 0, "high": 99, "bins": 9}),), "label": "b"},
    "many classes": {"columns": (column_of("b", {"type": "integer", "low": 0, "high": 9999}),), "label": "b"},
    "header": {"columns": (GOOD,), "header": "no"},
    "separator": {"columns": (GOOD,), "separator": "\n"},
    "quote": {"columns": (GOOD,), "separator": '"'},
    "description": {"columns": (GOOD,), "description": 3},
    "spaces": {"columns": (column_of(" a", {"type": "boolean"}),)},
    "spaces of a value": {"columns": (column_of("a", {"type": "category", "values": [" a"]}),)},
    "too much": {"columns": [column_of(f"c{i}", {"type": "time", "bins": 10000}) for i in range(105)]},
}


@pytest.mark.parametrize("arguments", BAD.values(), ids=BAD.keys())
def test_schemas_that_make_no_sense(arguments):
    with pytest.raises(BadSchema, match=r"expected|label|spaces"):
        TableSchema(**arguments)


@pytest.mark.parametrize("fields", [
    None, [], {}, {"kind": "images"}, {"kind": "table"}, {"kind": "table", "columns": {}},
    {"kind": "table", "columns": [3]},
    {"kind": "table", "columns": [{"type": "boolean"}]}, {"kind": "table", "columns": [{"name": 3, "type": "boolean"}]},
    {"kind": "table", "columns": [{"name": "a", "type": "boolean", "code": "x"}]},
    {"kind": "table", "columns": [{"name": "a", "type": ["boolean"]}]},
    {"kind": "table", "columns": [{"name": "a", "type": "boolean"}], "more": 1},
    {"kind": "table", "columns": [{"name": "a", "type": "integer", "low": 0, "high": 2**60, "bins": 2**40}]},
    {"kind": "table", "columns": [{"name": "a", "type": "boolean"}] * 20000},
    {"kind": "table", "columns": [{"name": "\ud800", "type": "boolean"}]},
])  # fmt: skip
def test_strangers_schemas_are_refused(fields):
    with pytest.raises(BadSchema):
        TableSchema.from_json(fields)
