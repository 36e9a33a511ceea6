"""Rules beyond one row: a description states them, and real histories that break one are refused or cut."""

import numpy as np
import pandas as pd
import pytest

from lightning_dpgen.data.histories.description import read_description
from lightning_dpgen.data.histories.reading import HistoryTables, read_histories
from lightning_dpgen.data.histories.row_table import RowOrder, RowTable
from lightning_dpgen.data.histories.schema import HistorySchema
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.sampling.errors import BadRecords

PERSONS = parse_schema(
    "columns: {sex: {type: category, values: [F, M]}, died: {type: boolean}, "
    "born: {type: integer, low: 0, high: 50, bins: 2}, end: {type: integer, low: 10, high: 99, bins: 3, missing: true}}"
)
ROWS = parse_schema(
    "columns: {event: {type: category, values: [check, birth, death]}, "
    "size: {type: integer, low: 0, high: 99, bins: 2, missing: true}, stage: {type: category, values: [2, 1, 3]}}"
)
DAYS = RowOrder.of("day", {"type": "integer", "low": 0, "high": 99, "bins": 100}, {"high": 99, "bins": 100})
PATIENTS = pd.DataFrame(
    {"person": ["x", "y"], "sex": ["F", "M"], "died": [True, False], "born": [2, 20], "end": [60, None]}
)
GOOD = pd.DataFrame(
    {
        "person": ["x", "x", "x", "y", "y"],
        "day": [10, 20, 60, 30, 31],
        "event": ["birth", "check", "death", "check", "check"],
        "size": [10, 20, 30, 60, None],
        "stage": [1, 2, 3, 2, 3],
    }
)


def _schema(*rules, persons=PERSONS, order=DAYS, rows=ROWS):
    return HistorySchema(persons, (RowTable("visits", rows, 5, order, constraints=rules),))


def _read(schema, rows, persons=PATIENTS, outside="refuse"):
    return read_histories(HistoryTables({"visits": rows}, persons), schema, outside=outside)


