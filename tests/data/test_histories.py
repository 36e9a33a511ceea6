"""Histories: what a file declares of them, how they are read from several tables or one, and written back."""

import itertools
import json
import re
import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lightning_dpgen.data.histories.description import check_files, read_description
from lightning_dpgen.data.histories.reading import CHANGED, MORE_ROWS, TWICE, HistoryTables, history_digests, read_histories
from lightning_dpgen.data.histories.row_table import PersonRows, RowOrder, RowTable
from lightning_dpgen.data.histories.schema import HistorySchema
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.sampling.errors import BadRecords

VISITS = Path(__file__).with_name("visits.yaml")
ROWS = parse_schema(
    "columns: {ward: {type: category, values: [a, b, c]}, cost: {type: integer, low: 0, high: 99, bins: 5, missing: true}}"
)
PERSONS = parse_schema("columns: {sex: {type: category, values: [F, M]}}")
START = {"type": "integer", "low": 0, "high": 99, "bins": 100}
DAYS = RowOrder.of("day", START, {"high": 60, "bins": 61})
UNTIL = RowOrder.of("day", START, {"high": 60, "bins": 61}, 120)
PATIENTS = pd.DataFrame({"person": ["x", "y", "z"], "sex": ["F", "M", "F"]})
ROWS_OF = pd.DataFrame(
    {
        "person": ["y", "x", "x", "x", "x"],
        "day": [30, 50, 1, 4, 50],
        "ward": ["a", "b", "a", "b", "a"],
        "cost": [5, 7, None, 99, 20],
    }
)


ORDERS = RowTable("orders", parse_schema("columns: {ward: {type: boolean}}"), 2, DAYS, person="buyer")


def _schema(persons=PERSONS, order=DAYS, max_rows=3, more=(), **given):
    return HistorySchema(persons, (RowTable("visits", ROWS, max_rows, order, **given), *more))


def _read(rows, persons, schema, **given):
    return read_histories(HistoryTables({"visits": rows}, persons), schema, **given)


def _random(schema, n=200, seed=0):
    random = np.random.default_rng(seed)

    def rows_of(table):
        counts = random.integers(0, table.max_rows + 1, n)
        rows = np.stack([random.integers(0, size, counts.sum()) for size in table.rows.layout.groups], axis=1)
        if table.order is None:
            return PersonRows(counts, None, np.zeros(len(rows), int), rows)
        starts, gaps = (random.integers(0, column.choices, size)
                        for column, size in ((table.order.start, n), (table.order.gap, len(rows))))  # fmt: skip
        return PersonRows(counts, starts, gaps, rows)

    attributes = [random.integers(0, size, n) for size in schema.layout.groups[: schema.attributes]]
    return schema.joined(np.array(attributes, int).reshape(-1, n).T, [rows_of(table) for table in schema.tables])


SCHEMAS = {
    f"{'persons' if persons else 'keys'}, {'ordered' if order else 'sets'}, {m}, {1 + len(more)}": _schema(
        persons, order, m, more
    )
    for persons, order, m, more in itertools.product((PERSONS, None), (DAYS, None), (1, 4), ((), (ORDERS,)))
} | {"until": _schema(order=UNTIL)}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_codes_and_tables_are_the_same_histories(schema):
    """Whole times and distances have a bin each, so that writing and reading gives the same codes."""
    encoded = _random(schema)
    if schema.tables[0].order is UNTIL:
        encoded = encoded[np.flatnonzero(_last_times(schema, encoded) <= 120)]
        assert 100 < len(encoded) < 200
    table = schema.decode(encoded, np.random.default_rng(1))
    assert table.schema == schema.arrow
    people, frames = table.to_pandas(), {}
    for own in schema.tables:
        rows = people[own.name].explode().dropna()
        frames[own.name] = pd.DataFrame(list(rows)).assign(**{own.person: rows.index})
    persons = people.drop(columns=list(frames)).assign(person=range(len(people))) if schema.persons else None
    read = read_histories(HistoryTables(frames, persons), schema)
    # A person without attributes is known by rows alone.
    counts = sum(own.counts for own in schema.parted(encoded)[1])
    for own in schema.tables if persons is not None else ():
        assert own.order is None or all(sorted(days) == days for days in
                                        ([row["day"] for row in rows] for rows in people[own.name]))  # fmt: skip
    expected, found = (
        [_sorted_rows(schema, codes) for codes in own]
        for own in (encoded.codes if persons is not None else encoded.codes[counts > 0], read.encoded.codes)
    )
    assert found == expected if persons is not None or len(schema.tables) == 1 else sorted(found) == sorted(expected)


