"""Histories: what a file declares of them, how they are read from two tables or one, and written back."""

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lightning_dpgen.data.histories.description import check_files, read_description
from lightning_dpgen.data.histories.reading import CHANGED, MORE_ROWS, TWICE, HistoryTables, read_histories
from lightning_dpgen.data.histories.schema import HistorySchema, RowOrder
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.sampling.errors import BadRecords

VISITS = Path(__file__).with_name("visits.yaml")
ROWS = parse_schema(
    "columns: {ward: {type: category, values: [a, b, c]}, cost: {type: integer, low: 0, high: 99, bins: 5, missing: true}}"
)
PERSONS = parse_schema("columns: {sex: {type: category, values: [F, M]}}")
DAYS = RowOrder.of("day", {"type": "integer", "low": 0, "high": 99, "bins": 100}, {"high": 60, "bins": 61})
PATIENTS = pd.DataFrame({"person": ["x", "y", "z"], "sex": ["F", "M", "F"]})
ROWS_OF = pd.DataFrame(
    {
        "person": ["y", "x", "x", "x", "x"],
        "day": [30, 50, 1, 4, 50],
        "ward": ["a", "b", "a", "b", "a"],
        "cost": [5, 7, None, 99, 20],
    }
)


def _schema(persons=PERSONS, order=DAYS, max_rows=3, **given):
    return HistorySchema(persons, ROWS, max_rows, order, **given)


def _random(schema, n=200, seed=0):
    random = np.random.default_rng(seed)
    counts = random.integers(0, schema.max_rows + 1, n)
    total = int(counts.sum())
    attributes = np.stack(
        [random.integers(0, size, n) for size in (schema.persons.layout.groups if schema.persons else ())] or [np.empty(0)],
        axis=1,
    )
    rows = np.stack([random.integers(0, size, total) for size in schema.rows.layout.groups], axis=1)
    starts = gaps = None
    if schema.order is not None:
        starts, gaps = (
            random.integers(0, schema.order.start.choices, n),
            random.integers(0, schema.order.gap.choices, total),
        )
    gaps = np.zeros(total, np.int64) if gaps is None else gaps
    return schema.joined(attributes if schema.persons else np.zeros((n, 0), int), counts, starts, gaps, rows)


SCHEMAS = {
    f"{'persons' if persons else 'keys'}, {'ordered' if order else 'sets'}, {m}": _schema(persons, order, m)
    for persons, order, m in itertools.product((PERSONS, None), (DAYS, None), (1, 4))
}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_codes_and_tables_are_the_same_histories(schema):
    """Whole times and distances have a bin each, so that writing and reading gives the same codes."""
    encoded = _random(schema)
    table = schema.decode(encoded, np.random.default_rng(1))
    assert table.schema == schema.arrow
    people = table.to_pandas()
    rows = people["rows"].explode().dropna()
    frame = pd.DataFrame(list(rows)).assign(person=rows.index)
    persons = people.drop(columns="rows").assign(person=range(len(people))) if schema.persons else None
    read = read_histories(HistoryTables(frame, persons), schema)
    # A person without attributes is known by rows alone.
    expected = encoded.codes if persons is not None else encoded.codes[encoded.codes[:, schema.attributes] > 0]
    if schema.order is not None and persons is not None:
        ordered = [sorted(row, key=lambda own: own["day"]) == list(row) for row in people["rows"]]
        assert all(ordered)
    once = [_sorted_rows(schema, codes) for codes in read.encoded.codes]
    assert once == [_sorted_rows(schema, codes) for codes in expected]


def _sorted_rows(schema, codes):
    """Return a history whose rows of one time are in the order of their columns."""
    attributes, counts, starts, gaps, rows = schema.parted(Encoded(np.zeros((1, 0)), codes[None]))
    times = np.cumsum(gaps) if schema.order is not None else np.zeros(len(rows), int)
    return (attributes.tolist(), counts.tolist(), None if not len(rows) or starts is None else starts.tolist(),
            sorted(zip(times.tolist(), map(tuple, rows.tolist()), strict=True)))  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_a_schema_is_what_its_json_says(schema):
    again = HistorySchema.from_json(json.loads(json.dumps(schema.as_json())))
    assert again == schema and again.layout == schema.layout and again.names == schema.names
    for broken in ({}, {"kind": "histories"}, schema.as_json() | {"more": 1}, schema.as_json() | {"max_rows": 0}):
        with pytest.raises(ValueError):
            HistorySchema.from_json(broken)


def test_a_history_follows_from_the_rows_of_its_person_alone():
    """The order of the file and other persons move nothing."""
    schema = _schema()
    whole = read_histories(HistoryTables(ROWS_OF, PATIENTS), schema).encoded.codes
    for seed in range(5):
        shuffled = ROWS_OF.sample(frac=1.0, random_state=seed)
        assert (read_histories(HistoryTables(shuffled, PATIENTS), schema).encoded.codes == whole).all()
    for i, name in enumerate("xyz"):
        alone = ROWS_OF[ROWS_OF.person == name], PATIENTS[PATIENTS.person == name]
        assert (read_histories(HistoryTables(*alone), schema).encoded.codes == whole[i]).all()


