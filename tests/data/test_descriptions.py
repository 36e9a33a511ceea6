"""Descriptions of columns: checked alone, finished by a private search, and only then built."""

import pyarrow as pa
import pytest

from lightning_dpgen.data.tables.column import BadSchema, Column
from lightning_dpgen.data.tables.description import Unfilled
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.data.tables.schema_keys import KINDS, column_of, describe
from lightning_dpgen.data.tables.search import Search

AGE = {"type": "integer", "low": "private", "high": "private", "missing": True}
CITY = {"type": "category", "values": "private", "other": "elsewhere"}


@pytest.mark.parametrize(("fields", "find", "found"), [(AGE, "bounds", [0, 63]), (CITY, "keys", ["Oslo", "Rome"])])
def test_an_unfinished_description_becomes_a_column_when_it_is_completed(fields, find, found):
    search = column_of("a", fields)
    assert isinstance(search, Search) and not isinstance(search, Column)
    assert search.find == describe("a", fields).unfinished == find and search.declared.dump() == fields
    declared = search.complete(found)
    assert declared.unfinished is None and declared.outside == "clamp"
    assert search.build(found) == declared.build("a") == column_of("a", declared.dump())


def test_nothing_is_encoded_by_a_schema_that_is_unfinished():
    schema = parse_schema("columns: {a: {type: integer, low: private, high: private}, b: {type: boolean}}")
    assert [column.name for column in schema.modelled] == ["b"] and schema.arrow.names == ["a", "b"]
    with pytest.raises(BadSchema, match="column 'a': its bounds are still to be found"):
        schema.encode(pa.record_batch({"a": [1], "b": [True]}))
    finished = schema.with_discovery({"a": [0, 3]}).with_bins(4)
    assert finished.encode(pa.record_batch({"a": [1], "b": [True]})).codes.tolist() == [[1, 1]]


def test_a_code_for_missing_values_may_lie_within_the_widest_bounds():
    schema = parse_schema(
        "columns: {a: {type: integer, low: private, high: private, missing: true, missing_values: [-9]}, b: {type: drop}}"
    )
    (search,) = schema.open
    assert search.raw(pa.array(["-9", "3"])).tolist()[1] == 3.0 and schema.recorded[0].is_missing(pa.array(["-9"])).all()
    assert schema.with_discovery({"a": [0, 3]}).columns[0].high == 3
    with pytest.raises(BadSchema, match="missing_values: '-9'"):
        schema.with_discovery({"a": [-16, 3]})


MISTAKES = {
    "bins": {**AGE, "bins": 0},
    "unit": {**AGE, "unit": "EUR"},
    "encoding": {**AGE, "encoding": "one-hot"},
    "counts": {**AGE, "counts": [1, 2]},
    "outside": {**CITY, "outside": "refuse"},
}


@pytest.mark.parametrize(("key", "fields"), MISTAKES.items())
def test_what_is_wrong_with_an_unfinished_description_is_said_before_anything_is_found(key, fields):
    with pytest.raises(BadSchema) as caught:
        column_of("a", fields)
    assert caught.value.key == key


def test_keys_beside_those_that_are_to_be_filled_in_are_checked_one_by_one():
    assert describe("a", {"type": "integer", "low": Unfilled("???"), "high": 9}).high == 9
    with pytest.raises(BadSchema, match="bins: 0"):
        describe("a", {"type": "integer", "low": Unfilled("???"), "bins": 0})


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_has_a_meaning_for_people(kind):
    assert all(field.description for name, field in KINDS[kind].model_fields.items() if name != "type")