def _last_times(schema, encoded):
    """Return the last time of each person in the first table, by the first ticks of bins."""
    rows = schema.parted(encoded)[1][0]
    gaps = np.bincount(rows.person, np.where(rows.place > 0, rows.gaps, 0), minlength=len(encoded))
    return np.where(rows.counts > 0, rows.starts + gaps, 0)


def test_times_never_pass_the_declared_end():
    """Distances shrink within their bins; a real row after the end is refused, or moved to it."""
    wide = RowOrder.of("day", START | {"bins": 10}, {"high": 60, "bins": 4}, 120)
    schema = _schema(order=wide, max_rows=6)
    encoded = _random(schema)
    people = schema.decode(encoded, np.random.default_rng(0)).to_pylist()
    parts, firsts, shrunk = schema.parted(encoded)[1][0], [low for low, _ in wide.gap.ranges], 0
    for person, rows in enumerate(person["visits"] for person in people):
        times = [row["day"] for row in rows]
        assert times == sorted(times) and max(times, default=0) <= 120
        gaps = parts.gaps[parts.person == person][1:]
        if times and wide.start.ranges[parts.starts[person]][0] + sum(firsts[gap] for gap in gaps) <= 120:
            assert all(wide.gap.ranges[gap][0] <= after - before <= wide.gap.ranges[gap][1]
                       for gap, (before, after) in zip(gaps, itertools.pairwise(times), strict=True))  # fmt: skip
            shrunk += 1
    assert shrunk > 50
    until = _schema(order=UNTIL)
    with pytest.raises(BadRecords, match="130 is above high, 120"):
        _read(ROWS_OF.assign(day=[30, 130, 90, 94, 50]), PATIENTS, until)
    read = _read(ROWS_OF.assign(day=[30, 130, 90, 94, 50]), PATIENTS, until, outside="clamp")
    assert [row["day"] for row in until.decode(read.encoded[:1], np.random.default_rng(0)).to_pylist()[0]["visits"]] == [
        50, 90, 94,
    ]  # fmt: skip


def test_constraints_within_a_row_are_pairs_of_choices():
    rows = parse_schema(
        "{columns: {ward: {type: category, values: [a, b, c]}, birth: {type: boolean, missing: true}, "
        "level: {type: integer, low: 1, high: 3, bins: 3}}, constraints: [ward = c if birth = true, level = 1 if ward = b]}"
    )
    schema = HistorySchema(None, (RowTable("visits", rows, 3),))
    pairs = {(first, second): barred.astype(int).tolist() for first, second, barred in schema.tables[0].pairs}
    assert pairs == {(0, 1): [[0, 1, 0], [0, 1, 0], [0, 0, 0]], (0, 2): [[0, 0, 0], [0, 1, 1], [0, 0, 0]]}
    assert schema.tables[0].possible == [0, 0, 0] and HistorySchema.from_json(schema.as_json()) == schema
    visits = pd.DataFrame({"person": [1, 1, 2], "ward": ["a", "b", "c"], "birth": [False, None, True], "level": [3, 1, 2]})
    assert len(_read(visits, None, schema).encoded) == 2
    with pytest.raises(BadRecords, match=r"^visits: .*ward = c if birth = true"):
        _read(visits.assign(birth=True), None, schema)