@pytest.mark.parametrize(("keep", "days"), [("first", [1, 4, 50]), ("last", [4, 50, 50])])
def test_of_many_rows_the_first_or_the_last_count(keep, days):
    schema = _schema(keep=keep)
    read = read_histories(HistoryTables(ROWS_OF, PATIENTS), schema)
    (row,) = schema.decode(read.encoded[:1], np.random.default_rng(0)).to_pylist()
    assert [own["day"] for own in row["rows"]] == days
    assert read.counted == {MORE_ROWS: 1, TWICE: 1}


def test_rows_without_an_order_are_chosen_as_if_at_random_and_alike():
    schema, many = _schema(None, None, 2), pd.DataFrame({"person": 1, "ward": list("abcabc"), "cost": range(6)})
    chosen = {tuple(map(tuple, schema.parted(read_histories(HistoryTables(many.assign(cost=many.cost + 7 * seed)),
                                                            schema).encoded)[-1])) for seed in range(8)}  # fmt: skip
    assert len(chosen) > 3
    both = pd.concat([many.assign(person=0, cost=many.cost + 50), many])
    assert (read_histories(HistoryTables(both), schema).encoded.codes[1:]
            == read_histories(HistoryTables(many), schema).encoded.codes).all()  # fmt: skip
    one, other = (read_histories(HistoryTables(rows), schema).encoded.codes for rows in (many, many[::-1]))
    assert (one == other).all()


def test_attributes_may_stand_in_each_row():
    schema, rows = _schema(), ROWS_OF.merge(PATIENTS)
    read = read_histories(HistoryTables(rows), schema)
    expected = read_histories(HistoryTables(ROWS_OF, PATIENTS[PATIENTS.person != "z"]), schema)
    assert sorted(map(tuple, read.encoded.codes)) == sorted(map(tuple, expected.encoded.codes))
    rows.loc[rows.day == 4, "sex"] = "M"
    with pytest.raises(BadRecords, match="'sex' changes from row to row"):
        read_histories(HistoryTables(rows), schema)
    assert read_histories(HistoryTables(rows), schema, outside="clamp").counted[CHANGED] == 1