# For each rule changes of a row (its place, and values) that break it, the rows that are named, and those left out.
BROKEN = {
    "event = death is last": ((1, {"event": "death"}), "row 1 .from 0. and .*row 2 ", [2]),
    "event = birth is first": ((1, {"event": "birth"}), "row 0 .from 0. and .*row 1 ", [1]),
    "event = birth at most once": ((1, {"event": "birth"}), "row 0 .from 0. and .*row 1 ", [1]),
    "size never falls": ((1, {"size": 9}), "row 0 .from 0. and .*row 1 ", [1]),
    "stage never falls": ((2, {"stage": 1}), "row 1 .from 0. and .*row 2 ", [2]),
    "event != birth if persons.sex = M": ((4, {"event": "birth"}), "row 4 ", [4]),
    "size < 50 if persons.died = true": ((0, {"size": 70}), "row 0 ", [0]),
    "day <= persons.end": ((2, {"day": 61}), "row 2 ", [2]),
    "day > persons.born + 5": ((0, {"day": 7}), "row 0 ", [0]),
    "persons.born + 10 <= day if persons.sex = M": ((3, {"day": 29}), "row 3 ", [3]),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_real_history_that_breaks_a_rule_is_refused_with_its_rows(rule):
    (row, changes), named, left_out = BROKEN[rule]
    schema, rows = _schema(rule), GOOD.copy()
    kept = _read(schema, GOOD)
    assert (kept.encoded.codes == _read(_schema(), GOOD).encoded.codes).all() and "left out" not in str(kept.counted)
    for name, value in changes.items():
        rows.loc[row, name] = value
    with pytest.raises(BadRecords, match=rf"^visits: .*{named}.*the person '[xy]' breaks the constraint ") as caught:
        _read(schema, rows)
    assert rule in str(caught.value)
    # Under clamp, rows that break it are left out, whatever the order of the file.
    expected = _read(_schema(), rows.drop(index=left_out)).encoded.codes
    for seed in range(3):
        read = _read(schema, rows.sample(frac=1.0, random_state=seed), outside="clamp")
        assert (read.encoded.codes == expected).all() and read.counted[f"{rule}: left out"] == len(left_out)


def test_rows_are_named_by_their_lines_in_a_file(tmp_path):
    rows = pd.concat([GOOD, GOOD[:1].assign(day=90)])
    rows.to_csv(tmp_path / "visits.csv", index=False)
    PATIENTS.to_csv(tmp_path / "patients.csv", index=False)
    tables = HistoryTables({"visits": tmp_path / "visits.csv"}, tmp_path / "patients.csv")
    with pytest.raises(BadRecords, match=r"visits.csv, line 2 and .*visits.csv, line 7: the person 'x' breaks"):
        read_histories(tables, _schema("event = birth at most once"))
    broken = pd.concat([rows, GOOD.assign(person="y", event="birth")])
    with pytest.raises(BadRecords, match=r"the person 'x' \(and 1 more\) breaks"):
        _read(_schema("event = birth at most once"), broken)


@pytest.mark.parametrize(
    "rule", ["event = death is last", "event = check is first", "size never falls", "size never rises"]
)
def test_rows_of_one_time_stand_in_an_order_that_keeps_rules(rule):
    """Also where values differ within a bin alone."""
    rows = GOOD[:3].assign(day=5, event=["death", "birth", "check"], size=[3, 1, 2])
    found = [_read(_schema(rule), rows.sample(frac=1.0, random_state=seed)).encoded.codes for seed in range(4)]
    assert all((own == found[0]).all() for own in found)
    with pytest.raises(BadRecords, match="breaks the constraint"):
        _read(_schema(rule), pd.concat([rows, rows.assign(day=6)]))


def test_attributes_that_stand_in_each_row_bound_times(tmp_path):
    schema, rows = _schema("day <= persons.end"), GOOD.merge(PATIENTS)
    assert len(_read(schema, rows, None).encoded) == 2
    with pytest.raises(BadRecords, match=r"row 2 .*breaks the constraint day <= persons.end"):
        _read(schema, rows.assign(day=rows.day + (rows.index == 2)), None)
    # Values of a bin that differ from row to row are no matter of the file's order.
    two = rows[:2].assign(day=10, event="check", size=1, stage=1, end=[11, 12])
    found = [_read(schema, own, None).encoded.codes.tolist() for own in (two, two[::-1])]
    assert found[0] == found[1]


def test_a_part_of_a_history_that_is_left_out_breaks_no_other_rule():
    random, rules = (
        np.random.default_rng(0),
        [rule for rule in BROKEN if rule not in ("size < 50 if persons.died = true", "event = birth is first")],
    )
    rows = pd.DataFrame(
        {
            "person": random.choice(["x", "y"], 4000), "day": random.integers(0, 90, 4000),
            "event": random.choice(["check", "birth", "death"], 4000), "size": random.integers(0, 99, 4000),
            "stage": random.integers(1, 4, 4000),
        }
    )  # fmt: skip
    rows["person"] += (rows.index // 8).astype(str)
    keys = sorted(set(rows.person))
    born, end, sexes = (
        random.integers(0, 50, len(keys)),
        random.integers(10, 99, len(keys)),
        random.choice(["F", "M"], len(keys)),
    )
    persons = pd.DataFrame({"person": keys, "sex": sexes, "died": True, "born": born, "end": end})
    read = _read(_schema(*rules), rows, persons, outside="clamp")
    assert all(read.counted[f"{rule}: left out"] > 5 for rule in rules)
    schema = _schema(*rules)
    (own,) = schema.parted(read.encoded)[1]
    for rule in schema.rules[0].sequence:
        assert not rule.whole or not rule.broken(rule.labels[own.rows[:, rule.column]], own.person).any()
    assert (own.counts > 1).sum() > 20


REFUSED = {
    "event = death is last": (_schema, {"order": None}, "rows have no order: declare order"),
    "stage never falls": (_schema, {"order": None}, "rows have no order"),
    "event is last": (_schema, {}, "expected a choice, as in 'event = VALUE is last'"),
    "event = death never falls": (_schema, {}, "expected a column, one of event"),
    "evnt = death is last": (_schema, {}, "there is no such column: expected one of event.*did you mean event"),
    "event = deth is last": (_schema, {}, "'deth': expected one of"),
    "size at most once": (_schema, {}, "cuts a bin of 'size': expected values at the edges"),
    "size = 5 is last": (_schema, {}, "cuts a bin of 'size'"),
    "size >= 30 at most once": (_schema, {}, "cuts a bin of 'size'"),
    "event != birth if persons.sex = X": (_schema, {}, "'X': expected one of"),
    "event != birth if persons.sx = M": (_schema, {}, "'persons.sx.*did you mean persons.sex"),
    "event != birth if persons.born > 7": (_schema, {}, "cuts a bin of 'persons.born'"),
    "event != birth if persons.sex = M and persons.died = true": (_schema, {}, "one column of a row, and one of persons"),
    "persons.sex = F if persons.died = true": (_schema, {}, "one column of a row, and one of persons"),
    "day = persons.born": (_schema, {}, "compared with one attribute by <="),
    "day <= 2 * persons.end": (_schema, {}, "compared with one attribute by <="),
    "day <= persons.end + persons.born": (_schema, {}, "compared with one attribute by <="),
    "day <= persons.end if event = death": (_schema, {}, "expected conditions on persons alone"),
    "size <= persons.end": (_schema, {}, "cuts a bin of"),
    "event != birth if persons.sex  = F": (_schema, {"persons": None}, "'persons.sex"),
}


@pytest.mark.parametrize("rule", REFUSED)
def test_what_is_no_rule_is_refused(rule):
    make, given, message = REFUSED[rule]
    with pytest.raises(BadSchema, match=f"^visits: constraints: .*{message}") as caught:
        make(rule, **given)
    assert rule[:30] in str(caught.value)


def test_rules_that_contradict_are_refused():
    with pytest.raises(BadSchema, match=r"'stage'.*never falls and never rises"):
        _schema("stage never falls", "stage never rises")
    tied = parse_schema(
        "{columns: {a: {type: integer, low: 0, high: 9, edges: [5]}, b: {type: boolean}}, constraints: [a < 5 if b = true]}"
    )
    assert HistorySchema(None, (RowTable("r", tied, 3, DAYS),)).tables[0].pairs
    with pytest.raises(BadSchema, match="column 'a' is in a constraint, too"):
        HistorySchema(None, (RowTable("r", tied, 3, DAYS, constraints=("a never falls",)),))
    fields = _schema("event = death is last").as_json()
    assert HistorySchema.from_json(fields).rules[0].texts == ["event = death is last"]
    for wrong in ("event = death is last", [3], ["event = deth is last"], ["event = death"], [None], {}):
        with pytest.raises(ValueError):
            HistorySchema.from_json(fields | {"tables": [fields["tables"][0] | {"constraints": wrong}]})
    assert "constraints" not in _schema().as_json()["tables"][0]


TEXT = """
persons: {file: p.csv, key: person, columns: {sex: {type: category, values: [F, M]}, end: {type: date, low: 2020-01-01,
  high: 2024-01-01}}}
visits: {file: v.csv, person: person, order: day, max_rows: 4, start: {low: 2019-01-01, high: 2021-01-01}, gap: {high: 365},
  columns: {event: {type: category, values: [check, death, new heart], once: %s}, ill: {type: boolean}, n: {type: boolean}},
  constraints: [day <= persons.end, event = death is last, ill = true if event = death, n never falls]}
"""


@pytest.mark.parametrize(
    ("once", "texts"),
    [
        ("true", ["event at most once"]),
        ("[death, new heart]", ["event = death at most once", 'event = "new heart" at most once']),
        ("false", []),
    ],
)
def test_a_file_declares_rules(tmp_path, once, texts):
    (tmp_path / "h.yaml").write_text(TEXT % once)
    schema = read_description(tmp_path / "h.yaml", 16).schema
    assert sorted(schema.rules[0].texts) == sorted([*texts, "day <= persons.end", "event = death is last", "n never falls"])
    assert schema.tables[0].rows.constraints == ("ill = true if event = death",)
    assert len(schema.constraint_texts[0]) == 4 + len(texts)


@pytest.mark.parametrize("once", ["death", "3", "[]", "[deth]", "{a: 1}"])
def test_once_is_true_or_some_of_the_values(tmp_path, once):
    (tmp_path / "h.yaml").write_text(TEXT % once)
    with pytest.raises(BadSchema, match=r"h.yaml: visits: .*(once: .*expected true, or a list|'deth': expected one of)"):
        read_description(tmp_path / "h.yaml", 16)