def _sorted_rows(schema, codes):
    """Return a history whose rows of one time are in the order of their columns."""
    attributes, tables = schema.parted(Encoded(np.zeros((1, 0)), codes[None]))
    told = [attributes.tolist()]
    for table, own in zip(schema.tables, tables, strict=True):
        times = np.cumsum(own.gaps) if table.order is not None else np.zeros(len(own.rows), int)
        told.append([own.counts.tolist(), own.starts.tolist() if len(own.rows) and table.order is not None else [],
                     sorted(zip(times.tolist(), map(tuple, own.rows.tolist()), strict=True))])  # fmt: skip
    return told


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_a_schema_is_what_its_json_says(schema):
    fields = schema.as_json()
    again = HistorySchema.from_json(json.loads(json.dumps(fields)))
    assert again == schema and again.layout == schema.layout and again.as_json() == fields
    assert (
        len(schema.choices)
        == len(schema.layout.groups)
        == sum(len(table.groups) for table in schema.tables) + (schema.persons is not None)
    )
    table = fields["tables"][0]
    for broken in (
        {}, {"kind": "histories"}, fields | {"more": 1}, fields | {"key": 1}, fields | {"tables": []},
        fields | {"tables": 3},
        *(fields | {"tables": [table | wrong]} for wrong in
          ({"max_rows": 0}, {"share": True}, {"share": "2"}, {"name": ""}, {"name": "persons"}, {"order": 3}, {"more": 1})),
        fields | {"tables": [table, table]},
    ):  # fmt: skip
        with pytest.raises(ValueError):
            HistorySchema.from_json(broken)


def test_a_history_follows_from_the_rows_of_its_person_alone():
    """The order of the file and other persons move nothing."""
    schema = _schema()
    whole = _read(ROWS_OF, PATIENTS, schema).encoded.codes
    for seed in range(5):
        shuffled = ROWS_OF.sample(frac=1.0, random_state=seed)
        assert (_read(shuffled, PATIENTS, schema).encoded.codes == whole).all()
    for i, name in enumerate("xyz"):
        alone = ROWS_OF[ROWS_OF.person == name], PATIENTS[PATIENTS.person == name]
        assert (_read(*alone, schema).encoded.codes == whole[i]).all()


def test_what_a_database_returns_in_any_order_is_read_alike(tmp_path):
    """The records and their fingerprint are the same for rows in any order, and those of a file."""
    (tmp_path / "h.yaml").write_text(
        "url: sqlite:///clinic.db\n"
        + re.sub(r"file: (\w+).csv", r"query: select * from \1 order by ORDER", VISITS.read_text())
    )
    described = {}
    with sqlite3.connect(tmp_path / "clinic.db") as connection:
        PATIENTS.assign(died=[1, 0, 1]).rename(columns={"person": "patient"}).to_sql("patients", connection, index=False)
        days = pd.Timestamp("2020-01-01") + pd.to_timedelta(ROWS_OF.day, unit="D")
        rows = ROWS_OF.rename(columns={"person": "patient"}).assign(day=days.dt.strftime("%Y-%m-%d"))
        rows.to_sql("visits", connection, index=False)
    connection.close()
    for order in ("patient", "patient desc"):
        (tmp_path / "o.yaml").write_text((tmp_path / "h.yaml").read_text().replace("ORDER", order))
        described[order] = read_description(tmp_path / "o.yaml", 16)
    read = [read_histories(own.files, own.schema).encoded.codes for own in described.values()]
    digests = [list(history_digests(own.files, own.schema)) for own in described.values()]
    assert (read[0] == read[1]).all() and len(read[0]) == 3
    assert all((one == other).all() for one, other in zip(*digests, strict=True)) and len(digests[0]) == 2
    for name in ("patients", "visits"):
        frame = {"patients": PATIENTS.assign(died=[1, 0, 1]), "visits": rows}[name]
        frame.rename(columns={"person": "patient"}).to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "f.yaml").write_text(VISITS.read_text())
    of_files = read_description(tmp_path / "f.yaml", 16)
    assert (read_histories(of_files.files, of_files.schema).encoded.codes == read[0]).all()