WRONG = {
    "a row of no person": (ROWS_OF.assign(person="q"), PATIENTS, "that the table of persons lacks"),
    "a row without a person": (ROWS_OF.assign(person=[None, *"xxxx"]), PATIENTS, "a value is missing"),
    "a person twice": (ROWS_OF, pd.concat([PATIENTS, PATIENTS[:1]]), "twice, 'x': expected one row for each person"),
    "a time before the first": (ROWS_OF.assign(day=-1), PATIENTS, "is below low, 0"),
    "a time behind the last": (ROWS_OF.assign(day=500_000), PATIENTS, "is above high, 60099"),
    "a distance": (ROWS_OF.assign(day=[0, 90, 1, 4, 90]), PATIENTS, "86 is above high, 60"),
    "an unknown ward": (ROWS_OF.assign(ward="q"), PATIENTS, "'q': expected one of"),
    "no time": (ROWS_OF.assign(day=None), PATIENTS, "value is missing"),
    "another column": (ROWS_OF.assign(more=1), PATIENTS, "not in the schema"),
    "no column": (ROWS_OF.drop(columns="ward"), PATIENTS, "lacks ward"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_declared_is_refused(name):
    rows, persons, message = WRONG[name]
    with pytest.raises(BadRecords, match=message):
        read_histories(HistoryTables(rows, persons), _schema())


def test_a_file_describes_both_tables(tmp_path):
    described = read_description(VISITS, 16)
    schema = described.schema
    assert schema.names.rows == "visits" and schema.label_values == ("died", ["false", "true"])
    assert schema.layout.label == 1 and schema.order.start.choices == 16 and schema.order.gap.choices == 16
    assert described.files == HistoryTables(VISITS.parent / "visits.csv", VISITS.parent / "patients.csv")
    with pytest.raises(FileNotFoundError, match=r"no file .*patients\.csv"):
        check_files(described.files)


BROKEN = {
    "two tables": ("{a: {file: a}, b: {file: b}}", "a, b: expected persons, and one table"),
    "no columns": ("{persons: {file: p, key: k}, r: {file: f}}", "persons: columns: a table of persons without columns"),
    "no number of rows": ("{r: {file: f, person: p, columns: {a: {type: boolean}}}}", "r: max_rows: missing"),
    "no person": ("{r: {file: f, max_rows: 3, columns: {a: {type: boolean}}}}", "r: person: missing"),
    "a gap without an order": ("{r: {file: f, person: p, max_rows: 3, gap: {high: 3}, columns: {a: {type: boolean}}}}",
                               "r: gap: applies to rows in an order"),
    "an order without a gap": ("{r: {file: f, person: p, max_rows: 3, order: t, start: {low: 0, high: 9}, "
                               "columns: {a: {type: boolean}}}}", "r: gap: None: expected bounds"),
    "a wrong column": ("{r: {file: f, person: p, max_rows: 3, columns: {a: {type: bolean}}}}", "column 'a': type"),
    "a name twice": ("{persons: {file: p, key: k, columns: {a: {type: boolean}}}, "
                     "r: {file: f, person: p, max_rows: 3, columns: {a: {type: boolean}}}}", "'a': appears twice"),
    "fixed beside persons": ("{persons: {file: p, key: k, columns: {a: {type: boolean}}}, r: {file: f, person: p, "
                             "max_rows: 3, fixed: {b: {type: boolean}}, columns: {c: {type: boolean}}}}", "r: fixed"),
    "too many rows": ("{r: {file: f, person: p, max_rows: 3000, columns: {a: {type: boolean}}}}", "max_rows: 3000"),
    "no keep": ("{r: {file: f, person: p, max_rows: 3, order: t, keep: some, start: {low: 0, high: 9}, gap: {high: 9}, "
                "columns: {a: {type: boolean}}}}", "keep: 'some': expected one of first, last"),
    "a fixed text": (
        "{r: {file: f, person: p, max_rows: 3, fixed: sex, columns: {a: {type: boolean}}}}",
        "r: fixed: 'sex': expected columns",
    ),
    "a label of a row": (
        "{r: {file: f, person: p, max_rows: 3, fixed: {s: {type: boolean}}, label: a, columns: {a: {type: boolean}}}}",
        "'a' is the label of a row",
    ),
    "no such label": (
        "{r: {file: f, person: p, max_rows: 3, fixed: {s: {type: boolean}}, label: b, columns: {a: {type: boolean}}}}",
        "'b'",
    ),
    "nothing of persons": (
        "{persons: , r: {file: f, person: p, max_rows: 3, columns: {a: {type: boolean}}}}",
        "persons: expected file, key and columns",
    ),
    "a misspelt key": (
        "{r: {file: f, person: p, max_rows: 3, oder: t, columns: {a: {type: boolean}}}}",
        "oder: unknown here: did you mean 'order'",
    ),
    "a column as its person": (
        "{r: {file: f, person: p, max_rows: 3, columns: {p: {type: boolean}}}}",
        "'p': is the column of persons, too",
    ),
    "an attribute as its table": (
        "{r: {file: f, person: p, max_rows: 3, fixed: {r: {type: boolean}}, columns: {a: {type: boolean}}}}",
        "'r': is the table of rows, too",
    ),
    "constraints": (
        "{r: {file: f, person: p, max_rows: 3, constraints: [a = true if b = true], "
        "columns: {a: {type: boolean}, b: {type: boolean}}}}",
        "constraints: are not kept by histories",
    ),
    "one distance": (
        "{r: {file: f, person: p, max_rows: 3, order: t, start: {low: 0, high: 9}, gap: {low: 1, high: 1}, "
        "columns: {a: {type: boolean}}}}",
        "'t': gap: has one bin",
    ),
    "the last of days": (
        "{r: {file: f, person: p, max_rows: 3, order: t, start: {low: 2020-01-01, high: 2021-01-01}, "
        "gap: {high: 2000000}, columns: {a: {type: boolean}}}}",
        "gap: 3 rows may pass 9999-12-31",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_makes_no_sense_is_refused(name, tmp_path):
    text, message = BROKEN[name]
    (tmp_path / "h.yaml").write_text(text)
    with pytest.raises(BadSchema, match=message) as caught:
        read_description(tmp_path / "h.yaml", 16)
    assert "h.yaml" in str(caught.value)


def test_attributes_in_rows_are_declared_as_fixed(tmp_path):
    (tmp_path / "h.yaml").write_text(
        "panel: {file: f.csv, person: p, max_rows: 3, fixed: {sex: {type: boolean}}, label: sex, "
        "columns: {a: {type: boolean}}}"
    )
    described = read_description(tmp_path / "h.yaml", 16)
    assert described.files.persons is None and described.schema.persons.label == "sex"


def test_rows_of_one_time_are_told_apart_by_attributes_last():
    schema = _schema()
    rows = pd.DataFrame({"person": ["x", "x"], "day": [3, 3], "ward": ["a", "a"], "cost": [5, 5], "sex": ["F", "M"]})
    found = [read_histories(HistoryTables(own), schema, outside="clamp").encoded.codes for own in (rows, rows[::-1])]
    assert (found[0] == found[1]).all()


def test_keys_of_two_types_are_told():
    with pytest.raises(BadRecords, match=r"'1' \(str\), that the table of persons lacks"):
        read_histories(HistoryTables(ROWS_OF.assign(person="1"), PATIENTS.assign(person=range(len(PATIENTS)))), _schema())