@pytest.mark.parametrize(("keep", "days"), [("first", [1, 4, 50]), ("last", [4, 50, 50])])
def test_of_many_rows_the_first_or_the_last_count(keep, days):
    schema = _schema(keep=keep)
    read = _read(ROWS_OF, PATIENTS, schema)
    (row,) = schema.decode(read.encoded[:1], np.random.default_rng(0)).to_pylist()
    assert [own["day"] for own in row["visits"]] == days
    assert read.counted == {MORE_ROWS: 1, TWICE: 1}


def test_rows_without_an_order_are_chosen_as_if_at_random_and_alike():
    schema, many = _schema(None, None, 2), pd.DataFrame({"person": 1, "ward": list("abcabc"), "cost": range(6)})
    read = [_read(many.assign(cost=many.cost + 7 * seed), None, schema).encoded for seed in range(8)]
    chosen = {tuple(map(tuple, schema.parted(own)[1][0].rows)) for own in read}
    assert len(chosen) > 3
    both = pd.concat([many.assign(person=0, cost=many.cost + 50), many])
    assert (_read(both, None, schema).encoded.codes[1:]
            == _read(many, None, schema).encoded.codes).all()  # fmt: skip
    one, other = (_read(rows, None, schema).encoded.codes for rows in (many, many[::-1]))
    assert (one == other).all()


def test_attributes_may_stand_in_each_row():
    schema, rows = _schema(), ROWS_OF.merge(PATIENTS)
    read = _read(rows, None, schema)
    expected = _read(ROWS_OF, PATIENTS[PATIENTS.person != "z"], schema)
    assert sorted(map(tuple, read.encoded.codes)) == sorted(map(tuple, expected.encoded.codes))
    rows.loc[rows.day == 4, "sex"] = "M"
    with pytest.raises(BadRecords, match="'sex' changes from row to row"):
        _read(rows, None, schema)
    assert _read(rows, None, schema, outside="clamp").counted[CHANGED] == 1


WRONG = {
    "a row of no person": (ROWS_OF.assign(person="q"), PATIENTS, "that the table of persons lacks"),
    "a row without a person": (ROWS_OF.assign(person=[None, *"xxxx"]), PATIENTS, "a value is missing"),
    "a person twice": (ROWS_OF, pd.concat([PATIENTS, PATIENTS[:1]]), "twice, 'x': expected one row for each person"),
    "a time before the first": (ROWS_OF.assign(day=-1), PATIENTS, "is below low, 0"),
    "a time behind the last": (ROWS_OF.assign(day=500_000), PATIENTS, "is above high, 60099"),
    "a distance": (ROWS_OF.assign(day=[0, 90, 1, 4, 90]), PATIENTS, "86 is above high, 60"),
    "an unknown ward": (ROWS_OF.assign(ward="q"), PATIENTS, "'q': expected one of"),
    "no time": (ROWS_OF.assign(day=None), PATIENTS, "a time is missing"),
    "another column": (ROWS_OF.assign(more=1), PATIENTS, "not in the schema"),
    "no column": (ROWS_OF.drop(columns="ward"), PATIENTS, "lacks ward"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_declared_is_refused(name):
    rows, persons, message = WRONG[name]
    with pytest.raises(BadRecords, match=message):
        _read(rows, persons, _schema())


def test_a_file_describes_both_tables(tmp_path):
    described = read_description(VISITS, 16)
    schema = described.schema
    (visits,) = schema.tables
    assert (
        visits.name == "visits"
        and schema.key == visits.person == "patient"
        and schema.label_values == ("died", ["false", "true"])
    )
    assert schema.layout.label == 1 and visits.order.start.choices == 16 and visits.order.gap.choices == 16
    assert described.files == HistoryTables({"visits": VISITS.parent / "visits.csv"}, VISITS.parent / "patients.csv")
    with pytest.raises(FileNotFoundError, match=r"no file .*patients\.csv"):
        check_files(described.files)


BROKEN = {
    "no table of rows": ("{persons: {file: p, key: k, columns: {a: {type: boolean}}}}", "no table of rows: expected"),
    "fixed in one of two": ("{a: {file: a, fixed: {s: {type: boolean}}}, b: {file: b}}",
                            "a: fixed: expected one table of rows"),
    "a share of nothing": ("{r: {file: f, person: p, max_rows: 3, share: 0, columns: {a: {type: boolean}}}}",
                           "r: share: 0: expected a number above 0"),
    "a share in words": ("{r: {file: f, person: p, max_rows: 3, share: half, columns: {a: {type: boolean}}}}",
                         "r: share: 'half': expected a number above 0"),
    "no file of persons": ("{persons: {key: k, columns: {a: {type: boolean}}}, r: {file: f, person: p, max_rows: 3, "
                           "columns: {b: {type: boolean}}}}", "persons: file: missing"),
    "no columns": ("{persons: {file: p, key: k}, r: {file: f}}", "persons: columns: a table of persons without columns"),
    "no number of rows": ("{r: {file: f, person: p, columns: {a: {type: boolean}}}}", "r: max_rows: missing"),
    "no person": ("{r: {file: f, max_rows: 3, columns: {a: {type: boolean}}}}", "r: person: missing"),
    "a gap without an order": ("{r: {file: f, person: p, max_rows: 3, gap: {high: 3}, columns: {a: {type: boolean}}}}",
                               "r: gap: applies to rows in an order"),
    "an order without a gap": ("{r: {file: f, person: p, max_rows: 3, order: t, start: {low: 0, high: 9}, "
                               "columns: {a: {type: boolean}}}}", "r: gap: None: expected bounds"),
    "a wrong column": ("{r: {file: f, person: p, max_rows: 3, columns: {a: {type: bolean}}}}", "column 'a': type"),
    "a name twice": ("{r: {file: f, person: p, max_rows: 3, fixed: {a: {type: boolean}}, columns: {a: {type: boolean}}}}",
                     "r: column 'a': appears twice"),
    "a time twice": ("{r: {file: f, person: p, max_rows: 3, order: a, start: {low: 0, high: 9}, gap: {high: 9}, "
                     "columns: {a: {type: boolean}}}}", "r: column 'a': appears twice"),
    "fixed beside persons": ("{persons: {file: p, key: k, columns: {a: {type: boolean}}}, r: {file: f, person: p, "
                             "max_rows: 3, fixed: {b: {type: boolean}}, columns: {c: {type: boolean}}}}", "r: fixed"),
    "too many rows": ("{r: {file: f, person: p, max_rows: 3000, columns: {a: {type: boolean}}}}", "max_rows: 3000"),
    "an end before the last start": ("{r: {file: f, person: p, max_rows: 3, order: t, start: {low: 0, high: 9}, "
                                     "gap: {high: 9}, end: 8, columns: {a: {type: boolean}}}}",
                                     "r: column 't': end: 8: expected 9, the high of start, or later"),
    "an end in words": ("{r: {file: f, person: p, max_rows: 3, order: t, start: {low: 2020-01-01, high: 2021-01-01}, "
                        "gap: {high: 9}, end: soon, columns: {a: {type: boolean}}}}", "end: 'soon': expected a date"),
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
    "constraints of bins": (
        "{r: {file: f, person: p, max_rows: 3, constraints: [a = true if b > 5], "
        "columns: {a: {type: boolean}, b: {type: integer, low: 0, high: 9, bins: 3}}}}",
        "r: constraints: .*b > 5.*: is kept within a row where it is about two columns",
    ),
    "constraints of three columns": (
        "{r: {file: f, person: p, max_rows: 3, constraints: ['a = true if b = true and c = true'], "
        "columns: {a: {type: boolean}, b: {type: boolean}, c: {type: boolean}}}}",
        "is kept within a row where it is about two columns",
    ),
    "constraints of persons": (
        "{persons: {file: p, key: k, constraints: [a = true if b = true], "
        "columns: {a: {type: boolean}, b: {type: boolean}}}, "
        "r: {file: f, person: p, max_rows: 3, columns: {c: {type: boolean}}}}",
        "persons: constraints: are kept within rows alone",
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


def test_a_file_describes_several_tables(tmp_path):
    """Names of columns may be those of another table."""
    table = "{file: %s.csv, person: %s, max_rows: 3, columns: {a: {type: boolean}}}"
    text = f"visits: {table % ('v', 'p')}\norders: {(table % ('o', 'buyer'))[:-1]}, share: 2}}\n"
    (tmp_path / "h.yaml").write_text(text)
    described = read_description(tmp_path / "h.yaml", 16)
    visits, orders = described.schema.tables
    assert (visits.name, visits.person, visits.share) == ("visits", "p", 1.0) and described.schema.key == "p"
    assert (orders.name, orders.person, orders.share) == ("orders", "buyer", 2)
    assert described.files.rows == {name: tmp_path / f"{name[0]}.csv" for name in ("visits", "orders")}
    (tmp_path / "h.yaml").write_text("persons: {file: f.csv, key: k, columns: {a: {type: boolean}}}\n" + text)
    assert read_description(tmp_path / "h.yaml", 16).schema.layout.groups[0] == 2


def test_descriptions_of_the_page_are_read(tmp_path):
    page = (Path(__file__).parents[2] / "docs/how_to/release_histories.md").read_text()
    blocks = [block.partition("```")[0] for block in page.split("```yaml")[1:]]
    one = (Path(__file__).parents[2] / "docs/start/visits.histories.yaml").read_text()
    persons, several, queries, ruled = blocks
    found = []
    texts = (one, ruled, several, persons + several.partition("visits:")[1] + several.partition("visits:")[2], queries)
    for text in texts:
        (tmp_path / "h.yaml").write_text(text)
        found.append([table.name for table in read_description(tmp_path / "h.yaml", 16).schema.tables])
    assert found == [["visits"], ["events"], ["visits", "prescriptions"], ["visits", "prescriptions"], ["visits"]]


TWO = _schema(more=(ORDERS,))
ORDERS_OF = pd.DataFrame({"buyer": ["x", "z", "z", "z"], "day": [3, 9, 9, 2], "ward": [True, False, True, True]})


def test_tables_belong_to_the_same_persons():
    tables = {"visits": ROWS_OF, "orders": ORDERS_OF}
    read = read_histories(HistoryTables(tables, PATIENTS), TWO)
    visits, orders = TWO.parted(read.encoded)[1]
    assert visits.counts.tolist() == [3, 1, 0] and orders.counts.tolist() == [1, 0, 2]
    assert read.counted == {
        f"visits: {MORE_ROWS}": 1,
        f"visits: {TWICE}": 1,
        f"orders: {MORE_ROWS}": 1,
        f"orders: {TWICE}": 1,
    }
    one = read_histories(HistoryTables({"visits": ROWS_OF}, PATIENTS), _schema()).encoded.codes
    assert (one == read.encoded.codes[:, : one.shape[1]]).all()
    # Without a table of persons, persons are those of all tables.
    keys = _schema(None, more=(ORDERS,))
    assert keys.parted(read_histories(HistoryTables(tables), keys).encoded)[1][1].counts.tolist() == [1, 0, 2]
    for name, broken, message in (
        (
            "orders",
            ORDERS_OF.assign(buyer="q"),
            "^orders: .*row 3 .from 0. has a 'buyer', 'q' .*that the table",
        ),
        ("orders", ORDERS_OF.assign(day=-1), "^orders: .*is below low, 0"),
        ("visits", ROWS_OF.assign(ward="q"), "^visits: .*'q': expected one of"),
    ):
        with pytest.raises(BadRecords, match=message):
            read_histories(HistoryTables(tables | {name: broken}, PATIENTS), TWO)


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
    found = [_read(own, None, schema, outside="clamp").encoded.codes for own in (rows, rows[::-1])]
    assert (found[0] == found[1]).all()


def test_keys_of_two_types_are_told():
    with pytest.raises(BadRecords, match=r"'1' \(str\), that the table of persons lacks"):
        _read(ROWS_OF.assign(person="1"), PATIENTS.assign(person=range(len(PATIENTS))), _schema())
